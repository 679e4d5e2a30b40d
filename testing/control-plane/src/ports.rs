//! Ports that are free and stay so.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::bail;
use rand::Rng;

use crate::options::Options;

/// How many ports below the ephemeral ones are tried.
const SPAN: u16 = 8000;
/// Above it are the ports of Services of the type `NodePort`.
const HIGHEST: u16 = 30_000;

/// The ports of one control plane.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) etcd: u16,
    pub(crate) etcd_peers: u16,
    pub(crate) api_server: u16,
    pub(crate) controller_manager: u16,
    pub(crate) scheduler: u16,
    /// For as long as they are held, no other control plane takes these ports.
    _claims: Vec<UnixListener>,
}

impl Ports {
    /// The usual ports on a site of its own, free ones on this machine.
    pub(crate) fn choose(options: &Options) -> anyhow::Result<Self> {
        if options.site.is_some() {
            return Ok(Self {
                etcd: 2379,
                etcd_peers: 2380,
                api_server: 6443,
                controller_manager: 10257,
                scheduler: 10259,
                _claims: Vec::new(),
            });
        }
        let mut claims = Vec::new();
        let mut next = || -> anyhow::Result<u16> {
            let (port, claim) = claim_port()?;
            claims.push(claim);
            Ok(port)
        };
        Ok(Self {
            etcd: next()?,
            etcd_peers: next()?,
            api_server: next()?,
            controller_manager: next()?,
            scheduler: next()?,
            _claims: claims,
        })
    }
}

/// A port that nobody listens on and that the kernel gives to nobody by itself: a component that is
/// away for a while finds it free when it comes back. The claim is a name in the same network
/// namespace, and goes with its holder.
fn claim_port() -> anyhow::Result<(u16, UnixListener)> {
    let end = lowest_ephemeral_port().min(HIGHEST);
    let start = end.saturating_sub(SPAN).max(1024);
    anyhow::ensure!(start < end, "all ports are ephemeral (ip_local_port_range)");
    for _ in 0..1000 {
        let port = rand::rng().random_range(start..end);
        let name = SocketAddr::from_abstract_name(format!("rubelet-port-{port}"))?;
        let Ok(claim) = UnixListener::bind_addr(&name) else { continue };
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok((port, claim));
        }
    }
    bail!("no port between {start} and {end} is free")
}

fn lowest_ephemeral_port() -> u16 {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_port_is_given_out_twice_while_it_is_held() {
        let held: Vec<(u16, UnixListener)> =
            (0..200).map(|_| claim_port().expect("a port")).collect();
        let different: BTreeSet<u16> = held.iter().map(|(port, _)| *port).collect();
        assert_eq!(different.len(), held.len());
        assert!(different.iter().all(|&port| port < lowest_ephemeral_port()));
    }
}
