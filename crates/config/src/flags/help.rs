use serde_json::Value;

use super::{Deprecation, FlagSpec};
use crate::{KubeletConfiguration, decode};

const INTRODUCTION: &str = "\
The kubelet is the agent that runs on every Kubernetes node. It takes pods from the API server, from
files and from URLs, and sees to it that their containers run and are healthy. Containers that were
not made by Kubernetes are left alone.

Usage:
  kubelet [flags]
";

type Belongs = fn(&FlagSpec) -> bool;

/// The text of `--help`: flags by the way in which they should be used.
pub fn help_text() -> String {
    let defaults = Value::Object(decode::into_object(&KubeletConfiguration::legacy_default()));
    let mut text = INTRODUCTION.to_owned();
    let sections: [(&str, Belongs); 3] = [
        ("Flags", |flag| flag.deprecation == Deprecation::None),
        (
            "Flags that work, but should be set in the file that --config names \
             (the field stands in brackets)",
            |flag| flag.deprecation == Deprecation::UseConfigFile,
        ),
        ("Flags that will be removed", |flag| {
            matches!(flag.deprecation, Deprecation::Replaced(_) | Deprecation::Ignored(_))
        }),
    ];
    for (title, belongs) in sections {
        text.push_str(&format!("\n{title}:\n\n"));
        let mut flags: Vec<_> = FlagSpec::all().filter(|flag| belongs(flag)).collect();
        flags.sort_by_key(|flag| flag.name);
        for flag in flags {
            push_flag(&mut text, flag, &defaults);
        }
    }
    text
}

fn push_flag(text: &mut String, flag: &FlagSpec, defaults: &Value) {
    let shorthand = flag.shorthand.map_or("      ".to_owned(), |letter| format!("  -{letter}, "));
    let head = format!("{shorthand}--{} {}", flag.name, flag.kind.placeholder());
    text.push_str(head.trim_end());
    text.push('\n');
    let mut body = flag.help.to_owned();
    if let Some(default) = flag.field.and_then(|field| default_text(field, defaults)) {
        body.push_str(&format!(" (default {default})"));
    }
    if let (Some(field), Deprecation::UseConfigFile) = (flag.field, flag.deprecation) {
        body.push_str(&format!(" [{field}]"));
    }
    for line in wrap(&body, 88) {
        text.push_str("            ");
        text.push_str(line);
        text.push('\n');
    }
}

/// The default of a configuration field as people would write it; none if it is nothing.
fn default_text(field: &str, defaults: &Value) -> Option<String> {
    match defaults.pointer(&format!("/{}", field.replace('.', "/")))? {
        Value::Bool(true) => Some("true".to_owned()),
        Value::Number(number) if number.as_i64() != Some(0) => Some(number.to_string()),
        Value::String(text) if !text.is_empty() && text != "0" => Some(format!("{text:?}")),
        Value::Array(list) if !list.is_empty() => {
            Some(list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
        }
        Value::Object(map) if !map.is_empty() => {
            let pairs = map.iter().filter_map(|(key, value)| Some((key, value.as_str()?)));
            Some(pairs.map(|(key, value)| format!("{key}<{value}")).collect::<Vec<_>>().join(", "))
        }
        _ => None,
    }
}

/// Lines of at most `width` bytes, broken at spaces; a longer word has a line of its own.
fn wrap(text: &str, width: usize) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while rest.len() > width {
        let end = rest
            .char_indices()
            .filter(|(_, c)| *c == ' ')
            .map(|(index, _)| index)
            .take_while(|index| *index <= width)
            .last()
            .or_else(|| rest.find(' '));
        let Some(end) = end else { break };
        lines.push(&rest[..end]);
        rest = &rest[end + 1..];
    }
    lines.push(rest);
    lines
}
