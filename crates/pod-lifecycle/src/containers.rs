//! What to do about the containers of a pod whose sandbox is good.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_types::{
    ContainerId, ContainerKind, ContainerSnapshot, ContainerSpec, ContainerState, PodSnapshot,
    ProbeKind, ProbeResult, RestartPolicy, SandboxId, containers, format_go_duration,
    pod_restart_policy, reasons,
};
use serde::Serialize;

use crate::action::{ActionKey, ContainerStart, StopReason};
use crate::decide::Observed;
use crate::init_containers::{InitProgress, plan_init_containers};
use crate::resize::ResizeDue;
use crate::state::{PodState, hash_of, seconds};

/// A container that waits before it is started again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerWaiting {
    /// The container's name.
    pub name: String,
    /// `CrashLoopBackOff`.
    pub reason: &'static str,
    /// The text that status shows.
    pub message: String,
    /// Until when.
    pub until: Timestamp,
}

/// A container to stop although the pod goes on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ContainerKill<'a> {
    pub(crate) container: &'a ContainerSnapshot,
    pub(crate) reason: StopReason,
    pub(crate) grace: Duration,
}

/// A container to start, and why.
#[derive(Debug)]
pub(crate) struct PlannedStart {
    pub(crate) start: ContainerStart,
    pub(crate) why: &'static str,
}

/// What is due for the containers.
#[derive(Debug, Default)]
pub(crate) struct ContainerPlan<'a> {
    pub(crate) kills: Vec<ContainerKill<'a>>,
    /// What was created and never started, and would hold up a start.
    pub(crate) removals: Vec<&'a ContainerSnapshot>,
    /// In the order in which they are started, one after the other.
    pub(crate) starts: Vec<PlannedStart>,
    pub(crate) waiting: Vec<ContainerWaiting>,
    pub(crate) wake_at: Option<Timestamp>,
    pub(crate) needs_snapshot: bool,
    /// Why the pod cannot go on.
    pub(crate) gives_up: Option<String>,
    pub(crate) because: Vec<String>,
}

impl ContainerPlan<'_> {
    fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// The context of one planning pass.
pub(crate) struct Planning<'a> {
    pub(crate) state: &'a PodState,
    pub(crate) snapshot: &'a PodSnapshot,
    pub(crate) sandbox: &'a SandboxId,
    pub(crate) observed: &'a Observed<'a>,
    pub(crate) now: Timestamp,
}

/// Back-off is kept by what the container is: a new image or new resources start afresh.
pub(crate) fn back_off_key(container: &Container) -> String {
    let resources = container.resources.as_ref().map(|r| format!("{r:?}")).unwrap_or_default();
    format!("{}\0{}\0{resources}", container.name, container.image.as_deref().unwrap_or_default())
}

pub(crate) fn regular_containers(pod: &Pod) -> impl Iterator<Item = ContainerSpec<'_>> {
    containers(pod).filter(|spec| spec.kind == ContainerKind::Regular)
}

pub(crate) fn plan_containers<'a>(planning: &Planning<'a>) -> ContainerPlan<'a> {
    let mut plan = ContainerPlan::default();
    let pod = &planning.state.pod;
    for spec in containers(pod).filter(|spec| spec.kind == ContainerKind::Ephemeral) {
        let name = spec.container.name.as_str();
        // Never twice, even if the runtime has forgotten it.
        if planning.snapshot.newest(name).is_none() && !planning.state.memory.has_run(name) {
            planning.begin(&spec, &mut plan, "it was added to the pod");
        }
    }
    match plan_init_containers(planning, &mut plan) {
        InitProgress::Underway => return plan,
        InitProgress::Done => {}
    }
    for spec in regular_containers(pod) {
        match planning.snapshot.newest(&spec.container.name) {
            Some(newest) => planning.keep_as_wanted(&spec, newest, &mut plan),
            None => planning.begin(&spec, &mut plan, "it has not run yet"),
        }
    }
    plan
}

