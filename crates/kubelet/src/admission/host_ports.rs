use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{ContainerKind, containers};

const ALL_ADDRESSES: &str = "0.0.0.0";

/// Address, protocol, port.
type HostPort = (String, String, i32);

fn host_ports(pod: &Pod) -> BTreeSet<HostPort> {
    containers(pod)
        .filter(|spec| matches!(spec.kind, ContainerKind::Regular | ContainerKind::Sidecar))
        .flat_map(|spec| spec.container.ports.clone().unwrap_or_default())
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let ip = port.host_ip.filter(|ip| !ip.is_empty());
            let protocol = port.protocol.filter(|protocol| !protocol.is_empty());
            Some((
                ip.unwrap_or_else(|| ALL_ADDRESSES.to_owned()),
                protocol.unwrap_or_else(|| "TCP".to_owned()),
                number,
            ))
        })
        .collect()
}

/// No other pod holds a port of the node that `pod` wants.
pub(super) fn are_free(pod: &Pod, active: &[Arc<Pod>]) -> bool {
    let wanted = host_ports(pod);
    let collides = |(taken_ip, taken_protocol, taken_port): &HostPort| {
        wanted.iter().any(|(ip, protocol, port)| {
            (protocol, port) == (taken_protocol, taken_port)
                && (ip == taken_ip || ip == ALL_ADDRESSES || taken_ip == ALL_ADDRESSES)
        })
    };
    wanted.is_empty()
        || !active.iter().flat_map(|other| host_ports(other)).any(|taken| collides(&taken))
}
