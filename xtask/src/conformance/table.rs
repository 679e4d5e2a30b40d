//! What a run came to, for people: lines for a terminal, and the report in `docs/reports`.

use std::fmt::Write as _;

use super::outcome::{Outcomes, with_verdict};
use super::specs::{Spec, Verdict};

/// The result of the peer that the report compares with.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Peer<'a> {
    /// As the list remembers it.
    Remembered,
    /// As it was just seen.
    Fresh(&'a Outcomes),
}

impl Peer<'_> {
    fn verdict(self, spec: &Spec) -> Verdict {
        match self {
            Self::Remembered => spec.go,
            Self::Fresh(outcomes) => {
                outcomes.get(&spec.name).map_or(Verdict::Skipped, |outcome| outcome.verdict)
            }
        }
    }
}

/// The numbers of a run in a line.
pub(crate) fn summary(list: &[Spec], outcomes: &Outcomes) -> String {
    let count = |verdict| with_verdict(list, outcomes, verdict).len();
    format!(
        "{} passed, {} failed, {} skipped, of {}",
        count(Verdict::Passed),
        count(Verdict::Failed),
        count(Verdict::Skipped),
        list.len()
    )
}

/// What did not pass, a line each with the peer's verdict, and its reason.
pub(crate) fn lines(list: &[Spec], outcomes: &Outcomes, peer: Peer<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for verdict in [Verdict::Failed, Verdict::Skipped] {
        for (spec, outcome) in with_verdict(list, outcomes, verdict) {
            let go = peer.verdict(spec).name();
            lines.push(format!("{} (Go kubelet: {go}): {}", verdict.name(), spec.name));
            let because = outcome.map_or("it did not run", |outcome| outcome.because.as_str());
            lines.extend(because.lines().map(|line| format!("    {line}")));
        }
    }
    lines
}

/// The report in Markdown.
pub(crate) fn markdown(list: &[Spec], outcomes: &Outcomes, peer: Peer<'_>, date: &str) -> String {
    let ours = |spec: &Spec| outcomes.get(&spec.name).map_or(Verdict::Skipped, |one| one.verdict);
    let count = |go: Verdict, us: Verdict| {
        list.iter().filter(|spec| peer.verdict(spec) == go && ours(spec) == us).count()
    };
    let beside = match peer {
        Peer::Remembered => "as its run on such a machine is kept in `xtask/conformance/specs.tsv`",
        Peer::Fresh(_) => "run on the same machine right after",
    };
    let mut text = format!(
        "# Judged by the official suite\n\nWhat `cargo xtask conformance` gave on {date}: the {} specs of Kubernetes' own end-to-end \
         suite (1.36.3) that judge a node,\nwithout those that need a machine of their own, on a real control plane and containerd \
         2.4.2 (cgroup v1).\nBeside it the Go kubelet, {beside}.\n\n",
        list.len()
    );
    text.push_str("| | Go: passed | Go: failed | Go: did not run |\n|---|---|---|---|\n");
    for (name, us) in [
        ("Rubelet: passed", Verdict::Passed),
        ("Rubelet: failed", Verdict::Failed),
        ("Rubelet: did not run", Verdict::Skipped),
    ] {
        let cells = [Verdict::Passed, Verdict::Failed, Verdict::Skipped]
            .map(|go| count(go, us).to_string());
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    for verdict in [Verdict::Failed, Verdict::Skipped] {
        let specs = with_verdict(list, outcomes, verdict);
        if specs.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n## {}\n\n| spec | Go | because |\n|---|---|---|",
            if verdict == Verdict::Failed { "Failed" } else { "Did not run" }
        );
        for (spec, outcome) in specs {
            let because = outcome.map(|outcome| outcome.because.as_str()).unwrap_or_default();
            let _ = writeln!(
                text,
                "| {} | {} | {} |",
                cell(&spec.name),
                peer.verdict(spec).name(),
                cell(&shortened(because))
            );
        }
    }
    text.push_str("\n## Passed\n\n| spec | seconds | Go |\n|---|---|---|\n");
    for (spec, outcome) in with_verdict(list, outcomes, Verdict::Passed) {
        let seconds = outcome.map(|outcome| outcome.seconds).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {seconds:.0} | {} |",
            cell(&spec.name),
            peer.verdict(spec).name()
        );
    }
    text
}

/// A reason in a line.
fn shortened(because: &str) -> String {
    const LONGEST: usize = 160;
    let mut line = because.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push_str(" ...");
    }
    line
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace(['<', '>'], "'")
}

#[cfg(test)]
mod tests {
    use super::super::outcome::Outcome;
    use super::*;

    fn sample() -> (Vec<Spec>, Outcomes) {
        let spec = |name: &str, go| Spec { name: name.to_owned(), go, seconds: 1, is_quick: false };
        let list = vec![
            spec("lives", Verdict::Passed),
            spec("dies", Verdict::Passed),
            spec("needs a registry", Verdict::Failed),
        ];
        let outcome =
            |verdict, because: &str| Outcome { verdict, seconds: 4.2, because: because.to_owned() };
        let outcomes = Outcomes::from([
            ("lives".to_owned(), outcome(Verdict::Passed, "")),
            ("dies".to_owned(), outcome(Verdict::Failed, "want <a|b>\nmore")),
        ]);
        (list, outcomes)
    }

    #[test]
    fn what_did_not_pass_is_named_beside_the_peer() {
        let (list, outcomes) = sample();
        let lines = lines(&list, &outcomes, Peer::Remembered);
        let expected = [
            "failed (Go kubelet: passed): dies",
            "    want <a|b>",
            "    more",
            "skipped (Go kubelet: failed): needs a registry",
            "    it did not run",
        ];
        assert_eq!(lines, expected);
        assert_eq!(summary(&list, &outcomes), "1 passed, 1 failed, 1 skipped, of 3");
    }

    #[test]
    fn the_report_counts_both_and_keeps_tables_whole() {
        let (list, outcomes) = sample();
        let text = markdown(&list, &outcomes, Peer::Remembered, "2026-01-01");
        assert!(text.contains("| Rubelet: passed | 1 | 0 | 0 |"), "{text}");
        assert!(text.contains("| Rubelet: failed | 1 | 0 | 0 |"), "{text}");
        assert!(text.contains("| Rubelet: did not run | 0 | 1 | 0 |"), "{text}");
        assert!(text.contains("| dies | passed | want 'a\\|b' more |"), "{text}");
        assert!(text.contains("| lives | 4 | passed |"), "{text}");
    }
}
