//! The cgroup tree of pods and the node's own resources.
//!
//! What: checks the machine at start, keeps the cgroups of all pods, of the quality of service
//! tiers and of each pod, enforces what is reserved for the system, and answers what a container
//! may use. Not here: which values those are (`rubelet-node-resources`), how they are written
//! (`rubelet-linux`), or which pods there should be (the caller says).
//!
//! ```text
//! <cgroup root>/kubepods                 memory, cpu, pids: what pods may use of the node
//!     pod<uid>                           guaranteed pods
//!     burstable                          cpu: what its pods ask for together
//!         pod<uid>
//!     besteffort                         cpu: the least
//!         pod<uid>
//! ```
//!
//! All state is the kernel's: a new kubelet finds what the last one made. Processes and cgroups of
//! running pods are never touched at start.

mod capacity;
mod manager;
mod metrics;
mod pod_cgroups;
mod setup;
#[cfg(test)]
mod tests;
mod tree;

pub use manager::{
    ContainerManager, ContainerManagerError, ContainerManagerSettings, Enforcement, PodCgroup,
};
pub use metrics::CgroupMetrics;
pub use setup::{SetupError, SetupWarning};
pub use tree::{CgroupDriver, TreeError};
