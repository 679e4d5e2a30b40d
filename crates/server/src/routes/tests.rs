use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt;
use jiff::Timestamp;
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use crate::access::{
    AccessQuestion, AccessReviews, AccessSettings, Authorization, ReviewError, User,
};
use crate::container_logs::{
    ContainerLogs, ContainerLogsError, LogBytes, LogTarget, PodLogOptions,
};
use crate::metrics::ServerMetrics;
use crate::pod_explanations::{PodExplanation, PodExplanations};
use crate::state::StateError;
use crate::streaming::{ContainerTarget, PodTarget, StreamOptions, StreamingError};
use crate::zpages::About;

#[derive(Default)]
struct Node {
    verbosity: AtomicU32,
}

impl KubeletState for Node {
    fn pods(&self) -> Vec<Arc<Pod>> {
        Vec::new()
    }
    async fn running_pods(&self) -> Result<Vec<Pod>, StateError> {
        Ok(Vec::new())
    }
    fn configz(&self) -> Value {
        Value::Null
    }
    fn about(&self) -> About {
        let (started, now) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        About { version: "1.36.0".to_owned(), started, now, flags: Default::default() }
    }
    fn set_log_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
    }
}

impl ContainerAccess for Node {
    async fn exec(
        &self,
        _: &ContainerTarget,
        _: Vec<String>,
        _: StreamOptions,
    ) -> Result<String, StreamingError> {
        Err(StreamingError::NoSuchPod)
    }
    async fn attach(
        &self,
        _: &ContainerTarget,
        _: StreamOptions,
    ) -> Result<String, StreamingError> {
        Err(StreamingError::NoSuchPod)
    }
    async fn port_forward(&self, _: &PodTarget, _: Vec<u16>) -> Result<String, StreamingError> {
        Err(StreamingError::NoSuchPod)
    }
    async fn run(
        &self,
        target: &ContainerTarget,
        command: Vec<String>,
    ) -> Result<Vec<u8>, StreamingError> {
        Ok(format!("{target:?} {command:?}").into_bytes())
    }
    async fn checkpoint(
        &self,
        target: &ContainerTarget,
        timeout: Option<u32>,
    ) -> Result<String, StreamingError> {
        Ok(format!("/{}-{timeout:?}", target.container))
    }
    fn idle_timeout(&self) -> Duration {
        Duration::ZERO
    }
}

const ALL: Endpoints = Endpoints {
    debugging: true,
    profiling: true,
    debug_flags: true,
    system_logs: true,
    system_log_query: true,
    checkpoints: true,
};

/// Knows no pod.
struct Nobody;

impl ContainerLogs for Nobody {
    fn open_log(
        &self,
        target: LogTarget,
        _: PodLogOptions,
    ) -> BoxFuture<'_, Result<LogBytes, ContainerLogsError>> {
        std::future::ready(Err(ContainerLogsError::NoPod { pod: target.pod })).boxed()
    }
}

impl PodExplanations for Nobody {
    fn explain(&self, _: String, _: String) -> BoxFuture<'_, Option<PodExplanation>> {
        std::future::ready(None).boxed()
    }
}

fn debug() -> DebugRoutes {
    let nobody = Arc::new(Nobody);
    DebugRoutes::default().with_container_logs(nobody.clone()).with_pod_explanations(nobody)
}

fn routes(endpoints: Endpoints) -> (Arc<Node>, Router) {
    let node = Arc::new(Node::default());
    let settings = AccessSettings {
        anonymous: true,
        client_certificates: false,
        tokens: None,
        authorization: Authorization::AlwaysAllow,
    };
    let access = Arc::new(Access::new(settings, "node", None).unwrap());
    let metrics = MetricsEndpoints::default();
    let checks = HealthChecks::ping();
    let routes = kubelet_routes(node.clone(), &checks, access, endpoints, debug(), &metrics)
        .layer(Extension(Peer::default()));
    (node, routes)
}

