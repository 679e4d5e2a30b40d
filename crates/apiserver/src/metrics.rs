use std::time::Duration;

use http::{Method, StatusCode};
use rubelet_metrics::{Counter, Desc, Family, Histogram, collector};

const SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
const BYTES: &[f64] = &[
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];
const BY_VERB: &[&str] = &["host", "verb"];
const REQUESTS: Desc = Desc::counter(
    "rest_client_requests_total",
    "Requests to the API server, each try counted, by what was answered.",
)
.with(&["code", "host", "method"]);
const DURATION: Desc = Desc::histogram(
    "rest_client_request_duration_seconds",
    "How long tries of requests to the API server took; of watches, until they had begun.",
    SECONDS,
)
.with(BY_VERB);
const REQUEST_SIZE: Desc = Desc::histogram(
    "rest_client_request_size_bytes",
    "The size of what was sent to the API server.",
    BYTES,
)
.with(BY_VERB);
const RESPONSE_SIZE: Desc = Desc::histogram(
    "rest_client_response_size_bytes",
    "The size of what the API server answered, watches left out.",
    BYTES,
)
.with(BY_VERB);
const LIMITER: Desc = Desc::histogram(
    "rest_client_rate_limiter_duration_seconds",
    "How long requests were held back by the kubelet's own limits.",
    SECONDS,
)
.with(BY_VERB);
const RETRIES: Desc = Desc::counter(
    "rest_client_request_retries_total",
    "Requests that were sent again because the API server asked for it.",
)
.with(&["code", "host", "verb"]);

/// What is counted of requests to the API server, over all lanes.
#[derive(Debug)]
pub struct RestClientMetrics {
    requests: Family<3, Counter>,
    duration: Family<2, Histogram>,
    request_size: Family<2, Histogram>,
    response_size: Family<2, Histogram>,
    limiter: Family<2, Histogram>,
    retries: Family<3, Counter>,
}

collector!(RestClientMetrics { requests, duration, request_size, response_size, limiter, retries });

impl Default for RestClientMetrics {
    fn default() -> Self {
        Self {
            requests: Family::new(&REQUESTS),
            duration: Family::new(&DURATION),
            request_size: Family::new(&REQUEST_SIZE),
            response_size: Family::new(&RESPONSE_SIZE),
            limiter: Family::new(&LIMITER),
            retries: Family::new(&RETRIES),
        }
    }
}

/// How one try of a request went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    /// None if nothing was answered.
    pub(crate) status: Option<StatusCode>,
    pub(crate) took: Duration,
    pub(crate) sent: usize,
    /// None of an answer that goes on.
    pub(crate) received: Option<usize>,
}

impl RestClientMetrics {
    pub(crate) fn tried(&self, host: &str, method: &Method, tried: &Try) {
        let code = tried.status.as_ref().map_or("<error>", StatusCode::as_str);
        let by_verb = [host, method.as_str()];
        self.requests.with([code, host, method.as_str()], Counter::inc);
        self.duration.with(by_verb, |it| it.observe_duration(tried.took));
        self.request_size.with(by_verb, |it| it.observe_count(tried.sent));
        if let Some(received) = tried.received {
            self.response_size.with(by_verb, |it| it.observe_count(received));
        }
    }

    pub(crate) fn held_back(&self, host: &str, method: &Method, waited: Duration) {
        self.limiter.with([host, method.as_str()], |it| it.observe_duration(waited));
    }

    pub(crate) fn retried(&self, host: &str, method: &Method, status: StatusCode) {
        self.retries.with([status.as_str(), host, method.as_str()], Counter::inc);
    }
}
