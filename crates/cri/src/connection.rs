//! The connection to one unix socket: made at first use, made again when it breaks, and not tried
//! more often than the back-off allows.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint, Uri};
use tower::Service;

const BACK_OFF_BASE: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(3);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An endpoint that is no unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidEndpoint {
    /// Neither a URL nor an absolute path.
    #[error("CRI endpoint {0:?} is neither a unix:// URL nor an absolute path")]
    NotAbsolute(String),
    /// A URL of another scheme.
    #[error("protocol {scheme:?} of CRI endpoint {endpoint:?} is not supported, only unix is")]
    Protocol {
        /// The scheme.
        scheme: String,
        /// The endpoint as given.
        endpoint: String,
    },
}

/// The socket path of `unix:///path`, `unix:/path` or a bare absolute path.
pub(crate) fn socket_path(endpoint: &str) -> Result<PathBuf, InvalidEndpoint> {
    let path = match endpoint.split_once(':') {
        Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some((scheme, _)) if !scheme.contains('/') => {
            return Err(InvalidEndpoint::Protocol {
                scheme: scheme.to_owned(),
                endpoint: endpoint.to_owned(),
            });
        }
        _ => endpoint,
    };
    if path.starts_with('/') {
        Ok(PathBuf::from(path))
    } else {
        Err(InvalidEndpoint::NotAbsolute(endpoint.to_owned()))
    }
}

/// Where calls go: a socket that is connected at the first call, or a channel made by somebody else.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: PathBuf,
    channel: OnceLock<Channel>,
}

impl Connection {
    pub(crate) fn to_socket(socket: PathBuf) -> Self {
        Self { socket, channel: OnceLock::new() }
    }

    pub(crate) fn over(channel: Channel) -> Self {
        Self { socket: PathBuf::new(), channel: OnceLock::from(channel) }
    }

    /// The channel; cheap to clone. The first call must come from within a Tokio runtime.
    pub(crate) fn channel(&self) -> Channel {
        let connect = || {
            // Only the authority of this address is used: the connector knows the socket.
            Endpoint::from_static("http://localhost")
                .connect_with_connector_lazy(SocketConnector::new(&self.socket))
        };
        self.channel.get_or_init(connect).clone()
    }
}

/// Connects to the socket, and fails at once while the back-off of earlier failures lasts: a call
/// that cannot succeed is answered now rather than held up to its deadline.
#[derive(Clone, Debug)]
struct SocketConnector {
    socket: Arc<Path>,
    back_off: Arc<Mutex<BackOff>>,
}

#[derive(Debug, Default)]
struct BackOff {
    failures: u32,
    not_before: Option<Instant>,
    last_error: String,
}

impl BackOff {
    /// 100 ms, then 1.6 times as much each time (gRPC's own factor), at most 3 s.
    fn delay(failures: u32) -> Duration {
        let factor = 1.6_f64.powi(i32::try_from(failures.min(32)).unwrap_or(32));
        BACK_OFF_BASE.mul_f64(factor).min(BACK_OFF_MAX)
    }

    fn note_failure(&mut self, error: &io::Error) {
        self.not_before = Some(Instant::now() + Self::delay(self.failures));
        self.failures = self.failures.saturating_add(1);
        self.last_error = error.to_string();
    }
}

impl SocketConnector {
    fn new(socket: &Path) -> Self {
        Self { socket: Arc::from(socket), back_off: Arc::default() }
    }

    async fn connect(self) -> io::Result<TokioIo<UnixStream>> {
        let explain = |error: &dyn std::fmt::Display| {
            format!("connection error: dial unix {}: connect: {error}", self.socket.display())
        };
        {
            let back_off = self.back_off.lock().unwrap_or_else(PoisonError::into_inner);
            if back_off.not_before.is_some_and(|not_before| Instant::now() < not_before) {
                return Err(io::Error::other(explain(&back_off.last_error)));
            }
        }
        let result = match timeout(CONNECT_TIMEOUT, UnixStream::connect(&self.socket)).await {
            Ok(result) => result,
            Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed)),
        };
        let mut back_off = self.back_off.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(stream) => {
                *back_off = BackOff::default();
                Ok(TokioIo::new(stream))
            }
            Err(error) => {
                back_off.note_failure(&error);
                Err(io::Error::new(error.kind(), explain(&error)))
            }
        }
    }
}

impl Service<Uri> for SocketConnector {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().connect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        for (endpoint, path) in [
            ("unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
            ("unix:/run/crio/crio.sock", "/run/crio/crio.sock"),
            ("/run/cri.sock", "/run/cri.sock"),
            ("/run/with:colon.sock", "/run/with:colon.sock"),
        ] {
            assert_eq!(socket_path(endpoint), Ok(PathBuf::from(path)), "{endpoint}");
        }
        for endpoint in ["", "run/cri.sock", "unix://run/cri.sock", "unix:"] {
            assert_eq!(
                socket_path(endpoint),
                Err(InvalidEndpoint::NotAbsolute(endpoint.to_owned())),
                "{endpoint}"
            );
        }
        assert_eq!(
            socket_path("tcp://127.0.0.1:1"),
            Err(InvalidEndpoint::Protocol {
                scheme: "tcp".to_owned(),
                endpoint: "tcp://127.0.0.1:1".to_owned()
            })
        );
    }

    #[test]
    fn the_back_off_grows_from_100_ms_to_3_s() {
        let delays: Vec<_> = (0..9).map(|failures| BackOff::delay(failures).as_millis()).collect();
        assert_eq!(delays, [100, 160, 256, 409, 655, 1048, 1677, 2684, 3000]);
        assert_eq!(BackOff::delay(u32::MAX), BACK_OFF_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_socket_is_not_tried_again_before_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cri.sock");
        let connector = SocketConnector::new(&socket);
        let first = connector.clone().connect().await.unwrap_err();
        assert_eq!(first.kind(), io::ErrorKind::NotFound);

        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let early = connector.clone().connect().await.unwrap_err();
        assert!(early.to_string().contains("No such file or directory"), "{early}");
        assert!(early.to_string().contains(socket.to_str().unwrap()), "{early}");

        tokio::time::advance(BACK_OFF_BASE).await;
        connector.connect().await.unwrap();
    }
}
