//! Accepting connections within limits, and ending them in an orderly way.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

use crate::client_certificates::ShownCertificate;
use crate::routes::Peer;
use crate::streaming::Carrier;
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

/// How long a TCP peer may be silent, and how long it is waited between two questions then.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

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
                            carrier: Carrier {
                                place: Arc::new(place),
                                sessions: connections.clone(),
                                stop: stop.clone(),
                                request: None,
                            },
                        };
                        connections.spawn(connection.serve(stream));
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

/// Has the kernel ask a silent peer whether it is still there, as Go's servers do: nobody else
/// notices that the caller of an idle stream is gone.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

struct Connection {
    router: Router,
    tls: Option<Arc<ServingTls>>,
    peer: SocketAddr,
    carrier: Carrier,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        // Answers are small and whole.
        let _ = stream.set_nodelay(true);
        if let Err(error) = keep_alive(&stream) {
            debug!(peer = %self.peer, %error, "a peer that vanishes will not be noticed");
        }
        let Some(tls) = &self.tls else {
            return self.speak(stream, Peer::default(), false).await;
        };
        let current = tls.current();
        let has_certificate = current.has_certificate();
        let acceptor = TlsAcceptor::from(current.config.clone());
        match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => {
                let (_, session) = stream.get_ref();
                let chain = session.peer_certificates();
                let shown = chain.map(|chain| ShownCertificate::new(chain, tls));
                let http2 = session.alpn_protocol() == Some(b"h2");
                self.speak(stream, Peer(shown), http2).await;
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
        let stop = self.carrier.stop.clone();
        let carrier = self.carrier;
        let service = self.router.map_request(move |request: hyper::Request<Incoming>| {
            let mut request: Request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(peer.clone());
            request.extensions_mut().insert(carrier.clone());
            request
        });
        let (stream, service) = (TokioIo::new(stream), TowerToHyperService::new(service));
        // Never told from what is sent: that would wait for ever for who sends nothing.
        let result = if http2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder
                .timer(TokioTimer::new())
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(u32::try_from(MAX_HEAD).unwrap_or(u32::MAX))
                .keep_alive_interval(PING.0)
                .keep_alive_timeout(PING.1);
            let connection = pin!(builder.serve_connection(stream, service));
            until_the_end(connection, http2::Connection::graceful_shutdown, &stop).await
        } else {
            let mut builder = http1::Builder::new();
            builder
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_TIMEOUT)
                .max_buf_size(MAX_HEAD);
            let connection = pin!(builder.serve_connection(stream, service).with_upgrades());
            until_the_end(connection, http1::UpgradeableConnection::graceful_shutdown, &stop).await
        };
        if let Err(error) = result {
            debug!(peer = %self.peer, %error, "connection ended");
        }
    }
}

/// Serves a connection to its end; once `stop` is told, its requests in flight for a few seconds.
async fn until_the_end<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    shut_down: impl FnOnce(Pin<&mut C>),
    stop: &CancellationToken,
) -> hyper::Result<()> {
    tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            shut_down(connection.as_mut());
            timeout(SHUTDOWN_GRACE, connection).await.unwrap_or(Ok(()))
        }
    }
}
