use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_types::{
    ContainerId, ContainerKind, ContainerSnapshot, ContainerState, PodRef, PodSnapshot,
    SandboxSnapshot, SandboxState, container_hash, containers, exit_restarts_all_containers,
    find_container, is_static_pod, is_terminal_phase, pod_ref, reasons, termination_grace_seconds,
};

use crate::action::{Action, ActionFailure, ActionKey, ActionOutcome, StopReason};
use crate::back_off::{BackOff, BackOffSettings, later};
use crate::containers::back_off_key;
use crate::ends::{End, end_of, last_end, restart_all_sources};
use crate::run_memory::RunMemory;
use crate::stage::{Stage, StopCause};

/// Whether something is there that the pod needs before it can run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Preparation {
    /// Not tried yet, or the spec changed since it was begun.
    Due,
    /// Under way for the present spec.
    Underway {
        /// It failed before.
        is_retry: bool,
    },
    /// Done for the present spec.
    Done,
    /// It failed.
    Failed(Failure),
}

impl Preparation {
    fn begin(&mut self) {
        *self = Self::Underway { is_retry: matches!(self, Self::Failed(_)) };
    }

    fn end(&mut self, outcome: ActionOutcome, now: Timestamp) {
        *self = match (&*self, outcome) {
            (_, ActionOutcome::Failed(failure)) => Self::Failed(retrying(failure, now)),
            (_, ActionOutcome::Cancelled) => Self::Due,
            // What was prepared was for an earlier spec.
            (Self::Due, _) => Self::Due,
            _ => Self::Done,
        };
    }
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
    /// Hash of the container that is being started.
    pub(crate) hash: Option<String>,
}

/// One container on its way out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kill {
    pub(crate) deadline: Timestamp,
    pub(crate) reason: StopReason,
    pub(crate) pre_stop: PreStop,
}

/// A clean-up step that failed or had no effect: how often in a row, and when it is tried again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Retry {
    pub(crate) attempts: u32,
    pub(crate) at: Timestamp,
    pub(crate) message: String,
}

/// The preStop hook of a container that is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PreStop {
    Running,
    /// It ran, was abandoned, or there is none.
    Over,
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
    /// Of its directories and its cgroup.
    pub(crate) preparation: Preparation,
    /// Of its volumes.
    pub(crate) volumes: Preparation,
    pub(crate) sandbox_failure: Option<Failure>,
    /// Failed stops, removals and releases.
    pub(crate) retries: BTreeMap<ActionKey, Retry>,
    pub(crate) start_failures: BTreeMap<String, Failure>,
    pub(crate) back_off: BackOff,
    pub(crate) back_off_settings: BackOffSettings,
    pub(crate) kills: BTreeMap<ContainerId, Kill>,
    /// When everything in a sandbox that is replaced must be dead.
    pub(crate) replacement_deadline: Option<Timestamp>,
    /// Containers, by name, whose instance was stopped in order to start again.
    pub(crate) owed_restarts: BTreeMap<String, ContainerId>,
    pub(crate) memory: RunMemory,
    pub(crate) in_flight: BTreeMap<ActionKey, InFlight>,
    /// When the pod was first synced, which `activeDeadlineSeconds` counts from.
    pub(crate) started_at: Option<Timestamp>,
    /// When the wall clock was last set, in its own time.
    pub(crate) clock_set_at: Option<Timestamp>,
}

/// What happened to a pod.
#[derive(Clone, Debug)]
pub enum PodEvent {
    /// It may start: admitted, and no other static pod holds its full name.
    Admitted,
    /// Its source has a new version of it.
    Updated(Arc<Pod>),
    /// Its source lists it no more. Implies [`PodEvent::Stop`]; for a pod whose deletion was under
    /// way with the shortest grace, because somebody forced it.
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
    /// The stage that [`crate::decide()`] asked for is entered.
    Entered(Stage),
    /// The wall clock was set, and shows so much more than it did.
    ClockSet(SignedDuration),
    /// An object that its containers are configured from has changed.
    ObjectChanged,
}

/// Retry after a failure that names no moment itself.
const RETRY: Duration = Duration::from_secs(10);
/// How long `ErrImagePull` is shown before the next look turns it into `ImagePullBackOff`.
const SHOW_PULL_ERROR: Duration = Duration::from_secs(2);

