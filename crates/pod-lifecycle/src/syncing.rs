//! Keeps a pod as its spec wants it.

use jiff::Timestamp;
use rubelet_types::{
    ContainerKind, ContainerSnapshot, ContainerState, PodSnapshot, SandboxId, SandboxState,
    find_container, is_host_network, termination_grace_seconds,
};

use crate::action::{Action, ActionKey, StopReason};
use crate::back_off::later;
use crate::containers::{ContainerKill, Planning, plan_containers};
use crate::decide::{Decision, NetworkState, Observed, attempt, fresh};
use crate::ends::why_pod_is_done;
use crate::resize::resize_pod;
use crate::restart_all::restart_all;
use crate::sandbox::{SandboxDecision, decide_sandbox, has_certain_volumes};
use crate::stage::StopCause;
use crate::state::{Failure, PodState, Preparation, hash_of, seconds};
use crate::termination::{
    StopOrder, StopRequest, enter_terminating, plan_stop, stop_everything, stop_step,
};

/// Network is looked at again after this.
const NETWORK_RETRY_SECONDS: i64 = 1;

pub(crate) fn decide_syncing(
    state: &PodState,
    observed: &Observed<'_>,
    now: Timestamp,
    decision: &mut Decision,
) {
    if let Some(deadline) = active_deadline(state) {
        if now >= deadline {
            decision.because("its active deadline passed");
            return enter_terminating(state, StopCause::DeadlineExceeded, now, decision);
        }
        decision.wake(deadline);
    }
    cancel_outdated_starts(state, decision);
    let Some(snapshot) = fresh(state, decision) else { return };
    if let Some(why) = why_pod_is_done(&state.pod, |name| state.known_end(snapshot, name)) {
        decision.because(why);
        return enter_terminating(state, StopCause::Completed, now, decision);
    }
    if restart_all(state, snapshot, now, decision) {
        return;
    }
    let is_prepared = prepare(
        state,
        (&state.preparation, Action::PreparePod, "make directories and cgroup"),
        now,
        decision,
    );
    let has_volumes =
        prepare(state, (&state.volumes, Action::MountVolumes, "make volumes ready"), now, decision);
    if !is_prepared || !has_volumes {
        let is_first = snapshot.sandboxes.is_empty();
        let all_is_well =
            matches!(state.volumes, Preparation::Due | Preparation::Underway { is_retry: false });
        if is_prepared && is_first && all_is_well && has_certain_volumes(&state.pod) {
            let why = "there is no sandbox, and its volumes will be ready as well";
            return replace_sandbox(state, observed, snapshot, 0, why, now, decision);
        }
        return keep_running(state, observed, snapshot, now, decision);
    }
    match decide_sandbox(&state.pod, snapshot) {
        SandboxDecision::Keep(sandbox) => {
            sync_containers(state, observed, snapshot, &sandbox.id, now, decision);
        }
        SandboxDecision::GiveUp { why } => {
            decision.because(format!("{why}, and the pod never restarts"));
            return enter_terminating(state, StopCause::Completed, now, decision);
        }
        SandboxDecision::Create { attempt, why } => {
            replace_sandbox(state, observed, snapshot, attempt, why, now, decision);
        }
    }
    if decision.enter.is_none() {
        remove_surplus(state, snapshot, now, decision);
    }
}

/// Has something made that the pod needs. Answers whether it is there.
fn prepare(
    state: &PodState,
    (preparation, action, what): (&Preparation, Action, &str),
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    match preparation {
        Preparation::Done => return true,
        Preparation::Failed(failure) if failure.retry_at > now => {
            let Failure { message, retry_at, .. } = failure;
            decision.because(format!("{}: {message}; next try at {retry_at}", action.key()));
            decision.wake(*retry_at);
        }
        Preparation::Due | Preparation::Underway { .. } | Preparation::Failed(_) => {
            decision.because(what);
            attempt(state, action, now, decision);
        }
    }
    false
}

/// A container whose image was changed while it is being started would have to be stopped again: a
/// pull that cannot succeed ends at once when the image's name is corrected.
fn cancel_outdated_starts(state: &PodState, decision: &mut Decision) {
    for (key, in_flight) in &state.in_flight {
        let ActionKey::Start(name) = key else { continue };
        let wanted = find_container(&state.pod, name).map(|spec| hash_of(&spec.container));
        if wanted != in_flight.hash && !in_flight.cancelled {
            decision.because(format!("give up the start of {name}: its definition changed"));
            decision.give_up(key);
        }
    }
}

/// While preparation is due nothing new starts, and what has to be stopped is stopped all the same.
fn keep_running(
    state: &PodState,
    observed: &Observed<'_>,
    snapshot: &PodSnapshot,
    now: Timestamp,
    decision: &mut Decision,
) {
    if let SandboxDecision::Keep(sandbox) = decide_sandbox(&state.pod, snapshot) {
        let planning = Planning { state, snapshot, sandbox: &sandbox.id, observed, now };
        let plan = plan_containers(&planning);
        stop_unwanted(state, &plan.kills, now, decision);
        decision.waiting = plan.waiting;
    }
}

