use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::{Extension, Path, Query, Request, State};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get, post, put};
use axum::{Json, Router};
use http::{HeaderMap, StatusCode, Uri, header};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_metrics::Registry;
use serde::Serialize;

use crate::access::{Access, Refusal, Subresources};
use crate::client_certificates::ShownCertificate;
use crate::debug::DebugRoutes;
use crate::health::{HEALTH_PATHS, HealthChecks};
use crate::metrics::{self, MetricsEndpoints, ServerType};
use crate::state::{Endpoints, KubeletState};
use crate::streaming::{self, ContainerAccess, Sessions};
use crate::{node_logs, zpages};

/// Port 10248.
pub(crate) fn healthz_routes(checks: &HealthChecks) -> Router {
    checks.routes().fallback(not_found)
}

/// The read-only port.
pub(crate) fn read_only_routes<S: KubeletState>(
    state: Arc<S>,
    checks: &HealthChecks,
    metrics: &MetricsEndpoints,
) -> Router {
    let routes = Router::new()
        .route("/pods", get(pods::<S>).head(method_not_allowed))
        .route("/pods/", get(pods::<S>).head(method_not_allowed))
        .merge(checks.routes())
        .fallback(not_found);
    let routes = metrics
        .registries
        .iter()
        .fold(routes, |routes, (path, registry)| routes.route(path, exposition(registry.clone())));
    counted(routes.with_state(state), metrics, ServerType::ReadOnly)
}

/// Counts what is asked of `routes`.
fn counted(routes: Router, metrics: &MetricsEndpoints, server: ServerType) -> Router {
    routes.layer(from_fn_with_state((metrics.requests.clone(), server), metrics::count))
}

/// Metrics for whoever reads them, by whichever method: as upstream, scrapers are not taught.
fn exposition<S: Clone + Send + Sync + 'static>(registry: Registry) -> MethodRouter<S> {
    any(async move |headers: HeaderMap| metrics::answer(&registry, &headers))
}

/// What a route is called if it is called nothing special.
const PROXY: Subresources = &["proxy"];

/// Routes, each with what it is called in authorisation. Nobody gets past `access`, not even to
/// learn that a path or a method does not exist.
struct Guarded<S> {
    router: Router<Arc<S>>,
    access: Arc<Access>,
    /// All paths, each with what it is called.
    table: BTreeMap<String, Subresources>,
}

impl<S: Send + Sync + 'static> Guarded<S> {
    fn new(access: Arc<Access>) -> Self {
        let guard =
            from_fn_with_state(Guard { access: access.clone(), subresources: PROXY }, admit);
        let router = Router::new().fallback(not_found.layer(guard));
        Self { router, access, table: BTreeMap::new() }
    }

    /// Adds a route under each of `paths`. HEAD is no kind of GET there, as upstream.
    fn on<const N: usize>(
        self,
        paths: [&str; N],
        subresources: Subresources,
        methods: MethodRouter<Arc<S>>,
    ) -> Self {
        let methods = methods.head(method_not_allowed).fallback(method_not_allowed);
        self.on_any(paths, subresources, methods)
    }

    /// Adds a route that has an answer to all methods.
    fn on_any<const N: usize>(
        mut self,
        paths: [&str; N],
        subresources: Subresources,
        methods: MethodRouter<Arc<S>>,
    ) -> Self {
        let guard = Guard { access: self.access.clone(), subresources };
        let methods = methods.layer(from_fn_with_state(guard, admit));
        for path in paths {
            self.table.insert(path.to_owned(), subresources);
            self.router = self.router.route(path, methods.clone());
        }
        self
    }

    /// Adds the routes of a module of its own, which are at `paths`.
    fn merge(mut self, paths: &[&str], subresources: Subresources, routes: Router<Arc<S>>) -> Self {
        let guard = from_fn_with_state(Guard { access: self.access.clone(), subresources }, admit);
        self.table.extend(paths.iter().map(|path| ((*path).to_owned(), subresources)));
        self.router = self.router.merge(routes.layer(guard));
        self
    }

    /// Adds everything beneath `path`, which ends with a slash, with one answer to all.
    fn beneath(self, path: &str, answer: &'static str) -> Self {
        let all = format!("{path}{{*rest}}");
        let answer = format!("{answer}\n");
        let methods = any(async move || (StatusCode::METHOD_NOT_ALLOWED, answer));
        self.on_any([path, &all], subresources_of_logs_or_others(path), methods)
    }
}

