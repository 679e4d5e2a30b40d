use std::fmt;

use jiff::Timestamp;
use rubelet_types::{
    ContainerId, ContainerState, PodSnapshot, ProbeKind, ProbeResult, SandboxState, is_host_network,
};

use crate::action::{Action, ActionKey, StopReason};
use crate::back_off::later;
use crate::containers::{ContainerWaiting, Planning, is_pod_done, plan_containers};
use crate::sandbox::{SandboxDecision, decide_sandbox};
use crate::stage::{Stage, StopCause};
use crate::state::{PodState, Preparation, seconds};
use crate::termination::{StopOrder, StopStep, is_its_turn, plan_stop};

/// Settled probe results, looked up by container name and instance.
pub trait ProbeLookup {
    /// The result of a probe of the instance `id` of container `name`; `None` if it has no such
    /// probe or nothing is known.
    fn result(&self, name: &str, id: &ContainerId, kind: ProbeKind) -> Option<ProbeResult>;
}

/// Whether the runtime's network works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkState {
    /// Pods can be connected.
    Ready,
    /// They cannot; with the runtime's words.
    NotReady(String),
}

/// What a decision looks at beside the pod's own state.
#[derive(Clone, Copy)]
pub struct Observed<'a> {
    /// Probe results.
    pub probes: &'a dyn ProbeLookup,
    /// The runtime's network.
    pub network: &'a NetworkState,
}

impl fmt::Debug for Observed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").field("network", self.network).finish_non_exhaustive()
    }
}

/// What is due for a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Actions under way that have to give up.
    pub cancel: Vec<ActionKey>,
    /// Actions to begin now.
    pub actions: Vec<Action>,
    /// The stage to enter; decide again after it.
    pub enter: Option<Stage>,
    /// Nothing can be decided before the runtime is looked at again.
    pub needs_snapshot: bool,
    /// When to decide again at the latest; `None`: when something happens.
    pub wake_at: Option<Timestamp>,
    /// Containers that wait for their back-off.
    pub waiting: Vec<ContainerWaiting>,
    /// What keeps the whole pod from going on: reason and message of the event users see.
    pub problem: Option<(&'static str, String)>,
    /// Why, in words.
    pub because: Vec<String>,
}

impl Decision {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn because(&mut self, why: impl Into<String>) {
        self.because.push(why.into());
    }
}

/// Network is looked at again after this.
const NETWORK_RETRY_SECONDS: i64 = 1;

/// Decides what is due for the pod at `now`.
pub fn decide(state: &PodState, observed: &Observed<'_>, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    match &state.stage {
        Stage::Waiting => decision.because("not admitted yet"),
        Stage::Syncing => decide_syncing(state, observed, now, &mut decision),
        Stage::Terminating { deadline, grace_seconds, cause, .. } => {
            let stopping = Stopping { deadline: *deadline, grace_seconds: *grace_seconds, cause };
            decide_terminating(state, &stopping, now, &mut decision);
        }
        Stage::Terminated { .. } => {
            if attempt(state, Action::ReleasePod, now, &mut decision) {
                decision.because("nothing can run any more: release volumes, cgroup, directories");
            }
        }
        Stage::Finished { .. } => {
            if state.removed && !state.erased {
                if attempt(state, Action::RemovePod, now, &mut decision) {
                    decision
                        .because("no source lists the pod: remove what the runtime holds of it");
                }
            } else {
                decision.because("finished");
            }
        }
    }
    decision
}

/// Emits `action` unless it is under way or has to wait after a failure.
fn attempt(state: &PodState, action: Action, now: Timestamp, decision: &mut Decision) -> bool {
    let key = action.key();
    if state.in_flight.contains_key(&key) {
        return false;
    }
    if let Some(retry) = state.retries.get(&key)
        && retry.at > now
    {
        decision.because(format!("{}; next try at {}", retry.message, retry.at));
        decision.wake(retry.at);
        return false;
    }
    decision.actions.push(action);
    true
}

/// The snapshot, if it can be relied on.
fn fresh<'a>(state: &'a PodState, decision: &mut Decision) -> Option<&'a PodSnapshot> {
    match &state.snapshot {
        Some(snapshot) if !state.snapshot_stale => Some(snapshot),
        _ => {
            decision.needs_snapshot = true;
            decision.because("the runtime has to be looked at first");
            None
        }
    }
}

