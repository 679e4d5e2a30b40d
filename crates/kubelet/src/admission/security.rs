//! Whether the node can keep the pod's security settings.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod};
use rubelet_types::{containers, labels};

use super::Rejection;

/// Sysctls that cannot reach beyond the pod (upstream documentation "Using sysctls in a Kubernetes
/// Cluster").
const SAFE_SYSCTLS: [&str; 13] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_slow_start_after_idle",
];

/// A pod that asks for a profile must not run without it. One that runs already has it.
pub(super) fn check_apparmor(pod: &Pod, enabled: bool) -> Result<(), Rejection> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    let runs_already = !matches!(phase, "" | "Pending");
    if enabled || runs_already || !asks_for_apparmor(pod) {
        return Ok(());
    }
    Err(Rejection::new("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"))
}

fn asks_for_apparmor(pod: &Pod) -> bool {
    let enforced = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.app_armor_profile.as_ref());
    let annotated = pod.metadata.annotations.iter().flatten().any(|(key, profile)| {
        key.starts_with(labels::APPARMOR_PREFIX) && !profile.is_empty() && profile != "unconfined"
    });
    of_pod.is_some_and(enforced)
        || annotated
        || containers(pod).any(|spec| {
            let context = spec.container.security_context.as_ref();
            context.and_then(|context| context.app_armor_profile.as_ref()).is_some_and(enforced)
        })
}

pub(super) fn check_sysctls(pod: &Pod, allowed: &[String]) -> Result<(), Rejection> {
    let spec = pod.spec.as_ref();
    let host_network = spec.and_then(|spec| spec.host_network).unwrap_or(false);
    let host_ipc = spec.and_then(|spec| spec.host_ipc).unwrap_or(false);
    let sysctls = spec
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.sysctls.as_deref())
        .unwrap_or_default();
    for sysctl in sysctls {
        let name = sysctl.name.replace('/', ".");
        let forbidden = |message: String| Rejection::new("SysctlForbidden", message);
        let is_allowed = SAFE_SYSCTLS.contains(&name.as_str())
            || allowed.iter().any(|pattern| {
                let pattern = pattern.replace('/', ".");
                match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == pattern,
                }
            });
        if !is_allowed {
            return Err(forbidden(format!("forbidden sysctl: {name:?} not allowlisted")));
        }
        if host_network && name.starts_with("net.") {
            return Err(forbidden(format!(
                "forbidden sysctl: {name:?} not allowed with host net enabled"
            )));
        }
        let ipc = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];
        if host_ipc && ipc.iter().any(|prefix| name.starts_with(prefix)) {
            return Err(forbidden(format!(
                "forbidden sysctl: {name:?} not allowed with host ipc enabled"
            )));
        }
    }
    Ok(())
}

/// A runtime that does not know the policy would add the groups of the image.
pub(super) fn check_groups_policy(pod: &Pod, supported: bool) -> Result<(), Rejection> {
    let policy = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.supplemental_groups_policy.as_deref());
    if supported || policy != Some("Strict") {
        return Ok(());
    }
    Err(Rejection::new(
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    ))
}
