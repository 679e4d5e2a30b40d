//! What was measured, and how it is told.

use std::time::Duration;

/// What one run came to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// From the first manifest until every pod is running and ready.
    pub(super) all_running: Duration,
    /// The kubelet's CPU time in that span.
    pub(super) start_cpu: Duration,
    /// Resident memory afterwards, in bytes.
    pub(super) resident: u64,
    /// Resident memory at its highest, in bytes.
    pub(super) resident_peak: u64,
    /// CPU time for each second in which nothing happens.
    pub(super) idle_cpu: f64,
    /// Threads.
    pub(super) threads: u64,
    /// From SIGKILL until a new process reports every pod running and ready.
    pub(super) restarted: Duration,
    /// Whether a container was replaced by that.
    pub(super) restart_disturbed: bool,
}

type Measure = (&'static str, fn(&Outcome) -> f64, usize);

/// Name with unit, how to take it, and digits after the point.
const MEASURES: [Measure; 7] = [
    ("all running (s)", |outcome| outcome.all_running.as_secs_f64(), 2),
    ("CPU until then (s)", |outcome| outcome.start_cpu.as_secs_f64(), 2),
    ("resident (MiB)", |outcome| mebibytes(outcome.resident), 1),
    ("resident at most (MiB)", |outcome| mebibytes(outcome.resident_peak), 1),
    ("idle CPU (% of a core)", |outcome| outcome.idle_cpu * 100.0, 2),
    ("threads", |outcome| outcome.threads as f64, 0),
    ("restarted (s)", |outcome| outcome.restarted.as_secs_f64(), 2),
];

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}

/// A line for each measure, a column for each kubelet, and the first one's share of the second's.
pub(super) fn render(outcomes: &[(&str, Vec<Outcome>)]) -> Vec<String> {
    let mut head = format!("{:<24}", "");
    for (name, _) in outcomes {
        head.push_str(&format!("{name:>12}"));
    }
    if outcomes.len() == 2 {
        head.push_str(&format!("{:>12}", "ratio"));
    }
    let mut lines = vec![head];
    for (name, take, digits) in MEASURES {
        let medians: Vec<f64> =
            outcomes.iter().map(|(_, results)| median(results.iter().map(take))).collect();
        let mut line = format!("{name:<24}");
        for median in &medians {
            line.push_str(&format!("{median:>12.digits$}"));
        }
        if let [ours, peer] = medians[..] {
            line.push_str(&match peer {
                0.0 => format!("{:>12}", "-"),
                _ => format!("{:>12.2}", ours / peer),
            });
        }
        lines.push(line);
    }
    for (name, results) in outcomes {
        let disturbed = results.iter().filter(|outcome| outcome.restart_disturbed).count();
        if disturbed > 0 {
            lines.push(format!("{name}: {disturbed} restarts replaced containers"));
        }
    }
    lines
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(all_running: u64, disturbed: bool) -> Outcome {
        Outcome {
            all_running: Duration::from_secs(all_running),
            start_cpu: Duration::from_secs(1),
            resident: 20 << 20,
            resident_peak: 21 << 20,
            idle_cpu: 0.01,
            threads: 4,
            restarted: Duration::from_millis(300),
            restart_disturbed: disturbed,
        }
    }

    #[test]
    fn the_median_shrugs_off_one_bad_run() {
        assert_eq!(median([9.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([1.0, 3.0].into_iter()), 2.0);
    }

    #[test]
    fn a_peer_gives_ratios() {
        let ours = vec![outcome(5, false)];
        let peer = vec![outcome(10, false)];
        let lines = render(&[("rubelet", ours.clone()), ("peer", peer)]);
        let all_running: Vec<&str> = lines[1].split_whitespace().collect();
        assert_eq!(all_running, ["all", "running", "(s)", "5.00", "10.00", "0.50"]);
        assert!(!render(&[("rubelet", ours)])[1].contains("0.50"));
    }

    #[test]
    fn a_restart_that_replaced_containers_is_told() {
        let lines = render(&[("rubelet", vec![outcome(5, true)])]);
        assert_eq!(
            lines.last().map(String::as_str),
            Some("rubelet: 1 restarts replaced containers")
        );
    }
}
