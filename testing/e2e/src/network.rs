//! The network of a node, alone or with others.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use rubelet_control_plane::Machine;

use crate::namespaces::{Lifetime, Namespaces};

/// Where packets go that are for nobody on the node. Behind it is nothing, or a [`Hub`].
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 254);
/// The bridge of the hub.
const BRIDGE: &str = "rubelet0";
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The network of one node.
#[derive(Debug, Clone)]
pub struct NodeNetwork {
    /// The first node has 1.
    number: u8,
    /// The addresses of its pods.
    pods: String,
    /// What joins it to others.
    hub: Option<Arc<Hub>>,
}

impl NodeNetwork {
    /// A node without others.
    pub fn alone() -> Self {
        Self { number: 1, pods: "10.244.0.0/23".to_owned(), hub: None }
    }

    /// One node of several.
    pub(crate) fn of_hub(hub: &Arc<Hub>, number: u8) -> Self {
        Self { number, pods: pods_of(number), hub: Some(Arc::clone(hub)) }
    }

    /// The address of the node.
    pub(crate) fn address(&self) -> Ipv4Addr {
        address_of(self.number)
    }

    /// The addresses of its pods.
    pub(crate) fn pods(&self) -> &str {
        &self.pods
    }

    /// Whether pods hide behind their node's address from all that are not on the node. Where the
    /// other nodes know the way to them they do not, as Kubernetes wants it.
    pub(crate) fn hides_pods(&self) -> bool {
        self.hub.is_none()
    }

    /// Brings up loopback and a default route: a node has an address and a default interface, and
    /// no packet leaves the machine.
    ///
    /// # Errors
    /// When iproute2 is not there or the kernel refuses.
    pub(crate) fn set_up(&self, node: &Namespaces) -> anyhow::Result<()> {
        node.run("ip", &["link", "set", "lo", "up"])?;
        match &self.hub {
            None => {
                node.run(
                    "ip",
                    &["link", "add", "node0", "type", "veth", "peer", "name", "node0p"],
                )?;
                node.run("ip", &["link", "set", "node0p", "up"])?;
            }
            Some(hub) => hub.plug_in(node, self)?,
        }
        let address = format!("{}/24", self.address());
        node.run("ip", &["address", "add", &address, "dev", "node0"])?;
        node.run("ip", &["link", "set", "node0", "up"])?;
        node.run("ip", &["route", "add", "default", "via", &GATEWAY.to_string()])?;
        node.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        if let Some(hub) = &self.hub {
            for other in (1..=hub.nodes).filter(|&other| other != self.number) {
                let (pods, via) = (pods_of(other), address_of(other).to_string());
                node.run("ip", &["route", "add", &pods, "via", &via])?;
            }
        }
        Ok(())
    }
}

fn address_of(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 99, 0, number)
}

fn pods_of(number: u8) -> String {
    format!("10.244.{number}.0/24")
}

/// A network namespace with a bridge to which nodes are plugged in, and a machine on which a
/// control plane can run that they reach. Nothing of it is seen outside.
#[derive(Debug)]
pub struct Hub {
    namespaces: Namespaces,
    nodes: u8,
}

impl Hub {
    /// The most nodes that can be plugged in.
    pub const MOST_NODES: u8 = 99;

    /// Makes a hub for that many nodes.
    ///
    /// # Errors
    /// When these are too many, iproute2 is not there, or the kernel refuses (not root).
    pub fn create(nodes: u8) -> anyhow::Result<Self> {
        anyhow::ensure!(
            (1..=Self::MOST_NODES).contains(&nodes),
            "{nodes} nodes: it can be 1 to {}",
            Self::MOST_NODES
        );
        let namespaces = Namespaces::create(Lifetime::WithUs)?;
        let address = format!("{GATEWAY}/24");
        namespaces.run("ip", &["link", "set", "lo", "up"])?;
        namespaces.run("ip", &["link", "add", BRIDGE, "type", "bridge"])?;
        namespaces.run("ip", &["address", "add", &address, "dev", BRIDGE])?;
        namespaces.run("ip", &["link", "set", BRIDGE, "up"])?;
        namespaces.run("sh", &["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?;
        Ok(Self { namespaces, nodes })
    }

    /// Its address, which nodes and pods reach.
    pub fn address(&self) -> Ipv4Addr {
        GATEWAY
    }

    /// The namespaces it consists of.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Connects a node's `node0` with the bridge.
    fn plug_in(&self, node: &Namespaces, network: &NodeNetwork) -> anyhow::Result<()> {
        let port = format!("node{}", network.number);
        let hub = self.namespaces.holder_pid().to_string();
        let pair = ["link", "add", "node0", "type", "veth", "peer", "name", &port, "netns", &hub];
        node.run_in_network("ip", &pair)?;
        self.namespaces.run("ip", &["link", "set", &port, "master", BRIDGE])?;
        self.namespaces.run("ip", &["link", "set", &port, "up"])?;
        let via = network.address().to_string();
        self.namespaces.run("ip", &["route", "add", network.pods(), "via", &via])?;
        Ok(())
    }
}

impl Machine for Hub {
    fn command(&self, program: &Path) -> Command {
        self.namespaces.command(program)
    }

    fn spawn(&self, mut command: Command) -> io::Result<Child> {
        self.namespaces.spawn(&mut command)
    }

    fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.namespaces.connect(address, CONNECT_WITHIN)
    }
}
