use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use rubelet_metrics::{Counter, Desc, Family, Histogram, Metric, collector};

const SYNC_DURATION: Desc = Desc::histogram(
    "kubelet_pod_status_sync_duration_seconds",
    "From the first change of a pod's status that the API server did not know until it knows.",
    &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0],
);
const TERMINATED: Desc =
    Desc::counter("kubelet_terminated_containers_total", "Containers that have ended, and how.")
        .with(&["container_type", "exit_code", "reason"]);

/// What is counted of statuses.
#[derive(Debug)]
pub struct StatusMetrics {
    sync_duration: Metric<Histogram>,
    terminated: Family<3, Counter>,
}

collector!(StatusMetrics { sync_duration, terminated });

impl Default for StatusMetrics {
    fn default() -> Self {
        Self { sync_duration: Metric::new(&SYNC_DURATION), terminated: Family::new(&TERMINATED) }
    }
}

impl StatusMetrics {
    /// A status that changed so long ago has reached the API server. The wall clock may have been
    /// set back meanwhile.
    pub(crate) fn written_after(&self, duration: Duration) {
        self.sync_duration.observe_duration(duration);
    }

    /// Counts the containers that the status before does not show as ended.
    pub(crate) fn count_ends(&self, before: &PodStatus, now: &PodStatus) {
        for (kind, before, now) in [
            ("init_container", &before.init_container_statuses, &now.init_container_statuses),
            ("container", &before.container_statuses, &now.container_statuses),
            (
                "ephemeral_container",
                &before.ephemeral_container_statuses,
                &now.ephemeral_container_statuses,
            ),
        ] {
            let before = before.as_deref().unwrap_or_default();
            for status in now.iter().flatten() {
                let Some(ended) = end_of(status) else { continue };
                let mut known = before.iter().filter(|other| other.name == status.name);
                if known.any(|other| end_of(other).is_some()) {
                    continue;
                }
                let code = ended.exit_code.to_string();
                let reason = ended.reason.as_deref().unwrap_or_default();
                self.terminated.with([kind, &code, reason], Counter::inc);
            }
        }
    }
}

fn end_of(
    status: &ContainerStatus,
) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use rubelet_metrics::{Format, Registry};
    use serde_json::json;

    use super::*;

    #[test]
    fn an_end_counts_once() {
        let status = |containers: serde_json::Value| -> PodStatus {
            serde_json::from_value(containers).unwrap()
        };
        let ended = |name: &str, code: i32, reason: &str| {
            json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": code, "reason": reason}}})
        };
        let runs = json!({"name": "a", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "state": {"running": {}}});
        let before = status(json!({"containerStatuses": [runs]}));
        let after = status(json!({
            "containerStatuses": [ended("a", 137, "OOMKilled"), ended("b", 0, "Completed")],
            "initContainerStatuses": [ended("i", 0, "Completed")],
        }));
        let metrics = std::sync::Arc::new(StatusMetrics::default());
        metrics.count_ends(&before, &after);
        metrics.count_ends(&after, &after);
        let text = Registry::new().with(metrics).expose(Format::Prometheus);
        let mut lines: Vec<_> =
            text.lines().filter(|line| line.starts_with("kubelet_terminated")).collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                "kubelet_terminated_containers_total{container_type=\"container\",\
                 exit_code=\"0\",reason=\"Completed\"} 1",
                "kubelet_terminated_containers_total{container_type=\"container\",\
                 exit_code=\"137\",reason=\"OOMKilled\"} 1",
                "kubelet_terminated_containers_total{container_type=\"init_container\",\
                 exit_code=\"0\",reason=\"Completed\"} 1",
            ]
        );
    }
}
