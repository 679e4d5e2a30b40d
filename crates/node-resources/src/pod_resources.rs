//! The resources of one pod as one value: what it was granted, or what is in force of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_types::ResourceAmounts;

/// Which of a pod's resources can be changed while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeRules {
    /// Those of init containers that end by themselves
    /// (`InPlacePodVerticalScalingInitContainers`). Sidecars and regular containers always can.
    pub init_containers: bool,
    /// Those of the pod as a whole (`InPlacePodLevelResourcesVerticalScaling`).
    pub pod_level: bool,
}

/// Requests and limits of a pod's containers, and of the pod as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodResources {
    /// `spec.resources`.
    pub pod_level: Option<ResourceRequirements>,
    /// Those of each container that can be resized, by name.
    pub containers: BTreeMap<String, ResourceRequirements>,
}

impl Default for ResizeRules {
    /// As feature gates have it by default.
    fn default() -> Self {
        Self { init_containers: true, pod_level: true }
    }
}

impl PodResources {
    /// What the spec of `pod` names.
    pub fn of(pod: &Pod, rules: ResizeRules) -> Self {
        let pod_level = pod.spec.as_ref().and_then(|spec| spec.resources.clone());
        let containers = resizable(pod, rules)
            .map(|container| {
                (container.name.clone(), container.resources.clone().unwrap_or_default())
            })
            .collect();
        Self { pod_level, containers }
    }

    /// The amounts are the same, however they are written.
    pub fn means_same(&self, other: &Self) -> bool {
        let no_resources = ResourceRequirements::default();
        let of = |resources: &Option<ResourceRequirements>| resources.clone().unwrap_or_default();
        same_amounts(&of(&self.pod_level), &of(&other.pod_level))
            && self.containers.keys().chain(other.containers.keys()).all(|name| {
                let [a, b] = [self, other]
                    .map(|resources| resources.containers.get(name).unwrap_or(&no_resources));
                same_amounts(a, b)
            })
    }

    /// `pod` with these resources in place of those that its spec names; none if they mean the same.
    /// Containers that are not named here keep theirs.
    pub fn applied_to(&self, pod: &Pod, rules: ResizeRules) -> Option<Pod> {
        let mut wanted = Self::of(pod, rules);
        wanted.containers.retain(|name, _| self.containers.contains_key(name));
        let mut granted = self.clone();
        granted.containers.retain(|name, _| wanted.containers.contains_key(name));
        if granted.means_same(&wanted) {
            return None;
        }
        let mut pod = pod.clone();
        let spec = pod.spec.as_mut()?;
        spec.resources.clone_from(&self.pod_level);
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(spec.containers.iter_mut()) {
            if let Some(resources) = granted.containers.remove(&container.name) {
                container.resources = Some(resources);
            }
        }
        Some(pod)
    }
}

/// The containers of `pod` that can be resized.
fn resizable(pod: &Pod, rules: ResizeRules) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map_or(&[][..], |spec| &spec.containers);
    let is_sidecar = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    init.iter().filter(move |it| rules.init_containers || is_sidecar(it)).chain(regular)
}

/// The same with the limits of the pod for containers that have none of their own: so the Go kubelet
/// keeps what is in force.
pub fn with_limits_of_pod(mut resources: PodResources) -> PodResources {
    let of_pod = resources.pod_level.as_ref().and_then(|level| level.limits.clone());
    for (name, amount) in of_pod.into_iter().flatten() {
        if !matches!(name.as_str(), "cpu" | "memory") {
            continue;
        }
        for container in resources.containers.values_mut() {
            let limits = container.limits.get_or_insert_default();
            let own = ResourceAmounts::from_api(Some(limits)).get(&name);
            if own.is_none_or(|own| own.is_zero()) {
                limits.insert(name.clone(), amount.clone());
            }
        }
    }
    resources
}

/// Requests and limits are the same amounts. An empty list is none.
pub fn same_amounts(a: &ResourceRequirements, b: &ResourceRequirements) -> bool {
    let amounts =
        |list: &Option<BTreeMap<String, ApiQuantity>>| ResourceAmounts::from_api(list.as_ref());
    amounts(&a.requests) == amounts(&b.requests) && amounts(&a.limits) == amounts(&b.limits)
}

