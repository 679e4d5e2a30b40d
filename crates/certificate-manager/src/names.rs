//! Whom a serving certificate has to name.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;

use crate::request::RequestTemplate;

/// What a node with these addresses asks for; nothing as long as it has no address to put into a
/// certificate. With `dns_only` (the gate `AllowDNSOnlyNodeCSR`) a host name is enough.
pub fn serving_template(
    node_name: &str,
    addresses: &[NodeAddress],
    dns_only: bool,
) -> Option<RequestTemplate> {
    let mut dns_names = BTreeSet::new();
    // Sorted by their texts, as upstream does.
    let mut ip_addresses = BTreeMap::new();
    for NodeAddress { type_, address } in addresses {
        if address.is_empty() {
            continue;
        }
        let ip = address.parse::<IpAddr>().ok();
        match (type_.as_str(), ip) {
            ("Hostname" | "ExternalIP" | "InternalIP", Some(ip)) => {
                ip_addresses.insert(ip.to_string(), ip);
            }
            ("Hostname", None) | ("ExternalDNS" | "InternalDNS", _) => {
                dns_names.insert(address.clone());
            }
            _ => {}
        }
    }
    if ip_addresses.is_empty() && (!dns_only || dns_names.is_empty()) {
        return None;
    }
    Some(RequestTemplate {
        dns_names: dns_names.into_iter().collect(),
        ip_addresses: ip_addresses.into_values().collect(),
        ..RequestTemplate::node(node_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(addresses: &[(&str, &str)], dns_only: bool) -> Option<String> {
        let addresses: Vec<NodeAddress> = addresses
            .iter()
            .map(|(type_, address)| NodeAddress {
                type_: (*type_).to_owned(),
                address: (*address).to_owned(),
            })
            .collect();
        let template = serving_template("n1", &addresses, dns_only)?;
        assert_eq!(template.common_name, "system:node:n1");
        assert_eq!(template.organizations, ["system:nodes"]);
        let ips: Vec<String> = template.ip_addresses.iter().map(ToString::to_string).collect();
        Some(format!("{} | {}", template.dns_names.join(" "), ips.join(" ")))
    }

    #[test]
    fn names_and_addresses_are_sorted_and_each_stands_once() {
        let all = [
            ("InternalIP", "10.0.0.9"),
            ("InternalIP", "10.0.0.10"),
            ("ExternalIP", "10.0.0.9"),
            ("InternalIP", "fd00::1"),
            ("Hostname", "n1"),
            ("InternalDNS", "n1"),
            ("ExternalDNS", "a.example"),
            ("InternalIP", ""),
            ("InternalIP", "rubbish"),
            ("Other", "b.example"),
        ];
        assert_eq!(names(&all, false).unwrap(), "a.example n1 | 10.0.0.10 10.0.0.9 fd00::1");
    }

    #[test]
    fn a_host_name_may_be_an_address() {
        assert_eq!(names(&[("Hostname", "10.0.0.1")], false).unwrap(), " | 10.0.0.1");
    }

    #[test]
    fn without_an_address_nothing_is_asked_for() {
        assert_eq!(names(&[], false), None);
        assert_eq!(names(&[], true), None);
        assert_eq!(names(&[("Hostname", "n1")], false), None);
        assert_eq!(names(&[("Hostname", "n1")], true).unwrap(), "n1 | ");
    }
}
