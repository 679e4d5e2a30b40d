//! What is counted of pods and containers, and how many of them there are.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rubelet_cri::observe::ListedContainerState;
use rubelet_metrics::{
    Collector, Counter, DEFAULT_BUCKETS, Desc, Exposition, Family, Histogram, Metric, collector,
};
use rubelet_pleg::PlegHandle;
use rubelet_pod_lifecycle::Stage;
use rubelet_pod_sources::MirrorPods;
use rubelet_pod_workers::PodWorkers;
use rubelet_types::{Clock, ContainerKind, SandboxState, is_static_pod};

use super::startup::{PodStartup, START_BUCKETS};
use crate::executor::Executor;
use crate::pods::DesiredPods;

const WORKER_START: Desc = Desc::histogram(
    "kubelet_pod_worker_start_duration_seconds",
    "From the first sight of a pod until its worker does something for it.",
    DEFAULT_BUCKETS,
);
const POD_START: Desc = Desc::histogram(
    "kubelet_pod_start_duration_seconds",
    "From the first sight of a pod until it runs.",
    START_BUCKETS,
);
const STARTED_PODS: Desc =
    Desc::counter("kubelet_started_pods_total", "Sandboxes that were to be created.");
const STARTED_PODS_ERRORS: Desc =
    Desc::counter("kubelet_started_pods_errors_total", "Sandboxes that could not be created.");
const STARTED_USERNS: Desc = Desc::counter(
    "kubelet_started_user_namespaced_pods_total",
    "Sandboxes that were to be created, of pods with users of their own.",
);
const STARTED_USERNS_ERRORS: Desc = Desc::counter(
    "kubelet_started_user_namespaced_pods_errors_total",
    "Sandboxes that could not be created, of pods with users of their own.",
);
const STARTED_CONTAINERS: Desc =
    Desc::counter("kubelet_started_containers_total", "Containers that were to be started.")
        .with(&["container_type"]);
const STARTED_CONTAINERS_ERRORS: Desc = Desc::counter(
    "kubelet_started_containers_errors_total",
    "Containers that could not be started, by the reason that their status shows.",
)
.with(&["code", "container_type"]);
const IMAGE_VOLUMES: Desc =
    Desc::counter("kubelet_image_volume_requested_total", "Image volumes that containers mount.")
        .of(rubelet_metrics::Stability::Beta);
const IMAGE_VOLUMES_MOUNTED: Desc = Desc::counter(
    "kubelet_image_volume_mounted_succeed_total",
    "Image volumes of containers that could be created.",
)
.of(rubelet_metrics::Stability::Beta);
const IMAGE_VOLUMES_FAILED: Desc = Desc::counter(
    "kubelet_image_volume_mounted_errors_total",
    "Image volumes that the runtime could not mount.",
)
.of(rubelet_metrics::Stability::Beta);
const REJECTIONS: Desc =
    Desc::counter("kubelet_admission_rejections_total", "Pods that the node did not take.")
        .with(&["reason"]);
const PREEMPTIONS: Desc = Desc::counter(
    "kubelet_preemptions",
    "Pods that had to go so that a critical pod could start, by what it lacked.",
)
.with(&["preemption_signal"]);

/// The reasons by which rejections are counted; a user can make up others.
const REJECTION_REASONS: &[&str] = &[
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
    "node(s) had taints that the pod didn't tolerate",
];

/// What is counted of pods.
#[derive(Debug)]
pub(crate) struct PodMetrics {
    worker_start: Metric<Histogram>,
    pod_start: Metric<Histogram>,
    started_pods: Metric<Counter>,
    started_pods_errors: Metric<Counter>,
    started_userns: Metric<Counter>,
    started_userns_errors: Metric<Counter>,
    started_containers: Family<1, Counter>,
    started_containers_errors: Family<2, Counter>,
    image_volumes: Metric<Counter>,
    image_volumes_mounted: Metric<Counter>,
    image_volumes_failed: Metric<Counter>,
    rejections: Family<1, Counter>,
    preemptions: Family<1, Counter>,
    /// How long pods of the API server take to start.
    pub(crate) startup: Arc<PodStartup>,
}

collector!(PodMetrics {
    worker_start,
    pod_start,
    started_pods,
    started_pods_errors,
    started_userns,
    started_userns_errors,
    started_containers,
    started_containers_errors,
    image_volumes,
    image_volumes_mounted,
    image_volumes_failed,
    rejections,
    preemptions,
});

