//! The spine: every event of the kubelet, from every producer, goes through one dispatch.
//!
//! What: [`SyncLoop`] selects over the producers and calls the handler of each event, one at a
//! time. The handlers have the names that anyone who knows the kubelet expects.
//!
//! Guarantees: handlers never run beside each other. Nothing is dispatched before the runtime was
//! looked at once. Pods are only cleaned up when every source has spoken.
//!
//! Not here: what a handler does.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{PodSnapshot, PodUid, ProbeUpdate, format_go_duration};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

/// What a source says about pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodOperation {
    /// New in the source.
    Add,
    /// Changed.
    Update,
    /// Gone from the source.
    Remove,
    /// Being deleted gracefully.
    Delete,
    /// Only the status changed.
    Reconcile,
}

/// One event of the kubelet.
#[derive(Clone, Debug)]
pub enum SyncLoopEvent {
    /// A source changed.
    Config {
        /// How.
        operation: PodOperation,
        /// The pods.
        pods: Vec<Arc<Pod>>,
    },
    /// The runtime's view of a pod changed; with what it holds now.
    PodLifecycle(Box<PodSnapshot>),
    /// A probe settled on another result.
    Probe(ProbeUpdate),
    /// The container manager has news about a pod's devices.
    ContainerManager(PodUid),
    /// Everything has to be looked at again.
    SyncTick,
    /// Time to clean up.
    Housekeeping,
}

/// What the loop calls. Handlers return quickly: long work belongs to pod workers.
pub trait SyncHandler: Send + Sync + 'static {
    /// New pods.
    fn handle_pod_additions(&self, pods: Vec<Arc<Pod>>) -> impl Future<Output = ()> + Send;
    /// Changed pods, gracefully deleted ones among them.
    fn handle_pod_updates(&self, pods: Vec<Arc<Pod>>) -> impl Future<Output = ()> + Send;
    /// Pods that left their source.
    fn handle_pod_removes(&self, pods: Vec<Arc<Pod>>) -> impl Future<Output = ()> + Send;
    /// Pods whose status alone changed.
    fn handle_pod_reconcile(&self, pods: Vec<Arc<Pod>>) -> impl Future<Output = ()> + Send;
    /// Something that these pods depend on changed.
    fn handle_pod_syncs(&self, reason: PodSync) -> impl Future<Output = ()> + Send;
    /// Whatever nobody wants any more goes.
    fn handle_pod_cleanups(&self) -> impl Future<Output = ()> + Send;
}

/// Why pods are looked at again.
#[derive(Clone, Debug)]
pub enum PodSync {
    /// The runtime showed a change of this pod.
    Observed(Box<PodSnapshot>),
    /// A probe settled.
    Probe(ProbeUpdate),
    /// Devices changed.
    ContainerManager(PodUid),
    /// It is time: all pods.
    Tick,
}

/// The producers of the loop.
#[derive(Debug)]
pub struct SyncLoopInputs {
    /// Changes of the sources.
    pub config: mpsc::Receiver<(PodOperation, Vec<Arc<Pod>>)>,
    /// Changes of the runtime.
    pub pod_lifecycle: mpsc::Receiver<PodSnapshot>,
    /// Settled probes.
    pub probes: mpsc::Receiver<ProbeUpdate>,
    /// Device changes.
    pub container_manager: mpsc::Receiver<PodUid>,
    /// Every source has spoken once and was processed.
    pub sources_ready: watch::Receiver<bool>,
}

/// Timings of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncLoopSettings {
    /// `syncFrequency`: every pod is looked at again after this, whatever happens.
    pub sync_frequency: Duration,
    /// Period of cleaning up.
    pub housekeeping_period: Duration,
}

impl Default for SyncLoopSettings {
    fn default() -> Self {
        Self {
            sync_frequency: Duration::from_secs(60),
            housekeeping_period: Duration::from_secs(2),
        }
    }
}

/// A clean-up that takes longer is worth a warning.
const SLOW_HOUSEKEEPING: Duration = Duration::from_secs(1);
/// The shortest time without a turn of the loop that counts as unhealthy.
const MIN_STALL: Duration = Duration::from_secs(300);

/// Whether the loop turns; behind `/healthz/syncloop`.
#[derive(Clone, Debug)]
pub struct SyncLoopHealth {
    last_turn: Arc<Mutex<Option<Instant>>>,
    threshold: Duration,
}

