use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec,
    Toleration, TopologySpreadConstraint, WeightedPodAffinityTerm,
};

use super::error::{Errors, FieldPath};
use super::{metadata, spec, syntax, text};

const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

pub(super) fn validate(pod: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    spec::validate_node_selector(pod, at, errors);
    let tolerations = pod.tolerations.as_deref().unwrap_or_default();
    for (index, toleration) in tolerations.iter().enumerate() {
        validate_toleration(toleration, &at.child("tolerations").index(index), errors);
    }
    if let Some(affinity) = &pod.affinity {
        validate_affinity(affinity, &at.child("affinity"), errors);
    }
    let constraints = pod.topology_spread_constraints.as_deref().unwrap_or_default();
    validate_spread(constraints, &at.child("topologySpreadConstraints"), errors);
    validate_gates(pod, at, errors);
}

fn validate_gates(pod: &PodSpec, at: &FieldPath, errors: &mut Errors) {
    let gates = pod.scheduling_gates.as_deref().unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (index, gate) in gates.iter().enumerate() {
        let at = at.child("schedulingGates").index(index);
        errors.invalid_each(&at, &gate.name, syntax::qualified_name(&gate.name));
        if !seen.insert(gate.name.as_str()) {
            errors.duplicate(&at, &gate.name);
        }
    }
    if !gates.is_empty() && !text(&pod.node_name).is_empty() {
        errors.forbidden(
            &at.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        );
    }
}

fn validate_toleration(toleration: &Toleration, at: &FieldPath, errors: &mut Errors) {
    let (key, value) = (text(&toleration.key), text(&toleration.value));
    let (operator, effect) = (text(&toleration.operator), text(&toleration.effect));
    if !key.is_empty() {
        errors.invalid_each(&at.child("key"), key, syntax::qualified_name(key));
    } else if operator != "Exists" {
        errors.invalid(
            &at.child("operator"),
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all \
             keys\"",
        );
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        errors.invalid(
            &at.child("effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        );
    }
    match operator {
        "" | "Equal" => {
            let faults = syntax::label_value(value);
            if !faults.is_empty() {
                errors.invalid(&at.child("operator"), value, &faults.join(";"));
            }
        }
        "Exists" => {
            if !value.is_empty() {
                errors.invalid(
                    &at.child("operator"),
                    value,
                    "value must be empty when `operator` is 'Exists'",
                );
            }
        }
        other => errors.not_supported(&at.child("operator"), other, &["Equal", "Exists"]),
    }
    if !effect.is_empty() && !TAINT_EFFECTS.contains(&effect) {
        errors.not_supported(&at.child("effect"), effect, &TAINT_EFFECTS);
    }
}

fn validate_affinity(affinity: &Affinity, at: &FieldPath, errors: &mut Errors) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(node) = &affinity.node_affinity {
        let at = at.child("nodeAffinity");
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            validate_node_selector(selector, &at.child(REQUIRED), errors);
        }
        let preferred = node.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (index, term) in preferred.enumerate() {
            let at = at.child(PREFERRED).index(index);
            validate_weight(term.weight, &at, errors);
            validate_node_term(&term.preference, false, &at.child("preference"), errors);
        }
    }
    if let Some(pods) = &affinity.pod_affinity {
        let at = at.child("podAffinity");
        validate_pod_terms(
            pods.required_during_scheduling_ignored_during_execution.as_deref(),
            &at.child(REQUIRED),
            errors,
        );
        validate_weighted_terms(
            pods.preferred_during_scheduling_ignored_during_execution.as_deref(),
            &at.child(PREFERRED),
            errors,
        );
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let at = at.child("podAntiAffinity");
        validate_pod_terms(
            pods.required_during_scheduling_ignored_during_execution.as_deref(),
            &at.child(REQUIRED),
            errors,
        );
        validate_weighted_terms(
            pods.preferred_during_scheduling_ignored_during_execution.as_deref(),
            &at.child(PREFERRED),
            errors,
        );
    }
}

