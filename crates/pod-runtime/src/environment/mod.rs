//! Environment variables of containers.

mod files;
mod objects;
mod services;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVar, FileKeySelector, ObjectFieldSelector, Pod,
    ResourceFieldSelector,
};
use rubelet_types::{
    Fetched, ObjectKind, ResourceAmounts, ResourceFieldError, expand, is_static_pod,
    pod_metadata_field, resource_field_value,
};

use self::files::FileValue;
pub use self::files::{EnvironmentFiles, read_environment_files};
pub use self::objects::{ApiObjects, ReferencedObjects, referenced_objects};
use self::services::service_variables;

/// What environment variables can refer to beside the spec.
#[derive(Clone, Copy, Debug)]
pub struct EnvironmentFacts<'a> {
    /// `status.podIPs`.
    pub pod_ips: &'a [String],
    /// `status.hostIPs`.
    pub host_ips: &'a [String],
    /// The node's name.
    pub node_name: &'a str,
    /// What the node can give: a missing limit counts as all of it.
    pub allocatable: &'a ResourceAmounts,
    /// Objects of the API; none if there is no API server.
    pub objects: Option<&'a ApiObjects>,
    /// Environment files in the pod's volumes.
    pub files: &'a EnvironmentFiles,
}

/// A variable whose value cannot be told; becomes `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The object does not exist.
    #[error("{} {name:?} not found", kind.resource())]
    ObjectNotFound {
        /// What it is.
        kind: ObjectKind,
        /// Its name.
        name: String,
    },
    /// The reference names an object of the API, and there is no API server.
    #[error("couldn't get {} {namespace}/{name}, no kubeClient defined", kind.noun())]
    NoApiServer {
        /// What it is.
        kind: ObjectKind,
        /// The pod's namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// The object could not be read; with the API server's text.
    #[error("{0}")]
    ObjectUnavailable(String),
    /// The object has no such key.
    #[error("couldn't find key {key} in {} {namespace}/{name}", kind.type_name())]
    KeyNotFound {
        /// What it is.
        kind: ObjectKind,
        /// The pod's namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key.
        key: String,
    },
    /// The value is no text. It would not survive as a variable.
    #[error("key {key} in Secret {namespace}/{name} is not UTF-8 and cannot be a variable")]
    NotText {
        /// The pod's namespace.
        namespace: String,
        /// Name of the Secret.
        name: String,
        /// The key.
        key: String,
    },
    /// The field is not one that can be referred to.
    #[error("field label not supported: {0}")]
    UnsupportedField(String),
    /// The field has no subscripts.
    #[error("field label does not support subscript: {0}")]
    UnsupportedSubscript(String),
    /// The field exists, and is not one that variables can refer to.
    #[error("unsupported fieldPath: {0}")]
    UnsupportedFieldPath(String),
    /// A resource that cannot be referred to so.
    #[error(transparent)]
    Resource(#[from] ResourceFieldError),
    /// The volume of an environment file is not there.
    #[error("cannot find the volume {volume:?} referenced by FileKeyRef")]
    FileVolumeNotFound {
        /// The volume.
        volume: String,
    },
    /// An environment file is missing or malformed. Its content stays out of the text.
    #[error("couldn't parse env file")]
    FileUnreadable,
    /// An environment file has no such key, or no value for it.
    #[error("environment variable key {key:?} not found in file {file:?}")]
    FileKeyNotFound {
        /// The key.
        key: String,
        /// Where the file is on the node.
        file: String,
    },
    /// The services of the cluster are not known yet.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnknown,
    /// The API always sets it.
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    ServiceLinksUnset,
}

/// The environment of a container: what it declares, `env` over `envFrom` and later over earlier,
/// in the order of first mention; then what services add to it. `$(VAR)` refers to variables that
/// were declared before, and to those of services.
///
/// # Errors
///
/// A reference that is not optional cannot be resolved.
pub fn compute_environment(
    pod: &Pod,
    container: &Container,
    facts: &EnvironmentFacts<'_>,
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let services = of_services(pod, facts.objects)?;
    let resolver = Resolver { pod, container, facts };
    let mut found = Variables::default();
    for source in container.env_from.iter().flatten() {
        resolver.add_source(source, &mut found)?;
    }
    let service_values: HashMap<&str, &str> =
        services.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    for variable in container.env.iter().flatten() {
        let lookup = |name: &str| {
            found.get(name).or_else(|| service_values.get(name).copied()).map(str::to_owned)
        };
        if let Some(value) = resolver.value_of(variable, lookup)? {
            found.set(variable.name.clone(), value);
        }
    }
    for (name, value) in services {
        if found.get(&name).is_none() {
            found.set(name, value);
        }
    }
    Ok(found.list)
}

/// Static pods do not wait for the services: they may be what serves the API.
fn of_services(
    pod: &Pod,
    objects: Option<&ApiObjects>,
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let Some(objects) = objects else { return Ok(Vec::new()) };
    let links = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.enable_service_links)
        .ok_or(EnvironmentError::ServiceLinksUnset)?;
    match &objects.services {
        Some(services) => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            Ok(service_variables(services, namespace, links))
        }
        None if is_static_pod(pod) => Ok(Vec::new()),
        None => Err(EnvironmentError::ServicesUnknown),
    }
}

