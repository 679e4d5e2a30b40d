use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_types::{is_terminal_phase, pod_qos_class};

use crate::conditions::foreign_conditions;
use crate::containers::api_time;

/// The status of a pod that the node did not take: Failed, with the reason of the admission
/// handler, and none of the kubelet's claims about containers. A pod that has ended already keeps
/// its status.
///
/// For pods of which no container runs. One that may have containers is ended by its worker with a
/// [`StatusOverride`](crate::StatusOverride) instead.
pub fn rejected_status(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> PodStatus {
    let api = pod.status.clone().unwrap_or_default();
    if is_terminal_phase(api.phase.as_deref()) {
        return api;
    }
    let mut conditions = foreign_conditions(pod);
    let scheduled = api.conditions.into_iter().flatten().find(|c| c.type_ == "PodScheduled");
    conditions.extend(scheduled.map(|condition| PodCondition {
        observed_generation: pod.metadata.generation,
        ..condition
    }));
    PodStatus {
        phase: Some("Failed".to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        conditions: Some(conditions).filter(|list| !list.is_empty()),
        qos_class: Some(
            api.qos_class
                .filter(|class| !class.is_empty())
                .unwrap_or_else(|| pod_qos_class(pod).to_string()),
        ),
        start_time: Some(api_time(api.start_time.map_or(now, |time| time.0))),
        observed_generation: pod.metadata.generation,
        nominated_node_name: api.nominated_node_name,
        resource_claim_statuses: api.resource_claim_statuses,
        extended_resource_claim_status: api.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses: api.node_allocatable_resource_claim_statuses,
        ..Default::default()
    }
}
