use rubelet_metrics::{Counter, DEFAULT_BUCKETS, Desc, Histogram, Metric, collector};

const RELIST_DURATION: Desc = Desc::histogram(
    "kubelet_pleg_relist_duration_seconds",
    "How long it took to list everything the runtime holds.",
    DEFAULT_BUCKETS,
);
const RELIST_INTERVAL: Desc = Desc::histogram(
    "kubelet_pleg_relist_interval_seconds",
    "From the beginning of one relist to that of the next.",
    DEFAULT_BUCKETS,
);
const POD_RELIST_DURATION: Desc = Desc::histogram(
    "kubelet_pleg_pod_relist_duration_seconds",
    "How long it took to read what the runtime holds of one pod.",
    DEFAULT_BUCKETS,
);
const DISCARDED: Desc = Desc::counter(
    "kubelet_pleg_discard_events",
    "Changes that nobody took any more. A receiver that is busy is waited for.",
);
const CONNECTIONS: Desc = Desc::counter(
    "kubelet_evented_pleg_connection_success_count",
    "How often a stream of the runtime's events was opened.",
);
const CONNECTION_ERRORS: Desc = Desc::counter(
    "kubelet_evented_pleg_connection_error_count",
    "How often a stream of the runtime's events could not be opened, or broke.",
);

/// What the generator counts. What it sees at the moment is for whoever looks at its
/// [`PlegHandle`](crate::PlegHandle).
#[derive(Debug)]
pub struct PlegMetrics {
    pub(crate) relist_duration: Metric<Histogram>,
    pub(crate) relist_interval: Metric<Histogram>,
    pub(crate) pod_relist_duration: Metric<Histogram>,
    pub(crate) discarded: Metric<Counter>,
    pub(crate) connections: Metric<Counter>,
    pub(crate) connection_errors: Metric<Counter>,
}

collector!(PlegMetrics {
    relist_duration,
    relist_interval,
    pod_relist_duration,
    discarded,
    connections,
    connection_errors,
});

impl Default for PlegMetrics {
    fn default() -> Self {
        Self {
            relist_duration: Metric::new(&RELIST_DURATION),
            relist_interval: Metric::new(&RELIST_INTERVAL),
            pod_relist_duration: Metric::new(&POD_RELIST_DURATION),
            discarded: Metric::new(&DISCARDED),
            connections: Metric::new(&CONNECTIONS),
            connection_errors: Metric::new(&CONNECTION_ERRORS),
        }
    }
}
