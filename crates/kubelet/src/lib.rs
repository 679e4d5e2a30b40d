//! The Kubernetes node agent.
//!
//! What: the one composition root. [`assemble`] wires all managers on what an environment gives, a
//! node or a simulation. [`run`] takes an effective configuration through the phases of a start on
//! a node (lock, directories, servers, runtime, container manager, the kubelet itself), and back
//! down at shutdown.
//!
//! Guarantees: constructors neither spawn nor do I/O; the phases do, in order. A shutdown leaves the
//! pods as they are: the next kubelet finds them by looking.
//!
//! Not here: decisions (the brain crates), and what one manager does by itself.

mod access;
mod admission;
mod cluster;
mod container_logs;
mod containers;
mod credentials;
mod environment;
mod executor;
mod image_volumes;
mod iptables;
mod logging;
mod metrics;
mod mounts;
mod node;
mod pod_admission;
mod pods;
mod prepare;
mod resize;
mod rest;
mod runtime_classes;
mod runtime_state;
mod sandboxes;
mod server_state;
mod servers;
mod settings;
mod start;
mod sync_handler;
mod version;
mod why;
mod wiring;

pub use cluster::ClusterParts;
pub use metrics::OtherMetrics;
pub use node::Node;
pub use rubelet_config::{Effective, Invocation};
pub use start::run;
pub use version::version_text;
pub use wiring::{
    Kubelet, KubeletView, Parts, assemble, credential_providers, event_recorder, pod_sources,
    start_container_manager,
};
