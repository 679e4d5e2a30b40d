//! Values of the downward API: what environment variables and volumes tell a container about its
//! own pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use crate::{
    ContainerKind, Quantity, ResourceAmounts, container_limits, container_requests, find_container,
    quote_go,
};

/// A `resourceFieldRef` that cannot be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceFieldError {
    /// The named resource is not one that can be referred to.
    #[error("unsupported container resource : {0}")]
    UnsupportedResource(String),
    /// The named container does not exist.
    #[error("container {0} not found")]
    ContainerNotFound(String),
    /// The divisor is no quantity.
    #[error("invalid divisor {0:?}")]
    InvalidDivisor(String),
}

/// The value of a field of `metadata` that a `fieldRef` names; none if it is no such field. Labels
/// and annotations are one `key="value"` a line, or one value with a subscript
/// (`metadata.labels['app']`), which is empty if it is not there.
pub fn pod_metadata_field(pod: &Pod, field_path: &str) -> Option<String> {
    let metadata = &pod.metadata;
    let text = |value: Option<&String>| value.cloned().unwrap_or_default();
    if let Some((list, key)) = field_path.strip_suffix("']").and_then(|path| path.split_once("['"))
    {
        let list = match list {
            "metadata.labels" => metadata.labels.as_ref(),
            "metadata.annotations" => metadata.annotations.as_ref(),
            _ => return None,
        };
        return Some(text(list.and_then(|list| list.get(key))));
    }
    Some(match field_path {
        "metadata.name" => text(metadata.name.as_ref()),
        "metadata.namespace" => text(metadata.namespace.as_ref()),
        "metadata.uid" => text(metadata.uid.as_ref()),
        "metadata.labels" => list_text(metadata.labels.as_ref()),
        "metadata.annotations" => list_text(metadata.annotations.as_ref()),
        _ => return None,
    })
}

/// One `key="value"` a line, by key.
fn list_text(list: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = list
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", quote_go(value)))
        .collect();
    lines.join("\n")
}

/// The value of a `resourceFieldRef` divided by its divisor and rounded up. `own` is the container
/// that a selector without a name means. A missing limit counts as the pod's, else as what the
/// node can give (`allocatable`).
///
/// # Errors
///
/// The selector names no container, no resource or no divisor that there is.
pub fn resource_field_value(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    allocatable: &ResourceAmounts,
) -> Result<i64, ResourceFieldError> {
    let name = selector.container_name.as_deref().unwrap_or_default();
    let own = own.filter(|own| name.is_empty() || name == own.name);
    let other = match own {
        Some(_) => None,
        None => Some(
            find_container(pod, name)
                .filter(|spec| spec.kind != ContainerKind::Ephemeral)
                .ok_or_else(|| ResourceFieldError::ContainerNotFound(name.to_owned()))?,
        ),
    };
    let unsupported = || ResourceFieldError::UnsupportedResource(selector.resource.clone());
    let container = own.or(other.as_ref().map(|spec| &*spec.container)).ok_or_else(unsupported)?;
    let divisor = match &selector.divisor {
        Some(divisor) if !divisor.0.is_empty() => Quantity::try_from(divisor)
            .map_err(|_| ResourceFieldError::InvalidDivisor(divisor.0.clone()))?,
        _ => Quantity::from_units(1),
    };
    let (list, resource) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    let shared = matches!(resource, "cpu" | "memory" | "ephemeral-storage");
    if !shared && !resource.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let amount = match list {
        "limits" => container_limits(container)
            .get(resource)
            .filter(|limit| !limit.is_zero())
            .or_else(|| if shared { node_limit(pod, resource, allocatable) } else { None }),
        "requests" => container_requests(container).get(resource),
        _ => return Err(unsupported()),
    };
    Ok(amount.unwrap_or(Quantity::ZERO).divided_by(&divisor))
}

/// What a container without a limit of its own can use at most: what the pod may, else all that the
/// node can give.
fn node_limit(pod: &Pod, resource: &str, allocatable: &ResourceAmounts) -> Option<Quantity> {
    let allocatable = allocatable.get(resource)?;
    let of_pod = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref())
        .map(|resources| ResourceAmounts::from_api(resources.limits.as_ref()))
        .and_then(|limits| limits.get(resource))
        .filter(|limit| matches!(resource, "cpu" | "memory") && !limit.is_zero());
    Some(of_pod.unwrap_or(allocatable))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u-1",
                "labels": {"tier": "y\"z", "app": "x"},
                "annotations": {"a/b": "line\nbreak\u{7f}é\u{1b}"}},
            "spec": {"containers": [
                {"name": "c", "resources": {"requests": {"cpu": "250m"}, "limits": {"memory": "64Mi"}}},
            ]}
        }))
        .unwrap()
    }

    #[test]
    fn fields_of_metadata() {
        for (path, expected) in [
            ("metadata.name", Some("web")),
            ("metadata.namespace", Some("ns")),
            ("metadata.uid", Some("u-1")),
            ("metadata.labels", Some("app=\"x\"\ntier=\"y\\\"z\"")),
            ("metadata.annotations", Some("a/b=\"line\\nbreak\\x7fé\\x1b\"")),
            ("metadata.labels['app']", Some("x")),
            ("metadata.labels['none']", Some("")),
            ("metadata.name['app']", None),
            ("status.podIP", None),
        ] {
            assert_eq!(pod_metadata_field(&pod(), path).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_volume_names_its_container() {
        let value = |name: Option<&str>, resource: &str, divisor: &str| {
            let selector = serde_json::from_value(
                json!({"containerName": name, "resource": resource, "divisor": divisor}),
            )
            .unwrap();
            let mut allocatable = ResourceAmounts::default();
            allocatable.set("cpu", Quantity::from_units(4));
            resource_field_value(&pod(), None, &selector, &allocatable)
                .map_err(|error| error.to_string())
        };
        assert_eq!(value(Some("c"), "requests.cpu", "1m"), Ok(250));
        assert_eq!(value(Some("c"), "limits.cpu", "0"), Ok(4));
        assert_eq!(value(Some("c"), "limits.memory", "1Mi"), Ok(64));
        assert_eq!(value(None, "limits.memory", ""), Err("container  not found".to_owned()));
        assert_eq!(
            value(Some("c"), "limits.gpu", ""),
            Err("unsupported container resource : limits.gpu".to_owned())
        );
        assert_eq!(value(Some("c"), "limits.cpu", "x"), Err("invalid divisor \"x\"".to_owned()));
    }
}
