//! From a WebSocket's channels to SPDY streams and back.
//!
//! A message of `v5.channel.k8s.io` begins with the number of its channel: standard input, output
//! and error, the end (a `Status`), and the terminal's size. The message 255, n closes channel n.
//! Streaming servers know the same streams by name, within SPDY.

use std::io;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use http::{HeaderMap, HeaderValue, Method, header};
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::relay::{Activity, PIECE};
use super::spdy::{Frame, FrameReader, FrameWriter, StreamId};
use super::tunnel::{SPDY, STREAM_PROTOCOL};
use super::upgrade::{Answer, ask};
use super::{Session, StreamOptions, websocket};

/// The protocols within SPDY whose end is a `Status`, newest first.
const STREAM_PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const END: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// How long saying how it ended may take.
const GOODBYE: Duration = Duration::from_secs(10);
/// How much a streaming server may have to say about the end, in bytes.
const MAX_STATUS: usize = 1 << 20;
/// How much of a refusal is passed on, in bytes.
const MAX_REFUSAL: usize = 4096;

/// Serves a WebSocket with channels from the streams at `url`. What goes wrong there is told on the
/// WebSocket, as its end.
pub(super) fn translate(
    mut request: Request,
    url: String,
    streams: StreamOptions,
    session: Session,
) -> Response {
    let protocol = HeaderValue::from_static(websocket::CHANNELS);
    let (response, caller) = match websocket::accept(&mut request, Some(protocol)) {
        Ok(accepted) => accepted,
        Err(refusal) => return refusal.into_response(),
    };
    let activity = Activity::new(session.idle);
    session.spawn(async move {
        match caller.await {
            Ok(caller) => serve(caller, &url, streams, &activity).await,
            Err(error) => tracing::debug!(%error, "streaming session did not begin"),
        }
    });
    response
}

/// How a session ended.
enum Ended {
    /// As the streaming server says.
    Status(Bytes),
    /// The caller has gone.
    Gone,
}

async fn serve(caller: Upgraded, url: &str, streams: StreamOptions, activity: &Activity) {
    let (mut sink, mut source) = websocket::open(caller).await.split();
    // The sign that the connection stands.
    let lowest = [(streams.stdout, STDOUT), (streams.stderr, STDERR)];
    let channel = lowest.iter().find(|(is_open, _)| *is_open).map_or(END, |(_, channel)| *channel);
    let ended = async {
        send(&mut sink, channel, &[]).await?;
        let runtime = connect(url).await?.await.map_err(io::Error::other)?;
        let (reader, writer) = split(TokioIo::new(runtime));
        let mut writer = FrameWriter::new(writer);
        let open = OpenStreams::open(&mut writer, streams).await?;
        let writer = Mutex::new(writer);
        tokio::select! {
            ended = input(&mut source, &writer, &open, activity) => ended.map(|()| Ended::Gone),
            status = output(FrameReader::new(reader), &mut sink, &writer, &open, activity) => {
                status.map(Ended::Status)
            }
            () = activity.until_idle() => Err(io::Error::other("the connection was idle for too long")),
        }
    };
    let status = match ended.await {
        Ok(Ended::Status(status)) => Some(status),
        Ok(Ended::Gone) => None,
        Err(error) => {
            tracing::debug!(%error, "streaming session is broken");
            Some(internal_error(&error))
        }
    };
    let goodbye = async {
        if let Some(status) = status {
            send(&mut sink, END, &status).await?;
        }
        sink.send(websocket::goodbye()).await.map_err(io::Error::other)
    };
    // Whoever does not read does not hold this up.
    let _ = timeout(GOODBYE, goodbye).await;
}

/// A `Status` that says that the kubelet could not do it.
fn internal_error(error: &io::Error) -> Bytes {
    let text = error.to_string();
    let status = json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("Internal error occurred: {text}"),
        "reason": "InternalError",
        "details": { "causes": [{ "message": text }] },
        "code": 500,
    });
    Bytes::from(status.to_string())
}

/// The streaming server, which speaks SPDY as soon as the result resolves.
async fn connect(url: &str) -> io::Result<OnUpgrade> {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, SPDY);
    for name in STREAM_PROTOCOLS {
        headers.append(STREAM_PROTOCOL, HeaderValue::from_static(name));
    }
    match ask(url, Method::POST, headers).await.map_err(io::Error::other)? {
        Answer::Switched(parts, upgrade) => {
            let spoken = parts.headers.get(STREAM_PROTOCOL);
            if !spoken.is_some_and(|name| STREAM_PROTOCOLS.iter().any(|known| name == known)) {
                return Err(io::Error::other(format!("the runtime speaks {spoken:?}")));
            }
            Ok(upgrade)
        }
        Answer::Refused(response) => {
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_REFUSAL).collect().await;
            let text = body.map(|body| body.to_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let text = format!("unable to upgrade connection: {status}: {}", text.trim());
            Err(io::Error::other(text))
        }
    }
}

