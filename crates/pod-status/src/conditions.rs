//! The conditions of a pod.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_types::{ContainerKind, PodSnapshot, SandboxState, containers, is_host_network};

use crate::containers::{Reported, Seen, api_time, was_initialized};
use crate::input::{Stage, StatusInput};

const READY: &str = "Ready";
const CONTAINERS_READY: &str = "ContainersReady";
const INITIALIZED: &str = "Initialized";
const POD_SCHEDULED: &str = "PodScheduled";
pub(crate) const POD_READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";
const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The kubelet alone decides conditions of this type.
pub(crate) fn is_owned(type_: &str) -> bool {
    matches!(
        type_,
        READY
            | CONTAINERS_READY
            | INITIALIZED
            | POD_SCHEDULED
            | POD_READY_TO_START_CONTAINERS
            | ALL_CONTAINERS_RESTARTING
            | "PodResizePending"
            | "PodResizeInProgress"
    )
}

/// The kubelet writes conditions of this type at times, others at other times.
pub(crate) fn is_shared(type_: &str) -> bool {
    type_ == DISRUPTION_TARGET
}

/// The phase as the conditions see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It goes on.
    None,
    Succeeded,
    Failed,
}

impl Ending {
    pub(crate) fn of_phase(phase: &str) -> Self {
        match phase {
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::None,
        }
    }

    fn reason(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Succeeded => Some("PodCompleted"),
            Self::Failed => Some("PodFailed"),
        }
    }
}

/// All conditions in their published order: foreign ones as the API has them, then our own.
/// `together_with_end` are those that appear with the terminal phase that is entered now.
pub(crate) fn compute_conditions(
    input: &StatusInput<'_>,
    reported: &[Reported<'_>],
    ending: Ending,
    together_with_end: &[PodCondition],
) -> Vec<PodCondition> {
    let pod = input.pod;
    let mut conditions = foreign_conditions(pod);
    for shared in kept_shared(input.previous) {
        put(&mut conditions, shared.clone());
    }
    for condition in together_with_end {
        put(&mut conditions, PodCondition { last_transition_time: None, ..condition.clone() });
    }
    if input.stage != Stage::Terminated {
        conditions.extend(input.resize_conditions.iter().cloned());
    }
    if input.gates.pod_ready_to_start_containers_condition {
        conditions.extend(ready_to_start_containers(input));
    }
    conditions.push(initialized(input, reported, ending));
    let containers_ready = containers_ready(reported, ending);
    let ready = ready(pod, &conditions, &containers_ready);
    conditions.push(ready);
    conditions.push(containers_ready);
    conditions.push(holds(POD_SCHEDULED, None));
    if input.gates.restart_all_containers_on_container_exits && can_restart_all(pod) {
        conditions.push(all_containers_restarting(input, ending));
    }
    for condition in &mut conditions {
        let ours = is_owned(&condition.type_)
            || together_with_end.iter().any(|new| new.type_ == condition.type_);
        if ours {
            stamp(input, condition);
        }
    }
    conditions
}

/// Conditions of the pod that are nobody's but the API's.
pub(crate) fn foreign_conditions(pod: &Pod) -> Vec<PodCondition> {
    let listed = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    listed.filter(|condition| !is_owned(&condition.type_)).cloned().collect()
}

/// What the kubelet said together with a terminal phase stays said.
fn kept_shared(previous: &PodStatus) -> impl Iterator<Item = &PodCondition> {
    let ended = rubelet_types::is_terminal_phase(previous.phase.as_deref());
    let conditions = previous.conditions.iter().flatten();
    conditions.filter(move |condition| ended && is_shared(&condition.type_))
}

/// Replaces the condition of the same type, or appends.
pub(crate) fn put(conditions: &mut Vec<PodCondition>, new: PodCondition) {
    match conditions.iter_mut().find(|condition| condition.type_ == new.type_) {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// Gives a condition of ours the generation it speaks of and the time of its last change.
fn stamp(input: &StatusInput<'_>, condition: &mut PodCondition) {
    if is_owned(&condition.type_) && condition.observed_generation.is_none() {
        condition.observed_generation = input.pod.metadata.generation;
    }
    let api = input.pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let before = input
        .previous
        .conditions
        .iter()
        .flatten()
        .chain(api)
        .find(|before| before.type_ == condition.type_);
    let unchanged = before
        .filter(|before| before.status == condition.status && !is_of_resize(&condition.type_));
    let since = match unchanged.and_then(|before| before.last_transition_time.clone()) {
        Some(since) => since.0,
        // Decided elsewhere, with its own time.
        None => condition.last_transition_time.take().map_or(input.now, |time| time.0),
    };
    condition.last_transition_time = Some(api_time(since));
}

/// Their reasons are what they tell, and who decides on these knows since when.
fn is_of_resize(type_: &str) -> bool {
    matches!(type_, "PodResizePending" | "PodResizeInProgress")
}

fn holds(type_: &str, reason: Option<&str>) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: reason.map(str::to_owned),
        ..Default::default()
    }
}

fn holds_not(type_: &str, reason: Option<&str>, message: Option<String>) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: "False".to_owned(),
        reason: reason.map(str::to_owned),
        message,
        ..Default::default()
    }
}

