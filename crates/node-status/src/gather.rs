use std::sync::Arc;
use std::time::Duration;

use rubelet_linux::{Host, HostError};
use rubelet_types::{ResourceAmounts, error_chain};
use tokio::time::Instant;

use crate::network::AddressSource;
use crate::{MachineFacts, NodeFacts, NodeInputs, NodeNetwork, NodeSettings};

/// What the node has, as whoever manages its resources has found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResources {
    /// cpu, memory, huge pages, ephemeral storage, pods.
    pub capacity: ResourceAmounts,
    /// What of that is kept from pods.
    pub reservation: ResourceAmounts,
}

/// Gathers the facts about the node. Nothing of it waits for the container runtime: what that says
/// comes through [`NodeInputs`].
#[derive(Debug)]
pub struct FactsSource {
    host: Host,
    network: Arc<dyn NodeNetwork>,
    resources: NodeResources,
    inputs: NodeInputs,
    addresses: AddressSource,
    machine: Option<MachineFacts>,
}

impl FactsSource {
    /// Gathers from `host`, its `network`, and what others tell through `inputs`.
    pub fn new(
        host: Host,
        network: Arc<dyn NodeNetwork>,
        resources: NodeResources,
        inputs: NodeInputs,
    ) -> Self {
        let addresses = AddressSource::default();
        Self { host, network, resources, inputs, addresses, machine: None }
    }

    /// How long the machine has been up, if it tells.
    pub(crate) fn uptime(&self) -> Option<Duration> {
        let seconds = self.host.uptime_seconds().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// The facts as they are now. What the machine does not tell is logged once, and empty.
    pub async fn gather(&mut self, settings: &NodeSettings) -> NodeFacts {
        let addresses = self.addresses.gather(settings, &*self.network).await;
        let mut machine =
            self.machine.get_or_insert_with(|| MachineFacts::read(&self.host)).clone();
        // Packages are updated while the machine runs.
        if let Ok(os_image) = self.host.operating_system() {
            machine.os_image = os_image;
        }
        let pieces = self.inputs.pieces();
        NodeFacts {
            machine,
            addresses,
            capacity: self.resources.capacity.clone(),
            reservation: self.resources.reservation.clone(),
            devices: pieces.devices,
            runtime: pieces.runtime,
            images: pieces.images,
            volumes_in_use: pieces.volumes_in_use,
            conditions: self.inputs.conditions(Instant::now()),
        }
    }
}

impl MachineFacts {
    /// Reads what stays the same until the machine is started anew.
    pub fn read(host: &Host) -> Self {
        Self {
            machine_id: or_empty("machine id", host.machine_id()),
            system_uuid: host.system_uuid().unwrap_or_default(),
            boot_id: or_empty("boot id", host.boot_id()),
            kernel_version: host.kernel_version().map_or_else(
                |error| {
                    tracing::warn!(error = error_chain(&error), "The kernel's version is unknown");
                    "Unknown".to_owned()
                },
                |version| version.release,
            ),
            os_image: host.operating_system().unwrap_or_else(|_| "Unknown".to_owned()),
            swap_bytes: host
                .swap_bytes()
                .map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX)),
        }
    }
}

fn or_empty(what: &str, found: Result<String, HostError>) -> String {
    found.unwrap_or_else(|error| {
        tracing::warn!(error = error_chain(&error), "The {what} is unknown");
        String::new()
    })
}