async fn ask(routes: &Router, method: &str, path: &str, body: &'static str) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).body(Body::from(body)).unwrap();
    let response = routes.clone().oneshot(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status.as_u16(), String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn the_log_level_is_set_by_a_number_in_the_body() {
    let (node, routes) = routes(ALL);
    let set = "successfully set klog.logging.verbosity to 4".to_owned();
    assert_eq!(ask(&routes, "PUT", "/debug/flags/v", "4\n").await, (200, set));
    assert_eq!(node.verbosity.load(Ordering::Relaxed), 4);
    assert_eq!(ask(&routes, "PUT", "/debug/flags/v", "lots").await.0, 400);
    assert_eq!(ask(&routes, "GET", "/debug/flags/v", "").await.0, 405);
}

#[tokio::test]
async fn what_is_disabled_says_so() {
    let debugging = "Debug endpoints are disabled.\n";
    let none = "404 page not found\n";
    let off = Endpoints { debugging: false, ..ALL };
    let flags = Endpoints { debug_flags: false, ..ALL };
    let logs = Endpoints { system_logs: false, ..ALL };
    let checkpoints = Endpoints { checkpoints: false, ..ALL };
    let profiling = Endpoints { profiling: false, ..ALL };
    for (endpoints, method, path, status, text) in [
        (off, "POST", "/exec/ns/pod/c", 405, debugging),
        (off, "GET", "/attach/ns/pod/uid/c", 405, debugging),
        (off, "POST", "/portForward/ns/pod", 405, debugging),
        (off, "POST", "/run/ns/pod/c", 405, debugging),
        (off, "GET", "/containerLogs/ns/pod/c", 405, debugging),
        (off, "GET", "/runningpods/", 405, debugging),
        (off, "GET", "/debug/pprof/heap", 405, debugging),
        (off, "GET", "/logs/", 405, debugging),
        (off, "GET", "/configz", 404, none),
        (off, "PUT", "/debug/flags/v", 404, none),
        (off, "GET", "/healthz", 200, "ok"),
        (flags, "PUT", "/debug/flags/v", 405, "flags endpoint is disabled.\n"),
        (logs, "GET", "/logs/", 405, "logs endpoint is disabled.\n"),
        (logs, "GET", "/logs/syslog", 405, "logs endpoint is disabled.\n"),
        (checkpoints, "POST", "/checkpoint/ns/pod/c", 404, none),
        (profiling, "GET", "/debug/pprof/", 405, "profiling endpoint is disabled.\n"),
        (ALL, "GET", "/nowhere", 404, none),
        (ALL, "POST", "/pods", 405, "405: Method Not Allowed"),
    ] {
        let (_, routes) = routes(endpoints);
        let answer = ask(&routes, method, path, "").await;
        assert_eq!(answer, (status, text.to_owned()), "{method} {path}");
    }
}

#[tokio::test]
async fn head_is_no_kind_of_get() {
    let (_, routes) = routes(ALL);
    for (path, status) in [
        ("/pods", 405),
        ("/pods/", 405),
        ("/runningpods/", 405),
        ("/exec/n/p/c", 405),
        ("/containerLogs/n/p/c", 405),
        ("/logs/", 405),
        ("/debug/pods/n/p", 405),
        ("/healthz", 200),
        ("/configz", 200),
        ("/flagz", 200),
        ("/statusz", 200),
        ("/nowhere", 404),
    ] {
        assert_eq!(ask(&routes, "HEAD", path, "").await, (status, String::new()), "{path}");
    }
}

#[tokio::test]
async fn run_has_a_container_with_or_without_a_uid() {
    let (_, routes) = routes(ALL);
    for (path, uid) in [("/run/n/p/c", None), ("/run/n/p/u/c", Some("u".to_owned()))] {
        let pod = PodTarget { namespace: "n".to_owned(), name: "p".to_owned(), uid };
        let target = ContainerTarget { pod, container: "c".to_owned() };
        let expected = format!("{target:?} {:?}", ["ls", "-l"]);
        let answer = ask(&routes, "POST", &format!("{path}?cmd=ls+-l"), "").await;
        assert_eq!(answer, (200, expected), "{path}");
    }
    assert_eq!(ask(&routes, "GET", "/run/n/p/c?cmd=ls", "").await.0, 405);
}

#[tokio::test]
async fn checkpoints_pages_and_logs_are_served() {
    let (_, routes) = routes(ALL);
    let made = ask(&routes, "POST", "/checkpoint/n/p/c?timeout=3", "").await;
    assert_eq!(made, (200, "{\"items\":[\"/c-Some(3)\"]}".to_owned()));
    let bad = ask(&routes, "POST", "/checkpoint/n/p/c?timeout=soon", "").await;
    assert_eq!(bad, (404, "cannot parse value of timeout parameter".to_owned()));
    let (status, text) = ask(&routes, "GET", "/statusz", "").await;
    let paths = "Paths: /attach /checkpoint /configz /containerLogs /debug /exec /flagz /healthz /logs /pods \
                 /portForward /run /runningpods\n";
    assert!(status == 200 && text.ends_with(paths), "{text}");
    assert_eq!(ask(&routes, "GET", "/flagz", "").await.0, 200);
    assert_eq!(ask(&routes, "GET", "/logs", "").await.0, 301);
    assert_eq!(ask(&routes, "GET", "/logs/", "").await.0, 200);
    assert_eq!(ask(&routes, "GET", "/logs/no/such%20file", "").await.0, 404);
    assert_eq!(ask(&routes, "GET", "/logs/?query=+", "").await.0, 400);
    assert_eq!(ask(&routes, "GET", "/logs/x?query=a", "").await.0, 406);
}

/// An API server that writes down what it is asked, and says no.
#[derive(Default)]
struct Refusing(std::sync::Mutex<Vec<String>>);

impl AccessReviews for Refusing {
    fn user_of_token(
        &self,
        token: String,
    ) -> BoxFuture<'static, Result<Option<User>, ReviewError>> {
        let user = User { name: token, ..User::default() };
        std::future::ready(Ok(Some(user))).boxed()
    }
    fn is_allowed(
        &self,
        question: AccessQuestion,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        let AccessQuestion { user, verb, subresource, .. } = question;
        // Everybody may do what he is called after.
        let allowed = user.name == subresource;
        self.0.lock().unwrap().push(format!("{verb} {subresource}"));
        std::future::ready(Ok(allowed)).boxed()
    }
}

#[tokio::test]
async fn every_route_asks_for_its_right_and_for_no_other() {
    let settings = AccessSettings {
        anonymous: true,
        client_certificates: false,
        tokens: Some(Duration::ZERO),
        authorization: Authorization::Webhook {
            authorized_ttl: Duration::ZERO,
            unauthorized_ttl: Duration::ZERO,
        },
    };
    let reviews = Arc::new(Refusing::default());
    let access = Arc::new(Access::new(settings, "node", Some(reviews.clone() as _)).unwrap());
    let node = Arc::new(Node::default());
    let metrics = MetricsEndpoints::default()
        .with("/metrics", Registry::new())
        .with("/metrics/probes", Registry::new());
    let routes = kubelet_routes(node, &HealthChecks::ping(), access, ALL, debug(), &metrics)
        .layer(Extension(Peer::default()));
    for (method, path, verb, subresources) in [
        ("GET", "/healthz", "get", &["healthz", "proxy"][..]),
        ("GET", "/healthz/ping", "get", &["healthz", "proxy"]),
        ("GET", "/pods", "get", &["pods", "proxy"]),
        ("GET", "/pods/", "get", &["pods", "proxy"]),
        ("GET", "/runningpods/", "get", &["pods", "proxy"]),
        ("GET", "/configz", "get", &["configz", "proxy"]),
        ("GET", "/metrics", "get", &["metrics"]),
        ("GET", "/metrics/probes", "get", &["metrics"]),
        ("GET", "/flagz", "get", &["configz"]),
        ("GET", "/statusz", "get", &["statusz"]),
        ("GET", "/logs/", "get", &["log"]),
        ("GET", "/logs/pods/a", "get", &["log"]),
        ("POST", "/checkpoint/n/p/c", "create", &["checkpoint"]),
        ("GET", "/exec/n/p/c", "get", &["proxy"]),
        ("POST", "/exec/n/p/u/c", "create", &["proxy"]),
        ("POST", "/attach/n/p/c", "create", &["proxy"]),
        ("POST", "/portForward/n/p", "create", &["proxy"]),
        ("POST", "/run/n/p/c", "create", &["proxy"]),
        ("GET", "/containerLogs/n/p/c", "get", &["proxy"]),
        ("GET", "/debug/pods/n/p", "get", &["proxy"]),
        ("PUT", "/debug/flags/v", "update", &["proxy"]),
        ("DELETE", "/pods", "delete", &["pods", "proxy"]),
        ("PATCH", "/nowhere", "patch", &["proxy"]),
        ("HEAD", "/configz", "", &["configz", "proxy"]),
    ] {
        let as_somebody = |name: &str| {
            let request = Request::builder()
                .method(method)
                .uri(path)
                .header("authorization", format!("Bearer {name}"))
                .body(Body::empty())
                .unwrap();
            routes.clone().oneshot(request)
        };
        let refused = as_somebody("mallory").await.unwrap();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN, "{method} {path}");
        let text = refused.into_body().collect().await.unwrap().to_bytes();
        let named = subresources.join(" ");
        let expected = match method {
            "HEAD" => String::new(),
            _ => format!(
                "Forbidden (user=mallory, verb={verb}, resource=nodes, subresource(s)=[{named}])\n"
            ),
        };
        assert_eq!(text, expected, "{method} {path}");
        let asked = std::mem::take(&mut *reviews.0.lock().unwrap());
        let expected: Vec<_> = subresources.iter().map(|one| format!("{verb} {one}")).collect();
        assert_eq!(asked, expected, "{method} {path}");
        for name in subresources {
            let allowed = as_somebody(name).await.unwrap().status();
            assert_ne!(allowed, StatusCode::FORBIDDEN, "{name} {method} {path}");
        }
        reviews.0.lock().unwrap().clear();
    }
}

