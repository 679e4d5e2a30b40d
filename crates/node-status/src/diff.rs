//! What of a Node has changed, and the patch that says so.

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use rubelet_types::Quantity;
use serde_json::{Map, Value, json};

/// A change that is worth a write before the next report is due: anything of labels, annotations
/// or status but the times of heartbeats. The order of conditions, the notation of quantities, and
/// whether something empty is there or left out, mean nothing.
pub fn diff_needs_write(reported: &Node, computed: &Node) -> bool {
    let metadata = |node: &Node| {
        let mut fields = Map::from_iter([
            ("labels".to_owned(), json!(node.metadata.labels)),
            ("annotations".to_owned(), json!(node.metadata.annotations)),
        ]);
        prune(&mut fields);
        fields
    };
    metadata(reported) != metadata(computed)
        || canonical(reported.status.as_ref()) != canonical(computed.status.as_ref())
}

fn canonical(status: Option<&NodeStatus>) -> Map<String, Value> {
    let mut fields = to_object(status);
    for list in ["capacity", "allocatable"] {
        let amounts = fields.get_mut(list).and_then(Value::as_object_mut);
        for amount in amounts.into_iter().flat_map(Map::values_mut) {
            if let Some(parsed) = amount.as_str().and_then(|text| text.parse::<Quantity>().ok()) {
                *amount = Value::String(format!("{}m", parsed.milli_value()));
            }
        }
    }
    if let Some(Value::Array(conditions)) = fields.get_mut("conditions") {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            condition.remove("lastHeartbeatTime");
        }
        conditions.sort_by(|a, b| text_of(a, "type").cmp(text_of(b, "type")));
    }
    prune(&mut fields);
    fields
}

/// Leaves out what is empty, all the way down. A number of zero is what the API leaves out as well.
fn prune(fields: &mut Map<String, Value>) {
    for value in fields.values_mut() {
        match value {
            Value::Object(fields) => prune(fields),
            Value::Array(items) => {
                items.iter_mut().filter_map(Value::as_object_mut).for_each(prune)
            }
            _ => {}
        }
    }
    fields.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Number(number) => number.as_i64() != Some(0),
        Value::Bool(_) => true,
    });
}

/// The strategic merge patch of `nodes/status` that turns `old` into `new`: labels, annotations and
/// status; `None` if they are alike. Conditions are merged by type, so that those of others are not
/// touched. Addresses are replaced as a whole: two of one type are usual, and merging by type, which
/// the API declares for them, would lose one.
pub fn node_status_patch(old: &Node, new: &Node) -> Option<Value> {
    let mut metadata = Map::new();
    for (name, was, is) in [
        ("labels", &old.metadata.labels, &new.metadata.labels),
        ("annotations", &old.metadata.annotations, &new.metadata.annotations),
    ] {
        let changes = diff_objects(&to_object(was.as_ref()), &to_object(is.as_ref()));
        if !changes.is_empty() {
            metadata.insert(name.to_owned(), Value::Object(changes));
        }
    }
    let status = diff_status(&to_object(old.status.as_ref()), &to_object(new.status.as_ref()));
    let mut patch = Map::new();
    for (name, changes) in [("metadata", metadata), ("status", status)] {
        if !changes.is_empty() {
            patch.insert(name.to_owned(), Value::Object(changes));
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn to_object(part: Option<&impl serde::Serialize>) -> Map<String, Value> {
    // Plain data with text keys always becomes an object.
    match part.map(serde_json::to_value) {
        Some(Ok(Value::Object(fields))) => fields,
        _ => Map::new(),
    }
}

fn diff_status(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut changes = diff_objects(old, new);
    for (list, change) in [
        ("conditions", merged_conditions as fn(&[Value], &[Value]) -> Vec<Value>),
        ("addresses", replaced_addresses),
    ] {
        if let (Some(Value::Array(was)), Some(Value::Array(is))) = (old.get(list), new.get(list))
            && !was.is_empty()
            && was != is
        {
            changes.insert(list.to_owned(), Value::Array(change(was, is)));
        }
    }
    if changes.contains_key("conditions")
        && old.get("conditions").is_some_and(|list| list.as_array().is_some_and(|l| !l.is_empty()))
    {
        let order: Vec<Value> = new
            .get("conditions")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|condition| json!({ "type": text_of(condition, "type") }))
            .collect();
        changes.insert("$setElementOrder/conditions".to_owned(), Value::Array(order));
    }
    changes
}

/// Changed fields, and `null` for those that are gone. Objects are compared field by field, anything
/// else as a whole.
fn diff_objects(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let mut changes = Map::new();
    for (name, is) in new {
        match (old.get(name), is) {
            (Some(was), is) if was == is => {}
            (Some(Value::Object(was)), Value::Object(is)) => {
                changes.insert(name.clone(), Value::Object(diff_objects(was, is)));
            }
            _ => {
                changes.insert(name.clone(), is.clone());
            }
        }
    }
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    changes.extend(gone.map(|name| (name.clone(), Value::Null)));
    changes
}

/// Changed fields of changed conditions, each with its type, then removed conditions.
fn merged_conditions(old: &[Value], new: &[Value]) -> Vec<Value> {
    let named = |list: &[Value], type_: &str| -> Option<Map<String, Value>> {
        list.iter().find(|item| text_of(item, "type") == type_)?.as_object().cloned()
    };
    let mut changes: Vec<Value> = new
        .iter()
        .filter_map(|condition| {
            let type_ = text_of(condition, "type");
            let was = named(old, type_).unwrap_or_default();
            let mut change = diff_objects(&was, condition.as_object()?);
            if change.is_empty() {
                return None;
            }
            change.insert("type".to_owned(), Value::String(type_.to_owned()));
            Some(Value::Object(change))
        })
        .collect();
    let gone = old.iter().map(|item| text_of(item, "type")).filter(|t| named(new, t).is_none());
    changes.extend(gone.map(|type_| json!({ "$patch": "delete", "type": type_ })));
    changes
}

fn replaced_addresses(_: &[Value], new: &[Value]) -> Vec<Value> {
    new.iter().cloned().chain([json!({ "$patch": "replace" })]).collect()
}

fn text_of<'a>(item: &'a Value, key: &str) -> &'a str {
    item.get(key).and_then(Value::as_str).unwrap_or_default()
}
