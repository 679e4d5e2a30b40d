//! How the resources of a running pod are changed: what differs, and in which order it is set.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use rubelet_types::{ResourceAmounts, containers};

use crate::pod_resources::with_resource_of;
use crate::{CgroupValues, PodCgroupRules, PodResources, ResizeRules, compute_pod_cgroup_values};

/// A resource that can be changed while a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResizableResource {
    /// Memory.
    Memory,
    /// CPU time.
    Cpu,
}

impl ResizableResource {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Memory => Self::Cpu,
            Self::Cpu => Self::Memory,
        }
    }
}

/// The containers whose resources in force differ from those that the pod was granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerChanges {
    /// Changed while they run.
    pub in_place: BTreeSet<String>,
    /// Their policy for one of the resources that differ is `RestartContainer`.
    pub by_restart: BTreeSet<String>,
}

/// Compares what is in force with what `pod` was granted, which its spec names.
pub fn compute_container_changes(
    pod: &Pod,
    in_force: &PodResources,
    rules: ResizeRules,
) -> ContainerChanges {
    let mut changes = ContainerChanges::default();
    let granted = PodResources::of(pod, rules);
    for spec in containers(pod) {
        let name = &spec.container.name;
        if !granted.containers.contains_key(name) {
            continue;
        }
        let differing: Vec<ResizableResource> = [ResizableResource::Memory, ResizableResource::Cpu]
            .into_iter()
            .filter(|resource| {
                figures(&granted, name, *resource) != figures(in_force, name, *resource)
            })
            .collect();
        if differing.iter().any(|resource| needs_restart(&spec.container, *resource)) {
            changes.by_restart.insert(name.clone());
        } else if !differing.is_empty() {
            changes.in_place.insert(name.clone());
        }
    }
    changes
}

/// Whether a change of `resource` has to start the container again, by its `resizePolicy`.
pub fn needs_restart(container: &Container, resource: ResizableResource) -> bool {
    container.resize_policy.iter().flatten().any(|policy| {
        policy.resource_name == resource.as_str() && policy.restart_policy == "RestartContainer"
    })
}

/// Request and limit of one resource of one container, in thousandths of a core or bytes; a limit of
/// 0 is none. What has no limit of its own has the pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figures {
    request: i64,
    limit: i64,
}

fn figures(resources: &PodResources, name: &str, resource: ResizableResource) -> Figures {
    let unit = |amounts: &ResourceAmounts| match resource {
        ResizableResource::Memory => amounts.memory_bytes(),
        ResizableResource::Cpu => amounts.cpu_milli(),
    };
    let limit_of = |resources: Option<&ResourceRequirements>| {
        unit(&ResourceAmounts::from_api(resources.and_then(|it| it.limits.as_ref())))
    };
    let own = resources.containers.get(name);
    let requests = ResourceAmounts::from_api(own.and_then(|it| it.requests.as_ref()));
    let own_limit = limit_of(own);
    let is_named = requests.get(resource.as_str()).is_some();
    Figures {
        request: if is_named { unit(&requests) } else { own_limit },
        limit: if own_limit > 0 { own_limit } else { limit_of(resources.pod_level.as_ref()) },
    }
}

/// One change. Done again, it changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub enum ResizeStep {
    /// These values, and no others, are written to the cgroup of the pod.
    PodCgroup(CgroupValues),
    /// A running container gets the granted amounts of one resource, and keeps the others.
    Container {
        /// Its name.
        name: String,
        /// Which resource.
        resource: ResizableResource,
        /// All resources that are in force when the step is done.
        resources: ResourceRequirements,
        /// `spec.resources` of the pod by which it is done.
        pod_level: Option<ResourceRequirements>,
    },
}

/// What has to be done, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResizePlan {
    /// The steps. Each relies on those before it.
    pub steps: Vec<ResizeStep>,
    /// Memory limits that will be in force, in bytes. None may be below what is used when the plan
    /// begins: the kernel would kill.
    pub memory_limits: MemoryLimits,
}

/// Memory limits in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Of the pod, if it has one.
    pub pod: Option<i64>,
    /// It is lower than the one that is in force.
    pub pod_decreases: bool,
    /// Of containers whose limit is lowered or new, by name.
    pub containers: BTreeMap<String, i64>,
}

