//! Whether a pod that runs may have other resources.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_node_resources::{ResizableResource, ResizeRules, needs_restart, same_amounts};
use rubelet_types::{ContainerKind, Quantity, ResourceAmounts, containers};

use super::{AdmissionFacts, Rejection, Verdict, decide_admission, resources};

/// It will never be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Infeasible {
    pub(crate) message: &'static str,
    /// The word that metrics have for it.
    pub(crate) detail: &'static str,
}

/// What becomes of a resize.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ResizeVerdict {
    /// It may have them.
    Granted,
    /// It never may.
    Infeasible(Infeasible),
    /// Not now.
    Deferred(Rejection),
}

/// Asks all that admission asks, as if the pod came anew and wanted what it wants now. Nobody has to
/// make room for a resize.
pub(crate) fn decide_resize(
    wanted: &Pod,
    granted: &Pod,
    rules: ResizeRules,
    may_swap: &dyn Fn(&Pod, &Container) -> bool,
    facts: &AdmissionFacts<'_>,
) -> ResizeVerdict {
    let pod_level =
        |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.resources.clone()).unwrap_or_default();
    if !rules.pod_level && !same_amounts(&pod_level(wanted), &pod_level(granted)) {
        return ResizeVerdict::Infeasible(Infeasible {
            message: "InPlacePodLevelResourcesVerticalScaling is disabled",
            detail: "plr_feature_gate_off",
        });
    }
    if changes_swap(wanted, granted, may_swap) {
        return ResizeVerdict::Infeasible(Infeasible {
            message: "In-place resize of containers with swap is not supported.",
            detail: "swap_limitation",
        });
    }
    match decide_admission(wanted, facts) {
        Verdict::Admitted => ResizeVerdict::Granted,
        Verdict::Rejected(rejection) => ResizeVerdict::Deferred(rejection),
        Verdict::AfterOthers { .. } => {
            let allocatable = resources::allocatable(facts);
            let lacks = resources::insufficient(wanted, facts.active, &allocatable);
            ResizeVerdict::Deferred(lacks.first().map_or_else(
                || Rejection::unexpected("others have to leave the node first"),
                |lacking| Rejection::new(&lacking.reason(), lacking.to_string()),
            ))
        }
    }
}

/// Some container's share of swap follows from its memory request, which changes while it runs.
fn changes_swap(wanted: &Pod, granted: &Pod, may_swap: &dyn Fn(&Pod, &Container) -> bool) -> bool {
    let granted_containers: BTreeMap<String, Container> = containers(granted)
        .filter(|spec| spec.kind != ContainerKind::Ephemeral)
        .map(|spec| (spec.container.name.clone(), spec.container.into_owned()))
        .collect();
    containers(wanted).any(|spec| {
        let Some(before) = granted_containers.get(&spec.container.name) else { return false };
        memory_request(&spec.container) != memory_request(before)
            && !needs_restart(&spec.container, ResizableResource::Memory)
            && (may_swap(wanted, &spec.container) || may_swap(granted, before))
    })
}

fn memory_request(container: &Container) -> Quantity {
    let requests = container.resources.as_ref().and_then(|it| it.requests.as_ref());
    ResourceAmounts::from_api(requests).get("memory").unwrap_or(Quantity::ZERO)
}
