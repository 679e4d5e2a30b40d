use std::collections::BTreeSet;

use rubelet_types::{Quantity, ResourceAmounts};

use crate::pod_cgroup::hugepage_amounts;
use crate::{CgroupValues, PageSize, cpu_shares_from_milli};

/// What is kept from pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReservations {
    /// `systemReserved` (cpu, memory, ephemeral-storage, pid).
    pub system: ResourceAmounts,
    /// `kubeReserved`, likewise.
    pub kube: ResourceAmounts,
    /// The hard eviction thresholds of memory and ephemeral-storage as amounts.
    pub eviction_hard: ResourceAmounts,
}

/// A hard eviction threshold (`100Mi`, `10%`) of a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EvictionThreshold {
    /// An amount.
    Amount(Quantity),
    /// A share of the capacity, 0.0..=1.0.
    Fraction(f64),
}

impl EvictionThreshold {
    /// The amount that must stay free of a resource of which the node has `capacity`, in whole
    /// units (bytes).
    pub fn of_capacity(&self, capacity: Quantity) -> Quantity {
        match self {
            Self::Amount(amount) => *amount,
            // Sizes lie far below 2^53, where doubles are exact, and shares are not above one.
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            Self::Fraction(fraction) => {
                Quantity::from_bytes((capacity.value() as f64 * fraction) as i64)
            }
        }
    }
}

/// What hard eviction thresholds keep from pods: `memory` for `memory.available`,
/// `ephemeral-storage` for `nodefs.available`.
pub fn compute_eviction_reservation(
    memory_available: Option<EvictionThreshold>,
    nodefs_available: Option<EvictionThreshold>,
    capacity: &ResourceAmounts,
) -> ResourceAmounts {
    let mut reserved = ResourceAmounts::default();
    for (resource, threshold) in
        [("memory", memory_available), ("ephemeral-storage", nodefs_available)]
    {
        if let (Some(threshold), Some(capacity)) = (threshold, capacity.get(resource)) {
            reserved.set(resource, threshold.of_capacity(capacity));
        }
    }
    reserved
}

/// Reservations above what the node has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid Node Allocatable configuration. {}", describe(.resources))]
pub struct OverReserved {
    /// Resource, reserved amount, capacity.
    pub resources: Vec<(String, Quantity, Quantity)>,
}

fn describe(resources: &[(String, Quantity, Quantity)]) -> String {
    let sentences: Vec<String> = resources
        .iter()
        .map(|(name, reserved, capacity)| {
            format!(
                "Resource {name:?} has a reservation of {reserved} but capacity of {capacity}. \
                 Expected capacity >= reservation."
            )
        })
        .collect();
    sentences.join(" ")
}

/// Allocatable of the node as its status shows it: capacity minus both reservations and the hard
/// eviction thresholds, never below zero; memory that huge pages hold is not memory for pods.
pub fn compute_node_allocatable(
    capacity: &ResourceAmounts,
    reservations: &NodeReservations,
) -> ResourceAmounts {
    let mut left = subtract(
        capacity,
        &[&reservations.system, &reservations.kube, &reservations.eviction_hard],
    );
    if let Some(memory) = left.get("memory") {
        let hugepages: Quantity = left
            .iter()
            .filter(|(name, _)| PageSize::from_resource_name(name).is_some())
            .map(|(_, amount)| amount)
            .sum();
        left.set("memory", (memory - hugepages).max(Quantity::ZERO));
    }
    left
}

/// What the cgroup of all pods may use: capacity minus both reservations. The eviction thresholds
/// stay in it, so that the kubelet can evict before the kernel kills, and so does the memory that
/// huge pages hold, as upstream has it. `capacity` includes `pid`.
pub fn compute_pods_cgroup_allocatable(
    capacity: &ResourceAmounts,
    reservations: &NodeReservations,
) -> ResourceAmounts {
    subtract(capacity, &[&reservations.system, &reservations.kube])
}

fn subtract(capacity: &ResourceAmounts, reserved: &[&ResourceAmounts]) -> ResourceAmounts {
    let mut result = ResourceAmounts::default();
    for (name, amount) in capacity.iter() {
        let left = reserved
            .iter()
            .filter_map(|amounts| amounts.get(name))
            .fold(amount, |left, taken| left - taken);
        result.set(name, left.max(Quantity::ZERO));
    }
    result
}

/// All that is reserved of each resource that the node has: both reservations and the eviction
/// thresholds; resources of which nothing is reserved are left out.
pub fn compute_node_reservation(
    capacity: &ResourceAmounts,
    reservations: &NodeReservations,
) -> ResourceAmounts {
    let mut result = ResourceAmounts::default();
    for (name, _) in capacity.iter() {
        let total: Quantity =
            [&reservations.system, &reservations.kube, &reservations.eviction_hard]
                .iter()
                .filter_map(|amounts| amounts.get(name))
                .sum();
        if !total.is_zero() {
            result.set(name, total);
        }
    }
    result
}

