//! Patches: RFC 7396, and the strategic merge of Kubernetes as far as nodes and pods use it.

use serde_json::{Map, Value};

use crate::kinds::merge_key;

/// Applies a merge patch.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    let target = as_object(target);
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name.as_str()).or_insert(Value::Null), value);
        }
    }
}

/// Applies a strategic merge patch to an object of this kind.
pub(crate) fn merge_strategically(
    kind: &str,
    target: &mut Value,
    patch: &Value,
) -> Result<(), String> {
    let Value::Object(patch) = patch else { return Err("a patch has to be an object".to_owned()) };
    merge_object(kind, &mut Vec::new(), as_object(target), patch)
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(object) => object,
        _ => unreachable!("it was just made an object"),
    }
}

const ORDER: &str = "$setElementOrder/";
const DELETE_VALUES: &str = "$deleteFromPrimitiveList/";

fn merge_object<'a>(
    kind: &str,
    path: &mut Vec<&'a str>,
    target: &mut Map<String, Value>,
    patch: &'a Map<String, Value>,
) -> Result<(), String> {
    match patch.get("$patch").and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            *target = patch.clone();
            target.remove("$patch");
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some(other) => return Err(format!("unknown patch directive {other:?}")),
    }
    let before = target.clone();
    if let Some(Value::Array(retained)) = patch.get("$retainKeys") {
        target.retain(|name, _| retained.iter().any(|kept| kept == name));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_VALUES) {
            let gone = value.as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(Value::Array(values)) = target.get_mut(list) {
                values.retain(|value| !gone.contains(value));
            }
        }
        if name.starts_with('$') {
            continue;
        }
        if value.is_null() {
            target.remove(name);
            continue;
        }
        path.push(name);
        let field = target.entry(name.as_str()).or_insert(Value::Null);
        match (value, merge_key(kind, path)) {
            (Value::Object(value), _) => merge_object(kind, path, as_object(field), value)?,
            (Value::Array(values), Some(Some(key))) => {
                merge_list(kind, path, key, field, values)?;
            }
            (Value::Array(values), Some(None)) => {
                let list = as_list(field);
                let before = list.clone();
                for value in values {
                    if !list.contains(value) {
                        list.push(value.clone());
                    }
                }
                put_in_order(list, &before, values, None);
            }
            (value, _) => *field = value.clone(),
        }
        path.pop();
    }
    for (name, order) in patch {
        let Some(list) = name.strip_prefix(ORDER) else { continue };
        path.push(list);
        if let (Some(Value::Array(elements)), Some(key)) =
            (target.get_mut(list), merge_key(kind, path))
        {
            let order = order.as_array().map(Vec::as_slice).unwrap_or_default();
            let before = before.get(list).and_then(Value::as_array);
            put_in_order(elements, before.map(Vec::as_slice).unwrap_or_default(), order, key);
        }
        path.pop();
    }
    Ok(())
}

/// Puts `list` into the order that a patch leads to: what the patch names, in the order of the
/// patch, and in between what it does not name, where that stood before something that it names.
fn put_in_order(list: &mut Vec<Value>, before: &[Value], order: &[Value], key: Option<&str>) {
    let is_same = |a: &Value, b: &Value| match key {
        Some(key) => a.get(key) == b.get(key),
        None => a == b,
    };
    let place =
        |among: &[Value], element: &Value| among.iter().position(|other| is_same(other, element));
    let (mut named, mut others): (Vec<Value>, Vec<Value>) =
        std::mem::take(list).into_iter().partition(|element| place(order, element).is_some());
    named.sort_by_key(|element| place(order, element));
    others.sort_by_key(|element| place(before, element));
    let mut others = others.into_iter().peekable();
    for element in named {
        let stood = place(before, &element);
        while let (Some(stood), Some(other)) = (stood, others.peek())
            && place(before, other).is_some_and(|place| place < stood)
        {
            list.extend(others.next());
        }
        list.push(element);
    }
    list.extend(others);
}

fn as_list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("it was just made a list"),
    }
}

