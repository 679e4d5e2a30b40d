use std::fmt;

/// Prometheus' usual bounds for durations in seconds.
pub const DEFAULT_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// What a metric's values mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How often something fell into each of these ranges: their upper bounds in ascending order,
    /// to which "all" is added.
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// What Kubernetes promises for a metric; the first word of its help text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// For the components' own use.
    Internal,
    /// May change or go.
    Alpha,
    /// Will not lose labels within its life.
    Beta,
    /// Will not change.
    Stable,
    /// Is no metric of Kubernetes' framework, and says nothing.
    None,
}

impl fmt::Display for Stability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Internal => "[INTERNAL] ",
            Self::Alpha => "[ALPHA] ",
            Self::Beta => "[BETA] ",
            Self::Stable => "[STABLE] ",
            Self::None => "",
        })
    }
}

/// What a metric is: everything but its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Desc {
    /// The full name as upstream has it.
    pub name: &'static str,
    /// One line for people, without the stability.
    pub help: &'static str,
    /// What its values mean.
    pub kind: Kind,
    /// The names of its labels, sorted: series stand in that order, as upstream's do.
    pub labels: &'static [&'static str],
    /// The upper bounds of a histogram's buckets.
    pub buckets: &'static [f64],
    /// What is promised.
    pub stability: Stability,
}

impl Desc {
    const fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Self { name, help, kind, labels: &[], buckets: &[], stability: Stability::Alpha }
    }

    /// A counter without labels, of stability ALPHA.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Counter)
    }

    /// A gauge without labels, of stability ALPHA.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, help, Kind::Gauge)
    }

    /// A histogram without labels, of stability ALPHA.
    pub const fn histogram(
        name: &'static str,
        help: &'static str,
        buckets: &'static [f64],
    ) -> Self {
        Self { buckets, ..Self::new(name, help, Kind::Histogram) }
    }

    /// The same with labels, whose names are sorted.
    #[must_use]
    pub const fn with(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// The same with another stability.
    #[must_use]
    pub const fn of(self, stability: Stability) -> Self {
        Self { stability, ..self }
    }
}
