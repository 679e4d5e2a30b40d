//! Brings the resources that a pod was granted into force.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use rubelet_allocation_manager::Deviation;
use rubelet_node_resources::{
    MemoryLimits, ResizeStep, compute_container_changes, compute_pod_cgroup_values, plan_resize,
};
use rubelet_pod_lifecycle::{ActionFailure, ActionOutcome, ResizeDue};
use rubelet_pod_workers::{ActionOrder, PodReport};
use rubelet_types::{
    ContainerId, ContainerResources, EventObject, PodUid, SandboxId, SandboxState, error_chain,
    find_container, pod_ref, pod_requests,
};
use tokio::time::Instant;

use super::{ResizeNews, Trigger, resize_message};
use crate::executor::Executor;

impl Executor {
    /// What of the resources in force is not as `pod` was granted them.
    pub(crate) fn compute_resize_due(&self, pod: &Arc<Pod>) -> Option<ResizeDue> {
        let deviation = self.allocations.deviation(&pod_ref(pod).uid)?;
        let rules = self.allocations.rules();
        let changes = compute_container_changes(pod, &deviation.in_force, rules);
        Some(ResizeDue {
            in_place: changes.in_place,
            by_restart: changes.by_restart,
            pod_cgroup: deviation.cgroup_due,
        })
    }

    /// What the pod's cgroup has; none if that is what the pod was granted.
    pub(crate) fn pod_cgroup_in_force(&self, pod: &Pod) -> Option<ContainerResources> {
        let deviation = self.allocations.deviation(&pod_ref(pod).uid)?;
        let before = deviation.in_force.applied_to(pod, self.allocations.rules());
        let rules = self.container_manager.pod_cgroup_rules().ok()?;
        let values = compute_pod_cgroup_values(before.as_ref().unwrap_or(pod), rules);
        let signed = |value: Option<u64>| value.and_then(|value| i64::try_from(value).ok());
        Some(ContainerResources {
            cpu_shares: signed(values.cpu_shares),
            cpu_quota: values.cpu_quota,
            cpu_period: signed(values.cpu_period),
            memory_limit: values.memory_limit,
        })
    }

    /// Brings the pod's cgroup and its running containers to what the pod was granted.
    pub(crate) async fn resize_pod(&self, order: &ActionOrder) -> ActionOutcome {
        let uid = &order.pod_ref.uid;
        let Some(begun) = self.allocations.begin(uid) else { return ActionOutcome::Done };
        let started = Instant::now();
        let outcome = self.carry_out_resize(order, &begun).await;
        self.resize_metrics.tried(started.elapsed(), outcome.is_ok());
        match outcome {
            Ok(()) => {
                self.allocations.finish(&order.pod, &begun).await;
                if self.frees_requests(order, &begun) {
                    self.resize_triggers.pull(Trigger::PodResized);
                }
                ActionOutcome::Done
            }
            Err(message) => {
                self.tell_resize_failed(order, &message);
                ActionOutcome::Failed(ActionFailure { reason: "", message, retry_at: None })
            }
        }
    }

    fn frees_requests(&self, order: &ActionOrder, begun: &Deviation) -> bool {
        let Some(before) = begun.in_force.applied_to(&order.pod, self.allocations.rules()) else {
            return false;
        };
        let (before, now) = (pod_requests(&before), pod_requests(&order.pod));
        now.cpu_milli() < before.cpu_milli() || now.memory_bytes() < before.memory_bytes()
    }

    fn tell_resize_failed(&self, order: &ActionOrder, message: &str) {
        let generation = order.pod.metadata.generation.unwrap_or_default();
        let uid = &order.pod_ref.uid;
        if let Some(generation) = self.resizes.fail(uid, message, generation, self.clock.now()) {
            let text = resize_message(&order.pod, generation, ResizeNews::Error { message });
            let object = EventObject::Pod(order.pod_ref.clone());
            self.events.warning(object, "ResizeError", text);
        }
    }

    async fn carry_out_resize(&self, order: &ActionOrder, begun: &Deviation) -> Result<(), String> {
        let manager = &self.container_manager;
        let text = |error| error_chain(&error);
        let running: BTreeMap<&str, &ContainerId> = order
            .snapshot
            .containers
            .iter()
            .filter(|container| container.is_running())
            .map(|container| (container.name.as_str(), &container.id))
            .collect();
        let names: BTreeSet<&str> = running.keys().copied().collect();
        let rules = self.allocations.rules();
        let cgroup_rules = manager.pod_cgroup_rules().map_err(text)?;
        let plan = plan_resize(&order.pod, &begun.in_force, &names, rules, cgroup_rules);
        self.check_memory(&order.pod, &plan.memory_limits, &running).await?;
        self.announce(order).await?;
        for step in plan.steps {
            match step {
                ResizeStep::PodCgroup(values) => {
                    manager.set_pod_cgroup_values(&order.pod, &values).await.map_err(text)?;
                }
                ResizeStep::Container { name, resources, pod_level, .. } => {
                    let Some(id) = running.get(name.as_str()) else { continue };
                    self.resize_container(&order.pod, &name, id, &resources, pod_level).await?;
                    let uid = &order.pod_ref.uid;
                    self.allocations.container_changed(uid, &name, &resources);
                }
            }
        }
        Ok(())
    }