impl SyncLoopHealth {
    /// `Err` with the text of the health check if the loop has not turned for too long. A loop
    /// that has not begun yet is healthy: it waits for the runtime.
    ///
    /// # Errors
    ///
    /// The loop stalls.
    pub fn check(&self) -> Result<(), String> {
        let last = *self.last_turn.lock().unwrap_or_else(PoisonError::into_inner);
        match last.map(|last| last.elapsed()) {
            Some(elapsed) if elapsed > self.threshold => Err(format!(
                "sync Loop took longer than expected: {} since its last turn",
                format_go_duration(elapsed)
            )),
            _ => Ok(()),
        }
    }

    fn turned(&self) {
        *self.last_turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// The loop. See the crate documentation.
#[derive(Debug)]
pub struct SyncLoop<H> {
    handler: Arc<H>,
    inputs: SyncLoopInputs,
    settings: SyncLoopSettings,
    health: SyncLoopHealth,
}

impl<H: SyncHandler> SyncLoop<H> {
    /// A loop over `inputs`; nothing happens before [`SyncLoop::run`].
    pub fn new(handler: Arc<H>, inputs: SyncLoopInputs, settings: SyncLoopSettings) -> Self {
        let threshold = MIN_STALL.max(settings.sync_frequency * 2);
        let health = SyncLoopHealth { last_turn: Arc::default(), threshold };
        Self { handler, inputs, settings, health }
    }

    /// Its health.
    pub fn health(&self) -> SyncLoopHealth {
        self.health.clone()
    }

    /// Turns until cancelled. The caller has looked at the runtime once before.
    pub async fn run(mut self, cancel: CancellationToken) {
        let mut sync_tick = interval(self.settings.sync_frequency);
        let mut housekeeping = interval(self.settings.housekeeping_period);
        for timer in [&mut sync_tick, &mut housekeeping] {
            timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
            // The first tick of an interval is immediate, and means nothing here.
            timer.tick().await;
        }
        loop {
            self.health.turned();
            // Each arm is cancel-safe: receivers and timers lose nothing.
            let event = tokio::select! {
                () = cancel.cancelled() => return,
                Some((operation, pods)) = self.inputs.config.recv() => {
                    SyncLoopEvent::Config { operation, pods }
                }
                Some(snapshot) = self.inputs.pod_lifecycle.recv() => {
                    SyncLoopEvent::PodLifecycle(Box::new(snapshot))
                }
                Some(update) = self.inputs.probes.recv() => SyncLoopEvent::Probe(update),
                Some(uid) = self.inputs.container_manager.recv() => {
                    SyncLoopEvent::ContainerManager(uid)
                }
                _ = sync_tick.tick() => SyncLoopEvent::SyncTick,
                _ = housekeeping.tick() => SyncLoopEvent::Housekeeping,
            };
            self.dispatch(event).await;
        }
    }

    async fn dispatch(&self, event: SyncLoopEvent) {
        match event {
            SyncLoopEvent::Config { operation, pods } => {
                for pod in &pods {
                    tracing::info!(operation = ?operation, pod = %rubelet_types::pod_ref(pod),
                        source = rubelet_types::config_source(pod), "SyncLoop");
                }
                match operation {
                    PodOperation::Add => self.handler.handle_pod_additions(pods).await,
                    PodOperation::Update | PodOperation::Delete => {
                        self.handler.handle_pod_updates(pods).await;
                    }
                    PodOperation::Remove => self.handler.handle_pod_removes(pods).await,
                    PodOperation::Reconcile => self.handler.handle_pod_reconcile(pods).await,
                }
            }
            SyncLoopEvent::PodLifecycle(snapshot) => {
                self.handler.handle_pod_syncs(PodSync::Observed(snapshot)).await;
            }
            SyncLoopEvent::Probe(update) => {
                tracing::debug!(pod = %update.pod, container = update.container,
                    probe = %update.kind, result = ?update.result, "SyncLoop (probe)");
                self.handler.handle_pod_syncs(PodSync::Probe(update)).await;
            }
            SyncLoopEvent::ContainerManager(uid) => {
                self.handler.handle_pod_syncs(PodSync::ContainerManager(uid)).await;
            }
            SyncLoopEvent::SyncTick => self.handler.handle_pod_syncs(PodSync::Tick).await,
            SyncLoopEvent::Housekeeping => {
                if !*self.inputs.sources_ready.borrow() {
                    tracing::debug!("Not cleaning up: not all sources have spoken yet");
                    return;
                }
                let started = Instant::now();
                self.handler.handle_pod_cleanups().await;
                if started.elapsed() > SLOW_HOUSEKEEPING {
                    tracing::warn!(took = %format_go_duration(started.elapsed()),
                        "Housekeeping took longer than expected");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
