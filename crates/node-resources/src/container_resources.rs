use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use rubelet_types::{
    QosClass, ResourceAmounts, container_limits, container_requests, is_critical_pod, pod_limits,
    pod_qos_class, pod_requests,
};

use crate::memory_qos::container_memory_qos;
use crate::{PageSize, compute_oom_score_adj, cpu_quota_from_milli, cpu_shares_from_milli};

const MEMORY_OOM_GROUP: &str = "memory.oom.group";
const MEMORY_SWAP_MAX: &str = "memory.swap.max";

/// How containers may use swap (`memorySwap.swapBehavior`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// Not at all.
    #[default]
    NoSwap,
    /// Burstable containers in proportion to their memory request; cgroup v2 only.
    LimitedSwap,
}

/// What the node and its configuration say about the resources of containers.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerResourceRules {
    /// `cpuCFSQuota`: CPU limits are enforced.
    pub cpu_cfs_quota: bool,
    /// `cpuCFSQuotaPeriod`, microseconds.
    pub cpu_cfs_period_micros: u64,
    /// The node uses cgroup v2.
    pub cgroup_v2: bool,
    /// `singleProcessOOMKill`: out of memory kills one process, not the whole container.
    pub single_process_oom_kill: bool,
    /// Memory of the node, bytes.
    pub memory_capacity: i64,
    /// Allocatable memory of the node, bytes.
    pub memory_allocatable: i64,
    /// Swap of the node, bytes.
    pub swap_capacity: i64,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
    /// The kernel accounts swap per cgroup.
    pub swap_controller_available: bool,
    /// Huge page sizes of the node.
    pub page_sizes: Vec<PageSize>,
    /// `memoryThrottlingFactor` when feature gate MemoryQoS is on.
    pub memory_throttling_factor: Option<f64>,
}

/// A limit on huge pages of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugepageLimit {
    /// `2MB`, `1GB`.
    pub page_size: String,
    /// Bytes.
    pub limit: u64,
}

/// Resources of a container or sandbox as the runtime takes them; 0 and empty mean "not set", as in
/// the CRI message `LinuxContainerResources`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinuxResources {
    /// CPU shares, cgroup v1 scale.
    pub cpu_shares: i64,
    /// CFS quota in microseconds; -1 for no limit.
    pub cpu_quota: i64,
    /// CFS period in microseconds.
    pub cpu_period: i64,
    /// Memory limit in bytes.
    pub memory_limit: i64,
    /// Limit of memory plus swap in bytes, cgroup v1 only.
    pub memory_swap_limit: i64,
    /// `oom_score_adj`, -1000..=1000.
    pub oom_score_adj: i64,
    /// Limits by huge page size, every size of the node among them.
    pub hugepage_limits: Vec<HugepageLimit>,
    /// Cgroup v2 files with their content.
    pub unified: BTreeMap<String, String>,
}

/// Resources of `container`. It gets no CFS quota when it owns exclusive CPUs: a limit on top of
/// them would only throttle it.
pub fn compute_container_resources(
    pod: &Pod,
    container: &Container,
    has_exclusive_cpus: bool,
    rules: &ContainerResourceRules,
) -> LinuxResources {
    let requests = container_requests(container);
    let limits = container_limits(container);
    let pod_level_limits = ResourceAmounts::from_api(
        pod_level_resources(pod).and_then(|resources| resources.limits.as_ref()),
    );
    let cpu_limit = own_or(limits.cpu_milli(), pod_level_limits.cpu_milli());
    let memory_limit = own_or(limits.memory_bytes(), pod_level_limits.memory_bytes());
    let cpu_request = requests.get("cpu").map(|cpu| cpu.milli_value());

    let mut resources =
        basic_resources(cpu_request, cpu_limit, memory_limit, has_exclusive_cpus, rules);
    resources.oom_score_adj =
        i64::from(compute_oom_score_adj(pod, container, rules.memory_capacity));
    let hugepages = if has_hugepages(&limits) { &limits } else { &pod_level_limits };
    resources.hugepage_limits = hugepage_limits(hugepages, &rules.page_sizes);
    set_swap(&mut resources, pod, container, rules);
    if rules.cgroup_v2
        && let Some(factor) = rules.memory_throttling_factor
    {
        resources.unified.extend(container_memory_qos(container, factor, rules.memory_allocatable));
    }
    resources
}

