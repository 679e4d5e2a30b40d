//! Effective requests and limits of a pod, and the quality of service class that follows from them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::{ContainerKind, QosClass, Quantity, containers};

/// Amounts by resource name (`cpu`, `memory`, `hugepages-2Mi`, ...).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceAmounts(BTreeMap<String, Quantity>);

impl ResourceAmounts {
    /// Reads an API resource list. Values that are no quantities count as absent: validation has
    /// refused them before.
    pub fn from_api(list: Option<&BTreeMap<String, ApiQuantity>>) -> Self {
        Self(
            list.into_iter()
                .flatten()
                .filter_map(|(name, value)| Some((name.clone(), Quantity::try_from(value).ok()?)))
                .collect(),
        )
    }

    /// The amount of `resource`, if it is named.
    pub fn get(&self, resource: &str) -> Option<Quantity> {
        self.0.get(resource).copied()
    }

    /// Sets the amount of `resource`.
    pub fn set(&mut self, resource: &str, amount: Quantity) {
        self.0.insert(resource.to_owned(), amount);
    }

    /// CPU in thousandths of a core; 0 if not named.
    pub fn cpu_milli(&self) -> i64 {
        self.get("cpu").map_or(0, |quantity| quantity.milli_value())
    }

    /// Memory in bytes; 0 if not named.
    pub fn memory_bytes(&self) -> i64 {
        self.get("memory").map_or(0, |quantity| quantity.value())
    }

    /// All named resources with their amounts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Quantity)> {
        self.0.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    /// Nothing is named.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let entry = self.0.entry(name.clone()).or_insert(Quantity::ZERO);
            *entry = *entry + *amount;
        }
    }

    fn max(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let entry = self.0.entry(name.clone()).or_insert(*amount);
            *entry = (*entry).max(*amount);
        }
    }
}

/// Requests of one container; a limit without a request is its own request, as API defaulting does.
pub fn container_requests(container: &Container) -> ResourceAmounts {
    let resources = container.resources.as_ref();
    let mut requests = ResourceAmounts::from_api(resources.and_then(|r| r.requests.as_ref()));
    let limits = container_limits(container);
    for (name, amount) in limits.0 {
        requests.0.entry(name).or_insert(amount);
    }
    requests
}

/// Limits of one container.
pub fn container_limits(container: &Container) -> ResourceAmounts {
    ResourceAmounts::from_api(container.resources.as_ref().and_then(|r| r.limits.as_ref()))
}

/// Effective requests of the pod: the larger of what all regular containers and sidecars need
/// together and what the hungriest moment of initialisation needs, plus overhead; pod-level
/// requests win (KEP-753 for sidecars, KEP-2837 for pod-level resources).
pub fn pod_requests(pod: &Pod) -> ResourceAmounts {
    effective(pod, container_requests, |resources| resources.requests.as_ref(), true)
}

/// Effective limits of the pod, computed alike. Overhead raises only limits that are named.
pub fn pod_limits(pod: &Pod) -> ResourceAmounts {
    effective(pod, container_limits, |resources| resources.limits.as_ref(), false)
}

fn effective(
    pod: &Pod,
    of_container: impl Fn(&Container) -> ResourceAmounts,
    of_pod: impl Fn(&ResourceRequirements) -> Option<&BTreeMap<String, ApiQuantity>>,
    overhead_names_resources: bool,
) -> ResourceAmounts {
    let mut running = ResourceAmounts::default();
    let mut sidecars = ResourceAmounts::default();
    let mut init_peak = ResourceAmounts::default();
    for spec in containers(pod) {
        let amounts = of_container(&spec.container);
        match spec.kind {
            ContainerKind::Regular => running.add(&amounts),
            ContainerKind::Sidecar => {
                running.add(&amounts);
                sidecars.add(&amounts);
                init_peak.max(&sidecars);
            }
            ContainerKind::Init => {
                let mut moment = amounts;
                moment.add(&sidecars);
                init_peak.max(&moment);
            }
            ContainerKind::Ephemeral => {}
        }
    }
    running.max(&init_peak);
    let spec = pod.spec.as_ref();
    let pod_level =
        ResourceAmounts::from_api(spec.and_then(|spec| spec.resources.as_ref()).and_then(of_pod));
    for (name, amount) in pod_level.0 {
        running.0.insert(name, amount);
    }
    let overhead = ResourceAmounts::from_api(spec.and_then(|spec| spec.overhead.as_ref()));
    for (name, amount) in overhead.0 {
        match running.0.get_mut(&name) {
            Some(entry) => *entry = *entry + amount,
            None if overhead_names_resources => {
                running.0.insert(name, amount);
            }
            None => {}
        }
    }
    running
}

