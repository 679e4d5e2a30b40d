use std::fmt::{self, Write};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query};
use axum::routing::get;
use http::{HeaderName, StatusCode, header};
use tracing::warn;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks behind `/healthz`, in order. The first is `ping`, which always passes: whoever can
/// ask it is alive.
#[derive(Clone)]
pub struct HealthChecks(Vec<(&'static str, Check)>);

impl HealthChecks {
    /// `ping` alone: what port 10248 serves.
    pub fn ping() -> Self {
        Self(vec![("ping", Arc::new(|| Ok(())))])
    }

    /// Adds a check. It runs on every request, must not block, and says what is wrong.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.0.push((name, Arc::new(check)));
        self
    }

    /// `/healthz` and `/healthz/<check>`.
    pub(crate) fn routes<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        let (all, one) = (self.clone(), self.clone());
        Router::new()
            .route(
                "/healthz",
                get(move |Query(query): Query<Vec<(String, String)>>| async move {
                    all.respond(&query)
                }),
            )
            .route(
                "/healthz/{check}",
                get(move |Path(name): Path<String>| async move { one.respond_one(&name) }),
            )
    }

    /// Runs all checks, and says which failed but not why: anybody may ask.
    fn respond(&self, query: &[(String, String)]) -> HealthResponse {
        let mut excluded: Vec<&str> = query
            .iter()
            .filter(|(key, value)| key == "exclude" && !value.is_empty())
            .map(|(_, value)| value.as_str())
            .collect();
        let mut text = String::new();
        let mut failed = false;
        for (name, check) in &self.0 {
            let result = if excluded.contains(name) {
                excluded.retain(|it| it != name);
                " excluded: ok"
            } else if let Err(reason) = check() {
                warn!(check = name, reason, "health check failed");
                failed = true;
                let _ = writeln!(text, "[-]{name} failed: reason withheld");
                continue;
            } else {
                " ok"
            };
            let _ = writeln!(text, "[+]{name}{result}");
        }
        if !excluded.is_empty() {
            let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
            let _ = writeln!(
                text,
                "warn: some health checks cannot be excluded: no matches for {}",
                names.join(", ")
            );
        }
        if failed {
            text.push_str("healthz check failed\n");
            return health_response(StatusCode::INTERNAL_SERVER_ERROR, text);
        }
        if query.iter().any(|(key, _)| key == "verbose") {
            text.push_str("healthz check passed\n");
            health_response(StatusCode::OK, text)
        } else {
            health_response(StatusCode::OK, "ok".to_owned())
        }
    }

    /// Runs one check, and says what is wrong.
    fn respond_one(&self, name: &str) -> HealthResponse {
        match self.0.iter().find(|(known, _)| *known == name) {
            None => health_response(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            Some((_, check)) => match check() {
                Ok(()) => health_response(StatusCode::OK, "ok".to_owned()),
                Err(reason) => health_response(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("internal server error: {reason}\n"),
                ),
            },
        }
    }
}

impl fmt::Debug for HealthChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

type HealthResponse = (StatusCode, [(HeaderName, &'static str); 2], String);

fn health_response(status: StatusCode, text: String) -> HealthResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (status, headers, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(syncloop: Result<(), &str>) -> HealthChecks {
        let syncloop = syncloop.map_err(str::to_owned);
        HealthChecks::ping().with("log", || Ok(())).with("syncloop", move || syncloop.clone())
    }

    #[test]
    fn answers_are_those_of_kubernetes() {
        let well = checks(Ok(()));
        let ill = checks(Err("sync Loop took longer than expected"));
        for (checks, query, status, expected) in [
            (&well, "", 200, "ok"),
            (
                &well,
                "verbose",
                200,
                "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n",
            ),
            (
                &ill,
                "",
                500,
                "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check \
                 failed\n",
            ),
            (&ill, "exclude=syncloop", 200, "ok"),
            (
                &ill,
                "verbose&exclude=syncloop&exclude=x",
                200,
                "[+]ping ok\n[+]log ok\n[+]syncloop excluded: ok\nwarn: some health checks cannot \
                 be excluded: no matches for \"x\"\nhealthz check passed\n",
            ),
        ] {
            let query: Vec<_> = query
                .split('&')
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            let (code, _, text) = checks.respond(&query);
            assert_eq!((code.as_u16(), text.as_str()), (status, expected), "{query:?}");
        }
    }

    #[test]
    fn one_check_says_why() {
        let ill = checks(Err("sync Loop took longer than expected"));
        for (name, status, expected) in [
            ("ping", 200, "ok"),
            ("syncloop", 500, "internal server error: sync Loop took longer than expected\n"),
            ("other", 404, "404 page not found\n"),
        ] {
            let (code, _, text) = ill.respond_one(name);
            assert_eq!((code.as_u16(), text.as_str()), (status, expected), "{name}");
        }
    }
}
