//! Accepting connections within limits, and ending them in an orderly way.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

use crate::access::User;
use crate::routes::Peer;
use crate::tls::ServingTls;

/// How many connections one listener holds; further ones wait in the kernel.
const MAX_CONNECTIONS: usize = 1024;

/// How long a TLS handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may be idle, and how long the head of a request may take.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// How large the head of a request may be, in bytes.
const MAX_HEAD: usize = 1 << 20;

/// Requests at once on one HTTP/2 connection.
const MAX_STREAMS: u32 = 100;

/// How often an HTTP/2 peer is asked whether it is still there, and how long it may take to say so.
const PING: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30));

/// How long requests in flight get to end when the kubelet does.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// How long to wait when the kernel has no connection to give (no file descriptors left).
const ACCEPT_BACK_OFF: Duration = Duration::from_millis(100);

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen on {address}")]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// What the kernel said.
    #[source]
    pub source: io::Error,
}

/// A bound address on which a server can run. Binding stands apart from serving, so that a start
/// can fail before anything runs.
#[derive(Debug)]
pub struct BoundListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl BoundListener {
    /// Binds `address`; port 0 takes a free one.
    pub async fn bind(address: SocketAddr) -> Result<Self, BindError> {
        let failed = |source| BindError { address, source };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// The address that was bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves `router` until `stop`, and then for a few seconds the requests in flight.
    pub(crate) async fn serve(
        self,
        router: Router,
        tls: Option<Arc<ServingTls>>,
        stop: &CancellationToken,
    ) {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let connections = TaskTracker::new();
        let accepting = async {
            loop {
                let Ok(place) = places.clone().acquire_owned().await else { return };
                match self.listener.accept().await {
                    Ok((stream, peer)) => {
                        let connection = Connection {
                            router: router.clone(),
                            tls: tls.clone(),
                            peer,
                            stop: stop.clone(),
                        };
                        connections.spawn(async move {
                            connection.serve(stream).await;
                            drop(place);
                        });
                    }
                    Err(error) => {
                        warn!(%error, address = %self.address, "failed to accept a connection");
                        sleep(ACCEPT_BACK_OFF).await;
                    }
                }
            }
        };
        stop.run_until_cancelled(accepting).await;
        connections.close();
        if timeout(SHUTDOWN_GRACE + Duration::from_secs(1), connections.wait()).await.is_err() {
            warn!(address = %self.address, "connections are still open");
        }
    }
}

struct Connection {
    router: Router,
    tls: Option<Arc<ServingTls>>,
    peer: SocketAddr,
    stop: CancellationToken,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        // Answers are small and whole.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else {
            return self.speak(stream, Peer::default(), false).await;
        };
        let current = tls.current();
        let has_certificate = current.has_certificate();
        let acceptor = TlsAcceptor::from(current.config);
        match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let (_, session) = stream.get_ref();
                let certificate = session.peer_certificates().and_then(<[_]>::first);
                let user = certificate.and_then(User::of_certificate);
                let http2 = session.alpn_protocol() == Some(b"h2");
                self.speak(stream, Peer(user.map(Arc::new)), http2).await;
            }
            Ok(Err(_)) if !has_certificate => warn!(
                peer = %self.peer,
                "TLS handshake error: no serving certificate available for the kubelet"
            ),
            Ok(Err(error)) => debug!(peer = %self.peer, %error, "TLS handshake failed"),
            Err(_) => debug!(peer = %self.peer, "TLS handshake timed out"),
        }
    }

    async fn speak(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
        http2: bool,
    ) {
        let service = self.router.map_request(move |request: hyper::Request<Incoming>| {
            let mut request: Request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(peer.clone());
            request
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // Never detected from what is sent: that would wait for ever for who sends nothing.
        builder = if http2 { builder.http2_only() } else { builder.http1_only() };
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(IDLE_TIMEOUT)
            .max_buf_size(MAX_HEAD)
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1);
        let connection =
            builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let mut connection = std::pin::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                match timeout(SHUTDOWN_GRACE, connection).await {
                    Ok(result) => result,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = result {
            debug!(peer = %self.peer, error, "connection ended");
        }
    }
}
