//! Brings the resources of a running pod to what it was granted.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rubelet_types::PodSnapshot;

use crate::action::{Action, ActionKey, StopReason};
use crate::containers::ContainerKill;
use crate::decide::{Decision, attempt};
use crate::state::PodState;

/// What differs between the resources in force and those that the pod was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeDue {
    /// Containers whose resources can be changed while they run.
    pub in_place: BTreeSet<String>,
    /// Containers that have to be started again for it.
    pub by_restart: BTreeSet<String>,
    /// The pod's cgroup has not got its new values yet.
    pub pod_cgroup: bool,
}

/// Plans the resize that is due. Answers whether starts have to wait for it: what is started again to
/// be given more needs a pod that has more.
///
/// Containers that have to be started again are stopped before: only then may the pod get less.
pub(crate) fn resize_pod(
    state: &PodState,
    due: Option<&ResizeDue>,
    snapshot: &PodSnapshot,
    kills: &[ContainerKill<'_>],
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    if state.in_flight.contains_key(&ActionKey::Resize) {
        decision.because("its resources are being changed");
        return true;
    }
    let Some(due) = due else { return false };
    if kills.iter().any(|kill| kill.reason == StopReason::Resized) {
        decision.because("its resources are changed as soon as these containers have ended");
        return false;
    }
    let mut running = snapshot.containers.iter().filter(|container| container.is_running());
    if !due.pod_cgroup && !running.any(|container| due.in_place.contains(&container.name)) {
        return false;
    }
    decision.because("give it the resources that it was granted");
    attempt(state, Action::ResizePod, now, decision)
}
