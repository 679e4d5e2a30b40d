use std::sync::Arc;

use axum::extract::{Extension, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use http::{StatusCode, header};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::json;

use crate::access::{Access, Refusal, User};
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
) -> Router {
    Router::new()
        .route("/pods", get(pods::<S>))
        .route("/pods/", get(pods::<S>))
        .route("/runningpods", get(running_pods::<S>))
        .route("/runningpods/", get(running_pods::<S>))
        .route("/configz", get(configz::<S>))
        .merge(checks.routes())
        .fallback(not_found)
        .with_state(state)
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
    Json(json!({ "kubeletconfig": state.configz() })).into_response()
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
