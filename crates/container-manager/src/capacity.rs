//! What the node has, and what of it is for pods.

use std::path::Path;

use rubelet_linux::{Host, HostError};
use rubelet_node_resources::{
    NodeReservations, PageSize, compute_node_allocatable, compute_pods_cgroup_allocatable,
};
use rubelet_types::{Quantity, ResourceAmounts};

use crate::ContainerManagerSettings;

/// Figures of the node, read once at start.
#[derive(Clone, Debug)]
pub(crate) struct NodeCapacity {
    /// As the node's status shows it.
    pub(crate) capacity: ResourceAmounts,
    /// With process ids, which the status does not show.
    pub(crate) with_pids: ResourceAmounts,
    pub(crate) memory_bytes: i64,
    pub(crate) swap_bytes: i64,
    pub(crate) online_cpus: String,
}

impl NodeCapacity {
    pub(crate) fn read(
        host: &Host,
        root_directory: Option<&Path>,
        settings: &ContainerManagerSettings,
    ) -> Result<Self, HostError> {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let cpus = host.online_cpus()?;
        let cpu_count = i64::try_from(cpus.len()).unwrap_or(i64::MAX);
        let memory_bytes = signed(host.memory_bytes()?);

        let mut capacity = ResourceAmounts::default();
        capacity.set("cpu", Quantity::from_units(cpu_count));
        capacity.set("memory", Quantity::from_bytes(memory_bytes));
        for pool in host.huge_pages()? {
            let bytes = signed(pool.page_size.saturating_mul(pool.pages));
            capacity.set(&PageSize(pool.page_size).resource_name(), Quantity::from_bytes(bytes));
        }
        if let Some(directory) = root_directory {
            let bytes = signed(host.file_system_bytes(directory)?);
            capacity.set("ephemeral-storage", Quantity::from_bytes(bytes));
        }
        let pods = match settings.pods_per_core {
            0 => settings.max_pods,
            per_core => settings.max_pods.min(per_core.saturating_mul(cpu_count)),
        };
        capacity.set("pods", Quantity::from_units(pods));

        let mut with_pids = capacity.clone();
        with_pids.set("pid", Quantity::from_units(host.max_pids()?));
        Ok(Self {
            capacity,
            with_pids,
            memory_bytes,
            swap_bytes: signed(host.swap_bytes()?),
            online_cpus: cpus.to_string(),
        })
    }

    /// What pods may ask for.
    pub(crate) fn allocatable(&self, reservations: &NodeReservations) -> ResourceAmounts {
        compute_node_allocatable(&self.capacity, reservations)
    }

    /// What the cgroup of all pods may use: everything, unless reservations are enforced on it.
    pub(crate) fn pods_cgroup(
        &self,
        reservations: &NodeReservations,
        enforced: bool,
    ) -> ResourceAmounts {
        if enforced {
            compute_pods_cgroup_allocatable(&self.with_pids, reservations)
        } else {
            self.with_pids.clone()
        }
    }
}
