//! Bytes of a manifest to pods.
//!
//! JSON and YAML are taken, one document each. Values mean what they mean to the Go kubelet: YAML
//! 1.1 scalars, numbers as quantities, no numbers as text. Unknown fields and duplicate keys are
//! no errors but are reported ([`ManifestWarning`]). Time and memory are bounded by the size of the
//! text: an alias costs what it stands for, so a bomb is refused before it unfolds.

mod json;
mod node;
mod scalar;
mod typed;
mod yaml;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;

use node::{Node, Value};
use typed::{NodeDeserializer, Path};

/// Largest manifest that is read: 10 MiB, for files and for bodies of URLs.
pub const MAX_MANIFEST_BYTES: usize = 10 * 1024 * 1024;

/// Levels of nesting; a pod has about fifteen.
const MAX_DEPTH: usize = 64;
/// Values in one document.
const MAX_NODES: usize = 500_000;
/// What a document may amount to once its aliases are written out, in bytes of memory. A document
/// without aliases cannot reach it.
const MAX_EXPANDED_SIZE: u64 = 32 * 1024 * 1024;
/// Warnings that are kept of one manifest.
const MAX_WARNINGS: usize = 100;

/// Why bytes are no pod manifest. The text says what and, where known, in which line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Nothing in it but space, comments or empty documents.
    #[error("the manifest is empty")]
    Empty,
    /// More than [`MAX_MANIFEST_BYTES`].
    #[error("the manifest is larger than {MAX_MANIFEST_BYTES} bytes")]
    TooLarge,
    /// The bytes are no text.
    #[error("line {line}: the manifest is not UTF-8 text")]
    NotUtf8 {
        /// Counted from 1.
        line: usize,
    },
    /// A NUL byte, which no manifest holds and which would cut names short.
    #[error("line {line}: the manifest contains a NUL byte")]
    NulByte {
        /// Counted from 1.
        line: usize,
    },
    /// Neither JSON nor YAML; a file that is still being written looks like this.
    #[error("line {line}, column {column}: {message}")]
    Syntax {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// What the parser says.
        message: String,
    },
    /// A second document follows `---`.
    #[error("line {line}: a second document starts here, but a manifest holds exactly one")]
    SeveralDocuments {
        /// Counted from 1.
        line: usize,
    },
    /// A key of a mapping is a list, a mapping or nothing.
    #[error("line {line}: a key must be text")]
    KeyIsNoScalar {
        /// Counted from 1.
        line: usize,
    },
    /// `<<` of something that is no mapping.
    #[error("line {line}: only a mapping can be merged with <<")]
    MergeOfNoMapping {
        /// Counted from 1.
        line: usize,
    },
    /// An alias to a value that contains the alias.
    #[error("line {line}: the alias stands inside of what it refers to")]
    RecursiveAlias {
        /// Counted from 1.
        line: usize,
    },
    /// Aliases that multiply beyond any honest use.
    #[error("line {line}: with its aliases written out the manifest would be too large")]
    AliasBomb {
        /// Counted from 1.
        line: usize,
    },
    /// Nested deeper than any API object.
    #[error("the manifest is nested more than {MAX_DEPTH} levels deep")]
    TooDeep,
    /// More values than any API object holds.
    #[error("the manifest contains more than {MAX_NODES} values")]
    TooManyNodes,
    /// The document is a list or a scalar.
    #[error("expected an object of kind Pod, found {found}")]
    NotAnObject {
        /// What it is.
        found: String,
    },
    /// Another object than a v1 Pod (or PodList, where that is taken).
    #[error("expected {expected}, found {found}")]
    WrongKind {
        /// What would be taken.
        expected: &'static str,
        /// `apiVersion` and `kind` as they stand there.
        found: String,
    },
    /// A field holds a value of another type than it takes.
    #[error("{}{path}: {message}", LinePrefix(*line))]
    Field {
        /// `spec.containers[0].image`.
        path: String,
        /// Counted from 1; 0 when unknown.
        line: usize,
        /// What was expected and what was found.
        message: String,
    },
}

struct LinePrefix(usize);

impl fmt::Display for LinePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            line => write!(f, "line {line}: "),
        }
    }
}

/// Something in a manifest that is probably not what its author meant, but stops nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ManifestWarning {
    /// The API has no such field; it is ignored.
    #[error("{}unknown field {path:?}", LinePrefix(*line))]
    UnknownField {
        /// `spec.containers[0].imagee`.
        path: String,
        /// Counted from 1; 0 when unknown.
        line: usize,
    },
    /// A key stands twice in one mapping; the last one counts.
    #[error("{}duplicate key {key:?}", LinePrefix(*line))]
    DuplicateKey {
        /// The key.
        key: String,
        /// Counted from 1; 0 when unknown.
        line: usize,
    },
}

