//! Whether a pod may run here.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod};
use rubelet_node_resources::compute_insufficient_resources;
use rubelet_types::{ContainerKind, ResourceAmounts, containers, labels};

/// Why a pod is refused, in the words of status and event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: String,
    pub(crate) message: String,
}

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

/// What admission looks at beside the pod.
#[derive(Debug)]
pub(crate) struct AdmissionFacts<'a> {
    /// Pods that hold resources, the pod itself not among them.
    pub(crate) active: &'a [Arc<Pod>],
    pub(crate) allocatable: &'a ResourceAmounts,
    /// `allowedUnsafeSysctls`.
    pub(crate) allowed_unsafe_sysctls: &'a [String],
    /// The kernel enforces AppArmor profiles.
    pub(crate) apparmor_enabled: bool,
    /// The runtime keeps the policy of supplemental groups.
    pub(crate) supplemental_groups_policy: bool,
}

/// Runs the admission handlers in upstream's order; the first refusal counts.
pub(crate) fn admit(pod: &Pod, facts: &AdmissionFacts<'_>) -> Result<(), Rejection> {
    check_sysctls(pod, facts.allowed_unsafe_sysctls)?;
    check_os(pod)?;
    check_groups_policy(pod, facts.supplemental_groups_policy)?;
    check_resources(pod, facts)?;
    check_host_ports(pod, facts.active)?;
    check_apparmor(pod, facts.apparmor_enabled)
}

/// A pod that asks for a profile must not run without it.
fn check_apparmor(pod: &Pod, enabled: bool) -> Result<(), Rejection> {
    if enabled || !asks_for_apparmor(pod) {
        return Ok(());
    }
    Err(Rejection {
        reason: "AppArmor".to_owned(),
        message: "Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned(),
    })
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

fn check_sysctls(pod: &Pod, allowed: &[String]) -> Result<(), Rejection> {
    let spec = pod.spec.as_ref();
    let host_network = spec.and_then(|spec| spec.host_network).unwrap_or(false);
    let host_ipc = spec.and_then(|spec| spec.host_ipc).unwrap_or(false);
    let sysctls = spec
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.sysctls.as_deref())
        .unwrap_or_default();
    for sysctl in sysctls {
        let name = sysctl.name.replace('/', ".");
        let forbidden =
            |message: String| Rejection { reason: "SysctlForbidden".to_owned(), message };
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

fn check_os(pod: &Pod) -> Result<(), Rejection> {
    let spec = pod.spec.as_ref();
    let label = spec
        .and_then(|spec| spec.node_selector.as_ref())
        .and_then(|selector| selector.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != "linux") {
        return Err(Rejection {
            reason: "PodOSSelectorNodeLabelDoesNotMatch".to_owned(),
            message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
                .to_owned(),
        });
    }
    let os = spec.and_then(|spec| spec.os.as_ref()).map(|os| os.name.as_str());
    if os.is_some_and(|os| os != "linux") {
        return Err(Rejection {
            reason: "PodOSNotSupported".to_owned(),
            message: "Failed to admit pod as the OS field doesn't match node OS".to_owned(),
        });
    }
    Ok(())
}

/// A runtime that does not know the policy would add the groups of the image.
fn check_groups_policy(pod: &Pod, supported: bool) -> Result<(), Rejection> {
    let policy = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.supplemental_groups_policy.as_deref());
    if supported || policy != Some("Strict") {
        return Ok(());
    }
    Err(Rejection {
        reason: "SupplementalGroupsPolicyNotSupported".to_owned(),
        message: "SupplementalGroupsPolicy=Strict is not supported in this node".to_owned(),
    })
}

fn check_resources(pod: &Pod, facts: &AdmissionFacts<'_>) -> Result<(), Rejection> {
    let active = facts.active.iter().map(|pod| &**pod);
    match compute_insufficient_resources(pod, active, facts.allocatable).first() {
        None => Ok(()),
        Some(lacking) => Err(Rejection { reason: lacking.reason(), message: lacking.to_string() }),
    }
}

fn host_ports(pod: &Pod) -> BTreeSet<(String, String, i32)> {
    containers(pod)
        .filter(|spec| matches!(spec.kind, ContainerKind::Regular | ContainerKind::Sidecar))
        .flat_map(|spec| spec.container.ports.clone().unwrap_or_default())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let ip = port.host_ip.filter(|ip| !ip.is_empty());
            Some((
                ip.unwrap_or_else(|| "0.0.0.0".to_owned()),
                port.protocol.unwrap_or_else(|| "TCP".to_owned()),
                number,
            ))
        })
        .collect()
}

