//! Which addresses the node reports.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use rubelet_linux::{DefaultRoute, InterfaceAddress};

use crate::{HostAddresses, NodeSettings};

/// Why an address cannot be a node's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeIpError {
    /// It never leaves the machine.
    #[error("nodeIP can't be loopback address")]
    Loopback,
    /// It stands for many.
    #[error("nodeIP can't be a multicast address")]
    Multicast,
    /// It means something on one link alone.
    #[error("nodeIP can't be a link-local unicast address")]
    LinkLocal,
    /// It stands for any.
    #[error("nodeIP can't be an all zeros address")]
    Unspecified,
    /// It is not this machine's.
    #[error("node IP: \"{0}\" not found in the host's network interfaces")]
    NotOnAnInterface(IpAddr),
}

/// Why the node has no addresses to report. What was reported before stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// `--node-ip` names an address that cannot be the node's.
    #[error("failed to validate {flag}")]
    NodeIp {
        /// `nodeIP` or `secondaryNodeIP`.
        flag: &'static str,
        /// What is wrong with it.
        #[source]
        source: NodeIpError,
    },
    /// Neither DNS nor a default route gives one.
    #[error("can't get ip address of node {node}. error: {reason}")]
    None {
        /// The node's name.
        node: String,
        /// Why the last resort had none.
        reason: String,
    },
}

