use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_node_resources::{InsufficientResource, compute_insufficient_resources};
use rubelet_types::ResourceAmounts;

use super::AdmissionFacts;

/// What the scheduler was told that the node can give; what the kubelet knows itself where the
/// object does not say yet.
pub(super) fn allocatable<'a>(facts: &AdmissionFacts<'a>) -> Cow<'a, ResourceAmounts> {
    let told = facts
        .node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref())
        .filter(|amounts| !amounts.is_empty());
    match told {
        Some(amounts) => Cow::Owned(ResourceAmounts::from_api(Some(amounts))),
        None => Cow::Borrowed(facts.allocatable),
    }
}

pub(super) fn insufficient(
    pod: &Pod,
    active: &[Arc<Pod>],
    allocatable: &ResourceAmounts,
) -> Vec<InsufficientResource> {
    compute_insufficient_resources(pod, active.iter().map(|pod| &**pod), allocatable)
}