/// Also what is disabled is called by its name.
fn subresources_of_logs_or_others(path: &str) -> Subresources {
    match path {
        "/logs/" => &["log"],
        "/runningpods/" => &["pods", "proxy"],
        _ => PROXY,
    }
}

/// Port 10250.
pub(crate) fn kubelet_routes<S: KubeletState + ContainerAccess>(
    state: Arc<S>,
    checks: &HealthChecks,
    access: Arc<Access>,
    endpoints: Endpoints,
    debug: DebugRoutes,
    metrics: &MetricsEndpoints,
) -> Router {
    let routes = guarded_routes(checks, access, endpoints, debug, metrics);
    counted(routes.router.with_state(state), metrics, ServerType::ReadWrite)
}

fn guarded_routes<S: KubeletState + ContainerAccess>(
    checks: &HealthChecks,
    access: Arc<Access>,
    endpoints: Endpoints,
    debug: DebugRoutes,
    metrics: &MetricsEndpoints,
) -> Guarded<S> {
    let routes = Guarded::new(access)
        .on(["/pods", "/pods/"], &["pods", "proxy"], get(pods::<S>))
        .merge(&HEALTH_PATHS, &["healthz", "proxy"], checks.routes());
    let routes = metrics.registries.iter().fold(routes, |routes, (path, registry)| {
        routes.on_any([path], &["metrics"], exposition(registry.clone()))
    });
    if endpoints.debugging {
        debugging_routes(routes, endpoints, debug, metrics)
    } else {
        DEBUGGING
            .iter()
            .fold(routes, |routes, path| routes.beneath(path, "Debug endpoints are disabled."))
    }
}

/// Where `enableDebuggingHandlers: false` is told in so many words.
const DEBUGGING: [&str; 8] = [
    "/run/",
    "/exec/",
    "/attach/",
    "/portForward/",
    "/containerLogs/",
    "/runningpods/",
    "/debug/pprof/",
    "/logs/",
];

/// What `enableDebuggingHandlers` enables.
fn debugging_routes<S: KubeletState + ContainerAccess>(
    routes: Guarded<S>,
    endpoints: Endpoints,
    debug: DebugRoutes,
    metrics: &MetricsEndpoints,
) -> Guarded<S> {
    let container = |call: &str| {
        ["{pod}/{container}", "{pod}/{uid}/{container}"]
            .map(|rest| format!("/{call}/{{namespace}}/{rest}"))
    };
    let [exec, exec_uid] = container("exec");
    let [attach, attach_uid] = container("attach");
    let [run, run_uid] = container("run");
    let forward = ["/portForward/{namespace}/{pod}", "/portForward/{namespace}/{pod}/{uid}"];
    let sessions = Extension(Sessions::new(metrics.requests.clone()));
    let streaming = |methods: MethodRouter<Arc<S>>| methods.layer(sessions.clone());
    let exec_methods = streaming(get(streaming::exec::<S>).post(streaming::exec::<S>));
    let attach_methods = streaming(get(streaming::attach::<S>).post(streaming::attach::<S>));
    let forward_methods =
        streaming(get(streaming::port_forward::<S>).post(streaming::port_forward::<S>));
    let routes = debug.0.into_iter().fold(routes, |routes, (path, of_debug)| {
        routes.merge(&[path], PROXY, of_debug.with_state(()))
    });
    let routes = if endpoints.profiling {
        routes
    } else {
        routes.beneath("/debug/pprof/", "profiling endpoint is disabled.")
    };
    let routes = routes
        .on([&exec, &exec_uid], PROXY, exec_methods)
        .on([&attach, &attach_uid], PROXY, attach_methods)
        .on(forward, PROXY, forward_methods)
        .on([&run, &run_uid], PROXY, post(streaming::run::<S>))
        .on_any(["/configz"], &["configz", "proxy"], any(configz::<S>))
        .on(["/runningpods", "/runningpods/"], &["pods", "proxy"], get(running_pods::<S>));
    let routes = if endpoints.system_logs {
        let may_query = endpoints.system_log_query;
        let methods = get(async move |path, uri| node_log(path, uri, may_query).await);
        routes.on(["/logs", "/logs/", "/logs/{*path}"], &["log"], methods)
    } else {
        routes.beneath("/logs/", "logs endpoint is disabled.")
    };
    let routes = if endpoints.checkpoints {
        let path = "/checkpoint/{namespace}/{pod}/{container}";
        routes.on([path], &["checkpoint"], post(streaming::checkpoint::<S>))
    } else {
        routes
    };
    let routes = if endpoints.debug_flags {
        routes.on(["/debug/flags/v"], PROXY, put(log_verbosity::<S>))
    } else {
        let disabled = (StatusCode::METHOD_NOT_ALLOWED, "flags endpoint is disabled.\n");
        routes.on_any(["/debug/flags/v"], PROXY, any(async move || disabled))
    };
    let routes = routes.on_any(["/flagz"], &["configz"], any(flagz::<S>));
    // The last, so that it knows of all others.
    let first = |path: &String| format!("/{}", path.split('/').nth(1).unwrap_or_default());
    let paths: BTreeSet<String> = routes.table.keys().map(first).collect();
    let paths: Arc<[String]> = paths.into_iter().collect();
    let statusz = any(async move |State(state): State<Arc<S>>, headers: HeaderMap| {
        zpages::statusz(&state.about(), &paths, &headers)
    });
    routes.on_any(["/statusz"], &["statusz"], statusz)
}

