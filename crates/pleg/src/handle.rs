use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rubelet_cri::observe::RelistByPod;
use rubelet_types::format_go_duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::metrics::PlegMetrics;

/// Whether the generator works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlegHealth {
    /// The last relist succeeded recently.
    Healthy,
    /// It did not; with the text that node conditions and health checks show.
    Unhealthy(String),
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pods: Mutex<Arc<RelistByPod>>,
    pub(crate) last_relist: watch::Sender<Option<Instant>>,
    pub(crate) relist_now: Notify,
    pub(crate) threshold: Duration,
    pub(crate) metrics: Arc<PlegMetrics>,
}

/// A view of the generator for the rest of the kubelet. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PlegHandle {
    pub(crate) shared: Arc<Shared>,
}

impl PlegHandle {
    /// Everything the runtime held at the last relist.
    pub fn pods(&self) -> Arc<RelistByPod> {
        self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the first successful relist.
    pub async fn relisted_once(&self) {
        let mut last = self.shared.last_relist.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = last.wait_for(Option::is_some).await;
    }

    /// When everything was last listed with success.
    pub fn last_relist(&self) -> Option<Instant> {
        *self.shared.last_relist.borrow()
    }

    /// What the generator counts.
    pub fn metrics(&self) -> Arc<PlegMetrics> {
        self.shared.metrics.clone()
    }

    /// Has everything listed again as soon as possible.
    pub fn relist_now(&self) {
        self.shared.relist_now.notify_one();
    }

    /// Healthy if the last successful relist is younger than the threshold (3 minutes upstream).
    pub fn health(&self) -> PlegHealth {
        let Some(last) = *self.shared.last_relist.borrow() else {
            return PlegHealth::Unhealthy("pleg has yet to be successful".to_owned());
        };
        let elapsed = last.elapsed();
        if elapsed > self.shared.threshold {
            return PlegHealth::Unhealthy(format!(
                "pleg was last seen active {} ago; threshold is {}",
                format_go_duration(elapsed),
                format_go_duration(self.shared.threshold)
            ));
        }
        PlegHealth::Healthy
    }
}
