//! What is reported of each container.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, Pod, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_types::{
    ContainerKind, ContainerSnapshot, ContainerSpec, ContainerState, PodSnapshot, ProbeResult,
    container_restarts_after, containers, pod_restart_policy, reasons,
};

use crate::input::{ContainerProbes, Stage, StatusInput};
use crate::phase::init_succeeded;
use crate::resources::container_resources;
use crate::volume_mounts::volume_mount_statuses;

/// A process that the kernel killed; also what is said of one whose end nobody saw.
const EXIT_CODE_KILLED: i32 = 137;
const VANISHED: &str = "The container could not be located when the pod was deleted.  \
                        The container used to be Running";
const LOST: &str = "The container could not be located when the pod was terminated";
const INIT_PRESUMED_DONE: &str = "Unable to get init container status from container runtime and \
                                  pod has been initialized, treat it as exited normally";
const REMOVED_FOR_RESTART: &str = "The container is removed because RestartAllContainers in place";

/// One container of the spec and what is reported of it.
#[derive(Clone, Debug)]
pub(crate) struct Reported<'a> {
    pub(crate) spec: ContainerSpec<'a>,
    pub(crate) status: ContainerStatus,
}

/// A reported state, with its three exclusive variants made visible.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Seen<'a> {
    Waiting,
    Running,
    Terminated(&'a ContainerStateTerminated),
}

impl<'a> Reported<'a> {
    pub(crate) fn name(&self) -> &str {
        &self.spec.container.name
    }

    pub(crate) fn seen(&self) -> Seen<'_> {
        seen(&self.status)
    }

    /// How the instance before the present one ended, if one is known.
    pub(crate) fn last_end(&self) -> Option<&ContainerStateTerminated> {
        self.status.last_state.as_ref()?.terminated.as_ref()
    }

    /// It runs, ended, or ran before.
    pub(crate) fn was_started(&self) -> bool {
        !matches!(self.seen(), Seen::Waiting) || self.last_end().is_some()
    }

    /// Reports an end that nobody saw.
    pub(crate) fn mark_lost(&mut self) {
        self.status.state = Some(terminated(lost()));
        self.status.ready = false;
        self.status.started = self.status.started.map(|_| false);
    }
}

/// A status without any state counts as waiting, as in the API's documentation.
pub(crate) fn seen(status: &ContainerStatus) -> Seen<'_> {
    match status.state.as_ref() {
        Some(ApiState { terminated: Some(end), .. }) => Seen::Terminated(end),
        Some(ApiState { running: Some(_), .. }) => Seen::Running,
        _ => Seen::Waiting,
    }
}

/// Reports every container of the pod's spec, in the order of the spec.
pub(crate) fn report_containers<'a>(input: &StatusInput<'a>) -> Vec<Reported<'a>> {
    let pod = input.pod;
    let has_init = containers(pod)
        .any(|spec| matches!(spec.kind, ContainerKind::Init | ContainerKind::Sidecar));
    let reporter = Reporter {
        input,
        waiting_reason: if has_init {
            reasons::POD_INITIALIZING
        } else {
            reasons::CONTAINER_CREATING
        },
        initialized: is_initialized(input),
    };
    containers(pod)
        .map(|spec| {
            let status = reporter.report(&spec);
            Reported { spec, status }
        })
        .collect()
}

/// A regular container exists in the present sandbox, so initialisation is behind the pod.
pub(crate) fn is_initialized(input: &StatusInput<'_>) -> bool {
    let Some(snapshot) = input.snapshot else {
        return was_initialized(input.previous);
    };
    containers(input.pod).filter(|spec| spec.kind == ContainerKind::Regular).any(|spec| {
        snapshot
            .instances(&spec.container.name)
            .any(|instance| in_present_sandbox(snapshot, instance))
    })
}

/// The pod was reported to be initialised.
pub(crate) fn was_initialized(previous: &PodStatus) -> bool {
    previous
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Initialized" && condition.status == "True")
}

fn in_present_sandbox(snapshot: &PodSnapshot, instance: &ContainerSnapshot) -> bool {
    match (snapshot.sandboxes.first(), &instance.sandbox_id) {
        (Some(sandbox), Some(id)) => sandbox.id == *id,
        // With the sandbox gone, or not told, the container is all the evidence there is.
        _ => true,
    }
}

/// The status reported before for `name` among the containers of `kind`.
fn previous_status<'a>(
    previous: &'a PodStatus,
    kind: ContainerKind,
    name: &str,
) -> Option<&'a ContainerStatus> {
    let list = match kind {
        ContainerKind::Init | ContainerKind::Sidecar => &previous.init_container_statuses,
        ContainerKind::Regular => &previous.container_statuses,
        ContainerKind::Ephemeral => &previous.ephemeral_container_statuses,
    };
    list.iter().flatten().find(|status| status.name == name)
}