fn validate_weight(weight: i32, at: &FieldPath, errors: &mut Errors) {
    if !(1..=100).contains(&weight) {
        errors.invalid(&at.child("weight"), &weight, "must be in the range 1-100");
    }
}

fn validate_node_selector(selector: &NodeSelector, at: &FieldPath, errors: &mut Errors) {
    let at = at.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        errors.required(&at, "must have at least one node selector term");
    }
    for (index, term) in selector.node_selector_terms.iter().enumerate() {
        validate_node_term(term, true, &at.index(index), errors);
    }
}

fn validate_node_term(
    term: &NodeSelectorTerm,
    is_required: bool,
    at: &FieldPath,
    errors: &mut Errors,
) {
    for (index, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let at = at.child("matchExpressions").index(index);
        validate_node_requirement(requirement, is_required, &at, errors);
    }
    for (index, requirement) in term.match_fields.iter().flatten().enumerate() {
        validate_node_field(requirement, &at.child("matchFields").index(index), errors);
    }
}

fn validate_node_requirement(
    requirement: &NodeSelectorRequirement,
    is_required: bool,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let values = requirement.values.as_deref().unwrap_or_default();
    let at_values = at.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" => {
            if values.is_empty() {
                errors.required(&at_values, "must be specified when `operator` is 'In' or 'NotIn'");
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                errors.forbidden(
                    &at_values,
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                );
            }
        }
        "Gt" | "Lt" => {
            if values.len() != 1 {
                errors.required(
                    &at_values,
                    "must be specified single value when `operator` is 'Lt' or 'Gt'",
                );
            }
        }
        other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
    }
    let key = &requirement.key;
    errors.invalid_each(&at.child("key"), key, syntax::qualified_name(key));
    if is_required {
        for (index, value) in values.iter().enumerate() {
            errors.invalid_each(&at_values.index(index), value, syntax::label_value(value));
        }
    }
}

fn validate_node_field(requirement: &NodeSelectorRequirement, at: &FieldPath, errors: &mut Errors) {
    let values = requirement.values.as_deref().unwrap_or_default();
    match requirement.operator.as_str() {
        "In" | "NotIn" => {
            if values.len() != 1 {
                errors.required(
                    &at.child("values"),
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field \
                     selector",
                );
            }
        }
        other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
    }
    if requirement.key != "metadata.name" {
        errors.invalid(&at.child("key"), &requirement.key, "not a valid field selector key");
        return;
    }
    for (index, value) in values.iter().enumerate() {
        let at = at.child("values").index(index);
        errors.invalid_each(&at, value, syntax::dns_subdomain(value));
    }
}

fn validate_weighted_terms(
    terms: Option<&[WeightedPodAffinityTerm]>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    for (index, term) in terms.unwrap_or_default().iter().enumerate() {
        let at = at.index(index);
        validate_weight(term.weight, &at, errors);
        validate_pod_term(&term.pod_affinity_term, &at.child("podAffinityTerm"), errors);
    }
}

fn validate_pod_terms(terms: Option<&[PodAffinityTerm]>, at: &FieldPath, errors: &mut Errors) {
    for (index, term) in terms.unwrap_or_default().iter().enumerate() {
        validate_pod_term(term, &at.index(index), errors);
    }
}

