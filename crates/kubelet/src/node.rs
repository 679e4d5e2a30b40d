//! What this node is.

use std::net::{IpAddr, UdpSocket};

use anyhow::{Context, bail};
use rubelet_config::KubeletOptions;
use rubelet_node_status::NodeHandle;

/// Identity and addresses of the node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its name: `--hostname-override`, or the machine's hostname.
    pub name: String,
    /// Its addresses, the primary one first, at most one of each family.
    pub ips: Vec<IpAddr>,
}

impl Node {
    /// Finds out where this process runs.
    ///
    /// # Errors
    ///
    /// The machine has no usable name.
    pub fn detect(options: &KubeletOptions) -> anyhow::Result<Self> {
        let name = match options.hostname_override.as_deref().map(str::trim) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => rustix::system::uname()
                .nodename()
                .to_str()
                .context("the machine's hostname is not UTF-8")?
                .trim()
                .to_owned(),
        }
        .to_lowercase();
        if name.is_empty() {
            bail!("empty hostname is invalid");
        }
        let given = options.node_ips();
        let wanted_family = given.first().filter(|ip| ip.is_unspecified()).map(IpAddr::is_ipv6);
        let specified: Vec<IpAddr> =
            given.iter().copied().filter(|ip| !ip.is_unspecified()).collect();
        let ips = if specified.is_empty() { routed_addresses(wanted_family) } else { specified };
        Ok(Self { name, ips })
    }

    pub(crate) fn prefers_ipv6(&self) -> bool {
        self.ips.first().is_some_and(IpAddr::is_ipv6)
    }
}

/// The addresses of pods on the host's network.
#[derive(Clone, Debug)]
pub(crate) struct HostIps {
    /// Those that the Node object shows count, as soon as there are any.
    pub(crate) published: Option<NodeHandle>,
    /// Those that were found at the start.
    pub(crate) detected: Vec<IpAddr>,
}

impl HostIps {
    /// The primary one first, at most one of each family.
    pub(crate) fn get(&self) -> Vec<String> {
        let published = self.published.as_ref().map(NodeHandle::host_ips).unwrap_or_default();
        let ips = if published.is_empty() { &self.detected } else { &published };
        ips.iter().map(ToString::to_string).collect()
    }
}

/// The addresses from which the node would reach the world, found by routing alone: connecting a
/// UDP socket sends nothing. Falls back to loopback on a machine without routes.
fn routed_addresses(prefer_ipv6: Option<bool>) -> Vec<IpAddr> {
    let probe = |local: &str, remote: &str| -> Option<IpAddr> {
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(remote).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_unspecified()).then_some(ip)
    };
    // Documentation addresses (RFC 5737, RFC 3849): only the route to them is looked up.
    let v4 = probe("0.0.0.0:0", "192.0.2.1:9");
    let v6 = probe("[::]:0", "[2001:db8::1]:9");
    let mut found: Vec<IpAddr> = if prefer_ipv6 == Some(true) {
        v6.into_iter().chain(v4).collect()
    } else {
        v4.into_iter().chain(v6).collect()
    };
    if found.is_empty() {
        found.push(IpAddr::from([127, 0, 0, 1]));
    }
    found
}
