//! How long pods of the API server take to start, as users wait for it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus, Volume};
use rubelet_metrics::{Desc, Gauge, Histogram, Metric, Stability, collector};
use rubelet_types::{PodUid, is_host_network, is_terminal_phase, pod_ref};
use tokio::time::Instant;

pub(super) const START_BUCKETS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const SLI: Desc = Desc::histogram(
    "kubelet_pod_start_sli_duration_seconds",
    "From the creation of a pod until the API server shows all its containers as started, without \
     the time for images and init containers. Pods with volumes that outlive them are left out.",
    START_BUCKETS,
);
const TOTAL: Desc = Desc::histogram(
    "kubelet_pod_start_total_duration_seconds",
    "From the creation of a pod until the API server shows all its containers as started.",
    START_BUCKETS,
);
const FIRST: Desc = Desc::gauge(
    "kubelet_first_network_pod_start_sli_duration_seconds",
    "The same as kubelet_pod_start_sli_duration_seconds, of the first pod with a network of its own.",
)
.of(Stability::Internal);

/// Measures the starts of pods. It remembers a pod only from its first sight until it has started.
#[derive(Debug)]
pub(crate) struct PodStartup {
    sli: Metric<Histogram>,
    total: Metric<Histogram>,
    first: Metric<Gauge>,
    state: Mutex<State>,
}

collector!(PodStartup { sli, total, first });

#[derive(Debug, Default)]
struct State {
    starting: HashMap<PodUid, Starting>,
    had_network_pod: bool,
}

/// Images of a pod that are pulled at once count once.
#[derive(Debug, Default)]
struct Starting {
    pulls: u32,
    since: Option<Instant>,
    pulled: Duration,
}

impl Default for PodStartup {
    fn default() -> Self {
        Self {
            sli: Metric::new(&SLI),
            total: Metric::new(&TOTAL),
            first: Metric::new(&FIRST),
            state: Mutex::default(),
        }
    }
}

impl PodStartup {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server shows the pod so.
    pub(crate) fn observed_on_watch(&self, pod: &Pod, now: Timestamp) {
        let nothing = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&nothing);
        let uid = pod_ref(pod).uid;
        let mut state = self.state();
        if is_terminal_phase(status.phase.as_deref()) || is_unschedulable(status) {
            state.starting.remove(&uid);
            return;
        }
        if status.start_time.is_none() {
            state.starting.entry(uid).or_default();
            return;
        }
        if !has_started(status) {
            return;
        }
        // One that had started before this kubelet did is none of its doing.
        let Some(starting) = state.starting.remove(&uid) else { return };
        let Some(created) = &pod.metadata.creation_timestamp else { return };
        let seconds = now.duration_since(created.0).as_secs_f64().max(0.0);
        self.total.observe(seconds);
        if has_lasting_volumes(pod) {
            return;
        }
        let spent = starting.pulled.as_secs_f64() + init_seconds(status);
        let sli = (seconds - spent).max(0.0);
        self.sli.observe(sli);
        if !is_host_network(pod) && !std::mem::replace(&mut state.had_network_pod, true) {
            self.first.set(sli);
        }
    }

    /// Nobody wants the pod any more.
    pub(crate) fn forget(&self, pod: &PodUid) {
        self.state().starting.remove(pod);
    }

    /// An image for the pod is being asked for.
    pub(crate) fn image_begun(&self, pod: &PodUid, now: Instant) {
        if let Some(starting) = self.state().starting.get_mut(pod) {
            starting.pulls += 1;
            starting.since.get_or_insert(now);
        }
    }

    /// It is there, or will not be.
    pub(crate) fn image_ended(&self, pod: &PodUid, now: Instant) {
        if let Some(starting) = self.state().starting.get_mut(pod) {
            starting.pulls = starting.pulls.saturating_sub(1);
            if starting.pulls == 0
                && let Some(since) = starting.since.take()
            {
                starting.pulled += now.duration_since(since);
            }
        }
    }
}

fn is_unschedulable(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
}

