//! `GET /debug/pods/{namespace}/{name}`: why is my pod not running? An endpoint of our own, for whoever
//! may use upstream's debugging endpoints.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode, header};
use serde_json::Value;

use crate::routes::method_not_allowed;

/// All that is known of a pod, for programs and for people.
#[derive(Clone, Debug, PartialEq)]
pub struct PodExplanation {
    /// The JSON document.
    pub document: Value,
    /// The same for a terminal.
    pub text: String,
}

/// Who can explain pods.
pub trait PodExplanations: Send + Sync + 'static {
    /// Explains the pod of that name; none if nobody knows such a pod.
    fn explain(&self, namespace: String, name: String) -> BoxFuture<'_, Option<PodExplanation>>;
}

/// Where one asks.
pub(crate) const PATH: &str = "/debug/pods/{namespace}/{name}";

pub(crate) fn routes(pods: Arc<dyn PodExplanations>) -> Router {
    Router::new().route(PATH, get(serve).head(method_not_allowed)).with_state(pods)
}

/// `?format=text` and `?format=json` decide, else whether a text is what `Accept` asks for first.
fn wants_text(query: &[(String, String)], headers: &HeaderMap) -> Result<bool, String> {
    let format = query.iter().find(|(key, _)| key == "format").map(|(_, value)| value.as_str());
    match format {
        Some("text") => Ok(true),
        Some("json") => Ok(false),
        Some(other) => Err(format!("unknown format {other:?}: it is \"json\" or \"text\"\n")),
        None => {
            let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
            Ok(accept.is_some_and(|accept| accept.trim_start().starts_with("text/")))
        }
    }
}

async fn serve(
    State(pods): State<Arc<dyn PodExplanations>>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Response {
    let wants_text = match wants_text(&query, &headers) {
        Ok(wants_text) => wants_text,
        Err(text) => return (StatusCode::BAD_REQUEST, text).into_response(),
    };
    let not_found = format!("pod {namespace}/{name} is not known to this kubelet\n");
    match pods.explain(namespace, name).await {
        None => (StatusCode::NOT_FOUND, not_found).into_response(),
        Some(explanation) if wants_text => explanation.text.into_response(),
        Some(explanation) => Json(explanation.document).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::extract::Request;
    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use serde_json::json;
    use tower::ServiceExt;

    use super::*;

    struct Pods;

    impl PodExplanations for Pods {
        fn explain(&self, _: String, name: String) -> BoxFuture<'_, Option<PodExplanation>> {
            let explanation =
                PodExplanation { document: json!({ "why": [] }), text: "Why:\n".to_owned() };
            async move { (name == "web").then_some(explanation) }.boxed()
        }
    }

    #[tokio::test]
    async fn programs_get_json_and_people_text() {
        for (path, accept, status, body) in [
            ("/debug/pods/ns/web", None, 200, "{\"why\":[]}"),
            ("/debug/pods/ns/web", Some("application/json, */*"), 200, "{\"why\":[]}"),
            ("/debug/pods/ns/web", Some("text/plain"), 200, "Why:\n"),
            ("/debug/pods/ns/web?format=json", Some("text/plain"), 200, "{\"why\":[]}"),
            ("/debug/pods/ns/web?format=text", None, 200, "Why:\n"),
            (
                "/debug/pods/ns/web?format=xml",
                None,
                400,
                "unknown format \"xml\": it is \"json\" or \"text\"\n",
            ),
            ("/debug/pods/ns/gone", None, 404, "pod ns/gone is not known to this kubelet\n"),
        ] {
            let request = Request::builder().uri(path);
            let request = match accept {
                Some(accept) => request.header(header::ACCEPT, accept),
                None => request,
            };
            let request = request.body(Body::empty()).unwrap();
            let response = routes(Arc::new(Pods)).oneshot(request).await.unwrap();
            assert_eq!(response.status().as_u16(), status, "{path}");
            let answer = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(answer, body, "{path} {accept:?}");
        }
    }
}