/// The pod's quality of service class.
pub fn pod_qos_class(pod: &Pod) -> QosClass {
    let pod_level = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    if let Some(resources) = pod_level
        && (resources.requests.is_some() || resources.limits.is_some())
    {
        let limits = ResourceAmounts::from_api(resources.limits.as_ref());
        let mut requests = ResourceAmounts::from_api(resources.requests.as_ref());
        for (name, amount) in &limits.0 {
            requests.0.entry(name.clone()).or_insert(*amount);
        }
        return class_of(std::iter::once((requests, limits)));
    }
    class_of(
        containers(pod)
            .filter(|spec| spec.kind != ContainerKind::Ephemeral)
            .map(|spec| (container_requests(&spec.container), container_limits(&spec.container))),
    )
}

fn class_of(amounts: impl Iterator<Item = (ResourceAmounts, ResourceAmounts)>) -> QosClass {
    let positive = |amounts: &ResourceAmounts, name: &str| {
        amounts.get(name).filter(|quantity| *quantity > Quantity::ZERO)
    };
    let mut asks = false;
    let mut guaranteed = true;
    for (requests, limits) in amounts {
        for name in ["cpu", "memory"] {
            let (request, limit) = (positive(&requests, name), positive(&limits, name));
            asks |= request.is_some() || limit.is_some();
            guaranteed &= limit.is_some() && request == limit;
        }
    }
    match (asks, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({ "spec": spec })).unwrap()
    }

    fn container(requests: serde_json::Value, limits: serde_json::Value) -> serde_json::Value {
        serde_json::json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn sidecars_count_beside_init_and_regular_containers() {
        let mut sidecar = container(serde_json::json!({"cpu": "100m"}), serde_json::json!({}));
        sidecar["restartPolicy"] = "Always".into();
        let pod = pod(serde_json::json!({
            "initContainers": [
                container(serde_json::json!({"cpu": "500m"}), serde_json::json!({})),
                sidecar,
                container(serde_json::json!({"cpu": "450m"}), serde_json::json!({})),
            ],
            "containers": [container(serde_json::json!({"cpu": "300m"}), serde_json::json!({}))],
            "overhead": {"cpu": "10m"},
        }));
        // The second init container runs beside the sidecar: 550m, above the 400m of the running pod.
        assert_eq!(pod_requests(&pod).cpu_milli(), 560);
    }

    #[test]
    fn qos_classes() {
        let both = serde_json::json!({"cpu": "1", "memory": "1Gi"});
        for (requests, limits, expected) in [
            (serde_json::json!({}), serde_json::json!({}), QosClass::BestEffort),
            (serde_json::json!({}), both.clone(), QosClass::Guaranteed),
            (both.clone(), both.clone(), QosClass::Guaranteed),
            (both.clone(), serde_json::json!({}), QosClass::Burstable),
            (serde_json::json!({"cpu": "500m"}), both.clone(), QosClass::Burstable),
            (serde_json::json!({}), serde_json::json!({"cpu": "1"}), QosClass::Burstable),
            (serde_json::json!({"cpu": "0"}), serde_json::json!({}), QosClass::BestEffort),
        ] {
            let pod = pod(serde_json::json!({"containers": [container(requests, limits)]}));
            assert_eq!(pod_qos_class(&pod), expected, "{pod:?}");
        }
    }

    #[test]
    fn one_container_without_limits_makes_the_pod_burstable() {
        let both = serde_json::json!({"cpu": "1", "memory": "1Gi"});
        let pod = pod(serde_json::json!({"containers": [
            container(both.clone(), both),
            container(serde_json::json!({}), serde_json::json!({})),
        ]}));
        assert_eq!(pod_qos_class(&pod), QosClass::Burstable);
    }
}