fn check_host_ports(pod: &Pod, active: &[Arc<Pod>]) -> Result<(), Rejection> {
    let wanted = host_ports(pod);
    let collides = |taken: &(String, String, i32)| {
        wanted.iter().any(|(ip, protocol, port)| {
            (protocol, port) == (&taken.1, &taken.2)
                && (*ip == taken.0 || ip == "0.0.0.0" || taken.0 == "0.0.0.0")
        })
    };
    if active.iter().flat_map(|other| host_ports(other)).any(|taken| collides(&taken)) {
        return Err(Rejection {
            reason: "NodePorts".to_owned(),
            message:
                "Predicate NodePorts failed: node(s) didn't have free ports for the requested \
                      pod ports"
                    .to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rubelet_types::Quantity;

    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": spec})).unwrap()
    }

    fn check(spec: serde_json::Value, active: Vec<Pod>) -> String {
        let mut allocatable = ResourceAmounts::default();
        allocatable.set("cpu", Quantity::from_units(4));
        allocatable.set("memory", "1Gi".parse().unwrap());
        allocatable.set("pods", Quantity::from_units(3));
        let active: Vec<_> = active.into_iter().map(Arc::new).collect();
        let facts = AdmissionFacts {
            active: &active,
            allocatable: &allocatable,
            allowed_unsafe_sysctls: &["net.core.*".to_owned()],
            apparmor_enabled: false,
            supplemental_groups_policy: false,
        };
        match admit(&pod(spec), &facts) {
            Ok(()) => "admitted".to_owned(),
            Err(rejection) => format!("{}: {}", rejection.reason, rejection.message),
        }
    }

    fn asking(cpu: &str) -> serde_json::Value {
        serde_json::json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]})
    }

    fn on_port(port: i32, protocol: &str, ip: &str) -> serde_json::Value {
        serde_json::json!({"containers": [{"name": "c", "ports": [
            {"containerPort": 1, "hostPort": port, "protocol": protocol, "hostIP": ip}]}]})
    }

    #[test]
    fn resources_have_to_fit() {
        assert_eq!(check(asking("1"), vec![pod(asking("3"))]), "admitted");
        assert_eq!(
            check(asking("1"), vec![pod(asking("3500m"))]),
            "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 3500, \
             capacity: 4000"
        );
        assert_eq!(
            check(asking("0"), vec![pod(asking("0")), pod(asking("0")), pod(asking("0"))]),
            "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
        );
    }

    #[test]
    fn host_ports_have_to_be_free() {
        let taken = |ip| vec![pod(on_port(80, "TCP", ip))];
        assert!(check(on_port(80, "TCP", ""), taken("")).starts_with("NodePorts"));
        assert!(check(on_port(80, "TCP", "10.0.0.1"), taken("")).starts_with("NodePorts"));
        assert_eq!(check(on_port(80, "TCP", "10.0.0.1"), taken("10.0.0.2")), "admitted");
        assert_eq!(check(on_port(80, "UDP", ""), taken("")), "admitted");
    }

    #[test]
    fn a_profile_that_nobody_enforces_is_refused() {
        let with = |profile: &str| {
            serde_json::json!({"containers": [{"name": "c",
                "securityContext": {"appArmorProfile": {"type": profile}}}]})
        };
        assert_eq!(
            check(with("RuntimeDefault"), vec![]),
            "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"
        );
        assert_eq!(check(with("Unconfined"), vec![]), "admitted");
    }

    #[test]
    fn only_allowed_sysctls_pass() {
        let with = |name: &str, host: bool| {
            serde_json::json!({"containers": [], "hostNetwork": host, "securityContext":
                {"sysctls": [{"name": name, "value": "1"}]}})
        };
        assert_eq!(check(with("net.core.somaxconn", false), vec![]), "admitted");
        assert_eq!(check(with("net/ipv4/tcp_syncookies", false), vec![]), "admitted");
        assert_eq!(
            check(with("kernel.panic", false), vec![]),
            "SysctlForbidden: forbidden sysctl: \"kernel.panic\" not allowlisted"
        );
        assert!(check(with("net.core.somaxconn", true), vec![]).starts_with("SysctlForbidden"));
    }

    #[test]
    fn a_strict_policy_of_groups_needs_a_runtime_that_keeps_it() {
        let with = |policy: &str| {
            serde_json::json!({"containers": [], "securityContext":
                {"supplementalGroupsPolicy": policy}})
        };
        assert_eq!(check(with("Merge"), vec![]), "admitted");
        assert_eq!(
            check(with("Strict"), vec![]),
            "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not \
             supported in this node"
        );
    }

    #[test]
    fn pods_of_another_operating_system_are_refused() {
        let spec = serde_json::json!({"containers": [], "os": {"name": "windows"}});
        assert!(check(spec, vec![]).starts_with("PodOSNotSupported"));
    }
}
