use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::quantity::GoQuantity;
use crate::defaults::apply_defaults;

/// Annotations of 1.3 and before, which no internal pod carries.
const INIT_CONTAINER_ANNOTATIONS: [&str; 4] = [
    "pod.alpha.kubernetes.io/init-container-statuses",
    "pod.alpha.kubernetes.io/init-containers",
    "pod.beta.kubernetes.io/init-container-statuses",
    "pod.beta.kubernetes.io/init-containers",
];

/// Fields of the spec that the internal form keeps in the security context.
const HOST_FIELDS: [&str; 5] =
    ["hostIPC", "hostNetwork", "hostPID", "hostUsers", "shareProcessNamespace"];

type Amounts = BTreeMap<String, GoQuantity>;

/// The pod with its defaults, its fields where the Go kubelet's internal type has them, and its
/// quantities in the state in which Go's defaulting leaves them.
pub(super) fn internal_form(pod: &Pod) -> Value {
    let mut defaulted = pod.clone();
    apply_defaults(&mut defaulted);
    if let (Some(spec), Some(original)) = (&mut defaulted.spec, &pod.spec) {
        take_back(spec, original);
    }
    // A pod of plain data always serialises.
    let mut tree = serde_json::to_value(defaulted).unwrap_or_default();
    let Some(root) = tree.as_object_mut() else { return tree };
    root.remove("apiVersion");
    root.remove("kind");
    if let Some(annotations) =
        tree.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.retain(|key, _| !INIT_CONTAINER_ANNOTATIONS.contains(&key.as_str()));
    }
    if let Some(spec) = tree.get_mut("spec").and_then(Value::as_object_mut) {
        move_host_fields(spec);
        if let Some(seconds @ ..0) =
            spec.get("terminationGracePeriodSeconds").and_then(Value::as_i64)
        {
            spec.insert("terminationGracePeriodSeconds".to_owned(), json!(seconds.max(1)));
        }
        default_requests(spec);
        round_spec(spec);
    }
    if let Some(status) = tree.get_mut("status").and_then(Value::as_object_mut) {
        convert_status(status);
    }
    tree
}

/// Undoes what Go's defaulting of this kind does not do, or does otherwise.
fn take_back(spec: &mut PodSpec, original: &PodSpec) {
    let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    let originals = original.init_containers.iter().flatten().chain(&original.containers);
    for (container, original) in containers.zip(originals) {
        container.resources.clone_from(&original.resources);
    }
    let containers = spec.ephemeral_containers.iter_mut().flatten();
    for (container, original) in containers.zip(original.ephemeral_containers.iter().flatten()) {
        container.resources.clone_from(&original.resources);
    }
    spec.resources.clone_from(&original.resources);
    spec.overhead.clone_from(&original.overhead);
}

fn move_host_fields(spec: &mut Map<String, Value>) {
    let moved: Vec<(String, Value)> = HOST_FIELDS
        .iter()
        .filter_map(|field| spec.remove(*field).map(|value| ((*field).to_owned(), value)))
        .collect();
    let context = spec.entry("securityContext").or_insert_with(|| json!({}));
    if let Some(context) = context.as_object_mut() {
        context.extend(moved);
    }
}

fn convert_status(status: &mut Map<String, Value>) {
    let ip = status.get("podIP").and_then(Value::as_str).unwrap_or_default().to_owned();
    let first = status.get("podIPs").and_then(|ips| ips.get(0));
    let first = first.map(|first| first.get("ip").and_then(Value::as_str).unwrap_or_default());
    if !ip.is_empty() && first != Some(ip.as_str()) {
        status.insert("podIPs".to_owned(), json!([{"ip": ip}]));
    }
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        for container in items(status, list) {
            round_field(container, "allocatedResources");
            round_resources(container);
        }
    }
    round_field(status, "allocatedResources");
    round_resources(status);
}

/// The objects of a list.
fn items<'a>(
    owner: &'a mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let items = owner.get_mut(list).and_then(Value::as_array_mut);
    items.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn amounts(resources: Option<&Value>, field: &str) -> Option<Amounts> {
    let list = resources?.get(field)?.as_object()?;
    Some(list.iter().map(|(name, value)| (name.clone(), quantity(value))).collect())
}

