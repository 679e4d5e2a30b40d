//! The runtime's life as a server: sockets, connections, dying and coming back.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::Stream;
use hyper_util::rt::TokioIo;
use rubelet_cri::v1::image_service_server::ImageServiceServer;
use rubelet_cri::v1::runtime_service_server::RuntimeServiceServer;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint, Server, Uri};

use crate::FakeRuntime;

const DUPLEX_BUFFER: usize = 64 * 1024;
const PENDING_CONNECTIONS: usize = 16;

/// On or off, and what is served while it is on.
#[derive(Debug)]
pub(crate) struct Power(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// Cancelled when the runtime dies; a new one for each life.
    life: CancellationToken,
    sockets: Vec<PathBuf>,
    /// Where connections within the process go, in this life.
    local: Option<mpsc::Sender<DuplexStream>>,
}

impl Power {
    pub(crate) fn on() -> Self {
        let life = CancellationToken::new();
        Self(Mutex::new(Inner { life, sockets: Vec::new(), local: None }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present life; cancelled if the runtime is dead.
    pub(crate) fn life(&self) -> CancellationToken {
        self.inner().life.clone()
    }

    pub(crate) fn add_socket(&self, runtime: &FakeRuntime, path: PathBuf) -> io::Result<()> {
        let mut inner = self.inner();
        if !inner.life.is_cancelled() {
            listen(runtime, &path, &inner.life)?;
        }
        inner.sockets.push(path);
        Ok(())
    }

    pub(crate) fn cut(&self) {
        let mut inner = self.inner();
        inner.life.cancel();
        inner.local = None;
        for path in &inner.sockets {
            // A socket that is gone is what is wanted.
            let _ = std::fs::remove_file(path);
        }
    }

    pub(crate) fn restore(&self, runtime: &FakeRuntime) -> io::Result<()> {
        let mut inner = self.inner();
        if !inner.life.is_cancelled() {
            return Ok(());
        }
        inner.life = CancellationToken::new();
        for path in &inner.sockets {
            listen(runtime, path, &inner.life)?;
        }
        Ok(())
    }

    fn connect_locally(&self, runtime: &FakeRuntime) -> io::Result<mpsc::Sender<DuplexStream>> {
        let mut inner = self.inner();
        if inner.life.is_cancelled() {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused"));
        }
        let life = inner.life.clone();
        let local = inner.local.get_or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(PENDING_CONNECTIONS);
            let incoming = ReceiverStream::new(receiver).map(Ok);
            serve(runtime, incoming, life);
            sender
        });
        Ok(local.clone())
    }
}

fn listen(runtime: &FakeRuntime, path: &Path, life: &CancellationToken) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    serve(runtime, UnixListenerStream::new(listener), life.clone());
    Ok(())
}

/// Serves every connection that comes in, as long as `life` lasts.
fn serve<S>(
    runtime: &FakeRuntime,
    incoming: impl Stream<Item = io::Result<S>> + Send + 'static,
    life: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let router = Server::builder()
        .add_service(RuntimeServiceServer::new(runtime.clone()))
        .add_service(ImageServiceServer::new(runtime.clone()));
    let connection_life = life.clone();
    let incoming = incoming.map(move |stream| {
        let mortal =
            |stream| Mortal { stream, death: Box::pin(connection_life.clone().cancelled_owned()) };
        stream.map(mortal)
    });
    tokio::spawn(async move {
        tokio::select! {
            // Dropping the server drops the listener, so that nobody connects to a dead runtime.
            () = life.cancelled() => {}
            result = router.serve_with_incoming(incoming) => if let Err(error) = result {
                tracing::warn!(%error, "the fake runtime cannot serve");
            },
        }
    });
}

impl FakeRuntime {
    /// A channel to this runtime that needs no socket; it connects again after a restart.
    pub(crate) fn channel(&self) -> Channel {
        let runtime = self.clone();
        let connect = tower::service_fn(move |_: Uri| {
            let runtime = runtime.clone();
            async move {
                let acceptor = runtime.shared.power.connect_locally(&runtime)?;
                let (ours, theirs) = duplex(DUPLEX_BUFFER);
                acceptor.send(theirs).await.map_err(|_| {
                    io::Error::new(io::ErrorKind::ConnectionRefused, "connection refused")
                })?;
                Ok::<_, io::Error>(TokioIo::new(ours))
            }
        });
        Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect)
    }

    /// The runtime dies now, and comes back after `back_after` if that is given.
    pub(crate) fn crash_for(&self, back_after: Option<Duration>) {
        self.crash();
        let Some(back_after) = back_after else { return };
        let runtime = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(back_after).await;
            if let Err(error) = runtime.restart() {
                tracing::warn!(%error, "the fake runtime cannot come back");
            }
        });
    }
}

/// A connection that breaks when the runtime dies.
struct Mortal<S> {
    stream: S,
    death: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Mortal<S> {
    fn check_alive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.death.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionReset.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Mortal<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_alive(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Mortal<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_alive(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_alive(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> Connected for Mortal<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
