use rubelet_metrics::{Counter, DEFAULT_BUCKETS, Desc, Family, Histogram, Metric, collector};

const DURATION: Desc = Desc::histogram(
    "kubelet_pod_worker_duration_seconds",
    "From the moment a worker finds something to do for its pod until all of it is done, by what it \
     was: create, update, sync, kill or terminated.",
    DEFAULT_BUCKETS,
)
.with(&["operation_type"]);
const CONTAINERS: Desc = Desc::histogram(
    "kubelet_containers_per_pod_count",
    "How many containers pods have.",
    &[1.0, 2.0, 4.0, 8.0, 16.0],
);
const RESTARTED: Desc = Desc::counter(
    "kubelet_restarted_pods_total",
    "Pods that came back under their uid while they were on their way out.",
)
.with(&["static"]);
const ORPHANED: Desc = Desc::counter(
    "kubelet_orphaned_runtime_pods_total",
    "Pods that were found in the runtime and that no source knew.",
);

/// What pod workers count.
#[derive(Debug)]
pub struct WorkerMetrics {
    pub(crate) duration: Family<1, Histogram>,
    pub(crate) containers: Metric<Histogram>,
    restarted: Family<1, Counter>,
    pub(crate) orphaned: Metric<Counter>,
}

collector!(WorkerMetrics { duration, containers, restarted, orphaned });

impl Default for WorkerMetrics {
    fn default() -> Self {
        Self {
            duration: Family::new(&DURATION),
            containers: Metric::new(&CONTAINERS),
            restarted: Family::new(&RESTARTED),
            orphaned: Metric::new(&ORPHANED),
        }
    }
}

impl WorkerMetrics {
    /// The pod begins again. The label of pods of the API server is empty upstream.
    pub(crate) fn restarted(&self, is_static: bool) {
        self.restarted.with([if is_static { "true" } else { "" }], Counter::inc);
    }
}
