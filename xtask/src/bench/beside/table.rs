//! How the samples are told: on the terminal, and in `docs/reports/bench.md`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::Context;

use super::samples::{Budget, Measure, Samples};
use crate::project;

/// A row, with everything in it as text: what, ours, theirs, ratio, budget, verdict.
type Cells = [String; 6];

/// The rows, in order. `kubelets` are ours and, if there is one, the other.
pub(super) fn rows(kubelets: &[(String, Samples)]) -> Vec<Cells> {
    let measures: BTreeSet<Measure> =
        kubelets.iter().flat_map(|(_, samples)| samples.measures()).collect();
    let mut measures: Vec<Measure> = measures.into_iter().collect();
    measures.sort_by_key(|measure| measure.place());
    let mut rows = Vec::new();
    for measure in measures {
        for row in measure.rows() {
            let mut values = kubelets.iter().map(|(_, samples)| samples.value(measure, row.of));
            let (ours, theirs) = (values.next().flatten(), values.next().flatten());
            let ratio = match (ours, theirs) {
                (Some(ours), Some(theirs)) if theirs > 0.0 => Some(ours / theirs),
                _ => None,
            };
            let number = |value: Option<f64>, digits: usize| {
                value.map_or_else(String::new, |value| format!("{value:.digits$}"))
            };
            let verdict = ours.and_then(|ours| row.budget.is_met(ours, ratio));
            rows.push([
                row.name.clone(),
                number(ours, row.digits),
                number(theirs, row.digits),
                number(ratio, 2),
                budget(row.budget),
                verdict.map_or("", |met| if met { "met" } else { "**not met**" }).to_owned(),
            ]);
        }
    }
    rows
}

fn budget(budget: Budget) -> String {
    let ratio = budget.ratio.map(|ratio| format!("{ratio} ×"));
    let most = budget.at_most.map(|most| most.to_string());
    [ratio, most].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}

/// Lines for a terminal.
pub(super) fn lines(kubelets: &[(String, Samples)]) -> Vec<String> {
    let rows = rows(kubelets);
    let width = rows.iter().map(|row| row[0].chars().count()).max().unwrap_or(0);
    let mut lines = vec![format!(
        "{:width$} {:>10} {:>10} {:>7} {:>14}",
        "",
        kubelets.first().map_or("", |(name, _)| name),
        kubelets.get(1).map_or("", |(name, _)| name),
        "ratio",
        "budget"
    )];
    lines.extend(rows.iter().map(|[name, ours, theirs, ratio, budget, verdict]| {
        let verdict = verdict.replace('*', "");
        let line =
            format!("{name:width$} {ours:>10} {theirs:>10} {ratio:>7} {budget:>14} {verdict}");
        line.trim_end().to_owned()
    }));
    lines
}

/// The report as it is kept. `how` is the command that made it, `what` the kubelets and rounds.
pub(super) fn report(kubelets: &[(String, Samples)], how: &str, what: &str) -> String {
    let name = |index: usize| kubelets.get(index).map_or("", |(name, _)| name);
    let mut text = format!(
        "# Beside the Go kubelet\n\n\
         `{how}` wrote this on {}.\n{what}\n\n\
         | | {} | {} | ratio | budget | |\n|---|---|---|---|---|---|\n",
        jiff::Zoned::now().date(),
        name(0),
        name(1),
    );
    for row in rows(kubelets) {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text.push_str(
        "\nTimes are from the moment in which a watch of the API server shows a pod to the moment in \
         which it shows what is waited for.\nThe calls of the runtime (RunPodSandbox, CreateContainer, \
         StartContainer) are taken from containerd's log; questions to it are\none PodSandboxStatus, \
         ImageStatus and ContainerStatus, as long as these took at that time by the kubelet's metrics. \
         What is left\nof a pod's start without both is the kubelet's, the API server's answers to it \
         (a token, a status) among them. When the runtime\ntells of an end is seen by a subscription \
         to its events beside the kubelet's. Of few samples the 99th in a hundred is the worst. A machine's noise hits both kubelets: ratios say more than times.\n",
    );
    text
}

pub(super) fn report_file() -> PathBuf {
    project::root().join("docs/reports/bench.md")
}

pub(super) fn write(report: &str) -> anyhow::Result<()> {
    let file = report_file();
    fs::write(&file, report).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_is_not_met_is_told_and_needs_something_to_compare_with() {
        let of = |seconds: f64, memory: f64| {
            let mut samples = Samples::default();
            samples.add(Measure::AtOnce(110), seconds);
            samples.add(Measure::Resident(110), memory);
            samples.add(Measure::Resident(50), memory);
            samples
        };
        let ours = ("rubelet".to_owned(), of(9.5, 20.0));
        let theirs = ("go".to_owned(), of(10.0, 100.0));
        let both = rows(&[ours.clone(), theirs]);
        assert_eq!(both[0][1..], ["9.50", "10.00", "0.95", "0.9 ×", "**not met**"]);
        assert_eq!(both[1][0], "resident memory with 50 pods (MiB)");
        assert_eq!(both[1][1..], ["20.0", "100.0", "0.20", "", ""]);
        assert_eq!(both[2][1..], ["20.0", "100.0", "0.20", "0.25 × and 25", "met"]);
        let alone = rows(std::slice::from_ref(&ours));
        assert_eq!(alone[0][1..], ["9.50", "", "", "0.9 ×", ""]);
        assert_eq!(alone[2][5], "met");
        let report = report(&[ours], "cargo xtask bench", "A machine.");
        assert!(
            report.contains("\n| resident memory with 110 pods (MiB) | 20.0 |  |  |"),
            "{report}"
        );
    }
}
