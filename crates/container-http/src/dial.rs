use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::url::join_host_port;

/// Connecting to a container failed. The texts are those of Go's dialer, causes included, because
/// they stand in events.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host has no address.
    #[error("dial tcp: lookup {host}: no such host")]
    NoSuchHost {
        /// The host as the spec names it.
        host: String,
    },
    /// The address did not accept.
    #[error("dial tcp {address}: connect: {}", errno_text(error))]
    Connect {
        /// The address that was tried last.
        address: SocketAddr,
        /// What the kernel said.
        error: io::Error,
    },
    /// Nobody answered in time.
    #[error("dial tcp {address}: i/o timeout")]
    Timeout {
        /// `host:port`.
        address: String,
    },
}

/// Connects to `host`, an address or a name, until `deadline`.
pub(crate) async fn dial(host: &str, port: u16, deadline: Instant) -> Result<TcpStream, DialError> {
    timeout_at(deadline, dial_any(host, port))
        .await
        .unwrap_or_else(|_| Err(DialError::Timeout { address: join_host_port(host, port) }))
}

async fn dial_any(host: &str, port: u16) -> Result<TcpStream, DialError> {
    let no_such_host = || DialError::NoSuchHost { host: host.to_owned() };
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => lookup_host((host, port)).await.map_err(|_| no_such_host())?.collect(),
    };
    let mut failure = no_such_host();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // One small request, one answer: without this the request may wait for an ACK.
                if let Err(error) = stream.set_nodelay(true) {
                    return Err(DialError::Connect { address, error });
                }
                return Ok(stream);
            }
            Err(error) => failure = DialError::Connect { address, error },
        }
    }
    Err(failure)
}

/// How long a dial without a deadline of its own may take.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// The kernel's words for `error` as Go spells them: no number, no capital.
pub(crate) fn errno_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => error.kind().to_string(),
    }
}