/// The streams there are; all begin with the caller.
struct OpenStreams {
    end: StreamId,
    stdin: Option<StreamId>,
    stdout: Option<StreamId>,
    stderr: Option<StreamId>,
    resize: Option<StreamId>,
}

impl OpenStreams {
    async fn open(
        writer: &mut FrameWriter<impl AsyncWrite + Unpin>,
        streams: StreamOptions,
    ) -> io::Result<Self> {
        let mut open = async |wanted: bool, kind: &str| {
            if !wanted {
                return Ok(None);
            }
            writer.open("streamtype", kind).await.map(Some)
        };
        let end = open(true, "error").await?.ok_or_else(|| io::Error::other("no stream"))?;
        Ok(Self {
            end,
            stdin: open(streams.stdin, "stdin").await?,
            stdout: open(streams.stdout, "stdout").await?,
            stderr: open(streams.stderr, "stderr").await?,
            resize: open(streams.tty, "resize").await?,
        })
    }
}

async fn send(
    sink: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    channel: u8,
    bytes: &[u8],
) -> io::Result<()> {
    let mut message = BytesMut::with_capacity(bytes.len() + 1);
    message.put_u8(channel);
    message.put_slice(bytes);
    sink.send(Message::Binary(message.freeze())).await.map_err(io::Error::other)
}

/// Messages to frames, until the caller closes the WebSocket.
async fn input(
    messages: &mut (impl Stream<Item = Result<Message, SocketError>> + Unpin),
    writer: &Mutex<FrameWriter<impl AsyncWrite + Unpin>>,
    open: &OpenStreams,
    activity: &Activity,
) -> io::Result<()> {
    let mut stdin = open.stdin;
    while let Some(message) = messages.next().await {
        activity.touch();
        let message = match message {
            Ok(Message::Binary(bytes)) => bytes,
            Ok(Message::Text(text)) => text.into(),
            Ok(Message::Close(_)) => break,
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            // It is gone without a word.
            Err(SocketError::ConnectionClosed | SocketError::Protocol(_) | SocketError::Io(_)) => {
                break;
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        match message.split_first() {
            Some((&STDIN, bytes)) => {
                if let Some(stdin) = stdin {
                    writer.lock().await.data(stdin, bytes).await?;
                }
            }
            Some((&RESIZE, bytes)) => {
                if let Some(resize) = open.resize {
                    writer.lock().await.data(resize, bytes).await?;
                }
            }
            Some((&CLOSE, &[channel])) if channel <= RESIZE => {
                if channel == STDIN
                    && let Some(stdin) = stdin.take()
                {
                    writer.lock().await.finish(stdin).await?;
                }
            }
            Some((&CLOSE, _)) => return Err(io::Error::other("a close signal of no channel")),
            // Of no channel that the caller may write to.
            Some(_) | None => {}
        }
    }
    Ok(())
}

/// Frames to messages, until all that the command writes has ended, and it was said how.
async fn output(
    mut frames: FrameReader<impl AsyncRead + Unpin>,
    sink: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    writer: &Mutex<FrameWriter<impl AsyncWrite + Unpin>>,
    open: &OpenStreams,
    activity: &Activity,
) -> io::Result<Bytes> {
    let mut waiting: Vec<StreamId> =
        [Some(open.end), open.stdout, open.stderr].into_iter().flatten().collect();
    let mut status = Vec::new();
    let mut buffer = vec![0; PIECE];
    while !waiting.is_empty() {
        let Some(frame) = frames.next().await? else { break };
        activity.touch();
        match frame {
            Frame::Data { stream, last, .. } => {
                loop {
                    let piece = frames.piece(&mut buffer).await?;
                    if piece.is_empty() {
                        break;
                    }
                    if stream == open.end {
                        status.extend(piece);
                    } else if open.stdout == Some(stream) {
                        send(sink, STDOUT, piece).await?;
                    } else if open.stderr == Some(stream) {
                        send(sink, STDERR, piece).await?;
                    }
                    activity.touch();
                    if status.len() > MAX_STATUS {
                        return Err(io::Error::other("the runtime's status does not end"));
                    }
                }
                if last {
                    waiting.retain(|waiting| *waiting != stream);
                }
            }
            Frame::Reset { stream } => waiting.retain(|waiting| *waiting != stream),
            Frame::Ping { id } => {
                // While input is stuck, it is input that the peer has to read.
                if let Ok(mut writer) = writer.try_lock() {
                    writer.pong(id).await?;
                }
            }
            Frame::GoAway => break,
            Frame::Other => {}
        }
    }
    if status.is_empty() {
        return Err(io::Error::other("the runtime ended the connection without a status"));
    }
    Ok(Bytes::from(status))
}
