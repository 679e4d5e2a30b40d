use std::error::Error;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::zpages::About;

/// What the kubelet could not tell. It is answered as 500 with this text.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StateError(#[from] Box<dyn Error + Send + Sync>);

impl StateError {
    /// Wraps what went wrong.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Which parts of the API on 10250 are served, as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// `enableDebuggingHandlers`: everything but `/healthz`, `/pods`, statistics and metrics. Those
    /// below count only with it.
    pub debugging: bool,
    /// `enableProfilingHandler`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`.
    pub debug_flags: bool,
    /// `enableSystemLogHandler`.
    pub system_logs: bool,
    /// `enableSystemLogQuery`.
    pub system_log_query: bool,
    /// The feature gate `ContainerCheckpoint`.
    pub checkpoints: bool,
}

/// What the servers need to know of the kubelet.
pub trait KubeletState: Send + Sync + 'static {
    /// All pods the kubelet is to run, static ones included, each with its present status.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// What runs, as the runtime tells: pods with uid, namespace, name and, of each running
    /// container, name and image.
    fn running_pods(&self) -> impl Future<Output = Result<Vec<Pod>, StateError>> + Send;

    /// The body of `/configz`: the configuration in force as a `KubeletConfiguration`, under the
    /// key `kubeletconfig`.
    fn configz(&self) -> Value;

    /// What this process is.
    fn about(&self) -> About;

    /// Sets the log level, as `-v` does.
    fn set_log_verbosity(&self, verbosity: u32);
}
