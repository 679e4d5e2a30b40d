//! The four conditions of a node that are the kubelet's.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use rubelet_types::Quantity;

use crate::{NodeConditionsInput, NodeSettings};

/// The type of the condition that says whether the node takes pods.
pub(crate) const READY: &str = "Ready";

/// The words of a condition that says what runs short.
pub(crate) struct Pressure {
    /// The condition's type.
    pub(crate) type_: &'static str,
    /// Reason and message under pressure.
    under: (&'static str, &'static str),
    /// Reason and message without.
    free: (&'static str, &'static str),
    /// Reasons of the events, under pressure and without.
    pub(crate) events: (&'static str, &'static str),
}

pub(crate) const MEMORY: Pressure = Pressure {
    type_: "MemoryPressure",
    under: ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
    free: ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    events: ("NodeHasInsufficientMemory", "NodeHasSufficientMemory"),
};
pub(crate) const DISK: Pressure = Pressure {
    type_: "DiskPressure",
    under: ("KubeletHasDiskPressure", "kubelet has disk pressure"),
    free: ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    events: ("NodeHasDiskPressure", "NodeHasNoDiskPressure"),
};
pub(crate) const PID: Pressure = Pressure {
    type_: "PIDPressure",
    under: ("KubeletHasInsufficientPID", "kubelet has insufficient PID available"),
    free: ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    events: ("NodeHasInsufficientPID", "NodeHasSufficientPID"),
};

/// Sets all four in upstream's order: `Ready` is last where it is new. Conditions of others stay.
pub(crate) fn set_conditions(
    status: &mut NodeStatus,
    settings: &NodeSettings,
    input: &NodeConditionsInput,
    now: Timestamp,
) {
    let ready = ready_condition(status, settings, input);
    let conditions = status.conditions.get_or_insert_default();
    let pressure =
        [(MEMORY, input.pressure.memory), (DISK, input.pressure.disk), (PID, input.pressure.pid)];
    for (words, is_under) in pressure {
        let (state, (reason, message)) =
            if is_under { ("True", words.under) } else { ("False", words.free) };
        let now_says = (state, reason.to_owned(), message.to_owned());
        // The words of a state that goes on are left as they are, whoever chose them.
        set(conditions, words.type_, now_says, now, Rewording::OnTransition);
    }
    set(conditions, READY, ready, now, Rewording::Always);
}

/// Status, reason and message.
type Words = (&'static str, String, String);

/// When reason and message of a condition follow.
#[derive(PartialEq)]
enum Rewording {
    Always,
    OnTransition,
}

fn ready_condition(
    status: &NodeStatus,
    settings: &NodeSettings,
    input: &NodeConditionsInput,
) -> Words {
    let mut errors = input.ready_errors.clone();
    errors.extend(missing_capacities(status, settings));
    let (state, reason, mut message) = if errors.is_empty() {
        ("True", "KubeletReady", "kubelet is posting ready status".to_owned())
    } else {
        ("False", "KubeletNotReady", aggregate(&errors))
    };
    if let Some(warning) = &input.soft_requirements {
        message = format!("{message}. WARNING: {warning}");
    }
    (state, reason.to_owned(), message)
}

fn missing_capacities(status: &NodeStatus, settings: &NodeSettings) -> Option<String> {
    let storage = settings.local_storage_capacity_isolation.then_some("ephemeral-storage");
    let is_missing =
        |name: &&str| !status.capacity.as_ref().is_some_and(|list| list.contains_key(*name));
    let missing: Vec<&str> =
        ["cpu", "memory", "pods"].into_iter().chain(storage).filter(is_missing).collect();
    (!missing.is_empty())
        .then(|| format!("missing node capacity for resources: {}", missing.join(", ")))
}

/// Several errors as one text, each once: `a`, or `[a, b]`.
fn aggregate(errors: &[String]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for error in errors {
        if !distinct.contains(&error.as_str()) {
            distinct.push(error);
        }
    }
    match distinct[..] {
        [single] => single.to_owned(),
        _ => format!("[{}]", distinct.join(", ")),
    }
}

fn set(
    conditions: &mut Vec<NodeCondition>,
    type_: &str,
    (state, reason, message): Words,
    now: Timestamp,
    rewording: Rewording,
) {
    let position = conditions.iter().position(|condition| condition.type_ == type_);
    let index = position.unwrap_or_else(|| {
        conditions.push(NodeCondition { type_: type_.to_owned(), ..NodeCondition::default() });
        conditions.len() - 1
    });
    let condition = &mut conditions[index];
    condition.last_heartbeat_time = Some(Time(now));
    let is_transition = condition.status != state;
    if is_transition {
        condition.last_transition_time = Some(Time(now));
        condition.status = state.to_owned();
    }
    if is_transition || rewording == Rewording::Always {
        condition.reason = Some(reason);
        condition.message = Some(message);
    }
}

/// The state of a condition, if the status has it.
pub(crate) fn condition_state<'a>(status: Option<&'a NodeStatus>, type_: &str) -> Option<&'a str> {
    let conditions = status?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == type_)?;
    Some(&found.status)
}

/// The status says that the node takes pods.
pub(crate) fn is_ready(status: Option<&NodeStatus>) -> bool {
    condition_state(status, READY) == Some("True")
}

/// An amount of nothing, as the API writes it.
pub(crate) fn zero() -> k8s_openapi::apimachinery::pkg::api::resource::Quantity {
    Quantity::ZERO.to_api()
}