impl<'a> Planning<'a> {
    /// Starts, restarts or stops one container of which `newest` exists, so that it is as the spec
    /// wants it.
    pub(crate) fn keep_as_wanted(
        &self,
        spec: &ContainerSpec<'_>,
        newest: &'a ContainerSnapshot,
        plan: &mut ContainerPlan<'a>,
    ) {
        let name = spec.container.name.as_str();
        if self.is_starting(name) {
            return;
        }
        let others_run = self.stop_others(name, Some(&newest.id), plan);
        match &newest.state {
            ContainerState::Running { .. } => {
                if let Some((reason, grace)) = self.stop_reason(spec, newest) {
                    plan.because.push(format!("stop {name}: {}", reason.message(name)));
                    plan.kills.push(ContainerKill { container: newest, reason, grace });
                }
            }
            ContainerState::Unknown => {
                let reason = StopReason::Unknown;
                plan.because.push(format!("stop {name}: {}", reason.message(name)));
                plan.kills.push(ContainerKill {
                    container: newest,
                    reason,
                    grace: self.pod_grace(),
                });
            }
            ContainerState::Created | ContainerState::Exited { .. } if others_run => {}
            ContainerState::Created => {
                if !self.rests(spec, plan) {
                    self.start(spec, Some(newest), plan, "it was created and never started");
                }
            }
            ContainerState::Exited { finished_at, .. } => {
                if !self.rests(spec, plan) {
                    self.restart(spec, Some(newest), *finished_at, plan);
                }
            }
        }
    }

    /// Starts a container of which nothing exists where it belongs.
    pub(crate) fn begin(
        &self,
        spec: &ContainerSpec<'_>,
        plan: &mut ContainerPlan<'a>,
        why: &'static str,
    ) {
        let name = spec.container.name.as_str();
        if self.is_starting(name) || self.stop_others(name, None, plan) {
            return;
        }
        let forgotten = match self.snapshot.newest(name) {
            Some(_) => None,
            None => self.state.memory.last_end(name),
        };
        match forgotten {
            // Init containers may run twice.
            Some(end) if !(spec.kind == ContainerKind::Init && end.init_succeeded()) => {
                if !self.rests(spec, plan) {
                    self.restart(spec, None, end.finished_at, plan);
                }
            }
            _ => self.start(spec, None, plan, why),
        }
    }

    fn is_starting(&self, name: &str) -> bool {
        self.state.in_flight.contains_key(&ActionKey::Start(name.to_owned()))
    }

    /// Stops instances of a container that may run beside the one that counts. Answers whether
    /// there are any: before they are dead no other may start.
    fn stop_others(
        &self,
        name: &str,
        counts: Option<&ContainerId>,
        plan: &mut ContainerPlan<'a>,
    ) -> bool {
        let before = plan.kills.len();
        let others = self
            .snapshot
            .containers
            .iter()
            .filter(|c| c.name == name && c.may_run() && Some(&c.id) != counts);
        plan.kills.extend(others.map(|container| ContainerKill {
            container,
            reason: StopReason::Superseded,
            grace: self.pod_grace(),
        }));
        let any = plan.kills.len() > before;
        if any {
            plan.because.push(format!("stop {name}: another instance of it runs"));
        }
        any
    }

    /// Whether a container that does not run is left as it is.
    fn rests(&self, spec: &ContainerSpec<'_>, plan: &mut ContainerPlan<'a>) -> bool {
        let name = spec.container.name.as_str();
        let Some(end) = self.state.known_end(self.snapshot, name) else { return false };
        let rests = end.is_final(pod_restart_policy(&self.state.pod), spec)
            // One that succeeded before is only created again because the pod is set up again.
            && !(spec.kind == ContainerKind::Init && end.init_succeeded());
        if rests {
            plan.because.push(format!(
                "leave {name}: it ended with exit code {} and its restart policy lets it rest",
                end.exit_code
            ));
        }
        rests
    }

    /// Starts a container that ended at `finished_at`, unless it has to wait for its back-off.
    fn restart(
        &self,
        spec: &ContainerSpec<'_>,
        previous: Option<&ContainerSnapshot>,
        finished_at: Timestamp,
        plan: &mut ContainerPlan<'a>,
    ) {
        let name = &spec.container.name;
        let waiting = self.state.back_off.waiting_until(
            &back_off_key(&spec.container),
            self.state.ended_at(finished_at, self.now),
            self.now,
            self.state.back_off_settings,
        );
        if let Some((until, delay)) = waiting {
            let delay = format_go_duration(delay);
            plan.because.push(format!("wait with {name}: back-off {delay} until {until}"));
            plan.wake(until);
            plan.waiting.push(ContainerWaiting {
                name: name.clone(),
                reason: reasons::CRASH_LOOP_BACK_OFF,
                message: format!(
                    "back-off {delay} restarting failed container={name} pod={}",
                    self.state.pod_ref
                ),
                until,
            });
            return;
        }
        self.start(spec, previous, plan, "it ended and is to run again");
    }

