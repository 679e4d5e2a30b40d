//! The API object of an event.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as ApiEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use rubelet_types::{Event, EventObject, fnv1a_128};

/// `source.component` and `reportingComponent` of every event.
const COMPONENT: &str = "kubelet";
/// The longest name that an API object can have.
const MAX_NAME: usize = 253;

/// The object for `event`, which happened at `at` on the node `node_name`. Its name is made of `at`,
/// so no two events may have the same.
pub(crate) fn api_event(event: Event, node_name: &str, at: Timestamp) -> ApiEvent {
    let involved_object = involved_object(&event.object, node_name);
    let namespace = involved_object.namespace.clone().unwrap_or_else(|| "default".to_owned());
    ApiEvent {
        metadata: ObjectMeta {
            name: Some(event_name(involved_object.name.as_deref().unwrap_or_default(), at)),
            namespace: Some(namespace),
            annotations: Some(event.annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        involved_object,
        type_: Some(event.event_type.as_str().to_owned()),
        reason: Some(event.reason.into_owned()),
        message: Some(event.message),
        count: Some(1),
        first_timestamp: Some(api_time(at)),
        last_timestamp: Some(api_time(at)),
        source: Some(EventSource {
            component: Some(COMPONENT.to_owned()),
            host: Some(node_name.to_owned()),
        }),
        reporting_component: Some(COMPONENT.to_owned()),
        reporting_instance: Some(node_name.to_owned()),
        ..ApiEvent::default()
    }
}

/// Whom an event is about. A static pod is named by its own uid, the hash of its manifest, and not
/// by that of its mirror: whoever looks at a mirror pod asks for the events of the uid in its
/// annotation `kubernetes.io/config.mirror`. A node is named by its name in place of its uid, which
/// is what clients look for beside the uid of the node's object.
fn involved_object(object: &EventObject, node_name: &str) -> ObjectReference {
    let (pod, field_path) = match object {
        EventObject::Node => {
            return ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Node".to_owned()),
                name: Some(node_name.to_owned()),
                uid: Some(node_name.to_owned()),
                ..ObjectReference::default()
            };
        }
        EventObject::Pod(pod) => (pod, None),
        EventObject::Container { pod, field_path } => (pod, Some(field_path.clone())),
    };
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.to_string()),
        name: Some(pod.name.to_string()),
        uid: Some(pod.uid.to_string()),
        field_path,
        ..ObjectReference::default()
    }
}

/// `<object>.<nanoseconds in hexadecimal>`, or, where that is no name for an API object, something
/// that is one and as unique.
pub(crate) fn event_name(object: &str, at: Timestamp) -> String {
    let name = format!("{object}.{:x}", at.as_nanosecond());
    if is_dns_subdomain(&name) {
        return name;
    }
    let hash = format!("{:032x}", fnv1a_128(name.as_bytes()));
    let (a, rest) = hash.split_at(8);
    let (b, rest) = rest.split_at(4);
    let (c, rest) = rest.split_at(4);
    let (d, e) = rest.split_at(4);
    format!("{a}-{b}-{c}-{d}-{e}")
}

fn is_dns_subdomain(name: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= MAX_NAME
        && name.split('.').all(|label| {
            let bytes = label.as_bytes();
            bytes.first().copied().is_some_and(is_alphanumeric)
                && bytes.last().copied().is_some_and(is_alphanumeric)
                && bytes.iter().all(|byte| is_alphanumeric(*byte) || *byte == b'-')
        })
}

/// The API keeps whole seconds.
pub(crate) fn api_time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use rubelet_types::{EventType, PodRef};
    use serde_json::json;

    use super::*;

    fn at() -> Timestamp {
        "2026-11-30T08:00:00.000000010Z".parse().unwrap()
    }

    fn object(event: Event) -> serde_json::Value {
        serde_json::to_value(api_event(event, "n1", at())).unwrap()
    }

    #[test]
    fn an_event_of_a_container() {
        let object = object(Event::new(
            EventObject::Container {
                pod: PodRef::new("u-1", "shop", "web"),
                field_path: "spec.containers{app}".to_owned(),
            },
            EventType::Warning,
            "BackOff",
            "Back-off",
        ));
        assert_eq!(
            object,
            json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": "web.18ecc3c47782000a", "namespace": "shop"},
                "involvedObject": {
                    "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web",
                    "uid": "u-1", "fieldPath": "spec.containers{app}",
                },
                "type": "Warning",
                "reason": "BackOff",
                "message": "Back-off",
                "count": 1,
                "firstTimestamp": "2026-11-30T08:00:00Z",
                "lastTimestamp": "2026-11-30T08:00:00Z",
                "source": {"component": "kubelet", "host": "n1"},
                "reportingComponent": "kubelet",
                "reportingInstance": "n1",
            })
        );
    }

    #[test]
    fn an_event_of_the_node_is_in_the_default_namespace_and_has_the_name_for_uid() {
        let event =
            Event::new(EventObject::Node, EventType::Normal, "Starting", "Starting kubelet.");
        let object = object(event);
        assert_eq!(
            object["involvedObject"],
            json!({"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "n1"})
        );
        assert_eq!(object["metadata"]["namespace"], "default");
    }

    #[test]
    fn a_static_pod_is_named_by_the_hash_that_its_mirror_carries() {
        let hash = "8f14e45fceea167a5a36dedd4bea2543";
        let pod = PodRef::new(hash, "kube-system", "etcd-n1");
        let object = object(Event::new(EventObject::Pod(pod), EventType::Normal, "Pulled", "m"));
        assert_eq!(object["involvedObject"]["uid"], hash);
        assert_eq!(object["involvedObject"]["name"], "etcd-n1");
    }

    #[test]
    fn annotations_go_along() {
        let pod = PodRef::new("u", "n", "p");
        let mut event = Event::new(EventObject::Pod(pod), EventType::Warning, "Evicted", "m");
        event.annotations.insert("starved_resource".to_owned(), "memory".to_owned());
        assert_eq!(object(event)["metadata"]["annotations"], json!({"starved_resource": "memory"}));
    }

    #[test]
    fn names_are_names_for_api_objects_whatever_the_object_is_called() {
        assert_eq!(event_name("web", at()), "web.18ecc3c47782000a");
        for object in ["", "UPPER", "under_score", "-dash", "dot.", &"x".repeat(240)] {
            let name = event_name(object, at());
            assert!(is_dns_subdomain(&name) && name.len() == 36, "{object}: {name}");
        }
        assert_ne!(event_name("A", at()), event_name("B", at()));
    }
}
