//! Init containers run one after the other to success; sidecars among them are started in their
//! place and then kept running.

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    ContainerKind, ContainerSnapshot, ContainerSpec, ContainerState, PodSnapshot, SandboxId,
    containers, pod_restart_policy,
};

use crate::containers::{ContainerPlan, Planning, end_of, regular_containers};

/// How far initialisation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitProgress {
    /// Regular containers have to wait.
    Underway,
    /// Regular containers may start.
    Done,
}

fn init_containers(pod: &Pod) -> Vec<ContainerSpec<'_>> {
    containers(pod)
        .filter(|spec| matches!(spec.kind, ContainerKind::Init | ContainerKind::Sidecar))
        .collect()
}

/// The newest instance in the present sandbox: what ran in an earlier one has to run again.
fn newest_in<'a>(
    snapshot: &'a PodSnapshot,
    sandbox: &SandboxId,
    name: &str,
) -> Option<&'a ContainerSnapshot> {
    snapshot.containers.iter().find(|container| {
        container.name == name && container.sandbox_id.as_ref().is_none_or(|id| id == sandbox)
    })
}

/// A regular container exists in the sandbox, so initialisation is behind it, even if the init
/// containers' remains were removed meanwhile.
fn is_initialised(pod: &Pod, snapshot: &PodSnapshot, sandbox: &SandboxId) -> bool {
    regular_containers(pod).any(|spec| newest_in(snapshot, sandbox, &spec.container.name).is_some())
}

/// An init container failed and will not be tried again.
pub(crate) fn has_failed_for_good(pod: &Pod, snapshot: &PodSnapshot) -> bool {
    let Some(sandbox) = snapshot.sandboxes.first().map(|sandbox| &sandbox.id) else { return false };
    if is_initialised(pod, snapshot, sandbox) {
        return false;
    }
    let policy = pod_restart_policy(pod);
    init_containers(pod)
        .iter()
        .rev()
        .find_map(|spec| Some((spec, newest_in(snapshot, sandbox, &spec.container.name)?)))
        .is_some_and(|(spec, container)| {
            spec.kind == ContainerKind::Init
                && end_of(container)
                    .is_some_and(|end| !end.succeeded() && end.is_final(policy, spec))
        })
}

pub(crate) fn plan_init_containers<'a>(
    planning: &Planning<'a>,
    plan: &mut ContainerPlan<'a>,
) -> InitProgress {
    let pod = &planning.state.pod;
    let specs = init_containers(pod);
    let newest = |spec: &ContainerSpec<'_>| {
        newest_in(planning.snapshot, planning.sandbox, &spec.container.name)
    };
    let keep_sidecars = |specs: &[ContainerSpec<'_>], plan: &mut ContainerPlan<'a>| {
        for spec in specs.iter().filter(|spec| spec.kind == ContainerKind::Sidecar) {
            planning.keep_as_wanted(spec, newest(spec), plan);
        }
    };
    if is_initialised(pod, planning.snapshot, planning.sandbox) {
        keep_sidecars(&specs, plan);
        return InitProgress::Done;
    }
    let Some(furthest) = specs.iter().rposition(|spec| newest(spec).is_some()) else {
        return match specs.first() {
            Some(first) => {
                planning.start(first, None, plan, "it is the first init container");
                InitProgress::Underway
            }
            None => InitProgress::Done,
        };
    };
    keep_sidecars(&specs[..furthest], plan);
    let spec = &specs[furthest];
    let Some(container) = newest(spec) else { return InitProgress::Underway };
    let passed = match (&container.state, spec.kind) {
        (ContainerState::Running { .. }, ContainerKind::Sidecar) => {
            planning.keep_as_wanted(spec, Some(container), plan);
            planning.has_started(spec, &container.id)
        }
        (ContainerState::Running { .. }, _) => false,
        (ContainerState::Exited { .. }, ContainerKind::Init)
            if end_of(container).is_some_and(|end| end.succeeded()) =>
        {
            true
        }
        _ => {
            planning.keep_as_wanted(spec, Some(container), plan);
            false
        }
    };
    if !passed {
        plan.because.push(format!("init container {} is not done yet", spec.container.name));
        return InitProgress::Underway;
    }
    match specs.get(furthest + 1) {
        Some(next) => {
            planning.start(next, None, plan, "the init containers before it are done");
            InitProgress::Underway
        }
        None => InitProgress::Done,
    }
}
