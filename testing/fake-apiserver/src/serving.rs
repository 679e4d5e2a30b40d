//! How the server is reached: within the process, or over loopback.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rubelet_apiserver::{ApiServer, ApiServerOptions, ByteStream, Connect, ProxyEnvironment};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::authority::{Authority, Pair, user_of};
use crate::reviews::User;
use crate::server::{FakeApiServer, Inner};

/// What fits into a connection within the process before somebody reads it.
const DUPLEX: usize = 256 * 1024;
/// Requests on one HTTP/2 connection, as many as the real server takes.
const MAX_STREAMS: u32 = 100;

impl FakeApiServer {
    /// A client within the process, without limits.
    pub fn client(&self) -> ApiServer {
        self.client_over(&self.connector())
    }

    /// The same over HTTP/2, as over a network with TLS.
    pub fn http2_client(&self) -> ApiServer {
        let connector = Within { server: Arc::downgrade(&self.inner), speaks_http2: true };
        self.client_over(&(Arc::new(connector) as Arc<dyn Connect>))
    }

    fn client_over(&self, connector: &Arc<dyn Connect>) -> ApiServer {
        let options = ApiServerOptions {
            user_agent: "kubelet/test".to_owned(),
            general: None,
            events: None,
            heartbeat_timeout: std::time::Duration::from_secs(10),
            request_timeout: std::time::Duration::from_secs(30),
            http2: true,
            proxies: ProxyEnvironment::default(),
        };
        ApiServer::over(connector, options, self.inner.clock.clone())
    }

    /// For clients within the process that want their own options.
    pub fn connector(&self) -> Arc<dyn Connect> {
        Arc::new(Within { server: Arc::downgrade(&self.inner), speaks_http2: false })
    }

    /// Speaks HTTP on a connection that somebody else has made, until its end. `peer` is who the
    /// other side is known to be.
    pub async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        peer: Option<User>,
    ) {
        serve(&self.inner, stream, peer).await;
    }

    /// Listens on a port of the loopback address, without TLS.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub async fn listen(&self) -> io::Result<Listening> {
        self.listen_with(None).await
    }

    /// Listens on a port of the loopback address, with a certificate for `127.0.0.1` and
    /// `localhost` by `authority`, which also vouches for clients. Offers HTTP/2.
    ///
    /// # Errors
    ///
    /// There is no port.
    pub async fn listen_with_tls(&self, authority: &Authority) -> io::Result<Listening> {
        self.listen_with(Some(authority.clone())).await
    }

    async fn listen_with(&self, authority: Option<Authority>) -> io::Result<Listening> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let stop = CancellationToken::new();
        let acceptor =
            authority.as_ref().map(|authority| TlsAcceptor::from(authority.server_config()));
        let accepting = accept(Arc::clone(&self.inner), listener, acceptor);
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(accepting).await });
        Ok(Listening { address, authority, stop })
    }
}

/// A port that is listened on, while this lives. Connections live on.
#[derive(Debug)]
pub struct Listening {
    /// Where.
    pub address: SocketAddr,
    authority: Option<Authority>,
    stop: CancellationToken,
}

impl Listening {
    /// `http://...` or `https://...`.
    pub fn url(&self) -> String {
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// A kubeconfig with everything in it, and `user` as its user (`{"token": "..."}`).
    pub fn kubeconfig(&self, user: &serde_json::Value) -> String {
        let mut cluster = json!({"server": self.url()});
        if let Some(authority) = &self.authority {
            let pem = authority.certificate_pem();
            cluster["certificate-authority-data"] =
                json!(base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pem));
        }
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test@fake", "context": {"cluster": "fake", "user": "test"}}],
            "current-context": "test@fake",
        })
        .to_string()
    }

    /// A kubeconfig whose client certificate and key are in the file `pem`.
    pub fn kubeconfig_with_certificate(&self, pem: &Path) -> String {
        self.kubeconfig(&json!({"client-certificate": pem, "client-key": pem}))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(server: Arc<Inner>, listener: TcpListener, acceptor: Option<TlsAcceptor>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        if server.knobs.is_away() {
            continue;
        }
        // Small answers must not wait for an acknowledgement.
        if stream.set_nodelay(true).is_err() {
            continue;
        }
        let server = Arc::clone(&server);
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let end = server.knobs.connection();
            match acceptor {
                None => serve(&server, stream, None).await,
                Some(acceptor) => {
                    let accepted = end.run_until_cancelled(acceptor.accept(stream)).await;
                    if let Some(Ok(stream)) = accepted {
                        let peer = stream.get_ref().1.peer_certificates().and_then(user_of);
                        serve(&server, stream, peer).await;
                    }
                }
            }
        });
    }
}

async fn serve(
    server: &Arc<Inner>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: Option<User>,
) {
    let end = server.knobs.connection();
    let stuck = server.knobs.stuck();
    let mut is_frozen = server.knobs.is_frozen.subscribe();
    let (server, counted) = (Arc::clone(server), Arc::clone(server));
    let service = service_fn(move |request| Arc::clone(&server).answer(request, peer.clone()));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(MAX_STREAMS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = async {
        loop {
            // A stopped process holds its connections, and does nothing.
            let _ = is_frozen.wait_for(|is_frozen| !is_frozen).await;
            let mut frozen = pin!(is_frozen.wait_for(|is_frozen| *is_frozen));
            let mut got_stuck = pin!(stuck.cancelled());
            let is_over = poll_fn(|context| {
                if got_stuck.as_mut().poll(context).is_ready() {
                    return Poll::Pending;
                }
                if frozen.as_mut().poll(context).is_ready() {
                    return Poll::Ready(false);
                }
                connection.as_mut().poll(context).map(|_| true)
            })
            .await;
            if is_over {
                break;
            }
        }
    };
    let _counted = Counted::new(counted);
    // What is over at the same moment as the connection is not answered any more.
    tokio::select! {
        biased;
        () = end.cancelled() => {}
        () = served => {}
    }
}

/// A connection, as long as it is there.
struct Counted(Arc<Inner>);

impl Counted {
    fn new(server: Arc<Inner>) -> Self {
        server.connections.fetch_add(1, Ordering::AcqRel);
        Self(server)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The way to the server within the process; it does not keep the server alive.
#[derive(Debug)]
struct Within {
    server: Weak<Inner>,
    speaks_http2: bool,
}

impl Connect for Within {
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>> {
        async {
            let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
            let server = self.server.upgrade().ok_or_else(refused)?;
            if server.knobs.is_away() {
                return Err(refused());
            }
            let (ours, theirs) = duplex(DUPLEX);
            tokio::spawn(async move { serve(&server, theirs, None).await });
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        }
        .boxed()
    }

    fn speaks_http2(&self) -> bool {
        self.speaks_http2
    }
}

/// What a file holds that has both.
impl Pair {
    /// The certificate, and then the key.
    pub fn to_pem(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }
}
