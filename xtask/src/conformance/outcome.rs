//! What a run of the suite came to.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use super::specs::{Spec, Verdict};

/// How one spec ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) seconds: f64,
    /// The first lines of what it said when it failed.
    pub(crate) because: String,
}

/// The specs that ran, by name.
pub(crate) type Outcomes = BTreeMap<String, Outcome>;

/// Reads the report that ginkgo writes as JSON.
pub(crate) fn read(path: &Path) -> anyhow::Result<Outcomes> {
    let text = std::fs::read(path).with_context(|| format!("no report {}", path.display()))?;
    let suites: Value = serde_json::from_slice(&text).context("the report is not JSON")?;
    let Some(suites) = suites.as_array() else { bail!("the report is no list of suites") };
    let specs = suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten();
    Ok(specs.filter(|spec| spec["LeafNodeType"] == "It").filter_map(read_spec).collect())
}

/// None for one that was not chosen.
fn read_spec(spec: &Value) -> Option<(String, Outcome)> {
    let texts = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let name: Vec<&str> = texts.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str).collect();
    let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
    let verdict = match spec["State"].as_str()? {
        "passed" => Verdict::Passed,
        // One that leaves itself out says why; one that was not chosen has nothing to say.
        "skipped" if message.is_empty() => return None,
        "pending" => return None,
        "skipped" => Verdict::Skipped,
        _ => Verdict::Failed,
    };
    let seconds = spec["RunTime"].as_f64().unwrap_or_default() / 1e9;
    let because = match verdict {
        Verdict::Passed => String::new(),
        Verdict::Failed | Verdict::Skipped => first_lines(message),
    };
    Some((name.join(" "), Outcome { verdict, seconds, because }))
}

/// Enough to know which kind of failure it is.
fn first_lines(message: &str) -> String {
    const LINES: usize = 6;
    const LONGEST: usize = 600;
    let mut text = message.lines().take(LINES).collect::<Vec<_>>().join("\n");
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
    }
    text
}

/// The specs of `list` that `verdict` is true of; one without an outcome was left out.
pub(crate) fn with_verdict<'a>(
    list: &'a [Spec],
    outcomes: &'a Outcomes,
    verdict: Verdict,
) -> Vec<(&'a Spec, Option<&'a Outcome>)> {
    list.iter()
        .map(|spec| (spec, outcomes.get(&spec.name)))
        .filter(|(_, outcome)| outcome.map_or(Verdict::Skipped, |one| one.verdict) == verdict)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_tells_the_chosen_specs_and_how_they_ended() {
        let spec = |text: &str, state: &str, message: &str| {
            json!({
                "ContainerHierarchyTexts": ["[sig-node] Pods", "with a probe"],
                "LeafNodeType": "It",
                "LeafNodeText": text,
                "State": state,
                "RunTime": 2_500_000_000_u64,
                "Failure": { "Message": message }
            })
        };
        let set_up = json!({ "LeafNodeType": "BeforeSuite", "State": "passed" });
        let report = json!([{ "SpecReports": [
            set_up,
            spec("lives", "passed", ""),
            spec("dies", "timedout", "too late\nat 1"),
            spec("needs a GPU", "skipped", "no GPU"),
            spec("was not asked for", "skipped", ""),
            spec("is to be written", "pending", "")
        ]}]);
        let path = std::env::temp_dir().join(format!("rubelet-report-{}", std::process::id()));
        std::fs::write(&path, report.to_string()).expect("written");
        let outcomes = read(&path).expect("a report");
        std::fs::remove_file(&path).expect("removed");

        let verdicts: Vec<(&str, Verdict)> =
            outcomes.iter().map(|(name, one)| (name.as_str(), one.verdict)).collect();
        let expected = [
            ("[sig-node] Pods with a probe dies", Verdict::Failed),
            ("[sig-node] Pods with a probe lives", Verdict::Passed),
            ("[sig-node] Pods with a probe needs a GPU", Verdict::Skipped),
        ];
        assert_eq!(verdicts, expected);
        let failed = &outcomes["[sig-node] Pods with a probe dies"];
        assert_eq!(failed.because, "too late\nat 1");
        assert!((failed.seconds - 2.5).abs() < 1e-9);
    }

    #[test]
    fn a_spec_without_an_outcome_counts_as_left_out() {
        let spec = |name: &str| Spec {
            name: name.to_owned(),
            go: Verdict::Passed,
            seconds: 1,
            is_quick: false,
        };
        let list = [spec("a"), spec("b")];
        let passed = Outcome { verdict: Verdict::Passed, seconds: 1.0, because: String::new() };
        let outcomes = Outcomes::from([("a".to_owned(), passed)]);
        let skipped = with_verdict(&list, &outcomes, Verdict::Skipped);
        assert_eq!(skipped.iter().map(|(spec, _)| spec.name.as_str()).collect::<Vec<_>>(), ["b"]);
    }
}
