//! Which steps of the Node are worth an event.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use rubelet_types::{Event, EventObject, EventType};

use crate::conditions::{DISK, MEMORY, PID, READY, condition_state};

const REBOOTED: &str = "Rebooted";

/// The events of the step from `previous` to `new`: pressure that comes, goes or is said for the
/// first time; readiness that comes or goes; a machine that was rebooted in between.
pub fn transition_events(node: &str, previous: &NodeStatus, new: &NodeStatus) -> Vec<Event> {
    let mut events = Vec::new();
    let boot_id = |status: &NodeStatus| {
        status.node_info.as_ref().map(|info| info.boot_id.clone()).unwrap_or_default()
    };
    let (was, is) = (boot_id(previous), boot_id(new));
    if !was.is_empty() && was != is {
        events.push(Event::new(
            EventObject::Node,
            EventType::Warning,
            REBOOTED,
            format!("Node {node} has been rebooted, boot id: {is}"),
        ));
    }
    for words in [MEMORY, DISK, PID] {
        let (was, is) =
            (condition_state(Some(previous), words.type_), condition_state(Some(new), words.type_));
        match is {
            Some("True") if was != is => events.push(status_event(node, words.events.0)),
            Some("False") if was != is => events.push(status_event(node, words.events.1)),
            _ => {}
        }
    }
    match (condition_state(Some(previous), READY), condition_state(Some(new), READY)) {
        (Some(was), Some("True")) if was != "True" => events.push(status_event(node, "NodeReady")),
        (Some(was), Some("False")) if was != "False" => {
            events.push(status_event(node, "NodeNotReady"));
        }
        _ => {}
    }
    events
}

fn status_event(node: &str, reason: &'static str) -> Event {
    let message = format!("Node {node} status is now: {reason}");
    Event::new(EventObject::Node, EventType::Normal, reason, message)
}

/// What was said already, so that each transition is one event: a write that has to be repeated,
/// or a Node that was read from a stale copy, says nothing twice.
#[derive(Clone, Debug, Default)]
pub struct Announcements {
    /// The last reason said, by the subject of the reason.
    said: BTreeMap<&'static str, String>,
    was_unschedulable: bool,
}

impl Announcements {
    /// The events of the step to `new` that were not said yet. `previous` are the statuses from
    /// before: as this kubelet knew it last, and as it was read, where these are two.
    pub fn step(&mut self, node: &str, previous: &[&NodeStatus], new: &NodeStatus) -> Vec<Event> {
        let mut events: Vec<Event> = Vec::new();
        for step in previous.iter().flat_map(|before| transition_events(node, before, new)) {
            if events.iter().all(|event| event.reason != step.reason) {
                events.push(step);
            }
        }
        events.retain(|event| {
            let Some(subject) = subject_of(&event.reason) else { return true };
            if subject == REBOOTED && self.said.contains_key(REBOOTED) {
                return false;
            }
            let known = self.said.insert(subject, event.reason.to_string());
            // The control plane forgets what a node said that it has not heard of for a while.
            let was_forgotten = previous
                .iter()
                .any(|before| condition_state(Some(before), subject) == Some("Unknown"));
            was_forgotten || known.as_deref() != Some(&*event.reason)
        });
        events
    }

    /// The event of a Node that was found closed to new pods, or open to them again.
    pub fn schedulable(&mut self, name: &str, node: &Node) -> Option<Event> {
        let is_unschedulable =
            node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        let was_unschedulable = std::mem::replace(&mut self.was_unschedulable, is_unschedulable);
        (was_unschedulable != is_unschedulable).then(|| {
            status_event(
                name,
                if is_unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" },
            )
        })
    }
}

fn subject_of(reason: &str) -> Option<&'static str> {
    if reason == REBOOTED {
        return Some(REBOOTED);
    }
    if reason == "NodeReady" || reason == "NodeNotReady" {
        return Some(READY);
    }
    [MEMORY, DISK, PID]
        .into_iter()
        .find(|words| words.events.0 == reason || words.events.1 == reason)
        .map(|words| words.type_)
}
