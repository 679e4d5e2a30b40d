//! Two kubelets' cgroup trees, line by line.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::report;

/// States of a node whose trees are compared.
const TREES: [&str; 3] = ["running", "removed", "empty"];

/// Prints in what our trees and the peer's differ; true when in nothing.
pub(crate) fn compare(ours: &Path, peers: &Path) -> anyhow::Result<bool> {
    let mut same = true;
    for name in TREES {
        let read = |directory: &Path| {
            let file = directory.join(format!("tree-{name}.txt"));
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
        };
        let (ours, peers) = (read(ours)?, read(peers)?);
        let differences = diff(&ours, &peers);
        report::say(format_args!(
            "{name}: {} facts, {} differences",
            ours.lines().count(),
            differences.len()
        ));
        for line in &differences {
            report::say(format_args!("  {line}"));
        }
        same &= differences.is_empty();
    }
    Ok(same)
}

/// Lines that only one of them has: `+` ours, `-` the peer's. Each line is a fact of its own, so
/// their order does not matter.
fn diff(ours: &str, peers: &str) -> Vec<String> {
    let (ours, peers): (BTreeSet<&str>, BTreeSet<&str>) =
        (ours.lines().collect(), peers.lines().collect());
    let mut differences: Vec<(&str, char)> =
        ours.difference(&peers).map(|line| (*line, '+')).collect();
    differences.extend(peers.difference(&ours).map(|line| (*line, '-')));
    differences.sort_unstable();
    differences.into_iter().map(|(line, whose)| format!("{whose} {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_told() {
        let ours = "a cpu.weight 1\na pids.max 10\n";
        let peers = "a pids.max 10\na cpu.weight 2\nb pids.max max\n";
        assert_eq!(diff(ours, peers), ["+ a cpu.weight 1", "- a cpu.weight 2", "- b pids.max max"]);
        assert!(diff(ours, "a pids.max 10\na cpu.weight 1\n").is_empty());
    }
}
