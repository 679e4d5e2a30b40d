//! Changes the resources of pods that run.
//!
//! A pod whose source wants other resources than it was granted waits until it is granted those
//! (`pod_admission/resize.rs`); its worker brings them into force (`actuate.rs`); meanwhile conditions
//! and events tell how far it is (`progress.rs`, `message.rs`).

mod actuate;
mod message;
mod metrics;
mod progress;
mod triggers;

pub(crate) use message::{ResizeNews, resize_message};
pub(crate) use metrics::{ResizeMetrics, ResizeMetricsView};
pub(crate) use progress::{PendingReason, ResizeProgress};
pub(crate) use triggers::{ResizeTriggers, Trigger};