async fn flagz<S: KubeletState>(State(state): State<Arc<S>>, headers: HeaderMap) -> Response {
    zpages::flagz(&state.about(), &headers)
}

/// A file or directory of the node's logs; `/logs` alone lacks the slash that links count from.
async fn node_log(path: Option<Path<String>>, uri: Uri, may_query: bool) -> Response {
    if uri.path() == "/logs" && uri.query().is_none() {
        return (StatusCode::MOVED_PERMANENTLY, [(header::LOCATION, "/logs/")]).into_response();
    }
    let path = path.map(|Path(path)| path).unwrap_or_default();
    if may_query {
        let query: Vec<(String, String)> =
            Query::try_from_uri(&uri).map(|Query(pairs)| pairs).unwrap_or_default();
        return node_logs::serve_query(node_logs::NODE_LOGS, path, &query).await;
    }
    node_logs::serve(node_logs::NODE_LOGS, path).await
}

/// Who is at the other end of a connection, as far as its client certificate tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer(pub(crate) Option<ShownCertificate>);

/// What stands before a route.
#[derive(Clone, Debug)]
struct Guard {
    access: Arc<Access>,
    subresources: Subresources,
}

/// Lets those through who may.
async fn admit(
    State(guard): State<Guard>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let method = request.method().clone();
    let certificate = peer.0.as_ref().and_then(ShownCertificate::user);
    let headers = request.headers_mut();
    match guard.access.decide(certificate, &method, guard.subresources, headers).await {
        Ok(_user) => next.run(request).await,
        Err(Refusal::Unauthorized) => (StatusCode::UNAUTHORIZED, "Unauthorized").into_response(),
        Err(Refusal::Forbidden(text)) => (StatusCode::FORBIDDEN, text).into_response(),
        Err(Refusal::Unknown(text)) => (StatusCode::INTERNAL_SERVER_ERROR, text).into_response(),
    }
}

/// `PUT /debug/flags/v` with the level as body, as for every Kubernetes component.
async fn log_verbosity<S: KubeletState>(State(state): State<Arc<S>>, body: String) -> Response {
    let Ok(verbosity) = body.trim().parse::<u32>() else {
        let text = format!("failed set klog.logging.verbosity {body:?}: not a number\n");
        return (StatusCode::BAD_REQUEST, text).into_response();
    };
    state.set_log_verbosity(verbosity);
    format!("successfully set klog.logging.verbosity to {verbosity}").into_response()
}

/// The answer to a method that a route does not have.
pub(crate) async fn method_not_allowed() -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed")
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
mod tests;
