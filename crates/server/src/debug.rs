//! The endpoints for people who look into a node, which `enableDebuggingHandlers` turns on and off,
//! as far as they need more than a [`KubeletState`](crate::KubeletState).

use std::sync::Arc;

use axum::Router;
use http::StatusCode;

use crate::container_logs::{self, ContainerLogs};
use crate::pod_explanations::{self, PodExplanations};

/// The debugging endpoints that a server has.
#[derive(Clone, Debug, Default)]
pub struct DebugRoutes(pub(crate) Router);

impl DebugRoutes {
    /// Where `enableDebuggingHandlers` is false: their paths say so.
    pub fn disabled() -> Self {
        Self(container_logs::disabled_routes())
    }

    /// `/containerLogs/{namespace}/{pod}/{container}`.
    #[must_use]
    pub fn with_container_logs(self, logs: Arc<impl ContainerLogs>) -> Self {
        Self(self.0.merge(container_logs::routes(logs)))
    }

    /// `/debug/pods/{namespace}/{name}`.
    #[must_use]
    pub fn with_pod_explanations(self, pods: Arc<impl PodExplanations>) -> Self {
        Self(self.0.merge(pod_explanations::routes(pods)))
    }
}

pub(crate) async fn debug_endpoints_are_disabled() -> (StatusCode, &'static str) {
    (StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n")
}
