use rubelet_types::{Event, EventObject, EventRecorder};

/// A recorder that only logs: where events go while there is no API server.
pub fn log_events(node_name: &str) -> EventRecorder {
    let node_name = node_name.to_owned();
    EventRecorder::new(move |event| log_event(&event, &node_name))
}

pub(crate) fn log_event(event: &Event, node_name: &str) {
    let (object, field_path, kind) = match &event.object {
        EventObject::Node => (node_name.to_owned(), "", "Node"),
        EventObject::Pod(pod) => (format!("{}/{}", pod.namespace, pod.name), "", "Pod"),
        EventObject::Container { pod, field_path } => {
            (format!("{}/{}", pod.namespace, pod.name), field_path.as_str(), "Pod")
        }
    };
    tracing::info!(
        object,
        fieldPath = field_path,
        kind,
        r#type = event.event_type.as_str(),
        reason = &*event.reason,
        message = event.message,
        "Event occurred"
    );
}
