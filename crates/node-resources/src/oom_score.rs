use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_types::{
    ContainerKind, QosClass, ResourceAmounts, container_requests, containers, find_container,
    is_critical_pod, pod_qos_class,
};

/// `oom_score_adj` of the kubelet and of the container runtime.
pub const KUBELET_OOM_SCORE_ADJ: i32 = -999;

const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;

/// `oom_score_adj` of a container.
///
/// Guaranteed and node-critical pods go last (-997), best-effort pods first (1000). Between them, a
/// container's chance of survival grows with its share of the node's memory: a process that stays
/// within its request scores below one that exceeds it. A sidecar is never preferred as a victim to
/// a regular container of its pod. A pod-level request that no container claims is spread over all
/// containers. `memory_capacity` is the node's, in bytes.
pub fn compute_oom_score_adj(pod: &Pod, container: &Container, memory_capacity: i64) -> i32 {
    let score = if is_node_critical(pod) {
        GUARANTEED
    } else {
        match pod_qos_class(pod) {
            QosClass::Guaranteed => GUARANTEED,
            QosClass::BestEffort => BEST_EFFORT,
            QosClass::Burstable => burstable_score(pod, container, memory_capacity),
        }
    };
    // Every arm lies within -997..=1000.
    i32::try_from(score).unwrap_or(0)
}

fn is_node_critical(pod: &Pod) -> bool {
    let class = pod.spec.as_ref().and_then(|spec| spec.priority_class_name.as_deref());
    class == Some("system-node-critical") && is_critical_pod(pod)
}

fn burstable_score(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let capacity = i128::from(memory_capacity.max(1));
    let score = |request: i64| 1000 - 1000 * i128::from(request) / capacity;
    let unclaimed = unclaimed_per_container(pod);
    let mut adj = score(container_requests(container).memory_bytes().saturating_add(unclaimed));
    let is_sidecar = find_container(pod, &container.name)
        .is_some_and(|found| found.kind == ContainerKind::Sidecar);
    if is_sidecar {
        let smallest = containers(pod)
            .filter(|spec| spec.kind == ContainerKind::Regular)
            .map(|spec| container_requests(&spec.container).memory_bytes())
            .min()
            .unwrap_or(0);
        adj = adj.min(score(smallest.saturating_add(unclaimed)));
    }
    // Never as safe as a guaranteed container, never as exposed as a best-effort one.
    i64::try_from(adj.clamp(i128::from(1000 + GUARANTEED), i128::from(BEST_EFFORT - 1)))
        .unwrap_or(BEST_EFFORT - 1)
}

/// Part of the pod-level memory request that no container claims, per container.
fn unclaimed_per_container(pod: &Pod) -> i64 {
    let Some(spec) = pod.spec.as_ref() else { return 0 };
    let pod_level = ResourceAmounts::from_api(
        spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()),
    )
    .memory_bytes();
    if pod_level == 0 {
        return 0;
    }
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    let mut bare = pod.clone();
    if let Some(spec) = bare.spec.as_mut() {
        spec.resources = None;
        spec.overhead = None;
    }
    let claimed = rubelet_types::pod_requests(&bare).memory_bytes();
    (pod_level - claimed) / i64::try_from(count.max(1)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GI: i64 = 1 << 30;

    fn score(spec: serde_json::Value, container: &str) -> i32 {
        let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        let container = find_container(&pod, container).unwrap().container.into_owned();
        compute_oom_score_adj(&pod, &container, 10 * GI)
    }

    fn with_memory(request: &str) -> serde_json::Value {
        json!({"containers": [{"name": "c", "resources": {"requests": {"memory": request}}}]})
    }

    #[test]
    fn by_class() {
        assert_eq!(score(json!({"containers": [{"name": "c"}]}), "c"), 1000);
        let limits = json!({"cpu": "1", "memory": "1Gi"});
        let guaranteed = json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
        assert_eq!(score(guaranteed, "c"), -997);
    }

    #[test]
    fn burstable_by_share_of_memory() {
        for (request, expected) in [
            ("1Gi", 900),
            ("5Gi", 500),
            ("1Mi", 999), // 1000 is for best-effort pods.
            ("100Mi", 991),
            ("10Gi", 3),
            ("20Gi", 3),
        ] {
            assert_eq!(score(with_memory(request), "c"), expected, "{request}");
        }
        // CPU alone makes it burstable, with nothing to hold on to.
        let cpu = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]});
        assert_eq!(score(cpu, "c"), 999);
    }

    #[test]
    fn node_critical_pods_go_last() {
        let mut spec = with_memory("1Gi");
        spec["priorityClassName"] = "system-node-critical".into();
        assert_eq!(score(spec.clone(), "c"), 900, "the name alone gives nothing");
        spec["priority"] = 2_000_001_000.into();
        assert_eq!(score(spec.clone(), "c"), -997);
        spec["priorityClassName"] = "system-cluster-critical".into();
        assert_eq!(score(spec, "c"), 900);
    }

    #[test]
    fn sidecars_outlive_the_containers_they_serve() {
        let spec = |sidecar: &str| {
            json!({
                "initContainers": [
                    {"name": "s", "restartPolicy": "Always",
                     "resources": {"requests": {"memory": sidecar}}},
                    {"name": "i", "resources": {"requests": {"memory": "1Gi"}}},
                ],
                "containers": [
                    {"name": "a", "resources": {"requests": {"memory": "2Gi"}}},
                    {"name": "b", "resources": {"requests": {"memory": "3Gi"}}},
                ],
            })
        };
        assert_eq!(score(spec("1Gi"), "s"), 800, "as the smallest regular container");
        assert_eq!(score(spec("4Gi"), "s"), 600, "its own request is larger");
        assert_eq!(score(spec("1Gi"), "i"), 900, "an init container is no sidecar");
        assert_eq!(score(spec("1Gi"), "a"), 800);
    }

    #[test]
    fn unclaimed_pod_level_memory_is_shared() {
        let spec = json!({
            "resources": {"requests": {"memory": "5Gi"}},
            "containers": [
                {"name": "a", "resources": {"requests": {"memory": "1Gi"}}},
                {"name": "b"},
            ],
        });
        // 4Gi are left for two containers.
        assert_eq!(score(spec.clone(), "a"), 700);
        assert_eq!(score(spec, "b"), 800);
    }

    #[test]
    fn a_node_without_memory_figures_divides_nothing_by_zero() {
        let pod: Pod = serde_json::from_value(json!({"spec": with_memory("1Gi")})).unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        assert_eq!(compute_oom_score_adj(&pod, &container, 0), 3);
    }
}