/// The servers of a node that counts requests and shows them.
fn counting() -> (Arc<ServerMetrics>, Router, Router) {
    let requests = Arc::new(ServerMetrics::default());
    let registry = Registry::new().with(requests.clone());
    let metrics = MetricsEndpoints::new(requests.clone()).with("/metrics", registry);
    let settings = AccessSettings {
        anonymous: true,
        client_certificates: false,
        tokens: None,
        authorization: Authorization::AlwaysAllow,
    };
    let access = Arc::new(Access::new(settings, "node", None).unwrap());
    let (node, checks) = (Arc::new(Node::default()), HealthChecks::ping());
    let few = Endpoints { debugging: false, ..ALL };
    let routes = kubelet_routes(node.clone(), &checks, access, few, debug(), &metrics)
        .layer(Extension(Peer::default()));
    (requests, routes, read_only_routes(node, &checks, &metrics))
}

#[tokio::test]
async fn metrics_are_served_on_both_ports_also_without_debugging_handlers() {
    let (_, routes, read_only) = counting();
    assert_eq!(ask(&routes, "GET", "/healthz", "").await.0, 200);
    for (routes, server) in [(&routes, "readwrite"), (&read_only, "readonly")] {
        let (status, text) = ask(routes, "GET", "/metrics", "").await;
        assert_eq!(status, 200);
        let healthz = "kubelet_http_requests_total{long_running=\"false\",method=\"GET\",\
                       path=\"healthz\",server_type=\"readwrite\"} 1\n";
        assert!(text.contains(healthz), "{text}");
        // The one who reads is being answered himself.
        let reading = format!(
            "kubelet_http_inflight_requests{{long_running=\"false\",method=\"GET\",\
             path=\"metrics\",server_type=\"{server}\"}} 1\n"
        );
        assert!(text.contains(&reading), "{text}");
    }
    let (_, text) = ask(&routes, "GET", "/metrics", "").await;
    let read = "kubelet_http_requests_duration_seconds_count{long_running=\"false\",\
                method=\"GET\",path=\"metrics\",server_type=\"readwrite\"} 1\n";
    assert!(text.contains(read), "{text}");
}

