//! The Node object: registration, status, conditions, and the lease that says "still alive".
//!
//! What: pure functions that make a [`Node`](k8s_openapi::api::core::v1::Node) out of
//! [`NodeSettings`] and [`NodeFacts`], compare two of them and say what to write and which events a
//! step from one to the other is worth; and the loops around them: [`NodeStatusManager`] registers
//! the node and keeps its status true, [`NodeLease`] renews the lease, [`keep_runtime_facts`] and
//! [`keep_pod_cidr`] speak with the container runtime, so that a runtime that hangs delays no
//! heartbeat.
//!
//! ```text
//!  runtime status, pressure, devices, volumes, shutdown ─▶ NodeInputs ─┐
//!  procfs, sysfs, interfaces, DNS ─▶ FactsSource ──────────────────────┴▶ NodeFacts
//!                                                                            │ compute_node
//!  API server ◀── patch ── NodeStatusManager ◀───────────────────────────────┘
//!                                  │ NodeHandle
//!                                  └▶ admission, pods' host addresses, the server
//! ```
//!
//! Guarantees: nothing is written at rest but the report that is due; a change of what matters is
//! written at once; each transition is one event; a Node that somebody deleted stays deleted until
//! the next start; without an API server the Node is computed all the same, for the kubelet's own use.
//!
//! Not here: when memory, disks or process ids run short (an eviction manager says so through
//! [`NodeInputs`]), taints for conditions (the control plane sets them), the watch of the Node
//! (whoever implements [`NodeApi`] keeps it).

mod addresses;
mod api;
mod api_server;
mod compute;
mod conditions;
mod declared_features;
mod diff;
mod facts;
mod gather;
mod handle;
mod inputs;
mod lease;
mod manager;
mod metrics;
mod network;
mod reconcile;
mod report;
mod runtime;
mod runtime_health;
mod settings;
mod transitions;

pub use addresses::{
    AddressError, NodeIpError, choose_addresses, choose_default_address, node_host_ips,
};
pub use api::{NodeApi, NodeApiError, NodeApiErrorKind};
pub use api_server::ApiServerNodes;
pub use compute::{
    ComputedNode, build_initial_node, compute_node, compute_node_status, node_without_status,
};
pub use declared_features::declared_features;
pub use diff::{diff_needs_write, node_status_patch};
pub use facts::{
    DeviceResources, HostAddresses, ImageFacts, MachineFacts, NodeConditionsInput, NodeFacts,
    NodePressure, RuntimeFacts, RuntimeHandlerFacts,
};
pub use gather::{FactsSource, NodeResources};
pub use handle::{NodeHandle, NodeOrigin, PublishedNode};
pub use inputs::NodeInputs;
pub use lease::NodeLease;
pub use manager::{NodeStatusManager, NodeStatusParts};
pub use metrics::NodeStartupMetrics;
pub use network::{MachineNetwork, NodeNetwork};
pub use reconcile::reconcile_existing_node;
pub use report::ReportSchedule;
pub use runtime::{keep_pod_cidr, keep_runtime_facts};
pub use settings::{NodeSettings, NodeStatusTiming, go_architecture};
pub use transitions::{Announcements, transition_events};