/// The pod's resources as a hint to the runtime for sizing the sandbox, without overhead.
pub fn compute_sandbox_resources(
    pod: &Pod,
    has_exclusive_cpus: bool,
    rules: &ContainerResourceRules,
) -> LinuxResources {
    let mut bare = pod.clone();
    if let Some(spec) = bare.spec.as_mut() {
        spec.overhead = None;
    }
    let (requests, limits) = (pod_requests(&bare), pod_limits(&bare));
    basic_resources(
        requests.get("cpu").map(|cpu| cpu.milli_value()),
        limits.cpu_milli(),
        limits.memory_bytes(),
        has_exclusive_cpus,
        rules,
    )
}

/// The pod's overhead as a hint to the runtime for sizing the sandbox.
pub fn compute_overhead_resources(pod: &Pod, rules: &ContainerResourceRules) -> LinuxResources {
    let Some(overhead) = pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref()) else {
        return LinuxResources::default();
    };
    let overhead = ResourceAmounts::from_api(Some(overhead));
    let cpu = overhead.cpu_milli();
    basic_resources(Some(cpu), cpu, overhead.memory_bytes(), false, rules)
}

/// How `container` may use swap. Critical, guaranteed and best-effort pods never do, nor containers
/// whose memory request is missing or equals their limit.
pub fn container_swap_behavior(
    pod: &Pod,
    container: &Container,
    rules: &ContainerResourceRules,
) -> SwapBehavior {
    let request = container_requests(container).memory_bytes();
    let limit = container_limits(container).memory_bytes();
    let may_swap = rules.swap_behavior == SwapBehavior::LimitedSwap
        && rules.cgroup_v2
        && rules.swap_controller_available
        && !is_critical_pod(pod)
        && pod_qos_class(pod) == QosClass::Burstable
        && request != 0
        && request != limit;
    if may_swap { SwapBehavior::LimitedSwap } else { SwapBehavior::NoSwap }
}

fn basic_resources(
    cpu_request_milli: Option<i64>,
    cpu_limit_milli: i64,
    memory_limit: i64,
    has_exclusive_cpus: bool,
    rules: &ContainerResourceRules,
) -> LinuxResources {
    let shares = cpu_shares_from_milli(cpu_request_milli.unwrap_or(cpu_limit_milli));
    let mut resources = LinuxResources {
        cpu_shares: i64::try_from(shares).unwrap_or(i64::MAX),
        memory_limit,
        ..LinuxResources::default()
    };
    if rules.cpu_cfs_quota {
        resources.cpu_period = i64::try_from(rules.cpu_cfs_period_micros).unwrap_or(i64::MAX);
        resources.cpu_quota = if has_exclusive_cpus {
            -1
        } else {
            cpu_quota_from_milli(cpu_limit_milli, rules.cpu_cfs_period_micros)
        };
    }
    if rules.cgroup_v2 && !rules.single_process_oom_kill {
        resources.unified.insert(MEMORY_OOM_GROUP.to_owned(), "1".to_owned());
    }
    resources
}

fn set_swap(
    resources: &mut LinuxResources,
    pod: &Pod,
    container: &Container,
    rules: &ContainerResourceRules,
) {
    if !rules.swap_controller_available {
        return;
    }
    if !rules.cgroup_v2 {
        // Memory and swap together may be no more than memory alone.
        resources.memory_swap_limit = resources.memory_limit;
        return;
    }
    let bytes = match container_swap_behavior(pod, container, rules) {
        SwapBehavior::NoSwap => 0,
        SwapBehavior::LimitedSwap => swap_share(
            container_requests(container).memory_bytes(),
            rules.memory_capacity,
            rules.swap_capacity,
        ),
    };
    resources.unified.insert(MEMORY_SWAP_MAX.to_owned(), bytes.to_string());
}

/// Swap in proportion to the share of the node's memory; none when the figures make no sense.
fn swap_share(request: i64, memory_capacity: i64, swap_capacity: i64) -> i64 {
    if memory_capacity <= 0 || request > memory_capacity {
        return 0;
    }
    // In doubles, so that the bytes equal those that upstream's tests and tools expect.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
    {
        (request as f64 / memory_capacity as f64 * swap_capacity as f64) as i64
    }
}

fn pod_level_resources(pod: &Pod) -> Option<&ResourceRequirements> {
    pod.spec.as_ref()?.resources.as_ref()
}

fn own_or(own: i64, pod_level: i64) -> i64 {
    if own != 0 { own } else { pod_level }
}

