//! Connections: how they are made, shared, watched over and given up.

mod dial;
mod pool;
mod proxy;
mod request;
mod tls;

use std::fmt;
use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::credentials::CredentialsError;

pub(crate) use dial::{Dialer, Network};
pub(crate) use pool::{Lease, Pool, SendError};
pub use proxy::ProxyEnvironment;
pub(crate) use proxy::{Proxy, ProxyKind};
pub(crate) use request::{Base, Request};
pub(crate) use tls::Tls;

/// A byte stream to the API server.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Connects to an API server that is not reached by TCP: one that lives in the same process.
pub trait Connect: fmt::Debug + Send + Sync + 'static {
    /// A new connection.
    fn connect(&self) -> BoxFuture<'_, io::Result<Box<dyn ByteStream>>>;

    /// Whether HTTP/2 is spoken on it, instead of HTTP/1.1.
    fn speaks_http2(&self) -> bool {
        false
    }
}

/// A connection could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// The name has no address.
    #[error("lookup {host}")]
    Lookup {
        host: String,
        #[source]
        source: io::Error,
    },
    /// No address took the connection; the last one's answer is the source.
    #[error("dial tcp {address}")]
    Dial {
        address: String,
        #[source]
        source: io::Error,
    },
    /// Nobody answered.
    #[error("dial tcp {address}: no answer within {}", rubelet_types::format_go_duration(*limit))]
    TooSlow { address: String, limit: Duration },
    /// The TLS handshake failed.
    #[error("TLS handshake with {with}")]
    Tls {
        with: String,
        #[source]
        source: io::Error,
    },
    /// The settings for TLS make no sense.
    #[error("TLS settings for {with}")]
    TlsSettings {
        with: String,
        #[source]
        source: rustls::Error,
    },
    /// The name of the server is none that a certificate could have.
    #[error("{name:?} is no name for a TLS server")]
    ServerName { name: String },
    /// The proxy refused.
    #[error("proxy {proxy}: {problem}")]
    Proxy { proxy: String, problem: String },
    /// The way to the proxy failed.
    #[error("proxy {proxy}")]
    ProxyIo {
        proxy: String,
        #[source]
        source: io::Error,
    },
    /// There are no credentials for a connection.
    #[error("no client certificate")]
    Credentials(#[source] CredentialsError),
    /// HTTP did not come about.
    #[error("HTTP on a new connection")]
    Http(#[source] hyper::Error),
}
