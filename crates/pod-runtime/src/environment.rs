//! Environment variables of containers.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector,
};
use rubelet_types::{
    ContainerKind, Quantity, ResourceAmounts, container_limits, container_requests, expand,
    find_container,
};

/// What environment variables can refer to beside the spec.
#[derive(Debug)]
pub struct EnvironmentFacts<'a> {
    /// `status.podIPs`.
    pub pod_ips: &'a [String],
    /// `status.hostIPs`.
    pub host_ips: &'a [String],
    /// The node's name.
    pub node_name: &'a str,
    /// What the node can give: a missing limit counts as all of it.
    pub allocatable: &'a ResourceAmounts,
}

/// A variable whose value cannot be told; becomes `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// The reference names an object of the API, and there is no API server.
    #[error("{kind} {name:?} not found")]
    ObjectNotFound {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The field path is not one that can be referred to.
    #[error("unsupported fieldPath: {0}")]
    UnsupportedField(String),
    /// The named resource is not one that can be referred to.
    #[error("unsupported container resource : {0}")]
    UnsupportedResource(String),
    /// The named container does not exist.
    #[error("container {0} not found")]
    ContainerNotFound(String),
    /// The divisor is no quantity.
    #[error("invalid divisor {0:?}")]
    InvalidDivisor(String),
    /// A file of an emptyDir cannot be read by this path.
    #[error("couldn't read key {key} of environment file {path} in volume {volume}")]
    EnvironmentFile {
        /// The volume.
        volume: String,
        /// The path in it.
        path: String,
        /// The key.
        key: String,
    },
}

