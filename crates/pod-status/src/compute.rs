use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_types::{ContainerKind, is_terminal_phase, pod_qos_class, pod_restart_policy};

use crate::conditions::{Ending, compute_conditions};
use crate::containers::{Reported, api_time, is_initialized, report_containers};
use crate::finish::{final_phase, mark_lost_containers};
use crate::input::{Stage, StatusInput};
use crate::phase::{Phase, PhaseFacts, compute_phase};
use crate::pod_ips::set_ips;
use crate::resources::{pod_allocated_resources, pod_resources};

/// All termination messages of a pod together are at most this long.
const TERMINATION_MESSAGES_BYTES: usize = 12 * 1024;

/// Computes the complete status of a pod (upstream `generateAPIPodStatus` with what its status
/// manager adds).
pub fn compute_pod_status(input: &StatusInput<'_>) -> PodStatus {
    let mut reported = report_containers(input);
    let ended = input.stage == Stage::Terminated && !input.any_may_run();
    if ended {
        mark_lost_containers(input, &mut reported);
    }
    let mut computed = compute_phase(
        PhaseFacts {
            restart_policy: pod_restart_policy(input.pod),
            initialized: is_initialized(input),
            over: ended && !input.may_come_back(),
        },
        &reported,
    );
    if ended {
        computed = final_phase(input, computed);
    }
    let outcome = decide_outcome(input, computed);
    let conditions =
        compute_conditions(input, &reported, outcome.ending, outcome.together_with_end);

    let mut status = api_owned_fields(input);
    status.phase = Some(outcome.phase);
    status.reason = outcome.reason;
    status.message = outcome.message;
    status.conditions = Some(conditions);
    status.start_time = Some(start_time(input));
    status.observed_generation = input.pod.metadata.generation;
    set_ips(input, &mut status);
    if input.gates.in_place_pod_level_resources_vertical_scaling {
        status.resources = Some(pod_resources(input));
        status.allocated_resources = pod_allocated_resources(input);
    }
    set_container_statuses(&mut status, reported);
    status
}

/// What the pod's phase becomes, and what is said with it.
struct Outcome<'a> {
    phase: String,
    reason: Option<String>,
    message: Option<String>,
    /// How the conditions see it. It can be ahead of the phase: a pod that is evicted is out of its
    /// services at once, and Failed only when its last container is gone.
    ending: Ending,
    together_with_end: &'a [PodCondition],
}

fn decide_outcome<'a>(input: &StatusInput<'a>, computed: Phase) -> Outcome<'a> {
    let previous = input.previous;
    let api = input.pod.status.as_ref();
    let api_phase = api.and_then(|status| status.phase.as_deref());
    let some = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let reason_before =
        || some(&previous.reason).or_else(|| api.and_then(|status| some(&status.reason)));
    let message_before =
        || some(&previous.message).or_else(|| api.and_then(|status| some(&status.message)));

    // A terminal phase is for ever; the API server's word counts most.
    let terminal =
        [api_phase, previous.phase.as_deref()].into_iter().find(|phase| is_terminal_phase(*phase));
    if let Some(phase) = terminal.flatten() {
        return Outcome {
            phase: phase.to_owned(),
            reason: reason_before(),
            message: message_before(),
            ending: Ending::of_phase(phase),
            together_with_end: &[],
        };
    }

    let wanted = match input.outcome_override {
        Some(decided) => decided.phase.as_str(),
        None => computed.as_str(),
    };
    let ending = Ending::of_phase(wanted);
    if ending != Ending::None && input.any_may_run() {
        let held = previous.phase.clone().filter(|phase| !phase.is_empty());
        return Outcome {
            phase: held.unwrap_or_else(|| Phase::Pending.to_string()),
            reason: reason_before(),
            message: message_before(),
            ending,
            together_with_end: &[],
        };
    }
    let (reason, message, together_with_end) = match input.outcome_override {
        Some(decided) => (
            Some(decided.reason.clone()).filter(|text| !text.is_empty()),
            Some(decided.message.clone()).filter(|text| !text.is_empty()),
            decided.conditions.as_slice(),
        ),
        None if previous.phase.as_deref() == Some(wanted) => {
            (reason_before(), message_before(), &[][..])
        }
        None => (None, None, &[][..]),
    };
    Outcome { phase: wanted.to_owned(), reason, message, ending, together_with_end }
}

/// Fields that others write and the kubelet hands back as it found them.
fn api_owned_fields(input: &StatusInput<'_>) -> PodStatus {
    let api = input.pod.status.clone().unwrap_or_default();
    PodStatus {
        nominated_node_name: api.nominated_node_name,
        resource_claim_statuses: api.resource_claim_statuses,
        extended_resource_claim_status: api.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses: api.node_allocatable_resource_claim_statuses,
        qos_class: Some(
            api.qos_class
                .filter(|class| !class.is_empty())
                .unwrap_or_else(|| pod_qos_class(input.pod).to_string()),
        ),
        ..Default::default()
    }
}

/// Set once, when the kubelet first takes up the pod.
fn start_time(input: &StatusInput<'_>) -> Time {
    let api = input.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let since = input.previous.start_time.as_ref().or(api);
    api_time(since.map_or(input.now, |time| time.0))
}

/// Init containers stand in the order of the spec, all others by name.
fn set_container_statuses(status: &mut PodStatus, reported: Vec<Reported<'_>>) {
    let share = TERMINATION_MESSAGES_BYTES / reported.len().max(1);
    let (mut init, mut regular, mut ephemeral) = (Vec::new(), Vec::new(), Vec::new());
    for mut container in reported {
        truncate_messages(&mut container.status, share);
        match container.spec.kind {
            ContainerKind::Init | ContainerKind::Sidecar => init.push(container.status),
            ContainerKind::Regular => regular.push(container.status),
            ContainerKind::Ephemeral => ephemeral.push(container.status),
        }
    }
    regular.sort_by(|a: &ContainerStatus, b| a.name.cmp(&b.name));
    ephemeral.sort_by(|a: &ContainerStatus, b| a.name.cmp(&b.name));
    // It is kept for as long as the pod runs, and a list that grew has room for four.
    let some = |mut list: Vec<ContainerStatus>| {
        list.shrink_to_fit();
        Some(list).filter(|list| !list.is_empty())
    };
    status.init_container_statuses = some(init);
    status.container_statuses = some(regular);
    status.ephemeral_container_statuses = some(ephemeral);
}

fn truncate_messages(status: &mut ContainerStatus, bytes: usize) {
    let states = [status.state.as_mut(), status.last_state.as_mut()];
    for end in states.into_iter().flatten().filter_map(|state| state.terminated.as_mut()) {
        if let Some(message) = end.message.as_mut()
            && message.len() > bytes
        {
            message.truncate(message.floor_char_boundary(bytes));
        }
    }
}
