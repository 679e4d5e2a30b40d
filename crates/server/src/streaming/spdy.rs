//! As much of SPDY/3.1 as a client of a runtime's streaming server needs: it opens streams, sends
//! and receives data, and learns that streams have ended.
//!
//! Streaming servers use no flow control, and what their replies to new streams say is of no use
//! here. So headers are only ever sent, which needs the container format of zlib and none of its
//! compression; those that arrive are skipped.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::relay::PIECE;

/// The first half-word of control frames: the control bit and version 3.
const CONTROL: u16 = 0x8003;
/// `FLAG_FIN`: the last frame of this direction of the stream.
const LAST: u8 = 1;

const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;

/// A header of zlib without a dictionary, which comes once in a connection.
const ZLIB_HEADER: [u8; 2] = [0x78, 0x01];

/// An empty block, which makes the peer look at what came before it.
const FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// Data of one frame; the format has room for 16 MiB.
const MAX_DATA: usize = 1 << 20;

/// A stream of the connection. Those of clients have odd numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(u32);

/// What arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// So many bytes of a stream follow, to be read with [`FrameReader::piece`].
    Data { stream: StreamId, length: usize, last: bool },
    /// A stream ended.
    Reset { stream: StreamId },
    /// The peer wants this back.
    Ping { id: u32 },
    /// The peer ends the connection.
    GoAway,
    /// Something that needs no answer.
    Other,
}

/// The sending side.
#[derive(Debug)]
pub(super) struct FrameWriter<W> {
    to: W,
    streams: u32,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, streams: 0 }
    }

    /// Opens a stream with one header, whose name has no capitals.
    pub(super) async fn open(&mut self, name: &str, value: &str) -> io::Result<StreamId> {
        let stream = StreamId(self.streams * 2 + 1);
        let mut pairs = 1_u32.to_be_bytes().to_vec();
        for text in [name, value] {
            pairs.extend(length_of(text.len())?.to_be_bytes());
            pairs.extend(text.as_bytes());
        }
        let length = u16::try_from(pairs.len()).map_err(io::Error::other)?;
        let mut payload = stream.0.to_be_bytes().to_vec();
        // No other stream belongs to it, and its priority is the highest, as everybody's.
        payload.extend([0; 6]);
        if self.streams == 0 {
            payload.extend(ZLIB_HEADER);
        }
        // A block that is stored as it is, and not the last one.
        payload.push(0);
        payload.extend(length.to_le_bytes());
        payload.extend((!length).to_le_bytes());
        payload.extend(pairs);
        payload.extend(FLUSH);
        self.streams += 1;
        self.control(SYN_STREAM, &payload).await?;
        Ok(stream)
    }

    /// Sends bytes of a stream.
    pub(super) async fn data(&mut self, stream: StreamId, bytes: &[u8]) -> io::Result<()> {
        for piece in bytes.chunks(MAX_DATA) {
            self.data_frame(stream, piece, 0).await?;
        }
        Ok(())
    }

    /// Says that no more bytes of a stream will be sent.
    pub(super) async fn finish(&mut self, stream: StreamId) -> io::Result<()> {
        self.data_frame(stream, &[], LAST).await
    }

    /// Answers a ping.
    pub(super) async fn pong(&mut self, id: u32) -> io::Result<()> {
        self.control(PING, &id.to_be_bytes()).await
    }

    async fn data_frame(&mut self, stream: StreamId, bytes: &[u8], flags: u8) -> io::Result<()> {
        let mut head = stream.0.to_be_bytes().to_vec();
        head.extend(flags_and_length(flags, bytes.len())?);
        self.to.write_all(&head).await?;
        self.to.write_all(bytes).await?;
        self.to.flush().await
    }

    async fn control(&mut self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let mut frame = CONTROL.to_be_bytes().to_vec();
        frame.extend(kind.to_be_bytes());
        frame.extend(flags_and_length(0, payload.len())?);
        frame.extend(payload);
        self.to.write_all(&frame).await?;
        self.to.flush().await
    }
}

fn length_of(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(io::Error::other)
}

/// Eight bits of flags, 24 of length.
fn flags_and_length(flags: u8, length: usize) -> io::Result<[u8; 4]> {
    let [top, rest @ ..] = length_of(length)?.to_be_bytes();
    if top != 0 {
        return Err(io::Error::other("a SPDY frame holds 16 MiB"));
    }
    Ok([flags, rest[0], rest[1], rest[2]])
}

