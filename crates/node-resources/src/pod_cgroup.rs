use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    ContainerKind, QosClass, ResourceAmounts, container_limits, containers, pod_limits,
    pod_qos_class, pod_requests,
};

use crate::memory_qos::MEMORY_MIN;
use crate::{CgroupValues, MIN_CPU_SHARES, PageSize, cpu_quota_from_milli, cpu_shares_from_milli};

/// No limit on huge pages, as the kubelet writes it for the tiers above pods.
const UNBOUNDED_HUGEPAGES: u64 = 1 << 62;

/// What configuration says about the cgroups of pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCgroupRules {
    /// `cpuCFSQuota`: CPU limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`, microseconds.
    pub cpu_cfs_period_micros: u64,
    /// `podPidsLimit`; none or a value below 1 leaves only the node's limit.
    pub pod_pids_limit: Option<i64>,
    /// Feature gate MemoryQoS is on and the node uses cgroup v2.
    pub memory_qos: bool,
}

/// Values of the pod's cgroup: shares by request; quota and memory limit for guaranteed pods, and
/// for burstable pods where the pod or each of its containers has that limit, since the sum of some
/// limits would bound the containers that have none.
pub fn compute_pod_cgroup_values(pod: &Pod, rules: &PodCgroupRules) -> CgroupValues {
    let requests = pod_requests(pod);
    let limits = pod_limits(pod);
    let class = pod_qos_class(pod);
    let mut values = CgroupValues {
        cpu_shares: Some(match class {
            QosClass::BestEffort => MIN_CPU_SHARES,
            _ => cpu_shares_from_milli(requests.cpu_milli()),
        }),
        hugepage_limits: Some(hugepage_amounts(&requests)),
        pids_limit: rules.pod_pids_limit.filter(|limit| *limit > 0),
        ..CgroupValues::default()
    };
    let bounded = |resource: &str| match class {
        QosClass::Guaranteed => true,
        QosClass::Burstable => declares_limit(pod, resource),
        QosClass::BestEffort => false,
    };
    if bounded("cpu") {
        values.cpu_period = Some(rules.cpu_cfs_period_micros);
        values.cpu_quota = Some(if rules.cpu_cfs_quota {
            cpu_quota_from_milli(limits.cpu_milli(), rules.cpu_cfs_period_micros)
        } else {
            -1
        });
    }
    if bounded("memory") {
        values.memory_limit = Some(limits.memory_bytes());
    }
    if rules.memory_qos && requests.memory_bytes() > 0 {
        values.unified.insert(MEMORY_MIN.to_owned(), requests.memory_bytes().to_string());
    }
    values
}

fn declares_limit(pod: &Pod, resource: &str) -> bool {
    let names = |amounts: &ResourceAmounts| amounts.get(resource).is_some_and(|q| !q.is_zero());
    let pod_level = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    names(&ResourceAmounts::from_api(pod_level.and_then(|level| level.limits.as_ref())))
        || containers(pod)
            .filter(|spec| spec.kind != ContainerKind::Ephemeral)
            .all(|spec| names(&container_limits(&spec.container)))
}

/// Amounts of huge pages by size.
pub(crate) fn hugepage_amounts(amounts: &ResourceAmounts) -> BTreeMap<PageSize, u64> {
    amounts
        .iter()
        .filter_map(|(name, amount)| {
            Some((PageSize::from_resource_name(name)?, u64::try_from(amount.value()).unwrap_or(0)))
        })
        .collect()
}

/// `qosReserved` (feature gate QOSReserved): percent of the memory requests of a better class that
/// worse classes must not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QosReservation {
    /// 0..=100.
    pub memory_percent: i64,
    /// Allocatable memory of the node, bytes; 0 when unknown, which reserves nothing.
    pub memory_allocatable: i64,
}

/// Values of the three cgroups above pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QosCgroupValues {
    /// `kubepods`, where guaranteed pods live too. Its shares and limits come from node allocatable
    /// and are not among these.
    pub guaranteed: CgroupValues,
    /// `kubepods/burstable`.
    pub burstable: CgroupValues,
    /// `kubepods/besteffort`.
    pub best_effort: CgroupValues,
}