impl PodState {
    /// A pod from a source, held back until it is admitted. What its status tells of runs that the
    /// runtime has forgotten counts.
    pub fn new(pod: Arc<Pod>, back_off: BackOffSettings) -> Self {
        let memory = RunMemory::of_status(&pod);
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
            volumes: Preparation::Due,
            sandbox_failure: None,
            retries: BTreeMap::new(),
            start_failures: BTreeMap::new(),
            back_off: BackOff::default(),
            back_off_settings: back_off,
            kills: BTreeMap::new(),
            replacement_deadline: None,
            owed_restarts: BTreeMap::new(),
            memory,
            in_flight: BTreeMap::new(),
            started_at: None,
            clock_set_at: None,
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

    /// The last accepted snapshot, unless something may have changed since: what may be told to
    /// others as the present state.
    pub fn fresh_snapshot(&self) -> Option<&PodSnapshot> {
        self.snapshot.as_ref().filter(|_| !self.snapshot_stale)
    }

    /// Snapshots taken before this moment are of no use.
    pub fn fresh_after(&self) -> Timestamp {
        self.fresh_after
    }

    /// Containers whose start is under way, or owed because they were stopped in order to start
    /// again: whatever their last exit code says, the pod is not at its end.
    pub fn starting(&self) -> impl Iterator<Item = &str> {
        let in_flight = self.in_flight.keys().filter_map(|key| match key {
            ActionKey::Start(name) => Some(name.as_str()),
            _ => None,
        });
        let may_restart = matches!(self.stage, Stage::Syncing);
        let owed = self.owed_restarts.keys().map(String::as_str).filter(move |name| {
            may_restart
                && !self.in_flight.contains_key(&ActionKey::Start((*name).to_owned()))
                && self.snapshot.as_ref().is_some_and(|snapshot| {
                    snapshot.newest(name).is_none_or(|newest| !newest.may_run())
                })
        });
        in_flight.chain(owed)
    }

    /// Containers that were up when they were last seen, and whose end nobody saw. Whether they ran
    /// need not have been reported: a start in flight counts as waiting.
    pub fn vanished(&self) -> impl Iterator<Item = &str> {
        self.memory.vanished()
    }

    /// A restart rule is taking down all containers of the pod, to start them again in the same
    /// sandbox (condition `AllContainersRestarting`).
    pub fn restarting_all(&self) -> bool {
        matches!(self.stage, Stage::Syncing)
            && self
                .snapshot
                .as_ref()
                .is_some_and(|snapshot| restart_all_sources(&self.pod, snapshot).next().is_some())
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

    /// How a container ended when it last ran, by `snapshot` or, where the runtime has forgotten it,
    /// by memory; `None` if it may run, never ran, or is to start again whatever its end says.
    pub(crate) fn known_end<'a>(
        &'a self,
        snapshot: &'a PodSnapshot,
        name: &str,
    ) -> Option<End<'a>> {
        let is_up = snapshot.containers.iter().any(|c| c.name == name && c.may_run());
        if is_up || self.owed_restarts.contains_key(name) {
            return None;
        }
        last_end(snapshot, name).or_else(|| self.memory.last_end(name))
    }

