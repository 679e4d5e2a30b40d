use std::collections::BTreeMap;
use std::time::Duration;

use rubelet_metrics::{DEFAULT_BUCKETS, Desc, Exposition, Stability};
use rubelet_types::{PodRef, ProbeKind};

/// How long attempts took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DurationHistogram {
    /// How many fell into each of [`DEFAULT_BUCKETS`], not cumulative, then those above.
    pub counts: [u64; DEFAULT_BUCKETS.len() + 1],
    /// All of them together, in seconds.
    pub sum_seconds: f64,
}

impl DurationHistogram {
    pub(crate) fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = DEFAULT_BUCKETS.partition_point(|bound| *bound < seconds);
        self.counts[bucket] += 1;
        self.sum_seconds += seconds;
    }

    fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_seconds += other.sum_seconds;
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

pub(crate) const PROBES: Desc =
    Desc::counter("prober_probe_total", "Probes of containers, by their result.")
        .with(&["container", "namespace", "pod", "pod_uid", "probe_type", "result"])
        .of(Stability::Beta);
pub(crate) const DURATION: Desc = Desc::histogram(
    "prober_probe_duration_seconds",
    "How long successful probes of containers took.",
    DEFAULT_BUCKETS,
)
.with(&["container", "namespace", "pod", "probe_type"]);

/// Writes what was counted of all probes.
pub(crate) fn write(probes: &[ProbeMetrics], to: &mut Exposition) {
    let mut totals = to.family(&PROBES);
    for probe in probes {
        let pod = &probe.pod;
        let kind = probe.kind.to_string();
        for (result, count) in [("successful", probe.successful), ("failed", probe.failed)] {
            if count > 0 {
                let (container, uid) = (&*probe.container, pod.uid.as_str());
                let labels = [container, &*pod.namespace, &*pod.name, uid, &*kind, result];
                totals.count(&labels, count);
            }
        }
    }
    // Two pods may have one name for a while: one is on its way out.
    let mut by_name: BTreeMap<[&str; 3], BTreeMap<ProbeKind, DurationHistogram>> = BTreeMap::new();
    for probe in probes.iter().filter(|probe| probe.successful > 0) {
        let name = [&*probe.container, &*probe.pod.namespace, &*probe.pod.name];
        by_name.entry(name).or_default().entry(probe.kind).or_default().add(&probe.durations);
    }
    let mut durations = to.family(&DURATION);
    for ([container, namespace, pod], by_kind) in by_name {
        for (kind, DurationHistogram { counts, sum_seconds }) in by_kind {
            let kind = kind.to_string();
            durations.histogram(&[container, namespace, pod, &*kind], counts, sum_seconds);
        }
    }
}
