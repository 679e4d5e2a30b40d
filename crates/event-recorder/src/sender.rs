use std::error::Error;
use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event as ApiEvent;
use rubelet_types::{Clock, error_chain, fnv1a_32};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::correlator::{Correlated, Correlator};
use crate::recorder::{EventCounters, EventRecorderSettings};
use crate::token_bucket::TokenBucket;

/// How often an event is offered to the API server.
const TRIES: u32 = 12;
/// Wait between two tries; before the second a random part of it.
const RETRY: Duration = Duration::from_secs(10);
/// A port that keeps no deadline of its own does not hold up all events after this one.
const CALL_LIMIT: Duration = Duration::from_secs(60);
/// What is still queued when the kubelet stops is offered once more, for this long altogether.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Why the API server has not taken an event.
#[derive(Debug, thiserror::Error)]
pub enum SendEventError {
    /// The event's object does not exist, or not any more.
    #[error("the event does not exist")]
    NotFound,
    /// The server understood and refuses: the same request would fail again. Among them an object
    /// of that name that exists already, and a namespace that is being terminated.
    #[error("the API server rejected the event")]
    Rejected(#[source] Box<dyn Error + Send + Sync>),
    /// There was no answer, or one that says "not now" (429, 5xx): it may be tried again.
    #[error("the API server cannot take the event now")]
    Unavailable(#[source] Box<dyn Error + Send + Sync>),
}

/// What a sender needs of the API server.
pub trait EventPort: Send + Sync {
    /// Creates the object in the namespace of its metadata.
    fn create_event(
        &self,
        event: &ApiEvent,
    ) -> impl Future<Output = Result<(), SendEventError>> + Send;

    /// Changes the object by a strategic merge patch.
    fn patch_event(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> impl Future<Output = Result<(), SendEventError>> + Send;
}

/// Carries the queue of an event recorder to the API server, one event after the other.
#[derive(Debug)]
pub struct EventSender {
    waiting: mpsc::Receiver<ApiEvent>,
    correlator: Correlator,
    limit: Option<(TokenBucket, Instant)>,
    node_name: String,
    clock: Clock,
    counters: EventCounters,
}

/// Whether an event is behind us.
enum Sent {
    Done,
    Again(SendEventError),
}

impl EventSender {
    pub(crate) fn new(
        settings: &EventRecorderSettings,
        clock: Clock,
        waiting: mpsc::Receiver<ApiEvent>,
        counters: EventCounters,
    ) -> Self {
        let per_second = f64::from(settings.events_per_second);
        let burst = f64::from(settings.burst.max(1));
        let limit = (settings.events_per_second > 0)
            .then(|| (TokenBucket::full(burst, per_second, 0.0), Instant::now()));
        Self {
            waiting,
            correlator: Correlator::new(),
            limit,
            node_name: settings.node_name.clone(),
            clock,
            counters,
        }
    }

    /// The counters of the recorder and of this sender.
    pub fn counters(&self) -> EventCounters {
        self.counters.clone()
    }

    /// Sends until `stop` fires, or until no recorder is left. What waits then is offered once more,
    /// for a moment.
    pub async fn run(mut self, port: impl EventPort, stop: CancellationToken) {
        while let Some(Some(event)) = stop.run_until_cancelled(self.waiting.recv()).await {
            let correlated = self.correlator.correlate(event, self.clock.now());
            if stop.run_until_cancelled(self.deliver(&port, &correlated)).await.is_none() {
                // It may have been taken already: then the name is taken too, and nothing happens.
                let last = tokio::time::timeout(LAST_WORDS, self.offer(&port, &correlated));
                drop(last.await);
                break;
            }
        }
        let last_words = async {
            while let Ok(event) = self.waiting.try_recv() {
                let correlated = self.correlator.correlate(event, self.clock.now());
                if let Sent::Again(_) = self.offer(&port, &correlated).await {
                    return;
                }
            }
        };
        drop(tokio::time::timeout(LAST_WORDS, last_words).await);
    }

    /// Offers an event until it is taken or refused, or all tries are used up.
    async fn deliver(&mut self, port: &impl EventPort, correlated: &Correlated) {
        for attempt in 1..=TRIES {
            let Sent::Again(error) = self.offer(port, correlated).await else { return };
            let event = match correlated {
                Correlated::Skip => return,
                Correlated::Create(event) | Correlated::Patch { event, .. } => event,
            };
            let (name, reason) = (event.metadata.name.as_deref(), event.reason.as_deref());
            if attempt == TRIES {
                self.counters.abandoned();
                tracing::error!(
                    event = name,
                    reason,
                    error = error_chain(&error),
                    "Unable to write event (retry limit exceeded!)"
                );
                return;
            }
            tracing::warn!(
                event = name,
                reason,
                error = error_chain(&error),
                attempt,
                "Unable to write event (may retry after sleeping)"
            );
            // Not all nodes come back at the same moment when the API server does.
            let wait = if attempt == 1 {
                RETRY.mul_f64(part_of_a_whole(&self.node_name, name.unwrap_or_default()))
            } else {
                RETRY
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Offers an event once.
    async fn offer(&mut self, port: &impl EventPort, correlated: &Correlated) -> Sent {
        let (event, patch) = match correlated {
            Correlated::Skip => {
                self.counters.filtered();
                return Sent::Done;
            }
            Correlated::Create(event) => (event, None),
            Correlated::Patch { event, patch } => (event, Some(patch)),
        };
        let mut result = Err(SendEventError::NotFound);
        if let Some(patch) = patch {
            self.wait_for_turn().await;
            let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
            let name = event.metadata.name.as_deref().unwrap_or_default();
            result = limited(port.patch_event(namespace, name, patch)).await;
        }
        // Events live an hour in a cluster; what happens again later is an event anew.
        if matches!(result, Err(SendEventError::NotFound)) {
            self.wait_for_turn().await;
            result = limited(port.create_event(event)).await;
        }
        match result {
            Ok(()) => self.counters.sent(),
            Err(error @ SendEventError::Unavailable(_)) => return Sent::Again(error),
            Err(error @ (SendEventError::NotFound | SendEventError::Rejected(_))) => {
                self.counters.abandoned();
                tracing::warn!(
                    event = event.metadata.name,
                    reason = event.reason,
                    error = error_chain(&error),
                    "Server rejected event (will not retry!)"
                );
            }
        }
        Sent::Done
    }

    async fn wait_for_turn(&mut self) {
        let Some((bucket, started)) = &mut self.limit else { return };
        while !bucket.try_take(started.elapsed().as_secs_f64()) {
            let wait = bucket.wait(started.elapsed().as_secs_f64());
            tokio::time::sleep(wait.max(Duration::from_millis(1))).await;
        }
    }
}

async fn limited(
    call: impl Future<Output = Result<(), SendEventError>>,
) -> Result<(), SendEventError> {
    tokio::time::timeout(CALL_LIMIT, call)
        .await
        .unwrap_or_else(|elapsed| Err(SendEventError::Unavailable(Box::new(elapsed))))
}

/// A number from 0 up to 1 that differs from node to node and from event to event.
fn part_of_a_whole(node: &str, event: &str) -> f64 {
    let hash = fnv1a_32(format!("{node}/{event}").as_bytes());
    f64::from(hash) / (f64::from(u32::MAX) + 1.0)
}
