//! What makes a manifest's pod a static pod of this node.

use std::fmt;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use rubelet_types::labels;
use serde_json::Value;

use crate::decode::DecodeError;
use crate::defaults::apply_defaults;
use crate::find_api_reference;
use crate::validation::{ValidationErrors, validate_pod_create};

/// Where a manifest came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ManifestOrigin {
    /// A file in `staticPodPath`, or that file.
    File(PathBuf),
    /// `staticPodURL`.
    Url(String),
}

impl fmt::Display for ManifestOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Url(url) => write!(f, "url:{url}"),
        }
    }
}

/// What a node asks of its static pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticPodPolicy {
    /// The node's name.
    pub node_name: String,
    /// Feature gate `PreventStaticPodAPIReferences`: refuse pods that refer to API objects.
    pub prevent_api_references: bool,
}

/// Why a manifest gives no static pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It cannot be read as a pod.
    #[error("couldn't parse as pod({0}), please check config file")]
    Decode(DecodeError),
    /// `metadata.name` is missing.
    #[error("invalid pod: name is needed for the pod")]
    NameMissing,
    /// The API server would refuse such a pod.
    #[error("invalid pod: {0}")]
    Invalid(ValidationErrors),
    /// It refers to API objects, which a static pod may not.
    #[error("static pods may not reference {resource}")]
    ApiReference {
        /// The plural resource, with how it is referred to.
        resource: &'static str,
    },
}

impl From<DecodeError> for ManifestError {
    fn from(error: DecodeError) -> Self {
        Self::Decode(error)
    }
}

/// Makes the pod of a manifest a static pod of this node: defaults, uid, the node's name in its
/// name, namespace, annotations, tolerations; then validates it as the API server would.
///
/// The uid stays verbatim where the manifest sets one. What only a live pod has (status, deletion,
/// the kubelet's own annotations), as in a manifest that was copied from the API, is dropped.
pub fn prepare_static_pod(
    mut pod: Pod,
    origin: &ManifestOrigin,
    policy: &StaticPodPolicy,
) -> Result<Pod, ManifestError> {
    let Some(name) = pod.metadata.name.clone().filter(|name| !name.is_empty()) else {
        return Err(ManifestError::NameMissing);
    };
    drop_live_state(&mut pod);
    if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.uid = Some(static_pod_uid(&pod, origin, &policy.node_name));
    }
    apply_defaults(&mut pod);

    pod.metadata.name = Some(format!("{name}-{}", policy.node_name.to_lowercase()));
    if pod.metadata.namespace.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.namespace = Some("default".to_owned());
    }
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    pod.metadata.annotations.get_or_insert_default().insert(labels::CONFIG_HASH.to_owned(), uid);
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(policy.node_name.clone());
    if matches!(origin, ManifestOrigin::File(_)) {
        tolerate_no_execute(spec.tolerations.get_or_insert_default());
    }
    pod.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..PodStatus::default() });

    validate_pod_create(&pod).map_err(ManifestError::Invalid)?;
    if policy.prevent_api_references
        && let Some(resource) = find_api_reference(&pod)
    {
        return Err(ManifestError::ApiReference { resource });
    }
    Ok(pod)
}

fn drop_live_state(pod: &mut Pod) {
    pod.status = None;
    pod.metadata.deletion_timestamp = None;
    pod.metadata.deletion_grace_period_seconds = None;
    pod.metadata.managed_fields = None;
    if let Some(annotations) = pod.metadata.annotations.as_mut() {
        for key in
            [labels::CONFIG_MIRROR, labels::CONFIG_SOURCE, labels::CONFIG_SEEN, labels::CONFIG_HASH]
        {
            annotations.remove(key);
        }
    }
}

/// A static pod is not evicted for what happens to its node.
fn tolerate_no_execute(tolerations: &mut Vec<Toleration>) {
    let ours = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    let is_empty = |text: &Option<String>| text.as_deref().unwrap_or_default().is_empty();
    let twin = tolerations.iter_mut().find(|other| {
        is_empty(&other.key)
            && is_empty(&other.value)
            && other.operator == ours.operator
            && other.effect == ours.effect
    });
    match twin {
        Some(twin) => *twin = ours,
        None => tolerations.push(ours),
    }
}

/// The uid of a static pod: 32 hexadecimal digits, different when the manifest's content, its
/// place or the node's name is.
///
/// It is a 128-bit FNV-1a over the pod as its author wrote it, in a canonical form (the order of
/// keys, comments and layout make no difference). Defaults are *not* in it: a kubelet that learns a
/// new default must not restart every static pod. The Go kubelet hashes a rendering of its own
/// in-memory structures, which changes from version to version; the two never agree.
pub fn static_pod_uid(pod: &Pod, origin: &ManifestOrigin, node_name: &str) -> String {
    let mut content = Vec::new();
    // A pod of plain data always serialises.
    write_canonical(&serde_json::to_value(pod).unwrap_or_default(), &mut content);
    for part in [node_name.as_bytes(), origin.to_string().as_bytes()] {
        // NUL stands in no name, so parts cannot run into each other.
        content.push(0);
        content.extend_from_slice(part);
    }
    format!("{:032x}", rubelet_types::fnv1a_128(&content))
}

/// Like JSON without space, with the keys sorted whatever order the map type keeps.
fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Object(object) => {
            let mut entries: Vec<(&String, &Value)> = object.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push(b'{');
            for (key, value) in entries {
                out.extend_from_slice(Value::from(key.as_str()).to_string().as_bytes());
                out.push(b':');
                write_canonical(value, out);
                out.push(b',');
            }
            out.push(b'}');
        }
        Value::Array(items) => {
            out.push(b'[');
            for item in items {
                write_canonical(item, out);
                out.push(b',');
            }
            out.push(b']');
        }
        scalar => out.extend_from_slice(scalar.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests;
