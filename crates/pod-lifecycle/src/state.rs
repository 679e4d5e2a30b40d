use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    ContainerId, ContainerSnapshot, PodRef, PodSnapshot, pod_ref, termination_grace_seconds,
};

use crate::action::{Action, ActionFailure, ActionKey, ActionOutcome, StopReason};
use crate::back_off::{BackOff, BackOffSettings, later};
use crate::containers::back_off_key;
use crate::stage::{Stage, StopCause};

/// Whether the pod's directories, cgroup and volumes are there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Preparation {
    /// Not tried yet, or the spec changed since.
    Due,
    /// Done for the present spec.
    Done,
    /// It failed.
    Failed(Failure),
}

/// A failed step and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) retry_at: Timestamp,
}

/// An action that was started and has not ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InFlight {
    /// When it gives up by itself, for actions that have such a moment.
    pub(crate) until: Option<Timestamp>,
    /// It was asked to give up.
    pub(crate) cancelled: bool,
}

/// One container on its way out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kill {
    pub(crate) deadline: Timestamp,
    pub(crate) reason: StopReason,
    pub(crate) pre_stop: PreStop,
}

/// A failed clean-up step: how often it failed in a row, and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Retry {
    pub(crate) attempts: u32,
    pub(crate) at: Timestamp,
    pub(crate) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreStop {
    Running,
    /// It ran, was abandoned, or there is none.
    Over {
        ran: bool,
    },
}

/// All that is remembered of one pod.
#[derive(Clone, Debug)]
pub struct PodState {
    pub(crate) pod: Arc<Pod>,
    pub(crate) pod_ref: PodRef,
    pub(crate) stage: Stage,
    /// Its source does not list it any more.
    pub(crate) removed: bool,
    /// Everything the runtime held of it is removed.
    pub(crate) erased: bool,
    pub(crate) snapshot: Option<PodSnapshot>,
    /// Something may have changed since the snapshot was taken.
    pub(crate) snapshot_stale: bool,
    /// Snapshots taken earlier do not count.
    pub(crate) fresh_after: Timestamp,
    pub(crate) preparation: Preparation,
    pub(crate) sandbox_failure: Option<Failure>,
    /// Failed stops, removals and releases.
    pub(crate) retries: BTreeMap<ActionKey, Retry>,
    pub(crate) start_failures: BTreeMap<String, Failure>,
    pub(crate) back_off: BackOff,
    pub(crate) back_off_settings: BackOffSettings,
    pub(crate) kills: BTreeMap<ContainerId, Kill>,
    pub(crate) in_flight: BTreeMap<ActionKey, InFlight>,
    /// When the pod was first synced, which `activeDeadlineSeconds` counts from.
    pub(crate) started_at: Option<Timestamp>,
}

/// What happened to a pod.
#[derive(Clone, Debug)]
pub enum PodEvent {
    /// It may start: admitted, and no other static pod holds its full name.
    Admitted,
    /// Its source has a new version of it.
    Updated(Arc<Pod>),
    /// Its source lists it no more. Implies [`PodEvent::Stop`].
    Removed,
    /// It has to stop.
    Stop {
        /// Why.
        cause: StopCause,
        /// A grace period other than the pod's own, in seconds.
        grace_seconds: Option<i64>,
    },
    /// The runtime was looked at.
    Observed(Box<PodSnapshot>),
    /// Its recorded start time is known (status of an earlier run of the kubelet).
    StartTime(Timestamp),
    /// An action was begun.
    ActionStarted(Action),
    /// An action was asked to give up.
    ActionCancelled(ActionKey),
    /// An action ended.
    ActionEnded(ActionKey, ActionOutcome),
    /// The stage that [`crate::decide`] asked for is entered.
    Entered(Stage),
}

/// Retry after a failure that names no moment itself.
const RETRY: Duration = Duration::from_secs(10);
/// How long `ErrImagePull` is shown before the next look turns it into `ImagePullBackOff`.
const SHOW_PULL_ERROR: Duration = Duration::from_secs(2);

impl PodState {
    /// A pod from a source, held back until it is admitted.
    pub fn new(pod: Arc<Pod>, back_off: BackOffSettings) -> Self {
        Self {
            pod_ref: pod_ref(&pod),
            pod,
            stage: Stage::Waiting,
            removed: false,
            erased: false,
            snapshot: None,
            snapshot_stale: true,
            fresh_after: Timestamp::MIN,
            preparation: Preparation::Due,
            sandbox_failure: None,
            retries: BTreeMap::new(),
            start_failures: BTreeMap::new(),
            back_off: BackOff::default(),
            back_off_settings: back_off,
            kills: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            started_at: None,
        }
    }

    /// The pod as its source last gave it.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    /// Names the pod.
    pub fn pod_ref(&self) -> &PodRef {
        &self.pod_ref
    }

    /// Its stage.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Its source lists it no more.
    pub fn is_removed(&self) -> bool {
        self.removed
    }

