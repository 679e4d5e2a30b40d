use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::connections::BoundListener;
use crate::debug::DebugRoutes;
use crate::health::HealthChecks;
use crate::metrics::MetricsEndpoints;
use crate::routes::{healthz_routes, kubelet_routes, read_only_routes};
use crate::state::{Endpoints, KubeletState};
use crate::streaming::ContainerAccess;
use crate::tls::ServingTls;

/// `healthzBindAddress:healthzPort`: plain HTTP, `/healthz` and its checks, nothing else.
#[derive(Clone, Debug)]
pub struct HealthzServer {
    checks: HealthChecks,
}

impl HealthzServer {
    /// A server of `checks`; the Go kubelet serves [`HealthChecks::ping`] here.
    pub fn new(checks: HealthChecks) -> Self {
        Self { checks }
    }

    /// Serves until `stop`.
    pub async fn run(self, listener: BoundListener, stop: CancellationToken) {
        listener.serve(healthz_routes(&self.checks), None, &stop).await;
    }
}

/// `readOnlyPort`: plain HTTP, without asking who: `/pods`, `/healthz` and metrics.
pub struct ReadOnlyServer<S> {
    state: Arc<S>,
    checks: HealthChecks,
    metrics: MetricsEndpoints,
}

impl<S: KubeletState> ReadOnlyServer<S> {
    /// A server of what `state` knows.
    pub fn new(state: Arc<S>, checks: HealthChecks) -> Self {
        Self { state, checks, metrics: MetricsEndpoints::default() }
    }

    /// The same with metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: MetricsEndpoints) -> Self {
        Self { metrics, ..self }
    }

    /// Serves until `stop`.
    pub async fn run(self, listener: BoundListener, stop: CancellationToken) {
        let routes = read_only_routes(self.state, &self.checks, &self.metrics);
        listener.serve(routes, None, &stop).await;
    }
}

impl<S> fmt::Debug for ReadOnlyServer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOnlyServer").field("checks", &self.checks).finish_non_exhaustive()
    }
}

/// `address:port`: TLS, HTTP/1.1 and HTTP/2; the whole API.
pub struct KubeletServer<S> {
    state: Arc<S>,
    checks: HealthChecks,
    access: Arc<Access>,
    endpoints: Endpoints,
    tls: ServingTls,
    debug: DebugRoutes,
    metrics: MetricsEndpoints,
}

impl<S: KubeletState + ContainerAccess> KubeletServer<S> {
    /// A server of what `state` knows, for those whom `access` lets in.
    pub fn new(
        state: Arc<S>,
        checks: HealthChecks,
        access: Access,
        endpoints: Endpoints,
        tls: ServingTls,
    ) -> Self {
        Self {
            state,
            checks,
            access: Arc::new(access),
            endpoints,
            tls,
            debug: DebugRoutes::default(),
            metrics: MetricsEndpoints::default(),
        }
    }

    /// The same with endpoints that know more than a [`KubeletState`].
    #[must_use]
    pub fn with_debug_routes(self, debug: DebugRoutes) -> Self {
        Self { debug, ..self }
    }

    /// The same with metrics.
    #[must_use]
    pub fn with_metrics(self, metrics: MetricsEndpoints) -> Self {
        Self { metrics, ..self }
    }

    /// Serves until `stop`. Certificates that are replaced on disk are taken into use within a
    /// minute.
    pub async fn run(self, listener: BoundListener, stop: CancellationToken) {
        let routes = kubelet_routes(
            self.state,
            &self.checks,
            self.access,
            self.endpoints,
            self.debug,
            &self.metrics,
        );
        let tls = Arc::new(self.tls);
        tokio::join!(
            listener.serve(routes, Some(tls.clone()), &stop),
            stop.run_until_cancelled(ServingTls::follow_files(tls)),
        );
    }
}

impl<S> fmt::Debug for KubeletServer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubeletServer")
            .field("checks", &self.checks)
            .field("access", &self.access)
            .field("endpoints", &self.endpoints)
            .finish_non_exhaustive()
    }
}