/// `PodReadyToStartContainers`. While the runtime is not known, it stays as it was.
fn ready_to_start_containers(input: &StatusInput<'_>) -> Option<PodCondition> {
    let type_ = POD_READY_TO_START_CONTAINERS;
    match input.snapshot {
        Some(snapshot) => Some(match sandbox_obstacle(input.pod, snapshot) {
            None => holds(type_, None),
            Some(obstacle) => {
                holds_not(type_, Some("PodSandboxNotReady"), Some(obstacle.to_owned()))
            }
        }),
        None => {
            let mut conditions = input.previous.conditions.iter().flatten();
            let before = conditions.find(|condition| condition.type_ == type_).cloned()?;
            Some(PodCondition { observed_generation: None, ..before })
        }
    }
}

/// Why containers cannot be started in the pod's sandbox.
fn sandbox_obstacle(pod: &Pod, snapshot: &PodSnapshot) -> Option<&'static str> {
    let Some(newest) = snapshot.sandboxes.first() else {
        return Some("the pod has no sandbox yet");
    };
    let ready =
        snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    if ready > 1 {
        return Some("more than one sandbox of the pod is ready");
    }
    if newest.state != SandboxState::Ready {
        return Some("the sandbox of the pod is not ready");
    }
    if newest.host_network != is_host_network(pod) {
        return Some("the network mode of the pod changed");
    }
    (!newest.host_network && newest.ips.is_empty())
        .then_some("the sandbox of the pod has no IP address")
}

fn initialized(input: &StatusInput<'_>, reported: &[Reported<'_>], ending: Ending) -> PodCondition {
    if ending == Ending::Succeeded {
        return holds(INITIALIZED, ending.reason());
    }
    let incomplete: Vec<&str> = reported
        .iter()
        .filter(|container| match container.spec.kind {
            ContainerKind::Init => !container.status.ready,
            ContainerKind::Sidecar => container.status.started != Some(true),
            ContainerKind::Regular | ContainerKind::Ephemeral => false,
        })
        .map(Reported::name)
        .collect();
    let regular_began = reported.iter().any(|container| {
        container.spec.kind == ContainerKind::Regular && !matches!(container.seen(), Seen::Waiting)
    });
    // A pod that was initialised stays so, even while init containers run again.
    if incomplete.is_empty() || regular_began || was_initialized(input.previous) {
        return holds(INITIALIZED, None);
    }
    let message = format!("containers with incomplete status: {}", list(&incomplete));
    holds_not(INITIALIZED, Some("ContainersNotInitialized"), Some(message))
}

fn containers_ready(reported: &[Reported<'_>], ending: Ending) -> PodCondition {
    if reported.is_empty() {
        return holds_not(CONTAINERS_READY, Some("UnknownContainerStatuses"), None);
    }
    if ending != Ending::None {
        return holds_not(CONTAINERS_READY, ending.reason(), None);
    }
    let unready: Vec<&str> = reported
        .iter()
        .filter(|container| {
            matches!(container.spec.kind, ContainerKind::Sidecar | ContainerKind::Regular)
        })
        .filter(|container| !container.status.ready)
        .map(Reported::name)
        .collect();
    if unready.is_empty() {
        return holds(CONTAINERS_READY, None);
    }
    let message = format!("containers with unready status: {}", list(&unready));
    holds_not(CONTAINERS_READY, Some("ContainersNotReady"), Some(message))
}

fn ready(pod: &Pod, conditions: &[PodCondition], containers_ready: &PodCondition) -> PodCondition {
    if containers_ready.status != "True" {
        return PodCondition { type_: READY.to_owned(), ..containers_ready.clone() };
    }
    let gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
    let obstacles: Vec<String> = gates
        .filter_map(|gate| {
            let gate = gate.condition_type.as_str();
            match conditions.iter().find(|condition| condition.type_ == gate) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {gate:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {gate:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if obstacles.is_empty() {
        return holds(READY, None);
    }
    holds_not(READY, Some("ReadinessGatesNotReady"), Some(obstacles.join(", ")))
}

/// Some rule of the pod can take down all its containers.
pub(crate) fn can_restart_all(pod: &Pod) -> bool {
    containers(pod).any(|spec| {
        let mut rules = spec.container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == "RestartAllContainers")
    })
}

fn all_containers_restarting(input: &StatusInput<'_>, ending: Ending) -> PodCondition {
    let type_ = ALL_CONTAINERS_RESTARTING;
    if ending != Ending::None {
        return holds_not(type_, ending.reason(), None);
    }
    if !input.restarts_all() {
        return holds_not(type_, None, None);
    }
    PodCondition {
        message: Some("container exited with restart policy rule".to_owned()),
        ..holds(type_, Some("RestartAllContainersStarted"))
    }
}

/// Ready and ContainersReady of a pod that has ended, whatever they were.
pub(crate) fn deny_readiness(conditions: &mut [PodCondition], ending: Ending) {
    for condition in conditions {
        if matches!(condition.type_.as_str(), READY | CONTAINERS_READY)
            && condition.status == "True"
        {
            condition.status = "False".to_owned();
            condition.reason = ending.reason().map(str::to_owned);
            condition.message = None;
        }
    }
}

/// `[a b]`, the way Go prints a list.
fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}