    /// Takes in what happened at `now`.
    pub fn apply(&mut self, event: PodEvent, now: Timestamp) {
        match event {
            PodEvent::Admitted => self.enter(Stage::Syncing, now),
            PodEvent::Updated(pod) => self.update(pod, now),
            PodEvent::Removed => {
                self.removed = true;
                // The object of a pod that is being deleted goes last, by our own word. If it is
                // gone while containers still stop, somebody cut the deletion short.
                let is_forced =
                    !is_static_pod(&self.pod) && self.pod.metadata.deletion_timestamp.is_some();
                self.stop(StopCause::Deleted, is_forced.then_some(1), now);
            }
            PodEvent::Stop { cause, grace_seconds } => self.stop(cause, grace_seconds, now),
            PodEvent::Observed(snapshot) => self.observe(*snapshot, now),
            PodEvent::StartTime(time) => self.started_at = Some(time),
            PodEvent::ActionStarted(action) => self.action_started(&action, now),
            PodEvent::ActionCancelled(key) => {
                if let Some(in_flight) = self.in_flight.get_mut(&key) {
                    in_flight.cancelled = true;
                }
            }
            PodEvent::ActionEnded(key, outcome) => self.action_ended(key, outcome, now),
            PodEvent::Entered(stage) => self.enter(stage, now),
            PodEvent::ClockSet(by) => self.clock_set(by, now),
            PodEvent::ObjectChanged => {
                for failure in self.start_failures.values_mut() {
                    if failure.reason == reasons::CREATE_CONTAINER_CONFIG_ERROR {
                        failure.retry_at = failure.retry_at.min(now);
                    }
                }
            }
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
        let is_changed = pod.spec != self.pod.spec;
        self.pod = pod;
        if is_changed {
            // Looking at volumes, cgroup and directories again is harmless.
            self.preparation = Preparation::Due;
            self.volumes = Preparation::Due;
            self.start_failures.clear();
            self.sandbox_failure = None;
            self.retries.remove(&ActionKey::Resize);
            let keys: Vec<String> =
                containers(&self.pod).map(|spec| back_off_key(&spec.container)).collect();
            self.back_off.retain(|key| keys.iter().any(|kept| kept == key));
        }
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if self.pod.metadata.deletion_timestamp.is_some() {
            self.stop(StopCause::Deleted, None, now);
        } else if !is_static_pod(&self.pod) && is_terminal_phase(phase) {
            // Somebody else has declared the pod to be over, or it is the echo of its own end.
            self.stop(StopCause::Completed, None, now);
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
                    // Whoever is in a hurry does not wait for the back-off of a stop that failed.
                    self.retries.clear();
                }
            }
            Stage::Terminated { .. } | Stage::Finished { .. } => {}
        }
    }

    /// The grace of a pod of which nothing was known begins when its containers are known: before,
    /// none of them could be asked to stop.
    fn grant_grace(&mut self, now: Timestamp) {
        if let Stage::Terminating { grace_seconds, deadline, .. } = &mut self.stage
            && self.snapshot.is_none()
        {
            *deadline = later(now, seconds(*grace_seconds));
        }
    }

    fn observe(&mut self, snapshot: PodSnapshot, now: Timestamp) {
        if snapshot.taken_at < self.fresh_after || snapshot.taken_at > now {
            // It may tell of a change that happened after what is known from the action itself, and
            // nobody will tell of it again. Of one from the future, taken before the clock was set
            // back, it cannot be told what it knows of.
            self.snapshot_stale = true;
            return;
        }
        if self.snapshot.as_ref().is_some_and(|old| old.taken_at > snapshot.taken_at) {
            return;
        }
        self.grant_grace(now);
        let restarting_all =
            self.restarting_all() || restart_all_sources(&self.pod, &snapshot).next().is_some();
        self.memory.take_in(&self.pod, &snapshot, restarting_all);
        let may_run = |id: &ContainerId| {
            snapshot.containers.iter().any(|container| container.id == *id && container.may_run())
        };
        // A container that is gone or dead needs no killing any more.
        self.kills.retain(|id, _| may_run(id));
        if !snapshot.any_may_run() {
            self.replacement_deadline = None;
        }
        self.owed_restarts.retain(|name, stopped| {
            snapshot.newest(name).is_none_or(|newest| {
                newest.id == *stopped || newest.state == ContainerState::Created
            })
        });
        let in_flight = &self.in_flight;
        self.start_failures.retain(|name, failure| {
            in_flight.contains_key(&ActionKey::Start(name.clone()))
                || failure.reason == reasons::POST_START_HOOK_ERROR
                || !snapshot.newest(name).is_some_and(ContainerSnapshot::is_running)
        });
        self.retries.retain(|key, _| match key {
            ActionKey::Stop(id) => may_run(id),
            ActionKey::Remove(id) => snapshot.containers.iter().any(|c| c.id == *id),
            ActionKey::StopSandbox(id) => snapshot
                .sandboxes
                .iter()
                .any(|sandbox| sandbox.id == *id && sandbox.state == SandboxState::Ready),
            ActionKey::RemoveSandbox(id) => snapshot.sandboxes.iter().any(|s| s.id == *id),
            _ => true,
        });
        self.snapshot = Some(snapshot);
        self.snapshot_stale = false;
    }

    fn action_started(&mut self, action: &Action, now: Timestamp) {
        let mut in_flight = InFlight { until: None, cancelled: false, hash: None };
        match action {
            Action::RunPreStop { id, name, budget, reason } => {
                let deadline = later(now, *budget);
                in_flight.until = Some(deadline);
                self.note_kill(id, name, reason, deadline).pre_stop = PreStop::Running;
            }
            Action::StopContainer(stop) => {
                let deadline = later(now, stop.timeout);
                in_flight.until = Some(deadline);
                let kill = self.note_kill(&stop.id, &stop.name, &stop.reason, deadline);
                if kill.pre_stop == PreStop::Running {
                    kill.pre_stop = PreStop::Over;
                }
            }
            Action::StartContainer(start) => {
                in_flight.hash =
                    find_container(&self.pod, &start.name).map(|spec| hash_of(&spec.container));
                self.note_restart(&start.name, now);
            }
            Action::CreateSandbox { .. } => {
                self.sandbox_failure = None;
                self.replacement_deadline = None;
            }
            Action::PreparePod => self.preparation.begin(),
            Action::MountVolumes => self.volumes.begin(),
            Action::RemoveContainer { id, name, keep_log } => {
                if self.is_removed_to_start_afresh(id, name, *keep_log) {
                    self.memory.forget_end(name);
                }
            }
            Action::StopSandbox { .. }
            | Action::RemoveSandbox { .. }
            | Action::ResizePod
            | Action::ReleasePod
            | Action::RemovePod => {}
        }
        self.in_flight.insert(action.key(), in_flight);
    }

    /// Init containers are removed for a new sandbox, all containers to restart all; of these the
    /// one that asked for it goes on to wait for its back-off.
    fn is_removed_to_start_afresh(&self, id: &ContainerId, name: &str, keep_log: bool) -> bool {
        let Some(spec) = find_container(&self.pod, name) else { return false };
        let newest = self.snapshot.as_ref().and_then(|snapshot| snapshot.newest(name));
        let is_newest = newest.is_some_and(|newest| newest.id == *id);
        let is_source = newest.and_then(end_of).is_some_and(|end| {
            keep_log && exit_restarts_all_containers(&spec.container, end.exit_code)
        });
        is_newest && !is_source && (keep_log || spec.kind == ContainerKind::Init)
    }

    fn note_kill(
        &mut self,
        id: &ContainerId,
        name: &str,
        reason: &StopReason,
        deadline: Timestamp,
    ) -> &mut Kill {
        if reason.owes_restart() {
            self.owed_restarts.insert(name.to_owned(), id.clone());
        }
        if *reason == StopReason::SandboxChanged {
            self.replacement_deadline.get_or_insert(deadline);
        }
        let kill = self.kills.entry(id.clone()).or_insert(Kill {
            deadline,
            reason: reason.clone(),
            pre_stop: PreStop::Over,
        });
        kill.deadline = kill.deadline.min(deadline);
        kill
    }

    fn note_restart(&mut self, name: &str, now: Timestamp) {
        let Some(spec) = find_container(&self.pod, name) else { return };
        let newest = self.snapshot.as_ref().and_then(|snapshot| snapshot.newest(name));
        let end = match newest {
            Some(newest) => end_of(newest),
            None => self.memory.last_end(name),
        };
        if let Some(finished_at) = end.map(|end| end.finished_at) {
            let key = back_off_key(&spec.container);
            self.back_off.note_attempt(&key, finished_at, now, self.back_off_settings);
        }
    }

    fn action_ended(&mut self, key: ActionKey, outcome: ActionOutcome, now: Timestamp) {
        self.in_flight.remove(&key);
        if self.in_flight.is_empty() {
            // A map that is only empty keeps a kilobyte, and pods are at rest most of their time.
            self.in_flight = BTreeMap::new();
        }
        // These change nothing that a snapshot shows.
        let is_visible = !matches!(
            key,
            ActionKey::Prepare
                | ActionKey::MountVolumes
                | ActionKey::Release
                | ActionKey::PreStop(_)
        );
        if is_visible {
            self.fresh_after = self.fresh_after.max(now);
        }
        match &outcome {
            ActionOutcome::SandboxCreated(sandbox) => self.merge_sandbox(sandbox),
            ActionOutcome::ContainerStarted(container) => self.merge_container(container),
            ActionOutcome::Done | ActionOutcome::Failed(_) | ActionOutcome::Cancelled => {
                self.snapshot_stale |= is_visible;
            }
        }
        match key {
            ActionKey::Prepare => self.preparation.end(outcome, now),
            ActionKey::MountVolumes => self.volumes.end(outcome, now),
            ActionKey::CreateSandbox => {
                if let ActionOutcome::Failed(failure) = outcome {
                    self.sandbox_failure = Some(retrying(failure, now));
                }
            }
            ActionKey::Start(name) => match outcome {
                ActionOutcome::Failed(failure) => {
                    let mut failure = retrying(failure, now);
                    if failure.reason == reasons::ERR_IMAGE_PULL {
                        failure.retry_at = failure.retry_at.min(later(now, SHOW_PULL_ERROR));
                    }
                    if failure.reason == reasons::POST_START_HOOK_ERROR {
                        // It ran and was killed: the back-off of crashes says when it runs again.
                        failure.retry_at = now;
                    }
                    self.start_failures.insert(name, failure);
                }
                ActionOutcome::ContainerStarted(_) => {
                    self.start_failures.remove(&name);
                    self.owed_restarts.remove(&name);
                }
                ActionOutcome::Cancelled => {
                    // What may run now is not the one whose hook failed.
                    self.start_failures.retain(|other, failure| {
                        *other != name || failure.reason != reasons::POST_START_HOOK_ERROR
                    });
                }
                ActionOutcome::Done | ActionOutcome::SandboxCreated(_) => {}
            },
            ActionKey::PreStop(id) => {
                if let Some(kill) = self.kills.get_mut(&id) {
                    kill.pre_stop = PreStop::Over;
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
            // What is still due is known elsewhere.
            ActionKey::Resize if outcome == ActionOutcome::Done => {
                self.retries.remove(&ActionKey::Resize);
            }
            ActionKey::Stop(_)
            | ActionKey::Resize
            | ActionKey::StopSandbox(_)
            | ActionKey::Remove(_)
            | ActionKey::RemoveSandbox(_)
            | ActionKey::Release
            | ActionKey::RemovePod => self.note_clean_up(key, outcome, now),
        }
    }

    /// What failed is tried again, slower each time; so is what is said to be done, should the next
    /// snapshot still show it as it was.
    fn note_clean_up(&mut self, key: ActionKey, outcome: ActionOutcome, now: Timestamp) {
        let (message, retry_at) = match outcome {
            ActionOutcome::Failed(failure) => (failure.message, failure.retry_at),
            ActionOutcome::Done => {
                ("done by the runtime's word, and not seen to be yet".to_owned(), None)
            }
            _ => {
                self.retries.remove(&key);
                return;
            }
        };
        let attempts = self.retries.get(&key).map_or(0, |retry| retry.attempts) + 1;
        let delay = Duration::from_millis(500 << attempts.min(6));
        let at = retry_at.unwrap_or(later(now, delay));
        self.retries.insert(key, Retry { attempts, at, message });
    }

    fn merge_sandbox(&mut self, sandbox: &SandboxSnapshot) {
        let Some(snapshot) = &mut self.snapshot else { return };
        // A snapshot that was taken meanwhile may know better: a sandbox that is not ready any more
        // stays so.
        let is_over = |known: &SandboxSnapshot| {
            known.id == sandbox.id && known.state == SandboxState::NotReady
        };
        if snapshot.sandboxes.iter().any(is_over) {
            self.snapshot_stale = true;
            return;
        }
        snapshot.sandboxes.retain(|known| known.id != sandbox.id);
        snapshot.sandboxes.insert(0, sandbox.clone());
    }

    fn merge_container(&mut self, container: &ContainerSnapshot) {
        self.memory.started(container);
        let Some(snapshot) = &mut self.snapshot else { return };
        // The same for a container that has ended meanwhile.
        if snapshot
            .containers
            .iter()
            .any(|known| known.id == container.id && end_of(known).is_some())
        {
            return;
        }
        snapshot.containers.retain(|known| known.id != container.id);
        snapshot.containers.insert(0, container.clone());
    }
}

fn retrying(failure: ActionFailure, now: Timestamp) -> Failure {
    Failure {
        reason: failure.reason,
        message: failure.message,
        retry_at: failure.retry_at.unwrap_or(later(now, RETRY)),
    }
}

/// The hash that tells whether a container is still the one that was defined.
pub(crate) fn hash_of(container: &Container) -> String {
    container_hash(&container.name, container.image.as_deref().unwrap_or_default())
}

pub(crate) fn seconds(value: i64) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}