/// The environment of a container, in the order of its spec; `$(VAR)` refers to earlier variables.
///
/// # Errors
///
/// A reference that is not optional cannot be resolved.
pub fn compute_environment(
    pod: &Pod,
    container: &Container,
    facts: &EnvironmentFacts<'_>,
) -> Result<Vec<(String, String)>, EnvironmentError> {
    let mut found: Vec<(String, String)> = Vec::new();
    for source in container.env_from.iter().flatten() {
        let config_map = source.config_map_ref.as_ref().map(|r| ("configmap", &r.name, r.optional));
        let secret = source.secret_ref.as_ref().map(|r| ("secret", &r.name, r.optional));
        for (kind, name, optional) in config_map.into_iter().chain(secret) {
            if optional != Some(true) {
                return Err(EnvironmentError::ObjectNotFound { kind, name: name.clone() });
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let Some(value) = value_of(pod, container, variable, facts, &found)? else { continue };
        found.retain(|(name, _)| *name != variable.name);
        found.push((variable.name.clone(), value));
    }
    Ok(found)
}

fn value_of(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    facts: &EnvironmentFacts<'_>,
    earlier: &[(String, String)],
) -> Result<Option<String>, EnvironmentError> {
    let literal = variable.value.as_deref().unwrap_or_default();
    let Some(source) = variable.value_from.as_ref().filter(|_| literal.is_empty()) else {
        let lookup = |name: &str| {
            earlier.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        return Ok(Some(expand(literal, lookup)));
    };
    let EnvVarSource {
        config_map_key_ref,
        field_ref,
        file_key_ref,
        resource_field_ref,
        secret_key_ref,
    } = source;
    if let Some(field) = field_ref {
        return field_value(pod, field, facts).map(Some);
    }
    if let Some(resource) = resource_field_ref {
        return resource_value(pod, container, resource, facts).map(Some);
    }
    let object = config_map_key_ref
        .as_ref()
        .map(|r| ("configmap", &r.name, r.optional))
        .or_else(|| secret_key_ref.as_ref().map(|r| ("secret", &r.name, r.optional)));
    if let Some((kind, name, optional)) = object {
        return match optional {
            Some(true) => Ok(None),
            _ => Err(EnvironmentError::ObjectNotFound { kind, name: name.clone() }),
        };
    }
    match file_key_ref {
        Some(file) if file.optional != Some(true) => Err(EnvironmentError::EnvironmentFile {
            volume: file.volume_name.clone(),
            path: file.path.clone(),
            key: file.key.clone(),
        }),
        _ => Ok(None),
    }
}

fn field_value(
    pod: &Pod,
    field: &ObjectFieldSelector,
    facts: &EnvironmentFacts<'_>,
) -> Result<String, EnvironmentError> {
    let metadata = &pod.metadata;
    let spec = pod.spec.as_ref();
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    let path = field.field_path.as_str();
    let subscript = |prefix: &str| {
        path.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']").map(str::to_owned)
    };
    if let Some(key) = subscript("metadata.labels") {
        return Ok(text(metadata.labels.as_ref().and_then(|all| all.get(&key))));
    }
    if let Some(key) = subscript("metadata.annotations") {
        return Ok(text(metadata.annotations.as_ref().and_then(|all| all.get(&key))));
    }
    match path {
        "metadata.name" => Ok(text(metadata.name.as_ref())),
        "metadata.namespace" => Ok(text(metadata.namespace.as_ref())),
        "metadata.uid" => Ok(text(metadata.uid.as_ref())),
        "spec.nodeName" => Ok(facts.node_name.to_owned()),
        "spec.serviceAccountName" => {
            Ok(text(spec.and_then(|spec| spec.service_account_name.as_ref())))
        }
        "status.hostIP" => Ok(text(facts.host_ips.first())),
        "status.hostIPs" => Ok(facts.host_ips.join(",")),
        "status.podIP" => Ok(text(facts.pod_ips.first())),
        "status.podIPs" => Ok(facts.pod_ips.join(",")),
        other => Err(EnvironmentError::UnsupportedField(other.to_owned())),
    }
}

fn resource_value(
    pod: &Pod,
    own: &Container,
    selector: &ResourceFieldSelector,
    facts: &EnvironmentFacts<'_>,
) -> Result<String, EnvironmentError> {
    let other = match selector.container_name.as_deref() {
        Some(name) if !name.is_empty() && name != own.name => Some(
            find_container(pod, name)
                .filter(|spec| spec.kind != ContainerKind::Ephemeral)
                .ok_or_else(|| EnvironmentError::ContainerNotFound(name.to_owned()))?,
        ),
        _ => None,
    };
    let container = other.as_ref().map_or(own, |spec| &spec.container);
    let divisor = match &selector.divisor {
        Some(divisor) if !divisor.0.is_empty() => Quantity::try_from(divisor)
            .map_err(|_| EnvironmentError::InvalidDivisor(divisor.0.clone()))?,
        _ => Quantity::from_units(1),
    };
    let unsupported = || EnvironmentError::UnsupportedResource(selector.resource.clone());
    let (list, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let known = matches!(resource, "cpu" | "memory" | "ephemeral-storage")
        || resource.starts_with("hugepages-");
    let amount = match list {
        _ if !known => return Err(unsupported()),
        "limits" => container_limits(container)
            .get(resource)
            .filter(|limit| !limit.is_zero())
            .or_else(|| facts.allocatable.get(resource)),
        "requests" => container_requests(container).get(resource),
        _ => return Err(unsupported()),
    };
    Ok(amount.unwrap_or(Quantity::ZERO).divided_by(&divisor).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(env: serde_json::Value) -> Result<String, EnvironmentError> {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u-1",
                "labels": {"app": "x"}, "annotations": {"a/b": "y"}},
            "spec": {"serviceAccountName": "sa", "containers": [
                {"name": "c", "env": env, "resources": {
                    "requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}},
                {"name": "other", "resources": {"limits": {"cpu": "2"}}}
            ]}
        }))
        .unwrap();
        let mut allocatable = ResourceAmounts::default();
        allocatable.set("cpu", Quantity::from_units(4));
        let facts = EnvironmentFacts {
            pod_ips: &["10.0.0.2".to_owned(), "fd00::2".to_owned()],
            host_ips: &["192.0.2.1".to_owned()],
            node_name: "node",
            allocatable: &allocatable,
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        compute_environment(&pod, container, &facts).map(|found| {
            found.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(" ")
        })
    }

    fn field(path: &str) -> String {
        environment(serde_json::json!([{"name": "V",
            "valueFrom": {"fieldRef": {"fieldPath": path}}}]))
        .unwrap_or_else(|error| error.to_string())
    }

    fn resource(name: &str, container: &str, divisor: &str) -> String {
        environment(serde_json::json!([{"name": "V", "valueFrom": {"resourceFieldRef":
            {"resource": name, "containerName": container, "divisor": divisor}}}]))
        .unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn earlier_variables_are_expanded_and_the_last_value_wins() {
        let env = serde_json::json!([
            {"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)-$$(A)"},
            {"name": "A", "value": "2"}, {"name": "C", "value": "$(A)"}
        ]);
        assert_eq!(environment(env).unwrap(), "B=1-$(C)-$(A) A=2 C=2");
    }

    #[test]
    fn fields_of_the_pod() {
        for (path, expected) in [
            ("metadata.name", "V=web"),
            ("metadata.namespace", "V=ns"),
            ("metadata.uid", "V=u-1"),
            ("metadata.labels['app']", "V=x"),
            ("metadata.annotations['a/b']", "V=y"),
            ("metadata.annotations['none']", "V="),
            ("spec.nodeName", "V=node"),
            ("spec.serviceAccountName", "V=sa"),
            ("status.hostIP", "V=192.0.2.1"),
            ("status.podIP", "V=10.0.0.2"),
            ("status.podIPs", "V=10.0.0.2,fd00::2"),
            ("spec.secret", "unsupported fieldPath: spec.secret"),
        ] {
            assert_eq!(field(path), expected, "{path}");
        }
    }

    #[test]
    fn resources_are_divided_and_rounded_up() {
        for (name, container, divisor, expected) in [
            ("requests.cpu", "", "1m", "V=250"),
            ("requests.cpu", "", "", "V=1"),
            ("limits.memory", "", "1Mi", "V=64"),
            ("requests.memory", "", "1Mi", "V=64"),
            ("limits.cpu", "", "", "V=4"),
            ("limits.cpu", "other", "1m", "V=2000"),
            ("limits.gpu", "", "", "unsupported container resource : limits.gpu"),
            ("limits.cpu", "nobody", "", "container nobody not found"),
        ] {
            assert_eq!(resource(name, container, divisor), expected, "{name} {container}");
        }
    }

    #[test]
    fn objects_of_an_api_that_is_not_there_are_missing_unless_optional() {
        let reference = |optional: bool| {
            serde_json::json!([{"name": "V", "valueFrom": {"secretKeyRef":
                {"name": "s", "key": "k", "optional": optional}}}])
        };
        assert_eq!(
            environment(reference(false)).unwrap_err().to_string(),
            "secret \"s\" not found"
        );
        assert_eq!(environment(reference(true)).unwrap(), "");
    }
}
