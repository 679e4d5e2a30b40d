//! Whether a pod may run here: pure handlers, in upstream's order.
//!
//! What: [`decide_admission`] lets a pod in, refuses it with the reason that users know, or names the
//! pods that have to make room for it. [`decide_resize`] asks the same for a pod that runs and wants
//! other resources.
//! Not here: who asks when, and the stopping of those pods (`pod_admission.rs`).

mod host_ports;
mod placement;
mod preemption;
mod resize;
mod resources;
mod security;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_node_resources::InsufficientResource;
use rubelet_types::{PodUid, ResourceAmounts, is_critical_pod, pod_ref};

pub(crate) use placement::matches_selector;
use preemption::{Shortfall, plan_preemption};
pub(crate) use resize::{Infeasible, ResizeVerdict, decide_resize};

/// Why a pod is refused, in the words of status and event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }

    /// Something that should not happen in the way of a decision.
    pub(crate) fn unexpected(message: impl Into<String>) -> Self {
        Self::new("UnexpectedAdmissionError", message)
    }

    /// The node's labels are at fault. They may have changed since they were read.
    pub(crate) fn is_by_node_labels(&self) -> bool {
        self.reason == placement::NODE_AFFINITY
    }
}

/// What admission looks at beside the pod.
#[derive(Debug)]
pub(crate) struct AdmissionFacts<'a> {
    /// Pods that hold resources, the pod itself not among them.
    pub(crate) active: &'a [Arc<Pod>],
    /// Those of them that are being stopped to make room for a critical pod.
    pub(crate) leaving: &'a HashSet<PodUid>,
    /// Those of them that do not run yet, and so cannot make room.
    pub(crate) expected: &'a HashSet<PodUid>,
    /// The Node object: the API server's, or else the one that this kubelet would create.
    pub(crate) node: &'a Node,
    /// What the node can give as this kubelet sees it, for when the object does not say.
    pub(crate) allocatable: &'a ResourceAmounts,
    /// `allowedUnsafeSysctls`.
    pub(crate) allowed_unsafe_sysctls: &'a [String],
    /// The kernel enforces AppArmor profiles.
    pub(crate) apparmor_enabled: bool,
    /// The runtime keeps the policy of supplemental groups.
    pub(crate) supplemental_groups_policy: bool,
}

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// It may run.
    Admitted,
    /// It may not.
    Rejected(Rejection),
    /// It may run as soon as these pods, and those that are leaving already, have ended.
    AfterOthers {
        /// Who has to go; empty if it is enough that others are leaving.
        victims: Vec<Arc<Pod>>,
        /// The first resource that they make room of; empty if nobody has to go.
        lacking: String,
    },
}

/// Why a pod does not fit the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Misfit {
    Lacks(InsufficientResource),
    /// A predicate of the scheduler's: its name, and its words.
    Predicate(&'static str, &'static str),
}

impl Misfit {
    fn rejection(&self) -> Rejection {
        match self {
            Self::Lacks(lacking) => Rejection::new(&lacking.reason(), lacking.to_string()),
            Self::Predicate(name, text) => {
                Rejection::new(name, format!("Predicate {name} failed: {text}"))
            }
        }
    }
}

/// Runs the handlers in upstream's order; the first refusal counts. Only a lack of resources can be
/// helped, by preemption for a critical pod, so everything else is asked before.
pub(crate) fn decide_admission(pod: &Pod, facts: &AdmissionFacts<'_>) -> Verdict {
    match check_all(pod, facts) {
        Ok(verdict) => verdict,
        Err(rejection) => Verdict::Rejected(rejection),
    }
}

fn check_all(pod: &Pod, facts: &AdmissionFacts<'_>) -> Result<Verdict, Rejection> {
    security::check_sysctls(pod, facts.allowed_unsafe_sysctls)?;
    placement::check_os(pod)?;
    security::check_groups_policy(pod, facts.supplemental_groups_policy)?;

    let allocatable = resources::allocatable(facts);
    let leaving = |other: &Arc<Pod>| facts.leaving.contains(&pod_ref(other).uid);
    let staying: Vec<Arc<Pod>> =
        facts.active.iter().filter(|other| !leaving(other)).cloned().collect();
    // Who fits only once others have left has to wait for them, and is not refused.
    let lacks = resources::insufficient(pod, &staying, &allocatable);
    let others = placement::misfits(pod, facts);
    let is_critical = is_critical_pod(pod);
    // A critical pod is never refused for resources while anything else is wrong with it.
    let in_order = lacks.iter().cloned().map(Misfit::Lacks).filter(|_| !is_critical);
    if let Some(first) = in_order.chain(others).next() {
        return Err(first.rejection());
    }
    security::check_apparmor(pod, facts.apparmor_enabled)?;
    let victims = if lacks.is_empty() {
        if resources::insufficient(pod, facts.active, &allocatable).is_empty() {
            return Ok(Verdict::Admitted);
        }
        Vec::new()
    } else {
        make_room(pod, &staying, facts, &lacks)?
    };
    let lacking = lacks.first().map(|lacks| lacks.resource.clone()).unwrap_or_default();
    Ok(Verdict::AfterOthers { victims, lacking })
}

/// The pods that have to go for `pod`, beside those that are going.
fn make_room(
    pod: &Pod,
    staying: &[Arc<Pod>],
    facts: &AdmissionFacts<'_>,
    lacks: &[InsufficientResource],
) -> Result<Vec<Arc<Pod>>, Rejection> {
    let shortfalls: Vec<Shortfall> = lacks.iter().map(Shortfall::of).collect();
    let expected = |other: &Arc<Pod>| facts.expected.contains(&pod_ref(other).uid);
    let running: Vec<Arc<Pod>> = staying.iter().filter(|other| !expected(other)).cloned().collect();
    plan_preemption(pod, &running, &shortfalls).map_err(|impossible| {
        Rejection::unexpected(format!(
            "Unexpected error while attempting to recover from admission failure: {impossible}"
        ))
    })
}
