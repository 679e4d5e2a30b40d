//! A small API server that keeps one Node and one lease, with faults on purpose.

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use rubelet_node_status::{NodeApi, NodeApiError, NodeApiErrorKind};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

/// A request, as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    GetNode,
    CreateNode,
    PatchStatus,
    GetLease,
    CreateLease,
    UpdateLease,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The request is refused.
    Refuse(NodeApiErrorKind),
    /// It is carried out, and the answer gets lost.
    LoseAnswer,
    /// Nothing ever comes back.
    Hang,
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) verb: Verb,
    /// Since the server was started.
    pub(crate) at: Duration,
    pub(crate) patch: Option<Value>,
}

#[derive(Debug, Default)]
struct State {
    node: Option<Node>,
    lease: Option<Lease>,
    version: u64,
    calls: Vec<Call>,
    faults: Vec<(Verb, Fault, u32)>,
    closed: u32,
    stale: Option<Option<Arc<Node>>>,
}

#[derive(Debug)]
pub(crate) struct FakeApi {
    started: Instant,
    watches: bool,
    changes: watch::Sender<u64>,
    state: Mutex<State>,
}

impl FakeApi {
    /// An empty one. `watches`: the Node is watched, so that it need not be read.
    pub(crate) fn new(watches: bool) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            watches,
            changes: watch::Sender::new(0),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The next `times` requests of that kind go wrong.
    pub(crate) fn inject(&self, verb: Verb, fault: Fault, times: u32) {
        self.state().faults.push((verb, fault, times));
    }

    pub(crate) fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Somebody else writes the Node.
    pub(crate) fn set_node(&self, node: Value) {
        let mut node: Node = serde_json::from_value(node).unwrap();
        node.metadata.uid.get_or_insert_with(|| "uid-1".to_owned());
        let mut state = self.state();
        self.store(&mut state, node);
    }

    /// Somebody else changes the Node.
    pub(crate) fn change_node(&self, change: impl FnOnce(&mut Node)) {
        let mut state = self.state();
        let mut node = state.node.clone().unwrap();
        change(&mut node);
        self.store(&mut state, node);
    }

    fn store(&self, state: &mut State, mut node: Node) -> Node {
        state.version += 1;
        node.metadata.resource_version = Some(state.version.to_string());
        state.node = Some(node.clone());
        self.changes.send_modify(|count| *count += 1);
        node
    }

    pub(crate) fn delete_node(&self) {
        let mut state = self.state();
        state.node = None;
        self.changes.send_modify(|count| *count += 1);
    }

    /// The watch shows the Node of now, whatever becomes of it, or follows again.
    pub(crate) fn freeze_watch(&self, frozen: bool) {
        let mut state = self.state();
        state.stale = frozen.then(|| state.node.clone().map(Arc::new));
    }

    pub(crate) fn node(&self) -> Option<Node> {
        self.state().node.clone()
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        self.state().lease.clone()
    }

    pub(crate) fn change_lease(&self, change: impl FnOnce(&mut Option<Lease>)) {
        let mut state = self.state();
        change(&mut state.lease);
        state.version += 1;
        let version = state.version.to_string();
        if let Some(lease) = &mut state.lease {
            lease.metadata.resource_version = Some(version);
        }
    }

    /// How often connections were given up.
    pub(crate) fn closed(&self) -> u32 {
        self.state().closed
    }

    pub(crate) fn calls(&self, verb: Verb) -> Vec<Call> {
        self.state().calls.iter().filter(|call| call.verb == verb).cloned().collect()
    }

    /// Milliseconds since the start at which requests of that kind arrived.
    pub(crate) fn times(&self, verb: Verb) -> Vec<u128> {
        self.calls(verb).iter().map(|call| call.at.as_millis()).collect()
    }

    async fn answer<T>(
        &self,
        verb: Verb,
        patch: Option<&Value>,
        carry_out: impl FnOnce(&mut State) -> Result<T, NodeApiErrorKind>,
    ) -> Result<T, NodeApiError> {
        let fault = {
            let mut state = self.state();
            state.calls.push(Call { verb, at: self.started.elapsed(), patch: patch.cloned() });
            let found = state.faults.iter().position(|(of, _, left)| *of == verb && *left > 0);
            found.map(|index| {
                state.faults[index].2 -= 1;
                state.faults[index].1
            })
        };
        let result = match fault {
            Some(Fault::Hang) => pending().await,
            Some(Fault::Refuse(kind)) => Err(kind),
            Some(Fault::LoseAnswer) => {
                carry_out(&mut self.state()).and(Err(NodeApiErrorKind::Other))
            }
            None => carry_out(&mut self.state()),
        };
        result.map_err(|kind| NodeApiError {
            what: format!("{verb:?}"),
            kind,
            source: format!("{kind:?}").into(),
        })
    }
}

