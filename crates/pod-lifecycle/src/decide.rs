use std::fmt;

use jiff::Timestamp;
use rubelet_types::{ContainerId, PodSnapshot, ProbeKind, ProbeResult};

use crate::action::{Action, ActionKey};
use crate::containers::ContainerWaiting;
use crate::resize::ResizeDue;
use crate::stage::{Stage, StopCause};
use crate::state::PodState;
use crate::syncing::decide_syncing;
use crate::termination::{Stopping, decide_terminating, enter_terminating, stop_strays};

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
    /// What of the pod's resources is not as it was granted; none if nothing.
    pub resize: Option<&'a ResizeDue>,
}

impl fmt::Debug for Observed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed")
            .field("network", self.network)
            .field("resize", &self.resize)
            .finish_non_exhaustive()
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
    pub(crate) fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// An action under way has to give up.
    pub(crate) fn give_up(&mut self, key: &ActionKey) {
        if !self.cancel.contains(key) {
            self.cancel.push(key.clone());
        }
    }

    pub(crate) fn because(&mut self, why: impl Into<String>) {
        self.because.push(why.into());
    }
}

/// Decides what is due for the pod at `now`.
pub fn decide(state: &PodState, observed: &Observed<'_>, now: Timestamp) -> Decision {
    let mut decision = Decision::default();
    cancel_pointless_hooks(state, &mut decision);
    match &state.stage {
        Stage::Waiting | Stage::Syncing if state.pod.metadata.deletion_timestamp.is_some() => {
            decision.because("it is being deleted");
            enter_terminating(state, StopCause::Deleted, now, &mut decision);
        }
        Stage::Waiting => decision.because("not admitted yet"),
        Stage::Syncing => decide_syncing(state, observed, now, &mut decision),
        Stage::Terminating { deadline, grace_seconds, cause, .. } => {
            let stopping = Stopping { deadline: *deadline, grace_seconds: *grace_seconds, cause };
            decide_terminating(state, &stopping, now, &mut decision);
        }
        Stage::Terminated { .. } => {
            if !stop_strays(state, now, &mut decision) {
                decision.because("nothing can run any more: release volumes, cgroup, directories");
                attempt(state, Action::ReleasePod, now, &mut decision);
            }
        }
        Stage::Finished { .. } => {
            if stop_strays(state, now, &mut decision) {
                return decision;
            }
            if state.removed && !state.erased {
                decision.because("no source lists the pod: remove what the runtime holds of it");
                attempt(state, Action::RemovePod, now, &mut decision);
            } else {
                decision.because("finished");
            }
        }
    }
    decision
}

/// The hook of a container that is dead keeps nobody waiting.
fn cancel_pointless_hooks(state: &PodState, decision: &mut Decision) {
    let Some(snapshot) = state.snapshot.as_ref().filter(|_| !state.snapshot_stale) else { return };
    for (key, in_flight) in &state.in_flight {
        if let ActionKey::PreStop(id) = key
            && !in_flight.cancelled
            && !snapshot.containers.iter().any(|c| c.id == *id && c.may_run())
        {
            decision.give_up(key);
        }
    }
}

/// Emits `action` unless it is under way or has to wait after a failure.
pub(crate) fn attempt(
    state: &PodState,
    action: Action,
    now: Timestamp,
    decision: &mut Decision,
) -> bool {
    let key = action.key();
    if state.in_flight.contains_key(&key) {
        return false;
    }
    if let Some(retry) = state.retries.get(&key)
        && retry.at > now
    {
        decision.because(format!("{key}: {}; next try at {}", retry.message, retry.at));
        decision.wake(retry.at);
        return false;
    }
    decision.actions.push(action);
    true
}

/// The snapshot, if it can be relied on.
pub(crate) fn fresh<'a>(state: &'a PodState, decision: &mut Decision) -> Option<&'a PodSnapshot> {
    match &state.snapshot {
        Some(snapshot) if !state.snapshot_stale => Some(snapshot),
        _ => {
            decision.needs_snapshot = true;
            decision.because("the runtime has to be looked at first");
            None
        }
    }
}
