//! A model world: a runtime, a source, and a kubelet that loses its memory. It has no opinion of
//! its own; it does what actions say, shows what it holds, and remembers what really happened.

mod invariants;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_pod_status as status;
use rubelet_types::{
    ContainerAnnotations, ContainerId, ContainerKind, ContainerSnapshot, ContainerState,
    PodSnapshot, ProbeKind, ProbeResult, SandboxId, SandboxSnapshot, SandboxState, container_hash,
    container_restarts_after, containers, exit_restarts_all_containers, find_container,
    is_static_pod, is_terminal_phase, pod_ref, pod_restart_policy,
};

use super::evicted;
use super::language::Probes;
use crate::{
    Action, ActionFailure, ActionKey, ActionOutcome, BackOffSettings, ContainerStart, Decision,
    NetworkState, Observed, PodEvent, PodState, ResizeDue, Stage, StopCause, StopReason, decide,
};

/// How an action ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Success,
    /// It failed, or was cancelled, and did nothing.
    Nothing,
    /// It failed, or was cancelled, and had its effect all the same.
    EffectAnyway,
    /// A start that failed between creating and starting.
    Half,
    /// A start that failed, or was cancelled, when the container was created; it comes up later,
    /// whatever became of the kubelet meanwhile.
    HalfThenLater,
    /// It failed, or was cancelled, and has its effect later.
    EffectLater,
    /// A container came up, its postStart hook failed, and it could not be killed.
    HookFailed,
}

/// One thing that happens. Numbers pick one of the candidates there are.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Pass(i64),
    /// The effect of an action in flight happens; its outcome is not known yet.
    Effect(usize),
    Finish(usize, How),
    Late,
    Look,
    Save,
    DeliverSaved,
    Exit(usize, i32),
    LoseTrack(usize),
    SandboxDies,
    Probe(usize, ProbeKind, ProbeResult),
    Network(bool),
    Delete(i64),
    Remove,
    Evict(i64),
    NewImage(usize),
    /// The pod is granted other resources for a container, in place or not.
    Resize(usize, bool),
    Prune(usize),
    /// The kubelet loses its memory. Of the actions in flight those whose bit is set had their
    /// effect.
    Crash(u8),
}

#[derive(Clone, Debug)]
struct Container {
    snapshot: ContainerSnapshot,
    /// It was stopped in order to start again.
    owes_restart: bool,
    /// It came up after the call that started it was given up.
    late: bool,
}

impl Container {
    fn runs(&self) -> bool {
        self.snapshot.may_run()
    }
}

#[derive(Clone, Debug)]
struct Running {
    action: Action,
    cancelled: bool,
    /// What it came to, if its effect happened already.
    effect: Option<Result<ActionOutcome, String>>,
}

/// What the kubelet promised in its present life.
#[derive(Debug, Default)]
struct Promises {
    rank: u8,
    grace: Option<(i64, Timestamp)>,
    /// When a container must be dead at the latest.
    deadlines: BTreeMap<ContainerId, Timestamp>,
    /// The pod's directories and its cgroup are there.
    is_prepared: bool,
    has_volumes: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pod: Pod,
    listed: bool,
    start_time: Option<Timestamp>,
    reported: PodStatus,
    now: Timestamp,
    network: NetworkState,
    resize: ResizeDue,
    probes: Probes,
    sandboxes: Vec<SandboxSnapshot>,
    containers: Vec<Container>,
    /// Highest restart count that left a log, by container.
    logs: BTreeMap<String, u32>,
    late: Vec<Action>,
    /// Containers that were created and come up later.
    about_to_start: Vec<ContainerId>,
    /// Containers to be removed that were only created when that was decided.
    taken_for_created: BTreeSet<ContainerId>,
    saved: Option<PodSnapshot>,
    ids: u32,
    /// Init containers that succeeded and sidecars that started, by sandbox: what really happened.
    initialised: BTreeSet<(SandboxId, String)>,
    state: PodState,
    running: Vec<Running>,
    promises: Promises,
    last: Decision,
    forgotten: bool,
    /// Some container was stopped in order to start again.
    owed_any: bool,
    /// The runtime has forgotten containers by itself.
    pruned: bool,
    trace: Vec<String>,
}

