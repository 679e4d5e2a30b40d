//! The HTTP servers of the kubelet: the API on 10250, its read-only part on 10255, and the health
//! check on 10248.
//!
//! What: listeners with limits, TLS, who may ask for what, and the JSON of each answer.
//!
//! Not here: where the answers come from. They are asked of a [`KubeletState`] and a
//! [`ContainerAccess`] at the moment of the request. Only what the API server says of tokens and
//! rights ([`AccessReviews`]) is kept in mind, as long as configured.
//!
//! # Invariants
//!
//! - Port 10248 and the read-only port answer 404 to everything but their few routes.
//! - Nothing is counted or remembered by a URL that does not exist, so that no stranger can make memory grow.
//! - Connections, the time for a TLS handshake, the time for a request's head and its size are
//!   bounded.

mod access;
mod client_certificates;
mod connections;
mod container_logs;
mod debug;
mod health;
mod metrics;
mod node_logs;
mod pod_explanations;
mod routes;
mod self_signed;
mod servers;
mod state;
mod streaming;
mod tls;
mod zpages;

pub use access::{
    Access, AccessError, AccessMetrics, AccessQuestion, AccessReviews, AccessSettings,
    Authorization, ReviewError, User,
};
pub use connections::{BindError, BoundListener};
pub use container_logs::{
    ContainerLogs, ContainerLogsError, LogBytes, LogStream, LogTarget, LogsSince, PodLogOptions,
};
pub use debug::DebugRoutes;
pub use health::{HealthChecks, HealthMetrics};
pub use metrics::{MetricsEndpoints, ServerMetrics};
pub use pod_explanations::{PodExplanation, PodExplanations};
pub use self_signed::{CERTIFICATE_FILE, KEY_FILE};
pub use servers::{HealthzServer, KubeletServer, ReadOnlyServer};
pub use state::{Endpoints, KubeletState, StateError};
pub use streaming::{ContainerAccess, ContainerTarget, PodTarget, StreamOptions, StreamingError};
pub use tls::{MinTlsVersion, ServingTls, TlsError, TlsFiles, TlsOptions, TlsReload};
pub use zpages::About;