struct Reporter<'i, 'a> {
    input: &'i StatusInput<'a>,
    waiting_reason: &'static str,
    initialized: bool,
}

impl Reporter<'_, '_> {
    fn report(&self, spec: &ContainerSpec<'_>) -> ContainerStatus {
        let name = spec.container.name.as_str();
        let previous = previous_status(self.input.previous, spec.kind, name);
        let Some(snapshot) = self.input.snapshot else {
            return previous.cloned().unwrap_or_else(|| self.fresh(spec, None));
        };
        let newest = snapshot.newest(name);
        let mut status = match newest {
            Some(instance) => self.of_instance(spec, snapshot, instance, previous),
            None if self.presumed_done(spec, previous) => {
                let mut status = self.fresh(spec, previous);
                status.state = Some(terminated(ContainerStateTerminated {
                    reason: Some(reasons::COMPLETED.to_owned()),
                    message: Some(INIT_PRESUMED_DONE.to_owned()),
                    exit_code: 0,
                    ..Default::default()
                }));
                status
            }
            None => self.without_instance(spec, previous),
        };
        if self.may_start_again(spec, newest, &status)
            && let Some(failed) = self.failed_start(name)
        {
            if let Seen::Terminated(_) = seen(&status) {
                let ended = status.state.take();
                if newest.is_none() {
                    status = self.fresh(spec, previous);
                }
                status.last_state = ended;
            }
            status.state = Some(failed);
        }
        self.set_started_and_ready(spec, newest, previous, &mut status);
        if self.input.gates.resource_health_status {
            status.allocated_resources_status =
                self.input.resource_health.get(name).filter(|health| !health.is_empty()).cloned();
        }
        status
    }

    /// A container of which nothing exists.
    fn fresh(
        &self,
        spec: &ContainerSpec<'_>,
        previous: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        ContainerStatus {
            name: spec.container.name.clone(),
            image: spec.container.image.clone().unwrap_or_default(),
            state: Some(waiting(self.waiting_reason, None)),
            restart_count: previous.map_or(0, |status| status.restart_count),
            last_state: previous.and_then(|status| status.last_state.clone()),
            // Mounts cannot change in a pod's life, and only the kubelet that made them knew
            // whether they could be recursive.
            volume_mounts: previous.and_then(|status| status.volume_mounts.clone()).or_else(|| {
                let recursive = self.input.node.recursive_read_only_mounts;
                volume_mount_statuses(&spec.container, recursive)
            }),
            ..Default::default()
        }
    }