    /// Nothing of it is left anywhere, and nobody wants it.
    pub fn can_be_forgotten(&self) -> bool {
        matches!(self.stage, Stage::Finished { .. })
            && self.removed
            && self.erased
            && self.in_flight.is_empty()
    }

    /// The last accepted snapshot.
    pub fn snapshot(&self) -> Option<&PodSnapshot> {
        self.snapshot.as_ref()
    }

    /// Snapshots taken before this moment are of no use.
    pub fn fresh_after(&self) -> Timestamp {
        self.fresh_after
    }

    /// Containers whose start is under way.
    pub fn starting(&self) -> impl Iterator<Item = &str> {
        self.in_flight.keys().filter_map(|key| match key {
            ActionKey::Start(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The last start failure of each container: name, reason, message.
    pub fn start_failures(&self) -> impl Iterator<Item = (&str, &'static str, &str)> {
        self.start_failures
            .iter()
            .map(|(name, failure)| (name.as_str(), failure.reason, failure.message.as_str()))
    }

    /// Actions under way.
    pub fn actions_in_flight(&self) -> impl Iterator<Item = &ActionKey> {
        self.in_flight.keys()
    }

    /// Takes in what happened at `now`.
    pub fn apply(&mut self, event: PodEvent, now: Timestamp) {
        match event {
            PodEvent::Admitted => self.enter(Stage::Syncing, now),
            PodEvent::Updated(pod) => self.update(pod, now),
            PodEvent::Removed => {
                self.removed = true;
                self.stop(StopCause::Deleted, None, now);
            }
            PodEvent::Stop { cause, grace_seconds } => self.stop(cause, grace_seconds, now),
            PodEvent::Observed(snapshot) => self.observe(*snapshot),
            PodEvent::StartTime(time) => self.started_at = Some(time),
            PodEvent::ActionStarted(action) => self.action_started(&action, now),
            PodEvent::ActionCancelled(key) => {
                if let Some(in_flight) = self.in_flight.get_mut(&key) {
                    in_flight.cancelled = true;
                }
            }
            PodEvent::ActionEnded(key, outcome) => self.action_ended(key, outcome, now),
            PodEvent::Entered(stage) => self.enter(stage, now),
        }
    }

    fn enter(&mut self, stage: Stage, now: Timestamp) {
        if stage.rank() <= self.stage.rank() {
            return;
        }
        if matches!(stage, Stage::Syncing) {
            self.started_at.get_or_insert(now);
        }
        self.stage = stage;
    }

    fn update(&mut self, pod: Arc<Pod>, now: Timestamp) {
        if pod.spec != self.pod.spec {
            // Looking at volumes, cgroup and directories again is harmless.
            if self.preparation == Preparation::Done {
                self.preparation = Preparation::Due;
            }
            self.start_failures.clear();
            self.sandbox_failure = None;
        }
        let deleting = pod.metadata.deletion_timestamp.is_some();
        self.pod = pod;
        if deleting {
            self.stop(StopCause::Deleted, None, now);
        }
    }

    fn stop(&mut self, cause: StopCause, grace_override: Option<i64>, now: Timestamp) {
        let mut grace = termination_grace_seconds(&self.pod);
        if let Some(seconds) = grace_override {
            grace = seconds.max(1);
        }
        let deadline = later(now, seconds(grace));
        match &mut self.stage {
            Stage::Waiting | Stage::Syncing => {
                self.stage =
                    Stage::Terminating { since: now, grace_seconds: grace, deadline, cause };
            }
            Stage::Terminating { grace_seconds, deadline: current, .. } => {
                if grace < *grace_seconds {
                    *grace_seconds = grace;
                    *current = deadline.min(*current);
                }
            }
            Stage::Terminated { .. } | Stage::Finished { .. } => {}
        }
    }

    fn observe(&mut self, snapshot: PodSnapshot) {
        if snapshot.taken_at < self.fresh_after {
            return;
        }
        if self.snapshot.as_ref().is_some_and(|old| old.taken_at > snapshot.taken_at) {
            return;
        }
        // A container that is gone or dead needs no killing any more.
        self.kills.retain(|id, _| {
            snapshot.containers.iter().any(|container| container.id == *id && container.may_run())
        });
        self.snapshot = Some(snapshot);
        self.snapshot_stale = false;
    }

    fn action_started(&mut self, action: &Action, now: Timestamp) {
        let mut until = None;
        match action {
            Action::RunPreStop { id, budget, reason, .. } => {
                let deadline = later(now, *budget);
                until = Some(deadline);
                self.kills.insert(
                    id.clone(),
                    Kill { deadline, reason: reason.clone(), pre_stop: PreStop::Running },
                );
            }
            Action::StopContainer(stop) => {
                let deadline = later(now, stop.timeout);
                until = Some(deadline);
                let kill = self.kills.entry(stop.id.clone()).or_insert(Kill {
                    deadline,
                    reason: stop.reason.clone(),
                    pre_stop: PreStop::Over { ran: false },
                });
                if kill.pre_stop == PreStop::Running {
                    kill.pre_stop = PreStop::Over { ran: true };
                }
            }
            Action::StartContainer(start) => {
                self.start_failures.remove(&start.name);
                self.note_restart(&start.name, now);
            }
            Action::CreateSandbox { .. } => self.sandbox_failure = None,
            Action::PreparePod
            | Action::StopSandbox { .. }
            | Action::RemoveContainer { .. }
            | Action::RemoveSandbox { .. }
            | Action::ReleasePod
            | Action::RemovePod => {}
        }
        self.in_flight.insert(action.key(), InFlight { until, cancelled: false });
    }

    fn note_restart(&mut self, name: &str, now: Timestamp) {
        let Some(spec) = rubelet_types::find_container(&self.pod, name) else { return };
        let finished = self.snapshot.as_ref().and_then(|snapshot| {
            snapshot.newest(name).and_then(|container| match container.state {
                rubelet_types::ContainerState::Exited { finished_at, .. } => Some(finished_at),
                _ => None,
            })
        });
        if let Some(finished_at) = finished {
            let key = back_off_key(&spec.container);
            self.back_off.note_attempt(&key, finished_at, now, self.back_off_settings);
        }
    }

    fn action_ended(&mut self, key: ActionKey, outcome: ActionOutcome, now: Timestamp) {
        self.in_flight.remove(&key);
        self.fresh_after = self.fresh_after.max(now);
        match &outcome {
            ActionOutcome::SandboxCreated(sandbox) => {
                if let Some(snapshot) = &mut self.snapshot {
                    snapshot.sandboxes.retain(|known| known.id != sandbox.id);
                    snapshot.sandboxes.insert(0, sandbox.clone());
                }
            }
            ActionOutcome::ContainerStarted(container) => {
                self.merge_container((**container).clone())
            }
            ActionOutcome::Done if matches!(key, ActionKey::Prepare | ActionKey::Release) => {}
            ActionOutcome::Done if matches!(key, ActionKey::PreStop(_)) => {}
            ActionOutcome::Done | ActionOutcome::Failed(_) | ActionOutcome::Cancelled => {
                self.snapshot_stale = true;
            }
        }
        match key {
            ActionKey::Prepare => {
                self.preparation = match outcome {
                    ActionOutcome::Failed(failure) => Preparation::Failed(retrying(failure, now)),
                    ActionOutcome::Cancelled => Preparation::Due,
                    _ => Preparation::Done,
                };
            }
            ActionKey::CreateSandbox => {
                if let ActionOutcome::Failed(failure) = outcome {
                    self.sandbox_failure = Some(retrying(failure, now));
                }
            }
            ActionKey::Start(name) => {
                if let ActionOutcome::Failed(failure) = outcome {
                    let mut failure = retrying(failure, now);
                    if failure.reason == rubelet_types::reasons::ERR_IMAGE_PULL {
                        failure.retry_at = failure.retry_at.min(later(now, SHOW_PULL_ERROR));
                    }
                    self.start_failures.insert(name, failure);
                }
            }
            ActionKey::PreStop(id) => {
                if let Some(kill) = self.kills.get_mut(&id) {
                    kill.pre_stop = PreStop::Over { ran: true };
                }
            }
            ActionKey::Release if outcome == ActionOutcome::Done => {
                self.retries.remove(&ActionKey::Release);
                if let Stage::Terminated { cause, .. } = &self.stage {
                    self.stage = Stage::Finished { cause: cause.clone() };
                }
            }
            ActionKey::RemovePod if outcome == ActionOutcome::Done => {
                self.retries.remove(&ActionKey::RemovePod);
                self.erased = true;
            }
            ActionKey::Stop(_)
            | ActionKey::StopSandbox(_)
            | ActionKey::Remove(_)
            | ActionKey::RemoveSandbox(_)
            | ActionKey::Release
            | ActionKey::RemovePod => self.note_clean_up(key, outcome, now),
        }
    }

    fn note_clean_up(&mut self, key: ActionKey, outcome: ActionOutcome, now: Timestamp) {
        let ActionOutcome::Failed(failure) = outcome else {
            self.retries.remove(&key);
            return;
        };
        let attempts = self.retries.get(&key).map_or(0, |retry| retry.attempts) + 1;
        let delay = Duration::from_millis(500 << attempts.min(6));
        let at = failure.retry_at.unwrap_or(later(now, delay));
        self.retries.insert(key, Retry { attempts, at, message: failure.message });
    }

    fn merge_container(&mut self, container: ContainerSnapshot) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.containers.retain(|known| known.id != container.id);
            snapshot.containers.insert(0, container);
        }
    }
}

fn retrying(failure: ActionFailure, now: Timestamp) -> Failure {
    Failure {
        reason: failure.reason,
        message: failure.message,
        retry_at: failure.retry_at.unwrap_or(later(now, RETRY)),
    }
}

pub(crate) fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}
