//! What the API server asks of a new pod, as far as the pod's own content goes.
//!
//! All faults are found at once, each with its field path and in the API server's words. The pod is
//! expected to be defaulted. Beyond the API's rules, whatever becomes an element of a path on the
//! node (name, namespace, uid, container names) must be usable as one.

mod containers;
mod environment;
mod error;
mod handlers;
mod legacy_volumes;
mod metadata;
mod mounts;
mod projected;
mod resources;
mod scheduling;
mod security;
mod spec;
mod syntax;
mod volumes;

use k8s_openapi::api::core::v1::{Pod, PodSpec, SecurityContext};

pub use error::{FieldError, FieldErrorKind, ValidationErrors};

use error::{Errors, FieldPath};

/// Checks a pod as on its creation.
pub fn validate_pod_create(pod: &Pod) -> Result<(), ValidationErrors> {
    let mut errors = Errors::default();
    let (metadata_path, spec_path) = (FieldPath::new("metadata"), FieldPath::new("spec"));
    metadata::validate(&pod.metadata, &metadata_path, &mut errors);
    match &pod.spec {
        None => errors.required(&spec_path, ""),
        Some(spec) => {
            let annotations = metadata_path.child("annotations");
            metadata::validate_pod_annotations(&pod.metadata, spec, &annotations, &mut errors);
            spec::validate(spec, &pod.metadata, &spec_path, &mut errors);
            if let Some(annotations) = &pod.metadata.annotations {
                security::validate_app_armor_annotations(
                    annotations,
                    spec,
                    &spec_path,
                    &mut errors,
                );
            }
        }
    }
    errors.finish()
}

/// Absent and empty are one in the API.
fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// What the checks across all kinds of containers look at.
struct AnyContainer<'a> {
    name: &'a str,
    security_context: Option<&'a SecurityContext>,
}

/// Init, regular and ephemeral containers with the list they stand in and their index.
fn all_containers(
    spec: &PodSpec,
) -> impl Iterator<Item = (AnyContainer<'_>, (&'static str, usize))> {
    let init = spec.init_containers.iter().flatten().enumerate().map(|(index, it)| {
        (
            AnyContainer { name: &it.name, security_context: it.security_context.as_ref() },
            ("initContainers", index),
        )
    });
    let regular = spec.containers.iter().enumerate().map(|(index, it)| {
        (
            AnyContainer { name: &it.name, security_context: it.security_context.as_ref() },
            ("containers", index),
        )
    });
    let ephemeral = spec.ephemeral_containers.iter().flatten().enumerate().map(|(index, it)| {
        (
            AnyContainer { name: &it.name, security_context: it.security_context.as_ref() },
            ("ephemeralContainers", index),
        )
    });
    init.chain(regular).chain(ephemeral)
}

#[cfg(test)]
mod tests;
