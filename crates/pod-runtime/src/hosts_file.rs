//! The `/etc/hosts` that the kubelet manages for containers.

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::is_host_network;

use crate::hostname::{HostnameError, compute_host_names};

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HOST_NETWORK_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";
const STANDARD_ENTRIES: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// The content of a pod's hosts file: the node's own for a pod on the host network, else the
/// standard entries and the pod's names; then the pod's `hostAliases`.
///
/// # Errors
///
/// The pod has no valid hostname.
pub fn render_hosts_file(
    pod: &Pod,
    pod_ips: &[String],
    cluster_domain: &str,
    node_file: &str,
) -> Result<String, HostnameError> {
    let mut content = String::new();
    if is_host_network(pod) {
        content.push_str(HOST_NETWORK_HEADER);
        content.push_str(node_file);
    } else {
        content.push_str(HEADER);
        content.push_str(STANDARD_ENTRIES);
        let names = compute_host_names(pod, cluster_domain)?;
        for ip in pod_ips {
            content.push_str(ip);
            content.push('\t');
            if let Some(domain) = &names.domain {
                content.push_str(&format!("{}.{domain}\t", names.short));
            }
            content.push_str(&names.short);
            content.push('\n');
        }
    }
    let aliases =
        pod.spec.as_ref().and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
    if !aliases.is_empty() {
        content.push_str("\n# Entries added by HostAliases.\n");
        for alias in aliases {
            let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
            content.push_str(&format!("{}\t{names}\n", alias.ip));
        }
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(spec: serde_json::Value, ips: &[&str]) -> String {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns"}, "spec": spec
        }))
        .unwrap();
        let ips: Vec<String> = ips.iter().map(|ip| (*ip).to_owned()).collect();
        render_hosts_file(&pod, &ips, "cluster.local", "127.0.0.1 node\n").unwrap()
    }

    #[test]
    fn every_address_of_the_pod_gets_its_names() {
        let spec = serde_json::json!({"containers": [], "subdomain": "s", "hostAliases": [
            {"ip": "192.0.2.1", "hostnames": ["a", "b.example"]}]});
        assert_eq!(
            render(spec, &["10.0.0.2", "fd00::2"]),
            format!(
                "{HEADER}{STANDARD_ENTRIES}10.0.0.2\tweb.s.ns.svc.cluster.local\tweb\n\
                 fd00::2\tweb.s.ns.svc.cluster.local\tweb\n\n# Entries added by HostAliases.\n\
                 192.0.2.1\ta\tb.example\n"
            )
        );
    }

    #[test]
    fn a_pod_on_the_host_network_sees_the_nodes_file() {
        let spec = serde_json::json!({"containers": [], "hostNetwork": true});
        assert_eq!(
            render(spec, &[]),
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1 node\n"
        );
    }
}