/// `resources` with everything that concerns `resource` taken from `other`.
pub(crate) fn with_resource_of(
    resources: &ResourceRequirements,
    other: &ResourceRequirements,
    resource: &str,
) -> ResourceRequirements {
    let mixed = |list: &Option<BTreeMap<String, ApiQuantity>>,
                 other: &Option<BTreeMap<String, ApiQuantity>>| {
        let mut list = list.clone().unwrap_or_default();
        match other.as_ref().and_then(|other| other.get(resource)) {
            Some(amount) => list.insert(resource.to_owned(), amount.clone()),
            None => list.remove(resource),
        };
        Some(list).filter(|list| !list.is_empty())
    };
    ResourceRequirements {
        claims: resources.claims.clone(),
        limits: mixed(&resources.limits, &other.limits),
        requests: mixed(&resources.requests, &other.requests),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RULES: ResizeRules = ResizeRules { init_containers: false, pod_level: true };

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn resources(cpu: &str) -> Value {
        json!({"requests": {"cpu": cpu}})
    }

    fn three(init: &str, sidecar: &str, regular: &str) -> Pod {
        pod(json!({
            "initContainers": [
                {"name": "i", "resources": resources(init)},
                {"name": "s", "restartPolicy": "Always", "resources": resources(sidecar)},
            ],
            "containers": [{"name": "c", "resources": resources(regular)}],
        }))
    }

    #[test]
    fn equal_amounts_are_no_change_however_written() {
        let granted = PodResources::of(&three("1", "1000m", "0.5"), RULES);
        assert_eq!(granted.applied_to(&three("7", "1", "500m"), RULES), None);
        let none = PodResources::of(&pod(json!({"containers": [{"name": "c"}]})), RULES);
        let empty = json!({"containers": [{"name": "c", "resources": {"limits": {}}}]});
        assert_eq!(none.applied_to(&pod(empty), RULES), None);
    }

    #[test]
    fn granted_resources_replace_those_of_the_spec() {
        let granted = PodResources::of(&three("1", "2", "3"), RULES);
        let applied = granted.applied_to(&three("4", "5", "6"), RULES).unwrap();
        assert_eq!(applied, three("4", "2", "3"), "init containers are as the spec has them");
        let all = ResizeRules { init_containers: true, ..RULES };
        let granted = PodResources::of(&three("1", "2", "3"), all);
        assert_eq!(granted.applied_to(&three("4", "5", "6"), all).unwrap(), three("1", "2", "3"));
    }

    #[test]
    fn the_pod_as_a_whole_counts() {
        let whole = |cpu: &str| pod(json!({"resources": resources(cpu), "containers": []}));
        let granted = PodResources::of(&whole("1"), RULES);
        assert_eq!(granted.applied_to(&whole("1000m"), RULES), None);
        assert_eq!(granted.applied_to(&whole("2"), RULES).unwrap(), whole("1"));
    }

    #[test]
    fn what_is_not_known_stays() {
        let granted = PodResources::default();
        assert_eq!(granted.applied_to(&three("1", "2", "3"), RULES), None);
    }

    #[test]
    fn limits_of_the_pod_are_those_of_containers_without() {
        let pod = pod(json!({
            "resources": {"limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "4Mi"}},
            "containers": [
                {"name": "a"},
                {"name": "b", "resources": {"limits": {"cpu": "1"}}},
            ],
        }));
        let filled = with_limits_of_pod(PodResources::of(&pod, RULES));
        let limits = |name: &str| serde_json::to_value(&filled.containers[name].limits).unwrap();
        assert_eq!(limits("a"), json!({"cpu": "2", "memory": "1Gi"}));
        assert_eq!(limits("b"), json!({"cpu": "1", "memory": "1Gi"}));
    }

    #[test]
    fn one_resource_of_another() {
        let of = |value: Value| -> ResourceRequirements { serde_json::from_value(value).unwrap() };
        let a = of(json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}));
        let b = of(json!({"requests": {"cpu": "3", "memory": "4Gi"}, "limits": {"memory": "5Gi"}}));
        assert_eq!(
            with_resource_of(&a, &b, "cpu"),
            of(json!({"requests": {"cpu": "3", "memory": "1Gi"}}))
        );
        assert_eq!(
            with_resource_of(&a, &b, "memory"),
            of(json!({
                "requests": {"cpu": "1", "memory": "4Gi"},
                "limits": {"cpu": "2", "memory": "5Gi"},
            }))
        );
    }
}
