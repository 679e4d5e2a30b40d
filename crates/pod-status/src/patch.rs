//! What the API server has to be told.

use k8s_openapi::api::core::v1::PodStatus;
use rubelet_types::is_terminal_phase;
use serde_json::{Map, Value, json};

use crate::canonical::{canonical, key_of};
use crate::conditions::{Ending, deny_readiness, is_owned, is_shared, put};

/// Lists that a strategic merge patch merges item by item, with the field that names an item. All
/// other lists are replaced as a whole.
const MERGED_LISTS: [(&str, &str); 5] = [
    ("conditions", "type"),
    ("podIPs", "ip"),
    ("hostIPs", "ip"),
    ("resourceClaimStatuses", "name"),
    ("nodeAllocatableResourceClaimStatuses", "resourceClaimName"),
];

/// The status to write, from what the API server holds now and what the kubelet computed.
///
/// Conditions and fields of others stay as the API server has them. A terminal phase there is not
/// left, whatever was computed. `DisruptionTarget` is written only together with the step into a
/// terminal phase.
pub fn merge_for_patch(api: &PodStatus, computed: &PodStatus) -> PodStatus {
    let mut merged = computed.clone();
    let ended_there = is_terminal_phase(api.phase.as_deref());
    if ended_there && merged.phase != api.phase {
        merged.phase.clone_from(&api.phase);
        merged.reason.clone_from(&api.reason);
        merged.message.clone_from(&api.message);
    }
    let ends_now = !ended_there && is_terminal_phase(merged.phase.as_deref());

    let foreign = api.conditions.iter().flatten().filter(|there| !is_owned(&there.type_));
    let mut conditions: Vec<_> = foreign.cloned().collect();
    for condition in merged.conditions.take().into_iter().flatten() {
        if is_owned(&condition.type_) || (is_shared(&condition.type_) && ends_now) {
            put(&mut conditions, condition);
        }
    }
    let ending = Ending::of_phase(merged.phase.as_deref().unwrap_or_default());
    if ending != Ending::None {
        deny_readiness(&mut conditions, ending);
    }
    merged.conditions = Some(conditions).filter(|list| !list.is_empty());

    merged.nominated_node_name.clone_from(&api.nominated_node_name);
    merged.resource_claim_statuses.clone_from(&api.resource_claim_statuses);
    merged.extended_resource_claim_status.clone_from(&api.extended_resource_claim_status);
    merged
        .node_allocatable_resource_claim_statuses
        .clone_from(&api.node_allocatable_resource_claim_statuses);
    merged.resize.clone_from(&api.resize);
    merged
}

/// The `status` part of the strategic merge patch that turns `old` into `new`; `None` when both say
/// the same, and nothing is to be written.
pub fn diff_status(old: &PodStatus, new: &PodStatus) -> Option<Value> {
    if old == new {
        return None;
    }
    let (before, after) = (canonical(old), canonical(new));
    let mut written = match serde_json::to_value(new) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    let mut patch = Map::new();
    for name in before.keys().chain(after.keys().filter(|name| !before.contains_key(*name))) {
        let (was, is) = (before.get(name), after.get(name));
        if was == is {
            continue;
        }
        match (MERGED_LISTS.iter().find(|(list, _)| list == name), was, is) {
            (Some((_, key)), Some(Value::Array(was)), Some(Value::Array(is))) => {
                let order: Vec<Value> =
                    is.iter().map(|item| json!({ *key: key_of(item, key) })).collect();
                patch.insert(format!("$setElementOrder/{name}"), Value::Array(order));
                let changes = diff_list(key, was, is);
                if !changes.is_empty() {
                    patch.insert(name.clone(), Value::Array(changes));
                }
            }
            // Written in full, as it is and not in canonical form.
            (_, _, Some(_)) => {
                patch.insert(name.clone(), written.remove(name).unwrap_or_default());
            }
            (_, _, None) => {
                patch.insert(name.clone(), Value::Null);
            }
        }
    }
    Some(Value::Object(patch)).filter(|_| before != after)
}

/// Changed items with their changed fields, then removed ones.
fn diff_list(key: &str, before: &[Value], after: &[Value]) -> Vec<Value> {
    let named = |list: &[Value], name: &str| -> Option<Map<String, Value>> {
        list.iter().find(|item| key_of(item, key) == name)?.as_object().cloned()
    };
    let mut changes = Vec::new();
    for item in after {
        let name = key_of(item, key);
        let is = item.as_object().cloned().unwrap_or_default();
        let was = named(before, name).unwrap_or_default();
        if was == is {
            continue;
        }
        let gone = was.keys().filter(|field| !is.contains_key(*field));
        let mut change: Map<String, Value> =
            gone.map(|field| (field.clone(), Value::Null)).collect();
        let changed = is.iter().filter(|(field, value)| was.get(*field) != Some(*value));
        change.extend(changed.map(|(field, value)| (field.clone(), value.clone())));
        change.insert(key.to_owned(), Value::String(name.to_owned()));
        changes.push(Value::Object(change));
    }
    for item in before {
        let name = key_of(item, key);
        if named(after, name).is_none() {
            changes.push(json!({ "$patch": "delete", key: name }));
        }
    }
    changes
}

/// The whole patch for `pods/status`, or `None` when there is nothing to write. It names the uid,
/// so that it never lands on a pod of the same name that came later.
pub fn status_patch(uid: &str, api: &PodStatus, computed: &PodStatus) -> Option<Value> {
    let merged = merge_for_patch(api, computed);
    diff_status(api, &merged).map(|status| json!({ "metadata": { "uid": uid }, "status": status }))
}
