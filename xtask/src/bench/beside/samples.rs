//! What is measured, and what is wanted of it.

use std::collections::BTreeMap;

/// A measure. Those with a number are of so many pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    Single,
    SingleCalls,
    SingleQuestions,
    SingleAdded,
    AtOnce(usize),
    AtOnceCalls(usize),
    AtOnceInFlight(usize),
    AtOnceCpu(usize),
    AtOnceCpuOfPlane(usize),
    AtOnceCpuOfRuntime(usize),
    AtOnceWrites(usize),
    Resident(usize),
    IdleCpu(usize),
    Threads(usize),
    Exit,
    ExitOfRuntime,
    Restart,
    RestartReplaced,
    RestartFlips,
    RestartWrites,
    Execs,
    Logs,
    Gone(usize),
}

/// Which of the samples counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Of {
    Median,
    /// Of a hundred samples all but one are not above it; of fewer, none.
    P99,
}

/// What a measure may be at most.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Budget {
    /// Of ours.
    pub(super) at_most: Option<f64>,
    /// Of ours by theirs.
    pub(super) ratio: Option<f64>,
}

impl Budget {
    fn at_most(value: f64) -> Self {
        Self { at_most: Some(value), ratio: None }
    }

    fn ratio(value: f64) -> Self {
        Self { at_most: None, ratio: Some(value) }
    }

    /// None where there is nothing to compare with.
    pub(super) fn is_met(self, ours: f64, ratio: Option<f64>) -> Option<bool> {
        let absolute = self.at_most.map(|most| ours <= most);
        let relative = self.ratio.and_then(|most| ratio.map(|ratio| ratio <= most));
        match (absolute, relative) {
            (None, None) => None,
            (one, other) => Some(one.unwrap_or(true) && other.unwrap_or(true)),
        }
    }
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) of: Of,
    pub(super) digits: usize,
    pub(super) budget: Budget,
}

impl Measure {
    /// Its place in the table: in its chapter by the number of pods, and then what belongs together.
    pub(super) fn place(self) -> (u8, usize, u8) {
        match self {
            Self::Single => (0, 0, 0),
            Self::SingleCalls => (0, 0, 1),
            Self::SingleQuestions => (0, 0, 2),
            Self::SingleAdded => (0, 0, 3),
            Self::AtOnce(count) => (1, count, 0),
            Self::AtOnceCalls(count) => (1, count, 1),
            Self::AtOnceInFlight(count) => (1, count, 2),
            Self::AtOnceCpu(count) => (1, count, 3),
            Self::AtOnceCpuOfPlane(count) => (1, count, 4),
            Self::AtOnceCpuOfRuntime(count) => (1, count, 5),
            Self::AtOnceWrites(count) => (1, count, 6),
            Self::Resident(count) => (2, count, 0),
            Self::IdleCpu(count) => (3, count, 0),
            Self::Threads(count) => (4, count, 0),
            Self::Exit => (5, 0, 0),
            Self::ExitOfRuntime => (5, 0, 1),
            Self::Restart => (6, 0, 0),
            Self::RestartReplaced => (6, 0, 1),
            Self::RestartFlips => (6, 0, 2),
            Self::RestartWrites => (6, 0, 3),
            Self::Execs => (7, 0, 0),
            Self::Logs => (8, 0, 0),
            Self::Gone(count) => (9, count, 0),
        }
    }

