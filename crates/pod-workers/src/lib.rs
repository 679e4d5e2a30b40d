//! One task per pod uid: asks the brain what to do and has it done.
//!
//! What: [`PodWorkers`] keeps a worker for every pod that a source lists or that the runtime still
//! holds. A worker owns its [`rubelet_pod_lifecycle::PodState`]; everybody else sends it events
//! through a mailbox that keeps only the newest of each kind, so it never grows. Each action runs
//! as a child task of its own with a cancellation token, and its outcome comes back as an event:
//! the worker itself never waits for a pull, a hook or a slow stop.
//!
//! Guarantees: work for one uid is decided in one place, in order. At most one static pod of a
//! full name is past `Waiting` and not finished (I9). An idle pod costs no timer.
//!
//! Assumptions: the caller looked at the runtime once before it adds the first pod, so that what
//! an earlier kubelet left is known.
//!
//! Not here: how actions are carried out, statuses, probes: the [`PodPort`] does that.

mod mailbox;
mod metrics;
mod port;
mod registry;
mod worker;

pub use metrics::WorkerMetrics;
pub use port::{ActionOrder, PodPort, PodReport};
pub use registry::{
    Beginning, PodWorkers, RecordedDecision, RunningAction, WorkerActivity, WorkerSummary,
};
