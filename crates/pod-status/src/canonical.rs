//! One form for all ways to write the same status.

use std::str::FromStr;

use k8s_openapi::api::core::v1::PodStatus;
use rubelet_types::Quantity;
use serde_json::{Map, Value};

/// Both say the same. Nothing is ignored but what has no meaning: the order of conditions and of
/// container statuses, fractions of seconds, the way a quantity is written, and whether an empty
/// text, list or object is there or left out.
pub fn statuses_equal(a: &PodStatus, b: &PodStatus) -> bool {
    a == b || canonical(a) == canonical(b)
}

/// The status as JSON in canonical form.
pub(crate) fn canonical(status: &PodStatus) -> Map<String, Value> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(status) else {
        // Plain data with text keys always becomes an object.
        return Map::new();
    };
    prune(&mut fields);
    for (list, key) in [
        ("conditions", "type"),
        ("containerStatuses", "name"),
        ("initContainerStatuses", "name"),
        ("ephemeralContainerStatuses", "name"),
        ("resourceClaimStatuses", "name"),
    ] {
        if let Some(Value::Array(items)) = fields.get_mut(list) {
            items.sort_by(|a, b| key_of(a, key).cmp(key_of(b, key)));
        }
    }
    fields
}

/// The text under `key` of a list's item.
pub(crate) fn key_of<'a>(item: &'a Value, key: &str) -> &'a str {
    item.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn prune(fields: &mut Map<String, Value>) {
    for (name, value) in fields.iter_mut() {
        match name.as_str() {
            "requests" | "limits" | "allocatedResources" => write_amounts_alike(value),
            _ => prune_value(value),
        }
    }
    fields.retain(|name, value| !is_meaningless(name, value));
}

fn prune_value(value: &mut Value) {
    match value {
        Value::Object(fields) => prune(fields),
        Value::Array(items) => items.iter_mut().for_each(prune_value),
        _ => {}
    }
}

fn write_amounts_alike(amounts: &mut Value) {
    let Value::Object(amounts) = amounts else {
        return;
    };
    for amount in amounts.values_mut() {
        if let Some(parsed) = amount.as_str().and_then(|text| Quantity::from_str(text).ok()) {
            // One notation for equal amounts that were written in different ones.
            *amount = Value::String(format!("{}m", parsed.milli_value()));
        }
    }
}

fn is_meaningless(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        // Beside its start, that a container runs has nothing to say.
        Value::Object(fields) => fields.is_empty() && name != "running",
        Value::Bool(set) => !set && name == "readOnly",
        Value::Number(number) => {
            number.as_i64() == Some(0) && matches!(name, "observedGeneration" | "signal")
        }
    }
}
