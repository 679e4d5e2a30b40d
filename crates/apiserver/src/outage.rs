//! Whether the server serves requests at all, as far as anybody has noticed.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::error::{ApiError, ApiErrorKind};

/// Who waits before the next try has waited long enough once somebody else is served again: the
/// pauses of a long outage must not be added to it.
#[derive(Debug)]
pub(crate) struct Outage {
    is_on: AtomicBool,
    recoveries: watch::Sender<u64>,
}

impl Default for Outage {
    fn default() -> Self {
        Self { is_on: AtomicBool::new(false), recoveries: watch::Sender::new(0) }
    }
}

impl Outage {
    /// Takes in that a request failed.
    pub(crate) fn note_failure(&self, error: &ApiError) {
        if is_outage(error) {
            self.is_on.store(true, Ordering::Relaxed);
        }
    }

    /// Takes in that a request was served.
    pub(crate) fn note_success(&self) {
        if self.is_on.swap(false, Ordering::Relaxed) {
            self.recoveries.send_modify(|recoveries| *recoveries += 1);
        }
    }

    /// Counts up when a request is served after one has failed.
    pub(crate) fn recoveries(&self) -> watch::Receiver<u64> {
        self.recoveries.subscribe()
    }
}

/// The failure says something about the server and nothing about the request.
pub(crate) fn is_outage(error: &ApiError) -> bool {
    matches!(
        error.kind,
        ApiErrorKind::Connection
            | ApiErrorKind::Timeout
            | ApiErrorKind::Unavailable
            | ApiErrorKind::Internal
    )
}
