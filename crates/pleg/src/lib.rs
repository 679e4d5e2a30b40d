//! Pod lifecycle event generator: what the runtime holds, and what changed in it.
//!
//! What: [`Pleg`] lists everything in the runtime periodically (the truth) and listens to the
//! runtime's container events (hints that make it fast). A pod with a difference is inspected, and
//! the fresh snapshot is sent as a [`PodLifecycleEvent`].
//!
//! Guarantees: a change is found by the next relist at the latest, events or not; without events,
//! or when their stream breaks, relisting goes on at the short period. Inspections run beside each
//! other: one that hangs delays only its own pod. A failed inspection is repeated at the next
//! relist. What vanishes before any list held it is found too, if its maker has told of it
//! ([`Unlisted`]). Nothing waits for an event that may not come (unlike upstream's Evented PLEG,
//! which was taken back for that).
//!
//! Not here: what a change means for a pod.

mod diff;
mod handle;
mod metrics;
mod task;
mod unlisted;

pub use diff::{ContainerChange, diff_pods};
pub use handle::{PlegHandle, PlegHealth};
pub use metrics::PlegMetrics;
pub use task::{Pleg, PlegSettings, PodInspector, PodLifecycleEvent};
pub use unlisted::Unlisted;
