//! What events tell of a resize.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;

/// How far a resize is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeNews<'a> {
    /// It was granted.
    Started,
    /// It is in force.
    Completed,
    /// It was not granted, for this reason.
    Pending {
        /// `Infeasible`, or the reason of admission.
        reason: &'a str,
        message: &'a str,
    },
    /// It could not be brought into force.
    Error { message: &'a str },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<OfContainer<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<OfContainer<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct OfContainer<'a> {
    name: &'a str,
    resources: Resources<'a>,
}

/// In the order in which upstream writes them.
#[derive(Default, Serialize)]
struct Resources<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<&'a BTreeMap<String, Quantity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<&'a BTreeMap<String, Quantity>>,
}

/// The text of the event: how far it is, and the resources that the spec of `pod` names.
pub(crate) fn resize_message(pod: &Pod, generation: i64, news: ResizeNews<'_>) -> String {
    let (what, error) = match news {
        ResizeNews::Started => ("Pod resize started".to_owned(), ""),
        ResizeNews::Completed => ("Pod resize completed".to_owned(), ""),
        ResizeNews::Pending { reason, message } => (format!("Pod resize {reason}"), message),
        ResizeNews::Error { message } => ("Pod resize error".to_owned(), message),
    };
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map_or(&[][..], |spec| &spec.containers);
    let summary = Summary {
        init_containers: init.iter().map(of_container).collect(),
        containers: regular.iter().map(of_container).collect(),
        generation,
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(summary) => format!("{what}: {summary}"),
        Err(_) => what,
    }
}

fn of_container(container: &Container) -> OfContainer<'_> {
    let resources = container.resources.as_ref().map(|resources| Resources {
        limits: resources.limits.as_ref().filter(|list| !list.is_empty()),
        requests: resources.requests.as_ref().filter(|list| !list.is_empty()),
    });
    OfContainer { name: &container.name, resources: resources.unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn in_upstreams_words() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "resources": {
                "requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"},
            }}],
        }}))
        .unwrap();
        let containers = concat!(
            r#"{"initContainers":[{"name":"i","resources":{}}],"containers":[{"name":"c","#,
            r#""resources":{"limits":{"cpu":"2"},"requests":{"cpu":"1","memory":"1Gi"}}}],"#,
            r#""generation":3"#
        );
        let failed = ResizeNews::Error { message: "it does not want to" };
        let waits = ResizeNews::Pending { reason: "OutOfcpu", message: "full" };
        for (news, text) in [
            (ResizeNews::Started, format!("Pod resize started: {containers}}}")),
            (ResizeNews::Completed, format!("Pod resize completed: {containers}}}")),
            (waits, format!("Pod resize OutOfcpu: {containers},\"error\":\"full\"}}")),
            (failed, format!("Pod resize error: {containers},\"error\":\"it does not want to\"}}")),
        ] {
            assert_eq!(resize_message(&pod, 3, news), text);
        }
    }
}
