//! A restart rule of one container starts all containers of the pod again: they are killed and
//! removed, and the pod begins with its first init container in the same sandbox (KEP-5532).
//!
//! The container whose end asked for it, the source, is removed last. As long as it is there, it is
//! the record that the work is not done: a kubelet that starts in the middle goes on with it.

use jiff::Timestamp;
use rubelet_types::{ContainerId, ContainerKind, ContainerSnapshot, PodSnapshot, find_container};

use crate::action::{Action, ActionKey, StopReason};
use crate::decide::{Decision, attempt};
use crate::ends::{end_of, restart_all_sources};
use crate::state::PodState;
use crate::termination::{StopOrder, plan_stop, stop_step};

/// Goes on with restarting all containers. Answers whether that is what the pod is at.
pub(crate) fn restart_all(
    state: &PodState,
    snapshot: &PodSnapshot,
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    let sources: Vec<&ContainerSnapshot> = restart_all_sources(&state.pod, snapshot).collect();
    let Some(first) = sources.first() else { return false };
    let exit_code = end_of(first).map_or(0, |end| end.exit_code);
    decision.because(format!(
        "restart all containers: {} ended with exit code {exit_code} and a rule asks for it",
        first.name
    ));
    let takes_part = |name: &str| {
        find_container(&state.pod, name).is_some_and(|spec| spec.kind != ContainerKind::Ephemeral)
    };
    let is_source = |id: &ContainerId| sources.iter().any(|source| source.id == *id);

    // What is being started belongs to the run that ends.
    let mut others_are_gone = true;
    for (key, in_flight) in &state.in_flight {
        if let ActionKey::Start(name) = key
            && takes_part(name)
        {
            others_are_gone = false;
            if !in_flight.cancelled {
                decision.give_up(key);
            }
        }
    }
    for container in snapshot.containers.iter().filter(|container| takes_part(&container.name)) {
        if is_source(&container.id) {
            continue;
        }
        others_are_gone = false;
        if container.may_run() {
            let order = StopOrder {
                deadline: now,
                reason: StopReason::RestartingAll,
                is_its_turn: true,
                at_once: true,
            };
            stop_step(state, plan_stop(state, container, &order, now), decision);
        } else {
            attempt(state, remove(container), now, decision);
        }
    }
    if others_are_gone {
        for source in sources {
            attempt(state, remove(source), now, decision);
        }
    }
    true
}

fn remove(container: &ContainerSnapshot) -> Action {
    Action::RemoveContainer {
        id: container.id.clone(),
        name: container.name.clone(),
        keep_log: true,
    }
}