impl World {
    pub(super) fn new(pod: Pod) -> Self {
        let mut world = Self {
            state: PodState::new(pod.clone().into(), BackOffSettings::default()),
            pod,
            listed: true,
            start_time: None,
            reported: PodStatus::default(),
            now: Timestamp::from_second(1000).unwrap(),
            network: NetworkState::Ready,
            resize: ResizeDue::default(),
            probes: Probes::default(),
            sandboxes: Vec::new(),
            containers: Vec::new(),
            logs: BTreeMap::new(),
            late: Vec::new(),
            about_to_start: Vec::new(),
            taken_for_created: BTreeSet::new(),
            saved: None,
            ids: 0,
            initialised: BTreeSet::new(),
            running: Vec::new(),
            promises: Promises::default(),
            last: Decision::default(),
            forgotten: false,
            owed_any: false,
            pruned: false,
            trace: Vec::new(),
        };
        world.apply(PodEvent::Admitted);
        world.decide();
        world
    }

    /// Lets `step` happen, and the kubelet decide and begin what is due.
    pub(super) fn step(&mut self, step: &Step) {
        self.now += std::time::Duration::from_millis(1);
        self.trace.push(format!("{step:?}"));
        match step {
            Step::Pass(seconds) => {
                self.now += std::time::Duration::from_secs(seconds.unsigned_abs());
            }
            Step::Effect(which) => {
                if let Some(index) = pick(self.running.len(), *which) {
                    self.have_effect(index);
                }
            }
            Step::Finish(which, how) => {
                if let Some(index) = pick(self.running.len(), *which) {
                    self.finish(index, *how);
                }
            }
            Step::Late => {
                self.late_starts();
                self.late_effects();
            }
            Step::Look => self.look(),
            Step::Save => self.saved = Some(self.snapshot()),
            Step::DeliverSaved => {
                if let Some(snapshot) = self.saved.take() {
                    self.apply(PodEvent::Observed(Box::new(snapshot)));
                }
            }
            Step::Exit(which, code) => {
                let running: Vec<usize> = self.positions(|c| c.snapshot.is_running());
                if let Some(index) = pick(running.len(), *which) {
                    self.exit(running[index], *code);
                }
            }
            Step::LoseTrack(which) => {
                let running: Vec<usize> = self.positions(|c| c.snapshot.is_running());
                if let Some(index) = pick(running.len(), *which) {
                    self.containers[running[index]].snapshot.state = ContainerState::Unknown;
                }
            }
            Step::SandboxDies => {
                if let Some(id) = self.sandboxes.first().map(|sandbox| sandbox.id.clone()) {
                    self.stop_sandbox(&id);
                }
            }
            Step::Probe(which, kind, result) => {
                let names: Vec<String> =
                    containers(&self.pod).map(|spec| spec.container.name.clone()).collect();
                if let Some(index) = pick(names.len(), *which) {
                    self.probe(&names[index], *kind, *result);
                }
            }
            Step::Network(works) => {
                self.network = if *works {
                    NetworkState::Ready
                } else {
                    NetworkState::NotReady("no".to_owned())
                };
            }
            Step::Delete(grace) if self.listed && !is_static_pod(&self.pod) => {
                let before = self.pod.metadata.deletion_grace_period_seconds.unwrap_or(i64::MAX);
                self.pod.metadata.deletion_timestamp =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now));
                self.pod.metadata.deletion_grace_period_seconds = Some(before.min(*grace));
                self.apply(PodEvent::Updated(self.pod.clone().into()));
            }
            Step::Remove if self.listed => {
                self.listed = false;
                self.apply(PodEvent::Removed);
            }
            Step::Evict(grace) => {
                let stop = PodEvent::Stop { cause: evicted(), grace_seconds: Some(*grace) };
                self.apply(stop);
            }
            Step::NewImage(which) if self.listed => {
                let spec = self.pod.spec.as_mut().unwrap();
                if let Some(index) = pick(spec.containers.len(), *which) {
                    let image = spec.containers[index].image.get_or_insert_default();
                    image.push('x');
                    self.apply(PodEvent::Updated(self.pod.clone().into()));
                }
            }
            Step::Resize(which, in_place) if self.listed => {
                let spec = self.pod.spec.as_mut().unwrap();
                if let Some(index) = pick(spec.containers.len(), *which) {
                    let name = spec.containers[index].name.clone();
                    spec.containers[index].resources.get_or_insert_default();
                    let due = &mut self.resize;
                    let of = if *in_place { &mut due.in_place } else { &mut due.by_restart };
                    of.insert(name);
                    due.pod_cgroup = true;
                    self.apply(PodEvent::Updated(self.pod.clone().into()));
                }
            }
            Step::Prune(which) => {
                let dead: Vec<usize> = self.positions(|c| !c.runs());
                if let Some(index) = pick(dead.len(), *which) {
                    self.containers.remove(dead[index]);
                    self.pruned = true;
                }
            }
            Step::Crash(effects) => self.crash(*effects),
            Step::Delete(_) | Step::Remove | Step::NewImage(_) | Step::Resize(..) => {}
        }
        self.decide();
    }

    fn positions(&self, wanted: impl Fn(&Container) -> bool) -> Vec<usize> {
        (0..self.containers.len()).filter(|index| wanted(&self.containers[*index])).collect()
    }

    fn apply(&mut self, event: PodEvent) {
        let before = self.state.stage().rank();
        self.state.apply(event, self.now);
        assert!(self.state.stage().rank() >= before, "I1: a stage never goes back");
    }

    fn snapshot(&self) -> PodSnapshot {
        PodSnapshot {
            pod: pod_ref(&self.pod),
            taken_at: self.now,
            sandboxes: self.sandboxes.clone(),
            containers: self.containers.iter().map(|c| c.snapshot.clone()).collect(),
        }
    }

    fn look(&mut self) {
        let snapshot = self.snapshot();
        self.apply(PodEvent::Observed(Box::new(snapshot)));
    }

    fn probe(&mut self, name: &str, kind: ProbeKind, result: ProbeResult) {
        self.probes.0.insert((name.to_owned(), kind), result);
    }

    fn exit(&mut self, index: usize, code: i32) {
        let now = self.now;
        let container = &mut self.containers[index];
        container.snapshot.state = ContainerState::Exited {
            started_at: Some(now),
            finished_at: now,
            exit_code: code,
            reason: if code == 0 { "Completed" } else { "Error" }.to_owned(),
            message: String::new(),
        };
        let name = container.snapshot.name.clone();
        let sandbox = container.snapshot.sandbox_id.clone().unwrap();
        let is_init =
            find_container(&self.pod, &name).is_some_and(|spec| spec.kind == ContainerKind::Init);
        if is_init && code == 0 {
            self.initialised.insert((sandbox, name.clone()));
        }
        // A new instance is probed afresh.
        self.probes.0.retain(|(of, _), _| *of != name);
    }

    fn stop_sandbox(&mut self, id: &SandboxId) {
        for sandbox in self.sandboxes.iter_mut().filter(|sandbox| sandbox.id == *id) {
            sandbox.state = SandboxState::NotReady;
        }
        for index in self.positions(|c| c.runs() && c.snapshot.sandbox_id.as_ref() == Some(id)) {
            self.exit(index, 137);
        }
    }

    fn next_id(&mut self, kind: &str) -> String {
        self.ids += 1;
        format!("{kind}{}", self.ids)
    }

    /// Does what `action` says. `Err`: the runtime refuses.
    fn carry_out(&mut self, action: &Action, late: bool) -> Result<ActionOutcome, String> {
        match action {
            Action::PreparePod => {
                self.promises.is_prepared |= !late;
                Ok(ActionOutcome::Done)
            }
            Action::MountVolumes => {
                self.promises.has_volumes |= !late;
                Ok(ActionOutcome::Done)
            }
            Action::RunPreStop { .. } => Ok(ActionOutcome::Done),
            Action::ReleasePod => {
                let runs = self.containers.iter().any(|c| c.runs() && !c.late);
                assert!(!runs, "I8: nothing is released under a container that may run");
                Ok(ActionOutcome::Done)
            }
            Action::CreateSandbox { attempt } => {
                assert!(late || self.promises.is_prepared, "a sandbox lies in its pod's cgroup");
                let is_reserved = self.sandboxes.iter().any(|s| s.attempt == *attempt)
                    || !late && self.late.contains(action);
                if is_reserved {
                    return Err(format!("the name of attempt {attempt} is reserved"));
                }
                let sandbox = SandboxSnapshot {
                    id: self.next_id("s").as_str().into(),
                    state: SandboxState::Ready,
                    attempt: *attempt,
                    created_at: self.now,
                    ips: vec!["10.0.0.1".to_owned()],
                    host_network: false,
                };
                self.sandboxes.insert(0, sandbox.clone());
                Ok(ActionOutcome::SandboxCreated(sandbox))
            }
            Action::StopSandbox { id } => {
                self.stop_sandbox(id);
                Ok(ActionOutcome::Done)
            }
            Action::StartContainer(start) => {
                assert!(
                    late || self.promises.is_prepared && self.promises.has_volumes,
                    "I8: nothing starts before its volumes are there"
                );
                self.start(start, late, true)
            }
            Action::StopContainer(stop) => {
                for index in self.positions(|c| c.snapshot.id == stop.id && c.runs()) {
                    // As well-behaved containers do.
                    self.exit(index, if self.ids.is_multiple_of(2) { 0 } else { 137 });
                }
                Ok(ActionOutcome::Done)
            }
            Action::RemoveContainer { id, .. } => {
                let held = self.containers.iter().find(|c| c.snapshot.id == *id);
                if self.taken_for_created.contains(id)
                    && held.is_some_and(|held| held.snapshot.state != ContainerState::Created)
                {
                    // Whoever removes such a one looks at it once more.
                    return Err(format!("container {id} was started meanwhile"));
                }
                assert!(
                    !held.is_some_and(Container::runs),
                    "a container that may run is not removed"
                );
                self.containers.retain(|c| c.snapshot.id != *id);
                Ok(ActionOutcome::Done)
            }
            Action::ResizePod => {
                let runs = |name: &String| {
                    self.containers.iter().any(|c| c.runs() && c.snapshot.name == *name)
                };
                self.resize.by_restart.retain(runs);
                self.resize.in_place.clear();
                self.resize.pod_cgroup = false;
                Ok(ActionOutcome::Done)
            }
            Action::RemoveSandbox { id } => {
                let is_used =
                    self.containers.iter().any(|c| c.snapshot.sandbox_id.as_ref() == Some(id));
                assert!(!is_used, "a sandbox that holds containers is not removed");
                self.sandboxes.retain(|sandbox| sandbox.id != *id);
                Ok(ActionOutcome::Done)
            }
            Action::RemovePod => {
                self.containers.clear();
                self.sandboxes.clear();
                Ok(ActionOutcome::Done)
            }
        }
    }

    fn start(
        &mut self,
        start: &ContainerStart,
        late: bool,
        to_the_end: bool,
    ) -> Result<ActionOutcome, String> {
        let name = start.name.clone();
        let ready =
            self.sandboxes.iter().any(|s| s.id == start.sandbox && s.state == SandboxState::Ready);
        if !ready {
            return Err("sandbox is not ready".to_owned());
        }
        let count =
            start.restart_count.unwrap_or_else(|| self.logs.get(&name).map_or(0, |last| last + 1));
        // As containerd reserves a name for as long as a call works on it, given up or not.
        let is_reserved = self
            .containers
            .iter()
            .any(|c| c.snapshot.name == name && c.snapshot.restart_count == count)
            || !late
                && self.late.iter().any(
                    |action| matches!(action, Action::StartContainer(other) if other.name == name),
                );
        if is_reserved {
            return Err(format!("the name {name}_{count} is reserved"));
        }
        self.check_start(start);
        self.resize.by_restart.remove(&name);
        self.resize.in_place.remove(&name);
        let image = find_container(&self.pod, &name)
            .and_then(|spec| spec.container.image.clone())
            .unwrap_or_default();
        let snapshot = ContainerSnapshot {
            id: self.next_id("c").as_str().into(),
            name: name.clone(),
            sandbox_id: Some(start.sandbox.clone()),
            state: if to_the_end {
                ContainerState::Running { started_at: self.now }
            } else {
                ContainerState::Created
            },
            created_at: self.now,
            image: image.clone(),
            image_ref: image.clone(),
            hash: container_hash(&name, &image),
            restart_count: count,
            annotations: ContainerAnnotations::default(),
            resources: None,
            user: None,
            log_path: String::new(),
            mounts: BTreeMap::new(),
            stop_signal: None,
        };
        self.containers
            .insert(0, Container { snapshot: snapshot.clone(), owes_restart: false, late });
        if to_the_end {
            self.logs.insert(name, count);
        }
        Ok(ActionOutcome::ContainerStarted(Box::new(snapshot)))
    }

    fn have_effect(&mut self, index: usize) {
        if self.running[index].effect.is_none() {
            let action = self.running[index].action.clone();
            let effect = self.carry_out(&action, false);
            self.running[index].effect = Some(effect);
        }
    }

    fn finish(&mut self, index: usize, how: How) {
        let can_be_late = self.running[index].effect.is_none()
            && matches!(
                self.running[index].action,
                Action::StartContainer(_) | Action::CreateSandbox { .. }
            );
        match how {
            How::Success | How::EffectAnyway | How::HookFailed => self.have_effect(index),
            How::Half | How::HalfThenLater if can_be_late => {
                if let Action::StartContainer(start) = self.running[index].action.clone() {
                    // Whether it is refused or not: it failed.
                    let made = self.start(&start, false, false);
                    if let (How::HalfThenLater, Ok(ActionOutcome::ContainerStarted(made))) =
                        (how, made)
                    {
                        self.about_to_start.push(made.id);
                    }
                }
            }
            How::EffectLater if can_be_late => {
                self.late.push(self.running[index].action.clone());
            }
            How::Nothing | How::Half | How::HalfThenLater | How::EffectLater => {}
        }
        let running = self.running.remove(index);
        let fail = |message: String| {
            let reason = if message.len().is_multiple_of(2) { "ErrImagePull" } else { "" };
            ActionOutcome::Failed(ActionFailure { reason, message, retry_at: None })
        };
        let outcome = match (how, running.effect) {
            (How::Success, Some(Ok(outcome))) => outcome,
            (_, Some(Err(message))) => fail(message),
            (How::HookFailed, Some(Ok(ActionOutcome::ContainerStarted(_))))
                if !running.cancelled =>
            {
                ActionOutcome::Failed(ActionFailure {
                    reason: rubelet_types::reasons::POST_START_HOOK_ERROR,
                    message: "no luck".to_owned(),
                    retry_at: None,
                })
            }
            _ if running.cancelled => ActionOutcome::Cancelled,
            _ => fail("it did not work".to_owned()),
        };
        self.apply(PodEvent::ActionEnded(running.action.key(), outcome));
    }

    fn late_effects(&mut self) {
        for action in std::mem::take(&mut self.late) {
            // Nobody waits for the outcome any more.
            let _ = self.carry_out(&action, true);
        }
        // The runtime's event comes before the next decision: a start that is decided between the
        // effect and the event would make a second instance, which is then stopped.
        self.look();
    }

    /// What was created comes up, unless it was removed meanwhile or its sandbox died.
    fn late_starts(&mut self) {
        for id in std::mem::take(&mut self.about_to_start) {
            let Some(index) = self.positions(|c| c.snapshot.id == id).first().copied() else {
                continue;
            };
            let Container { snapshot, .. } = &self.containers[index];
            let (name, count) = (snapshot.name.clone(), snapshot.restart_count);
            let ready = self.sandboxes.iter().any(|sandbox| {
                Some(&sandbox.id) == snapshot.sandbox_id.as_ref()
                    && sandbox.state == SandboxState::Ready
            });
            if !ready || snapshot.state != ContainerState::Created {
                continue;
            }
            let twin = self.containers.iter().any(|c| c.runs() && c.snapshot.name == name);
            assert!(!twin, "I9: two instances of {name} run");
            let container = &mut self.containers[index];
            container.snapshot.state = ContainerState::Running { started_at: self.now };
            container.late = true;
            self.logs.insert(name, count);
        }
    }

    fn crash(&mut self, effects: u8) {
        for (bit, running) in std::mem::take(&mut self.running).into_iter().enumerate() {
            if running.effect.is_none() && effects & (1 << (bit % 8)) != 0 {
                let _ = self.carry_out(&running.action, false);
            }
        }
        self.saved = None;
        // A container that came up while nobody watched is simply there.
        self.late_effects();
        // Once the pod was said to have ended, nothing can be said of what comes up after that.
        let has_ended = is_terminal_phase(self.reported.phase.as_deref());
        for container in &mut self.containers {
            container.owes_restart = false;
            container.late &= has_ended;
        }
        if !self.forgotten {
            self.take_up();
        }
    }

    /// A worker without memory takes up the pod.
    fn take_up(&mut self) {
        self.promises = Promises::default();
        self.forgotten = false;
        let mut pod = self.pod.clone();
        if is_static_pod(&pod) {
            self.reported = PodStatus::default();
        }
        pod.status = Some(self.reported.clone());
        self.state = PodState::new(pod.into(), BackOffSettings::default());
        if self.listed {
            if let Some(time) = self.start_time {
                self.apply(PodEvent::StartTime(time));
            }
            self.apply(PodEvent::Admitted);
            if is_terminal_phase(self.reported.phase.as_deref()) {
                self.apply(PodEvent::Stop { cause: StopCause::Completed, grace_seconds: None });
            }
        } else {
            let stop = PodEvent::Stop { cause: StopCause::Orphaned, grace_seconds: Some(1) };
            self.apply(stop);
            self.apply(PodEvent::Removed);
        }
    }

    /// Decides and begins what is due, as a worker does.
    fn decide(&mut self) {
        for _ in 0..6 {
            self.note_started_sidecars();
            let probes = std::mem::take(&mut self.probes);
            let network = self.network.clone();
            let resize = self.resize.clone();
            let observed = Observed {
                probes: &probes,
                network: &network,
                resize: Some(&resize).filter(|due| **due != ResizeDue::default()),
            };
            let decision = decide(&self.state, &observed, self.now);
            assert_eq!(decision, decide(&self.state, &observed, self.now), "I6");
            self.probes = probes;
            if !decision.actions.is_empty() || decision.enter.is_some() {
                let actions: Vec<String> =
                    decision.actions.iter().map(|action| action.key().to_string()).collect();
                self.trace.push(format!(
                    "    {}: {}",
                    actions.join(", "),
                    decision.because.join("; ")
                ));
            }
            self.check(&decision);
            for key in &decision.cancel {
                for running in self.running.iter_mut().filter(|r| r.action.key() == *key) {
                    running.cancelled = true;
                }
                self.apply(PodEvent::ActionCancelled(key.clone()));
            }
            for action in &decision.actions {
                self.begin(action.clone(), &decision);
            }
            self.report(&decision);
            self.last = decision.clone();
            match decision.enter {
                Some(stage) => self.apply(PodEvent::Entered(stage)),
                None => {
                    self.forgotten = self.state.can_be_forgotten();
                    return;
                }
            }
        }
        panic!("I5: the stages do not come to rest");
    }

    fn begin(&mut self, action: Action, decision: &Decision) {
        let key = action.key();
        let in_flight = self.running.iter().any(|running| running.action.key() == key);
        assert!(
            !in_flight || decision.cancel.contains(&key),
            "at most one action of a key is in flight: {key}"
        );
        // The outcome of the one that is replaced is not waited for; its effect may happen.
        self.running.retain(|running| running.action.key() != key);
        if let Action::StartContainer(start) = &action {
            let starting = self
                .running
                .iter()
                .filter(|running| matches!(running.action, Action::StartContainer(_)))
                .count();
            assert_eq!(starting, 0, "containers start one after the other");
            self.check_policy(start);
        }
        if let Action::RemoveContainer { id, name, keep_log } = &action {
            self.check_removal(id, name, *keep_log);
            let seen = self.state.snapshot().into_iter().flat_map(|seen| &seen.containers);
            let mut named = seen.filter(|seen| seen.id == *id);
            if named.any(|seen| seen.state == ContainerState::Created) {
                self.taken_for_created.insert(id.clone());
            } else {
                self.taken_for_created.remove(id);
            }
        }
        let stopped = match &action {
            Action::RunPreStop { id, reason, .. } => Some((id, reason)),
            Action::StopContainer(stop) => Some((&stop.id, &stop.reason)),
            _ => None,
        };
        if let Some((
            id,
            StopReason::SpecChanged
            | StopReason::Unknown
            | StopReason::ProbeFailed(_)
            | StopReason::Resized,
        )) = stopped
        {
            for container in self.containers.iter_mut().filter(|c| c.snapshot.id == *id) {
                container.owes_restart = true;
            }
        }
        self.start_time.get_or_insert(self.now);
        self.apply(PodEvent::ActionStarted(action.clone()));
        let action = match action {
            // Whoever carries it out looks into the log directory first.
            Action::StartContainer(mut start) => {
                let next = self.logs.get(&start.name).map_or(0, |last| last + 1);
                start.restart_count.get_or_insert(next);
                Action::StartContainer(start)
            }
            action => action,
        };
        self.running.push(Running { action, cancelled: false, effect: None });
    }

    pub(super) fn trace(&self) -> String {
        self.trace.join("\n")
    }
}

fn pick(candidates: usize, number: usize) -> Option<usize> {
    number.checked_rem(candidates)
}