fn decide_syncing(
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
    let Some(snapshot) = fresh(state, decision) else { return };
    if state.in_flight.is_empty() && !snapshot.any_may_run() && is_pod_done(&state.pod, snapshot) {
        decision.because("all containers are done");
        return enter_terminating(state, StopCause::Completed, now, decision);
    }
    match &state.preparation {
        Preparation::Done => {}
        Preparation::Failed(failure) if failure.retry_at > now => {
            decision.because(format!("{}; next try at {}", failure.message, failure.retry_at));
            decision.wake(failure.retry_at);
            return keep_running(state, observed, snapshot, now, decision);
        }
        Preparation::Due | Preparation::Failed(_) => {
            if attempt(state, Action::PreparePod, now, decision) {
                decision.because("make directories, cgroup and volumes");
            }
            return keep_running(state, observed, snapshot, now, decision);
        }
    }
    match decide_sandbox(&state.pod, snapshot) {
        SandboxDecision::Keep(sandbox) => {
            sync_containers(state, observed, snapshot, &sandbox.id, now, decision);
        }
        SandboxDecision::GiveUp { why } => {
            decision.because(format!("{why}, and nothing is left to run"));
            enter_terminating(state, StopCause::Completed, now, decision);
        }
        SandboxDecision::Create { attempt, why } => {
            replace_sandbox(state, observed, snapshot, attempt, why, now, decision);
        }
    }
    remove_surplus(state, snapshot, now, decision);
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
        for kill in &plan.kills {
            let order = StopOrder {
                deadline: later(now, kill.grace),
                reason: kill.reason.clone(),
                is_its_turn: true,
                at_once: false,
            };
            stop_step(state, plan_stop(state, kill.container, &order, now), decision);
        }
        decision.waiting = plan.waiting;
    }
}

