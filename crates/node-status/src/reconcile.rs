//! What a kubelet corrects of a Node that exists already when it registers.

use k8s_openapi::api::core::v1::Node;
use rubelet_node_resources::PageSize;
use rubelet_types::Quantity;
use serde_json::Value;

use crate::compute::{
    ARCH, ApiAmounts, BETA_ARCH, BETA_OS, CONTROLLER_ATTACH_DETACH, HOSTNAME, OS,
    is_extended_resource,
};
use crate::conditions::zero;
use crate::node_status_patch;

/// Labels that follow the kubelet's value, where it has one.
const DEFAULT_LABELS: [&str; 12] = [
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS,
    ARCH,
    "node.kubernetes.io/windows-build",
    BETA_OS,
    BETA_ARCH,
];

/// The patch of `nodes/status` that makes an `existing` Node agree with the one that this kubelet
/// would have created (`initial`): default labels, the annotation for controllers that attach
/// volumes, sizes of huge pages; `None` if it does. `resets_extended_resources`: no record of devices
/// survived, so that extended resources are 0 until their plugins are back. Taints, other labels,
/// annotations and the provider's id are left as they are: only creation sets them.
pub fn reconcile_existing_node(
    existing: &Node,
    initial: &Node,
    resets_extended_resources: bool,
) -> Option<Value> {
    let mut node = existing.clone();
    reconcile_attach_detach(&mut node, initial);
    reconcile_labels(&mut node, initial);
    reconcile_resources(&mut node, initial, resets_extended_resources);
    node_status_patch(existing, &node)
}

fn reconcile_attach_detach(node: &mut Node, initial: &Node) {
    let wanted = initial
        .metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(CONTROLLER_ATTACH_DETACH));
    match (wanted, &mut node.metadata.annotations) {
        (Some(value), annotations) => {
            annotations
                .get_or_insert_default()
                .insert(CONTROLLER_ATTACH_DETACH.to_owned(), value.clone());
        }
        (None, Some(annotations)) => {
            annotations.remove(CONTROLLER_ATTACH_DETACH);
        }
        (None, None) => {}
    }
}

fn reconcile_labels(node: &mut Node, initial: &Node) {
    let Some(wanted) = &initial.metadata.labels else { return };
    let labels = node.metadata.labels.get_or_insert_default();
    for label in DEFAULT_LABELS {
        match wanted.get(label) {
            Some(value) if value.is_empty() => {
                labels.remove(label);
            }
            Some(value) => {
                labels.insert(label.to_owned(), value.clone());
            }
            None => {}
        }
    }
}

fn reconcile_resources(node: &mut Node, initial: &Node, resets_extended_resources: bool) {
    let status = node.status.get_or_insert_default();
    let wanted = initial.status.clone().unwrap_or_default();
    let wanted_capacity = wanted.capacity.unwrap_or_default();
    let wanted_allocatable = wanted.allocatable.unwrap_or_default();
    let capacity = status.capacity.get_or_insert_with(|| wanted_capacity.clone());
    let allocatable = status.allocatable.get_or_insert_with(|| wanted_allocatable.clone());
    if resets_extended_resources {
        let extended: Vec<String> =
            capacity.keys().filter(|name| is_extended_resource(name)).cloned().collect();
        for name in extended {
            set(capacity, &name, &zero());
            set(allocatable, &name, &zero());
        }
    }
    for (list, wanted) in [(capacity, &wanted_capacity), (allocatable, &wanted_allocatable)] {
        list.retain(|name, _| !is_huge_pages(name) || wanted.contains_key(name));
        for (name, amount) in wanted.iter().filter(|(name, _)| is_huge_pages(name)) {
            set(list, name, amount);
        }
    }
}

fn is_huge_pages(name: &str) -> bool {
    PageSize::from_resource_name(name).is_some()
}

/// Sets an amount, unless the same is written there already in another notation.
fn set(
    list: &mut ApiAmounts,
    name: &str,
    amount: &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
) {
    let parse = |amount| Quantity::try_from(amount).ok();
    let is_same =
        list.get(name).is_some_and(|known| known == amount || parse(known) == parse(amount));
    if !is_same {
        list.insert(name.to_owned(), amount.clone());
    }
}
