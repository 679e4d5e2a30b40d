//! Opens the ports and puts the servers behind them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use rubelet_apiserver::ApiServer;
use rubelet_config::{Effective, Gate};
use rubelet_server::{
    Access, BoundListener, DebugRoutes, Endpoints, HealthChecks, HealthzServer, KubeletServer,
    MetricsEndpoints, ReadOnlyServer, ServingTls,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{ApiServerReviews, access_settings};
use crate::credentials::SignedServing;
use crate::node::Node;
use crate::server_state::ServerState;
use crate::settings;

fn socket(address: &str, port: i32) -> anyhow::Result<SocketAddr> {
    let ip: IpAddr = address.parse().with_context(|| format!("{address:?} is no IP address"))?;
    let port = u16::try_from(port).with_context(|| format!("{port} is no port"))?;
    Ok(SocketAddr::new(ip, port))
}

/// Opens the health port.
pub(crate) async fn serve_healthz(
    effective: &Effective,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    checks: HealthChecks,
) -> anyhow::Result<()> {
    let config = &effective.config;
    if config.healthz_port <= 0 {
        return Ok(());
    }
    let address = socket(&config.healthz_bind_address, config.healthz_port)?;
    let listener = BoundListener::bind(address).await.context("starting the healthz server")?;
    tasks.spawn(HealthzServer::new(checks).run(listener, stop.clone()));
    Ok(())
}

/// Who may use the API.
pub(crate) fn access(
    effective: &Effective,
    node: &Node,
    api: Option<ApiServer>,
) -> anyhow::Result<Access> {
    let reviews = api.map(|api| Arc::new(ApiServerReviews(api)) as _);
    Ok(Access::new(access_settings(effective), &node.name, reviews)?)
}

/// Which parts of the API are served.
pub(crate) fn endpoints(effective: &Effective) -> Endpoints {
    let config = &effective.config;
    Endpoints {
        debugging: config.enable_debugging_handlers,
        profiling: config.enable_profiling_handler,
        debug_flags: config.enable_debug_flags_handler,
        system_logs: config.enable_system_log_handler,
        system_log_query: config.enable_system_log_query,
        checkpoints: effective.gates.enabled(Gate::ContainerCheckpoint),
    }
}

/// What stands behind the API's ports.
pub(crate) struct ApiParts {
    /// What they tell of.
    pub(crate) state: Arc<ServerState>,
    /// Whether the kubelet is well.
    pub(crate) checks: HealthChecks,
    /// Who may ask.
    pub(crate) access: Access,
    /// The certificate to show, if the cluster signs it.
    pub(crate) signed: Option<SignedServing>,
    /// What is counted.
    pub(crate) metrics: MetricsEndpoints,
}

/// Opens the API's ports.
pub(crate) async fn serve_api(
    effective: &Effective,
    node: &Node,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    parts: ApiParts,
) -> anyhow::Result<()> {
    let config = &effective.config;
    let ApiParts { state, checks, access, signed, metrics } = parts;
    if config.enable_server {
        let listener = BoundListener::bind(socket(&config.address, config.port)?)
            .await
            .context("starting the server")?;
        let options = settings::tls(effective, node, signed.as_ref().map(SignedServing::places));
        let now = state.clock.now();
        let tls = tokio::task::spawn_blocking(move || ServingTls::load(options, now)).await??;
        if let Some(signed) = signed {
            tasks.spawn(signed.keep(tls.reload_handle(), stop.clone()));
        }
        let logs = state.view.container_logs(effective, stop);
        let debug = DebugRoutes::default()
            .with_container_logs(Arc::new(logs))
            .with_pod_explanations(Arc::new(state.view.pod_explainer()));
        let server =
            KubeletServer::new(state.clone(), checks.clone(), access, endpoints(effective), tls)
                .with_debug_routes(debug)
                .with_metrics(metrics.clone());
        tasks.spawn(server.run(listener, stop.clone()));
    }
    if config.read_only_port > 0 {
        let listener = BoundListener::bind(socket(&config.address, config.read_only_port)?)
            .await
            .context("starting the read-only server")?;
        let server = ReadOnlyServer::new(state, checks).with_metrics(metrics);
        tasks.spawn(server.run(listener, stop.clone()));
    }
    Ok(())
}