    fn of_instance(
        &self,
        spec: &ContainerSpec<'_>,
        snapshot: &PodSnapshot,
        instance: &ContainerSnapshot,
        previous: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let mut status = self.fresh(spec, previous);
        let id = format!("{}://{}", self.input.node.runtime_name, instance.id);
        let same_instance =
            previous.is_some_and(|before| before.container_id.as_deref() == Some(id.as_str()));
        let before = previous.map(seen);

        let starting =
            self.input.stage != Stage::Terminated && self.input.starting.contains(&instance.name);
        // It was stopped to be replaced (a changed image, a failed probe), and its end alone would
        // have been final: only a waiting container may start again.
        let owed_end = (starting && instance.exit_code().is_some())
            .then(|| end_of(instance, &id, previous))
            .filter(|end| !self.restarts_after(spec, end));
        status.state = Some(match &instance.state {
            ContainerState::Exited { .. } if owed_end.is_some() => self
                .failed_start(&instance.name)
                .unwrap_or_else(|| waiting(self.waiting_reason, None)),
            ContainerState::Exited { .. } => terminated(end_of(instance, &id, previous)),
            _ if starting => self
                .failed_start(&instance.name)
                .unwrap_or_else(|| waiting(self.waiting_reason, None)),
            ContainerState::Created => waiting(self.waiting_reason, None),
            ContainerState::Running { started_at } => ApiState {
                running: Some(ContainerStateRunning { started_at: Some(api_time(*started_at)) }),
                ..Default::default()
            },
            ContainerState::Unknown => match before {
                Some(Seen::Terminated(end)) if same_instance => terminated(end.clone()),
                Some(Seen::Running) if self.input.restarts_all() => {
                    terminated(ContainerStateTerminated {
                        reason: Some(reasons::RESTARTING_ALL_CONTAINERS.to_owned()),
                        ..lost()
                    })
                }
                Some(Seen::Running) => terminated(lost()),
                _ => waiting(self.waiting_reason, None),
            },
        });

        let count_before = previous.map_or(0, |before| before.restart_count);
        let count = i32::try_from(instance.restart_count).unwrap_or(i32::MAX);
        let lost_count = match (before, &instance.state) {
            // The runtime cannot count an end that it did not see.
            (Some(Seen::Running), ContainerState::Unknown) if !starting => true,
            // Nor one whose instance was removed before this one was made.
            (Some(Seen::Terminated(_)), _) => !same_instance && count_before >= count,
            _ => false,
        };
        status.restart_count =
            if lost_count { count_before.saturating_add(1) } else { count.max(count_before) };

        let older_end = snapshot
            .instances(&instance.name)
            .skip(1)
            .find(|older| older.exit_code().is_some())
            .map(|older| {
                let id = format!("{}://{}", self.input.node.runtime_name, older.id);
                terminated(end_of(older, &id, previous))
            });
        let kept = status.last_state.take();
        status.last_state = match (&instance.state, before) {
            // That it was lost is said already, and nothing new is known.
            (ContainerState::Unknown, Some(Seen::Waiting | Seen::Terminated(_)))
                if same_instance =>
            {
                kept
            }
            (_, Some(Seen::Terminated(end))) if !same_instance => {
                older_end.or_else(|| Some(terminated(end.clone())))
            }
            _ => older_end.or(kept),
        };
        if let Some(end) = owed_end {
            status.last_state = Some(terminated(end));
        }

        if !instance.image.is_empty() {
            status.image.clone_from(&instance.image);
        }
        status.image_id.clone_from(&instance.image_ref);
        status.container_id = Some(id);
        // What it had before is what it has, unless it is known to have what it was granted.
        let same_run = previous.filter(|_| {
            !self.input.granted_is_in_force
                && same_instance
                && matches!(before, Some(Seen::Running))
        });
        status.resources = Some(container_resources(&spec.container, instance, same_run));
        status.allocated_resources =
            spec.container.resources.as_ref().and_then(|resources| resources.requests.clone());
        status.user = instance.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: Some(user.supplemental_groups.clone())
                    .filter(|groups| !groups.is_empty()),
            }),
        });
        if self.input.gates.container_stop_signals {
            status.stop_signal.clone_from(&instance.stop_signal);
        }
        status
    }

    /// The runtime has forgotten a regular init container, but it must have succeeded: containers
    /// that come after it exist.
    fn presumed_done(&self, spec: &ContainerSpec<'_>, previous: Option<&ContainerStatus>) -> bool {
        spec.kind == ContainerKind::Init
            && self.initialized
            && !self.input.restarts_all()
            && !matches!(previous.map(seen), Some(Seen::Terminated(_)))
    }

    /// The runtime holds no instance: it never had one, or it was removed.
    fn without_instance(
        &self,
        spec: &ContainerSpec<'_>,
        previous: Option<&ContainerStatus>,
    ) -> ContainerStatus {
        let mut status = self.fresh(spec, previous);
        let Some(before) = previous else {
            return status;
        };
        let restarting_all = self.input.restarts_all() && spec.kind != ContainerKind::Ephemeral;
        match seen(before) {
            Seen::Running | Seen::Terminated(_) if restarting_all => {
                let reason = reasons::RESTARTING_ALL_CONTAINERS;
                status.state = Some(waiting(reason, Some(REMOVED_FOR_RESTART)));
                status.last_state = Some(terminated(ContainerStateTerminated {
                    reason: Some(reason.to_owned()),
                    message: Some(REMOVED_FOR_RESTART.to_owned()),
                    exit_code: EXIT_CODE_KILLED,
                    ..Default::default()
                }));
                status.restart_count = before.restart_count.saturating_add(1);
            }
            Seen::Waiting if restarting_all => status.state.clone_from(&before.state),
            Seen::Waiting if self.input.vanished.contains(&before.name) => {
                status.last_state = Some(terminated(vanished()));
            }
            Seen::Waiting => {}
            Seen::Terminated(_) => return before.clone(),
            Seen::Running => {
                status.last_state = Some(terminated(vanished()));
                if !is_being_deleted(self.input.pod) {
                    status.restart_count = before.restart_count.saturating_add(1);
                }
            }
        }
        status
    }

    /// The next pass of the worker starts the container (again).
    fn may_start_again(
        &self,
        spec: &ContainerSpec<'_>,
        newest: Option<&ContainerSnapshot>,
        status: &ContainerStatus,
    ) -> bool {
        if self.input.stage != Stage::Setup || is_being_deleted(self.input.pod) {
            return false;
        }
        let behind_the_pod = spec.kind == ContainerKind::Init && self.initialized;
        if behind_the_pod || newest.is_some_and(ContainerSnapshot::is_running) {
            return false;
        }
        match (newest.map(|instance| &instance.state), seen(status)) {
            (None | Some(ContainerState::Exited { .. }), Seen::Terminated(end)) => {
                self.restarts_after(spec, end)
            }
            _ => true,
        }
    }

    fn restarts_after(&self, spec: &ContainerSpec<'_>, end: &ContainerStateTerminated) -> bool {
        container_restarts_after(
            pod_restart_policy(self.input.pod),
            spec.kind,
            &spec.container,
            end.exit_code,
            end.reason.as_deref(),
        )
    }

    fn failed_start(&self, name: &str) -> Option<ApiState> {
        let failure = self.input.start_failures.get(name)?;
        Some(waiting(&failure.reason, Some(&failure.message)))
    }

    fn set_started_and_ready(
        &self,
        spec: &ContainerSpec<'_>,
        newest: Option<&ContainerSnapshot>,
        previous: Option<&ContainerStatus>,
        status: &mut ContainerStatus,
    ) {
        let running = newest.filter(|_| matches!(seen(status), Seen::Running));
        let probes = running.map_or_else(ContainerProbes::default, |instance| {
            self.input.probes.probes(&instance.name, &instance.id)
        });
        // Until a probe has spoken, what was reported for this very instance stands: a kubelet that
        // starts anew must not take a serving pod out of its services.
        let carried = previous.filter(|before| {
            !self.input.gates.change_container_status_on_kubelet_restart
                && before.container_id == status.container_id
        });
        let passes = |has_probe: bool, result: Option<ProbeResult>, before: bool| match result {
            _ if !has_probe => true,
            Some(ProbeResult::Success) => true,
            Some(ProbeResult::Failure) => false,
            Some(ProbeResult::Unknown) | None => before,
        };
        let started = running.is_some()
            && passes(
                spec.container.startup_probe.is_some(),
                probes.startup,
                carried.is_some_and(|before| before.started == Some(true)),
            );
        let ready = started
            && passes(
                spec.container.readiness_probe.is_some(),
                probes.readiness,
                carried.is_some_and(|before| before.ready),
            );
        (status.started, status.ready) = match spec.kind {
            ContainerKind::Regular | ContainerKind::Sidecar => (Some(started), ready),
            ContainerKind::Init => (
                Some(started),
                matches!(seen(status), Seen::Terminated(end) if init_succeeded(end)),
            ),
            ContainerKind::Ephemeral => (None, false),
        };
    }
}

