//! The official specs that a node is judged by, and what the Go kubelet makes of them.

use anyhow::{Context, bail};

/// The list, one spec a line: name, the Go kubelet's verdict, its seconds, and `quick` for those
/// that every test run repeats.
const LIST: &str = include_str!("../../conformance/specs.tsv");

/// How a spec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Failed,
    /// It was chosen, and did not run or left itself out.
    Skipped,
}

impl Verdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// A spec of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    /// As the suite writes it, with all it is nested in.
    pub(crate) name: String,
    /// What the Go kubelet made of it on the day the list was written.
    pub(crate) go: Verdict,
    /// How long the Go kubelet took.
    pub(crate) seconds: u64,
    /// Whether every test run repeats it.
    pub(crate) is_quick: bool,
}

/// The whole list.
pub(crate) fn all() -> anyhow::Result<Vec<Spec>> {
    parse(LIST)
}

fn parse(list: &str) -> anyhow::Result<Vec<Spec>> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parse_line(line).with_context(|| format!("in the line {line:?}"))).collect()
}

fn parse_line(line: &str) -> anyhow::Result<Spec> {
    let mut fields = line.split('\t');
    let mut field = |what: &str| fields.next().with_context(|| format!("it lacks the {what}"));
    let name = field("name")?.to_owned();
    let go = match field("verdict")? {
        "passed" => Verdict::Passed,
        "failed" => Verdict::Failed,
        other => bail!("{other:?} is no verdict"),
    };
    let seconds = field("seconds")?.parse().context("its seconds are no number")?;
    let is_quick = match fields.next() {
        None => false,
        Some("quick") => true,
        Some(other) => bail!("{other:?} is not `quick`"),
    };
    Ok(Spec { name, go, seconds, is_quick })
}

/// A regular expression (Go's syntax) that only these names match. Ginkgo puts the suite's own name
/// before them.
pub(crate) fn focus<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("{}$", quote(name))).collect::<Vec<_>>().join("|")
}

fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_list_has_each_spec_once_and_some_that_are_quick() {
        let specs = all().expect("a sound list");
        let names: BTreeSet<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(names.len(), specs.len());
        assert_eq!(specs.len(), 303);
        assert_eq!(specs.iter().filter(|spec| spec.go == Verdict::Passed).count(), 297);
        let quick: Vec<&Spec> = specs.iter().filter(|spec| spec.is_quick).collect();
        assert!((35..=50).contains(&quick.len()), "{}", quick.len());
        // One that the test bed fails, or that takes long, would not do.
        assert!(quick.iter().all(|spec| spec.go == Verdict::Passed && spec.seconds < 10));
    }

    #[test]
    fn lines_that_say_something_else_are_errors() {
        for line in ["a", "a\tperhaps\t1", "a\tpassed", "a\tpassed\tlong", "a\tpassed\t1\tslow"] {
            parse(line).expect_err(line);
        }
    }

    #[test]
    fn names_are_taken_as_they_are() {
        let names = ["[a] b (c) d.", "e|f"];
        assert_eq!(focus(names.into_iter()), r"\[a\] b \(c\) d\.$|e\|f$");
    }
}
