//! From the text of a configuration file to values, without reading files.

use serde_json::{Map, Value};

use crate::defaults::default_eviction_hard;
use crate::{GoDuration, KubeletConfiguration};

/// The API group and version of configuration files.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The kind of configuration files.
pub const KIND: &str = "KubeletConfiguration";

/// Why a text is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is no YAML or JSON, or too deep or too large when its aliases are followed.
    #[error("not valid YAML or JSON")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    /// It holds several YAML documents, of which only one could count.
    #[error("it holds more than one YAML document")]
    SeveralDocuments,
    /// There is nothing in it.
    #[error("it is empty")]
    Empty,
    /// The top level is a list or a scalar.
    #[error("the top level must be an object")]
    NotAnObject,
    /// Another API group or version.
    #[error("apiVersion must be {API_VERSION:?}, got {0:?}")]
    ApiVersion(String),
    /// Another kind.
    #[error("kind must be {KIND:?}, got {0:?}")]
    Kind(String),
    /// A field has a value of the wrong type.
    #[error("field {field:?} cannot be used")]
    Field {
        /// Path of the field.
        field: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

/// A decoded file: the object without `kind` and `apiVersion`, and what a strict reader would have
/// refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    pub(crate) object: Map<String, Value>,
    pub(crate) warnings: Vec<String>,
}