fn is_being_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn waiting(reason: &str, message: Option<&str>) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: message.filter(|text| !text.is_empty()).map(str::to_owned),
        }),
        ..Default::default()
    }
}

fn terminated(end: ContainerStateTerminated) -> ApiState {
    ApiState { terminated: Some(end), ..Default::default() }
}

/// The end of a container that was to be stopped and is nowhere.
fn lost() -> ContainerStateTerminated {
    unseen_end(LOST)
}

/// The end of a container that ran and is nowhere.
fn vanished() -> ContainerStateTerminated {
    unseen_end(VANISHED)
}

fn unseen_end(message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        reason: Some(reasons::CONTAINER_STATUS_UNKNOWN.to_owned()),
        message: Some(message.to_owned()),
        exit_code: EXIT_CODE_KILLED,
        ..Default::default()
    }
}

/// How `instance` ended; of one that has not ended, that nobody saw it end. The message that a
/// container left is in a file of its pod, which is gone when the pod is over: what was reported of
/// it stays.
fn end_of(
    instance: &ContainerSnapshot,
    id: &str,
    previous: Option<&ContainerStatus>,
) -> ContainerStateTerminated {
    match &instance.state {
        ContainerState::Exited { started_at, finished_at, exit_code, reason, message } => {
            let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
            let told = || {
                let states = previous.into_iter().flat_map(|p| [&p.state, &p.last_state]);
                let mut ends = states.flatten().filter_map(|state| state.terminated.as_ref());
                ends.find(|end| end.container_id.as_deref() == Some(id))?.message.clone()
            };
            ContainerStateTerminated {
                container_id: Some(id.to_owned()),
                exit_code: *exit_code,
                finished_at: Some(api_time(*finished_at)),
                message: some(message).or_else(told),
                reason: some(reason),
                signal: None,
                started_at: started_at.map(api_time),
            }
        }
        ContainerState::Created | ContainerState::Running { .. } | ContainerState::Unknown => {
            lost()
        }
    }
}

/// The API knows whole seconds only; a finer time would differ from what it gives back.
pub(crate) fn api_time(time: Timestamp) -> Time {
    Time(Timestamp::from_second(time.as_second()).unwrap_or(time))
}
