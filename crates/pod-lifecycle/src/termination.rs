//! How a container is stopped: preStop hook first, then the stop signal, both inside one grace
//! period; sidecars after the containers they serve.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{ContainerKind, ContainerSnapshot, PodSnapshot, containers, find_container};

use crate::action::{Action, ActionKey, ContainerStop, StopReason};
use crate::back_off::later;
use crate::state::{PodState, PreStop};

/// Every container gets at least this long between the stop and the kill signal.
const MINIMUM_STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// A running stop is asked to hurry only for a difference that somebody could notice.
const HURRY_SLACK: Duration = Duration::from_millis(500);

/// The next step of a stop.
#[derive(Debug, PartialEq)]
pub(crate) enum StopStep {
    /// Do this, after giving up what is named.
    Act { cancel: Option<ActionKey>, action: Action },
    /// Nothing, until that moment or until something happens.
    Wait { until: Option<Timestamp> },
}

/// The order of a stop request for one container.
#[derive(Clone, Debug)]
pub(crate) struct StopOrder {
    /// When it must be dead.
    pub(crate) deadline: Timestamp,
    pub(crate) reason: StopReason,
    /// Containers that it outlives are dead.
    pub(crate) is_its_turn: bool,
    /// There is no time for hooks any more.
    pub(crate) at_once: bool,
}

pub(crate) fn plan_stop(
    state: &PodState,
    container: &ContainerSnapshot,
    order: &StopOrder,
    now: Timestamp,
) -> StopStep {
    let deadline = state
        .kills
        .get(&container.id)
        .map_or(order.deadline, |kill| kill.deadline.min(order.deadline));
    let remaining = until(now, deadline);
    let pre_stop_key = ActionKey::PreStop(container.id.clone());
    let stop_key = ActionKey::Stop(container.id.clone());
    let stop = |ran: bool, cancel: Option<ActionKey>| StopStep::Act {
        cancel,
        action: Action::StopContainer(ContainerStop {
            id: container.id.clone(),
            name: container.name.clone(),
            timeout: if order.at_once { Duration::ZERO } else { remaining }
                .max(MINIMUM_STOP_TIMEOUT),
            reason: order.reason.clone(),
            announced: ran,
        }),
    };

    let ran = match state.kills.get(&container.id).map(|kill| kill.pre_stop) {
        None if has_pre_stop(&state.pod, &container.name)
            && container.is_running()
            && !remaining.is_zero() =>
        {
            return StopStep::Act {
                cancel: None,
                action: Action::RunPreStop {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    budget: remaining,
                    reason: order.reason.clone(),
                },
            };
        }
        None => false,
        Some(PreStop::Running) => {
            // A grace that was cut to nothing leaves no time for a hook that counted on more.
            let cut = order.at_once
                && state
                    .kills
                    .get(&container.id)
                    .is_some_and(|kill| kill.deadline > order.deadline);
            if !remaining.is_zero() && !cut {
                return StopStep::Wait { until: Some(deadline) };
            }
            return stop(true, Some(pre_stop_key));
        }
        Some(PreStop::Over { ran }) => ran,
    };

    if let Some(in_flight) = state.in_flight.get(&stop_key) {
        let wanted = later(now, remaining.max(MINIMUM_STOP_TIMEOUT));
        let hurry = in_flight.until.is_some_and(|ends| ends > later(wanted, HURRY_SLACK));
        return if hurry { stop(ran, Some(stop_key)) } else { StopStep::Wait { until: None } };
    }
    if let Some(retry) = state.retries.get(&stop_key)
        && retry.at > now
    {
        return StopStep::Wait { until: Some(retry.at) };
    }
    if !order.is_its_turn && !remaining.is_zero() && !order.at_once {
        return StopStep::Wait { until: Some(deadline) };
    }
    stop(ran, None)
}

fn until(now: Timestamp, deadline: Timestamp) -> Duration {
    Duration::try_from(deadline.duration_since(now)).unwrap_or(Duration::ZERO)
}

fn has_pre_stop(pod: &Pod, container: &str) -> bool {
    find_container(pod, container).is_some_and(|spec| {
        spec.container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some())
    })
}

/// Whether everything that `container` outlives is dead: a sidecar outlives all regular containers
/// and the sidecars declared after it; anything else outlives nothing.
pub(crate) fn is_its_turn(
    pod: &Pod,
    snapshot: &PodSnapshot,
    container: &ContainerSnapshot,
) -> bool {
    let kind_of = |name: &str| find_container(pod, name).map(|spec| spec.kind);
    if kind_of(&container.name) != Some(ContainerKind::Sidecar) {
        return true;
    }
    let position = |name: &str| {
        containers(pod)
            .filter(|spec| spec.kind == ContainerKind::Sidecar)
            .position(|spec| spec.container.name == name)
    };
    let own = position(&container.name);
    snapshot.containers.iter().filter(|other| other.may_run() && other.id != container.id).all(
        |other| match kind_of(&other.name) {
            Some(ContainerKind::Sidecar) => position(&other.name) <= own,
            _ => false,
        },
    )
}
