use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Host, HostError};

/// `IFF_UP` of the kernel's interface flags.
const UP: u32 = 1;
/// `IFF_LOOPBACK`.
const LOOPBACK: u32 = 1 << 3;
/// `IFF_POINTOPOINT`.
const POINT_TO_POINT: u32 = 1 << 4;

/// An address of a network interface of this process' network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The interface's name, without the suffix of an alias (`eth0`, never `eth0:1`).
    pub interface: String,
    /// The address.
    pub address: IpAddr,
    /// The interface is switched on.
    pub is_up: bool,
    /// It is the loopback interface.
    pub is_loopback: bool,
    /// It leads to one peer alone.
    pub is_point_to_point: bool,
}

/// A route to everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultRoute {
    /// The interface it leads through.
    pub interface: String,
    /// It is one of IPv6.
    pub is_ipv6: bool,
}

impl Host {
    /// The addresses of all interfaces, in the kernel's order. The addresses are always those of
    /// this process' network namespace, as procfs does not tell them; the interfaces' flags come from
    /// sysfs, and an interface that it does not show counts as switched on.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn interface_addresses(&self) -> io::Result<Vec<InterfaceAddress>> {
        let found = if_addrs::get_if_addrs()?;
        Ok(found
            .into_iter()
            .map(|entry| {
                let name = entry.name.split(':').next().unwrap_or_default().to_owned();
                let flags = self.interface_flags(&name);
                InterfaceAddress {
                    is_up: flags.is_none_or(|flags| flags & UP != 0),
                    is_loopback: flags
                        .map_or(entry.addr.is_loopback(), |flags| flags & LOOPBACK != 0),
                    is_point_to_point: flags
                        .map_or(entry.is_p2p, |flags| flags & POINT_TO_POINT != 0),
                    address: entry.addr.ip(),
                    interface: name,
                }
            })
            .collect())
    }

    fn interface_flags(&self, name: &str) -> Option<u32> {
        let path = self.path("/sys/class/net").join(name).join("flags");
        let text = std::fs::read_to_string(path).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    }

    /// The default routes, those of IPv4 first, in the kernel's order; `None` if the kernel has no
    /// table of routes at all. Without IPv6 there are none of it.
    ///
    /// # Errors
    /// When the table of IPv4 cannot be read or has an unknown form.
    pub fn default_routes(&self) -> Result<Option<Vec<DefaultRoute>>, HostError> {
        let path = self.path("/proc/net/route");
        let v4 = match std::fs::read_to_string(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(HostError::Read { path, source }),
        };
        let mut routes = Vec::new();
        for line in v4.lines().skip(1) {
            let mut fields = line.split_whitespace();
            let (Some(interface), Some(destination)) = (fields.next(), fields.next()) else {
                return Err(HostError::Malformed { path });
            };
            // The mask tells a default route from one to the address 0.0.0.0/8.
            let mask = fields.nth(5).unwrap_or("00000000");
            let anywhere = [destination, mask]
                .iter()
                .all(|field| u32::from_str_radix(field, 16) == Ok(Ipv4Addr::UNSPECIFIED.to_bits()));
            if anywhere {
                routes.push(DefaultRoute { interface: interface.to_owned(), is_ipv6: false });
            }
        }
        let v6 = std::fs::read_to_string(self.path("/proc/net/ipv6_route")).unwrap_or_default();
        routes.extend(v6.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [destination, prefix, _, _, gateway, .., interface] = fields[..] else {
                return None;
            };
            let address = |text| u128::from_str_radix(text, 16).ok().map(Ipv6Addr::from_bits);
            // A route without a gateway is the one that refuses what has no route.
            let is_default = address(destination) == Some(Ipv6Addr::UNSPECIFIED)
                && prefix == "00"
                && address(gateway).is_some_and(|gateway| !gateway.is_unspecified());
            is_default.then(|| DefaultRoute { interface: interface.to_owned(), is_ipv6: true })
        }));
        Ok(Some(routes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machine::machine;

    const V4: &str = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
eth1\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
";
    const V6: &str = "\
fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00450003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";

    #[test]
    fn default_routes_in_the_kernels_order() {
        let (_temp, host) = machine(&[("proc/net/route", V4), ("proc/net/ipv6_route", V6)]);
        let routes: Vec<(String, bool)> = host
            .default_routes()
            .unwrap()
            .unwrap()
            .into_iter()
            .map(|route| (route.interface, route.is_ipv6))
            .collect();
        assert_eq!(
            routes,
            [("eth1".to_owned(), false), ("eth0".to_owned(), false), ("eth0".to_owned(), true)]
        );
    }

    #[test]
    fn machines_without_routes_or_without_a_table() {
        let header = V4.lines().next().unwrap();
        let (_temp, host) = machine(&[("proc/net/route", header)]);
        assert_eq!(host.default_routes().unwrap(), Some(Vec::new()));
        let (_temp, host) = machine(&[]);
        assert_eq!(host.default_routes().unwrap(), None);
        let (_temp, host) = machine(&[("proc/net/route", "Iface\nnonsense\n")]);
        assert!(matches!(host.default_routes(), Err(HostError::Malformed { .. })));
    }

    #[test]
    fn addresses_of_this_machine_with_the_flags_of_sysfs() {
        let is_loopback = |entry: &&InterfaceAddress| entry.address.is_loopback();
        let found = Host::system().interface_addresses().unwrap();
        let loopback = found.iter().find(is_loopback).expect("an address of lo");
        assert!(loopback.is_loopback && loopback.is_up && !loopback.is_point_to_point);

        let flags = format!("sys/class/net/{}/flags", loopback.interface);
        let (_temp, host) = machine(&[(&flags, "0x10\n")]);
        let found = host.interface_addresses().unwrap();
        let loopback = found.iter().find(is_loopback).expect("an address of lo");
        assert!(!loopback.is_loopback && !loopback.is_up && loopback.is_point_to_point);
    }
}