fn sync_containers(
    state: &PodState,
    observed: &Observed<'_>,
    snapshot: &PodSnapshot,
    sandbox: &SandboxId,
    now: Timestamp,
    decision: &mut Decision,
) {
    let planning = Planning { state, snapshot, sandbox, observed, now };
    let plan = plan_containers(&planning);
    if let Some(at) = plan.wake_at {
        decision.wake(at);
    }
    if let Some(why) = plan.gives_up {
        decision.because(format!("{why}, and the pod never restarts"));
        return enter_terminating(state, StopCause::Completed, now, decision);
    }
    decision.needs_snapshot |= plan.needs_snapshot;
    decision.because.extend(plan.because);
    decision.waiting = plan.waiting;
    stop_unwanted(state, &plan.kills, now, decision);
    for container in plan.removals {
        attempt(state, remove(container), now, decision);
    }

    // One after the other: a postStart hook holds back the containers after it.
    let mut is_free = !resize_pod(state, observed.resize, snapshot, &plan.kills, now, decision);
    for key in state.in_flight.keys() {
        match key {
            ActionKey::Start(name) => decision.because(format!("{name} is being started")),
            ActionKey::CreateSandbox => decision.because("the sandbox is being made"),
            _ => continue,
        }
        is_free = false;
    }
    for planned in plan.starts {
        let name = &planned.start.name;
        if is_free {
            decision.because(format!("start {name}: {}", planned.why));
            decision.actions.push(Action::StartContainer(planned.start));
            is_free = false;
        } else {
            decision.because(format!("then start {name}: {}", planned.why));
        }
    }
}

fn stop_unwanted(
    state: &PodState,
    kills: &[ContainerKill<'_>],
    now: Timestamp,
    decision: &mut Decision,
) {
    for kill in kills {
        let order = StopOrder {
            deadline: later(now, kill.grace),
            reason: kill.reason.clone(),
            is_its_turn: true,
            at_once: false,
        };
        stop_step(state, plan_stop(state, kill.container, &order, now), decision);
    }
}

fn replace_sandbox(
    state: &PodState,
    observed: &Observed<'_>,
    snapshot: &PodSnapshot,
    number: u32,
    why: &str,
    now: Timestamp,
    decision: &mut Decision,
) {
    decision.because(format!("new sandbox: {why}"));
    let is_being_made = state.in_flight.contains_key(&ActionKey::CreateSandbox);
    if number > 0 && !is_being_made {
        decision.problem = Some((
            "SandboxChanged",
            "Pod sandbox changed, it will be killed and re-created.".to_owned(),
        ));
    }
    // Nothing comes up in the old sandbox any more.
    for (key, in_flight) in &state.in_flight {
        if matches!(key, ActionKey::Start(_)) && !in_flight.cancelled {
            decision.give_up(key);
        }
    }
    let grace = seconds(termination_grace_seconds(&state.pod));
    let request = StopRequest {
        deadline: state.replacement_deadline.unwrap_or(later(now, grace)),
        reason: StopReason::SandboxChanged,
        at_once: false,
    };
    if !stop_everything(state, snapshot, &request, now, decision) {
        return;
    }
    // Init containers of an earlier sandbox say nothing about the new one.
    for container in &snapshot.containers {
        let is_init = find_container(&state.pod, &container.name)
            .is_some_and(|spec| spec.kind == ContainerKind::Init);
        if is_init {
            attempt(state, remove(container), now, decision);
        }
    }
    if is_being_made || !decision.actions.is_empty() {
        return;
    }
    if let Some(failure) = &state.sandbox_failure
        && failure.retry_at > now
    {
        decision.because(format!(
            "create sandbox: {}; next try at {}",
            failure.message, failure.retry_at
        ));
        decision.wake(failure.retry_at);
        return;
    }
    if let NetworkState::NotReady(message) = observed.network
        && !is_host_network(&state.pod)
    {
        decision.because("the runtime's network is not ready");
        decision.problem = Some(("NetworkNotReady", format!("network is not ready: {message}")));
        decision.wake(later(now, seconds(NETWORK_RETRY_SECONDS)));
        return;
    }
    decision.actions.push(Action::CreateSandbox { attempt: number });
}

fn active_deadline(state: &PodState) -> Option<Timestamp> {
    let limit = state.pod.spec.as_ref()?.active_deadline_seconds?;
    Some(later(state.started_at?, seconds(limit)))
}

/// Of every container the newest instance and the newest that ended are kept, of sandboxes the
/// newest: what status and `kubectl logs --previous` need.
fn remove_surplus(
    state: &PodState,
    snapshot: &PodSnapshot,
    now: Timestamp,
    decision: &mut Decision,
) {
    let mut seen: Vec<&str> = Vec::new();
    let mut ended: Vec<&str> = Vec::new();
    for container in &snapshot.containers {
        let name = container.name.as_str();
        let is_newest = !seen.contains(&name);
        let is_surplus = match container.state {
            ContainerState::Running { .. } | ContainerState::Unknown => false,
            ContainerState::Created => !is_newest,
            ContainerState::Exited { .. } => ended.contains(&name),
        };
        seen.push(name);
        if matches!(container.state, ContainerState::Exited { .. }) {
            ended.push(name);
        }
        // A start that is under way counts on what it was planned with.
        if !is_surplus || state.in_flight.contains_key(&ActionKey::Start(name.to_owned())) {
            continue;
        }
        let remove = remove(container);
        if !decision.actions.iter().any(|action| action.key() == remove.key()) {
            attempt(state, remove, now, decision);
        }
    }
    for sandbox in snapshot.sandboxes.iter().skip(1) {
        let is_in_use = snapshot
            .containers
            .iter()
            .any(|container| container.sandbox_id.as_ref().is_none_or(|id| *id == sandbox.id));
        if sandbox.state == SandboxState::NotReady && !is_in_use {
            attempt(state, Action::RemoveSandbox { id: sandbox.id.clone() }, now, decision);
        }
    }
}

fn remove(container: &ContainerSnapshot) -> Action {
    Action::RemoveContainer {
        id: container.id.clone(),
        name: container.name.clone(),
        keep_log: false,
    }
}