    /// Its rows. Budgets hold for as many pods as a node has by default.
    pub(super) fn rows(self) -> Vec<Row> {
        const FULL: usize = 110;
        let row = |name: &str, digits: usize, budget: Budget| Row {
            name: name.to_owned(),
            of: Of::Median,
            digits,
            budget,
        };
        let full =
            |count: usize, budget: Budget| if count == FULL { budget } else { Budget::default() };
        let none = Budget::default();
        let with_p99 = |name: &str, median: Budget, p99: Budget| {
            let of = |what: &str| name.replace("(ms)", &format!("{what} (ms)"));
            vec![row(&of("p50"), 1, median), Row { of: Of::P99, ..row(&of("p99"), 1, p99) }]
        };
        match self {
            Self::Single => with_p99("one pod, seen until ready (ms)", none, none),
            Self::SingleCalls => vec![row("— of that calls of the runtime p50 (ms)", 1, none)],
            Self::SingleQuestions => {
                vec![row("— of that questions to the runtime p50 (ms)", 1, none)]
            }
            Self::SingleAdded => with_p99(
                "— added by the kubelet (ms)",
                Budget::at_most(15.0),
                Budget::at_most(100.0),
            ),
            Self::AtOnce(count) => vec![row(
                &format!("{count} pods at once until all are ready (s)"),
                2,
                full(count, Budget::ratio(0.9)),
            )],
            Self::AtOnceCalls(_) => {
                vec![row("— of that with a call of the runtime under way (s)", 2, none)]
            }
            Self::AtOnceInFlight(_) => vec![row("— calls under way at once then", 1, none)],
            Self::AtOnceCpu(_) => vec![row("— CPU of the kubelet until then (s)", 2, none)],
            Self::AtOnceCpuOfPlane(_) => {
                vec![row("— CPU of the control plane until then (s)", 2, none)]
            }
            Self::AtOnceCpuOfRuntime(_) => {
                vec![row("— CPU of the runtime and all it runs until then (s)", 2, none)]
            }
            Self::AtOnceWrites(_) => vec![row("— writes of each pod's status until then", 1, none)],
            Self::Resident(count) => vec![row(
                &format!("resident memory with {count} pods (MiB)"),
                1,
                full(count, Budget { at_most: Some(25.0), ratio: Some(0.25) }),
            )],
            Self::IdleCpu(count) => vec![row(
                &format!("idle CPU with {count} pods (% of a core)"),
                2,
                full(count, Budget::ratio(0.2)),
            )],
            Self::Threads(count) => vec![row(&format!("threads with {count} pods"), 0, none)],
            Self::Exit => {
                with_p99("end of a container until told (ms)", Budget::at_most(50.0), none)
            }
            Self::ExitOfRuntime => {
                vec![row("— of that until the runtime tells p50 (ms)", 1, none)]
            }
            Self::Restart => {
                vec![row("killed until all are ready again (s)", 2, Budget::at_most(1.0))]
            }
            Self::RestartReplaced => vec![row("— containers replaced", 0, Budget::at_most(0.0))],
            Self::RestartFlips => vec![row("— pods told not to be ready", 0, Budget::at_most(0.0))],
            Self::RestartWrites => vec![row("— statuses written", 0, Budget::at_most(0.0))],
            Self::Execs => vec![row("commands run in a container (1/s)", 1, none)],
            Self::Logs => vec![row("log read (MB/s)", 0, none)],
            Self::Gone(count) => {
                vec![row(&format!("{count} pods deleted until all are gone (s)"), 2, none)]
            }
        }
    }
}

/// All samples of one kubelet.
#[derive(Debug, Default, Clone)]
pub(super) struct Samples(BTreeMap<Measure, Vec<f64>>);

impl Samples {
    pub(super) fn add(&mut self, measure: Measure, value: f64) {
        self.0.entry(measure).or_default().push(value);
    }

    pub(super) fn extend(&mut self, more: Self) {
        for (measure, values) in more.0 {
            self.0.entry(measure).or_default().extend(values);
        }
    }

    pub(super) fn measures(&self) -> impl Iterator<Item = Measure> {
        self.0.keys().copied()
    }

    pub(super) fn value(&self, measure: Measure, of: Of) -> Option<f64> {
        let mut values = self.0.get(&measure)?.clone();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        Some(match of {
            Of::Median if values.len().is_multiple_of(2) => {
                f64::midpoint(values[values.len() / 2 - 1], values[values.len() / 2])
            }
            Of::Median => values[values.len() / 2],
            Of::P99 => values[last - values.len() / 100],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_in_a_hundred_is_not_the_99th() {
        let mut samples = Samples::default();
        for value in 1..=100 {
            samples.add(Measure::Exit, f64::from(value));
        }
        assert_eq!(samples.value(Measure::Exit, Of::P99), Some(99.0));
        assert_eq!(samples.value(Measure::Exit, Of::Median), Some(50.5));
        samples.add(Measure::Logs, 3.0);
        assert_eq!(samples.value(Measure::Logs, Of::P99), Some(3.0));
        assert_eq!(samples.value(Measure::Execs, Of::Median), None);
    }

    #[test]
    fn a_budget_of_two_is_met_by_both() {
        let both = Budget { at_most: Some(25.0), ratio: Some(0.25) };
        assert_eq!(both.is_met(24.0, Some(0.2)), Some(true));
        assert_eq!(both.is_met(24.0, Some(0.3)), Some(false));
        assert_eq!(both.is_met(26.0, Some(0.2)), Some(false));
        assert_eq!(both.is_met(24.0, None), Some(true));
        assert_eq!(Budget::ratio(0.9).is_met(1.0, None), None);
    }
}
