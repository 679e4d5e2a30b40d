//! What is counted of requests, and the endpoints where metrics are read.
//!
//! Requests are counted by the first part of their path if it is one of [`PATHS`], else as `other`:
//! nobody makes series by asking for what does not exist.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, Method, header};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use rubelet_metrics::{
    Counter, DEFAULT_BUCKETS, Desc, Family, Gauge, Histogram, Registry, collector, negotiate,
};
use tokio::time::Instant;

use crate::streaming::Carrier;

const LABELS: &[&str] = &["long_running", "method", "path", "server_type"];
const REQUESTS: Desc =
    Desc::counter("kubelet_http_requests_total", "Requests to the kubelet's HTTP servers.")
        .with(LABELS);
const DURATION: Desc = Desc::histogram(
    "kubelet_http_requests_duration_seconds",
    "Time from a request's head to the end of its answer, or of the session it began.",
    DEFAULT_BUCKETS,
)
.with(LABELS);
const IN_FLIGHT: Desc =
    Desc::gauge("kubelet_http_inflight_requests", "Requests that are being answered.").with(LABELS);
const WEBSOCKETS: Desc = Desc::counter(
    "kubelet_websocket_streaming_requests_total",
    "Exec, attach and port-forward requests whose WebSocket ends at the kubelet.",
)
.with(&["subresource"]);

/// The paths by which requests are counted.
const PATHS: &[&str] = &[
    "attach",
    "checkpoint",
    "configz",
    "containerLogs",
    "debug",
    "exec",
    "flagz",
    "healthz",
    "logs",
    "metrics",
    "metrics/cadvisor",
    "metrics/probes",
    "metrics/resource",
    "pods",
    "portForward",
    "pprof",
    "run",
    "runningpods",
    "stats",
    "statusz",
];

/// Those of them that count as long. Upstream means `portForward` too and misspells it; dashboards
/// have got used to that.
const LONG: &[&str] = &["attach", "debug", "exec"];

/// What the servers count of requests.
#[derive(Debug)]
pub struct ServerMetrics {
    requests: Family<4, Counter>,
    duration: Family<4, Histogram>,
    in_flight: Family<4, Gauge>,
    websockets: Family<1, Counter>,
}

collector!(ServerMetrics { requests, duration, in_flight, websockets });

impl Default for ServerMetrics {
    fn default() -> Self {
        Self {
            requests: Family::new(&REQUESTS),
            duration: Family::new(&DURATION),
            in_flight: Family::new(&IN_FLIGHT),
            websockets: Family::new(&WEBSOCKETS),
        }
    }
}

impl ServerMetrics {
    /// Counts a streaming request whose WebSocket is taken apart here.
    pub(crate) fn websocket(&self, subresource: &'static str) {
        self.websockets.with([subresource], Counter::inc);
    }

    fn begin(self: &Arc<Self>, method: &Method, path: &str, server: ServerType) -> InFlight {
        let path = path_of(path);
        let long = if LONG.contains(&path) { "true" } else { "false" };
        let labels = [long, method_of(method), path, server.as_str()];
        self.requests.with(labels, Counter::inc);
        self.in_flight.with(labels, |requests| requests.add(1.0));
        let begun = Begun { metrics: self.clone(), labels, since: Instant::now() };
        InFlight { _begun: Arc::new(begun) }
    }
}

/// The label `server_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerType {
    /// Port 10250.
    ReadWrite,
    /// Port 10255.
    ReadOnly,
}

impl ServerType {
    fn as_str(self) -> &'static str {
        match self {
            Self::ReadWrite => "readwrite",
            Self::ReadOnly => "readonly",
        }
    }
}

fn path_of(path: &str) -> &'static str {
    let path = path.strip_prefix('/').unwrap_or(path);
    let mut parts = path.splitn(3, '/');
    let first = parts.next().unwrap_or_default();
    let known = |wanted: &str| PATHS.iter().find(|path| **path == wanted);
    let found = match (first, parts.next()) {
        ("metrics", Some(second)) => known(&format!("metrics/{second}")),
        _ => known(first),
    };
    found.copied().unwrap_or("other")
}

fn method_of(method: &Method) -> &'static str {
    match *method {
        Method::OPTIONS => "OPTIONS",
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::TRACE => "TRACE",
        Method::CONNECT => "CONNECT",
        _ => "other",
    }
}

/// A request under way: until the last clone is gone.
#[derive(Clone)]
pub(crate) struct InFlight {
    _begun: Arc<Begun>,
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlight")
    }
}

struct Begun {
    metrics: Arc<ServerMetrics>,
    labels: [&'static str; 4],
    since: Instant,
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.metrics.in_flight.with(self.labels, |requests| requests.add(-1.0));
        self.metrics.duration.with(self.labels, |it| it.observe_duration(self.since.elapsed()));
    }
}

/// Counts every request, also those for what does not exist.
pub(crate) async fn count(
    State((metrics, server)): State<(Arc<ServerMetrics>, ServerType)>,
    mut request: Request,
    next: Next,
) -> Response {
    let in_flight = metrics.begin(request.method(), request.uri().path(), server);
    if let Some(carrier) = request.extensions_mut().get_mut::<Carrier>() {
        carrier.request = Some(in_flight.clone());
    }
    let answer = next.run(request).await;
    answer.map(|body| Body::new(Counted { body, _request: in_flight }))
}

/// A body with whose end a request ends.
struct Counted {
    body: Body,
    _request: InFlight,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The endpoints where metrics are read, and what counts requests.
#[derive(Clone, Debug, Default)]
pub struct MetricsEndpoints {
    pub(crate) requests: Arc<ServerMetrics>,
    pub(crate) registries: Vec<(&'static str, Registry)>,
}

impl MetricsEndpoints {
    /// No endpoint yet; requests are counted in `requests`.
    pub fn new(requests: Arc<ServerMetrics>) -> Self {
        Self { requests, registries: Vec::new() }
    }

    /// The same with `registry` at `path`, which is `/metrics` or begins with `/metrics/`.
    #[must_use]
    pub fn with(mut self, path: &'static str, registry: Registry) -> Self {
        self.registries.push((path, registry));
        self
    }
}

/// All metrics of `registry` in the format that the scraper takes.
pub(crate) fn answer(registry: &Registry, headers: &HeaderMap) -> Response {
    let accept: Vec<&str> =
        headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let format = negotiate((!accept.is_empty()).then(|| accept.join(",")).as_deref());
    ([(header::CONTENT_TYPE, format.content_type())], registry.expose(format)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_by_their_first_part_and_others_as_one() {
        for (path, expected) in [
            ("/pods", "pods"),
            ("/pods/", "pods"),
            ("/exec/ns/pod/c", "exec"),
            ("/metrics", "metrics"),
            ("/metrics/", "other"),
            ("/metrics/probes", "metrics/probes"),
            ("/metrics/resource/x", "metrics/resource"),
            ("/metrics/made-up", "other"),
            ("/", "other"),
            ("", "other"),
            ("//pods", "other"),
            ("/made-up/pods", "other"),
            ("/containerLogs/a/b/c", "containerLogs"),
            ("/portForward/a/b", "portForward"),
        ] {
            assert_eq!(path_of(path), expected, "{path}");
        }
        assert_eq!(method_of(&Method::PATCH), "other");
    }
}
