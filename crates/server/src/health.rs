use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{Path, Query};
use axum::routing::get;
use http::{HeaderName, StatusCode, header};
use rubelet_metrics::{Collector, Desc, Exposition, Stability};
use tracing::warn;

type Check = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Named checks behind `/healthz`, in order. The first is `ping`, which always passes: whoever can
/// ask it is alive.
#[derive(Clone)]
pub struct HealthChecks {
    checks: Vec<(&'static str, Check)>,
    metrics: Arc<HealthMetrics>,
}

/// Where one asks.
pub(crate) const HEALTH_PATHS: [&str; 2] = ["/healthz", "/healthz/{check}"];

impl HealthChecks {
    /// `ping` alone: what port 10248 serves.
    pub fn ping() -> Self {
        Self { checks: vec![("ping", Arc::new(|| Ok(())))], metrics: Arc::default() }
    }

    /// The same, counted in `metrics` along with others.
    #[must_use]
    pub fn counted_in(self, metrics: Arc<HealthMetrics>) -> Self {
        Self { metrics, ..self }
    }

    /// Adds a check. It runs on every request, must not block, and says what is wrong.
    #[must_use]
    pub fn with(
        mut self,
        name: &'static str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.checks.push((name, Arc::new(check)));
        self
    }

    /// `/healthz` and `/healthz/<check>`.
    pub(crate) fn routes<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        let (all, one) = (self.clone(), self.clone());
        Router::new()
            .route(
                HEALTH_PATHS[0],
                get(move |Query(query): Query<Vec<(String, String)>>| async move {
                    all.respond(&query)
                }),
            )
            .route(
                HEALTH_PATHS[1],
                get(move |Path(name): Path<String>| async move { one.respond_one(&name) }),
            )
    }

    fn run(&self, name: &'static str, check: &Check) -> Result<(), String> {
        let result = check();
        self.metrics.count(name, result.is_ok());
        result
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
        for (name, check) in &self.checks {
            let result = if excluded.contains(name) {
                excluded.retain(|it| it != name);
                " excluded: ok"
            } else if let Err(reason) = self.run(name, check) {
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
        match self.checks.iter().find(|(known, _)| *known == name) {
            None => health_response(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            Some((name, check)) => match self.run(name, check) {
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
        f.debug_list().entries(self.checks.iter().map(|(name, _)| name)).finish()
    }
}

const HEALTH: Desc =
    Desc::gauge("kubernetes_healthcheck", "1 for each health check that passed when it last ran.")
        .with(&["name", "type"])
        .of(Stability::Stable);
const HEALTH_TOTAL: Desc =
    Desc::counter("kubernetes_healthchecks_total", "Health checks that were run, by their result.")
        .with(&["name", "status", "type"])
        .of(Stability::Stable);

/// What came of health checks since somebody last read it: reading begins anew.
#[derive(Debug, Default)]
pub struct HealthMetrics(Mutex<BTreeMap<&'static str, Results>>);

#[derive(Debug, Default)]
struct Results {
    last_passed: bool,
    passed: u64,
    failed: u64,
}

impl HealthMetrics {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Results>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, check: &'static str, passed: bool) {
        let mut all = self.lock();
        let results = all.entry(check).or_default();
        results.last_passed = passed;
        *if passed { &mut results.passed } else { &mut results.failed } += 1;
    }
}

impl Collector for HealthMetrics {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&HEALTH, &HEALTH_TOTAL]
    }

    fn collect(&self, to: &mut Exposition) {
        let all = std::mem::take(&mut *self.lock());
        let mut last = to.family(&HEALTH);
        for (name, results) in &all {
            last.count(&[name, "healthz"], u64::from(results.last_passed));
        }
        let mut totals = to.family(&HEALTH_TOTAL);
        for (name, results) in &all {
            for (status, count) in [("error", results.failed), ("success", results.passed)] {
                if count > 0 {
                    totals.count(&[name, status, "healthz"], count);
                }
            }
        }
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
    use rubelet_metrics::{Format, Registry};

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
    fn results_are_counted_until_they_are_read() {
        let metrics = Arc::new(HealthMetrics::default());
        let registry = Registry::new().with(metrics.clone());
        let ill = checks(Err("slow")).counted_in(metrics);
        ill.clone().respond(&[]);
        ill.respond_one("ping");
        assert_eq!(
            registry
                .expose(Format::Prometheus)
                .lines()
                .filter(|line| !line.starts_with('#'))
                .collect::<Vec<_>>(),
            [
                "kubernetes_healthcheck{name=\"log\",type=\"healthz\"} 1",
                "kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1",
                "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 0",
                "kubernetes_healthchecks_total{name=\"log\",status=\"success\",type=\"healthz\"} 1",
                "kubernetes_healthchecks_total{name=\"ping\",status=\"success\",type=\"healthz\"} 2",
                "kubernetes_healthchecks_total{name=\"syncloop\",status=\"error\",type=\"healthz\"} 1",
            ]
        );
        assert_eq!(registry.expose(Format::Prometheus), "");
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
