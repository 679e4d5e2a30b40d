//! Lines as Kubernetes' JSON log writes them.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde_json::Value;
use tracing::{Level, Metadata};

use super::fields::{FieldValue, Fields};
use super::threshold::required_verbosity;

/// `{"ts":...,"caller":"...","msg":"...","v":0,...}` and the line's end. Errors have `err` and no
/// level.
pub(super) fn line(metadata: &Metadata<'_>, now: Timestamp, fields: &Fields) -> String {
    let mut line = String::with_capacity(200);
    // Milliseconds with a fraction; beyond microseconds a float has no room. Writing to a text
    // cannot fail.
    let millis = now.as_nanosecond() as f64 / 1e6;
    let _ = write!(line, "{{\"ts\":{millis}");
    push(&mut line, "caller", &caller(metadata).into());
    push(&mut line, "msg", &fields.message.as_str().into());
    if *metadata.level() != Level::ERROR {
        push(&mut line, "v", &required_verbosity(metadata).into());
    }
    for (name, value) in &fields.others {
        match value {
            FieldValue::Text(text) => push(&mut line, name, &text.as_str().into()),
            FieldValue::Bool(value) => push(&mut line, name, &(*value).into()),
            FieldValue::Number(number) => {
                let _ = write!(line, ",{}:{number}", Value::from(*name));
            }
        }
    }
    if let Some(error) = &fields.error {
        push(&mut line, "err", &error.as_str().into());
    }
    line.push_str("}\n");
    line
}

fn push(line: &mut String, name: &str, value: &Value) {
    let _ = write!(line, ",{}:{value}", Value::from(name));
}

/// Crate directory, file and line: `pod-workers/worker.rs:12`.
fn caller(metadata: &Metadata<'_>) -> String {
    let path = metadata.file().unwrap_or("???");
    let parts: Vec<&str> = path.split(['/', '\\']).collect();
    let file = parts.last().copied().unwrap_or(path);
    let line = metadata.line().unwrap_or(1);
    let directory = parts
        .iter()
        .rposition(|part| *part == "src")
        .and_then(|src| src.checked_sub(1))
        .or_else(|| parts.len().checked_sub(2));
    match directory {
        Some(index) => format!("{}/{file}:{line}", parts[index]),
        None => format!("{file}:{line}"),
    }
}
