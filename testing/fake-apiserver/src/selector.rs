//! Which objects a request is about.

use serde_json::Value;

use crate::kinds::Kind;
use crate::refusal::Refusal;

/// A field selector and a label selector.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    fields: Vec<(String, Test)>,
    labels: Vec<(String, Test)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    Equals(String),
    Differs(String),
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    IsMissing,
}

impl Selection {
    pub(crate) fn parse(
        kind: &Kind,
        fields: Option<&str>,
        labels: Option<&str>,
    ) -> Result<Self, Refusal> {
        let fields = match fields {
            None => Vec::new(),
            Some(text) => parse_fields(text)?,
        };
        for (field, _) in &fields {
            let is_known = field == "metadata.name"
                || (field == "metadata.namespace" && kind.is_namespaced)
                || kind.selectable.contains(&field.as_str());
            if !is_known {
                let message = format!(
                    "Unable to find \"{}, Resource={}\" that match label selector \"\", field \
                     selector {field:?}: field label not supported: {field}",
                    kind.api_version(),
                    kind.plural
                );
                return Err(Refusal::bad_request(message));
            }
        }
        let labels = match labels {
            None => Vec::new(),
            Some(text) => parse_labels(text)?,
        };
        Ok(Self { fields, labels })
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.fields.iter().all(|(field, test)| {
            let value = field.split('.').fold(object, |value, part| &value[part]);
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Bool(value) => value.to_string(),
                // Absent is empty, or false.
                _ if field.ends_with("unschedulable") || field.ends_with("hostNetwork") => {
                    "false".to_owned()
                }
                _ => String::new(),
            };
            test.holds(Some(&text))
        }) && self
            .labels
            .iter()
            .all(|(label, test)| test.holds(object["metadata"]["labels"][label].as_str()))
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_in =
            |values: &[String]| value.is_some_and(|value| values.iter().any(|v| v == value));
        match self {
            Self::Equals(wanted) => value == Some(wanted),
            Self::Differs(unwanted) => value != Some(unwanted),
            Self::In(wanted) => is_in(wanted),
            Self::NotIn(unwanted) => !is_in(unwanted),
            Self::Exists => value.is_some(),
            Self::IsMissing => value.is_none(),
        }
    }
}

/// `a=b`, `a==b` or `a!=b`.
fn parse_comparison(text: &str) -> Option<(String, Test)> {
    let at = text.find(['=', '!'])?;
    let (name, rest) = text.split_at(at);
    let test = if let Some(value) = rest.strip_prefix("!=") {
        Test::Differs(value.trim().to_owned())
    } else {
        let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
        Test::Equals(value.trim().to_owned())
    };
    Some((name.trim().to_owned(), test))
}

fn parse_fields(text: &str) -> Result<Vec<(String, Test)>, Refusal> {
    text.split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| {
            parse_comparison(part).ok_or_else(|| {
                Refusal::bad_request(format!(
                    "invalid selector: {text:?}; can't understand {part:?}"
                ))
            })
        })
        .collect()
}

fn parse_labels(text: &str) -> Result<Vec<(String, Test)>, Refusal> {
    let wrong = || Refusal::bad_request(format!("unable to parse requirement: {text:?}"));
    let mut parts = Vec::new();
    let (mut depth, mut begin) = (0_u32, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1).ok_or_else(wrong)?,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    let mut tests = Vec::new();
    for part in parts.into_iter().map(str::trim).filter(|part| !part.is_empty()) {
        let set = part.split_once('(').and_then(|(head, values)| {
            let values = values.strip_suffix(')')?;
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            let (name, operator) = head.trim().split_once(' ')?;
            match operator.trim() {
                "in" => Some((name.to_owned(), Test::In(values))),
                "notin" => Some((name.to_owned(), Test::NotIn(values))),
                _ => None,
            }
        });
        tests.push(match (set, part.strip_prefix('!')) {
            (Some(set), _) => set,
            (None, Some(name)) if !name.contains('=') => (name.trim().to_owned(), Test::IsMissing),
            (None, _) if part.contains('=') => parse_comparison(part).ok_or_else(wrong)?,
            (None, _) if part.contains([' ', '(']) => return Err(wrong()),
            (None, _) => (part.to_owned(), Test::Exists),
        });
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::KINDS;

    fn matches(fields: &str, labels: &str) -> bool {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "n", "labels": {"app": "web", "tier": "front"}},
            "spec": {"nodeName": "a"}, "status": {}
        });
        Selection::parse(&KINDS[0], Some(fields), Some(labels)).unwrap().matches(&pod)
    }

    #[test]
    fn fields_are_compared() {
        assert!(matches("spec.nodeName=a,metadata.name==web", ""));
        assert!(matches("spec.nodeName!=b,status.phase=", ""));
        assert!(!matches("spec.nodeName=b", ""));
        assert!(Selection::parse(&KINDS[0], Some("spec.containers=x"), None).is_err());
        assert!(Selection::parse(&KINDS[0], Some("nonsense"), None).is_err());
    }

    #[test]
    fn labels_are_compared() {
        for (labels, expected) in [
            ("app=web", true),
            ("app!=web", false),
            ("other!=x", true),
            ("app in (db, web),tier", true),
            ("app notin (db,web)", false),
            ("other notin (x)", true),
            ("!other", true),
            ("!app", false),
            ("other", false),
        ] {
            assert_eq!(matches("", labels), expected, "{labels}");
        }
        assert!(Selection::parse(&KINDS[0], None, Some("app within (x)")).is_err());
    }
}
