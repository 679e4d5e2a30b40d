//! `/exec`, `/attach`, `/portForward`, `/run` and `/checkpoint`: connections into containers, and what
//! else is asked of one.
//!
//! The runtime's streaming server does the work. The kubelet asks the runtime for an address, and
//! then joins the caller's connection with one to there. What a caller speaks decides how:
//!
//! - SPDY/3.1, and WebSocket with a sub-protocol that runtimes know (`v4.channel.k8s.io` and
//!   older): bytes are passed on, uninterpreted ([`relay`]);
//! - WebSocket `v5.channel.k8s.io`, which no runtime speaks: its messages become frames of SPDY
//!   streams and back ([`translate`]);
//! - WebSocket `SPDY/3.1+portforward.k8s.io`: its messages are a SPDY connection in pieces
//!   ([`tunnel`]).
//!
//! # Invariants
//!
//! - A session keeps its connection's place in the listener's limit until it is over, and there are
//!   never more than [`MAX_SESSIONS`].
//! - Neither a stuck caller nor a stuck container holds up the other direction, or anybody else.
//! - A session on which nothing moves ends after `streamingConnectionIdleTimeout`.

mod options;
mod relay;
mod spdy;
mod translate;
mod tunnel;
mod upgrade;
mod websocket;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, FromRequestParts, Path, Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::{InFlight, ServerMetrics};

pub use options::StreamOptions;

use options::{commands, forwarded_ports, last_timeout, old_command};
use upgrade::is_upgrade;
use websocket::Dialect;

/// Sessions at once. It leaves half of a listener's connections to everybody else.
const MAX_SESSIONS: usize = 512;

/// When to come again if there is no room; the life of a runtime's streaming address.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("60");

/// The pod of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodTarget {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid, or that of its mirror pod, if the request says which pod of that name is meant.
    pub uid: Option<String>,
}

/// The container of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerTarget {
    /// Its pod.
    pub pod: PodTarget,
    /// Its name in the pod.
    pub container: String,
}

/// Why there is no connection into a container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamingError {
    /// The node has no pod of that name.
    #[error("pod does not exist")]
    NoSuchPod,
    /// The pod of that name has another uid.
    #[error("pod not found")]
    OtherPod,
    /// No such object, by the word of the kubelet or the runtime.
    #[error("{0}")]
    NotFound(String),
    /// The runtime has too many requests that nobody has come for.
    #[error("{0}")]
    Busy(String),
    /// The request makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl IntoResponse for StreamingError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::NoSuchPod | Self::OtherPod | Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let mut response = (status, self.to_string()).into_response();
        if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
        }
        response
    }
}

/// What reaches into containers. Each answer is the address of the runtime's streaming server for
/// one connection.
pub trait ContainerAccess: Send + Sync + 'static {
    /// Prepares `command` with `streams`.
    fn exec(
        &self,
        target: &ContainerTarget,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> impl Future<Output = Result<String, StreamingError>> + Send;

    /// Prepares the streams of a container's own process. Whether they are a terminal is told by
    /// the container, not by `streams`.
    fn attach(
        &self,
        target: &ContainerTarget,
        streams: StreamOptions,
    ) -> impl Future<Output = Result<String, StreamingError>> + Send;

    /// Prepares connections to ports of a pod. `ports` are told for old WebSockets only.
    fn port_forward(
        &self,
        target: &PodTarget,
        ports: Vec<u16>,
    ) -> impl Future<Output = Result<String, StreamingError>> + Send;

    /// Runs a command to its end; what it wrote, standard output first. A command that fails is an
    /// error.
    fn run(
        &self,
        target: &ContainerTarget,
        command: Vec<String>,
    ) -> impl Future<Output = Result<Vec<u8>, StreamingError>> + Send;

    /// Saves a container to an archive on the node, within so many seconds; the path of the archive.
    fn checkpoint(
        &self,
        target: &ContainerTarget,
        timeout: Option<u32>,
    ) -> impl Future<Output = Result<String, StreamingError>> + Send;

    /// `streamingConnectionIdleTimeout`.
    fn idle_timeout(&self) -> Duration;
}

