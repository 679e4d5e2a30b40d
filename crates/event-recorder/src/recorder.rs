use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event as ApiEvent;
use rubelet_types::{Clock, EventRecorder};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::api_event::api_event;
use crate::log::log_event;
use crate::sender::EventSender;

/// So many events wait to be sent at most.
const QUEUE: usize = 1000;

/// What an event recorder goes by.
#[derive(Clone, Debug)]
pub struct EventRecorderSettings {
    /// The node's name: source of all events, and object of those of the node.
    pub node_name: String,
    /// Requests per second in the long run (`eventRecordQPS`); 0 sets no limit.
    pub events_per_second: u32,
    /// Requests at once beyond that (`eventBurst`).
    pub burst: u32,
}

/// How often what happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Events that somebody recorded.
    pub recorded: u64,
    /// Events for which there was no room in the queue.
    pub dropped: u64,
    /// Events that were held back because their object had too many.
    pub filtered: u64,
    /// Events that the API server has taken.
    pub sent: u64,
    /// Events that the API server refused, or that it could not be told in all tries.
    pub abandoned: u64,
}

/// Shared counters of a recorder and its sender. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct EventCounters(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    recorded: AtomicU64,
    dropped: AtomicU64,
    filtered: AtomicU64,
    sent: AtomicU64,
    abandoned: AtomicU64,
}

impl EventCounters {
    /// How often what happened until now.
    pub fn counts(&self) -> EventCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EventCounts {
            recorded: read(&self.0.recorded),
            dropped: read(&self.0.dropped),
            filtered: read(&self.0.filtered),
            sent: read(&self.0.sent),
            abandoned: read(&self.0.abandoned),
        }
    }

    pub(crate) fn filtered(&self) {
        self.0.filtered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self) {
        self.0.sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn abandoned(&self) {
        self.0.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    fn recorded(&self) {
        self.0.recorded.fetch_add(1, Ordering::Relaxed);
    }

    fn dropped(&self) -> u64 {
        self.0.dropped.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A recorder that logs every event and queues it for the API server, and the sender that carries
/// the queue there. Events may be recorded before the sender runs.
pub fn event_recorder(
    settings: EventRecorderSettings,
    clock: Clock,
) -> (EventRecorder, EventSender) {
    let (queue, waiting) = mpsc::channel::<ApiEvent>(QUEUE);
    let counters = EventCounters::default();
    let sender = EventSender::new(&settings, clock.clone(), waiting, counters.clone());
    let node_name = settings.node_name;
    let last = AtomicI64::new(i64::MIN);
    let recorder = EventRecorder::new(move |event| {
        log_event(&event, &node_name);
        counters.recorded();
        let event = api_event(event, &node_name, unique_moment(&last, clock.now()));
        if let Err(TrySendError::Full(event)) = queue.try_send(event) {
            let dropped = counters.dropped();
            tracing::error!(
                object = event.involved_object.name,
                reason = event.reason,
                dropped,
                "Too many events wait for the API server, this one is only in the log"
            );
        }
    });
    (recorder, sender)
}

/// `now`, or a nanosecond after the moment given last: a moment names an event.
fn unique_moment(last: &AtomicI64, now: Timestamp) -> Timestamp {
    let nanos = i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
    let before = last
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
            Some(nanos.max(last.saturating_add(1)))
        })
        // The update above is never refused.
        .unwrap_or(nanos);
    Timestamp::from_nanosecond(i128::from(nanos.max(before.saturating_add(1)))).unwrap_or(now)
}
