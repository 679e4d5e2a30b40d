use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many of the first bytes are kept: enough for a status line.
const KEPT: usize = 80;

/// The first bytes a peer sent. They tell what it speaks when it does not speak what it should.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstBytes(Arc<Mutex<Vec<u8>>>);

impl FirstBytes {
    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = KEPT.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(&bytes[..room]);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn starts_with(&self, prefix: &[u8]) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).starts_with(prefix)
    }

    /// The first line as far as it was kept.
    pub(crate) fn first_line(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = kept.split(|byte| *byte == b'\n').next().unwrap_or_default();
        String::from_utf8_lossy(line).trim_end_matches('\r').to_owned()
    }
}

/// A stream that remembers the first bytes read from it.
#[derive(Debug)]
pub(crate) struct Recorded<S> {
    stream: S,
    first: FirstBytes,
}

impl<S> Recorded<S> {
    pub(crate) fn new(stream: S) -> (Self, FirstBytes) {
        let first = FirstBytes::default();
        (Self { stream, first: first.clone() }, first)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Recorded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if result.is_ready() {
            self.first.push(&buffer.filled()[before..]);
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Recorded<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
