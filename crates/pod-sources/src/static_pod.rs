//! What makes a manifest's pod a static pod of this node.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use rubelet_types::labels;

use crate::decode::DecodeError;
use crate::defaults::apply_defaults;
use crate::find_api_reference;
use crate::static_pod_uid::static_pod_uid;
use crate::validation::{ValidationErrors, validate_pod_create};

/// Where a manifest came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ManifestOrigin {
    /// A file in `staticPodPath`, or that file.
    File(PathBuf),
    /// `staticPodURL` to the letter, credentials and all.
    Url(String),
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
    if pod.metadata.uid.as_deref().unwrap_or_default().is_empty() {
        pod.metadata.uid = Some(static_pod_uid(&pod, origin, &policy.node_name));
    }
    drop_live_state(&mut pod);
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

#[cfg(test)]
mod tests;