    /// Plans a start, unless the last one failed a short while ago.
    fn start(
        &self,
        spec: &ContainerSpec<'_>,
        previous: Option<&ContainerSnapshot>,
        plan: &mut ContainerPlan<'a>,
        why: &'static str,
    ) {
        let name = &spec.container.name;
        if let Some(failure) = self.state.start_failures.get(name)
            && failure.retry_at > self.now
        {
            plan.because.push(format!(
                "wait with {name}: {}: {}; next try at {}",
                failure.reason, failure.message, failure.retry_at
            ));
            plan.wake(failure.retry_at);
            return;
        }
        if let Some(failure) = self.state.start_failures.get(name)
            && self.snapshot.taken_at < failure.retry_at
        {
            // A call that was given up may have had its effect since.
            plan.because.push(format!("look at the runtime before {name} is tried again"));
            plan.needs_snapshot = true;
            return;
        }
        // Whoever created it may have had it started and died meanwhile, or given up, and the
        // runtime may be about to do it. What is gone cannot come up beside its successor.
        let before = plan.removals.len();
        let containers = self.snapshot.containers.iter();
        plan.removals
            .extend(containers.filter(|c| c.name == *name && c.state == ContainerState::Created));
        if plan.removals.len() > before {
            plan.because.push(format!("remove {name} before it is created anew: it never started"));
            return;
        }
        let known = self.state.memory.restart_count(name);
        let count = previous.map(|previous| previous.restart_count).max(known);
        plan.starts.push(PlannedStart {
            start: ContainerStart {
                name: name.clone(),
                kind: spec.kind,
                sandbox: self.sandbox.clone(),
                restart_count: count.map(|count| count.saturating_add(1)),
                target: spec
                    .target
                    .and_then(|target| self.snapshot.newest(target))
                    .map(|target| target.id.clone()),
            },
            why,
        });
    }

    /// Why a running container has to be stopped, and how long it may take.
    fn stop_reason(
        &self,
        spec: &ContainerSpec<'_>,
        running: &ContainerSnapshot,
    ) -> Option<(StopReason, Duration)> {
        // A stop that was begun is finished, even if its reason went away: the container has had
        // its hook or its signal.
        if let Some(kill) = self.state.kills.get(&running.id) {
            let left = kill.deadline.duration_since(self.now);
            return Some((kill.reason.clone(), Duration::try_from(left).unwrap_or(Duration::ZERO)));
        }
        let container = &spec.container;
        let failure = self.state.start_failures.get(&container.name);
        if failure.is_some_and(|failure| failure.reason == reasons::POST_START_HOOK_ERROR) {
            return Some((StopReason::PostStartHookFailed, self.pod_grace()));
        }
        if !running.hash.is_empty() && running.hash != hash_of(container) {
            return Some((StopReason::SpecChanged, self.pod_grace()));
        }
        let probes = [
            (ProbeKind::Liveness, container.liveness_probe.as_ref()),
            (ProbeKind::Startup, container.startup_probe.as_ref()),
        ];
        for (kind, probe) in probes {
            let Some(probe) = probe else { continue };
            if self.observed.probes.result(&container.name, &running.id, kind)
                == Some(ProbeResult::Failure)
            {
                let grace =
                    probe.termination_grace_period_seconds.map_or(self.pod_grace(), seconds);
                let reason = if self.restarts_after_stop(spec) {
                    StopReason::ProbeFailed(kind)
                } else {
                    StopReason::ProbeFailedForGood(kind)
                };
                return Some((reason, grace));
            }
        }
        let is_due = |due: &ResizeDue| due.by_restart.contains(&container.name);
        self.observed.resize.is_some_and(is_due).then(|| (StopReason::Resized, self.pod_grace()))
    }

    /// A container that failed is stopped in order to start again, unless its policy is `Never`. Its
    /// restart rules are not asked: it did not end by itself.
    pub(crate) fn restarts_after_stop(&self, spec: &ContainerSpec<'_>) -> bool {
        let own = spec.container.restart_policy.as_deref();
        let policy = own.map_or_else(
            || pod_restart_policy(&self.state.pod),
            |own| RestartPolicy::parse(Some(own)),
        );
        policy != RestartPolicy::Never
    }

    /// It was stopped in order to start again.
    pub(crate) fn is_owed_a_restart(&self, spec: &ContainerSpec<'_>) -> bool {
        self.state.owed_restarts.contains_key(&spec.container.name)
    }

    /// The startup probe succeeded, or there is none.
    pub(crate) fn has_started(&self, spec: &ContainerSpec<'_>, id: &ContainerId) -> bool {
        spec.container.startup_probe.is_none()
            || self.observed.probes.result(&spec.container.name, id, ProbeKind::Startup)
                == Some(ProbeResult::Success)
    }

    fn pod_grace(&self) -> Duration {
        seconds(rubelet_types::termination_grace_seconds(&self.state.pod))
    }
}