/// What a manifest holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its pods as they are written, nothing defaulted.
    pub pods: Vec<Pod>,
    /// What its author should know; at most a hundred.
    pub warnings: Vec<ManifestWarning>,
}

#[derive(Default)]
struct WarningSink(RefCell<Vec<ManifestWarning>>);

impl WarningSink {
    fn add(&self, warning: ManifestWarning) {
        let mut list = self.0.borrow_mut();
        if list.len() < MAX_WARNINGS {
            list.push(warning);
        }
    }
}

/// Reads a manifest that holds one v1 Pod, as files in `staticPodPath` do.
pub fn decode_pod(bytes: &[u8]) -> Result<Manifest, DecodeError> {
    let warnings = WarningSink::default();
    let root = parse(bytes, &warnings)?;
    match kind_of(&root)? {
        Kind::Pod => {
            let pod = pod_from(&root, Path::Root, &warnings)?;
            Ok(Manifest { pods: vec![pod], warnings: warnings.0.into_inner() })
        }
        Kind::PodList => Err(DecodeError::WrongKind {
            expected: "a v1 Pod",
            found: "apiVersion \"v1\", kind \"PodList\"".to_owned(),
        }),
        Kind::Other(found) => Err(DecodeError::WrongKind { expected: "a v1 Pod", found }),
    }
}

/// Reads a manifest that holds one v1 Pod or a v1 PodList, as `staticPodURL` may deliver.
pub fn decode_pod_or_pod_list(bytes: &[u8]) -> Result<Manifest, DecodeError> {
    let warnings = WarningSink::default();
    let root = parse(bytes, &warnings)?;
    let pods = match kind_of(&root)? {
        Kind::Pod => vec![pod_from(&root, Path::Root, &warnings)?],
        Kind::PodList => match root.get("items").map(|items| (&items.value, items.line)) {
            None | Some((Value::Null, _)) => Vec::new(),
            Some((Value::Sequence(items), _)) => {
                let list = Path::Field(&Path::Root, "items");
                items
                    .iter()
                    .enumerate()
                    .map(|(index, item)| pod_from(item, Path::Item(&list, index), &warnings))
                    .collect::<Result<_, _>>()?
            }
            Some((other, line)) => {
                return Err(DecodeError::Field {
                    path: "items".to_owned(),
                    line,
                    message: format!("expected a list, found {}", other.describe()),
                });
            }
        },
        Kind::Other(found) => {
            return Err(DecodeError::WrongKind { expected: "a v1 Pod or PodList", found });
        }
    };
    Ok(Manifest { pods, warnings: warnings.0.into_inner() })
}

fn parse(bytes: &[u8], warnings: &WarningSink) -> Result<Rc<Node>, DecodeError> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(DecodeError::TooLarge);
    }
    let line_at = |offset: usize| 1 + bytes[..offset].iter().filter(|byte| **byte == b'\n').count();
    let text = std::str::from_utf8(bytes)
        .map_err(|error| DecodeError::NotUtf8 { line: line_at(error.valid_up_to()) })?;
    if let Some(offset) = bytes.iter().position(|byte| *byte == 0) {
        return Err(DecodeError::NulByte { line: line_at(offset) });
    }
    if text.trim_start().starts_with('{') {
        let json_warnings = WarningSink::default();
        return match json::parse(text, &json_warnings) {
            Ok(root) => {
                for warning in json_warnings.0.into_inner() {
                    warnings.add(warning);
                }
                Ok(root)
            }
            // YAML's flow style begins alike; if it is not that either, it was meant as JSON.
            Err(error) => yaml::parse(text, warnings).map_err(|_| error),
        };
    }
    yaml::parse(text, warnings)
}

enum Kind {
    Pod,
    PodList,
    Other(String),
}

fn kind_of(root: &Node) -> Result<Kind, DecodeError> {
    if !matches!(root.value, Value::Mapping(_)) {
        return Err(DecodeError::NotAnObject { found: root.value.describe() });
    }
    let text = |name: &str| root.get(name).and_then(|node| node.as_str());
    Ok(match (text("apiVersion"), text("kind")) {
        (Some("v1"), Some("Pod")) => Kind::Pod,
        (Some("v1"), Some("PodList")) => Kind::PodList,
        (version, kind) => {
            let describe = |name: &str, value: Option<&str>| match value {
                Some(value) => format!("{name} {value:?}"),
                None => format!("no {name}"),
            };
            Kind::Other(format!("{}, {}", describe("apiVersion", version), describe("kind", kind)))
        }
    })
}

fn pod_from(node: &Node, path: Path<'_>, warnings: &WarningSink) -> Result<Pod, DecodeError> {
    Pod::deserialize(NodeDeserializer { node, path, warnings }).map_err(|error| {
        let (path, line) = error.place.unwrap_or_default();
        DecodeError::Field { path, line, message: error.message }
    })
}

#[cfg(test)]
mod tests;