/// Values of the quality of service tiers for these active pods: the burstable tier weighs as much
/// as its pods ask for together, the best-effort tier as little as possible. Huge pages are bounded
/// per pod, not per tier.
pub fn compute_qos_cgroup_values<'a>(
    pods: impl IntoIterator<Item = &'a Pod>,
    page_sizes: &[PageSize],
    reservation: Option<QosReservation>,
    memory_qos: bool,
) -> QosCgroupValues {
    let (mut burstable_milli, mut burstable_memory, mut guaranteed_memory) = (0i64, 0i64, 0i64);
    for pod in pods {
        let class = pod_qos_class(pod);
        if class == QosClass::BestEffort {
            continue;
        }
        let requests = pod_requests(pod);
        if class == QosClass::Burstable {
            burstable_milli = burstable_milli.saturating_add(requests.cpu_milli());
            burstable_memory = burstable_memory.saturating_add(requests.memory_bytes());
        } else {
            guaranteed_memory = guaranteed_memory.saturating_add(requests.memory_bytes());
        }
    }
    let tier = || CgroupValues {
        hugepage_limits: Some(page_sizes.iter().map(|size| (*size, UNBOUNDED_HUGEPAGES)).collect()),
        ..CgroupValues::default()
    };
    let mut values = QosCgroupValues { guaranteed: tier(), burstable: tier(), best_effort: tier() };
    values.burstable.cpu_shares = Some(cpu_shares_from_milli(burstable_milli));
    values.best_effort.cpu_shares = Some(MIN_CPU_SHARES);
    if let Some(reservation) = reservation.filter(|r| r.memory_allocatable > 0) {
        let reserved = |requests: i64| {
            i64::try_from(i128::from(requests) * i128::from(reservation.memory_percent) / 100)
                .unwrap_or(i64::MAX)
        };
        let burstable = reservation.memory_allocatable.saturating_sub(reserved(guaranteed_memory));
        values.burstable.memory_limit = Some(burstable);
        values.best_effort.memory_limit =
            Some(burstable.saturating_sub(reserved(burstable_memory)));
    }
    if memory_qos {
        let protect = |values: &mut CgroupValues, bytes: i64| {
            if bytes > 0 {
                values.unified.insert(MEMORY_MIN.to_owned(), bytes.to_string());
            }
        };
        protect(&mut values.burstable, burstable_memory);
        protect(&mut values.guaranteed, burstable_memory.saturating_add(guaranteed_memory));
    }
    values
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const RULES: PodCgroupRules = PodCgroupRules {
        cpu_cfs_quota: true,
        cpu_cfs_period_micros: 100_000,
        pod_pids_limit: None,
        memory_qos: false,
    };
    const MI: i64 = 1 << 20;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn container(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    fn check(spec: Value, shares: u64, quota: Option<i64>, memory: Option<i64>) {
        let values = compute_pod_cgroup_values(&pod(spec.clone()), &RULES);
        assert_eq!(
            (values.cpu_shares, values.cpu_quota, values.cpu_period, values.memory_limit),
            (Some(shares), quota, quota.map(|_| 100_000), memory),
            "{spec}"
        );
    }

    #[test]
    fn limits_by_class() {
        let full = || container(json!({}), json!({"cpu": "200m", "memory": "200Mi"}));
        let partial = || {
            container(
                json!({"cpu": "100m", "memory": "100Mi"}),
                json!({"cpu": "200m", "memory": "200Mi"}),
            )
        };
        let requests_only = || container(json!({"cpu": "100m", "memory": "100Mi"}), json!({}));
        let empty = || container(json!({}), json!({}));

        check(json!({"containers": [empty()]}), 2, None, None);
        check(json!({"containers": [full()]}), 204, Some(20_000), Some(200 * MI));
        check(json!({"containers": [full(), full()]}), 409, Some(40_000), Some(400 * MI));
        check(json!({"containers": [partial()]}), 102, Some(20_000), Some(200 * MI));
        check(json!({"containers": [requests_only()]}), 102, None, None);
        // One container without limits takes the pod's away.
        check(json!({"containers": [partial(), requests_only()]}), 204, None, None);
        let cpu_only = container(json!({}), json!({"cpu": "1"}));
        check(json!({"containers": [cpu_only]}), 1024, Some(100_000), None);
        // So does an init container.
        check(
            json!({"containers": [partial()], "initContainers": [requests_only()]}),
            102,
            None,
            None,
        );
        // Pod-level limits bind whatever the containers say.
        check(
            json!({
                "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}},
                "containers": [empty()],
            }),
            1024,
            Some(200_000),
            Some(1024 * MI),
        );
    }

    #[test]
    fn overhead_counts() {
        let spec = json!({
            "overhead": {"cpu": "100m", "memory": "50Mi"},
            "containers": [container(json!({}), json!({"cpu": "200m", "memory": "200Mi"}))],
        });
        check(spec, 307, Some(30_000), Some(250 * MI));
    }

    #[test]
    fn quota_off_is_written_as_no_limit() {
        let pod = pod(json!({"containers": [container(json!({}), json!({"cpu": "1"}))]}));
        let rules = PodCgroupRules { cpu_cfs_quota: false, ..RULES };
        assert_eq!(compute_pod_cgroup_values(&pod, &rules).cpu_quota, Some(-1));
    }

    #[test]
    fn pids_hugepages_and_protection() {
        let pod = pod(json!({"containers": [container(
            json!({"memory": "100Mi", "hugepages-2Mi": "8Mi"}), json!({"hugepages-2Mi": "8Mi"}),
        )]}));
        for (configured, written) in
            [(None, None), (Some(-1), None), (Some(0), None), (Some(9), Some(9))]
        {
            let rules = PodCgroupRules { pod_pids_limit: configured, memory_qos: true, ..RULES };
            let values = compute_pod_cgroup_values(&pod, &rules);
            assert_eq!(values.pids_limit, written);
            assert_eq!(
                values.hugepage_limits,
                Some(BTreeMap::from([(PageSize(2 << 20), 8 << 20)]))
            );
            assert_eq!(values.unified["memory.min"], (100 * MI).to_string());
        }
    }

    fn three_pods() -> [Pod; 4] {
        let burstable = || {
            pod(
                json!({"containers": [container(json!({"cpu": "1500m", "memory": "100Mi"}), json!({}))]}),
            )
        };
        [
            pod(
                json!({"containers": [container(json!({}), json!({"cpu": "1", "memory": "200Mi"}))]}),
            ),
            burstable(),
            burstable(),
            pod(json!({"containers": [container(json!({}), json!({}))]})),
        ]
    }

    #[test]
    fn tiers_weigh_what_their_pods_ask_for() {
        let values = compute_qos_cgroup_values(&three_pods(), &[PageSize(2 << 20)], None, false);
        assert_eq!(values.burstable.cpu_shares, Some(3072));
        assert_eq!(values.best_effort.cpu_shares, Some(2));
        assert_eq!(values.guaranteed.cpu_shares, None);
        assert_eq!(values.burstable.memory_limit, None);
        let unbounded = Some(BTreeMap::from([(PageSize(2 << 20), 1 << 62)]));
        assert_eq!(values.guaranteed.hugepage_limits, unbounded);
        assert_eq!(values.best_effort.hugepage_limits, unbounded);
        let idle = compute_qos_cgroup_values([], &[], None, false);
        assert_eq!(idle.burstable.cpu_shares, Some(2));
    }

    #[test]
    fn reserved_memory_is_kept_from_worse_classes() {
        let reservation = QosReservation { memory_percent: 50, memory_allocatable: 1000 * MI };
        let values = compute_qos_cgroup_values(&three_pods(), &[], Some(reservation), false);
        assert_eq!(values.guaranteed.memory_limit, None);
        assert_eq!(values.burstable.memory_limit, Some(900 * MI));
        assert_eq!(values.best_effort.memory_limit, Some(800 * MI));
    }

    #[test]
    fn memory_qos_protects_the_tiers() {
        let values = compute_qos_cgroup_values(&three_pods(), &[], None, true);
        assert_eq!(values.burstable.unified["memory.min"], (200 * MI).to_string());
        assert_eq!(values.guaranteed.unified["memory.min"], (400 * MI).to_string());
        assert!(values.best_effort.unified.is_empty());
    }
}
