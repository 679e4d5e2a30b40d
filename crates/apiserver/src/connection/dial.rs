use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use rustix::net::sockopt;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{sleep, timeout};

use super::{ByteStream, Connect, ConnectError, Proxy, ProxyKind, Tls};
use crate::credentials::Credentials;
use crate::kubeconfig::ServerUrl;

/// How long a connection may take until HTTP can be spoken on it.
const LIMIT: Duration = Duration::from_secs(10);
/// The next address gets its chance after this time, while earlier ones still try.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(300);
/// A quiet connection is probed by the kernel after this time, and then in these intervals. HTTP/2
/// looks after itself; this is for HTTP/1.1.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// What is sent has to be acknowledged by the peer's kernel within so many milliseconds.
const ACKNOWLEDGED_WITHIN_MILLIS: u32 = 20_000;

/// Makes connections to one server.
#[derive(Clone, Debug)]
pub(crate) enum Dialer {
    /// Over the network.
    Network(Arc<Network>),
    /// Within the process.
    Within(Arc<dyn Connect>),
}

/// The way to a server over the network.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) server: ServerUrl,
    /// Nothing for plain HTTP.
    pub(crate) tls: Option<Tls>,
    /// The proxy, with TLS to it if it speaks that.
    pub(crate) proxy: Option<(Proxy, Option<Tls>)>,
    pub(crate) credentials: Arc<Credentials>,
}

impl Dialer {
    /// A new connection, and whether HTTP/2 is spoken on it.
    pub(super) async fn dial(&self) -> Result<(Box<dyn ByteStream>, bool), ConnectError> {
        match self {
            Self::Within(connector) => {
                let stream = connector.connect().await.map_err(|source| ConnectError::Dial {
                    address: "within the process".to_owned(),
                    source,
                })?;
                Ok((stream, connector.speaks_http2()))
            }
            Self::Network(network) => network.dial().await,
        }
    }

    /// Differs after connections of before should end.
    pub(super) fn identity_version(&self) -> u64 {
        match self {
            Self::Network(network) => network.credentials.identity_version(),
            Self::Within(_) => 0,
        }
    }
}

impl Network {
    async fn dial(&self) -> Result<(Box<dyn ByteStream>, bool), ConnectError> {
        let Self { server, tls, proxy, credentials } = self;
        // A plugin may take longer than a connection.
        let identity = credentials.identity().await.map_err(ConnectError::Credentials)?;
        let connected = async {
            let stream = match proxy {
                None => dial_tcp(server.host(), server.port()).await?,
                Some((proxy, tls)) => dial_by_proxy(proxy, tls.as_ref(), server).await?,
            };
            let Some(tls) = tls else { return Ok((stream, false)) };
            let stream = tls.handshake(stream, identity.as_ref()).await?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((Box::new(stream) as Box<dyn ByteStream>, is_http2))
        };
        timeout(LIMIT, connected).await.unwrap_or_else(|_| {
            Err(ConnectError::TooSlow { address: server.authority(), limit: LIMIT })
        })
    }
}

async fn dial_by_proxy(
    proxy: &Proxy,
    tls: Option<&Tls>,
    server: &ServerUrl,
) -> Result<Box<dyn ByteStream>, ConnectError> {
    let mut stream = dial_tcp(&proxy.host, proxy.port).await?;
    if let (ProxyKind::Https, Some(tls)) = (proxy.kind, tls) {
        stream = Box::new(tls.handshake(stream, None).await?);
    }
    proxy.open_way(&mut stream, server).await?;
    Ok(stream)
}

async fn dial_tcp(host: &str, port: u16) -> Result<Box<dyn ByteStream>, ConnectError> {
    let addresses: Vec<SocketAddr> = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => lookup_host((host, port))
            .await
            .map_err(|source| ConnectError::Lookup { host: host.to_owned(), source })?
            .collect(),
    };
    let stream = dial_first(&addresses, host).await?;
    let address = || format!("{host}:{port}");
    tune(&stream).map_err(|source| ConnectError::Dial { address: address(), source })?;
    Ok(Box::new(stream))
}

/// Tries the addresses one after the other, without waiting for the slow: whichever answers first
/// is taken.
async fn dial_first(addresses: &[SocketAddr], host: &str) -> Result<TcpStream, ConnectError> {
    let mut failure = ConnectError::Lookup {
        host: host.to_owned(),
        source: io::Error::new(io::ErrorKind::NotFound, "no such host"),
    };
    let mut waiting = addresses.iter();
    let mut tries = FuturesUnordered::new();
    loop {
        let next = waiting.next();
        tries.extend(
            next.map(|&address| async move { (address, TcpStream::connect(address).await) }),
        );
        if tries.is_empty() {
            return Err(failure);
        }
        let has_next = waiting.len() > 0;
        tokio::select! {
            Some((address, result)) = tries.next() => match result {
                Ok(stream) => return Ok(stream),
                Err(source) => {
                    failure = ConnectError::Dial { address: address.to_string(), source };
                }
            },
            () = sleep(NEXT_ADDRESS_AFTER), if has_next => {}
        }
    }
}

/// A peer that is gone without a word has to be noticed in less than half a minute.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, ACKNOWLEDGED_WITHIN_MILLIS)?;
    Ok(())
}