/// Checks that `address` can be the node's, and is this machine's.
pub(crate) fn check_node_ip(address: IpAddr, on_interfaces: &[IpAddr]) -> Result<(), NodeIpError> {
    if address.is_loopback() {
        return Err(NodeIpError::Loopback);
    }
    if address.is_multicast() {
        return Err(NodeIpError::Multicast);
    }
    if is_link_local(address) {
        return Err(NodeIpError::LinkLocal);
    }
    if address.is_unspecified() {
        return Err(NodeIpError::Unspecified);
    }
    if on_interfaces.contains(&address) {
        Ok(())
    } else {
        Err(NodeIpError::NotOnAnInterface(address))
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Not for this host, this link, everybody or nobody.
fn is_global_unicast(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(is_broadcast
        || address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || is_link_local(address))
}

/// The addresses of `--node-ip` that name one, which is what `node_ips` is for apart from choosing
/// a family.
fn specified(settings: &NodeSettings) -> impl Iterator<Item = IpAddr> + '_ {
    settings.node_ips.iter().copied().filter(|address| !address.is_unspecified())
}

/// The addresses to report, from `current`, which are reported now; `None` leaves them as they are.
///
/// `--node-ip` wins, if the machine has it; then a hostname that is an address; then what DNS knows
/// for the node's name, as far as the machine has it; then the interface of the default route. With
/// an external cloud provider, addresses that are there are its business, and without `--node-ip` it
/// is waited for.
///
/// # Errors
///
/// `--node-ip` is wrong, or no address can be found.
pub fn choose_addresses(
    settings: &NodeSettings,
    current: &[NodeAddress],
    host: &HostAddresses,
) -> Result<Option<Vec<NodeAddress>>, AddressError> {
    check_node_ips(settings, host)?;
    let hostname = NodeAddress { type_: "Hostname".to_owned(), address: settings.name.clone() };
    if settings.external_cloud_provider {
        if !current.is_empty() {
            return Ok(None);
        }
        if settings.node_ips.is_empty() {
            return Ok(Some(vec![hostname]));
        }
    }
    let mut internal: Vec<IpAddr> = specified(settings).collect();
    if internal.is_empty() {
        internal.push(detect(settings, host)?);
    }
    let internal = internal.into_iter().map(|address| NodeAddress {
        type_: "InternalIP".to_owned(),
        address: address.to_string(),
    });
    Ok(Some(internal.chain([hostname]).collect()))
}

/// Checks the addresses of `--node-ip`.
pub(crate) fn check_node_ips(
    settings: &NodeSettings,
    host: &HostAddresses,
) -> Result<(), AddressError> {
    let flags = ["nodeIP", "secondaryNodeIP"];
    for (address, flag) in settings.node_ips.iter().zip(flags) {
        if !address.is_unspecified() {
            check_node_ip(*address, &host.on_interfaces)
                .map_err(|source| AddressError::NodeIp { flag, source })?;
        }
    }
    Ok(())
}

fn detect(settings: &NodeSettings, host: &HostAddresses) -> Result<IpAddr, AddressError> {
    if let Ok(address) = settings.name.parse() {
        return Ok(address);
    }
    if let Some(address) = choose_looked_up(settings, host) {
        return Ok(address);
    }
    let no_route = || Err("the default route is not known".to_owned());
    host.default_route
        .clone()
        .unwrap_or_else(no_route)
        .map_err(|reason| AddressError::None { node: settings.name.clone(), reason })
}

/// The first valid address that DNS knows, one of the preferred family if there is one.
pub(crate) fn choose_looked_up(settings: &NodeSettings, host: &HostAddresses) -> Option<IpAddr> {
    let valid = || {
        let is_valid = |address: &&IpAddr| check_node_ip(**address, &host.on_interfaces).is_ok();
        host.looked_up.iter().filter(is_valid)
    };
    let is_preferred = |address: &&IpAddr| address.is_ipv6() == settings.prefers_ipv6();
    valid().find(is_preferred).or_else(|| valid().next()).copied()
}

/// `--node-ip` and the name leave the choice to DNS and routes.
pub(crate) fn has_to_detect(settings: &NodeSettings) -> bool {
    let waits_for_the_cloud = settings.external_cloud_provider && settings.node_ips.is_empty();
    specified(settings).next().is_none()
        && settings.name.parse::<IpAddr>().is_err()
        && !waits_for_the_cloud
}

/// The value of the annotation that tells an external cloud provider which addresses the node was
/// given.
pub(crate) fn provided_node_ip(settings: &NodeSettings) -> Option<String> {
    let first = settings.node_ips.first()?;
    if !settings.external_cloud_provider || first.is_unspecified() {
        return None;
    }
    let addresses: Vec<String> = specified(settings).map(|address| address.to_string()).collect();
    Some(addresses.join(","))
}

/// The address from which the node reaches the world: a global one of an interface that a default
/// route leads through, of the preferred family first. If such an interface has none (routers that
/// speak link-local only), one of the loopback interface. On a kernel without a table of routes
/// (`routes` is `None`), one of any interface that is up.
///
/// # Errors
///
/// There is none; the text says why, in upstream's words.
pub fn choose_default_address(
    routes: Option<&[DefaultRoute]>,
    interfaces: &[InterfaceAddress],
    prefers_ipv6: bool,
) -> Result<IpAddr, String> {
    let families = [prefers_ipv6, !prefers_ipv6];
    let global = |is_ipv6: bool, fits: &dyn Fn(&InterfaceAddress) -> bool| {
        interfaces
            .iter()
            .filter(|entry| entry.is_up && entry.address.is_ipv6() == is_ipv6)
            .find(|entry| is_global_unicast(entry.address) && fits(entry))
            .map(|entry| entry.address)
    };
    let Some(routes) = routes else {
        let is_ordinary = |entry: &InterfaceAddress| !entry.is_loopback && !entry.is_point_to_point;
        return families.into_iter().find_map(|is_ipv6| global(is_ipv6, &is_ordinary)).ok_or_else(
            || "no acceptable interface with global unicast address found on host".to_owned(),
        );
    };
    if routes.is_empty() {
        return Err(
            "no default routes found in \"/proc/net/route\" or \"/proc/net/ipv6_route\"".to_owned()
        );
    }
    families
        .into_iter()
        .flat_map(|is_ipv6| routes.iter().filter(move |route| route.is_ipv6 == is_ipv6))
        .find_map(|route| {
            global(route.is_ipv6, &|entry| entry.interface == route.interface)
                .or_else(|| global(route.is_ipv6, &|entry| entry.is_loopback))
        })
        .ok_or_else(|| "unable to select an IP from default routes.".to_owned())
}

/// The addresses that pods on the host's network have: the node's first internal address, or an
/// external one where there is none, and the first one of the other family. Empty while the node
/// has no addresses.
pub fn node_host_ips(node: &Node) -> Vec<IpAddr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of_type = |wanted: &'static str| {
        addresses
            .clone()
            .filter(move |entry| entry.type_ == wanted)
            .filter_map(|entry| entry.address.parse::<IpAddr>().ok())
    };
    let mut known = of_type("InternalIP").chain(of_type("ExternalIP"));
    let Some(first) = known.next() else { return Vec::new() };
    let second = known.find(|address| address.is_ipv6() != first.is_ipv6());
    [first].into_iter().chain(second).collect()
}
