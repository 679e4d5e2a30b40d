//! The endpoints for people who look into a node, which `enableDebuggingHandlers` turns on and off,
//! as far as they need more than a [`KubeletState`](crate::KubeletState).

use std::sync::Arc;

use axum::Router;

use crate::container_logs::{self, ContainerLogs};
use crate::pod_explanations::{self, PodExplanations};

/// The debugging endpoints that a server has: each with its path.
#[derive(Clone, Debug, Default)]
pub struct DebugRoutes(pub(crate) Vec<(&'static str, Router)>);

impl DebugRoutes {
    /// `/containerLogs/{namespace}/{pod}/{container}`.
    #[must_use]
    pub fn with_container_logs(mut self, logs: Arc<impl ContainerLogs>) -> Self {
        self.0.push((container_logs::PATH, container_logs::routes(logs)));
        self
    }

    /// `/debug/pods/{namespace}/{name}`.
    #[must_use]
    pub fn with_pod_explanations(mut self, pods: Arc<impl PodExplanations>) -> Self {
        self.0.push((pod_explanations::PATH, pod_explanations::routes(pods)));
        self
    }
}
