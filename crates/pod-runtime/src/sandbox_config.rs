use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1;
use rubelet_node_resources::LinuxResources;
use rubelet_types::{ContainerKind, NodePaths, containers, labels, pod_ref};

use crate::container_config::linux_resources;
use crate::hostname::{FqdnTooLong, compute_host_names};
use crate::security::compute_sandbox_security;
use crate::settings::PodRuntimeSettings;

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
}

/// The runtime's configuration of a pod's sandbox.
///
/// # Errors
///
/// The pod wants its fully qualified name as hostname, and that is too long.
pub fn compute_sandbox_config(
    inputs: SandboxInputs<'_>,
    settings: &PodRuntimeSettings,
    paths: &NodePaths,
) -> Result<v1::PodSandboxConfig, FqdnTooLong> {
    let pod = inputs.pod;
    let pod_ref = pod_ref(pod);
    let spec = pod.spec.as_ref();
    let hostname = if rubelet_types::is_host_network(pod) {
        String::new()
    } else {
        compute_host_names(pod, &settings.cluster_domain)?.hostname
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
            security_context: Some(compute_sandbox_security(pod)),
            sysctls,
            overhead: inputs.overhead.map(linux_resources),
            resources: inputs.resources.map(linux_resources),
        }),
        windows: None,
    })
}

pub(crate) fn pod_labels(pod: &rubelet_types::PodRef) -> BTreeMap<String, String> {
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

fn port_mappings(pod: &Pod) -> Vec<v1::PortMapping> {
    let mut seen = HashSet::new();
    let mut mappings = Vec::new();
    let serving = containers(pod)
        .filter(|spec| matches!(spec.kind, ContainerKind::Regular | ContainerKind::Sidecar));
    for spec in serving {
        for port in spec.container.ports.iter().flatten() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let host_ip = port.host_ip.clone().unwrap_or_default();
            let host_port = port.host_port.unwrap_or(0);
            let key = match port.name.as_deref().filter(|name| !name.is_empty()) {
                Some(name) => format!("{}-{name}", spec.container.name),
                None => {
                    let family = if host_ip.contains(':') { "v6" } else { "v4" };
                    format!(
                        "{}-{family}-{protocol}-{host_ip}:{}:{host_port}",
                        spec.container.name, port.container_port
                    )
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