fn quantity(value: &Value) -> GoQuantity {
    match value {
        Value::String(text) => GoQuantity::of_text(text),
        worked_out => GoQuantity::deserialize(worked_out).unwrap_or_else(|_| GoQuantity::unset()),
    }
}

fn set(owner: &mut Map<String, Value>, field: &str, amounts: &Amounts) {
    owner.insert(field.to_owned(), serde_json::to_value(amounts).unwrap_or_default());
}

/// What is requested follows from the limits, and what the pod as a whole requests from both.
fn default_requests(spec: &mut Map<String, Value>) {
    for list in ["containers", "initContainers"] {
        for container in items(spec, list) {
            let resources = container.get("resources");
            let Some(limits) = amounts(resources, "limits") else { continue };
            let mut requests = amounts(resources, "requests").unwrap_or_default();
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
            if let Some(resources) = container.get_mut("resources").and_then(Value::as_object_mut) {
                set(resources, "requests", &requests);
            }
        }
    }
    default_pod_level_requests(spec);
}

fn default_pod_level_requests(spec: &mut Map<String, Value>) {
    let resources = spec.get("resources");
    let mut limits = amounts(resources, "limits").unwrap_or_default();
    let mut requests = amounts(resources, "requests").unwrap_or_default();
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    for (name, limit) in container_totals(spec, "limits") {
        if is_huge_pages(&name) && !requests.contains_key(&name) {
            limits.entry(name).or_insert(limit);
        }
    }
    if !limits.is_empty() {
        for (name, request) in container_totals(spec, "requests") {
            if matches!(name.as_str(), "cpu" | "memory") {
                requests.entry(name).or_insert(request);
            }
        }
        for (name, limit) in &limits {
            if matches!(name.as_str(), "cpu" | "memory") || is_huge_pages(name) {
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
    }
    if let Some(resources) = spec.get_mut("resources").and_then(Value::as_object_mut) {
        for (field, amounts) in [("limits", limits), ("requests", requests)] {
            if !amounts.is_empty() {
                set(resources, field, &amounts);
            }
        }
    }
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// The sum over all containers, in the order in which Go adds: it shows in the quantities.
fn container_totals(spec: &Map<String, Value>, field: &str) -> Amounts {
    let containers = |list: &str| spec.get(list).and_then(Value::as_array).into_iter().flatten();
    let of = |container: &Value| amounts(container.get("resources"), field).unwrap_or_default();
    let mut total = Amounts::new();
    for container in containers("containers") {
        add_all(&mut total, of(container));
    }
    let mut sidecars = Amounts::new();
    let mut most = Amounts::new();
    for container in containers("initContainers") {
        let mut needed = of(container);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            add_all(&mut total, needed.clone());
            add_all(&mut sidecars, needed);
            needed = sidecars.clone();
        } else {
            add_all(&mut needed, sidecars.clone());
        }
        raise_all(&mut most, needed);
    }
    raise_all(&mut total, most);
    total
}

fn add_all(total: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        match total.get_mut(&name) {
            Some(sum) => sum.add(&amount),
            None => {
                total.insert(name, amount);
            }
        }
    }
}

fn raise_all(most: &mut Amounts, other: Amounts) {
    for (name, mut amount) in other {
        if most.get(&name).is_none_or(|known| amount.compare(known).is_gt()) {
            most.insert(name, amount);
        }
    }
}

fn round_spec(spec: &mut Map<String, Value>) {
    round_field(spec, "overhead");
    round_resources(spec);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        items(spec, list).for_each(round_resources);
    }
    for volume in items(spec, "volumes") {
        let claim = volume
            .get_mut("ephemeral")
            .and_then(|ephemeral| ephemeral.pointer_mut("/volumeClaimTemplate/spec"))
            .and_then(Value::as_object_mut);
        if let Some(claim) = claim {
            round_resources(claim);
        }
    }
}

fn round_resources(owner: &mut Map<String, Value>) {
    if let Some(resources) = owner.get_mut("resources").and_then(Value::as_object_mut) {
        round_field(resources, "limits");
        round_field(resources, "requests");
    }
}

fn round_field(owner: &mut Map<String, Value>, field: &str) {
    for value in
        owner.get_mut(field).and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
    {
        let mut rounded = quantity(value);
        rounded.round_up_to_milli();
        *value = serde_json::to_value(rounded).unwrap_or_default();
    }
}