fn has_started(status: &PodStatus) -> bool {
    let containers = status.container_statuses.as_deref().unwrap_or_default();
    !containers.is_empty()
        && containers.iter().all(|container| {
            let running = container.state.as_ref().and_then(|state| state.running.as_ref());
            running.is_some_and(|running| running.started_at.is_some())
        })
}

/// How long init containers have run that have ended: sidecars have not.
fn init_seconds(status: &PodStatus) -> f64 {
    let containers = status.init_container_statuses.iter().flatten();
    let ended = containers.filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    let lasted = ended.filter_map(|end| {
        let (from, to) = (end.started_at.as_ref()?, end.finished_at.as_ref()?);
        Some(to.0.duration_since(from.0).as_secs_f64().max(0.0))
    });
    lasted.sum()
}

/// Starting with these depends on more than this node.
fn has_lasting_volumes(pod: &Pod) -> bool {
    let ends_with_pod = |volume: &Volume| {
        volume.secret.is_some()
            || volume.config_map.is_some()
            || volume.downward_api.is_some()
            || volume.empty_dir.is_some()
            || volume.projected.is_some()
    };
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    !volumes.iter().all(ends_with_pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value, status: Value) -> Pod {
        let pod = json!({
            "metadata": {"uid": "u", "name": "n", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": spec,
            "status": status,
        });
        serde_json::from_value(pod).unwrap()
    }

    fn started() -> Value {
        json!({
            "startTime": "2026-01-01T00:00:01Z",
            "initContainerStatuses": [{"name": "i", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "state": {"terminated": {"exitCode": 0,
                    "startedAt": "2026-01-01T00:00:02Z", "finishedAt": "2026-01-01T00:00:05Z"}}}],
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true,
                "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:09Z"}}}],
        })
    }

    fn at(seconds: i64) -> Timestamp {
        "2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap()
            + jiff::SignedDuration::from_secs(seconds)
    }

    #[test]
    fn a_start_counts_once_and_without_what_others_take() {
        let startup = PodStartup::default();
        let spec = json!({"containers": [], "volumes": [{"name": "v", "emptyDir": {}}]});
        startup.observed_on_watch(&pod(spec.clone(), json!({"phase": "Pending"})), at(1));
        let (uid, now) = (PodUid::new("u"), Instant::now());
        // Two at once, four seconds in all.
        startup.image_begun(&uid, now);
        startup.image_begun(&uid, now + Duration::from_secs(1));
        startup.image_ended(&uid, now + Duration::from_secs(2));
        startup.image_ended(&uid, now + Duration::from_secs(4));
        for _ in 0..2 {
            startup.observed_on_watch(&pod(spec.clone(), started()), at(10));
        }
        assert_eq!((startup.total.count(), startup.sli.count()), (1, 1));
        // 10 s, less 4 s for images and 3 s for the init container.
        assert!((startup.first.get() - 3.0).abs() < 0.01, "{}", startup.first.get());
        assert!(startup.state().starting.is_empty());
    }

    #[test]
    fn pods_that_wait_for_others_are_left_out() {
        let startup = PodStartup::default();
        let claim = json!({"containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
        startup.observed_on_watch(&pod(claim.clone(), json!({})), at(1));
        startup.observed_on_watch(&pod(claim, started()), at(10));
        assert_eq!((startup.total.count(), startup.sli.count()), (1, 0));
        // It was running when this kubelet came.
        startup.observed_on_watch(&pod(json!({"containers": []}), started()), at(10));
        assert_eq!(startup.total.count(), 1);
        let unschedulable = json!({"conditions": [{"type": "PodScheduled", "status": "False"}]});
        startup.observed_on_watch(&pod(json!({"containers": []}), unschedulable), at(1));
        let failed = pod(json!({"containers": []}), json!({"phase": "Failed"}));
        startup.observed_on_watch(&pod(json!({"containers": []}), json!({})), at(1));
        startup.observed_on_watch(&failed, at(2));
        assert!(startup.state().starting.is_empty());
    }
}
