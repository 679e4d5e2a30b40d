//! The end of a pod whose worker has stopped everything: what never got a final state gets one.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_types::ContainerKind;

use crate::compute::compute_pod_status;
use crate::containers::{Reported, Seen, was_initialized};
use crate::input::{Gates, NodeFacts, Stage, StatusInput};
use crate::phase::{Phase, init_succeeded};

/// The last status of a pod: `previous` with a final state for every container that was started, and
/// a terminal phase unless the pod is static, and may come back. A status that is final already stays as it is.
pub fn finished_status(pod: &Pod, previous: &PodStatus, gates: Gates, now: Timestamp) -> PodStatus {
    // Without addresses and without a snapshot, everything else is carried over.
    let node = NodeFacts::default();
    compute_pod_status(&StatusInput {
        stage: Stage::Terminated,
        is_leaving: true,
        gates,
        ..StatusInput::new(pod, previous, &node, now)
    })
}

/// Marks containers without a final state as lost, so that a pod is never taken for a success
/// because evidence is missing. Containers that the pod never came to stay waiting: regular ones if
/// it was not initialised, and init containers after the last that was started. The first init
/// container is always marked.
pub(crate) fn mark_lost_containers(input: &StatusInput<'_>, containers: &mut [Reported<'_>]) {
    let initialized = was_initialized(input.previous) || looks_initialized(containers);
    let is_init = |kind| matches!(kind, ContainerKind::Init | ContainerKind::Sidecar);
    let begun = containers
        .iter()
        .rposition(|container| is_init(container.spec.kind) && container.was_started())
        .unwrap_or(0);
    for (index, container) in containers.iter_mut().enumerate() {
        let due = match container.spec.kind {
            // Init containers come first in the list.
            ContainerKind::Init | ContainerKind::Sidecar => index <= begun,
            ContainerKind::Regular => initialized,
            ContainerKind::Ephemeral => matches!(container.seen(), Seen::Running),
        };
        if due && !matches!(container.seen(), Seen::Terminated(_)) {
            container.mark_lost();
        }
    }
}

fn looks_initialized(containers: &[Reported<'_>]) -> bool {
    let regular_began = containers
        .iter()
        .any(|container| container.spec.kind == ContainerKind::Regular && container.was_started());
    let last_init = containers.iter().rfind(|container| {
        matches!(container.spec.kind, ContainerKind::Init | ContainerKind::Sidecar)
    });
    regular_began
        || last_init.is_none_or(|last| match (last.spec.kind, last.seen()) {
            (ContainerKind::Sidecar, Seen::Running) => last.status.started == Some(true),
            (ContainerKind::Init, Seen::Terminated(end)) => init_succeeded(end),
            (ContainerKind::Init, _) => last.last_end().is_some_and(init_succeeded),
            _ => false,
        })
}

/// A pod that ended in no terminal phase failed.
pub(crate) fn final_phase(input: &StatusInput<'_>, computed: Phase) -> Phase {
    if computed.is_terminal() || input.may_come_back() { computed } else { Phase::Failed }
}
