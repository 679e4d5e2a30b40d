//! Init containers run one after the other to success; sidecars among them are started in their
//! place and then kept running.

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    ContainerKind, ContainerSnapshot, ContainerSpec, ContainerState, PodSnapshot, SandboxId,
    containers,
};

use crate::containers::{ContainerPlan, Planning, regular_containers};
use crate::ends::end_of;

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
            match newest(spec) {
                Some(newest) => planning.keep_as_wanted(spec, newest, plan),
                None => planning.begin(spec, plan, "it is a sidecar and is gone"),
            }
        }
    };
    if is_initialised(pod, planning.snapshot, planning.sandbox) {
        keep_sidecars(&specs, plan);
        return InitProgress::Done;
    }
    let has_run =
        |spec: &ContainerSpec<'_>| newest(spec).is_some() || is_remembered(planning, spec);
    let Some(furthest) = specs.iter().rposition(has_run) else {
        return match specs.first() {
            Some(first) => {
                planning.begin(first, plan, "it is the first init container");
                InitProgress::Underway
            }
            None => InitProgress::Done,
        };
    };
    keep_sidecars(&specs[..furthest], plan);
    let spec = &specs[furthest];
    let passed = match newest(spec) {
        Some(container) => has_passed(planning, spec, container, plan),
        None => true,
    };
    if !passed {
        plan.because.push(format!("init container {} is not done yet", spec.container.name));
        return InitProgress::Underway;
    }
    match specs.get(furthest + 1) {
        Some(next) => {
            planning.begin(next, plan, "the init containers before it are done");
            InitProgress::Underway
        }
        None => InitProgress::Done,
    }
}

/// The runtime has forgotten an init container that did its work in this sandbox.
fn is_remembered(planning: &Planning<'_>, spec: &ContainerSpec<'_>) -> bool {
    let name = &spec.container.name;
    spec.kind == ContainerKind::Init
        && planning.snapshot.newest(name).is_none()
        && planning.state.memory.has_succeeded_in(name, planning.sandbox)
        && !planning.is_owed_a_restart(spec)
}

/// Keeps the furthest init container as wanted. Answers whether the next one may start.
fn has_passed<'a>(
    planning: &Planning<'a>,
    spec: &ContainerSpec<'_>,
    container: &'a ContainerSnapshot,
    plan: &mut ContainerPlan<'a>,
) -> bool {
    match (&container.state, spec.kind) {
        (ContainerState::Running { .. }, ContainerKind::Sidecar) => {
            planning.keep_as_wanted(spec, container, plan);
            planning.has_started(spec, &container.id)
        }
        // An init container that runs is left alone, whatever became of its definition.
        (ContainerState::Running { .. }, _) => false,
        (ContainerState::Exited { .. }, ContainerKind::Init)
            if end_of(container).is_some_and(|end| end.init_succeeded())
                && !planning.is_owed_a_restart(spec) =>
        {
            true
        }
        // What became of it nobody knows, so it counts as failed.
        (ContainerState::Unknown, ContainerKind::Init) if !planning.restarts_after_stop(spec) => {
            plan.gives_up =
                Some(format!("init container {} is in an unknown state", spec.container.name));
            false
        }
        _ => {
            planning.keep_as_wanted(spec, container, plan);
            false
        }
    }
}
