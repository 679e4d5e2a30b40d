//! Loopback servers that answer by script.

#![allow(dead_code)] // Each test binary uses its part.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

/// What one connection gets.
pub(crate) struct Reply {
    bytes: Vec<u8>,
    wait_for_request: bool,
    end: End,
}

enum End {
    Close,
    Hang,
    Reset,
}

impl Reply {
    /// Reads a request, writes `bytes`, closes.
    pub(crate) fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self { bytes: bytes.as_ref().to_vec(), wait_for_request: true, end: End::Close }
    }

    /// Reads something, writes `bytes`, closes.
    pub(crate) fn at_once(bytes: impl AsRef<[u8]>) -> Self {
        Self { wait_for_request: false, ..Self::new(bytes) }
    }

    /// Reads a request, writes `bytes`, and leaves it at that.
    pub(crate) fn hang(bytes: impl AsRef<[u8]>) -> Self {
        Self { end: End::Hang, ..Self::new(bytes) }
    }

    /// Reads a request and resets the connection.
    pub(crate) fn reset() -> Self {
        Self { end: End::Reset, ..Self::new("") }
    }
}

/// A server that gives its replies, one per connection, and then refuses.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<String>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(replies: Vec<Reply>) -> Self {
        Self::serve("127.0.0.1:0", replies, None).await
    }

    pub(crate) async fn start_at(address: &str, replies: Vec<Reply>) -> Self {
        Self::serve(address, replies, None).await
    }

    pub(crate) async fn start_tls(replies: Vec<Reply>) -> Self {
        Self::serve("127.0.0.1:0", replies, Some(acceptor())).await
    }

    pub(crate) async fn start_blurting(bytes: &str) -> Self {
        Self::start(vec![Reply::at_once(bytes)]).await
    }

    async fn serve(address: &str, replies: Vec<Reply>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, requests) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            for reply in replies {
                let (stream, _) = listener.accept().await.unwrap();
                if matches!(reply.end, End::Reset) {
                    stream.set_zero_linger().unwrap();
                }
                match &tls {
                    Some(tls) => {
                        answer(tls.accept(stream).await.unwrap(), reply, &seen).await;
                    }
                    None => answer(stream, reply, &seen).await,
                }
            }
        });
        Self { address, requests, task }
    }

    /// The requests seen since the last call.
    pub(crate) fn requests(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.requests.try_recv().ok()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    reply: Reply,
    seen: &mpsc::UnboundedSender<String>,
) {
    let mut request = Vec::new();
    loop {
        let read = stream.read_buf(&mut request).await.unwrap();
        if read == 0 || !reply.wait_for_request || request.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    seen.send(String::from_utf8_lossy(&request).into_owned()).unwrap();
    // The client may have had enough before the end.
    let _ = stream.write_all(&reply.bytes).await;
    match reply.end {
        End::Close => {
            let _ = stream.shutdown().await;
        }
        End::Hang => std::future::pending().await,
        End::Reset => {}
    }
}

fn acceptor() -> TlsAcceptor {
    let certified = rcgen::generate_simple_self_signed(vec!["nobody".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// A port on which nobody listens.
pub(crate) fn unused_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// How many connections to `port` stay in `TIME_WAIT` on the client's side.
pub(crate) fn time_wait_towards(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let peer = format!(":{port:04X}");
    table
        .lines()
        .skip(1)
        .filter(|line| {
            let mut fields = line.split_whitespace().skip(2);
            fields.next().is_some_and(|remote| remote.ends_with(&peer))
                && fields.next() == Some("06")
        })
        .count()
}
