//! What requests do to what is kept.

use std::sync::Arc;

use jiff::Timestamp;
use rubelet_apiserver::Verb;
use serde_json::{Map, Value, json};

use crate::kinds::Kind;
use crate::merge::{merge, merge_strategically};
use crate::pods::{
    Deletion, apply_defaults, first_status, mark_deleted, plan_deletion, settle_addresses,
    timestamp,
};
use crate::refusal::Refusal;
use crate::reviews::{self, User};
use crate::route::Route;
use crate::selector::Selection;
use crate::storage::{Key, Rest, Storage};

/// An answer's code and body.
pub(crate) type Answer = Result<(u16, Value), Refusal>;

/// Carries out everything but watches.
pub(crate) fn carry_out(
    storage: &mut Storage,
    route: &Route,
    user: &User,
    content_type: &str,
    body: &[u8],
    now: Timestamp,
) -> Answer {
    let name = route.name.as_deref().unwrap_or_default();
    let key = Key {
        plural: route.kind.plural,
        namespace: route.namespace.clone().unwrap_or_default(),
        name: name.to_owned(),
    };
    match (route.verb, route.subresource.as_deref()) {
        (Verb::Get, None | Some("status")) => {
            let object = found(storage, route.kind, &key)?;
            Ok((200, with_type(route.kind, &object)))
        }
        (Verb::List, None) => list(storage, route),
        (Verb::Create, None) => create(storage, route, user, parse(body)?, now),
        (Verb::Create, Some("token")) if route.kind.plural == "serviceaccounts" => {
            found(storage, route.kind, &key)?;
            Ok((201, reviews::issue_token(storage, &key, parse(body)?, now)?))
        }
        (Verb::Update, part) => {
            let part = Part::of(route.kind, part)?;
            let old = found(storage, route.kind, &key)?;
            let new = parse(body)?;
            check_uid(route.kind, &key, &old, &new)?;
            replace(storage, route.kind, key, &old, new, part)
        }
        (Verb::Patch, part) => {
            let part = Part::of(route.kind, part)?;
            let old = found(storage, route.kind, &key)?;
            let patch = parse(body)?;
            let mut new = (*old).clone();
            match content_type.split(';').next().unwrap_or_default().trim() {
                "application/strategic-merge-patch+json" => {
                    merge_strategically(route.kind.kind, &mut new, &patch)
                        .map_err(Refusal::bad_request)?;
                }
                "application/merge-patch+json" => merge(&mut new, &patch),
                other => return Err(Refusal::unsupported_media_type(other)),
            }
            replace(storage, route.kind, key, &old, new, part)
        }
        (Verb::Delete, None) => delete(storage, route.kind, &key, body, now),
        _ => Err(Refusal::no_such_path()),
    }
}

/// Which part of an object a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Object,
    Status,
    /// The conditions of a certificate signing request, by whoever may approve.
    Approval,
}

impl Part {
    fn of(kind: &Kind, subresource: Option<&str>) -> Result<Self, Refusal> {
        match subresource {
            None => Ok(Self::Object),
            Some("status") if kind.has_status => Ok(Self::Status),
            Some("approval") if kind.plural == "certificatesigningrequests" => Ok(Self::Approval),
            Some(_) => Err(Refusal::no_such_path()),
        }
    }
}

pub(crate) fn parse(body: &[u8]) -> Result<Value, Refusal> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("the body is no JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(Refusal::bad_request("the body is no object")) }
}

fn found(storage: &Storage, kind: &Kind, key: &Key) -> Result<Arc<Value>, Refusal> {
    storage.get(key).ok_or_else(|| Refusal::not_found(kind, &key.name))
}

/// Objects are kept without their type, as a list gives them.
pub(crate) fn with_type(kind: &Kind, object: &Value) -> Value {
    let mut typed = json!({"kind": kind.kind, "apiVersion": kind.api_version()});
    if let (Some(typed), Some(object)) = (typed.as_object_mut(), object.as_object()) {
        typed.extend(object.clone());
    }
    typed
}

fn list(storage: &mut Storage, route: &Route) -> Answer {
    let current = storage.revision();
    if let Some(asked) = route.query("resourceVersion").and_then(|asked| asked.parse().ok())
        && asked > current
    {
        return Err(Refusal::too_large_resource_version(asked, current));
    }
    let limit = route.query("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let Rest { revision, mut items } = match route.query("continue") {
        Some(token) => storage.rest(token).ok_or_else(|| {
            Refusal::expired(
                "The provided continue parameter is too old to display a consistent list result. \
                 You can start a new list without the continue parameter.",
            )
        })?,
        None => {
            let selection = selection(route)?;
            let mut items = storage.list(route.kind, route.namespace.as_deref());
            items.retain(|object| selection.matches(object));
            Rest { revision: current, items }
        }
    };
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    if limit > 0 && items.len() > limit {
        let rest = items.split_off(limit);
        metadata["remainingItemCount"] = json!(rest.len());
        metadata["continue"] = json!(storage.keep_rest(Rest { revision, items: rest }));
    }
    let items: Vec<&Value> = items.iter().map(|object| &**object).collect();
    Ok((
        200,
        json!({
            "kind": format!("{}List", route.kind.kind),
            "apiVersion": route.kind.api_version(),
            "metadata": metadata,
            "items": items,
        }),
    ))
}

