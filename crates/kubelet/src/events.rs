//! Where events go while there is no API server: to the log.

use rubelet_types::{Event, EventObject, EventRecorder, EventType};

/// A recorder that logs each event.
pub(crate) fn log_events() -> EventRecorder {
    EventRecorder::new(|event: Event| {
        let (object, field_path, kind) = match &event.object {
            EventObject::Node => ("node".to_owned(), String::new(), "Node"),
            EventObject::Pod(pod) => {
                (format!("{}/{}", pod.namespace, pod.name), String::new(), "Pod")
            }
            EventObject::Container { pod, field_path } => {
                (format!("{}/{}", pod.namespace, pod.name), field_path.clone(), "Pod")
            }
        };
        let event_type = match event.event_type {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        tracing::info!(
            object,
            fieldPath = field_path,
            kind,
            r#type = event_type,
            reason = event.reason,
            message = event.message,
            "Event occurred"
        );
    })
}
