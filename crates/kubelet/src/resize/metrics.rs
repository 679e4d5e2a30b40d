//! What is counted of resizes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use rubelet_metrics::{Collector, Counter, Desc, Exposition, Family, Histogram, collector};
use rubelet_node_resources::{PodResources, ResizableResource, ResizeRules};
use rubelet_types::{Quantity, ResourceAmounts};

use super::Trigger;
use crate::executor::Executor;

const REQUESTED: Desc = Desc::counter(
    "kubelet_container_requested_resizes_total",
    "Changes of one request or limit of one container that the sources of pods asked for.",
)
.with(&["operation", "requirement", "resource"]);
const ACCEPTED: Desc = Desc::counter(
    "kubelet_pod_deferred_accepted_resizes_total",
    "Resizes that were granted after they had to wait, by what made them be asked for again.",
)
.with(&["retry_trigger"]);
const INFEASIBLE: Desc =
    Desc::counter("kubelet_pod_infeasible_resizes_total", "Resizes that will not be granted.")
        .with(&["reason_detail"]);
const DURATION: Desc = Desc::histogram(
    "kubelet_pod_resize_duration_milliseconds",
    "How long it took to bring a resize into force.",
    &[
        10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0,
        120_000.0, 300_000.0, 600_000.0,
    ],
)
.with(&["success"]);
const PENDING: Desc =
    Desc::gauge("kubelet_pod_pending_resizes", "Resizes that are not granted.").with(&["reason"]);
const IN_PROGRESS: Desc = Desc::gauge(
    "kubelet_pod_in_progress_resizes",
    "Resizes that were granted and are not in force yet.",
);

/// What is counted of resizes.
#[derive(Debug)]
pub(crate) struct ResizeMetrics {
    requested: Family<3, Counter>,
    accepted: Family<1, Counter>,
    infeasible: Family<1, Counter>,
    duration: Family<1, Histogram>,
}

collector!(ResizeMetrics { requested, accepted, infeasible, duration });

impl Default for ResizeMetrics {
    fn default() -> Self {
        Self {
            requested: Family::new(&REQUESTED),
            accepted: Family::new(&ACCEPTED),
            infeasible: Family::new(&INFEASIBLE),
            duration: Family::new(&DURATION),
        }
    }
}

impl ResizeMetrics {
    /// The source of a pod wants it otherwise. Answers whether in its resources.
    pub(crate) fn asked_for(&self, before: &Pod, now: &Pod, rules: ResizeRules) -> bool {
        let (before, now) = (PodResources::of(before, rules), PodResources::of(now, rules));
        let none = ResourceRequirements::default();
        for (name, new) in &now.containers {
            let old = before.containers.get(name).unwrap_or(&none);
            for resource in [ResizableResource::Memory, ResizableResource::Cpu] {
                for requirement in ["requests", "limits"] {
                    let amount = |of: &ResourceRequirements| {
                        let list =
                            if requirement == "requests" { &of.requests } else { &of.limits };
                        let amounts = ResourceAmounts::from_api(list.as_ref());
                        amounts.get(resource.as_str()).unwrap_or(Quantity::ZERO)
                    };
                    if let Some(operation) = operation(amount(old), amount(new)) {
                        let labels = [operation, requirement, resource.as_str()];
                        self.requested.with(labels, Counter::inc);
                    }
                }
            }
        }
        !before.means_same(&now)
    }

    /// A resize that had to wait was granted.
    pub(crate) fn accepted(&self, trigger: Trigger) {
        self.accepted.with([trigger.as_str()], Counter::inc);
    }

    /// A resize will not be granted.
    pub(crate) fn infeasible(&self, detail: &'static str) {
        self.infeasible.with([detail], Counter::inc);
    }

    /// A resize was tried to be brought into force.
    pub(crate) fn tried(&self, took: Duration, success: bool) {
        let success = if success { "true" } else { "false" };
        self.duration.with([success], |it| it.observe(took.as_secs_f64() * 1000.0));
    }
}

fn operation(old: Quantity, new: Quantity) -> Option<&'static str> {
    match (old.is_zero(), new.is_zero()) {
        (false, true) => Some("remove"),
        (true, false) => Some("add"),
        _ if new < old => Some("decrease"),
        _ if new > old => Some("increase"),
        _ => None,
    }
}

/// Counts, whenever it is asked, the resizes that there are.
pub(crate) struct ResizeMetricsView(pub(crate) Arc<Executor>);

impl Collector for ResizeMetricsView {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&PENDING, &IN_PROGRESS]
    }

    fn collect(&self, to: &mut Exposition) {
        let (waiting, under_way) = self.0.resizes.counts();
        let mut samples = to.family(&PENDING);
        for (reason, count) in waiting {
            samples.count(&[&reason], count);
        }
        to.family(&IN_PROGRESS).count(&[], under_way);
    }
}

#[cfg(test)]
mod tests {
    use rubelet_metrics::{Format, Registry};
    use serde_json::{Value, json};

    use super::*;

    fn pod(requests: Value, limits: Value) -> Pod {
        let resources = json!({"requests": requests, "limits": limits});
        let containers = json!([{"name": "c", "resources": resources}]);
        serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
    }

    #[test]
    fn each_change_counts_by_itself() {
        let metrics = Arc::new(ResizeMetrics::default());
        let rules = ResizeRules::default();
        let before = pod(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "2"}));
        assert!(!metrics.asked_for(&before, &before, rules));
        let after = pod(json!({"cpu": "500m", "memory": "2Gi"}), json!({"memory": "3Gi"}));
        assert!(metrics.asked_for(&before, &after, rules));
        let text = Registry::new().with(metrics).expose(Format::Prometheus);
        for labels in [
            "operation=\"decrease\",requirement=\"requests\",resource=\"cpu\"",
            "operation=\"increase\",requirement=\"requests\",resource=\"memory\"",
            "operation=\"remove\",requirement=\"limits\",resource=\"cpu\"",
            "operation=\"add\",requirement=\"limits\",resource=\"memory\"",
        ] {
            let line = format!("kubelet_container_requested_resizes_total{{{labels}}} 1");
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