/// Checks that no more is reserved than there is.
///
/// # Errors
/// Names every resource that is reserved beyond its capacity.
pub fn check_reservations(
    capacity: &ResourceAmounts,
    reservations: &NodeReservations,
) -> Result<(), OverReserved> {
    let resources: Vec<_> = compute_node_reservation(capacity, reservations)
        .iter()
        .filter_map(|(name, reserved)| {
            let capacity = capacity.get(name)?;
            (reserved > capacity).then(|| (name.to_owned(), reserved, capacity))
        })
        .collect();
    if resources.is_empty() { Ok(()) } else { Err(OverReserved { resources }) }
}

/// Values of a cgroup that is bounded by these amounts: the cgroup of all pods by what they may use,
/// or a system daemon's cgroup by its reservation. Only the named resources are bounded;
/// `compressible_only` leaves CPU alone of them.
pub fn compute_reserved_cgroup_values(
    amounts: &ResourceAmounts,
    compressible_only: bool,
) -> CgroupValues {
    let named: BTreeSet<&str> = amounts.iter().map(|(name, _)| name).collect();
    let mut values = CgroupValues::default();
    if named.contains("cpu") {
        values.cpu_shares = Some(cpu_shares_from_milli(amounts.cpu_milli()));
    }
    if compressible_only {
        return values;
    }
    if named.contains("memory") {
        values.memory_limit = Some(amounts.memory_bytes());
    }
    values.pids_limit = amounts.get("pid").map(|pids| pids.value());
    values.hugepage_limits = Some(hugepage_amounts(amounts));
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(list: &[(&str, &str)]) -> ResourceAmounts {
        let mut amounts = ResourceAmounts::default();
        for (name, amount) in list {
            amounts.set(name, amount.parse().unwrap());
        }
        amounts
    }

    fn node() -> (ResourceAmounts, NodeReservations) {
        (
            amounts(&[
                ("cpu", "10"),
                ("memory", "10Gi"),
                ("hugepages-2Mi", "1Gi"),
                ("ephemeral-storage", "100Gi"),
                ("pods", "110"),
                ("pid", "32768"),
            ]),
            NodeReservations {
                system: amounts(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "1000")]),
                kube: amounts(&[("cpu", "250m"), ("memory", "512Mi"), ("example.com/x", "1")]),
                eviction_hard: amounts(&[("memory", "100Mi"), ("ephemeral-storage", "10Gi")]),
            },
        )
    }

    #[test]
    fn allocatable_is_what_is_left() {
        let (capacity, reservations) = node();
        assert_eq!(
            compute_node_allocatable(&capacity, &reservations),
            amounts(&[
                ("cpu", "9250m"),
                ("memory", "7580Mi"), // 10240 - 1024 - 512 - 100 - 1024
                ("hugepages-2Mi", "1Gi"),
                ("ephemeral-storage", "90Gi"),
                ("pods", "110"),
                ("pid", "31768"),
            ])
        );
    }

    #[test]
    fn the_cgroup_of_all_pods_ignores_eviction_thresholds_and_huge_pages() {
        let (capacity, reservations) = node();
        let allocatable = compute_pods_cgroup_allocatable(&capacity, &reservations);
        assert_eq!(
            compute_reserved_cgroup_values(&allocatable, false),
            CgroupValues {
                cpu_shares: Some(9472),
                memory_limit: Some(8704 << 20), // 10240 - 1024 - 512
                pids_limit: Some(31_768),
                hugepage_limits: Some([(PageSize(2 << 20), 1 << 30)].into()),
                ..CgroupValues::default()
            }
        );
    }

    #[test]
    fn thresholds_as_amounts() {
        let (capacity, _) = node();
        let reserved = compute_eviction_reservation(
            Some(EvictionThreshold::Amount("100Mi".parse().unwrap())),
            Some(EvictionThreshold::Fraction(0.1)),
            &capacity,
        );
        assert_eq!(reserved, amounts(&[("memory", "100Mi"), ("ephemeral-storage", "10Gi")]));
        assert!(compute_eviction_reservation(None, None, &capacity).is_empty());
        let nothing_known = ResourceAmounts::default();
        let threshold = Some(EvictionThreshold::Fraction(0.1));
        assert!(compute_eviction_reservation(threshold, threshold, &nothing_known).is_empty());
    }

    #[test]
    fn nothing_goes_below_zero() {
        let capacity = amounts(&[("cpu", "1"), ("memory", "1Gi"), ("hugepages-1Gi", "2Gi")]);
        let reservations =
            NodeReservations { system: amounts(&[("cpu", "2")]), ..NodeReservations::default() };
        let allocatable = compute_node_allocatable(&capacity, &reservations);
        assert_eq!(allocatable.cpu_milli(), 0);
        assert_eq!(allocatable.memory_bytes(), 0);
    }

    #[test]
    fn compressible_enforcement_bounds_cpu_alone() {
        let values =
            compute_reserved_cgroup_values(&amounts(&[("cpu", "1"), ("memory", "1Gi")]), true);
        assert_eq!(values, CgroupValues { cpu_shares: Some(1024), ..CgroupValues::default() });
    }

    #[test]
    fn reserving_more_than_there_is() {
        let (capacity, mut reservations) = node();
        assert_eq!(check_reservations(&capacity, &reservations), Ok(()));
        reservations.system.set("memory", "10Gi".parse().unwrap());
        let error = check_reservations(&capacity, &reservations).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of \
             10852Mi but capacity of 10Gi. Expected capacity >= reservation."
        );
    }
}