impl Default for PodMetrics {
    fn default() -> Self {
        Self {
            worker_start: Metric::new(&WORKER_START),
            pod_start: Metric::new(&POD_START),
            started_pods: Metric::new(&STARTED_PODS),
            started_pods_errors: Metric::new(&STARTED_PODS_ERRORS),
            started_userns: Metric::new(&STARTED_USERNS),
            started_userns_errors: Metric::new(&STARTED_USERNS_ERRORS),
            started_containers: Family::new(&STARTED_CONTAINERS),
            started_containers_errors: Family::new(&STARTED_CONTAINERS_ERRORS),
            image_volumes: Metric::new(&IMAGE_VOLUMES),
            image_volumes_mounted: Metric::new(&IMAGE_VOLUMES_MOUNTED),
            image_volumes_failed: Metric::new(&IMAGE_VOLUMES_FAILED),
            rejections: Family::new(&REJECTIONS),
            preemptions: Family::new(&PREEMPTIONS),
            startup: Arc::default(),
        }
    }
}

impl PodMetrics {
    /// A worker begins with a pod that was first seen this long ago.
    pub(crate) fn worker_began(&self, since_seen: Duration) {
        self.worker_start.observe_duration(since_seen);
    }

    /// A pod runs that was first seen this long ago.
    pub(crate) fn pod_runs(&self, since_seen: Duration) {
        self.pod_start.observe_duration(since_seen);
    }

    /// A sandbox was to be created.
    pub(crate) fn sandbox(&self, has_own_users: bool, failed: bool) {
        self.started_pods.inc();
        self.started_pods_errors.add(u64::from(failed));
        if has_own_users {
            self.started_userns.inc();
            self.started_userns_errors.add(u64::from(failed));
        }
    }

    /// A container was to be started; it was not for the reason `failed`.
    pub(crate) fn container(&self, kind: ContainerKind, failed: Option<&str>) {
        let kind = match kind {
            ContainerKind::Regular => "container",
            ContainerKind::Init | ContainerKind::Sidecar => "init_container",
            ContainerKind::Ephemeral => "ephemeral_container",
        };
        self.started_containers.with([kind], Counter::inc);
        if let Some(reason) = failed {
            self.started_containers_errors.with([reason, kind], Counter::inc);
        }
    }

    /// A container with so many image volumes was to be started; `failed` if the runtime could not
    /// mount one.
    pub(crate) fn image_volumes(&self, count: usize, failed: bool) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.image_volumes.add(count);
        let ended = if failed { &self.image_volumes_failed } else { &self.image_volumes_mounted };
        ended.add(count);
    }

    /// A pod was not let in.
    pub(crate) fn rejected(&self, reason: &str) {
        let reason = if REJECTION_REASONS.contains(&reason) {
            reason
        } else if reason.starts_with("OutOf") {
            "OutOfExtendedResources"
        } else {
            "Other"
        };
        self.rejections.with([reason], Counter::inc);
    }

    /// A pod has to go for one that lacks `resource`.
    pub(crate) fn preempted(&self, resource: &str) {
        self.preemptions.with([resource], Counter::inc);
    }
}

const DESIRED: Desc =
    Desc::gauge("kubelet_desired_pods", "Pods that the sources want.").with(&["static"]);
const ACTIVE: Desc =
    Desc::gauge("kubelet_active_pods", "Pods that use what the node has, or for which it is kept.")
        .with(&["static"]);
const MIRRORS: Desc =
    Desc::gauge("kubelet_mirror_pods", "Static pods that the API server shows as mirrors.");
const WORKING: Desc = Desc::gauge(
    "kubelet_working_pods",
    "Pods that are worked on: how far they are, and whether anybody wants them.",
)
.with(&["config", "lifecycle", "static"]);
const EPHEMERAL: Desc = Desc::gauge(
    "kubelet_managed_ephemeral_containers",
    "Ephemeral containers of the pods that the sources want.",
);
const RUNNING_PODS: Desc =
    Desc::gauge("kubelet_running_pods", "Pods whose sandbox is ready, as last listed.");
const RUNNING_CONTAINERS: Desc = Desc::gauge(
    "kubelet_running_containers",
    "Containers that the runtime holds, as last listed, by their state.",
)
.with(&["container_state"]);
const LAST_SEEN: Desc = Desc::gauge(
    "kubelet_pleg_last_seen_seconds",
    "When everything the runtime holds was last listed, in Unix time.",
);

/// Counts, whenever it is asked, the pods that there are.
pub(crate) struct PodGauges {
    pub(crate) executor: Arc<Executor>,
    pub(crate) workers: PodWorkers<Executor>,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) mirrors: Arc<MirrorPods>,
    pub(crate) pleg: PlegHandle,
    pub(crate) clock: Clock,
}

/// Upstream leaves the label `static` empty for what is not.
fn static_label(is_static: bool) -> &'static str {
    if is_static { "true" } else { "" }
}

