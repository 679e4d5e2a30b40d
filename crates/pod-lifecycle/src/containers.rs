//! What to do about the containers of a pod whose sandbox is good.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_types::{
    ContainerId, ContainerKind, ContainerSnapshot, ContainerSpec, ContainerState, PodSnapshot,
    ProbeKind, ProbeResult, RestartPolicy, SandboxId, container_hash, container_restarts_after,
    containers, format_go_duration, pod_restart_policy, reasons,
};
use serde::Serialize;

use crate::action::{ActionKey, ContainerStart, StopReason};
use crate::decide::Observed;
use crate::init_containers::{InitProgress, has_failed_for_good, plan_init_containers};
use crate::state::{PodState, seconds};

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

/// What is due for the containers.
#[derive(Debug, Default)]
pub(crate) struct ContainerPlan<'a> {
    pub(crate) kills: Vec<ContainerKill<'a>>,
    /// In the order in which they are started, one after the other.
    pub(crate) starts: Vec<ContainerStart>,
    pub(crate) waiting: Vec<ContainerWaiting>,
    pub(crate) wake_at: Option<Timestamp>,
    pub(crate) because: Vec<String>,
}

impl ContainerPlan<'_> {
    pub(crate) fn wake(&mut self, at: Timestamp) {
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

/// How a container ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) exit_code: i32,
    pub(crate) reason: &'a str,
    pub(crate) finished_at: Timestamp,
}

impl End<'_> {
    /// It ended well. A container that was killed for memory failed, whatever its exit code.
    pub(crate) fn succeeded(&self) -> bool {
        self.exit_code == 0 && self.reason != reasons::OOM_KILLED
    }

    /// It will not be started again.
    pub(crate) fn is_final(&self, policy: RestartPolicy, spec: &ContainerSpec<'_>) -> bool {
        let reason = Some(self.reason);
        !container_restarts_after(policy, spec.kind, &spec.container, self.exit_code, reason)
    }
}

pub(crate) fn end_of(container: &ContainerSnapshot) -> Option<End<'_>> {
    match &container.state {
        ContainerState::Exited { exit_code, reason, finished_at, .. } => {
            Some(End { exit_code: *exit_code, reason, finished_at: *finished_at })
        }
        _ => None,
    }
}

pub(crate) fn succeeded(container: &ContainerSnapshot) -> bool {
    end_of(container).is_some_and(|end| end.succeeded())
}

/// No container of the pod runs, and none will be started again: an init container failed for
/// good, or every regular container ended for good.
pub fn is_pod_done(pod: &Pod, snapshot: &PodSnapshot) -> bool {
    if has_failed_for_good(pod, snapshot) {
        return true;
    }
    let policy = pod_restart_policy(pod);
    regular_containers(pod).all(|spec| {
        snapshot
            .newest(&spec.container.name)
            .and_then(end_of)
            .is_some_and(|end| end.is_final(policy, &spec))
    })
}

pub(crate) fn plan_containers<'a>(planning: &Planning<'a>) -> ContainerPlan<'a> {
    let mut plan = ContainerPlan::default();
    let pod = &planning.state.pod;
    for spec in containers(pod).filter(|spec| spec.kind == ContainerKind::Ephemeral) {
        if planning.snapshot.newest(&spec.container.name).is_none() {
            planning.start(&spec, None, &mut plan, "it was added to the pod");
        }
    }
    match plan_init_containers(planning, &mut plan) {
        InitProgress::Underway => return plan,
        InitProgress::Done => {}
    }
    for spec in regular_containers(pod) {
        planning.keep_as_wanted(&spec, planning.snapshot.newest(&spec.container.name), &mut plan);
    }
    plan
}

impl<'a> Planning<'a> {
    /// Starts, restarts or stops one container so that it is as the spec wants it.
    pub(crate) fn keep_as_wanted(
        &self,
        spec: &ContainerSpec<'_>,
        newest: Option<&'a ContainerSnapshot>,
        plan: &mut ContainerPlan<'a>,
    ) {
        let name = &spec.container.name;
        let Some(container) = newest else {
            return self.start(spec, None, plan, "it has not run yet");
        };
        if self.state.in_flight.contains_key(&ActionKey::Start(name.clone())) {
            return;
        }
        match &container.state {
            ContainerState::Created => {
                self.start(spec, newest, plan, "it was created and never started");
            }
            ContainerState::Unknown => plan.kills.push(ContainerKill {
                container,
                reason: StopReason::Unknown,
                grace: self.pod_grace(),
            }),
            ContainerState::Running { .. } => {
                if let Some((reason, grace)) = self.stop_reason(spec, container) {
                    plan.because.push(format!("stop {name}: {}", reason.message(name)));
                    plan.kills.push(ContainerKill { container, reason, grace });
                }
            }
            ContainerState::Exited { .. } => {
                let Some(end) = end_of(container) else { return };
                if end.is_final(pod_restart_policy(&self.state.pod), spec) {
                    plan.because.push(format!(
                        "leave {name}: it ended with exit code {} and its restart policy lets it rest",
                        end.exit_code
                    ));
                    return;
                }
                self.restart(spec, container, end.finished_at, plan);
            }
        }
    }

    fn restart(
        &self,
        spec: &ContainerSpec<'_>,
        container: &'a ContainerSnapshot,
        finished_at: Timestamp,
        plan: &mut ContainerPlan<'a>,
    ) {
        let name = &spec.container.name;
        let waiting = self.state.back_off.waiting_until(
            &back_off_key(&spec.container),
            finished_at,
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
        self.start(spec, Some(container), plan, "it ended and its restart policy starts it again");
    }

    /// Plans a start, unless the last one failed a short while ago.
    pub(crate) fn start(
        &self,
        spec: &ContainerSpec<'_>,
        previous: Option<&ContainerSnapshot>,
        plan: &mut ContainerPlan<'a>,
        why: &str,
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
        plan.because.push(format!("start {name}: {why}"));
        plan.starts.push(ContainerStart {
            name: name.clone(),
            kind: spec.kind,
            sandbox: self.sandbox.clone(),
            restart_count: previous.map(|previous| previous.restart_count.saturating_add(1)),
            target: spec
                .target
                .and_then(|target| self.snapshot.newest(target))
                .map(|target| target.id.clone()),
        });
    }

    fn stop_reason(
        &self,
        spec: &ContainerSpec<'_>,
        running: &ContainerSnapshot,
    ) -> Option<(StopReason, Duration)> {
        let container = &spec.container;
        let wanted =
            container_hash(&container.name, container.image.as_deref().unwrap_or_default());
        if !running.hash.is_empty() && running.hash != wanted {
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
                return Some((StopReason::ProbeFailed(kind), grace));
            }
        }
        None
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
