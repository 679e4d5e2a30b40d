use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{Quantity, ResourceAmounts, pod_requests};

/// A resource of which too little is left for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsufficientResource {
    /// `cpu`, `memory`, `ephemeral-storage`, `pods` or an extended resource.
    pub resource: String,
    /// What the pod asks for: thousandths for cpu, else whole units (bytes for memory).
    pub requested: i64,
    /// What the other active pods ask for.
    pub used: i64,
    /// What the node can give.
    pub capacity: i64,
}

impl InsufficientResource {
    /// The reason in the pod's status and event: `OutOfcpu`.
    pub fn reason(&self) -> String {
        format!("OutOf{}", self.resource)
    }

    /// How much would have to be freed for the pod to fit.
    pub fn shortfall(&self) -> i64 {
        self.requested.saturating_sub(self.capacity.saturating_sub(self.used))
    }
}

impl fmt::Display for InsufficientResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
            self.resource, self.requested, self.used, self.capacity
        )
    }
}

/// What `pod` lacks on a node that already has `active` pods (the pod itself not among them), in
/// the order in which upstream reports it; empty when it fits.
///
/// `allocatable` is the node's, with `pods`. An extended resource that the node does not know is
/// not asked for here: the scheduler placed the pod by a newer view of the node, or its plugin
/// comes later.
pub fn compute_insufficient_resources<'a>(
    pod: &Pod,
    active: impl IntoIterator<Item = &'a Pod>,
    allocatable: &ResourceAmounts,
) -> Vec<InsufficientResource> {
    let wanted = pod_requests(pod);
    let mut used = ResourceAmounts::default();
    let mut pods = 0i64;
    for other in active {
        pods += 1;
        for (name, amount) in pod_requests(other).iter() {
            used.set(name, used.get(name).unwrap_or(Quantity::ZERO) + amount);
        }
    }

    let mut insufficient = Vec::new();
    let mut check = |resource: &str, requested: i64, used: i64, capacity: i64| {
        if requested > 0 && requested > capacity.saturating_sub(used) {
            insufficient.push(InsufficientResource {
                resource: resource.to_owned(),
                requested,
                used,
                capacity,
            });
        }
    };
    check("pods", 1, pods, units(allocatable, "pods"));
    check("cpu", wanted.cpu_milli(), used.cpu_milli(), allocatable.cpu_milli());
    for resource in ["memory", "ephemeral-storage"] {
        check(
            resource,
            units(&wanted, resource),
            units(&used, resource),
            units(allocatable, resource),
        );
    }
    for (resource, amount) in wanted.iter() {
        let known = allocatable.get(resource).is_some();
        if is_scalar(resource) && (known || !is_extended(resource)) {
            check(resource, amount.value(), units(&used, resource), units(allocatable, resource));
        }
    }
    insufficient
}

fn units(amounts: &ResourceAmounts, resource: &str) -> i64 {
    amounts.get(resource).map_or(0, |amount| amount.value())
}

/// Counted one by one, beside the resources that every node has.
fn is_scalar(resource: &str) -> bool {
    !matches!(resource, "cpu" | "memory" | "ephemeral-storage" | "pods")
}

/// Offered by a device plugin or by hand: qualified by a domain other than Kubernetes' own.
fn is_extended(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io"))
        && !resource.starts_with("requests.")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(requests: Value) -> Pod {
        serde_json::from_value(
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}}),
        )
        .unwrap()
    }

    fn node() -> ResourceAmounts {
        let mut amounts = ResourceAmounts::default();
        for (name, amount) in [
            ("cpu", "4"),
            ("memory", "1Gi"),
            ("ephemeral-storage", "10Gi"),
            ("pods", "3"),
            ("example.com/gpu", "2"),
            ("hugepages-2Mi", "4Mi"),
        ] {
            amounts.set(name, amount.parse().unwrap());
        }
        amounts
    }

    fn lacks(requests: Value, active: &[Pod]) -> Vec<String> {
        compute_insufficient_resources(&pod(requests), active, &node())
            .iter()
            .map(|lack| format!("{}: {lack}", lack.reason()))
            .collect()
    }

    #[test]
    fn what_fits_and_what_does_not() {
        let none: [&str; 0] = [];
        let used = [pod(json!({"cpu": "3500m", "memory": "512Mi"}))];
        assert_eq!(lacks(json!({"cpu": "500m", "memory": "512Mi"}), &used), none);
        assert_eq!(
            lacks(json!({"cpu": "1"}), &used),
            ["OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 3500, \
              capacity: 4000"]
        );
        assert_eq!(
            lacks(json!({"memory": "1Gi", "ephemeral-storage": "20Gi"}), &used),
            [
                "OutOfmemory: Node didn't have enough resource: memory, requested: 1073741824, \
                 used: 536870912, capacity: 1073741824",
                "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, \
                 requested: 21474836480, used: 0, capacity: 10737418240",
            ]
        );
    }

    #[test]
    fn a_pod_that_asks_for_nothing_fits_an_overcommitted_node() {
        let used = [pod(json!({"cpu": "100"}))];
        assert!(lacks(json!({}), &used).is_empty());
    }

    #[test]
    fn the_number_of_pods_is_bounded() {
        let used = [pod(json!({})), pod(json!({})), pod(json!({}))];
        assert_eq!(
            lacks(json!({}), &used),
            [
                "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
            ]
        );
    }

    #[test]
    fn extended_resources_count_when_the_node_knows_them() {
        let used = [pod(json!({"example.com/gpu": "1"}))];
        assert!(lacks(json!({"example.com/gpu": "1"}), &used).is_empty());
        assert_eq!(
            lacks(json!({"example.com/gpu": "2"}), &used),
            ["OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, \
              requested: 2, used: 1, capacity: 2"]
        );
        assert!(lacks(json!({"example.com/unknown": "2"}), &used).is_empty());
        // Huge pages are no extended resource: a node without them has none to give.
        assert_eq!(lacks(json!({"hugepages-1Gi": "1Gi"}), &[]).len(), 1);
        assert!(lacks(json!({"hugepages-2Mi": "4Mi"}), &[]).is_empty());
    }

    #[test]
    fn shortfall_is_what_must_be_freed() {
        let lacks = compute_insufficient_resources(
            &pod(json!({"cpu": "1"})),
            &[pod(json!({"cpu": "3500m"}))],
            &node(),
        );
        assert_eq!(lacks[0].shortfall(), 500);
    }
}
