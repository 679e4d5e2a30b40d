//! What makes it worth while to ask again for resizes that were not granted.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// Why they are asked for again, in the words of `kubelet_pod_deferred_accepted_resizes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    PodsAdded,
    PodUpdated,
    PodsRemoved,
    PodTerminated,
    PodResized,
    PeriodicRetry,
}

impl Trigger {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::PodsAdded => "pods_added",
            Self::PodUpdated => "pod_updated",
            Self::PodsRemoved => "pods_removed",
            Self::PodTerminated => "pod_terminated",
            Self::PodResized => "pod_resized",
            Self::PeriodicRetry => "periodic_retry",
        }
    }
}

/// Wakes whoever asks again. Of several triggers the last one counts.
#[derive(Debug, Default)]
pub(crate) struct ResizeTriggers {
    last: Mutex<Option<Trigger>>,
    notify: Notify,
}

impl ResizeTriggers {
    pub(crate) fn pull(&self, trigger: Trigger) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(trigger);
        self.notify.notify_one();
    }

    /// Nothing is to be asked for; whoever waits looks again how long he has to.
    pub(crate) fn reconsider(&self) {
        self.notify.notify_one();
    }

    pub(crate) async fn pulled(&self) -> Option<Trigger> {
        self.notify.notified().await;
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