/// The connection on which a request came: what a session that outlives its request needs of it.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    /// The place of the connection in the limit of its listener.
    pub(crate) place: Arc<OwnedSemaphorePermit>,
    /// Where sessions run, so that the end of the server waits for them.
    pub(crate) sessions: TaskTracker,
    pub(crate) stop: CancellationToken,
    /// The request, which is not over before its session is.
    pub(crate) request: Option<InFlight>,
}

/// The sessions of a server.
#[derive(Clone, Debug)]
pub(crate) struct Sessions {
    places: Arc<Semaphore>,
    metrics: Arc<ServerMetrics>,
}

/// One session, which may begin.
struct Session {
    carrier: Carrier,
    place: OwnedSemaphorePermit,
    idle: Duration,
}

impl Sessions {
    /// Room for as many as a server takes.
    pub(crate) fn new(metrics: Arc<ServerMetrics>) -> Self {
        Self { places: Arc::new(Semaphore::new(MAX_SESSIONS)), metrics }
    }

    fn open(&self, carrier: Carrier, idle: Duration) -> Result<Session, StreamingError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            StreamingError::Busy(format!("more than {MAX_SESSIONS} streaming sessions are open"))
        })?;
        Ok(Session { carrier, place, idle })
    }
}

impl Session {
    /// Lets `work` go on after the request was answered: until it is over, nothing moves any more, or
    /// the server ends.
    fn spawn(self, work: impl Future<Output = ()> + Send + 'static) {
        let Self { carrier: Carrier { place: connection, sessions, stop, request }, place, .. } =
            self;
        sessions.spawn(async move {
            stop.run_until_cancelled(work).await;
            drop((place, connection, request));
        });
    }
}

/// What all of these requests have.
pub(crate) struct Asked {
    method: http::Method,
    query: Vec<(String, String)>,
    dialect: Dialect,
}

impl Asked {
    /// Whether its WebSocket ends here, rather than being passed on.
    fn is_translated(&self) -> bool {
        self.dialect == Dialect::Channels && self.method == http::Method::GET
    }

