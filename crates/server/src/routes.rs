use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use http::{StatusCode, header};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;

use crate::access::{Access, Refusal, User};
use crate::debug::DebugRoutes;
use crate::health::HealthChecks;
use crate::state::KubeletState;

/// Port 10248.
pub(crate) fn healthz_routes(checks: &HealthChecks) -> Router {
    checks.routes().fallback(not_found)
}

/// The read-only port.
pub(crate) fn read_only_routes<S: KubeletState>(state: Arc<S>, checks: &HealthChecks) -> Router {
    Router::new()
        .route("/pods", get(pods::<S>))
        .route("/pods/", get(pods::<S>))
        .merge(checks.routes())
        .fallback(not_found)
        .with_state(state)
}

/// Port 10250. Nobody gets past `access`, not even to learn that a path does not exist.
pub(crate) fn kubelet_routes<S: KubeletState>(
    state: Arc<S>,
    checks: &HealthChecks,
    access: Access,
    debug: DebugRoutes,
) -> Router {
    Router::new()
        .route("/pods", get(pods::<S>))
        .route("/pods/", get(pods::<S>))
        .route("/runningpods", get(running_pods::<S>))
        .route("/runningpods/", get(running_pods::<S>))
        .route("/configz", get(configz::<S>))
        .route("/debug/flags/v", put(log_verbosity::<S>))
        .merge(checks.routes())
        .fallback(not_found)
        .with_state(state)
        .merge(debug.0)
        .layer(from_fn(move |Extension(peer): Extension<Peer>, request: Request, next: Next| {
            admit(access, peer, request, next)
        }))
}

/// Who is at the other end of a connection, as far as its client certificate tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer(pub(crate) Option<Arc<User>>);

async fn admit(access: Access, peer: Peer, request: Request, next: Next) -> Response {
    match access.decide(peer.0.as_deref(), request.method(), request.uri().path()) {
        Ok(_user) => next.run(request).await,
        Err(Refusal::Unauthorized) => (StatusCode::UNAUTHORIZED, "Unauthorized").into_response(),
        Err(Refusal::Forbidden(text)) => (StatusCode::FORBIDDEN, text).into_response(),
    }
}

/// `PUT /debug/flags/v` with the level as body, as for every Kubernetes component.
async fn log_verbosity<S: KubeletState>(State(state): State<Arc<S>>, body: String) -> Response {
    let Ok(verbosity) = body.trim().parse::<u32>() else {
        let text = format!("failed set klog.logging.verbosity {body:?}: not a number\n");
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    if !state.set_log_verbosity(verbosity) {
        return not_found().await.into_response();
    }
    format!("successfully set klog.logging.verbosity to {verbosity}").into_response()
}

async fn not_found() -> (StatusCode, &'static str) {
    (StatusCode::NOT_FOUND, "404 page not found\n")
}

async fn pods<S: KubeletState>(State(state): State<Arc<S>>) -> Response {
    let pods = state.pods();
    pod_list(pods.iter().map(AsRef::as_ref))
}

async fn running_pods<S: KubeletState>(State(state): State<Arc<S>>) -> Response {
    match state.running_pods().await {
        Ok(pods) => pod_list(pods.iter()),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn configz<S: KubeletState>(State(state): State<Arc<S>>) -> Response {
    Json(state.configz()).into_response()
}

/// A pod as it stands in a list: without `kind` and `apiVersion`, which the list has.
#[derive(Serialize)]
struct Item<'a> {
    metadata: &'a ObjectMeta,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<&'a PodSpec>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a PodStatus>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodList<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: serde_json::Map<String, serde_json::Value>,
    items: Vec<Item<'a>>,
}

fn pod_list<'a>(pods: impl Iterator<Item = &'a Pod>) -> Response {
    let items = pods
        .map(|pod| Item {
            metadata: &pod.metadata,
            spec: pod.spec.as_ref(),
            status: pod.status.as_ref(),
        })
        .collect();
    let list = PodList { kind: "PodList", api_version: "v1", metadata: Default::default(), items };
    match serde_json::to_vec(&list) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use axum::body::Body;
    use http_body_util::BodyExt;
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;
    use crate::access::Authorization;
    use crate::state::StateError;

    #[derive(Default)]
    struct Log(AtomicU32);

    impl KubeletState for Log {
        fn pods(&self) -> Vec<Arc<Pod>> {
            Vec::new()
        }
        async fn running_pods(&self) -> Result<Vec<Pod>, StateError> {
            Ok(Vec::new())
        }
        fn configz(&self) -> Value {
            Value::Null
        }
        fn set_log_verbosity(&self, verbosity: u32) -> bool {
            self.0.store(verbosity, Ordering::Relaxed);
            verbosity < 10
        }
    }

    #[tokio::test]
    async fn the_log_level_is_set_by_a_number_in_the_body() {
        let log = Arc::new(Log::default());
        let access = Access { anonymous: true, authorization: Authorization::AlwaysAllow };
        let routes =
            kubelet_routes(log.clone(), &HealthChecks::ping(), access, DebugRoutes::default())
                .layer(Extension(Peer::default()));
        let put = async |body: &'static str| {
            let request = Request::put("/debug/flags/v").body(Body::from(body)).unwrap();
            let response = routes.clone().oneshot(request).await.unwrap();
            let status = response.status();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        let (status, text) = put("4\n").await;
        assert_eq!(
            (status, text.as_str()),
            (StatusCode::OK, "successfully set klog.logging.verbosity to 4")
        );
        assert_eq!(log.0.load(Ordering::Relaxed), 4);
        assert_eq!(put("lots").await.0, StatusCode::BAD_REQUEST);
        assert_eq!(put("10").await.0, StatusCode::NOT_FOUND);
    }
}
