use std::time::Duration;

use rubelet_types::{PodRef, ProbeKind};

/// Upper bounds of the buckets of `prober_probe_duration_seconds`, in seconds; one more bucket
/// takes what is above.
pub const DURATION_BUCKETS_SECONDS: [f64; 11] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// How long attempts took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DurationHistogram {
    /// How many fell into each of [`DURATION_BUCKETS_SECONDS`], not cumulative, then those above.
    pub counts: [u64; DURATION_BUCKETS_SECONDS.len() + 1],
    /// All of them together, in seconds.
    pub sum_seconds: f64,
}

impl DurationHistogram {
    pub(crate) fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = DURATION_BUCKETS_SECONDS
            .iter()
            .position(|bound| seconds <= *bound)
            .unwrap_or(DURATION_BUCKETS_SECONDS.len());
        self.counts[bucket] += 1;
        self.sum_seconds += seconds;
    }
}

/// What was counted of one probe since it exists: one series of `prober_probe_total` for each
/// `result`, and one of `prober_probe_duration_seconds`.
///
/// As in the Go kubelet, attempts that errored count nowhere, so that the result `unknown` never
/// occurs, and only successes are timed.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeMetrics {
    /// The pod.
    pub pod: PodRef,
    /// The container's name.
    pub container: String,
    /// `probe_type`.
    pub kind: ProbeKind,
    /// `result="successful"`.
    pub successful: u64,
    /// `result="failed"`.
    pub failed: u64,
    /// How long the successful ones took.
    pub durations: DurationHistogram,
}