/// The receiving side.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    from: BufReader<R>,
    /// Of the last data frame, not read yet.
    left: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from: BufReader::with_capacity(PIECE, from), left: 0 }
    }

    /// The next frame, once all of the last one's data has been read; none at the end.
    pub(super) async fn next(&mut self) -> io::Result<Option<Frame>> {
        let mut head = [0; 8];
        match self.from.read_exact(&mut head).await {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [a, b, c, d, flags, length @ ..] = head;
        let length =
            usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2]);
        let word = u32::from_be_bytes([a, b, c, d]);
        if word & (1 << 31) == 0 {
            self.left = length;
            let last = flags & LAST != 0;
            return Ok(Some(Frame::Data { stream: StreamId(word), length, last }));
        }
        // Of control frames the first word is all that is asked for here.
        let mut first = [0; 4];
        let known = length.min(first.len());
        self.from.read_exact(&mut first[..known]).await?;
        self.skip(length - known).await?;
        let first = u32::from_be_bytes(first);
        Ok(Some(match u16::from_be_bytes([c, d]) {
            RST_STREAM => Frame::Reset { stream: StreamId(first & !(1 << 31)) },
            PING => Frame::Ping { id: first },
            GOAWAY => Frame::GoAway,
            _ => Frame::Other,
        }))
    }

    /// Some more of the last data frame's bytes; empty when that was all.
    pub(super) async fn piece<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let room = buffer.len().min(self.left);
        if room == 0 {
            // Reading into nothing would wait for the next frame.
            return Ok(&[]);
        }
        let read = self.from.read(&mut buffer[..room]).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= read;
        Ok(&buffer[..read])
    }

    async fn skip(&mut self, mut length: usize) -> io::Result<()> {
        let mut buffer = [0; 256];
        while length > 0 {
            let room = buffer.len().min(length);
            length -= self.from.read_exact(&mut buffer[..room]).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_are_opened_as_the_format_says() {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        let error = writer.open("streamtype", "error").await.unwrap();
        let stdin = writer.open("streamtype", "stdin").await.unwrap();
        writer.data(stdin, b"hi").await.unwrap();
        writer.finish(stdin).await.unwrap();
        assert_eq!((error, stdin), (StreamId(1), StreamId(3)));
        let pairs = |value: &[u8]| {
            [&b"\0\0\0\x01\0\0\0\x0astreamtype\0\0\0\x05"[..], value, b"\0\0\0\xff\xff"].concat()
        };
        let expected = [
            // 4 + 6 of the stream, 2 of zlib, 5 of the block, 27 of the pairs, 5 of the flush.
            &b"\x80\x03\0\x01\0\0\0\x31\0\0\0\x01\0\0\0\0\0\0\x78\x01\0\x1b\0\xe4\xff"[..],
            &pairs(b"error"),
            b"\x80\x03\0\x01\0\0\0\x2f\0\0\0\x03\0\0\0\0\0\0\0\x1b\0\xe4\xff",
            &pairs(b"stdin"),
            b"\0\0\0\x03\0\0\0\x02hi",
            b"\0\0\0\x03\x01\0\0\0",
        ]
        .concat();
        assert_eq!(bytes, expected);
    }

    #[tokio::test]
    async fn frames_are_read_and_what_is_not_asked_for_is_skipped() {
        let bytes = [
            // A reply with headers of any kind.
            &b"\x80\x03\0\x02\0\0\0\x0a\0\0\0\x01abcdef"[..],
            b"\0\0\0\x05\x01\0\0\x03abc",
            b"\x80\x03\0\x03\0\0\0\x08\0\0\0\x05\0\0\0\x05",
            b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x02",
            b"\x80\x03\0\x07\0\0\0\x08\0\0\0\0\0\0\0\0",
        ]
        .concat();
        let mut reader = FrameReader::new(bytes.as_slice());
        let mut frames = Vec::new();
        let mut data: Vec<u8> = Vec::new();
        while let Some(frame) = reader.next().await.unwrap() {
            frames.push(frame);
            if matches!(frame, Frame::Data { .. }) {
                let mut buffer = [0; 2];
                loop {
                    let piece = reader.piece(&mut buffer).await.unwrap();
                    if piece.is_empty() {
                        break;
                    }
                    data.extend(piece);
                }
            }
        }
        let stream = StreamId(5);
        let expected = [
            Frame::Other,
            Frame::Data { stream, length: 3, last: true },
            Frame::Reset { stream },
            Frame::Ping { id: 2 },
            Frame::GoAway,
        ];
        assert_eq!(frames, expected);
        assert_eq!(data, b"abc");
    }

    #[tokio::test]
    async fn a_frame_that_breaks_off_is_an_error() {
        let mut reader = FrameReader::new(&b"\0\0\0\x05\0\0\0\x03a"[..]);
        assert!(matches!(reader.next().await, Ok(Some(Frame::Data { length: 3, .. }))));
        let mut buffer = [0; 8];
        assert_eq!(reader.piece(&mut buffer).await.unwrap(), b"a");
        assert!(reader.piece(&mut buffer).await.is_err());
    }
}
