//! The words of the kubelet: what every other crate means when it says pod, sandbox, snapshot,
//! reason, quantity or path.
//!
//! What: plain data and total functions on it. Not here: I/O, clocks, tasks, or any decision that
//! belongs to one subsystem.

mod api_object;
mod clock;
mod cpu_and_memory;
mod cpu_set;
mod downward;
mod error_chain;
mod event;
mod expansion;
mod go_format;
mod hash;
mod ids;
pub mod labels;
mod paths;
mod pod;
mod probe;
mod quantity;
pub mod reasons;
mod restart;
mod runtime;

pub use api_object::{Fetched, ObjectKind};
pub use clock::Clock;
pub use cpu_and_memory::{
    ResourceAmounts, container_limits, container_requests, pod_limits, pod_qos_class, pod_requests,
};
pub use cpu_set::{CpuSet, ParseCpuSetError};
pub use downward::{ResourceFieldError, pod_metadata_field, resource_field_value};
pub use error_chain::error_chain;
pub use event::{Event, EventObject, EventRecorder, EventType};
pub use expansion::expand;
pub use go_format::{format_go_duration, quote_go};
pub use hash::{container_hash, fnv1a_32, fnv1a_128, go_json_object};
pub use ids::{ContainerId, PodFullName, PodRef, PodUid, SandboxId};
pub use paths::{NodePaths, UnsafePathElement};
pub use pod::{
    ContainerKind, ContainerSpec, QosClass, RestartPolicy, config_source, containers,
    find_container, is_critical_pod, is_host_network, is_mirror_pod, is_static_pod,
    is_terminal_phase, pod_annotation, pod_ref, pod_restart_policy, termination_grace_seconds,
};
pub use probe::{ProbeKind, ProbeResult, ProbeUpdate};
pub use quantity::{ParseQuantityError, Quantity};
pub use restart::{container_restarts_after, exit_restarts_all_containers};
pub use runtime::{
    ContainerAnnotations, ContainerResources, ContainerSnapshot, ContainerState, ContainerUser,
    PodSnapshot, SandboxSnapshot, SandboxState,
};
