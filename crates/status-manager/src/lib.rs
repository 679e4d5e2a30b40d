//! The statuses of all pods, versioned, and who has to be told.
//!
//! What: [`StatusManager`] holds the last status of every pod. Pod workers set it, everybody reads
//! it. [`StatusChanges`] is the other end: it hands out what has not been told yet, and
//! [`publish_statuses`] tells it to a [`StatusSink`], such as the API server.
//!
//! ```text
//!  worker ──set_status──▶ map uid → status v7 ──┬── status, pods_with_status ──▶ readers
//!         ──finish─────▶  (dirty: uid)          └── StatusChanges ──▶ publish_statuses ──▶ sink
//! ```
//!
//! Guarantees: one status for each pod, never a history. A version grows with every change and only
//! then: what says the same as before wakes nobody. Changes coalesce: however many there are, a slow
//! sink meets the newest status only. A status that contradicts the one before (a phase that leaves
//! its end, a container that comes back against its restart policy) is refused, counted and logged.
//! Of one pod at most one write is under way, and one that hangs delays no other pod.
//!
//! Assumptions: statuses come from `rubelet_pod_status`, so their times are whole seconds. Static
//! pods are known by their own uid; a sink finds the mirror pod itself.
//!
//! [`ApiStatusSink`] is the sink that writes to the API server.
//!
//! Not here: what a status says.

mod api_sink;
mod manager;
mod metrics;
mod publish;

pub use api_sink::{ApiStatusSink, PodStatusApi, StatusObject};
pub use manager::{SetOutcome, StatusChanges, StatusCounters, StatusManager, VersionedStatus};
pub use metrics::StatusMetrics;
pub use publish::{StatusSink, WriteOutcome, publish_statuses};