impl Collector for PodGauges {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![
            &DESIRED,
            &ACTIVE,
            &MIRRORS,
            &EPHEMERAL,
            &WORKING,
            &RUNNING_PODS,
            &RUNNING_CONTAINERS,
            &LAST_SEEN,
        ]
    }

    fn collect(&self, to: &mut Exposition) {
        let desired = self.desired.all();
        let active = self.executor.active_pods();
        for (desc, pods) in [(&DESIRED, &desired), (&ACTIVE, &active)] {
            let mut samples = to.family(desc);
            for is_static in [false, true] {
                let count = pods.iter().filter(|pod| is_static_pod(pod) == is_static).count();
                samples.count(&[static_label(is_static)], number(count));
            }
        }
        to.family(&MIRRORS).count(&[], number(self.mirrors.all().len()));
        let ephemeral: usize = desired
            .iter()
            .filter_map(|pod| pod.spec.as_ref()?.ephemeral_containers.as_ref())
            .map(Vec::len)
            .sum();
        to.family(&EPHEMERAL).count(&[], number(ephemeral));
        self.collect_working(to);
        self.collect_running(to);
    }
}

impl PodGauges {
    fn collect_working(&self, to: &mut Exposition) {
        let mut counts = BTreeMap::new();
        // All of them are shown, also those that are 0.
        for config in ["desired", "orphan", "runtime_only"] {
            for lifecycle in ["sync", "terminating", "terminated"] {
                let labels: &[&str] =
                    if config == "runtime_only" { &["unknown"] } else { &["", "true"] };
                for of_static in labels {
                    counts.insert([config, lifecycle, *of_static], 0);
                }
            }
        }
        self.workers.visit(|worker, is_static| {
            let lifecycle = match worker.stage {
                Stage::Waiting | Stage::Syncing => "sync",
                Stage::Terminating { .. } => "terminating",
                Stage::Terminated { .. } | Stage::Finished { .. } => "terminated",
            };
            let (config, of_static) = if worker.is_orphan {
                ("runtime_only", "unknown")
            } else if worker.is_removed {
                ("orphan", static_label(is_static))
            } else {
                ("desired", static_label(is_static))
            };
            *counts.entry([config, lifecycle, of_static]).or_default() += 1;
        });
        let mut working = to.family(&WORKING);
        for (labels, count) in counts {
            working.count(&labels, count);
        }
    }

    fn collect_running(&self, to: &mut Exposition) {
        let pods = self.pleg.pods();
        let runs = pods
            .values()
            .filter(|pod| pod.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready));
        to.family(&RUNNING_PODS).count(&[], number(runs.count()));
        let mut states: BTreeMap<&str, u64> = BTreeMap::new();
        for container in pods.values().flat_map(|pod| &pod.containers) {
            let state = match container.state {
                ListedContainerState::Created => "created",
                ListedContainerState::Running => "running",
                ListedContainerState::Exited => "exited",
                ListedContainerState::Unknown => "unknown",
            };
            *states.entry(state).or_default() += 1;
        }
        let mut containers = to.family(&RUNNING_CONTAINERS);
        for (state, count) in states {
            containers.count(&[state], count);
        }
        if let Some(last) = self.pleg.last_relist() {
            let now = self.clock.now();
            let seen = now.checked_sub(last.elapsed()).unwrap_or(now);
            to.family(&LAST_SEEN).count(&[], u64::try_from(seen.as_second()).unwrap_or(0));
        }
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rubelet_metrics::{Format, Registry};

    use super::*;

    #[test]
    fn reasons_of_rejections_are_upstreams_or_others() {
        let metrics = Arc::new(PodMetrics::default());
        for reason in ["OutOfcpu", "OutOfnvidia.com/gpu", "OutOfexample.org/x", "MadeUp", "Evicted"]
        {
            metrics.rejected(reason);
        }
        metrics.container(ContainerKind::Sidecar, Some("RunContainerError"));
        metrics.container(ContainerKind::Regular, None);
        metrics.sandbox(true, true);
        metrics.sandbox(false, true);
        metrics.image_volumes(2, false);
        metrics.image_volumes(1, true);
        let text = Registry::new().with(metrics).expose(Format::Prometheus);
        for line in [
            "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 1",
            "kubelet_admission_rejections_total{reason=\"OutOfExtendedResources\"} 2",
            "kubelet_admission_rejections_total{reason=\"Other\"} 1",
            "kubelet_admission_rejections_total{reason=\"Evicted\"} 1",
            "kubelet_started_containers_total{container_type=\"container\"} 1",
            "kubelet_started_containers_total{container_type=\"init_container\"} 1",
            "kubelet_started_containers_errors_total{code=\"RunContainerError\",container_type=\"init_container\"} 1",
            "kubelet_started_pods_errors_total 2",
            "kubelet_started_user_namespaced_pods_total 1",
            "kubelet_started_user_namespaced_pods_errors_total 1",
            "kubelet_image_volume_requested_total 3",
            "kubelet_image_volume_mounted_succeed_total 2",
            "kubelet_image_volume_mounted_errors_total 1",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