impl NodeApi for FakeApi {
    fn cached_node(&self, _name: &str) -> Option<Arc<Node>> {
        let state = self.state();
        let stale = state.stale.clone();
        stale.unwrap_or_else(|| state.node.clone().map(Arc::new)).filter(|_| self.watches)
    }

    fn cache_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn get_node(&self, _name: &str) -> Result<Node, NodeApiError> {
        self.answer(Verb::GetNode, None, |state| {
            state.node.clone().ok_or(NodeApiErrorKind::NotFound)
        })
        .await
    }

    async fn create_node(&self, node: &Node) -> Result<Node, NodeApiError> {
        self.answer(Verb::CreateNode, None, |state| {
            if state.node.is_some() {
                return Err(NodeApiErrorKind::AlreadyExists);
            }
            let mut node = node.clone();
            node.metadata.uid = Some("uid-1".to_owned());
            Ok(self.store(state, node))
        })
        .await
    }

    async fn patch_node_status(&self, _name: &str, patch: &Value) -> Result<Node, NodeApiError> {
        self.answer(Verb::PatchStatus, Some(patch), |state| {
            let node = state.node.as_ref().ok_or(NodeApiErrorKind::NotFound)?;
            let patched = apply_patch(node, patch);
            Ok(self.store(state, patched))
        })
        .await
    }

    async fn get_lease(&self, _name: &str) -> Result<Lease, NodeApiError> {
        self.answer(Verb::GetLease, None, |state| {
            state.lease.clone().ok_or(NodeApiErrorKind::NotFound)
        })
        .await
    }

    async fn create_lease(&self, lease: &Lease) -> Result<Lease, NodeApiError> {
        self.answer(Verb::CreateLease, None, |state| {
            if state.lease.is_some() {
                return Err(NodeApiErrorKind::AlreadyExists);
            }
            Ok(store_lease(state, lease))
        })
        .await
    }

    async fn update_lease(&self, lease: &Lease) -> Result<Lease, NodeApiError> {
        self.answer(Verb::UpdateLease, None, |state| {
            let known = state.lease.as_ref().ok_or(NodeApiErrorKind::NotFound)?;
            if known.metadata.resource_version != lease.metadata.resource_version {
                return Err(NodeApiErrorKind::Conflict);
            }
            Ok(store_lease(state, lease))
        })
        .await
    }

    fn close_connections(&self) {
        self.state().closed += 1;
    }
}

fn store_lease(state: &mut State, lease: &Lease) -> Lease {
    state.version += 1;
    let mut lease = lease.clone();
    lease.metadata.resource_version = Some(state.version.to_string());
    state.lease = Some(lease.clone());
    lease
}

/// What the API server makes of a strategic merge patch of a Node's status. The spec is not taken.
pub(crate) fn apply_patch(node: &Node, patch: &Value) -> Node {
    let mut value = serde_json::to_value(node).unwrap();
    let mut patch = patch.as_object().unwrap().clone();
    patch.remove("spec");
    merge(value.as_object_mut().unwrap(), &patch);
    serde_json::from_value(value).unwrap()
}

fn merge(target: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (name, change) in patch {
        if name.starts_with("$setElementOrder/") {
            continue;
        }
        let known = target.get_mut(name);
        match (name.as_str(), known, change) {
            (_, _, Value::Null) => {
                target.remove(name);
            }
            ("conditions" | "addresses", Some(Value::Array(items)), Value::Array(changes)) => {
                *items = merge_list(items, changes);
            }
            (_, Some(Value::Object(fields)), Value::Object(changes)) => merge(fields, changes),
            _ => {
                target.insert(name.clone(), change.clone());
            }
        }
    }
    if let (Some(Value::Array(order)), Some(Value::Array(items))) =
        (patch.get("$setElementOrder/conditions"), target.get_mut("conditions"))
    {
        items.sort_by_key(|item| order.iter().position(|entry| entry["type"] == item["type"]));
    }
}

fn merge_list(items: &[Value], changes: &[Value]) -> Vec<Value> {
    if changes.contains(&json!({"$patch": "replace"})) {
        return changes.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
    }
    let mut merged = items.to_vec();
    for change in changes {
        let position = merged.iter().position(|item| item["type"] == change["type"]);
        match position {
            Some(index) if change["$patch"] == "delete" => {
                merged.remove(index);
            }
            Some(index) => {
                merge(merged[index].as_object_mut().unwrap(), change.as_object().unwrap());
            }
            None => merged.push(change.clone()),
        }
    }
    merged
}