fn sync_containers(
    state: &PodState,
    observed: &Observed<'_>,
    snapshot: &PodSnapshot,
    sandbox: &rubelet_types::SandboxId,
    now: Timestamp,
    decision: &mut Decision,
) {
    let planning = Planning { state, snapshot, sandbox, observed, now };
    let plan = plan_containers(&planning);
    if let Some(at) = plan.wake_at {
        decision.wake(at);
    }
    decision.because.extend(plan.because);
    decision.waiting = plan.waiting;
    for kill in &plan.kills {
        let order = StopOrder {
            deadline: later(now, kill.grace),
            reason: kill.reason.clone(),
            is_its_turn: true,
            at_once: false,
        };
        stop_step(state, plan_stop(state, kill.container, &order, now), decision);
    }
    // One after the other: a postStart hook holds back the containers after it.
    let starting = state.in_flight.keys().any(|key| matches!(key, ActionKey::Start(_)));
    if !starting && let Some(start) = plan.starts.into_iter().next() {
        decision.actions.push(Action::StartContainer(start));
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
    if number > 0 && !sandbox_is_being_made(state) {
        decision.problem = Some((
            "SandboxChanged",
            "Pod sandbox changed, it will be killed and re-created.".to_owned(),
        ));
    }
    let grace = seconds(rubelet_types::termination_grace_seconds(&state.pod));
    if !stop_everything(
        state,
        snapshot,
        &StopRequest {
            deadline: later(now, grace),
            reason: StopReason::SandboxChanged,
            at_once: false,
        },
        now,
        decision,
    ) {
        return;
    }
    // Init containers of an earlier sandbox say nothing about the new one.
    for container in &snapshot.containers {
        let init = rubelet_types::find_container(&state.pod, &container.name)
            .is_some_and(|spec| matches!(spec.kind, rubelet_types::ContainerKind::Init));
        if init {
            let remove =
                Action::RemoveContainer { id: container.id.clone(), name: container.name.clone() };
            attempt(state, remove, now, decision);
        }
    }
    if state.in_flight.contains_key(&ActionKey::CreateSandbox) || !decision.actions.is_empty() {
        return;
    }
    if let Some(failure) = &state.sandbox_failure
        && failure.retry_at > now
    {
        decision.because(format!("{}; next try at {}", failure.message, failure.retry_at));
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

fn sandbox_is_being_made(state: &PodState) -> bool {
    state.in_flight.contains_key(&ActionKey::CreateSandbox)
}

struct Stopping<'a> {
    deadline: Timestamp,
    grace_seconds: i64,
    cause: &'a StopCause,
}

struct StopRequest {
    deadline: Timestamp,
    reason: StopReason,
    at_once: bool,
}

fn decide_terminating(
    state: &PodState,
    stopping: &Stopping<'_>,
    now: Timestamp,
    decision: &mut Decision,
) {
    // Whatever would create or start something gives up first (I2).
    for (key, in_flight) in &state.in_flight {
        let creates =
            matches!(key, ActionKey::Start(_) | ActionKey::CreateSandbox | ActionKey::Prepare);
        if creates && !in_flight.cancelled {
            decision.cancel.push(key.clone());
        }
    }
    let Some(snapshot) = fresh(state, decision) else { return };
    let request = StopRequest {
        deadline: stopping.deadline,
        reason: StopReason::PodStopped,
        at_once: stopping.grace_seconds <= 1,
    };
    if !stop_everything(state, snapshot, &request, now, decision) {
        decision.because("containers are being stopped");
        return;
    }
    if !state.in_flight.is_empty() {
        decision.because("an action that was begun earlier has not ended yet");
        return;
    }
    decision.because("no container can run and no sandbox is ready");
    decision.enter = Some(Stage::Terminated { since: now, cause: stopping.cause.clone() });
}

/// Stops all containers, then all sandboxes. Answers whether all of it is behind us.
fn stop_everything(
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
    // A start that was begun may still bring a container to life.
    let starting = state
        .in_flight
        .keys()
        .any(|key| matches!(key, ActionKey::Start(_) | ActionKey::CreateSandbox));
    if !all_dead || starting {
        return false;
    }
    let mut all_stopped = true;
    for sandbox in snapshot.sandboxes.iter().filter(|s| s.state == SandboxState::Ready) {
        all_stopped = false;
        attempt(state, Action::StopSandbox { id: sandbox.id.clone() }, now, decision);
    }
    all_stopped
}

fn stop_step(state: &PodState, step: StopStep, decision: &mut Decision) {
    match step {
        StopStep::Act { cancel, action } => {
            if let Some(key) = cancel
                && state.in_flight.contains_key(&key)
            {
                decision.cancel.push(key);
            }
            decision.actions.push(action);
        }
        StopStep::Wait { until: Some(until) } => decision.wake(until),
        StopStep::Wait { until: None } => {}
    }
}

fn enter_terminating(state: &PodState, cause: StopCause, now: Timestamp, decision: &mut Decision) {
    let grace_seconds = rubelet_types::termination_grace_seconds(&state.pod);
    decision.enter = Some(Stage::Terminating {
        since: now,
        grace_seconds,
        deadline: later(now, seconds(grace_seconds)),
        cause,
    });
}

fn active_deadline(state: &PodState) -> Option<Timestamp> {
    let limit = state.pod.spec.as_ref()?.active_deadline_seconds?;
    Some(later(state.started_at?, seconds(limit)))
}

/// Of every container one dead instance is kept, of sandboxes the newest: what status and
/// `kubectl logs --previous` need.
fn remove_surplus(
    state: &PodState,
    snapshot: &PodSnapshot,
    now: Timestamp,
    decision: &mut Decision,
) {
    let mut dead_seen: Vec<&str> = Vec::new();
    for container in &snapshot.containers {
        let dead =
            matches!(container.state, ContainerState::Exited { .. } | ContainerState::Created);
        if !dead || state.in_flight.contains_key(&ActionKey::Start(container.name.clone())) {
            continue;
        }
        if dead_seen.contains(&container.name.as_str()) {
            let remove =
                Action::RemoveContainer { id: container.id.clone(), name: container.name.clone() };
            if !decision.actions.iter().any(|action| action.key() == remove.key()) {
                attempt(state, remove, now, decision);
            }
        } else {
            dead_seen.push(&container.name);
        }
    }
    for sandbox in snapshot.sandboxes.iter().skip(1) {
        let in_use = snapshot.containers.iter().any(|c| c.sandbox_id.as_ref() == Some(&sandbox.id));
        if sandbox.state == SandboxState::NotReady && !in_use {
            attempt(state, Action::RemoveSandbox { id: sandbox.id.clone() }, now, decision);
        }
    }
}