#[tokio::test]
async fn the_format_is_the_one_that_is_asked_for() {
    let (_, routes, _) = counting();
    let get = |accept: &'static str| {
        let request = Request::builder().uri("/metrics").header("accept", accept);
        routes.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let old = get("text/plain;version=0.0.4;q=0.5,*/*;q=0.1").await.unwrap();
    assert_eq!(old.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let open = get("application/openmetrics-text;version=1.0.0").await.unwrap();
    assert_eq!(
        open.headers()["content-type"],
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let text = open.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"# EOF\n"), "{text:?}");
}

#[tokio::test]
async fn what_does_not_exist_makes_no_series() {
    let (_, routes, read_only) = counting();
    let (_, before) = ask(&routes, "GET", "/metrics", "").await;
    for round in 0..300 {
        for routes in [&routes, &read_only] {
            assert_eq!(ask(routes, "GET", &format!("/made-up-{round}"), "").await.0, 404);
            assert_eq!(ask(routes, "GET", &format!("/metrics/{round}"), "").await.0, 404);
            let method = format!("MADE{round}");
            ask(routes, &method, &format!("/pods/{round}"), "").await;
        }
    }
    let (_, after) = ask(&routes, "GET", "/metrics", "").await;
    let lines = |text: &str| text.lines().count();
    // Two servers, and for each `other` and `pods` by GET or by some other method.
    assert!(lines(&after) < lines(&before) + 2 * 2 * 2 * 20, "{after}");
    assert!(!after.contains("made-up") && !after.contains("MADE"), "{after}");
}