fn has_hugepages(amounts: &ResourceAmounts) -> bool {
    amounts.iter().any(|(name, _)| PageSize::from_resource_name(name).is_some())
}

fn hugepage_limits(limits: &ResourceAmounts, page_sizes: &[PageSize]) -> Vec<HugepageLimit> {
    let named: BTreeMap<PageSize, u64> = limits
        .iter()
        .filter_map(|(name, amount)| {
            Some((PageSize::from_resource_name(name)?, u64::try_from(amount.value()).unwrap_or(0)))
        })
        .collect();
    page_sizes
        .iter()
        .map(|size| HugepageLimit {
            page_size: size.to_string(),
            limit: named.get(size).copied().unwrap_or(0),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use rubelet_types::find_container;
    use serde_json::{Value, json};

    use super::*;

    const GI: i64 = 1 << 30;

    fn rules() -> ContainerResourceRules {
        ContainerResourceRules {
            cpu_cfs_quota: true,
            cpu_cfs_period_micros: 100_000,
            cgroup_v2: true,
            single_process_oom_kill: false,
            memory_capacity: 16 * GI,
            memory_allocatable: 14 * GI,
            swap_capacity: 8 * GI,
            swap_behavior: SwapBehavior::NoSwap,
            swap_controller_available: false,
            page_sizes: Vec::new(),
            memory_throttling_factor: None,
        }
    }

    fn pod_of(requests: Value, limits: Value) -> Pod {
        let resources = json!({"requests": requests, "limits": limits});
        serde_json::from_value(
            json!({"spec": {"containers": [{"name": "c", "resources": resources}]}}),
        )
        .unwrap()
    }

    fn resources(pod: &Pod, rules: &ContainerResourceRules) -> LinuxResources {
        let container = find_container(pod, "c").unwrap().container.into_owned();
        compute_container_resources(pod, &container, false, rules)
    }

    #[test]
    fn cpu_and_memory() {
        for (requests, limits, shares, quota, memory) in [
            (json!({}), json!({}), 2, 0, 0),
            (json!({"cpu": "250m"}), json!({}), 256, 0, 0),
            (json!({}), json!({"cpu": "500m"}), 512, 50_000, 0),
            (json!({"cpu": "1m"}), json!({"cpu": "5m"}), 2, 1000, 0),
            (json!({"cpu": "0"}), json!({"cpu": "1"}), 2, 100_000, 0),
            (json!({"memory": "1Gi"}), json!({"memory": "2Gi"}), 2, 0, 2 * GI),
            (json!({"cpu": "2"}), json!({"cpu": "2500m", "memory": "1Gi"}), 2048, 250_000, GI),
        ] {
            let got = resources(&pod_of(requests.clone(), limits.clone()), &rules());
            assert_eq!(
                (got.cpu_shares, got.cpu_quota, got.cpu_period, got.memory_limit),
                (shares, quota, 100_000, memory),
                "{requests} {limits}"
            );
        }
    }

    #[test]
    fn quota_counts_for_the_configured_period() {
        let pod = pod_of(json!({}), json!({"cpu": "500m"}));
        let short = ContainerResourceRules { cpu_cfs_period_micros: 20_000, ..rules() };
        let got = resources(&pod, &short);
        assert_eq!((got.cpu_quota, got.cpu_period), (10_000, 20_000));
    }

    #[test]
    fn quota_switched_off() {
        let pod = pod_of(json!({}), json!({"cpu": "1"}));
        let off = ContainerResourceRules { cpu_cfs_quota: false, ..rules() };
        let got = resources(&pod, &off);
        assert_eq!((got.cpu_quota, got.cpu_period), (0, 0));
        let container = find_container(&pod, "c").unwrap().container.into_owned();
        let got = compute_container_resources(&pod, &container, true, &rules());
        assert_eq!((got.cpu_quota, got.cpu_period), (-1, 100_000));
    }

    #[test]
    fn pod_level_limits_stand_in_for_missing_ones() {
        let mut pod = pod_of(json!({}), json!({}));
        let spec = pod.spec.as_mut().unwrap();
        spec.resources = serde_json::from_value(
            json!({"limits": {"cpu": "2", "memory": "4Gi", "hugepages-2Mi": "64Mi"}}),
        )
        .unwrap();
        let rules = ContainerResourceRules { page_sizes: vec![PageSize(2 << 20)], ..rules() };
        let got = resources(&pod, &rules);
        assert_eq!((got.cpu_shares, got.cpu_quota, got.memory_limit), (2048, 200_000, 4 * GI));
        assert_eq!(got.hugepage_limits[0].limit, 64 << 20);
    }

    #[test]
    fn every_page_size_of_the_node_is_limited() {
        let pod = pod_of(json!({}), json!({"hugepages-2Mi": "100Mi", "hugepages-64Ki": "1Mi"}));
        let rules = ContainerResourceRules {
            page_sizes: vec![PageSize(2 << 20), PageSize(1 << 30)],
            ..rules()
        };
        assert_eq!(
            resources(&pod, &rules).hugepage_limits,
            [
                HugepageLimit { page_size: "2MB".into(), limit: 100 << 20 },
                HugepageLimit { page_size: "1GB".into(), limit: 0 },
            ]
        );
    }

    #[test]
    fn the_whole_container_dies_of_memory_on_v2() {
        let pod = pod_of(json!({}), json!({}));
        let group = |rules: &ContainerResourceRules| {
            resources(&pod, rules).unified.get("memory.oom.group").cloned()
        };
        assert_eq!(group(&rules()).as_deref(), Some("1"));
        assert_eq!(group(&ContainerResourceRules { cgroup_v2: false, ..rules() }), None);
        let single = ContainerResourceRules { single_process_oom_kill: true, ..rules() };
        assert_eq!(group(&single), None);
    }

    #[test]
    fn swap_on_v2() {
        let limited = ContainerResourceRules {
            swap_behavior: SwapBehavior::LimitedSwap,
            swap_controller_available: true,
            ..rules()
        };
        let none =
            ContainerResourceRules { swap_behavior: SwapBehavior::NoSwap, ..limited.clone() };
        let swap = |pod: &Pod, rules: &ContainerResourceRules| {
            resources(pod, rules).unified.get("memory.swap.max").cloned()
        };
        let half = pod_of(json!({"memory": "8Gi"}), json!({}));
        assert_eq!(swap(&half, &limited), Some((4 * GI).to_string()), "half of 8Gi");
        assert_eq!(swap(&half, &none).as_deref(), Some("0"));
        assert_eq!(swap(&half, &rules()), None, "no swap accounting, nothing to write");
        for (pod, why) in [
            (pod_of(json!({}), json!({})), "best effort"),
            (pod_of(json!({}), json!({"cpu": "1", "memory": "1Gi"})), "guaranteed"),
            (pod_of(json!({"cpu": "1"}), json!({})), "no memory request"),
            (pod_of(json!({"memory": "1Gi"}), json!({"memory": "1Gi"})), "request is limit"),
            (pod_of(json!({"memory": "32Gi"}), json!({})), "more than the node has"),
        ] {
            assert_eq!(swap(&pod, &limited).as_deref(), Some("0"), "{why}");
        }
        let mut critical = half;
        critical.spec.as_mut().unwrap().priority = Some(2_000_000_000);
        assert_eq!(swap(&critical, &limited).as_deref(), Some("0"));
    }

    #[test]
    fn no_swap_on_v1_limits_memory_and_swap_together() {
        let v1 = ContainerResourceRules {
            cgroup_v2: false,
            swap_controller_available: true,
            swap_behavior: SwapBehavior::LimitedSwap,
            ..rules()
        };
        let got = resources(&pod_of(json!({}), json!({"memory": "1Gi"})), &v1);
        assert_eq!(got.memory_swap_limit, GI);
        assert!(got.unified.is_empty());
    }

    #[test]
    fn sandbox_and_overhead_are_told_apart() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "overhead": {"cpu": "250m", "memory": "120Mi"},
            "containers": [
                {"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
                {"name": "b", "resources": {"requests": {"cpu": "500m"}}},
            ],
        }}))
        .unwrap();
        let sandbox = compute_sandbox_resources(&pod, false, &rules());
        assert_eq!(
            (sandbox.cpu_shares, sandbox.cpu_quota, sandbox.memory_limit),
            (1536, 100_000, GI)
        );
        let overhead = compute_overhead_resources(&pod, &rules());
        assert_eq!(
            (overhead.cpu_shares, overhead.cpu_quota, overhead.memory_limit),
            (256, 25_000, 120 << 20)
        );
        let plain = pod_of(json!({}), json!({}));
        assert_eq!(compute_overhead_resources(&plain, &rules()), LinuxResources::default());
    }
}