pub(crate) fn selection(route: &Route) -> Result<Selection, Refusal> {
    Selection::parse(route.kind, route.query("fieldSelector"), route.query("labelSelector"))
}

fn create(
    storage: &mut Storage,
    route: &Route,
    user: &User,
    mut object: Value,
    now: Timestamp,
) -> Answer {
    let kind = route.kind;
    check_type(kind, &object)?;
    let namespace = route.namespace.clone().unwrap_or_default();
    let metadata = object["metadata"].take();
    let mut metadata = match metadata {
        Value::Object(metadata) => metadata,
        _ => Map::new(),
    };
    let text = |metadata: &Map<String, Value>, field: &str| {
        metadata.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let stated = text(&metadata, "namespace");
    if !stated.is_empty() && stated != namespace {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let uid = storage.next_uid();
    let mut name = text(&metadata, "name");
    let generate_name = text(&metadata, "generateName");
    if name.is_empty() && !generate_name.is_empty() {
        name = format!("{generate_name}{}", &uid[uid.len() - 5..]);
    }
    if name.is_empty() {
        let because = "metadata.name: Required value: name or generateName is required";
        return Err(Refusal::invalid(kind, "", because));
    }
    // The server takes any name of a certificate request; kubelets call theirs `node-csr-` and a
    // hash with capitals.
    if kind.plural != "certificatesigningrequests" && !is_name(&name) {
        let because = format!(
            "metadata.name: Invalid value: {name:?}: a lowercase RFC 1123 subdomain is required"
        );
        return Err(Refusal::invalid(kind, &name, &because));
    }
    if !text(&metadata, "resourceVersion").is_empty() {
        return Err(Refusal::bad_request(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    if kind.is_namespaced {
        let home = Key { plural: "namespaces", namespace: String::new(), name: namespace.clone() };
        if storage.get(&home).is_none() {
            let mut refusal = Refusal::new(404, "NotFound", "");
            refusal.message = format!("namespaces {namespace:?} not found");
            return Err(refusal);
        }
    }
    let key = Key { plural: kind.plural, namespace: namespace.clone(), name: name.clone() };
    if storage.get(&key).is_some() {
        return Err(Refusal::already_exists(kind, &name));
    }
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        metadata.remove(field);
    }
    metadata.insert("name".to_owned(), json!(name));
    if kind.is_namespaced {
        metadata.insert("namespace".to_owned(), json!(namespace));
    }
    metadata.insert("uid".to_owned(), json!(uid));
    metadata.insert("creationTimestamp".to_owned(), timestamp(now));
    object["metadata"] = Value::Object(metadata);
    begin(kind, user, &mut object)?;
    let object = storage.put(key, without_type(object));
    Ok((201, with_type(kind, &object)))
}

/// What a new object of its kind begins with.
fn begin(kind: &Kind, user: &User, object: &mut Value) -> Result<(), Refusal> {
    match kind.plural {
        "pods" => {
            let has_container =
                object["spec"]["containers"].as_array().is_some_and(|c| !c.is_empty());
            if !has_container {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                return Err(Refusal::invalid(kind, name, "spec.containers: Required value"));
            }
            apply_defaults(object);
            object["metadata"]["generation"] = json!(1);
            object["status"] = first_status(object);
        }
        // A node says from the start how it is.
        "nodes" => {}
        "namespaces" => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        "events" => {
            let namespace = &object["metadata"]["namespace"];
            let of_object = object["involvedObject"]["namespace"].as_str().unwrap_or("default");
            if namespace != of_object {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let because =
                    "involvedObject.namespace: Invalid value: does not match event.namespace";
                return Err(Refusal::invalid(kind, name, because));
            }
        }
        "certificatesigningrequests" => {
            object["status"] = json!({});
            object["spec"]["username"] = json!(user.name);
            object["spec"]["groups"] = json!(user.groups);
        }
        _ if kind.has_status => {
            if let Some(object) = object.as_object_mut() {
                object.remove("status");
            }
        }
        _ => {}
    }
    Ok(())
}

fn check_type(kind: &Kind, object: &Value) -> Result<(), Refusal> {
    let api_version = kind.api_version();
    let differs = |field: &str, expected: &str| {
        object[field].as_str().is_some_and(|given| !given.is_empty() && given != expected)
    };
    if differs("kind", kind.kind) || differs("apiVersion", &api_version) {
        return Err(Refusal::bad_request(format!(
            "the object is a {} {}, and {api_version} {} is expected",
            object["apiVersion"], object["kind"], kind.kind
        )));
    }
    Ok(())
}

fn without_type(mut object: Value) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.remove("kind");
        object.remove("apiVersion");
    }
    object
}

/// A subdomain, roughly.
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= 253
        && name.split('.').all(|part| {
            !part.is_empty()
                && part.bytes().all(is_inner)
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
}

/// A whole object that is put in the place of another one is a conflict, unlike a patch that says
/// another uid.
fn check_uid(kind: &Kind, key: &Key, old: &Value, new: &Value) -> Result<(), Refusal> {
    let uid = new["metadata"]["uid"].as_str().unwrap_or_default();
    let present = old["metadata"]["uid"].as_str().unwrap_or_default();
    if uid.is_empty() || uid == present {
        return Ok(());
    }
    let because =
        format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {present}");
    Err(Refusal::conflict(kind, &key.name, &because))
}

fn replace(
    storage: &mut Storage,
    kind: &Kind,
    key: Key,
    old: &Value,
    new: Value,
    part: Part,
) -> Answer {
    check_type(kind, &new)?;
    let mut new = without_type(new);
    let name = key.name.clone();
    let given = |field: &str| new["metadata"][field].as_str().unwrap_or_default().to_owned();
    if given("name") != name {
        let because = "metadata.name: Invalid value: field is immutable";
        return Err(Refusal::invalid(kind, &name, because));
    }
    let uid = given("uid");
    if !uid.is_empty() && old["metadata"]["uid"] != uid.as_str() {
        let because = format!("metadata.uid: Invalid value: {uid:?}: field is immutable");
        return Err(Refusal::invalid(kind, &name, &because));
    }
    let version = given("resourceVersion");
    if !version.is_empty() && old["metadata"]["resourceVersion"] != version.as_str() {
        let because = "the object has been modified; please apply your changes to the latest \
                       version and try again";
        return Err(Refusal::conflict(kind, &name, because));
    }
    if !new["metadata"].is_object() {
        new["metadata"] = json!({});
    }
    // Nobody but the server decides on these.
    for field in [
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
    ] {
        keep(&mut new["metadata"], &old["metadata"], field);
    }
    match part {
        Part::Object if kind.has_status => keep(&mut new, old, "status"),
        Part::Object => {}
        Part::Status | Part::Approval => {
            keep(&mut new, old, "spec");
            keep(&mut new["metadata"], &old["metadata"], "ownerReferences");
        }
    }
    if part == Part::Status && kind.plural == "pods" && new["status"]["qosClass"].is_null() {
        new["status"]["qosClass"] = old["status"]["qosClass"].clone();
    }
    if kind.plural == "pods" {
        settle_addresses(&mut new["status"]);
    }
    if part == Part::Approval {
        let conditions = new["status"]["conditions"].clone();
        keep(&mut new, old, "status");
        new["status"]["conditions"] = conditions;
    }
    if kind.plural == "pods" && new["spec"] != old["spec"] {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(1);
        new["metadata"]["generation"] = json!(generation + 1);
    }
    let is_deleted = new["metadata"]["deletionTimestamp"].is_string();
    let has_finalizers = new["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    let grace = new["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if is_deleted && grace == 0 && !has_finalizers {
        storage.remove(&key);
        return Ok((200, with_type(kind, &new)));
    }
    if new == *old {
        return Ok((200, with_type(kind, old)));
    }
    let object = storage.put(key, new);
    Ok((200, with_type(kind, &object)))
}

/// Lets `new` have `old`'s field, or lack of it.
fn keep(new: &mut Value, old: &Value, field: &str) {
    match &old[field] {
        Value::Null => {
            if let Some(new) = new.as_object_mut() {
                new.remove(field);
            }
        }
        value => new[field] = value.clone(),
    }
}

fn delete(storage: &mut Storage, kind: &Kind, key: &Key, body: &[u8], now: Timestamp) -> Answer {
    let old = found(storage, kind, key)?;
    let options = if body.is_empty() { json!({}) } else { parse(body)? };
    for (field, name) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let Some(wanted) = options["preconditions"][field].as_str() else { continue };
        let present = old["metadata"][field].as_str().unwrap_or_default();
        if wanted != present {
            let because = format!(
                "the {name} in the precondition ({wanted}) does not match the {name} in record \
                 ({present})"
            );
            return Err(Refusal::conflict(kind, &key.name, &because));
        }
    }
    let asked_for = options["gracePeriodSeconds"].as_i64();
    let plan = match kind.plural {
        "pods" => plan_deletion(&old, asked_for),
        _ => Deletion::Now,
    };
    let has_finalizers = old["metadata"]["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    let mut object = (*old).clone();
    match plan {
        Deletion::Unchanged => return Ok((200, with_type(kind, &old))),
        Deletion::Now if !has_finalizers => {
            storage.remove(key);
            return Ok((200, with_type(kind, &old)));
        }
        Deletion::Now => mark_deleted(&mut object, 0, now),
        Deletion::Graceful { seconds } => mark_deleted(&mut object, seconds, now),
    }
    if let (Some(generation), true) =
        (old["metadata"]["generation"].as_i64(), old["metadata"]["deletionTimestamp"].is_null())
    {
        object["metadata"]["generation"] = json!(generation + 1);
    }
    if object == *old {
        return Ok((200, with_type(kind, &old)));
    }
    let object = storage.put(key.clone(), object);
    Ok((200, with_type(kind, &object)))
}