    async fn resize_container(
        &self,
        pod: &Pod,
        name: &str,
        id: &ContainerId,
        resources: &ResourceRequirements,
        pod_level: Option<ResourceRequirements>,
    ) -> Result<(), String> {
        let Some(spec) = find_container(pod, name) else { return Ok(()) };
        let mut container = spec.container.into_owned();
        container.resources = Some(resources.clone());
        let mut pod = pod.clone();
        if let Some(spec) = &mut pod.spec {
            spec.resources = pod_level;
        }
        let resources = self
            .container_manager
            .container_resources(&pod, &container, false)
            .map_err(|error| error_chain(&error))?;
        self.runtime
            .update_container_resources(id, resources)
            .await
            .map_err(|failure| failure.message)
    }

    /// A runtime that must know of it is told before the pod gets anything, and may refuse.
    async fn announce(&self, order: &ActionOrder) -> Result<(), String> {
        let ready = |id: &&SandboxId| {
            let mut sandboxes = order.snapshot.sandboxes.iter();
            sandboxes.any(|sandbox| sandbox.id == **id && sandbox.state == SandboxState::Ready)
        };
        let newest = order.snapshot.sandboxes.first().map(|sandbox| &sandbox.id);
        let Some(sandbox) = newest.filter(ready) else { return Ok(()) };
        let manager = &self.container_manager;
        let text = |error| error_chain(&error);
        let overhead = manager.sandbox_overhead(&order.pod).map_err(text)?;
        let resources = manager.sandbox_resources(&order.pod, false).map_err(text)?;
        let told = self.runtime.announce_pod_resources(sandbox, overhead, resources).await;
        told.map_err(|failure| {
            format!("failed to notify runtime; resize rejected: {}", failure.message)
        })
    }

    /// No memory limit may be set below what is used: the kernel would kill.
    async fn check_memory(
        &self,
        pod: &Pod,
        limits: &MemoryLimits,
        running: &BTreeMap<&str, &ContainerId>,
    ) -> Result<(), String> {
        if !limits.pod_decreases && limits.containers.is_empty() {
            return Ok(());
        }
        let exceeds = |limit: i64, usage: u64| i128::from(usage) >= i128::from(limit);
        let mut problems = Vec::new();
        if let Some(limit) = limits.pod {
            let usage = self.container_manager.pod_memory_usage(pod).await;
            match usage.map_err(|error| error_chain(&error))? {
                Some(usage) if exceeds(limit, usage) => problems.push(format!(
                    "attempting to set pod memory limit ({limit}) below current usage ({usage})"
                )),
                Some(_) | None => {}
            }
        }
        for (name, limit) in &limits.containers {
            let Some(id) = running.get(name.as_str()).filter(|_| *limit > 0) else { continue };
            match self.runtime.container_memory_usage(id).await {
                Ok(Some(usage)) if exceeds(*limit, usage) => problems.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current \
                     usage ({usage})"
                )),
                Ok(Some(_)) => {}
                Ok(None) => problems.push(format!("missing container {name:?} memory usage")),
                Err(failure) => return Err(failure.message),
            }
        }
        match problems.as_slice() {
            [] => Ok(()),
            [one] => Err(format!("cannot decrease memory limits: {one}")),
            many => Err(format!("cannot decrease memory limits: [{}]", many.join(", "))),
        }
    }

    /// Takes in how far the resize of a pod is, before its status is told.
    pub(crate) fn follow_resize(&self, report: &PodReport<'_>) {
        let uid = &report.pod_ref.uid;
        if report.stage.is_stopping() {
            self.resizes.forget(uid);
        } else if self.allocations.deviates(uid) {
            let generation = report.pod.metadata.generation.unwrap_or_default();
            self.resizes.go_on(uid, generation, self.clock.now());
        } else if let Some(generation) = self.resizes.complete(uid) {
            let text = resize_message(report.pod, generation, ResizeNews::Completed);
            let object = EventObject::Pod(report.pod_ref.clone());
            self.events.normal(object, "ResizeCompleted", text);
        }
    }

    /// The pod is gone.
    pub(crate) fn forget_resize(&self, uid: &PodUid) {
        self.resizes.forget(uid);
        self.allocations.forget(uid);
    }
}
