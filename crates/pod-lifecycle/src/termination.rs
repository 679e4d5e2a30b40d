//! How a container is stopped: preStop hook first, then the stop signal, both inside one grace
//! period; sidecars after the containers they serve.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    ContainerKind, ContainerSnapshot, PodSnapshot, SandboxState, containers, find_container,
    termination_grace_seconds,
};

use crate::action::{Action, ActionKey, ContainerStop, StopReason};
use crate::back_off::later;
use crate::decide::{Decision, attempt, fresh};
use crate::stage::{Stage, StopCause};
use crate::state::{PodState, PreStop, seconds};

/// Every container gets at least this long between the stop and the kill signal.
const MINIMUM_STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// A running stop is asked to hurry only for a difference that somebody could notice.
const HURRY_SLACK: Duration = Duration::from_millis(500);

/// The next step of a stop.
#[derive(Debug, PartialEq)]
pub(crate) enum StopStep {
    /// Do this, after giving up what is named.
    Act { cancel: Option<ActionKey>, action: Action },
    /// Nothing, until that moment or until something happens.
    Wait { until: Option<Timestamp>, why: String },
}

/// The order of a stop request for one container.
#[derive(Clone, Debug)]
pub(crate) struct StopOrder {
    /// When it must be dead.
    pub(crate) deadline: Timestamp,
    pub(crate) reason: StopReason,
    /// Containers that it outlives are dead.
    pub(crate) is_its_turn: bool,
    /// There is no time for hooks any more.
    pub(crate) at_once: bool,
}

pub(crate) fn plan_stop(
    state: &PodState,
    container: &ContainerSnapshot,
    order: &StopOrder,
    now: Timestamp,
) -> StopStep {
    let deadline = state
        .kills
        .get(&container.id)
        .map_or(order.deadline, |kill| kill.deadline.min(order.deadline));
    let remaining = until(now, deadline);
    let name = &container.name;
    let pre_stop_key = ActionKey::PreStop(container.id.clone());
    let stop_key = ActionKey::Stop(container.id.clone());
    let stop = |cancel: Option<ActionKey>| StopStep::Act {
        cancel,
        action: Action::StopContainer(ContainerStop {
            id: container.id.clone(),
            name: container.name.clone(),
            timeout: if order.at_once { Duration::ZERO } else { remaining }
                .max(MINIMUM_STOP_TIMEOUT),
            reason: order.reason.clone(),
            announced: state.kills.contains_key(&container.id),
        }),
    };

    match state.kills.get(&container.id).map(|kill| kill.pre_stop) {
        None if has_pre_stop(&state.pod, &container.name)
            && container.is_running()
            && !remaining.is_zero() =>
        {
            return StopStep::Act {
                cancel: None,
                action: Action::RunPreStop {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    budget: remaining,
                    reason: order.reason.clone(),
                },
            };
        }
        Some(PreStop::Running) => {
            // A grace that was cut to nothing leaves no time for a hook that counted on more.
            let is_cut = order.at_once
                && state
                    .kills
                    .get(&container.id)
                    .is_some_and(|kill| kill.deadline > order.deadline);
            if !remaining.is_zero() && !is_cut {
                let why = format!("the preStop hook of {name} runs");
                return StopStep::Wait { until: Some(deadline), why };
            }
            return stop(Some(pre_stop_key));
        }
        None | Some(PreStop::Over) => {}
    }

    if let Some(in_flight) = state.in_flight.get(&stop_key) {
        let wanted = later(now, remaining.max(MINIMUM_STOP_TIMEOUT));
        let hurry = in_flight.until.is_some_and(|ends| ends > later(wanted, HURRY_SLACK));
        if hurry {
            return stop(Some(stop_key));
        }
        return StopStep::Wait { until: None, why: format!("{name} is being stopped") };
    }
    if let Some(retry) = state.retries.get(&stop_key)
        && retry.at > now
    {
        let why = format!("stop {name}: {}; next try at {}", retry.message, retry.at);
        return StopStep::Wait { until: Some(retry.at), why };
    }
    if !order.is_its_turn && !remaining.is_zero() && !order.at_once {
        let why = format!("{name} waits for the containers that it serves");
        return StopStep::Wait { until: Some(deadline), why };
    }
    stop(None)
}

fn until(now: Timestamp, deadline: Timestamp) -> Duration {
    Duration::try_from(deadline.duration_since(now)).unwrap_or(Duration::ZERO)
}

fn has_pre_stop(pod: &Pod, container: &str) -> bool {
    find_container(pod, container).is_some_and(|spec| {
        spec.container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
    })
}

/// Whether everything that `container` outlives is dead: a sidecar outlives all regular containers
/// and the sidecars declared after it; anything else outlives nothing.
fn is_its_turn(pod: &Pod, snapshot: &PodSnapshot, container: &ContainerSnapshot) -> bool {
    let kind_of = |name: &str| find_container(pod, name).map(|spec| spec.kind);
    if kind_of(&container.name) != Some(ContainerKind::Sidecar) {
        return true;
    }
    let position = |name: &str| {
        containers(pod)
            .filter(|spec| spec.kind == ContainerKind::Sidecar)
            .position(|spec| spec.container.name == name)
    };
    let own = position(&container.name);
    snapshot.containers.iter().filter(|other| other.may_run()).all(|other| {
        match kind_of(&other.name) {
            Some(ContainerKind::Sidecar) => position(&other.name) <= own,
            Some(ContainerKind::Init | ContainerKind::Ephemeral) => true,
            // One that the spec does not know may be one of its regular containers of old.
            Some(ContainerKind::Regular) | None => false,
        }
    })
}

