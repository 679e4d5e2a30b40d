//! Resources in status: what is in force where the runtime tells, else what is allocated.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_types::{
    ContainerResources, ContainerSnapshot, Quantity, ResourceAmounts, pod_limits, pod_requests,
};

use crate::input::StatusInput;

/// The kernel enforces no smaller CPU quota: 1 ms in 100 ms.
const LEAST_CPU_LIMIT_MILLI: i64 = 10;
/// The kernel knows no smaller CPU weight.
const LEAST_CPU_SHARES: i64 = 2;

/// `resources` of one container: the allocated values, replaced for a running container by those
/// in force. A value that the runtime does not tell stays as it was reported for the same instance.
pub(crate) fn container_resources(
    container: &Container,
    instance: &ContainerSnapshot,
    previous: Option<&ContainerStatus>,
) -> ResourceRequirements {
    let mut reported = container.resources.clone().unwrap_or_default();
    if !instance.is_running() {
        return reported;
    }
    let in_force = instance.resources.clone().unwrap_or_default();
    let before = previous.and_then(|status| status.resources.as_ref());
    if let Some(limits) = reported.limits.as_mut() {
        let before = before.and_then(|resources| resources.limits.as_ref());
        set_cpu_limit(limits, &in_force, before);
        match memory_limit(&in_force) {
            Some(limit) => replace(limits, "memory", limit),
            None => keep(limits, "memory", before),
        }
    }
    if let Some(requests) = reported.requests.as_mut() {
        let before = before.and_then(|resources| resources.requests.as_ref());
        set_cpu_request(requests, &in_force, before);
    }
    reported
}

/// `resources` of the pod as a whole: of a running pod what its cgroup has in force, where that
/// could be read, else what all of it may use.
pub(crate) fn pod_resources(input: &StatusInput<'_>) -> ResourceRequirements {
    let running = input.previous.phase.as_deref() == Some("Running");
    let mut reported = match input.pod_cgroup.filter(|_| running) {
        Some(in_force) => pod_resources_in_force(input, in_force),
        None => ResourceRequirements {
            requests: Some(to_api(&pod_requests(input.pod))),
            limits: Some(to_api(&pod_limits(input.pod))),
            claims: None,
        },
    };
    reported.requests = reported.requests.filter(|list| !list.is_empty());
    reported.limits = reported.limits.filter(|list| !list.is_empty());
    reported
}

/// The pod-level resources of the spec, with the values of the pod's cgroup. No cgroup holds a
/// memory request: it is that of the spec, else what the containers ask for together.
fn pod_resources_in_force(
    input: &StatusInput<'_>,
    in_force: &ContainerResources,
) -> ResourceRequirements {
    let mut reported =
        input.pod.spec.as_ref().and_then(|spec| spec.resources.clone()).unwrap_or_default();
    let requests = reported.requests.get_or_insert_default();
    set_cpu_request(requests, in_force, None);
    if !requests.contains_key("memory")
        && let Some(memory) = pod_requests(input.pod).get("memory")
    {
        requests.insert("memory".to_owned(), memory.to_api());
    }
    let limits = reported.limits.get_or_insert_default();
    set_cpu_limit(limits, in_force, None);
    if let Some(limit) = memory_limit(in_force) {
        replace(limits, "memory", limit);
    }
    reported
}

/// `allocatedResources` of the pod as a whole.
pub(crate) fn pod_allocated_resources(
    input: &StatusInput<'_>,
) -> Option<BTreeMap<String, ApiQuantity>> {
    Some(to_api(&pod_requests(input.pod))).filter(|list| !list.is_empty())
}

fn to_api(amounts: &ResourceAmounts) -> BTreeMap<String, ApiQuantity> {
    amounts.iter().map(|(name, amount)| (name.to_owned(), amount.to_api())).collect()
}

fn set_cpu_request(
    requests: &mut BTreeMap<String, ApiQuantity>,
    in_force: &ContainerResources,
    before: Option<&BTreeMap<String, ApiQuantity>>,
) {
    match cpu_request_milli(in_force) {
        // Both are below what the kernel can tell apart: they mean the same.
        Some(milli)
            if milli <= LEAST_CPU_SHARES && milli_of(requests, "cpu") <= LEAST_CPU_SHARES => {}
        Some(milli) => replace(requests, "cpu", Quantity::from_milli(milli)),
        None => keep(requests, "cpu", before),
    }
}

fn set_cpu_limit(
    limits: &mut BTreeMap<String, ApiQuantity>,
    in_force: &ContainerResources,
    before: Option<&BTreeMap<String, ApiQuantity>>,
) {
    match cpu_limit_milli(in_force) {
        // Both are below what the kernel can enforce: they mean the same.
        Some(milli)
            if milli <= LEAST_CPU_LIMIT_MILLI
                && milli_of(limits, "cpu") <= LEAST_CPU_LIMIT_MILLI => {}
        Some(milli) => replace(limits, "cpu", Quantity::from_milli(milli)),
        None => keep(limits, "cpu", before),
    }
}

fn cpu_limit_milli(in_force: &ContainerResources) -> Option<i64> {
    let quota = in_force.cpu_quota.filter(|quota| *quota > 0)?;
    let period = in_force.cpu_period.filter(|period| *period > 0)?;
    quota.checked_mul(1000).map(|micro| micro / period)
}

/// Shares are rounded down when they are made from thousandths of a core, so this rounds up.
fn cpu_request_milli(in_force: &ContainerResources) -> Option<i64> {
    let shares = in_force.cpu_shares.filter(|shares| *shares >= LEAST_CPU_SHARES)?;
    shares.checked_mul(1000).map(|milli| milli.div_euclid(1024) + i64::from(milli % 1024 != 0))
}

fn memory_limit(in_force: &ContainerResources) -> Option<Quantity> {
    in_force.memory_limit.filter(|bytes| *bytes > 0).map(Quantity::from_bytes)
}

fn milli_of(list: &BTreeMap<String, ApiQuantity>, name: &str) -> i64 {
    list.get(name)
        .and_then(|amount| Quantity::try_from(amount).ok())
        .map_or(0, |amount| amount.milli_value())
}

/// Sets `name`, keeping the way it was written where the amount is the same.
fn replace(list: &mut BTreeMap<String, ApiQuantity>, name: &str, amount: Quantity) {
    let same = list
        .get(name)
        .and_then(|written| Quantity::try_from(written).ok())
        .is_some_and(|written| written == amount);
    if !same {
        list.insert(name.to_owned(), amount.to_api());
    }
}

fn keep(
    list: &mut BTreeMap<String, ApiQuantity>,
    name: &str,
    before: Option<&BTreeMap<String, ApiQuantity>>,
) {
    if let Some(amount) = before.and_then(|before| before.get(name)) {
        list.insert(name.to_owned(), amount.clone());
    }
}
