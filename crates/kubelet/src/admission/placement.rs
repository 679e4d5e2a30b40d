//! Whether the pod belongs on this node: operating system, node name, affinity, taints, ports.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Taint, Toleration,
};
use rubelet_types::is_static_pod;

use super::{AdmissionFacts, Misfit, Rejection, host_ports};

/// The reason of a pod whose node selector or node affinity does not match.
pub(super) const NODE_AFFINITY: &str = "NodeAffinity";

const OS_LABEL: &str = "kubernetes.io/os";
const OS: &str = "linux";

/// A pod for another operating system is refused whatever node selector it has. The kubelet keeps
/// the node's own label as it should be, so that is not looked at.
pub(super) fn check_os(pod: &Pod) -> Result<(), Rejection> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|os| os != OS) {
        return Err(Rejection::new(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref()).map(|os| os.name.as_str());
    if os.is_some_and(|os| os != OS) {
        return Err(Rejection::new(
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ));
    }
    Ok(())
}

/// The scheduler's predicates that a kubelet asks again, but for resources, in order. Whether the
/// node is schedulable is not among them.
pub(super) fn misfits(pod: &Pod, facts: &AdmissionFacts<'_>) -> Vec<Misfit> {
    let mut misfits = Vec::new();
    if !matches_node_affinity(pod, facts.node) {
        let text = "node(s) didn't match Pod's node affinity/selector";
        misfits.push(Misfit::Predicate(NODE_AFFINITY, text));
    }
    if !is_meant_for(pod, facts.node) {
        let text = "node(s) didn't match the requested node name";
        misfits.push(Misfit::Predicate("NodeName", text));
    }
    if !host_ports::are_free(pod, facts.active) {
        let text = "node(s) didn't have free ports for the requested pod ports";
        misfits.push(Misfit::Predicate("NodePorts", text));
    }
    if !tolerates_node(pod, facts.node) {
        misfits.push(Misfit::Predicate(
            "TaintToleration",
            "node(s) had taints that the pod didn't tolerate",
        ));
    }
    misfits
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

fn is_meant_for(pod: &Pod, node: &Node) -> bool {
    let wanted = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    wanted.is_empty() || wanted == name(node)
}

/// `nodeSelector`, and what `nodeAffinity` requires during scheduling.
fn matches_node_affinity(pod: &Pod, node: &Node) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let no_labels = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
    if spec.node_selector.iter().flatten().any(|(key, value)| labels.get(key) != Some(value)) {
        return false;
    }
    let required =
        spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref()).and_then(
            |affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref(),
        );
    required.is_none_or(|selector| matches_selector(selector, node))
}

/// One of the selector's terms holds for the node.
pub(crate) fn matches_selector(selector: &NodeSelector, node: &Node) -> bool {
    let no_labels = BTreeMap::new();
    let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
    selector.node_selector_terms.iter().any(|term| matches_term(term, labels, name(node)))
}

/// All expressions of a term hold. A term without any matches nothing, and one that makes no sense
/// neither.
fn matches_term(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>, node: &str) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|expression| {
            matches_label(expression, labels.get(&expression.key).map(String::as_str))
        })
        && fields.iter().all(|field| matches_field(field, node))
}

fn matches_label(expression: &NodeSelectorRequirement, label: Option<&str>) -> bool {
    let values = expression.values.as_deref().unwrap_or_default();
    let listed = || label.is_some_and(|label| values.iter().any(|value| value == label));
    let compare = |holds: fn(&i64, &i64) -> bool| match (label, values) {
        (Some(label), [value]) => label
            .parse()
            .ok()
            .zip(value.parse().ok())
            .is_some_and(|(label, value)| holds(&label, &value)),
        _ => false,
    };
    match expression.operator.as_str() {
        "In" => listed(),
        "NotIn" => !values.is_empty() && !listed(),
        "Exists" => values.is_empty() && label.is_some(),
        "DoesNotExist" => values.is_empty() && label.is_none(),
        "Gt" => compare(i64::gt),
        "Lt" => compare(i64::lt),
        _ => false,
    }
}

/// `metadata.name` is the one field that can be asked for.
fn matches_field(field: &NodeSelectorRequirement, node: &str) -> bool {
    let found = if field.key == "metadata.name" { node } else { "" };
    match (field.operator.as_str(), field.values.as_deref().unwrap_or_default()) {
        ("In", [value]) => value == found,
        ("NotIn", [value]) => value != found,
        _ => false,
    }
}

/// Of taints, those that would drive the pod out again. Static pods stay whatever the taints.
fn tolerates_node(pod: &Pod, node: &Node) -> bool {
    if is_static_pod(pod) {
        return true;
    }
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    let tolerations = tolerations.unwrap_or_default();
    taints
        .filter(|taint| taint.effect == "NoExecute")
        .all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |field: &Option<String>| field.clone().filter(|text| !text.is_empty());
    let value = |field: &Option<String>| given(field).unwrap_or_default();
    given(&toleration.effect).is_none_or(|effect| effect == taint.effect)
        && given(&toleration.key).is_none_or(|key| key == taint.key)
        && match given(&toleration.operator).as_deref() {
            None | Some("Equal") => value(&toleration.value) == value(&taint.value),
            Some("Exists") => true,
            // Comparisons need a feature gate that is off.
            Some(_) => false,
        }
}
