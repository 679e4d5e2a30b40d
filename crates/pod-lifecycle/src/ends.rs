//! How containers ended, and whether that was the end of the pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    ContainerKind, ContainerSnapshot, ContainerSpec, ContainerState, PodSnapshot, RestartPolicy,
    container_restarts_after, containers, exit_restarts_all_containers, pod_restart_policy,
    reasons,
};

/// How a container ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    pub(crate) exit_code: i32,
    pub(crate) reason: &'a str,
    pub(crate) finished_at: Timestamp,
}

impl End<'_> {
    /// An init container did its work. One that was killed for memory did not, whatever its exit
    /// code.
    pub(crate) fn init_succeeded(&self) -> bool {
        self.exit_code == 0 && self.reason != reasons::OOM_KILLED
    }

    /// It will not be started again.
    pub(crate) fn is_final(&self, policy: RestartPolicy, spec: &ContainerSpec<'_>) -> bool {
        let reason = Some(self.reason);
        !container_restarts_after(policy, spec.kind, &spec.container, self.exit_code, reason)
    }
}

/// How `container` ended, if it has.
pub(crate) fn end_of(container: &ContainerSnapshot) -> Option<End<'_>> {
    match &container.state {
        ContainerState::Exited { exit_code, reason, finished_at, .. } => {
            Some(End { exit_code: *exit_code, reason, finished_at: *finished_at })
        }
        _ => None,
    }
}

/// How the container `name` ended when it last ran, unless it may run now. An instance that was
/// created and never started says nothing.
pub(crate) fn last_end<'a>(snapshot: &'a PodSnapshot, name: &str) -> Option<End<'a>> {
    let instances = || snapshot.containers.iter().filter(|container| container.name == name);
    if instances().any(ContainerSnapshot::may_run) {
        return None;
    }
    instances().find_map(end_of)
}

/// No container of the pod will be started again: an init container failed for good, or every
/// regular container ended for good. Sidecars and ephemeral containers may still run; they do not
/// keep a pod alive.
pub fn is_pod_done(pod: &Pod, snapshot: &PodSnapshot) -> bool {
    why_pod_is_done(pod, |name| last_end(snapshot, name)).is_some()
}

/// Why no container of the pod will be started again, if that is so. `last_end` tells how a
/// container ended, unless it may run or is to start again whatever its end says.
pub(crate) fn why_pod_is_done<'a>(
    pod: &Pod,
    last_end: impl Fn(&str) -> Option<End<'a>>,
) -> Option<String> {
    let policy = pod_restart_policy(pod);
    let final_end = |spec: &ContainerSpec<'_>| {
        last_end(&spec.container.name).filter(|end| end.is_final(policy, spec))
    };
    let mut any_regular = false;
    let mut all_regular_ended = true;
    for spec in containers(pod) {
        match spec.kind {
            ContainerKind::Init if final_end(&spec).is_some_and(|end| !end.init_succeeded()) => {
                return Some(format!("init container {} failed for good", spec.container.name));
            }
            ContainerKind::Regular => {
                any_regular = true;
                all_regular_ended &= final_end(&spec).is_some();
            }
            ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Ephemeral => {}
        }
    }
    (any_regular && all_regular_ended).then(|| "all containers ended for good".to_owned())
}

/// The instances whose end makes all containers of the pod start again.
pub(crate) fn restart_all_sources<'a>(
    pod: &'a Pod,
    snapshot: &'a PodSnapshot,
) -> impl Iterator<Item = &'a ContainerSnapshot> {
    containers(pod).filter(|spec| spec.kind != ContainerKind::Ephemeral).filter_map(|spec| {
        let newest = snapshot.newest(&spec.container.name)?;
        let end = end_of(newest)?;
        exit_restarts_all_containers(&spec.container, end.exit_code).then_some(newest)
    })
}
