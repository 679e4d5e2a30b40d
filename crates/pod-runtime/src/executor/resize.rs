//! Other resources for what runs.

use rubelet_node_resources::LinuxResources;
use rubelet_types::{ContainerId, SandboxId};

use super::PodRuntime;
use crate::container_config::linux_resources;
use crate::failure::RuntimeFailure;

impl PodRuntime {
    /// Gives a running container these resources. What is 0 or empty among them stays.
    ///
    /// # Errors
    ///
    /// The runtime refuses.
    pub async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: LinuxResources,
    ) -> Result<(), RuntimeFailure> {
        Ok(self.cri.update_container_resources(id, linux_resources(resources)).await?)
    }

    /// Tells the runtime what the pod around a sandbox is about to get. A runtime that does not want
    /// to know is no error.
    ///
    /// # Errors
    ///
    /// The runtime refuses: the pod must not get it.
    pub async fn announce_pod_resources(
        &self,
        id: &SandboxId,
        overhead: LinuxResources,
        resources: LinuxResources,
    ) -> Result<(), RuntimeFailure> {
        let (overhead, resources) = (linux_resources(overhead), linux_resources(resources));
        Ok(self.cri.update_pod_sandbox_resources(id, Some(overhead), Some(resources)).await?)
    }

    /// Memory that a container uses, in bytes; none if the runtime does not know.
    ///
    /// # Errors
    ///
    /// The runtime cannot tell.
    pub async fn container_memory_usage(
        &self,
        id: &ContainerId,
    ) -> Result<Option<u64>, RuntimeFailure> {
        let stats = self.cri.container_stats(id).await?;
        let usage = stats.and_then(|stats| stats.memory?.usage_bytes);
        Ok(usage.map(|usage| usage.value))
    }
}