fn validate_pod_term(term: &PodAffinityTerm, at: &FieldPath, errors: &mut Errors) {
    metadata::validate_label_selector(
        term.label_selector.as_ref(),
        &at.child("labelSelector"),
        errors,
    );
    metadata::validate_label_selector(
        term.namespace_selector.as_ref(),
        &at.child("namespaceSelector"),
        errors,
    );
    for namespace in term.namespaces.iter().flatten() {
        let faults = syntax::dns_label(namespace);
        errors.invalid_each(&at.child("namespace"), namespace, faults);
    }
    for (name, keys) in [
        ("matchLabelKeys", &term.match_label_keys),
        ("mismatchLabelKeys", &term.mismatch_label_keys),
    ] {
        let keys = keys.as_deref().unwrap_or_default();
        let at = at.child(name);
        if !keys.is_empty() && term.label_selector.is_none() {
            errors.forbidden(&at, "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            errors.invalid_each(&at.index(index), key, syntax::qualified_name(key));
        }
    }
    let mismatched: BTreeSet<&String> = term.mismatch_label_keys.iter().flatten().collect();
    for (index, key) in term.match_label_keys.iter().flatten().enumerate() {
        if mismatched.contains(key) {
            errors.invalid(
                &at.child("matchLabelKeys").index(index),
                key,
                "exists in both matchLabelKeys and mismatchLabelKeys",
            );
        }
    }
    let topology = &term.topology_key;
    if topology.is_empty() {
        errors.required(&at.child("topologyKey"), "can not be empty");
    }
    errors.invalid_each(&at.child("topologyKey"), topology, syntax::qualified_name(topology));
}

fn validate_spread(constraints: &[TopologySpreadConstraint], at: &FieldPath, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, constraint) in constraints.iter().enumerate() {
        let at = at.index(index);
        let unsatisfiable = constraint.when_unsatisfiable.as_str();
        if constraint.max_skew <= 0 {
            errors.invalid(&at.child("maxSkew"), &constraint.max_skew, "must be greater than zero");
        }
        if constraint.topology_key.is_empty() {
            errors.required(&at.child("topologyKey"), "can not be empty");
        }
        let supported = ["DoNotSchedule", "ScheduleAnyway"];
        if !supported.contains(&unsatisfiable) {
            errors.not_supported(&at.child("whenUnsatisfiable"), unsatisfiable, &supported);
        }
        if !seen.insert((constraint.topology_key.as_str(), unsatisfiable)) {
            errors.duplicate(
                &at.child("{topologyKey, whenUnsatisfiable}"),
                &format!("{{{}, {unsatisfiable}}}", constraint.topology_key),
            );
        }
        if let Some(domains) = constraint.min_domains {
            let at = at.child("minDomains");
            if domains <= 0 {
                errors.invalid(&at, &domains, "must be greater than zero");
            }
            if unsatisfiable != "DoNotSchedule" {
                let detail = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {unsatisfiable}"
                );
                errors.invalid(&at, &domains, &detail);
            }
        }
        for (name, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            let supported = ["Honor", "Ignore"];
            if let Some(policy) = policy.as_deref().filter(|policy| !supported.contains(policy)) {
                errors.not_supported(&at.child(name), policy, &supported);
            }
        }
        validate_spread_labels(constraint, &at, errors);
    }
}

fn validate_spread_labels(
    constraint: &TopologySpreadConstraint,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let selector = constraint.label_selector.as_ref();
    let keys = constraint.match_label_keys.as_deref().unwrap_or_default();
    let at_keys = at.child("matchLabelKeys");
    if !keys.is_empty() && selector.is_none() {
        errors.forbidden(&at_keys, "must not be specified when labelSelector is not set");
    }
    let selected: BTreeSet<&str> = selector
        .into_iter()
        .flat_map(|selector| {
            let labels = selector.match_labels.iter().flat_map(|labels| labels.keys());
            let expressions = selector.match_expressions.iter().flatten().map(|it| &it.key);
            labels.chain(expressions)
        })
        .map(String::as_str)
        .collect();
    for (index, key) in keys.iter().enumerate() {
        errors.invalid_each(&at_keys.index(index), key, syntax::qualified_name(key));
        if selected.contains(key.as_str()) {
            errors.invalid(
                &at_keys.index(index),
                key,
                "exists in both matchLabelKeys and labelSelector",
            );
        }
    }
    metadata::validate_label_selector(selector, &at.child("labelSelector"), errors);
}
