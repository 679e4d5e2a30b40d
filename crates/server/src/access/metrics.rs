use std::time::Duration;

use rubelet_metrics::{Counter, Desc, Family, Histogram, collector};

use super::review::ReviewError;

const BUCKETS: &[f64] = &[0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];
const TOKENS: Desc = Desc::counter(
    "apiserver_delegated_authn_request_total",
    "How often the API server was asked whose a token is, by what it answered.",
)
.with(&["code"]);
const TOKENS_DURATION: Desc = Desc::histogram(
    "apiserver_delegated_authn_request_duration_seconds",
    "How long it took the API server to say whose a token is.",
    BUCKETS,
)
.with(&["code"]);
const RIGHTS: Desc = Desc::counter(
    "apiserver_delegated_authz_request_total",
    "How often the API server was asked who may do what, by what it answered.",
)
.with(&["code"]);
const RIGHTS_DURATION: Desc = Desc::histogram(
    "apiserver_delegated_authz_request_duration_seconds",
    "How long it took the API server to say who may do what.",
    BUCKETS,
)
.with(&["code"]);

/// What is counted of questions about tokens and rights.
#[derive(Debug)]
pub struct AccessMetrics {
    tokens: Family<1, Counter>,
    tokens_duration: Family<1, Histogram>,
    rights: Family<1, Counter>,
    rights_duration: Family<1, Histogram>,
}

collector!(AccessMetrics { tokens, tokens_duration, rights, rights_duration });

impl Default for AccessMetrics {
    fn default() -> Self {
        Self {
            tokens: Family::new(&TOKENS),
            tokens_duration: Family::new(&TOKENS_DURATION),
            rights: Family::new(&RIGHTS),
            rights_duration: Family::new(&RIGHTS_DURATION),
        }
    }
}

/// What was asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// Whose a token is.
    Token,
    /// Who may do what.
    Right,
}

impl AccessMetrics {
    /// The API server was asked once.
    pub(super) fn asked<T>(
        &self,
        question: Question,
        answer: &Result<T, ReviewError>,
        took: Duration,
    ) {
        let code = match answer {
            // What was asked is an object that was created.
            Ok(_) => "201".to_owned(),
            Err(error) => error.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string()),
        };
        let (requests, duration) = match question {
            Question::Token => (&self.tokens, &self.tokens_duration),
            Question::Right => (&self.rights, &self.rights_duration),
        };
        requests.with([&code], Counter::inc);
        duration.with([&code], |it| it.observe_duration(took));
    }
}
