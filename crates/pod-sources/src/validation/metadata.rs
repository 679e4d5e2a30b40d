use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use rubelet_types::labels;

use super::error::{Errors, FieldPath};
use super::{all_containers, syntax, text};

const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

pub(super) fn validate(metadata: &ObjectMeta, at: &FieldPath, errors: &mut Errors) {
    let generate_name = text(&metadata.generate_name);
    if !generate_name.is_empty() {
        // What is appended to it makes up for a dash at its end.
        let sample = if generate_name.len() > 1 && generate_name.ends_with('-') {
            format!("{}a", &generate_name[..generate_name.len() - 1])
        } else {
            generate_name.to_owned()
        };
        errors.invalid_each(
            &at.child("generateName"),
            generate_name,
            syntax::dns_subdomain(&sample),
        );
    }
    let name = text(&metadata.name);
    if name.is_empty() {
        errors.required(&at.child("name"), "name or generateName is required");
    } else {
        errors.invalid_each(&at.child("name"), name, syntax::dns_subdomain(name));
    }
    let namespace = text(&metadata.namespace);
    if namespace.is_empty() {
        errors.required(&at.child("namespace"), "");
    } else {
        errors.invalid_each(&at.child("namespace"), namespace, syntax::dns_label(namespace));
    }
    let uid = text(&metadata.uid);
    if !uid.is_empty() {
        errors.invalid_each(&at.child("uid"), uid, syntax::path_element(uid));
    }
    if let Some(generation) = metadata.generation.filter(|generation| *generation < 0) {
        errors.invalid(&at.child("generation"), &generation, "must be greater than or equal to 0");
    }
    validate_labels(metadata.labels.as_ref(), &at.child("labels"), errors);
    validate_annotations(metadata.annotations.as_ref(), &at.child("annotations"), errors);
    validate_owners(
        metadata.owner_references.as_deref().unwrap_or_default(),
        &at.child("ownerReferences"),
        errors,
    );
    for (index, finalizer) in metadata.finalizers.iter().flatten().enumerate() {
        let at = at.child("finalizers").index(index);
        errors.invalid_each(&at, finalizer, syntax::qualified_name(finalizer));
        let standard = ["kubernetes", "orphan", "foregroundDeletion"];
        if !finalizer.contains('/') && !standard.contains(&finalizer.as_str()) {
            errors.invalid(
                &at,
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
}

pub(super) fn validate_labels(
    list: Option<&BTreeMap<String, String>>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    for (key, value) in list.into_iter().flatten() {
        errors.invalid_each(at, key, syntax::qualified_name(key));
        errors.invalid_each(&at.key(key), value, syntax::label_value(value));
    }
}

pub(super) fn validate_annotations(
    list: Option<&BTreeMap<String, String>>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let mut bytes = 0;
    for (key, value) in list.into_iter().flatten() {
        errors.invalid_each(at, key, syntax::qualified_name(&key.to_lowercase()));
        bytes += key.len() + value.len();
    }
    if bytes > MAX_ANNOTATION_BYTES {
        errors.too_long(at, MAX_ANNOTATION_BYTES);
    }
}

fn validate_owners(owners: &[OwnerReference], at: &FieldPath, errors: &mut Errors) {
    let mut controllers = 0;
    for (index, owner) in owners.iter().enumerate() {
        let at = at.index(index);
        for (name, value) in [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                errors.required(&at.child(name), "must not be empty");
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            errors.invalid(&at, &owner.kind, "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.controller == Some(true) {
            controllers += 1;
            if controllers == 2 {
                errors.forbidden(&at, "Only one reference can have Controller set to true");
            }
        }
    }
}

/// Annotations that mean something to a pod.
pub(super) fn validate_pod_annotations(
    metadata: &ObjectMeta,
    spec: &PodSpec,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let Some(annotations) = metadata.annotations.as_ref() else { return };
    if let Some(value) = annotations.get(labels::CONFIG_MIRROR)
        && text(&spec.node_name).is_empty()
    {
        errors.invalid(
            &at.key(labels::CONFIG_MIRROR),
            value,
            "must set spec.nodeName if mirror pod annotation is set",
        );
    }
    let deletion_cost = "controller.kubernetes.io/pod-deletion-cost";
    if let Some(value) = annotations.get(deletion_cost) {
        let canonical = value.parse::<i32>().is_ok_and(|cost| cost.to_string() == *value);
        if !canonical {
            errors.invalid(&at.key(deletion_cost), value, "must be a 32bit integer");
        }
    }
    let containers: BTreeSet<&str> = all_containers(spec).map(|(it, _)| it.name).collect();
    for (key, value) in annotations {
        let Some(container) = key.strip_prefix(labels::APPARMOR_PREFIX) else { continue };
        if !containers.contains(container) {
            errors.invalid(&at.key(key), container, "container not found");
        }
        let known = ["", "runtime/default", "unconfined"].contains(&value.as_str());
        if !known && !value.starts_with("localhost/") {
            let detail = format!("invalid AppArmor profile name: {value:?}");
            errors.invalid(&at.key(key), value, &detail);
        }
    }
}

pub(super) fn validate_label_selector(
    selector: Option<&LabelSelector>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let Some(selector) = selector else { return };
    validate_labels(selector.match_labels.as_ref(), &at.child("matchLabels"), errors);
    for (index, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let at = at.child("matchExpressions").index(index);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => errors.required(
                &at.child("values"),
                "must be specified when `operator` is 'In' or 'NotIn'",
            ),
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(
                &at.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&at.child("operator"), other, "not a valid selector operator"),
        }
        let key = &requirement.key;
        errors.invalid_each(&at.child("key"), key, syntax::qualified_name(key));
        for (index, value) in values.iter().enumerate() {
            let at = at.child("values").index(index);
            errors.invalid_each(&at, value, syntax::label_value(value));
        }
    }
}