fn merge_list<'a>(
    kind: &str,
    path: &mut Vec<&'a str>,
    key: &str,
    target: &mut Value,
    patch: &'a [Value],
) -> Result<(), String> {
    let list = as_list(target);
    let before = list.clone();
    if patch.iter().any(|element| element["$patch"] == "replace" && element.get(key).is_none()) {
        list.clear();
    }
    for element in patch {
        let directive = element["$patch"].as_str();
        let Some(identity) = element.get(key) else {
            if directive == Some("replace") {
                continue;
            }
            return Err(format!("map: {element} does not contain declared merge key: {key}"));
        };
        let place = list.iter().position(|existing| existing.get(key) == Some(identity));
        match (directive, place, element) {
            (Some("delete"), place, _) => {
                if let Some(place) = place {
                    list.remove(place);
                }
            }
            (_, Some(place), Value::Object(element)) => {
                merge_object(kind, path, as_object(&mut list[place]), element)?;
            }
            (_, _, element) => {
                let mut fresh = Value::Object(Map::new());
                if let Value::Object(element) = element {
                    merge_object(kind, path, as_object(&mut fresh), element)?;
                }
                list.push(fresh);
            }
        }
    }
    put_in_order(list, &before, patch, Some(key));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn strategic(kind: &str, mut target: Value, patch: Value) -> Value {
        merge_strategically(kind, &mut target, &patch).unwrap();
        target
    }

    #[test]
    fn conditions_merge_by_type_and_container_statuses_are_replaced() {
        let pod = json!({"status": {
            "phase": "Pending",
            "conditions": [{"type": "Ready", "status": "False", "reason": "x"}, {"type": "Gate", "status": "True"}],
            "containerStatuses": [{"name": "a", "ready": false}, {"name": "b", "ready": true}]}});
        let patch = json!({"status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "reason": null}, {"type": "New", "status": "True"}],
            "containerStatuses": [{"name": "a", "ready": true}]}});
        assert_eq!(
            strategic("Pod", pod, patch),
            json!({"status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}, {"type": "New", "status": "True"}, {"type": "Gate", "status": "True"}],
                "containerStatuses": [{"name": "a", "ready": true}]}})
        );
    }

    #[test]
    fn the_order_is_that_of_the_patch_with_the_rest_in_between() {
        let list = |types: &str| -> Value {
            types.chars().map(|kind| json!({"type": kind.to_string()})).collect()
        };
        for (before, patch, after) in
            [("ab", "c", "cab"), ("abc", "b", "abc"), ("abcd", "db", "acdb"), ("", "ba", "ba")]
        {
            let node = json!({"status": {"conditions": list(before)}});
            let patched = strategic("Node", node, json!({"status": {"conditions": list(patch)}}));
            assert_eq!(patched["status"]["conditions"], list(after), "{before} and {patch}");
        }
    }

    #[test]
    fn an_element_can_be_deleted_and_the_order_be_set() {
        let node = json!({"status": {"addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "a"}]}});
        let patch = json!({"status": {
            "$setElementOrder/addresses": [{"type": "Hostname"}, {"type": "ExternalIP"}],
            "addresses": [{"type": "ExternalIP", "address": "1.1.1.1"}, {"type": "InternalIP", "$patch": "delete"}]}});
        assert_eq!(
            strategic("Node", node, patch),
            json!({"status": {"addresses": [
                {"type": "Hostname", "address": "a"}, {"type": "ExternalIP", "address": "1.1.1.1"}]}})
        );
    }

    #[test]
    fn a_list_or_an_object_can_be_replaced_as_a_whole() {
        let node = json!({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "capacity": {"cpu": "1", "memory": "2"}}});
        let patch = json!({"status": {
            "addresses": [{"type": "Hostname", "address": "b"}, {"$patch": "replace"}],
            "capacity": {"$patch": "replace", "cpu": "4"}}});
        assert_eq!(
            strategic("Node", node, patch),
            json!({"status": {"addresses": [{"type": "Hostname", "address": "b"}], "capacity": {"cpu": "4"}}})
        );
    }

    #[test]
    fn finalizers_are_a_set() {
        let pod = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"]}});
        assert_eq!(strategic("Pod", pod, patch), json!({"metadata": {"finalizers": ["b", "c"]}}));
    }

    #[test]
    fn elements_without_their_key_are_refused() {
        let mut pod = json!({});
        let patch = json!({"status": {"conditions": [{"status": "True"}]}});
        assert!(merge_strategically("Pod", &mut pod, &patch).is_err());
    }

    #[test]
    fn the_simple_merge_replaces_lists() {
        let mut pod = json!({"status": {"conditions": [{"type": "Ready"}], "phase": "Pending"}});
        merge(&mut pod, &json!({"status": {"conditions": [{"type": "New"}], "phase": null}}));
        assert_eq!(pod, json!({"status": {"conditions": [{"type": "New"}]}}));
    }
}