/// Plans the way from what is in force to what `pod` was granted, which its spec names. Of the
/// containers that differ only those that are `running` are changed: all others are created anew.
///
/// At each moment the pod's cgroup bounds its containers from above: it is raised before and
/// lowered after them, and of the containers those that give come before those that get. Memory
/// comes first.
pub fn plan_resize(
    pod: &Pod,
    in_force: &PodResources,
    running: &BTreeSet<&str>,
    rules: ResizeRules,
    cgroup_rules: &PodCgroupRules,
) -> ResizePlan {
    let granted = PodResources::of(pod, rules);
    let before = in_force.applied_to(pod, rules);
    let pod_before = compute_pod_cgroup_values(before.as_ref().unwrap_or(pod), cgroup_rules);
    let pod_after = compute_pod_cgroup_values(pod, cgroup_rules);

    let mut plan = ResizePlan::default();
    let memory = CgroupChange {
        limit: (pod_before.memory_limit, pod_after.memory_limit),
        set_limit: CgroupValues { memory_limit: pod_after.memory_limit, ..Default::default() },
        shares: None,
    };
    let cpu = CgroupChange {
        limit: (pod_before.cpu_quota, pod_after.cpu_quota),
        set_limit: CgroupValues {
            cpu_quota: pod_after.cpu_quota,
            cpu_period: pod_after.cpu_period,
            ..Default::default()
        },
        shares: pod_before.cpu_shares.zip(pod_after.cpu_shares),
    };
    plan.memory_limits.pod = pod_after.memory_limit.filter(|limit| *limit > 0);
    plan.memory_limits.pod_decreases = plan.memory_limits.pod.is_some() && !memory.raises_limit();
    for (resource, cgroup) in [(ResizableResource::Memory, memory), (ResizableResource::Cpu, cpu)] {
        plan.steps.extend(cgroup.before_containers().map(ResizeStep::PodCgroup));
        let mut increases = Vec::new();
        for name in granted.containers.keys().filter(|name| running.contains(name.as_str())) {
            let (old, new) = (figures(in_force, name, resource), figures(&granted, name, resource));
            if old == new {
                continue;
            }
            let step = container_step(name, resource, &granted, in_force);
            let direction = if old.limit == new.limit {
                new.request.cmp(&old.request)
            } else {
                bound(new.limit).cmp(&bound(old.limit))
            };
            if direction.is_gt() {
                increases.push(step);
                continue;
            }
            if resource == ResizableResource::Memory && new.limit != old.limit {
                plan.memory_limits.containers.insert(name.clone(), new.limit);
            }
            plan.steps.push(step);
        }
        plan.steps.append(&mut increases);
        plan.steps.extend(cgroup.after_containers().map(ResizeStep::PodCgroup));
    }
    plan
}

fn container_step(
    name: &str,
    resource: ResizableResource,
    granted: &PodResources,
    in_force: &PodResources,
) -> ResizeStep {
    let none = ResourceRequirements::default();
    let new = granted.containers.get(name).unwrap_or(&none);
    let old = in_force.containers.get(name).unwrap_or(&none);
    // Memory was set before CPU.
    let (resources, pod_level) = match resource {
        ResizableResource::Memory => {
            let cpu = resource.other().as_str();
            let pod_level = granted.pod_level.as_ref().map(|new| {
                with_resource_of(new, in_force.pod_level.as_ref().unwrap_or(&none), cpu)
            });
            (with_resource_of(new, old, cpu), pod_level)
        }
        ResizableResource::Cpu => (new.clone(), granted.pod_level.clone()),
    };
    ResizeStep::Container { name: name.to_owned(), resource, resources, pod_level }
}

/// A limit as something to compare with: none is above all.
fn bound(limit: i64) -> i64 {
    if limit > 0 { limit } else { i64::MAX }
}

/// What becomes of the pod's cgroup for one resource.
struct CgroupChange {
    /// The limit before and after; none, or a value below 1, is unlimited.
    limit: (Option<i64>, Option<i64>),
    set_limit: CgroupValues,
    /// The weight before and after.
    shares: Option<(u64, u64)>,
}

impl CgroupChange {
    fn raises_limit(&self) -> bool {
        let (before, after) = self.limit;
        bound(after.unwrap_or(0)) > bound(before.unwrap_or(0))
    }

    /// A pod that has no limit has no value to write: what is there stays.
    fn set_limit(&self) -> Option<CgroupValues> {
        self.limit.1.map(|_| self.set_limit.clone())
    }

    fn set_shares(&self) -> Option<CgroupValues> {
        let (_, after) = self.shares?;
        Some(CgroupValues { cpu_shares: Some(after), ..Default::default() })
    }

    fn raises_shares(&self) -> bool {
        self.shares.is_some_and(|(before, after)| after > before)
    }

    /// Limits grow before requests do.
    fn before_containers(&self) -> impl Iterator<Item = CgroupValues> {
        let limit = self.set_limit().filter(|_| self.raises_limit());
        limit.into_iter().chain(self.set_shares().filter(|_| self.raises_shares()))
    }

    /// And shrink after them. What is equal is written too, for a plan that was broken off.
    fn after_containers(&self) -> impl Iterator<Item = CgroupValues> {
        let shares = self.set_shares().filter(|_| !self.raises_shares());
        shares.into_iter().chain(self.set_limit().filter(|_| !self.raises_limit()))
    }
}

#[cfg(test)]
#[path = "resize_tests.rs"]
mod tests;
