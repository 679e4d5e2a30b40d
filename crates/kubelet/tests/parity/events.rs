//! Which reasons events have, as the sources say: every call that records one is looked at.

use std::collections::{BTreeMap, BTreeSet};

use crate::sources::Sources;

/// Calls whose reason is none that can be read where the call is: the file, the reason as it is
/// written there, and what it may be; a `*` stands for a resource. Who adds such a call adds it here.
const NOT_READ: &[(&str, &str, &[&str])] = &[
    (
        "crates/kubelet/src/pod_admission.rs",
        "reason.clone()",
        &[
            "AppArmor",
            "NodeAffinity",
            "NodeName",
            "NodePorts",
            "OutOf*",
            "PodOSNotSupported",
            "PodOSSelectorNodeLabelDoesNotMatch",
            "SupplementalGroupsPolicyNotSupported",
            "SysctlForbidden",
            "TaintToleration",
            "UnexpectedAdmissionError",
        ],
    ),
    (
        "crates/kubelet/src/executor.rs",
        "EventRecorder::warning",
        &["NetworkNotReady", "SandboxChanged"],
    ),
    (
        "crates/container-manager/src/setup.rs",
        "self.reason()",
        &["CgroupV1", "PossibleMemoryBackedVolumesOnDisk"],
    ),
    ("crates/volume-manager/src/manager.rs", "reason", &["FailedMapVolume", "FailedMount"]),
    (
        "crates/pod-runtime/src/executor.rs",
        "warning.reason",
        &["DNSConfigForming", "MissingClusterDNS"],
    ),
    (
        "crates/image-manager/src/manager.rs",
        "reason",
        &["BackOff", "ErrImageNeverPull", "Failed", "InspectFailed", "Pulled", "Pulling"],
    ),
    ("crates/probe-manager/src/manager.rs", "reason", &["ProbeWarning", "Unhealthy"]),
    (
        "crates/node-status/src/transitions.rs",
        "reason",
        &[
            "NodeHasDiskPressure",
            "NodeHasInsufficientMemory",
            "NodeHasInsufficientPID",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientMemory",
            "NodeHasSufficientPID",
            "NodeNotReady",
            "NodeNotSchedulable",
            "NodeReady",
            "NodeSchedulable",
        ],
    ),
];

/// What records an event, and which of its arguments is the reason.
const CALLS: [(&str, usize); 3] = [(".normal(", 1), (".warning(", 1), ("Event::new(", 2)];

/// Where these are defined.
const DEFINITION: &str = "crates/types/src/event.rs";

pub(crate) fn reasons(sources: &Sources) -> BTreeSet<String> {
    let constants = constants(sources);
    let mut reasons = BTreeSet::new();
    let mut used = BTreeSet::new();
    let mut problems = Vec::new();
    for (path, text) in sources.0.iter().filter(|(path, _)| path != DEFINITION) {
        for written in calls(text) {
            let name = written.rsplit("::").next().unwrap_or_default();
            let known =
                NOT_READ.iter().position(|(file, reason, _)| file == path && *reason == written);
            if let Some(literal) = written.strip_prefix('"').and_then(|it| it.strip_suffix('"')) {
                reasons.insert(literal.to_owned());
            } else if let Some(at) = known {
                used.insert(at);
                reasons.extend(NOT_READ[at].2.iter().map(|reason| (*reason).to_owned()));
            } else if let Some(value) = constants.get(name) {
                reasons.insert(value.clone());
            } else {
                problems.push(format!("{path}: {written}"));
            }
        }
    }
    assert!(
        problems.is_empty(),
        "reasons that cannot be read, say in NOT_READ what they are: {problems:#?}"
    );
    for (at, (path, written, _)) in NOT_READ.iter().enumerate() {
        assert!(used.contains(&at), "{path} has no event with the reason {written} any more");
    }
    for reason in &reasons {
        let literal = format!("\"{reason}\"");
        let is_there = sources.0.iter().any(|(_, text)| text.contains(&literal));
        assert!(is_there || reason.contains('*'), "nothing has the reason {reason}");
    }
    reasons
}

/// The reasons of all calls in a text, as they are written.
fn calls(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (call, argument) in CALLS {
        for (at, _) in text.match_indices(call) {
            let line = text[..at].rsplit('\n').next().unwrap_or_default();
            if line.trim_start().starts_with("//") {
                continue;
            }
            let arguments = arguments(&text[at + call.len()..]);
            found.extend(arguments.into_iter().nth(argument));
        }
    }
    // A call by way of a variable.
    found.extend(
        text.match_indices("EventRecorder::warning").map(|_| "EventRecorder::warning".to_owned()),
    );
    found
}

/// The arguments of a call, from behind its parenthesis.
fn arguments(text: &str) -> Vec<String> {
    let mut arguments = vec![String::new()];
    let (mut depth, mut in_text, mut escaped) = (0_u32, false, false);
    for c in text.chars() {
        match c {
            _ if in_text => {
                in_text = escaped || c != '"';
                escaped = !escaped && c == '\\';
            }
            '"' => in_text = true,
            '(' | '[' | '{' => depth += 1,
            ')' if depth == 0 => break,
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(argument) = arguments.last_mut() {
            argument.push(c);
        }
    }
    arguments.iter().map(|argument| argument.trim().to_owned()).collect()
}

/// All constants that are text. Of several of one name with several values none can be told.
fn constants(sources: &Sources) -> BTreeMap<String, String> {
    let mut constants: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (_, text) in &sources.0 {
        for (at, _) in text.match_indices("const ") {
            let rest = &text[at + "const ".len()..];
            let Some((name, rest)) = rest.split_once(": &str =") else { continue };
            if !name.chars().all(|c| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit()) {
                continue;
            }
            let Some(value) = rest.trim_start().strip_prefix('"') else { continue };
            let Some((value, _)) = value.split_once('"') else { continue };
            let known = constants.entry(name.to_owned()).or_insert_with(|| Some(value.to_owned()));
            if known.as_deref() != Some(value) {
                *known = None;
            }
        }
    }
    constants.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
