//! Who gets which CPU and memory: cgroup names and values, OOM scores, admission arithmetic, and how
//! that changes while a pod runs.
//!
//! What: pure functions from a pod, its containers and the node's figures to plain values.
//! Not here: reading the node, writing cgroups, or keeping who got what over time.

mod admission;
mod cgroup_name;
mod cgroup_values;
mod container_resources;
mod memory_qos;
mod node_allocatable;
mod oom_score;
mod page_size;
mod pod_cgroup;
mod pod_resources;
mod resize;
mod resize_order;

pub use admission::{InsufficientResource, compute_insufficient_resources};
pub use cgroup_name::{CgroupName, InvalidCgroupName};
pub use cgroup_values::{
    CgroupValues, DEFAULT_CFS_PERIOD_MICROS, MAX_CPU_SHARES, MIN_CFS_QUOTA_MICROS, MIN_CPU_SHARES,
    cpu_quota_from_milli, cpu_shares_from_milli, cpu_shares_from_weight, cpu_weight_from_shares,
};
pub use container_resources::{
    ContainerResourceRules, HugepageLimit, LinuxResources, SwapBehavior,
    compute_container_resources, compute_overhead_resources, compute_sandbox_resources,
    container_swap_behavior,
};
pub use node_allocatable::{
    EvictionThreshold, NodeReservations, OverReserved, check_reservations,
    compute_eviction_reservation, compute_node_allocatable, compute_node_reservation,
    compute_pods_cgroup_allocatable, compute_reserved_cgroup_values,
};
pub use oom_score::{KUBELET_OOM_SCORE_ADJ, compute_oom_score_adj};
pub use page_size::PageSize;
pub use pod_cgroup::{
    PodCgroupRules, QosCgroupValues, QosReservation, compute_pod_cgroup_values,
    compute_qos_cgroup_values,
};
pub use pod_resources::{PodResources, ResizeRules, same_amounts, with_limits_of_pod};
pub use resize::{
    ContainerChanges, MemoryLimits, ResizableResource, ResizePlan, ResizeStep,
    compute_container_changes, needs_restart, plan_resize,
};
pub use resize_order::{WaitingResize, compare_waiting_resizes};
