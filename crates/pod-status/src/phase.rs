//! The phase that follows from the container statuses alone.

use std::fmt;

use k8s_openapi::api::core::v1::ContainerStateTerminated;
use rubelet_types::{ContainerKind, RestartPolicy, container_restarts_after, reasons};

use crate::containers::{Reported, Seen};

/// A pod's phase as this kubelet computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

impl Phase {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    pub(crate) fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What decides the phase beside the containers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhaseFacts {
    pub(crate) restart_policy: RestartPolicy,
    /// A regular container exists in the present sandbox: initialisation is behind it.
    pub(crate) initialized: bool,
    /// Nothing is restarted any more, whatever the policy.
    pub(crate) over: bool,
}

/// Counts of containers by what they mean for the phase.
#[derive(Debug, Default)]
struct Tally {
    init_failed_for_good: usize,
    init_pending: usize,
    sidecars_unstarted: usize,
    running: usize,
    waiting: usize,
    stopped: usize,
    stopped_restartable: usize,
    succeeded: usize,
}

/// Computes the phase from the statuses of all containers.
pub(crate) fn compute_phase(facts: PhaseFacts, containers: &[Reported<'_>]) -> Phase {
    let tally = tally(facts.restart_policy, containers);
    if tally.init_failed_for_good > 0 {
        return Phase::Failed;
    }
    let sidecars_hold_up = tally.sidecars_unstarted > 0 && !facts.initialized;
    if tally.init_pending > 0 || sidecars_hold_up || tally.waiting > 0 {
        return Phase::Pending;
    }
    if tally.running > 0 {
        return Phase::Running;
    }
    if tally.stopped == 0 {
        return Phase::Pending;
    }
    if !facts.over && tally.stopped_restartable > 0 {
        return Phase::Running;
    }
    if tally.stopped == tally.succeeded { Phase::Succeeded } else { Phase::Failed }
}

fn tally(restart_policy: RestartPolicy, containers: &[Reported<'_>]) -> Tally {
    let mut tally = Tally::default();
    for container in containers {
        let restartable = |end: &ContainerStateTerminated| {
            end.reason.as_deref() == Some(reasons::RESTARTING_ALL_CONTAINERS)
                || container_restarts_after(
                    restart_policy,
                    container.spec.kind,
                    &container.spec.container,
                    end.exit_code,
                    end.reason.as_deref(),
                )
        };
        match (container.spec.kind, container.seen(), container.last_end()) {
            (ContainerKind::Ephemeral, ..) => {}

            (ContainerKind::Init, Seen::Running, _)
            | (ContainerKind::Init, Seen::Waiting, None) => {
                tally.init_pending += 1;
            }
            (ContainerKind::Init, Seen::Terminated(end), _)
            | (ContainerKind::Init, Seen::Waiting, Some(end)) => {
                if !init_succeeded(end) && !restartable(end) {
                    tally.init_failed_for_good += 1;
                }
            }

            (ContainerKind::Sidecar, Seen::Running, _) => {
                tally.running += 1;
                if container.status.started != Some(true) {
                    tally.sidecars_unstarted += 1;
                }
            }
            (ContainerKind::Sidecar, Seen::Waiting, None) => tally.sidecars_unstarted += 1,
            // A sidecar that ended says nothing about the pod.
            (ContainerKind::Sidecar, ..) => {}

            (ContainerKind::Regular, Seen::Running, _) => tally.running += 1,
            (ContainerKind::Regular, Seen::Terminated(end), _) => {
                tally.stopped += 1;
                tally.stopped_restartable += usize::from(restartable(end));
                tally.succeeded += usize::from(end.exit_code == 0);
            }
            (ContainerKind::Regular, Seen::Waiting, Some(end)) => {
                tally.stopped += 1;
                tally.stopped_restartable += usize::from(restartable(end));
            }
            (ContainerKind::Regular, Seen::Waiting, None) => tally.waiting += 1,
        }
    }
    tally
}

/// An init container did its work. One that was killed for memory did not, whatever its exit code.
pub(crate) fn init_succeeded(end: &ContainerStateTerminated) -> bool {
    end.exit_code == 0 && end.reason.as_deref() != Some(reasons::OOM_KILLED)
}