/// Reads a file's text. Unknown fields and duplicate keys are warnings, everything else that is
/// wrong is an error.
pub(crate) fn decode_document(text: &str) -> Result<Document, DecodeError> {
    use serde_saphyr::options::DuplicateKeyPolicy;

    if text.trim().is_empty() {
        return Err(DecodeError::Empty);
    }
    let mut warnings = Vec::new();
    let documents = match parse(text, DuplicateKeyPolicy::Error) {
        Err(serde_saphyr::Error::DuplicateMappingKey { key, location }) => {
            let key = key.unwrap_or_default();
            let line = location.line();
            warnings.push(format!("key {key:?} is set again in line {line}; the last one counts"));
            parse(text, DuplicateKeyPolicy::LastWins)
        }
        other => other,
    }
    .map_err(|error| DecodeError::Syntax(Box::new(error)))?;
    let mut object = match only_document(documents)? {
        Value::Object(object) => object,
        _ => return Err(DecodeError::NotAnObject),
    };
    let mut header = |name: &str| match object.remove(name) {
        Some(Value::String(text)) => text,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let (api_version, kind) = (header("apiVersion"), header("kind"));
    if api_version != API_VERSION {
        return Err(DecodeError::ApiVersion(api_version));
    }
    if kind != KIND {
        return Err(DecodeError::Kind(kind));
    }
    let (_, unknown) = decode_typed(object.clone())?;
    warnings.extend(unknown.iter().map(|field| format!("unknown field {field:?}")));
    Ok(Document { object, warnings })
}

/// The value that a text holds. A key that is set twice is an error.
pub(crate) fn parse_strictly(text: &str) -> Result<Value, DecodeError> {
    if text.trim().is_empty() {
        return Err(DecodeError::Empty);
    }
    let documents = parse(text, serde_saphyr::options::DuplicateKeyPolicy::Error)
        .map_err(|error| DecodeError::Syntax(Box::new(error)))?;
    only_document(documents)
}

fn only_document(mut documents: Vec<Value>) -> Result<Value, DecodeError> {
    // A separator at the end of a file makes one more document, an empty one.
    documents.retain(|document| !document.is_null());
    match (documents.pop(), documents.is_empty()) {
        (None, _) => Err(DecodeError::Empty),
        (Some(_), false) => Err(DecodeError::SeveralDocuments),
        (Some(document), true) => Ok(document),
    }
}

/// Parses within bounds that no honest configuration comes near to, so that aliases of aliases or a
/// deep nesting end in an error and not in a lack of memory.
fn parse(
    text: &str,
    duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy,
) -> Result<Vec<Value>, serde_saphyr::Error> {
    let options = serde_saphyr::options! {
        duplicate_keys: duplicate_keys,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: 64,
            max_nodes: 100_000,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_documents: 4,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 10_000,
            max_replay_stack_depth: 16,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options)
}

/// The object as configuration, plus the paths of fields that do not exist. A `null` counts as not
/// set.
fn decode_typed(
    object: Map<String, Value>,
) -> Result<(KubeletConfiguration, Vec<String>), DecodeError> {
    let mut value = Value::Object(object);
    remove_nulls(&mut value);
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(value, &mut track);
    let config = serde_ignored::deserialize(tracked, |path| unknown.push(path.to_string()))
        .map_err(|source| DecodeError::Field { field: track.path().to_string(), source })?;
    Ok((config, unknown))
}

/// The object as configuration with all defaults. Fields that do not exist are ignored.
pub(crate) fn into_configuration(
    object: Map<String, Value>,
) -> Result<KubeletConfiguration, DecodeError> {
    let is_set = |name: &str| object.get(name).is_some_and(|value| !value.is_null());
    let sets_time = |name: &str| {
        object
            .get(name)
            .and_then(Value::as_str)
            .and_then(|text| text.parse::<GoDuration>().ok())
            .is_some_and(|time| !time.is_zero())
    };
    let report_follows_update =
        sets_time("nodeStatusUpdateFrequency") && !sets_time("nodeStatusReportFrequency");
    let chooses_serial_pulls = is_set("serializeImagePulls");
    let chooses_eviction = is_set("evictionHard");
    let (mut config, _) = decode_typed(object)?;
    config.replace_zero_by_default();
    if report_follows_update {
        config.node_status_report_frequency = config.node_status_update_frequency;
    }
    if !chooses_serial_pulls {
        config.serialize_image_pulls = config.max_parallel_image_pulls.is_none_or(|n| n < 2);
    }
    if !chooses_eviction {
        config.eviction_hard = default_eviction_hard();
    }
    config.merge_default_eviction_hard();
    Ok(config)
}

/// The configuration as the object that drop-ins are merged into. What is explicitly empty stays
/// so, although the public form leaves empty things out.
pub(crate) fn into_object(config: &KubeletConfiguration) -> Map<String, Value> {
    let mut object = plain_object(config);
    for (name, empty) in [
        ("evictionHard", Value::Object(Map::new())),
        ("enforceNodeAllocatable", Value::from([""; 0])),
    ] {
        object.entry(name).or_insert(empty);
    }
    object
}

fn plain_object(config: &KubeletConfiguration) -> Map<String, Value> {
    match serde_json::to_value(config) {
        Ok(Value::Object(object)) => object,
        // Text keys and finite numbers only: there is no value that JSON could not hold.
        other => unreachable!("the configuration is always a JSON object: {other:?}"),
    }
}

/// A JSON merge patch (RFC 7386): objects merge, everything else replaces, `null` removes.
pub(crate) fn merge_patch(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, value) in patch {
        match value {
            Value::Null => {
                target.remove(&name);
            }
            Value::Object(patch) => {
                let entry = target.entry(name).or_insert(Value::Null);
                if !entry.is_object() {
                    *entry = Value::Object(Map::new());
                }
                if let Value::Object(target) = entry {
                    merge_patch(target, patch);
                }
            }
            other => {
                target.insert(name, other);
            }
        }
    }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.retain(|_, value| !value.is_null());
            object.values_mut().for_each(remove_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

impl KubeletConfiguration {
    /// The body of `GET /configz`: `{"kubeletconfig": {...}}` with every value in force.
    pub fn configz(&self) -> Value {
        let mut config = Map::new();
        config.insert("kind".to_owned(), KIND.into());
        config.insert("apiVersion".to_owned(), API_VERSION.into());
        config.extend(plain_object(self));
        Value::Object(Map::from_iter([("kubeletconfig".to_owned(), Value::Object(config))]))
    }
}
