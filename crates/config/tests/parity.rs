//! `docs/parity.md` lists every flag, field and feature gate, and nothing else. Who shows what works is
//! for a test of the kubelet's to see.

use std::collections::BTreeSet;
use std::fs;

use rubelet_config::{feature_gate_names, field_paths, flag_names};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parity.md");

/// First cells of the table below `heading`.
fn listed(document: &str, heading: &str) -> BTreeSet<String> {
    let section = document
        .split("\n## ")
        .find_map(|section| section.strip_prefix(heading))
        .unwrap_or_else(|| panic!("docs/parity.md has no section {heading:?}"));
    let mut names = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, state, ..] = cells[..] else { panic!("row without a state: {row}") };
        let known = ["accepted", "works", "untested", "ignored"];
        assert!(known.contains(&state), "unknown state: {row}");
        assert!(names.insert(name.trim_matches('`').to_owned()), "listed twice: {row}");
    }
    names
}

fn compare(heading: &str, expected: BTreeSet<String>) {
    let document = fs::read_to_string(DOCUMENT)
        .unwrap_or_else(|error| panic!("docs/parity.md cannot be read: {error}"));
    let listed = listed(&document, heading);
    let missing: Vec<_> = expected.difference(&listed).collect();
    let superfluous: Vec<_> = listed.difference(&expected).collect();
    assert!(
        missing.is_empty() && superfluous.is_empty(),
        "{heading}: missing {missing:?}, superfluous {superfluous:?}"
    );
}

#[test]
fn every_flag_is_listed() {
    compare("Flags", flag_names().map(|name| format!("--{name}")).collect());
}

#[test]
fn every_field_is_listed() {
    compare("KubeletConfiguration fields", field_paths().into_iter().collect());
}

#[test]
fn every_feature_gate_is_listed() {
    compare("Feature gates", feature_gate_names().map(str::to_owned).collect());
}