/// What the stage of a pod that is being stopped says.
pub(crate) struct Stopping<'a> {
    pub(crate) deadline: Timestamp,
    pub(crate) grace_seconds: i64,
    pub(crate) cause: &'a StopCause,
}

/// How everything that runs of a pod is to be stopped.
pub(crate) struct StopRequest {
    pub(crate) deadline: Timestamp,
    pub(crate) reason: StopReason,
    pub(crate) at_once: bool,
}

/// Asks for termination with the pod's own grace period.
pub(crate) fn enter_terminating(
    state: &PodState,
    cause: StopCause,
    now: Timestamp,
    decision: &mut Decision,
) {
    let grace_seconds = termination_grace_seconds(&state.pod);
    decision.enter = Some(Stage::Terminating {
        since: now,
        grace_seconds,
        deadline: later(now, seconds(grace_seconds)),
        cause,
    });
}

pub(crate) fn decide_terminating(
    state: &PodState,
    stopping: &Stopping<'_>,
    now: Timestamp,
    decision: &mut Decision,
) {
    // Whatever would create or start something gives up first (I2).
    for (key, in_flight) in &state.in_flight {
        let creates = matches!(
            key,
            ActionKey::Start(_)
                | ActionKey::CreateSandbox
                | ActionKey::Prepare
                | ActionKey::MountVolumes
        );
        if creates && !in_flight.cancelled {
            decision.give_up(key);
        }
    }
    let request = StopRequest {
        deadline: stopping.deadline,
        reason: StopReason::PodStopped,
        at_once: stopping.grace_seconds <= 1,
    };
    let Some(snapshot) = fresh(state, decision) else {
        // To stop what died meanwhile is harmless, and a grace period does not wait for a look at
        // the runtime that takes long.
        if let Some(snapshot) = &state.snapshot {
            stop_containers(state, snapshot, &request, now, decision);
        }
        return;
    };
    if !stop_everything(state, snapshot, &request, now, decision) {
        return;
    }
    if !state.in_flight.is_empty() {
        for key in state.in_flight.keys() {
            decision.because(format!("{key} has not ended yet"));
        }
        return;
    }
    if snapshot.taken_at < state.fresh_after {
        decision.needs_snapshot = true;
        decision.because("the runtime has to be looked at a last time");
        return;
    }
    decision.because("no container can run and no sandbox is ready");
    decision.enter = Some(Stage::Terminated { since: now, cause: stopping.cause.clone() });
}

/// Stops all containers, then all sandboxes. Answers whether all of it is behind us.
pub(crate) fn stop_everything(
    state: &PodState,
    snapshot: &PodSnapshot,
    request: &StopRequest,
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    let all_dead = stop_containers(state, snapshot, request, now, decision);
    // A start that was begun may still bring a container to life.
    let mut is_starting = false;
    for key in state.in_flight.keys() {
        if matches!(key, ActionKey::Start(_) | ActionKey::CreateSandbox) {
            is_starting = true;
            decision.because(format!("{key} has not ended yet"));
        }
    }
    if !all_dead || is_starting {
        return false;
    }
    stop_sandboxes(state, snapshot, now, decision)
}

/// Answers whether no container may run.
fn stop_containers(
    state: &PodState,
    snapshot: &PodSnapshot,
    request: &StopRequest,
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    let mut all_dead = true;
    for container in snapshot.containers.iter().filter(|container| container.may_run()) {
        all_dead = false;
        let order = StopOrder {
            deadline: request.deadline,
            reason: request.reason.clone(),
            is_its_turn: is_its_turn(&state.pod, snapshot, container),
            at_once: request.at_once,
        };
        stop_step(state, plan_stop(state, container, &order, now), decision);
    }
    all_dead
}

/// Answers whether no sandbox is ready.
fn stop_sandboxes(
    state: &PodState,
    snapshot: &PodSnapshot,
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    let mut all_stopped = true;
    for sandbox in snapshot.sandboxes.iter().filter(|s| s.state == SandboxState::Ready) {
        all_stopped = false;
        decision.because(format!("stop sandbox {}", sandbox.id));
        attempt(state, Action::StopSandbox { id: sandbox.id.clone() }, now, decision);
    }
    all_stopped
}

/// Stops what came up in the runtime after the pod was stopped: a call that was given up may still
/// have its effect later. Answers whether there is anything of that kind.
pub(crate) fn stop_strays(state: &PodState, now: Timestamp, decision: &mut Decision) -> bool {
    let Some(snapshot) = &state.snapshot else { return false };
    if !snapshot.any_may_run() && !snapshot.any_sandbox_ready() {
        return false;
    }
    decision.because("something came up after the pod was stopped: stop it again");
    decision.needs_snapshot = state.snapshot_stale;
    let request = StopRequest { deadline: now, reason: StopReason::PodStopped, at_once: true };
    stop_everything(state, snapshot, &request, now, decision);
    true
}

/// Takes the next step of a stop into the decision.
pub(crate) fn stop_step(state: &PodState, step: StopStep, decision: &mut Decision) {
    match step {
        StopStep::Act { cancel, action } => {
            match &action {
                Action::RunPreStop { name, .. } => {
                    decision.because(format!("run the preStop hook of {name}"));
                }
                Action::StopContainer(stop) => decision.because(format!("stop {}", stop.name)),
                _ => {}
            }
            if let Some(key) = cancel
                && state.in_flight.contains_key(&key)
            {
                decision.give_up(&key);
            }
            decision.actions.push(action);
        }
        StopStep::Wait { until, why } => {
            decision.because(why);
            if let Some(until) = until {
                decision.wake(until);
            }
        }
    }
}