    fn count(&self, sessions: &Sessions, subresource: &'static str) {
        if self.is_translated() || self.dialect == Dialect::Tunnel {
            sessions.metrics.websocket(subresource);
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let query = options::parse_query(&parts.uri);
        let dialect = Dialect::of(&parts.headers);
        Ok(Self { method: parts.method.clone(), query, dialect })
    }
}

/// The last parts of a path: a pod, maybe its uid, and a container.
fn container_of(path: Segments) -> Result<ContainerTarget, StreamingError> {
    let mut parts = segments(path);
    let mut next = || parts.next().ok_or_else(|| bad_request("no container"));
    let (namespace, name) = (next()?, next()?);
    let (uid, container) = match (next()?, next()) {
        (uid, Ok(container)) => (Some(uid), container),
        (container, Err(_)) => (None, container),
    };
    Ok(ContainerTarget { pod: PodTarget { namespace, name, uid }, container })
}

fn pod_of(path: Segments) -> Result<PodTarget, StreamingError> {
    let mut parts = segments(path);
    let mut next = || parts.next().ok_or_else(|| bad_request("no pod"));
    Ok(PodTarget { namespace: next()?, name: next()?, uid: parts.next() })
}

fn bad_request(text: impl ToString) -> StreamingError {
    StreamingError::BadRequest(text.to_string())
}

type Segments = Path<Vec<(String, String)>>;

fn segments(Path(path): Segments) -> impl Iterator<Item = String> {
    path.into_iter().map(|(_, value)| value)
}

/// `/exec/{namespace}/{pod}[/{uid}]/{container}`.
pub(crate) async fn exec<S: ContainerAccess>(
    State(state): State<Arc<S>>,
    Extension(carrier): Extension<Carrier>,
    Extension(sessions): Extension<Sessions>,
    path: Segments,
    asked: Asked,
    request: Request,
) -> Result<Response, StreamingError> {
    let streams = StreamOptions::from_query(&asked.query).map_err(bad_request)?;
    let target = container_of(path)?;
    let session = sessions.open(carrier, state.idle_timeout())?;
    let url = state.exec(&target, commands(&asked.query), streams).await?;
    asked.count(&sessions, "exec");
    Ok(join(asked, request, &url, streams, session).await)
}

/// `/attach/{namespace}/{pod}[/{uid}]/{container}`.
pub(crate) async fn attach<S: ContainerAccess>(
    State(state): State<Arc<S>>,
    Extension(carrier): Extension<Carrier>,
    Extension(sessions): Extension<Sessions>,
    path: Segments,
    asked: Asked,
    request: Request,
) -> Result<Response, StreamingError> {
    let streams = StreamOptions::from_query(&asked.query).map_err(bad_request)?;
    let target = container_of(path)?;
    let session = sessions.open(carrier, state.idle_timeout())?;
    let url = state.attach(&target, streams).await?;
    asked.count(&sessions, "attach");
    Ok(join(asked, request, &url, streams, session).await)
}

/// `/portForward/{namespace}/{pod}[/{uid}]`.
pub(crate) async fn port_forward<S: ContainerAccess>(
    State(state): State<Arc<S>>,
    Extension(carrier): Extension<Carrier>,
    Extension(sessions): Extension<Sessions>,
    path: Segments,
    asked: Asked,
    request: Request,
) -> Result<Response, StreamingError> {
    let ports = match asked.dialect {
        Dialect::OtherWebSocket | Dialect::Channels => {
            forwarded_ports(&asked.query).map_err(bad_request)?
        }
        Dialect::Tunnel | Dialect::Other => Vec::new(),
    };
    let target = pod_of(path)?;
    let session = sessions.open(carrier, state.idle_timeout())?;
    let url = state.port_forward(&target, ports).await?;
    asked.count(&sessions, "portforward");
    Ok(match asked.dialect {
        Dialect::Tunnel => tunnel::tunnel(request, &url, session).await,
        _ => upgrade::pass_on(request, &url, session).await,
    })
}

/// `/run/{namespace}/{pod}[/{uid}]/{container}`.
pub(crate) async fn run<S: ContainerAccess>(
    State(state): State<Arc<S>>,
    path: Segments,
    asked: Asked,
) -> Result<Response, StreamingError> {
    let output = state.run(&container_of(path)?, old_command(&asked.query)).await?;
    Ok(([(header::CONTENT_TYPE, "application/json")], Body::from(output)).into_response())
}

/// `/checkpoint/{namespace}/{pod}/{container}`.
pub(crate) async fn checkpoint<S: ContainerAccess>(
    State(state): State<Arc<S>>,
    path: Segments,
    asked: Asked,
) -> Result<Response, StreamingError> {
    let target = container_of(path)?;
    let timeout = last_timeout(&asked.query).map_err(|_| {
        StreamingError::NotFound("cannot parse value of timeout parameter".to_owned())
    })?;
    let archive = state.checkpoint(&target, timeout).await?;
    Ok(axum::Json(serde_json::json!({ "items": [archive] })).into_response())
}

/// Joins a caller with a command or process.
async fn join(
    asked: Asked,
    request: Request,
    url: &str,
    streams: StreamOptions,
    session: Session,
) -> Response {
    if asked.is_translated() {
        translate::translate(request, url.to_owned(), streams, session)
    } else {
        upgrade::pass_on(request, url, session).await
    }
}

/// What Go's `http.Error` sends.
fn failed(text: impl ToString) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", text.to_string())).into_response()
}

fn upgrade_required(request: &Request) -> Option<Response> {
    (!is_upgrade(request.headers())).then(|| failed("Upgrade request required"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_keeps_its_places_until_it_is_over() {
        let listener = Arc::new(Semaphore::new(2));
        let places = Arc::new(Semaphore::new(1));
        let sessions = Sessions { places, metrics: Arc::default() };
        let carrier = || Carrier {
            place: Arc::new(listener.clone().try_acquire_owned().unwrap()),
            sessions: TaskTracker::new(),
            stop: CancellationToken::new(),
            request: None,
        };
        let first = carrier();
        let (tracker, stop) = (first.sessions.clone(), first.stop.clone());
        let session = sessions.open(first, Duration::ZERO).unwrap();
        session.spawn(std::future::pending());
        let refused = sessions.open(carrier(), Duration::ZERO).map(drop).unwrap_err();
        assert!(matches!(refused, StreamingError::Busy(_)), "{refused}");
        let response = refused.into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "60");
        assert_eq!(listener.available_permits(), 1, "its connection counts");
        stop.cancel();
        tracker.close();
        tracker.wait().await;
        assert_eq!(listener.available_permits(), 2);
        assert!(sessions.open(carrier(), Duration::ZERO).is_ok());
    }
}
