use std::collections::BTreeMap;
use std::net::IpAddr;

use rubelet_types::ResourceAmounts;

/// Everything that was found out about the node, at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    /// The machine itself.
    pub machine: MachineFacts,
    /// Where it can be reached.
    pub addresses: HostAddresses,
    /// What it has: cpu, memory, huge pages, ephemeral storage, pods.
    pub capacity: ResourceAmounts,
    /// What of that is kept from pods: reservations and hard eviction thresholds.
    pub reservation: ResourceAmounts,
    /// What device plugins offer.
    pub devices: DeviceResources,
    /// What the container runtime says about itself.
    pub runtime: RuntimeFacts,
    /// Images on the node, the largest first.
    pub images: Vec<ImageFacts>,
    /// Volumes in use that the control plane must not detach; none until that is known.
    pub volumes_in_use: Option<Vec<String>>,
    /// What the conditions are made of.
    pub conditions: NodeConditionsInput,
}

/// The machine. A text is empty where the machine does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineFacts {
    /// The id of the installation.
    pub machine_id: String,
    /// The id that the firmware gives.
    pub system_uuid: String,
    /// The id of this boot.
    pub boot_id: String,
    /// As `uname -r` shows it.
    pub kernel_version: String,
    /// The operating system's name for people.
    pub os_image: String,
    /// Bytes of swap, used or not; 0 is none.
    pub swap_bytes: i64,
}

/// Addresses that may become the node's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostAddresses {
    /// Those on the machine's interfaces.
    pub on_interfaces: Vec<IpAddr>,
    /// Those that DNS knows for the node's name.
    pub looked_up: Vec<IpAddr>,
    /// That of the interface the default route leads through, of the preferred family if there is
    /// one; or why there is none.
    pub default_route: Option<Result<IpAddr, String>>,
}

/// Extended resources of device plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceResources {
    /// Devices by resource, healthy or not.
    pub capacity: BTreeMap<String, i64>,
    /// Healthy devices by resource.
    pub allocatable: BTreeMap<String, i64>,
    /// Resources whose plugin has gone. They are reported as 0, not left out.
    pub removed: Vec<String>,
    /// No record of devices survived: what an existing Node says of extended resources is reset
    /// until their plugins are back.
    pub reset_at_registration: bool,
}

/// The container runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFacts {
    /// Its name, such as `containerd`.
    pub name: String,
    /// Its version as it tells it, such as `v2.1.4`; none while it is not known.
    pub version: Option<String>,
    /// Its handlers; none until it has answered.
    pub handlers: Option<Vec<RuntimeHandlerFacts>>,
    /// Whether it keeps the policy of supplemental groups; none if it does not speak of features.
    pub supplemental_groups_policy: Option<bool>,
    /// It can run pods that have a user namespace and the host's network.
    pub user_namespaces_host_network: bool,
}

/// A handler of the container runtime, which a RuntimeClass may name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuntimeHandlerFacts {
    /// Its name; empty for the default one.
    pub name: String,
    /// It can make read-only mounts recursive.
    pub recursive_read_only_mounts: bool,
    /// It can give a pod its own user namespace.
    pub user_namespaces: bool,
}

/// An image on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageFacts {
    /// Its id.
    pub id: String,
    /// Names: by digest first, then by tag.
    pub names: Vec<String>,
    /// Bytes.
    pub size: i64,
}

/// What runs short on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodePressure {
    /// Memory.
    pub memory: bool,
    /// Disk space or inodes.
    pub disk: bool,
    /// Process ids.
    pub pid: bool,
}

/// What the conditions are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConditionsInput {
    /// What runs short.
    pub pressure: NodePressure,
    /// Why the node is not ready, in upstream's order: runtime, its health checks, network, storage,
    /// shutdown. Missing capacities are added when the status is computed.
    pub ready_errors: Vec<String>,
    /// What the node would rather have, and can do without.
    pub soft_requirements: Option<String>,
}