/// The endpoints of the table in `docs/parity.md` that are said to work, with what they are called.
fn said_to_work() -> BTreeMap<String, String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parity.md");
    let page = std::fs::read_to_string(path).unwrap();
    let section = page.split("\n## ").find_map(|section| section.strip_prefix("Endpoints\n"));
    let rows = section.unwrap().lines().filter(|line| line.starts_with("| `"));
    let rows = rows.filter_map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, state, subresources, ..] = cells[..] else { panic!("{row}") };
        let plain = |cell: &str| cell.replace('`', "");
        (state == "works").then(|| (plain(name), plain(subresources)))
    });
    rows.collect()
}

#[test]
fn endpoints_are_those_that_the_page_lists() {
    let settings = AccessSettings {
        anonymous: true,
        client_certificates: false,
        tokens: None,
        authorization: Authorization::AlwaysAllow,
    };
    let access = Arc::new(Access::new(settings, "node", None).unwrap());
    let metrics = ["/metrics", "/metrics/probes", "/metrics/slis"]
        .into_iter()
        .fold(MetricsEndpoints::default(), |all, path| all.with(path, Registry::new()));
    let checks = HealthChecks::ping();
    let table = guarded_routes::<Node>(&checks, access, ALL, debug(), &metrics).table;
    // With and without a slash at the end is one endpoint.
    let is_other = |path: &str| path.strip_suffix('/').is_some_and(|it| table.contains_key(it));
    let is: BTreeMap<String, String> = table
        .iter()
        .filter(|(path, _)| !is_other(path))
        .map(|(path, subresources)| (path.clone(), subresources.join(", ")))
        .collect();
    assert_eq!(is, said_to_work());
}