/// Variables in the order of first mention, each with its last value.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    places: HashMap<String, usize>,
}

impl Variables {
    fn set(&mut self, name: String, value: String) {
        if let Some(entry) = self.places.get(&name).and_then(|place| self.list.get_mut(*place)) {
            entry.1 = value;
        } else {
            self.places.insert(name.clone(), self.list.len());
            self.list.push((name, value));
        }
    }

    fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.list.get(*self.places.get(name)?)?;
        Some(value)
    }
}

struct Resolver<'a> {
    pod: &'a Pod,
    container: &'a Container,
    facts: &'a EnvironmentFacts<'a>,
}

impl Resolver<'_> {
    fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn add_source(
        &self,
        source: &EnvFromSource,
        found: &mut Variables,
    ) -> Result<(), EnvironmentError> {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let object = self.object(
                ObjectKind::ConfigMap,
                self.facts.objects.map(|objects| &objects.config_maps),
                &reference.name,
                reference.optional,
            )?;
            for (key, value) in object.iter().flat_map(|object| object.data.iter().flatten()) {
                found.set(format!("{prefix}{key}"), value.clone());
            }
        } else if let Some(reference) = &source.secret_ref {
            let object = self.object(
                ObjectKind::Secret,
                self.facts.objects.map(|objects| &objects.secrets),
                &reference.name,
                reference.optional,
            )?;
            for (key, value) in object.iter().flat_map(|object| object.data.iter().flatten()) {
                let value = self.text(&reference.name, key, &value.0)?;
                found.set(format!("{prefix}{key}"), value);
            }
        }
        Ok(())
    }

    /// None if it is optional and not there.
    fn object<'o, T>(
        &self,
        kind: ObjectKind,
        known: Option<&'o BTreeMap<String, Fetched<Arc<T>>>>,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&'o T>, EnvironmentError> {
        let optional = optional == Some(true);
        match known.and_then(|known| known.get(name)) {
            Some(Fetched::Found(object)) => Ok(Some(object)),
            Some(Fetched::Failed(text)) => Err(EnvironmentError::ObjectUnavailable(text.clone())),
            Some(Fetched::NotFound) | None if optional => Ok(None),
            Some(Fetched::NotFound) => {
                Err(EnvironmentError::ObjectNotFound { kind, name: name.to_owned() })
            }
            None => Err(EnvironmentError::NoApiServer {
                kind,
                namespace: self.namespace().to_owned(),
                name: name.to_owned(),
            }),
        }
    }

    fn text(&self, name: &str, key: &str, value: &[u8]) -> Result<String, EnvironmentError> {
        String::from_utf8(value.to_vec()).map_err(|_| EnvironmentError::NotText {
            namespace: self.namespace().to_owned(),
            name: name.to_owned(),
            key: key.to_owned(),
        })
    }

    /// None for a variable that is not set at all.
    fn value_of(
        &self,
        variable: &EnvVar,
        lookup: impl FnMut(&str) -> Option<String>,
    ) -> Result<Option<String>, EnvironmentError> {
        let literal = variable.value.as_deref().unwrap_or_default();
        let Some(source) = variable.value_from.as_ref().filter(|_| literal.is_empty()) else {
            return Ok(Some(expand(literal, lookup)));
        };
        let key_not_found = |kind, name: &str, key: &str, optional: Option<bool>| match optional {
            Some(true) => Ok(None),
            _ => Err(EnvironmentError::KeyNotFound {
                kind,
                namespace: self.namespace().to_owned(),
                name: name.to_owned(),
                key: key.to_owned(),
            }),
        };
        if let Some(field) = &source.field_ref {
            return self.field_value(field).map(Some);
        }
        if let Some(resource) = &source.resource_field_ref {
            return self.resource_value(resource).map(Some);
        }
        if let Some(selector) = &source.config_map_key_ref {
            let kind = ObjectKind::ConfigMap;
            let known = self.facts.objects.map(|objects| &objects.config_maps);
            let object = self.object(kind, known, &selector.name, selector.optional)?;
            let Some(object) = object else { return Ok(None) };
            return match object.data.as_ref().and_then(|data| data.get(&selector.key)) {
                Some(value) => Ok(Some(value.clone())),
                None => key_not_found(kind, &selector.name, &selector.key, selector.optional),
            };
        }
        if let Some(selector) = &source.secret_key_ref {
            let kind = ObjectKind::Secret;
            let known = self.facts.objects.map(|objects| &objects.secrets);
            let object = self.object(kind, known, &selector.name, selector.optional)?;
            let Some(object) = object else { return Ok(None) };
            return match object.data.as_ref().and_then(|data| data.get(&selector.key)) {
                Some(value) => self.text(&selector.name, &selector.key, &value.0).map(Some),
                None => key_not_found(kind, &selector.name, &selector.key, selector.optional),
            };
        }
        match &source.file_key_ref {
            Some(selector) => self.file_value(selector),
            None => Ok(Some(String::new())),
        }
    }

    fn file_value(&self, selector: &FileKeySelector) -> Result<Option<String>, EnvironmentError> {
        let optional = selector.optional == Some(true);
        match self.facts.files.get(selector) {
            Some(FileValue::Value(value)) => Ok(Some(value.clone())),
            Some(FileValue::NoKey { .. } | FileValue::NoFile) if optional => Ok(None),
            Some(FileValue::NoKey { file }) => Err(EnvironmentError::FileKeyNotFound {
                key: selector.key.clone(),
                file: file.to_string_lossy().into_owned(),
            }),
            Some(FileValue::NoFile | FileValue::Unreadable) => {
                Err(EnvironmentError::FileUnreadable)
            }
            None => {
                Err(EnvironmentError::FileVolumeNotFound { volume: selector.volume_name.clone() })
            }
        }
    }

    fn field_value(&self, field: &ObjectFieldSelector) -> Result<String, EnvironmentError> {
        let path = field.field_path.as_str();
        if let Some(value) = pod_metadata_field(self.pod, path) {
            return Ok(value);
        }
        if path.ends_with("']") && path.contains("['") {
            return Err(EnvironmentError::UnsupportedSubscript(path.to_owned()));
        }
        match path {
            "spec.nodeName" | "spec.host" => Ok(self.facts.node_name.to_owned()),
            "spec.serviceAccountName" => {
                let spec = self.pod.spec.as_ref();
                Ok(spec.and_then(|spec| spec.service_account_name.clone()).unwrap_or_default())
            }
            "status.hostIP" => Ok(self.facts.host_ips.first().cloned().unwrap_or_default()),
            "status.hostIPs" => Ok(self.facts.host_ips.join(",")),
            "status.podIP" => Ok(self.facts.pod_ips.first().cloned().unwrap_or_default()),
            "status.podIPs" => Ok(self.facts.pod_ips.join(",")),
            "spec.restartPolicy" | "spec.schedulerName" | "status.phase" => {
                Err(EnvironmentError::UnsupportedFieldPath(path.to_owned()))
            }
            other => Err(EnvironmentError::UnsupportedField(other.to_owned())),
        }
    }

    fn resource_value(&self, selector: &ResourceFieldSelector) -> Result<String, EnvironmentError> {
        let (own, allocatable) = (Some(self.container), self.facts.allocatable);
        Ok(resource_field_value(self.pod, own, selector, allocatable)?.to_string())
    }
}

#[cfg(test)]
mod tests;
