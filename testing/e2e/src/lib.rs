//! Reality for tests and for the demo: a private containerd, kubelet processes, and what is needed
//! to look at them and to leave nothing behind.
//!
//! # Isolation
//!
//! Everything runs in its own mount, network and process namespaces ([`Namespaces`]). Its first
//! process holds a pipe to us: when we end, however we end, it ends, and the kernel takes every
//! process, mount, bridge and network namespace in there with it. What is left then is a directory
//! and a cgroup sub-tree, both named in an [`Owner`] record that [`sweep`] reads. The containerd
//! and kubelet of the machine are not touched, and several sets run side by side.
//!
//! # Assumptions
//!
//! Root, and the tools that `cargo xtask setup` installs or builds ([`Tools::find`] says what is
//! missing).

mod cache;
mod cgroups;
mod cluster;
mod diary;
mod events;
mod forward;
mod http;
mod kubelet;
mod leftovers;
pub mod manifest;
mod manifest_server;
mod namespaces;
mod network;
mod owner;
mod pods;
mod registry;
pub mod runner;
mod runtime;
mod wait;

pub use cache::{Cache, Missing, RuntimeKind, Tools, find_go_kubelet};
pub use cluster::{Cluster, ClusterOptions};
pub use diary::{Diary, DiaryEntry, uptime};
pub use events::EventView;
pub use kubelet::{KubeletOptions, KubeletProcess, ProcessUsage};
pub use leftovers::{leftovers, pod_leftovers};
pub use manifest_server::ManifestServer;
pub use namespaces::{Lifetime, Namespaces, process_cpu};
pub use network::{Hub, NodeNetwork};
pub use owner::{Owner, sweep, sweep_abandoned};
pub use pods::{ContainerView, PodView, find_container_processes, kill_container};
pub use registry::Registry;
pub use runtime::{Runtime, RuntimeOptions};
pub use wait::{Deadline, wait_closely, wait_for};
