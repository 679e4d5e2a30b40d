use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use rubelet_cri::observe::{
    ListedContainer, ListedContainerState, ListedSandbox, RelistByPod, RelistEntry, relist,
};
use rubelet_cri::{
    ContainerEvent, ContainerEventKind, ContainerEvents, CriClient, CriError, CriErrorKind,
};
use rubelet_types::{ContainerState, PodRef, PodSnapshot, PodUid};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::diff::{ContainerChange, diff_pods};
use crate::handle::{PlegHandle, Shared};
use crate::unlisted::Unlisted;

/// Timings of the generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlegSettings {
    /// From the end of one relist to the next while no events come.
    pub relist_period: Duration,
    /// The same while the runtime sends events.
    pub relist_period_with_events: Duration,
    /// Without a successful relist for this long the generator is unhealthy.
    pub threshold: Duration,
    /// Events are used as hints.
    pub use_events: bool,
}

impl Default for PlegSettings {
    fn default() -> Self {
        Self {
            relist_period: Duration::from_secs(1),
            relist_period_with_events: Duration::from_secs(10),
            threshold: Duration::from_secs(180),
            use_events: true,
        }
    }
}

/// Reads everything the runtime holds of one pod.
pub trait PodInspector: Send + Sync + 'static {
    /// Reads it afresh; what is `known` of it is read sooner. `Err` carries the text of the failure.
    fn inspect(
        &self,
        pod: &PodRef,
        known: Option<&RelistEntry>,
    ) -> impl Future<Output = Result<PodSnapshot, String>> + Send;
}

/// Something changed in the runtime about a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodLifecycleEvent {
    /// What happened, as far as lists show it; empty if only an event hinted at a change.
    pub changes: Vec<ContainerChange>,
    /// What the runtime holds of the pod now.
    pub snapshot: PodSnapshot,
}

/// An open event stream without an error for this long is taken to work: runtimes send nothing
/// before the first event.
const EVENTS_SETTLE: Duration = Duration::from_secs(5);
/// First and longest wait before events are subscribed to again.
const EVENTS_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A runtime without events is asked again after this, as it may be upgraded underneath.
const EVENTS_UNIMPLEMENTED_RETRY: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Inspection {
    in_flight: bool,
    /// Something changed while it was in flight, or it failed.
    again: bool,
    changes: Vec<ContainerChange>,
}

enum EventSource {
    Off { retry_at: Option<Instant>, failures: u32 },
    On { stream: ContainerEvents, settled_at: Instant, failures: u32 },
}

enum Finished {
    Relist { begun: Instant, result: Result<RelistByPod, CriError> },
    Inspection(PodRef, Result<PodSnapshot, String>),
}

/// The generator. See the crate documentation.
pub struct Pleg<I> {
    cri: CriClient,
    inspector: Arc<I>,
    settings: PlegSettings,
    shared: Arc<Shared>,
    unlisted: Arc<Unlisted>,
    inspections: HashMap<PodUid, (PodRef, Inspection)>,
    tasks: JoinSet<Finished>,
    relist_in_flight: bool,
    next_relist: Instant,
    /// When the last one was begun.
    last_begun: Option<Instant>,
    events: EventSource,
    output: mpsc::Sender<PodLifecycleEvent>,
}

