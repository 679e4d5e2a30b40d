//! The brain of a pod worker: what to do next for one pod.
//!
//! What: [`PodState`] is all that is remembered of a pod, [`PodState::apply`] takes in what
//! happened, and [`decide()`] answers with the actions that are due, the ones to cancel, the moment
//! to look again, and why.
//!
//! Guarantees: no I/O, no clock, no tasks; the same inputs give the same decision (I6). A stage
//! never goes back (I1). Nothing is created or started once a pod is terminating (I2).
//! "Terminated" is only reached on a snapshot newer than the last action that shows no container
//! that may run (I3). A grace period only shrinks (I4). If every action succeeds, repeated
//! decisions come to rest (I5). A pod that is done here has a terminal phase in its status and the
//! other way round (I7). A state that is made anew from the pod and the runtime goes on to the same
//! end (I10).
//!
//! ```text
//!             admitted            stop requested, deadline,          nothing can run,
//!                                 all containers done                sandboxes stopped
//!  Waiting ───────────▶ Syncing ───────────────────▶ Terminating ──────────────▶ Terminated
//!     │                                                   ▲                          │
//!     └──────────── stop requested ───────────────────────┘                          │ volumes, cgroup,
//!                                                                                    │ directories released
//!                                                                                    ▼
//!                                                                                 Finished
//! ```
//!
//! `docs/pod-lifecycle.md` tells what is decided and why.
//!
//! Assumptions: the caller feeds back every action exactly once through
//! [`PodEvent::ActionStarted`] and [`PodEvent::ActionEnded`], and hands over snapshots with an
//! honest `taken_at`.
//!
//! Not here: how an action is carried out, and what is reported about the pod.

mod action;
mod back_off;
mod clock_set;
mod containers;
mod decide;
mod ends;
mod init_containers;
mod resize;
mod restart_all;
mod run_memory;
mod sandbox;
mod stage;
mod state;
mod syncing;
mod termination;
#[cfg(test)]
mod tests;

pub use action::{
    Action, ActionFailure, ActionKey, ActionOutcome, ContainerStart, ContainerStop, StopReason,
};
pub use back_off::{BackOff, BackOffSettings};
pub use containers::ContainerWaiting;
pub use decide::{Decision, NetworkState, Observed, ProbeLookup, decide};
pub use ends::is_pod_done;
pub use resize::ResizeDue;
pub use stage::{Disruption, Stage, StopCause};
pub use state::{PodEvent, PodState};
