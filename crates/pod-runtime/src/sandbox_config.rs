use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1;
use rubelet_node_resources::LinuxResources;
use rubelet_types::{NodePaths, PodRef, UnsafePathElement, labels, pod_ref};

use crate::container_config::linux_resources;
use crate::hostname::{HostnameError, compute_host_names};
use crate::security::{SecurityError, compute_sandbox_security};
use crate::settings::PodRuntimeSettings;
use crate::user_namespace::UserNamespace;

/// What a sandbox depends on beside the pod's spec.
#[derive(Debug)]
pub struct SandboxInputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Number of the sandbox.
    pub attempt: u32,
    /// The pod's cgroup as the runtime takes it: a path, or a systemd slice.
    pub cgroup_parent: &'a str,
    /// Name resolution.
    pub dns: v1::DnsConfig,
    /// Sum of the containers' resources.
    pub resources: Option<LinuxResources>,
    /// The RuntimeClass's overhead.
    pub overhead: Option<LinuxResources>,
    /// Groups that come with the pod's volumes.
    pub extra_groups: &'a [i64],
    /// The ids of a pod with `hostUsers: false`.
    pub user_namespace: Option<&'a UserNamespace>,
}

/// A pod whose sandbox cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxConfigError {
    /// Its name, namespace or uid would lead its files elsewhere.
    #[error("invalid name of a pod")]
    Name(#[from] UnsafePathElement),
    /// Its hostname.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    /// Its security.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// The runtime's configuration of a pod's sandbox.
///
/// # Errors
///
/// Name, namespace or uid cannot be parts of paths; the hostname is no name, or its fully qualified form is too long; or a security setting cannot
/// be carried out.
pub fn compute_sandbox_config(
    inputs: SandboxInputs<'_>,
    settings: &PodRuntimeSettings,
    paths: &NodePaths,
) -> Result<v1::PodSandboxConfig, SandboxConfigError> {
    let pod = inputs.pod;
    let pod_ref = pod_ref(pod);
    check_pod_names(&pod_ref)?;
    let spec = pod.spec.as_ref();
    let hostname = if rubelet_types::is_host_network(pod) {
        String::new()
    } else {
        compute_host_names(pod, &settings.cluster_domain)?.hostname()?
    };
    let mut all_labels = pod.metadata.labels.clone().unwrap_or_default();
    all_labels.extend(pod_labels(&pod_ref));
    let sysctls = spec
        .and_then(|spec| spec.security_context.as_ref())
        .and_then(|context| context.sysctls.as_ref())
        .into_iter()
        .flatten()
        .map(|sysctl| (dotted_sysctl(&sysctl.name), sysctl.value.clone()))
        .collect();
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: pod_ref.name.to_string(),
            uid: pod_ref.uid.to_string(),
            namespace: pod_ref.namespace.to_string(),
            attempt: inputs.attempt,
        }),
        hostname,
        log_directory: paths.pod_log_dir(&pod_ref).to_string_lossy().into_owned(),
        dns_config: Some(inputs.dns),
        port_mappings: port_mappings(pod),
        labels: all_labels.into_iter().collect(),
        annotations: pod.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: inputs.cgroup_parent.to_owned(),
            security_context: Some(compute_sandbox_security(
                pod,
                inputs.extra_groups,
                inputs.user_namespace,
            )?),
            sysctls,
            overhead: inputs.overhead.map(linux_resources),
            resources: inputs.resources.map(linux_resources),
        }),
        windows: None,
    })
}

/// Checks that the pod's names stay within the directories that are named after them.
pub(crate) fn check_pod_names(pod: &PodRef) -> Result<(), UnsafePathElement> {
    [pod.uid.as_str(), &pod.namespace, &pod.name].into_iter().try_for_each(NodePaths::check_element)
}

pub(crate) fn pod_labels(pod: &PodRef) -> BTreeMap<String, String> {
    [
        (labels::POD_NAME, pod.name.to_string()),
        (labels::POD_NAMESPACE, pod.namespace.to_string()),
        (labels::POD_UID, pod.uid.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect()
}

/// `net/ipv4/conf/eth0.100/...` and `net.ipv4...` both name a sysctl; the runtime takes dots.
fn dotted_sysctl(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

/// The ports of the regular containers; within a container, one of a name or of an address.
fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let mut mappings = Vec::new();
    for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
        let mut seen = HashSet::new();
        for port in container.ports.iter().flatten() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let host_ip = port.host_ip.clone().unwrap_or_default();
            let host_port = port.host_port.unwrap_or(0);
            let key = match port.name.as_deref().filter(|name| !name.is_empty()) {
                Some(name) => name.to_owned(),
                None => {
                    let family = match host_ip.as_str() {
                        "" => "any",
                        ip if ip.contains(':') => "v6",
                        _ => "v4",
                    };
                    format!("{family}-{protocol}-{host_ip}:{}:{host_port}", port.container_port)
                }
            };
            if !seen.insert(key) {
                continue;
            }
            mappings.push(v1::PortMapping {
                protocol: i32::from(match protocol {
                    "UDP" => v1::Protocol::Udp,
                    "SCTP" => v1::Protocol::Sctp,
                    _ => v1::Protocol::Tcp,
                }),
                container_port: port.container_port,
                host_port,
                host_ip,
            });
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_names_are_given_with_dots() {
        assert_eq!(dotted_sysctl("net.ipv4.ip_forward"), "net.ipv4.ip_forward");
        assert_eq!(dotted_sysctl("net/ipv4/ip_forward"), "net.ipv4.ip_forward");
        assert_eq!(dotted_sysctl("net/ipv4/conf/eth0.1/x"), "net.ipv4.conf.eth0/1.x");
    }
}
