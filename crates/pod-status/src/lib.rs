//! What to report for one pod: phase, conditions, container statuses, and the patch that carries
//! them to the API.
//!
//! What: [`compute_pod_status`] turns the pod, what was reported before and what the runtime holds
//! into a complete `PodStatus`. [`check_transition`] says which reports must not follow each other.
//! [`merge_for_patch`] and [`diff_status`] say what the API server has to be told.
//!
//! Guarantees: total, no I/O, no clock: the same inputs give the same status (I6). A phase never
//! leaves Succeeded or Failed, and becomes neither while a container may run (I7). A condition's
//! `lastTransitionTime` changes only with its `status`. Times are whole seconds and lists are in
//! their published order, so a status that is computed again from unchanged facts is equal to the
//! one before, and nothing is written at rest.
//!
//! Assumptions: the previous status is the one this kubelet published last, or, after a start, the
//! pod's own status from the API. Both lists of a snapshot are sorted newest first.
//!
//! Not here: who computes when, and how a status is stored and sent.

mod canonical;
mod compute;
mod conditions;
mod containers;
mod details;
mod earlier;
mod finish;
mod input;
mod patch;
mod phase;
mod pod_ips;
mod rejected;
mod resources;
mod transition;
mod volume_mounts;

pub use canonical::statuses_equal;
pub use compute::compute_pod_status;
pub use details::differ_in_details;
pub use earlier::decide_earlier_status;
pub use finish::finished_status;
pub use input::{
    ContainerProbes, Gates, NodeFacts, ProbeLookup, Stage, StartFailure, StatusInput,
    StatusOverride, TerminalPhase,
};
pub use patch::{diff_status, merge_for_patch, status_patch};
pub use pod_ips::sort_pod_ips;
pub use rejected::rejected_status;
pub use transition::{IllegalTransition, check_transition};
