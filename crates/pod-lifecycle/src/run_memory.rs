//! What is remembered of the last run of each container, for the time when the runtime has forgotten
//! it: a container that must not run twice does not, and one that keeps crashing keeps waiting.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use rubelet_types::{
    ContainerSnapshot, PodSnapshot, SandboxId, containers, exit_restarts_all_containers, reasons,
};

use crate::ends::{End, end_of};

/// Exit code of a container whose end nobody saw, as its status says it.
const EXIT_CODE_LOST: i32 = 137;

#[derive(Clone, Debug)]
struct Run {
    restart_count: u32,
    state: RunState,
}

#[derive(Clone, Debug)]
enum RunState {
    /// It was up when it was last seen.
    Up,
    Ended {
        exit_code: i32,
        reason: String,
        finished_at: Timestamp,
        /// Where it ran, if that is known.
        sandbox: Option<SandboxId>,
    },
    /// It never came up, or was removed in order to start afresh: how it ended does not matter.
    Forgotten,
}

/// The last run of each container that ever ran, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunMemory {
    runs: HashMap<String, Run>,
}

impl RunMemory {
    /// What the pod's status at the API server tells of an earlier life of the kubelet.
    pub(crate) fn of_status(pod: &Pod) -> Self {
        let mut memory = Self::default();
        let Some(status) = &pod.status else { return memory };
        let lists = [
            &status.init_container_statuses,
            &status.container_statuses,
            &status.ephemeral_container_statuses,
        ];
        for status in lists.into_iter().flatten().flatten() {
            if let Some(state) = state_of(status) {
                let restart_count = u32::try_from(status.restart_count).unwrap_or(0);
                memory.runs.insert(status.name.clone(), Run { restart_count, state });
            }
        }
        memory
    }

    /// Takes in what the runtime holds. A container that was up and is gone has ended unseen, unless
    /// all containers are being restarted.
    pub(crate) fn take_in(&mut self, pod: &Pod, snapshot: &PodSnapshot, restarting_all: bool) {
        for container in &snapshot.containers {
            self.count(container);
        }
        for spec in containers(pod) {
            let name = spec.container.name.as_str();
            if snapshot.instances(name).any(ContainerSnapshot::is_running) {
                self.set(name, RunState::Up);
            } else if snapshot.instances(name).any(ContainerSnapshot::may_run) {
                // Whether it came up at all is not known.
            } else if let Some(ended) = snapshot.instances(name).find_map(ended) {
                self.set(name, ended);
            } else if let Some(run) = self.runs.get_mut(name) {
                let asks_for_restart = matches!(run.state, RunState::Ended { exit_code, .. }
                    if exit_restarts_all_containers(&spec.container, exit_code));
                if restarting_all && !asks_for_restart {
                    run.state = RunState::Forgotten;
                } else if matches!(run.state, RunState::Up) {
                    run.state = RunState::Ended {
                        exit_code: EXIT_CODE_LOST,
                        reason: reasons::CONTAINER_STATUS_UNKNOWN.to_owned(),
                        finished_at: snapshot.taken_at,
                        sandbox: None,
                    };
                }
            }
        }
    }

    /// Takes in an instance that was just started.
    pub(crate) fn started(&mut self, container: &ContainerSnapshot) {
        self.count(container);
        self.set(&container.name, ended(container).unwrap_or(RunState::Up));
    }

    /// The container is removed in order to start afresh.
    pub(crate) fn forget_end(&mut self, name: &str) {
        if let Some(run) = self.runs.get_mut(name) {
            run.state = RunState::Forgotten;
        }
    }

    /// How it ended when it last ran; `None` if it is up, never ran, or is to start afresh.
    pub(crate) fn last_end(&self, name: &str) -> Option<End<'_>> {
        match &self.runs.get(name)?.state {
            RunState::Ended { exit_code, reason, finished_at, .. } => {
                Some(End { exit_code: *exit_code, reason, finished_at: *finished_at })
            }
            RunState::Up | RunState::Forgotten => None,
        }
    }

    /// Containers that were up and that the runtime has forgotten since, in any order.
    pub(crate) fn vanished(&self) -> impl Iterator<Item = &str> {
        let is_lost = |run: &Run| {
            matches!(&run.state, RunState::Ended { reason, .. }
                if reason == reasons::CONTAINER_STATUS_UNKNOWN)
        };
        self.runs.iter().filter(move |(_, run)| is_lost(run)).map(|(name, _)| name.as_str())
    }

    /// The init container `name` did its work in `sandbox`.
    pub(crate) fn has_succeeded_in(&self, name: &str, sandbox: &SandboxId) -> bool {
        let ran_in = match self.runs.get(name).map(|run| &run.state) {
            Some(RunState::Ended { sandbox, .. }) => sandbox.as_ref(),
            _ => None,
        };
        ran_in == Some(sandbox) && self.last_end(name).is_some_and(|end| end.init_succeeded())
    }

    /// It is up or ended, as far as is known.
    pub(crate) fn has_run(&self, name: &str) -> bool {
        self.runs.get(name).is_some_and(|run| !matches!(run.state, RunState::Forgotten))
    }

    /// The highest restart count of its instances.
    pub(crate) fn restart_count(&self, name: &str) -> Option<u32> {
        self.runs.get(name).map(|run| run.restart_count)
    }

    fn count(&mut self, container: &ContainerSnapshot) {
        let run = self
            .runs
            .entry(container.name.clone())
            .or_insert(Run { restart_count: 0, state: RunState::Forgotten });
        run.restart_count = run.restart_count.max(container.restart_count);
    }

    fn set(&mut self, name: &str, state: RunState) {
        if let Some(run) = self.runs.get_mut(name) {
            run.state = state;
        }
    }
}

fn ended(container: &ContainerSnapshot) -> Option<RunState> {
    let end = end_of(container)?;
    Some(RunState::Ended {
        exit_code: end.exit_code,
        reason: end.reason.to_owned(),
        finished_at: end.finished_at,
        sandbox: container.sandbox_id.clone(),
    })
}

fn state_of(status: &ContainerStatus) -> Option<RunState> {
    let state = status.state.as_ref();
    if state.is_some_and(|state| state.running.is_some()) {
        return Some(RunState::Up);
    }
    let end = [state, status.last_state.as_ref()]
        .into_iter()
        .flatten()
        .find_map(|state| state.terminated.as_ref())?;
    if end.reason.as_deref() == Some(reasons::RESTARTING_ALL_CONTAINERS) {
        return Some(RunState::Forgotten);
    }
    Some(RunState::Ended {
        exit_code: end.exit_code,
        reason: end.reason.clone().unwrap_or_default(),
        finished_at: end.finished_at.as_ref().map_or(Timestamp::MIN, |time| time.0),
        sandbox: None,
    })
}
