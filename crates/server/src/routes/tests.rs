use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use crate::access::{AccessSettings, Authorization};
use crate::state::StateError;
use crate::streaming::{ContainerTarget, PodTarget, StreamOptions, StreamingError};

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
    fn idle_timeout(&self) -> Duration {
        Duration::ZERO
    }
}

const ALL: Endpoints = Endpoints { debugging: true, profiling: true, debug_flags: true };

fn routes(endpoints: Endpoints) -> (Arc<Node>, Router) {
    let node = Arc::new(Node::default());
    let settings = AccessSettings {
        anonymous: true,
        client_certificates: false,
        tokens: None,
        authorization: Authorization::AlwaysAllow,
    };
    let access = Arc::new(Access::new(settings, "node", None).unwrap());
    let routes = kubelet_routes(node.clone(), &HealthChecks::ping(), access, endpoints)
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