impl<I> std::fmt::Debug for Pleg<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pleg").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<I: PodInspector> Pleg<I> {
    /// A generator that sends to `output`, and asks its lists for what is told to be made; nothing
    /// happens before [`Pleg::run`].
    pub fn new(
        cri: CriClient,
        inspector: Arc<I>,
        settings: PlegSettings,
        unlisted: Arc<Unlisted>,
        output: mpsc::Sender<PodLifecycleEvent>,
    ) -> Self {
        let now = Instant::now();
        Self {
            cri,
            inspector,
            settings,
            shared: Arc::new(Shared {
                pods: Mutex::default(),
                last_relist: watch::Sender::new(None),
                relist_now: Notify::new(),
                threshold: settings.threshold,
                metrics: Arc::default(),
            }),
            unlisted,
            inspections: HashMap::new(),
            tasks: JoinSet::new(),
            relist_in_flight: false,
            next_relist: now,
            last_begun: None,
            events: EventSource::Off { retry_at: settings.use_events.then_some(now), failures: 0 },
            output,
        }
    }

    /// A view of it.
    pub fn handle(&self) -> PlegHandle {
        PlegHandle { shared: self.shared.clone() }
    }

    /// Works until cancelled.
    pub async fn run(mut self, cancel: CancellationToken) {
        let shared = self.shared.clone();
        loop {
            if !self.relist_in_flight && Instant::now() >= self.next_relist {
                self.begin_relist();
            }
            self.subscribe_if_due();
            let relist_due = (!self.relist_in_flight).then_some(self.next_relist);
            let subscribe_due = match self.events {
                EventSource::Off { retry_at, .. } => retry_at,
                EventSource::On { .. } => None,
            };
            // Each arm is cancel-safe: timers, notifications, `join_next` and `next` lose nothing.
            tokio::select! {
                () = cancel.cancelled() => return,
                () = sleep_until_some(relist_due) => {}
                () = sleep_until_some(subscribe_due) => {}
                () = shared.relist_now.notified() => self.next_relist = Instant::now(),
                Some(finished) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    match finished {
                        Ok(Finished::Relist { begun, result }) => self.relisted(begun, result),
                        Ok(Finished::Inspection(pod, result)) => self.inspected(pod, result).await,
                        // Tasks are never aborted, so this is a panic in one of them.
                        Err(error) => {
                            tracing::error!(error = %error, "A task of the PLEG panicked");
                            self.relist_in_flight = false;
                            self.next_relist = Instant::now() + self.settings.relist_period;
                        }
                    }
                }
                event = next_event(&mut self.events) => self.take_event(event),
            }
        }
    }

    fn begin_relist(&mut self) {
        self.relist_in_flight = true;
        let begun = Instant::now();
        let metrics = self.shared.metrics.clone();
        if let Some(last) = self.last_begun.replace(begun) {
            metrics.relist_interval.observe_duration(begun - last);
        }
        let cri = self.cri.clone();
        self.tasks.spawn(async move {
            let result = relist(&cri).await;
            metrics.relist_duration.observe_duration(begun.elapsed());
            Finished::Relist { begun, result }
        });
    }

    fn relisted(&mut self, begun: Instant, result: Result<RelistByPod, CriError>) {
        self.relist_in_flight = false;
        let now = Instant::now();
        self.next_relist = now + self.relist_period(now);
        let listed = match result {
            Ok(listed) => Arc::new(listed),
            Err(error) => {
                tracing::warn!(error = %error, "Relist failed");
                self.next_relist = now + self.settings.relist_period;
                return;
            }
        };
        let before = std::mem::replace(
            &mut *self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner),
            listed.clone(),
        );
        for (pod, changes) in diff_pods(&before, &listed).into_values() {
            self.want_inspection(pod, changes);
        }
        for pod in self.unlisted.missing_from(&listed, begun) {
            self.want_inspection(pod, vec![ContainerChange::Died, ContainerChange::Removed]);
        }
        self.shared.last_relist.send_replace(Some(now));
        let failed: Vec<PodRef> = self
            .inspections
            .values()
            .filter(|(_, inspection)| !inspection.in_flight && inspection.again)
            .map(|(pod, _)| pod.clone())
            .collect();
        for pod in failed {
            self.want_inspection(pod, Vec::new());
        }
    }

    fn relist_period(&self, now: Instant) -> Duration {
        match self.events {
            EventSource::On { settled_at, .. } if now >= settled_at => {
                self.settings.relist_period_with_events
            }
            _ => self.settings.relist_period,
        }
    }

    fn want_inspection(&mut self, pod: PodRef, changes: Vec<ContainerChange>) {
        let (_, inspection) = self
            .inspections
            .entry(pod.uid.clone())
            .or_insert_with(|| (pod.clone(), Inspection::default()));
        for change in changes {
            if !inspection.changes.contains(&change) {
                inspection.changes.push(change);
            }
        }
        if inspection.in_flight {
            inspection.again = true;
            return;
        }
        inspection.in_flight = true;
        inspection.again = false;
        let inspector = self.inspector.clone();
        let pods = self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let known = pods.get(&pod.uid).cloned();
        drop(pods);
        let (metrics, begun) = (self.shared.metrics.clone(), Instant::now());
        self.tasks.spawn(async move {
            let result = inspector.inspect(&pod, known.as_ref()).await;
            metrics.pod_relist_duration.observe_duration(begun.elapsed());
            Finished::Inspection(pod, result)
        });
    }

    async fn inspected(&mut self, pod: PodRef, result: Result<PodSnapshot, String>) {
        let Some((_, inspection)) = self.inspections.get_mut(&pod.uid) else { return };
        inspection.in_flight = false;
        match result {
            Ok(snapshot) => {
                let changes = std::mem::take(&mut inspection.changes);
                let entry = entry_of(&snapshot);
                if inspection.again {
                    self.want_inspection(pod, Vec::new());
                } else {
                    self.inspections.remove(&pod.uid);
                }
                self.note(snapshot.pod.uid.clone(), entry);
                // Bounded: a slow receiver slows the generator down, nothing is dropped.
                if self.output.send(PodLifecycleEvent { changes, snapshot }).await.is_err() {
                    self.shared.metrics.discarded.inc();
                }
            }
            Err(error) => {
                tracing::warn!(pod = %pod, error = %error, "Inspecting the pod failed; trying again");
                inspection.again = true;
            }
        }
    }

    /// What an inspection found needs no second one when the next relist shows the same.
    fn note(&mut self, uid: PodUid, entry: Option<RelistEntry>) {
        let mut pods = self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner);
        let known = Arc::make_mut(&mut pods);
        match entry {
            Some(entry) => known.insert(uid, entry),
            None => known.remove(&uid),
        };
    }

    fn subscribe_if_due(&mut self) {
        if let EventSource::Off { retry_at: Some(retry_at), failures } = self.events
            && Instant::now() >= retry_at
        {
            let stream = self.cri.container_events();
            self.shared.metrics.connections.inc();
            let settled_at = Instant::now() + EVENTS_SETTLE;
            self.events = EventSource::On { stream, settled_at, failures };
        }
    }

    fn take_event(&mut self, event: Option<Result<ContainerEvent, CriError>>) {
        let now = Instant::now();
        match event {
            Some(Ok(event)) => {
                if let EventSource::On { settled_at, failures, .. } = &mut self.events {
                    *settled_at = (*settled_at).min(now);
                    *failures = 0;
                }
                // Nobody but the kubelet's own workers creates and starts, and they know what came
                // of it: a look at every start would double the work of starting a full node.
                if matches!(event.kind, ContainerEventKind::Created | ContainerEventKind::Started) {
                    return;
                }
                match event.pod.or_else(|| self.owner_of(&event.id)) {
                    Some(pod) => self.want_inspection(pod, Vec::new()),
                    None => self.next_relist = now,
                }
            }
            Some(Err(error)) if error.kind == CriErrorKind::Unimplemented => {
                tracing::info!("The runtime sends no container events; relisting alone");
                self.shared.metrics.connection_errors.inc();
                let retry_at = Some(now + EVENTS_UNIMPLEMENTED_RETRY);
                self.events = EventSource::Off { retry_at, failures: 0 };
            }
            ended => {
                let failures = match self.events {
                    EventSource::On { failures, .. } | EventSource::Off { failures, .. } => {
                        failures
                    }
                };
                self.shared.metrics.connection_errors.inc();
                if let Some(Err(error)) = ended {
                    tracing::warn!(error = %error, "The stream of container events broke");
                }
                let delay = (EVENTS_RETRY.0 * 2u32.saturating_pow(failures)).min(EVENTS_RETRY.1);
                self.events =
                    EventSource::Off { retry_at: Some(now + delay), failures: failures + 1 };
                // What happened meanwhile is for a relist to find.
                self.next_relist = now;
            }
        }
    }

    fn owner_of(&self, id: &str) -> Option<PodRef> {
        let known = self.shared.pods.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .values()
            .find(|entry| {
                entry.sandboxes.iter().any(|sandbox| sandbox.id.as_str() == id)
                    || entry.containers.iter().any(|container| container.id.as_str() == id)
            })
            .map(|entry| entry.pod.clone())
    }
}

