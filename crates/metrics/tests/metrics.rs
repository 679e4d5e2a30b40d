//! What is counted, and how it reads.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rubelet_metrics::{
    Collector, Counter, Desc, Exposition, Family, Format, Gauge, Histogram, Metric, Registry,
    Stability, collector,
};

const REQUESTS: Desc = Desc::counter("requests_total", "Requests, by \"path\".")
    .with(&["method", "path"])
    .of(Stability::Beta);
const LOST: Desc = Desc::counter("lost", "What was lost\\left.");
const TEMPERATURE: Desc = Desc::gauge("temperature", "How warm it is.").of(Stability::None);
const LATENCY: Desc = Desc::histogram("latency_seconds", "How long it took.", &[0.5, 1.0]);
const SEEN: Desc = Desc::gauge("seen", "What is seen at the moment.").with(&["what"]);

struct Counted {
    requests: Family<2, Counter>,
    lost: Metric<Counter>,
    temperature: Metric<Gauge>,
    latency: Metric<Histogram>,
}

collector!(Counted { requests, lost, temperature, latency });

impl Counted {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            requests: Family::new(&REQUESTS),
            lost: Metric::new(&LOST),
            temperature: Metric::new(&TEMPERATURE),
            latency: Metric::new(&LATENCY),
        })
    }
}

/// Looks at what there is, instead of counting.
struct Seen(&'static [&'static str]);

impl Collector for Seen {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&SEEN]
    }

    fn collect(&self, to: &mut Exposition) {
        let mut seen = to.family(&SEEN);
        for what in self.0 {
            seen.count(&[what], 1);
        }
    }
}

#[test]
fn all_kinds_read_as_prometheus_has_them() {
    let counted = Counted::new();
    counted.requests.with(["GET", "/b"], Counter::inc);
    counted.requests.with(["GET", "/a\n\"\\"], |it| it.add(2));
    counted.requests.with(["GET", "/b"], Counter::inc);
    counted.temperature.set(21.5);
    counted.temperature.add(-1.0);
    for milliseconds in [100, 500, 501, 2000] {
        counted.latency.observe_duration(Duration::from_millis(milliseconds));
    }
    let registry = Registry::new().with(counted).with(Arc::new(Seen(&["sun"])));
    assert_eq!(
        registry.expose(Format::Prometheus),
        r#"# HELP requests_total [BETA] Requests, by "path".
# TYPE requests_total counter
requests_total{method="GET",path="/a\n\"\\"} 2
requests_total{method="GET",path="/b"} 2
# HELP lost [ALPHA] What was lost\\left.
# TYPE lost counter
lost 0
# HELP temperature How warm it is.
# TYPE temperature gauge
temperature 20.5
# HELP latency_seconds [ALPHA] How long it took.
# TYPE latency_seconds histogram
latency_seconds_bucket{le="0.5"} 2
latency_seconds_bucket{le="1"} 3
latency_seconds_bucket{le="+Inf"} 4
latency_seconds_sum 3.101
latency_seconds_count 4
# HELP seen [ALPHA] What is seen at the moment.
# TYPE seen gauge
seen{what="sun"} 1
"#
    );
    assert_eq!(
        registry.expose(Format::OpenMetrics),
        r#"# HELP requests [BETA] Requests, by \"path\".
# TYPE requests counter
requests_total{method="GET",path="/a\n\"\\"} 2.0
requests_total{method="GET",path="/b"} 2.0
# HELP lost [ALPHA] What was lost\\left.
# TYPE lost unknown
lost 0.0
# HELP temperature How warm it is.
# TYPE temperature gauge
temperature 20.5
# HELP latency_seconds [ALPHA] How long it took.
# TYPE latency_seconds histogram
latency_seconds_bucket{le="0.5"} 2
latency_seconds_bucket{le="1.0"} 3
latency_seconds_bucket{le="+Inf"} 4
latency_seconds_sum 3.101
latency_seconds_count 4
# HELP seen [ALPHA] What is seen at the moment.
# TYPE seen gauge
seen{what="sun"} 1.0
# EOF
"#
    );
}

#[test]
fn what_was_never_counted_does_not_appear_but_is_known() {
    let registry = Registry::new().with(Counted::new()).with(Arc::new(Seen(&[])));
    let text = registry.expose(Format::Prometheus);
    assert!(!text.contains("requests_total") && !text.contains("seen"), "{text}");
    assert!(text.contains("\nlost 0\n") && text.contains("latency_seconds_count 0"), "{text}");
    let names: Vec<_> = registry.descs().iter().map(|desc| desc.name).collect();
    assert_eq!(names, ["requests_total", "lost", "temperature", "latency_seconds", "seen"]);
}

#[test]
fn made_up_label_values_end_in_one_series() {
    let family: Family<1, Counter> = Family::new(&OPEN);
    for value in 0..10_000 {
        family.with([&value.to_string()], Counter::inc);
    }
    family.with(["0"], |it| assert_eq!(it.get(), 1, "a series that is there stays itself"));
    family.with(["20000"], |it| assert_eq!(it.get(), 9_744));
}

const OPEN: Desc = Desc::counter("open_total", "Whatever comes.").with(&["what"]);

#[test]
fn nothing_is_lost_between_threads() {
    let counted = Counted::new();
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for round in 0..1000_u16 {
                    counted.requests.with(["GET", if round % 2 == 0 { "a" } else { "b" }], |it| {
                        it.inc();
                    });
                    counted.latency.observe(0.25);
                    counted.temperature.add(1.0);
                }
            });
        }
    });
    counted.requests.with(["GET", "a"], |it| assert_eq!(it.get(), 2000));
    assert_eq!(counted.latency.count(), 4000);
    assert!((counted.temperature.get() - 4000.0).abs() < f64::EPSILON);
}
