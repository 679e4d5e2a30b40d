//! Which field an error of the JSON parser is about.

use std::fmt::Write as _;

enum Level {
    Object { key: Option<String>, awaits_key: bool },
    Array { index: usize },
}

/// The path of the value that ends where `error` was noticed, such as `spec.containers[0].image`;
/// empty for the whole text.
///
/// The parser says lines and columns only. A second, typed pass that keeps the path would be another
/// parser of every API type in the executable, a megabyte for a text that is hardly ever written.
pub(super) fn path_of(json: &[u8], error: &serde_json::Error) -> String {
    let lines_before = error.line().saturating_sub(1);
    let line = json.split_inclusive(|byte| *byte == b'\n').take(lines_before);
    let end = line.map(<[u8]>::len).sum::<usize>() + error.column();
    let text = &json[..end.min(json.len())];

    let mut levels: Vec<Level> = Vec::new();
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'{' => levels.push(Level::Object { key: None, awaits_key: true }),
            b'[' => levels.push(Level::Array { index: 0 }),
            b'}' | b']' => drop(levels.pop()),
            b',' => match levels.last_mut() {
                Some(Level::Object { awaits_key, .. }) => *awaits_key = true,
                Some(Level::Array { index }) => *index += 1,
                None => {}
            },
            b'"' => {
                let from = at;
                at += length_of_string(&text[from..]);
                if let Some(Level::Object { key, awaits_key }) = levels.last_mut()
                    && std::mem::replace(awaits_key, false)
                {
                    let name = &text[from..at.saturating_sub(1).max(from)];
                    *key = Some(String::from_utf8_lossy(name).into_owned());
                }
            }
            _ => {}
        }
    }
    let mut path = String::new();
    for level in levels {
        // Writing to a string does not fail.
        let _ = match level {
            Level::Object { key: None, .. } => Ok(()),
            Level::Object { key: Some(key), .. } if path.is_empty() => write!(path, "{key}"),
            Level::Object { key: Some(key), .. } => write!(path, ".{key}"),
            Level::Array { index } => write!(path, "[{index}]"),
        };
    }
    path
}

/// The bytes of a string behind its opening quote, with the closing one.
fn length_of_string(text: &[u8]) -> usize {
    let mut escaped = false;
    for (index, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Pod, Service};
    use serde::de::DeserializeOwned;

    use super::*;

    fn path<T: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        let error = serde_json::from_str::<T>(json).expect_err("it is wrong");
        path_of(json.as_bytes(), &error)
    }

    #[test]
    fn values_and_objects_are_found_by_where_they_end() {
        for (json, expected) in [
            (
                r#"{"spec":{"containers":[{"name":"c"},{"name":"d","image":7}]}}"#,
                "spec.containers[1].image",
            ),
            ("{\"spec\":\n {\"containers\":\n  [{\"name\":\n 7 }]}}", "spec.containers[0].name"),
            (
                r#"{"metadata":{"labels":{"a.b/c \"d\"":{"x":1}}}}"#,
                r#"metadata.labels.a.b/c \"d\""#,
            ),
            (r#"{"spec":{"containers":[],"volumes":{"name":1}}}"#, "spec.volumes"),
            (r#"{"spec":{"hostNetwork":"yes","containers":[]}}"#, "spec.hostNetwork"),
            (r#"{"metadata":{"creationTimestamp":"then"}}"#, "metadata.creationTimestamp"),
            (r#"[]"#, ""),
            (r#""not an object""#, ""),
            (r#"{"spec":{"containers":[{"name":"c"#, "spec.containers[0].name"),
        ] {
            assert_eq!(path::<Pod>(json), expected, "{json}");
        }
        let port = r#"{"spec":{"ports":[{"port":1,"targetPort":{}}]}}"#;
        assert_eq!(path::<Service>(port), "spec.ports[0].targetPort");
    }
}
