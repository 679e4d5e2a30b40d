use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::PodRef;

/// Type of a Kubernetes event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something expected happened.
    Normal,
    /// Somebody may have to act.
    Warning,
}

impl EventType {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What a Kubernetes event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EventObject {
    /// This node.
    Node,
    /// A pod.
    Pod(PodRef),
    /// A container of a pod.
    Container {
        /// The pod.
        pod: PodRef,
        /// `spec.containers{name}`, `spec.initContainers{name}` or `spec.ephemeralContainers{name}`.
        field_path: String,
    },
}

/// A Kubernetes event before it is correlated, rate-limited and sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What it is about.
    pub object: EventObject,
    /// Normal or Warning.
    pub event_type: EventType,
    /// The machine-readable reason. A name of ours, or one that is made of a resource's name.
    pub reason: Cow<'static, str>,
    /// The text that users read.
    pub message: String,
    /// `metadata.annotations` of the event, for programs that read it.
    pub annotations: BTreeMap<String, String>,
}

impl Event {
    /// An event without annotations.
    pub fn new(
        object: EventObject,
        event_type: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            object,
            event_type,
            reason: reason.into(),
            message: message.into(),
            annotations: BTreeMap::new(),
        }
    }
}

/// Where events go: to the API server, or to the log alone when standalone. Never blocks.
#[derive(Clone)]
pub struct EventRecorder(Arc<dyn Fn(Event) + Send + Sync>);

impl EventRecorder {
    /// Sends every event to `sink`, which must not block.
    pub fn new(sink: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Drops every event.
    pub fn discard() -> Self {
        Self::new(|_| {})
    }

    /// Records `event`.
    pub fn record(&self, event: Event) {
        (self.0)(event);
    }

    /// Records a Normal event on `object`.
    pub fn normal(
        &self,
        object: EventObject,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(Event::new(object, EventType::Normal, reason, message));
    }

    /// Records a Warning event on `object`.
    pub fn warning(
        &self,
        object: EventObject,
        reason: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) {
        self.record(Event::new(object, EventType::Warning, reason, message));
    }
}

impl fmt::Debug for EventRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventRecorder")
    }
}
