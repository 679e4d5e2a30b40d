//! Whether the pod's sandbox can be kept.

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    PodSnapshot, RestartPolicy, SandboxSnapshot, SandboxState, is_host_network, pod_restart_policy,
};

/// What to do about the sandbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SandboxDecision<'a> {
    /// It is good.
    Keep(&'a SandboxSnapshot),
    /// A new one is needed, after everything in the old ones is stopped.
    Create { attempt: u32, why: &'static str },
    /// A new one would be needed, and a pod that never restarts does not get a second one.
    GiveUp { why: &'static str },
}

/// Decides for a pod that is not done.
pub(crate) fn decide_sandbox<'a>(pod: &Pod, snapshot: &'a PodSnapshot) -> SandboxDecision<'a> {
    let Some(newest) = snapshot.sandboxes.first() else {
        return SandboxDecision::Create { attempt: 0, why: "there is no sandbox" };
    };
    let ready =
        snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    let host_network = is_host_network(pod);
    let why = if ready > 1 {
        "more than one sandbox is ready"
    } else if newest.state != SandboxState::Ready {
        "the newest sandbox is not ready"
    } else if newest.host_network != host_network {
        "the sandbox has another network namespace mode than the pod"
    } else if !host_network && newest.ips.is_empty() {
        "the sandbox has no IP address"
    } else {
        return SandboxDecision::Keep(newest);
    };
    // Without any container nothing has run yet, and trying again repeats nothing.
    if pod_restart_policy(pod) == RestartPolicy::Never && !snapshot.containers.is_empty() {
        return SandboxDecision::GiveUp { why };
    }
    SandboxDecision::Create { attempt: newest.attempt.saturating_add(1), why }
}