/// The list view of what an inspection found; `None` if the runtime holds nothing of the pod.
fn entry_of(snapshot: &PodSnapshot) -> Option<RelistEntry> {
    if snapshot.is_empty() {
        return None;
    }
    Some(RelistEntry {
        pod: snapshot.pod.clone(),
        sandboxes: snapshot
            .sandboxes
            .iter()
            .map(|sandbox| ListedSandbox {
                id: sandbox.id.clone(),
                state: sandbox.state,
                created_at: sandbox.created_at,
                attempt: sandbox.attempt,
            })
            .collect(),
        containers: snapshot
            .containers
            .iter()
            .filter_map(|container| {
                Some(ListedContainer {
                    id: container.id.clone(),
                    name: container.name.clone(),
                    sandbox_id: container.sandbox_id.clone()?,
                    state: match container.state {
                        ContainerState::Created => ListedContainerState::Created,
                        ContainerState::Running { .. } => ListedContainerState::Running,
                        ContainerState::Exited { .. } => ListedContainerState::Exited,
                        ContainerState::Unknown => ListedContainerState::Unknown,
                    },
                    created_at: container.created_at,
                    attempt: container.restart_count,
                })
            })
            .collect(),
    })
}

async fn sleep_until_some(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn next_event(source: &mut EventSource) -> Option<Result<ContainerEvent, CriError>> {
    match source {
        EventSource::On { stream, .. } => stream.next().await,
        EventSource::Off { .. } => std::future::pending().await,
    }
}
