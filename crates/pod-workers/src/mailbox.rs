use std::sync::Mutex;
use std::sync::{Arc, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_pod_lifecycle::{ActionKey, ActionOutcome, PodEvent, StopCause};
use rubelet_types::PodSnapshot;
use tokio::sync::Notify;

/// What waits for a worker. Every field keeps the newest only; outcomes are bounded by the actions
/// in flight, which the worker itself bounds.
#[derive(Debug, Default)]
struct Inbox {
    admitted: bool,
    updated: Option<Arc<Pod>>,
    start_time: Option<Timestamp>,
    outcomes: Vec<Outcome>,
    snapshot: Option<PodSnapshot>,
    look_failed: Option<String>,
    stop: Option<(StopCause, Option<i64>)>,
    removed: bool,
    object_changed: bool,
    shutdown: bool,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) key: ActionKey,
    /// Tells a replaced action's late outcome from that of its replacement.
    pub(crate) generation: u64,
    pub(crate) outcome: ActionOutcome,
    pub(crate) at: Timestamp,
}

/// What a worker took out of its mailbox.
#[derive(Debug, Default)]
pub(crate) struct Delivery {
    pub(crate) before: Vec<PodEvent>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) after: Vec<PodEvent>,
    pub(crate) look_failed: Option<String>,
    pub(crate) shutdown: bool,
}

/// The single-slot mailbox of a worker: the latest of each kind wins, nothing queues up.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    notify: Notify,
}

impl Mailbox {
    fn put(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        self.notify.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    pub(crate) fn object_changed(&self) {
        self.put(|inbox| inbox.object_changed = true);
    }

    pub(crate) fn admit(&self) {
        self.put(|inbox| inbox.admitted = true);
    }

    pub(crate) fn update(&self, pod: Arc<Pod>) {
        self.put(|inbox| inbox.updated = Some(pod));
    }

    pub(crate) fn start_time(&self, time: Timestamp) {
        self.put(|inbox| inbox.start_time = Some(time));
    }

    pub(crate) fn remove(&self) {
        self.put(|inbox| inbox.removed = true);
    }

    /// Of several stop requests the shortest grace counts; the first cause stays.
    pub(crate) fn stop(&self, cause: StopCause, grace_seconds: Option<i64>) {
        self.put(|inbox| {
            inbox.stop = Some(match inbox.stop.take() {
                None => (cause, grace_seconds),
                Some((first, earlier)) => (
                    first,
                    match (earlier, grace_seconds) {
                        (Some(a), Some(b)) => Some(a.min(b)),
                        (a, b) => a.or(b),
                    },
                ),
            });
        });
    }

    pub(crate) fn observed(&self, snapshot: PodSnapshot) {
        self.put(|inbox| {
            let newer = inbox.snapshot.as_ref().is_none_or(|old| old.taken_at <= snapshot.taken_at);
            if newer {
                inbox.snapshot = Some(snapshot);
            }
        });
    }

    pub(crate) fn look_failed(&self, message: String) {
        self.put(|inbox| inbox.look_failed = Some(message));
    }

    pub(crate) fn ended(&self, outcome: Outcome) {
        self.put(|inbox| inbox.outcomes.push(outcome));
    }

    pub(crate) fn shut_down(&self) {
        self.put(|inbox| inbox.shutdown = true);
    }

    pub(crate) async fn notified(&self) {
        self.notify.notified().await;
    }

    pub(crate) fn take(&self) -> Delivery {
        let inbox = std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner));
        let mut before = Vec::new();
        before.extend(inbox.start_time.map(PodEvent::StartTime));
        before.extend(inbox.updated.map(PodEvent::Updated));
        if inbox.admitted {
            before.push(PodEvent::Admitted);
        }
        let mut after = Vec::new();
        if inbox.object_changed {
            after.push(PodEvent::ObjectChanged);
        }
        after.extend(inbox.snapshot.map(|snapshot| PodEvent::Observed(Box::new(snapshot))));
        after.extend(
            inbox.stop.map(|(cause, grace_seconds)| PodEvent::Stop { cause, grace_seconds }),
        );
        if inbox.removed {
            after.push(PodEvent::Removed);
        }
        Delivery {
            before,
            outcomes: inbox.outcomes,
            after,
            look_failed: inbox.look_failed,
            shutdown: inbox.shutdown,
        }
    }
}
