//! Which addresses a pod shows.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{HostIP, PodIP, PodStatus};
use rubelet_types::is_host_network;

use crate::input::StatusInput;

/// The pod IPs as status and downward API show them: the first one of the family of
/// `node_primary` (IPv4 if the node has no address), then the first one of the other family, both
/// in canonical form. What is no address is left out.
pub fn sort_pod_ips(ips: &[String], node_primary: Option<&str>) -> Vec<String> {
    let addresses: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.trim().parse().ok()).collect();
    let six_first = node_primary.is_some_and(is_ipv6);
    let first_of = |six: bool| addresses.iter().find(|ip| ip.is_ipv6() == six);
    [first_of(six_first), first_of(!six_first)]
        .into_iter()
        .flatten()
        .map(IpAddr::to_string)
        .collect()
}

fn is_ipv6(ip: &str) -> bool {
    ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6())
}

/// Fills in `podIP`, `podIPs`, `hostIP` and `hostIPs`.
///
/// A pod keeps its addresses while it has no ready sandbox: when it is being stopped, when it has
/// ended, and until a new sandbox has new ones.
pub(crate) fn set_ips(input: &StatusInput<'_>, status: &mut PodStatus) {
    let hosts = &input.node.host_ips;
    if hosts.is_empty() {
        status.host_ip.clone_from(&input.previous.host_ip);
        status.host_ips.clone_from(&input.previous.host_ips);
    } else {
        status.host_ip = hosts.first().cloned();
        status.host_ips = Some(hosts.iter().take(2).map(|ip| HostIP { ip: ip.clone() }).collect());
    }
    let own = if is_host_network(input.pod) {
        hosts.iter().take(2).cloned().collect()
    } else {
        let ips = input.snapshot.map_or(&[][..], |snapshot| snapshot.ips());
        sort_pod_ips(ips, hosts.first().map(String::as_str))
    };
    let sandbox_has_none = !is_host_network(input.pod)
        && input.snapshot.is_some_and(|snapshot| snapshot.any_sandbox_ready());
    if own.is_empty() && !sandbox_has_none {
        status.pod_ip.clone_from(&input.previous.pod_ip);
        status.pod_ips.clone_from(&input.previous.pod_ips);
    } else {
        status.pod_ip = own.first().cloned();
        status.pod_ips = Some(own.into_iter().map(|ip| PodIP { ip }).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_each_family_the_nodes_own_first() {
        let ips = ["fd00::2", "10.0.0.2", "10.0.0.3", "nonsense", "FD00::03"].map(str::to_owned);
        for (node, expected) in [
            (None, ["10.0.0.2", "fd00::2"]),
            (Some("192.168.0.1"), ["10.0.0.2", "fd00::2"]),
            (Some("fd00::1"), ["fd00::2", "10.0.0.2"]),
        ] {
            assert_eq!(sort_pod_ips(&ips, node), expected, "{node:?}");
        }
        assert_eq!(sort_pod_ips(&["FD00:0::03".to_owned()], None), ["fd00::3"]);
    }
}
