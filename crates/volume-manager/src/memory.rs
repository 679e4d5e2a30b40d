use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::PodUid;
use rubelet_volume_plan::{VOLUME_RETRY_INITIAL, VolumePlugin, compute_next_retry_delay};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio::time::Instant;

use crate::failures::LastFailure;

/// What is remembered between calls. All of it may be lost: then a hostPath is checked once more,
/// and a failing volume is tried once more than it had to be.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pods: Mutex<HashMap<PodUid, PodMemory>>,
    /// Some pod's files have to be looked at sooner than was known.
    due_changed: Notify,
}

#[derive(Debug, Default)]
struct PodMemory {
    checked_host_paths: BTreeSet<String>,
    /// When its volumes were first wanted.
    since: Option<Instant>,
    /// The volumes that it wants, by their names.
    volumes: BTreeMap<Box<str>, Wanted>,
    failures: BTreeMap<String, Failure>,
    /// How long the pod's release waited after its last failure.
    release_delay: Option<Duration>,
    /// Counts the changes of objects that the pod refers to.
    changes: u64,
    changed: Arc<Notify>,
    /// Whoever reads objects to write files holds it, so that what was read first is written first.
    content_turn: Arc<AsyncMutex<()>>,
    updates: Updates,
}

/// A volume that a pod wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    plugin: VolumePlugin,
    is_ready: bool,
}

/// Whether the files of a pod's volumes are kept as the API has them.
#[derive(Debug, Default)]
enum Updates {
    /// Its volumes have not been set up, or have no such files.
    #[default]
    None,
    /// They are, and are looked at again at `next`.
    Kept { pod: Arc<Pod>, next: Instant, in_flight: bool },
    /// The pod is on its way out.
    Stopped,
}

#[derive(Debug)]
struct Failure {
    delay: Duration,
    until: Instant,
    message: String,
    cause: Cause,
}

/// A failure of a moment ago.
#[derive(Debug)]
pub(crate) struct RecentFailure {
    pub(crate) remaining: Duration,
    pub(crate) message: String,
    pub(crate) cause: Cause,
}

/// How a failure came about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cause {
    /// An object of the API is missing or wrong. Carries how many changes had been seen when the
    /// objects were read ([`Memory::changes`]).
    Object { changes: u64 },
    /// The volume's spec, or its claim: it was not even tried.
    NotProcessed,
    /// Something else.
    Other,
}

impl Cause {
    pub(crate) fn awaits_object(self) -> bool {
        matches!(self, Self::Object { .. })
    }
}

impl Memory {
    /// The pod's volumes are wanted: it is no orphan until it is forgotten.
    pub(crate) fn remember<'a>(
        &self,
        pod: &PodUid,
        volumes: impl Iterator<Item = (&'a str, VolumePlugin)>,
        now: Instant,
    ) {
        let mut pods = self.lock();
        let pod = pods.entry(pod.clone()).or_default();
        pod.since.get_or_insert(now);
        let before = std::mem::take(&mut pod.volumes);
        pod.volumes = volumes
            .map(|(name, plugin)| {
                let is_ready = before.get(name).is_some_and(|volume| volume.is_ready);
                (name.into(), Wanted { plugin, is_ready })
            })
            .collect();
    }

    /// All volumes that pods want, and whether they are set up.
    pub(crate) fn volumes(&self) -> Vec<(VolumePlugin, bool)> {
        let pods = self.lock();
        let volumes = pods.values().flat_map(|pod| pod.volumes.values());
        volumes.map(|volume| (volume.plugin, volume.is_ready)).collect()
    }

    pub(crate) fn knows(&self, pod: &PodUid) -> bool {
        self.lock().contains_key(pod)
    }

    pub(crate) fn forget(&self, pod: &PodUid) {
        self.lock().remove(pod);
    }

    pub(crate) fn checked_host_paths(&self, pod: &PodUid) -> BTreeSet<String> {
        self.lock().get(pod).map(|pod| pod.checked_host_paths.clone()).unwrap_or_default()
    }

    /// A volume is set up; returns since when it was wanted if it was not set up before.
    pub(crate) fn succeeded(
        &self,
        pod: &PodUid,
        volume: &str,
        is_host_path: bool,
    ) -> Option<Instant> {
        let mut pods = self.lock();
        let pod = pods.get_mut(pod)?;
        pod.failures.remove(volume);
        if is_host_path {
            pod.checked_host_paths.insert(volume.to_owned());
        }
        let wanted = pod.volumes.get_mut(volume)?;
        let was_ready = std::mem::replace(&mut wanted.is_ready, true);
        pod.since.filter(|_| !was_ready)
    }

    /// A volume's set-up failed; returns how long it waits. It does not wait if the objects have
    /// changed since they were read.
    pub(crate) fn failed(
        &self,
        pod: &PodUid,
        volume: &str,
        message: &str,
        cause: Cause,
        now: Instant,
    ) -> Duration {
        let mut pods = self.lock();
        let pod = pods.entry(pod.clone()).or_default();
        let delay = compute_next_retry_delay(pod.failures.get(volume).map(|failure| failure.delay));
        let wait = match cause {
            Cause::Object { changes } if changes != pod.changes => Duration::ZERO,
            Cause::Object { .. } | Cause::NotProcessed | Cause::Other => delay,
        };
        let message = message.to_owned();
        let failure = Failure { delay, until: now + wait, message, cause };
        pod.failures.insert(volume.to_owned(), failure);
        wait
    }

    /// The release of the pod failed; returns how long it should wait. A pod that is not known is
    /// not remembered for that: it may be an orphan.
    pub(crate) fn release_failed(&self, pod: &PodUid) -> Duration {
        let mut pods = self.lock();
        let Some(pod) = pods.get_mut(pod) else { return VOLUME_RETRY_INITIAL };
        let delay = compute_next_retry_delay(pod.release_delay);
        pod.release_delay = Some(delay);
        delay
    }

    /// Volumes that failed so recently that they are not tried again.
    pub(crate) fn waiting(&self, pod: &PodUid, now: Instant) -> BTreeMap<String, RecentFailure> {
        let pods = self.lock();
        let failures = pods.get(pod).map(|pod| &pod.failures).into_iter().flatten();
        failures
            .filter(|(_, failure)| failure.until > now)
            .map(|(volume, failure)| {
                let failure = RecentFailure {
                    remaining: failure.until.duration_since(now),
                    message: failure.message.clone(),
                    cause: failure.cause,
                };
                (volume.clone(), failure)
            })
            .collect()
    }

    /// The volumes whose last set-up failed, whether or not they may be tried again.
    pub(crate) fn failures(&self, pod: &PodUid, now: Instant) -> BTreeMap<String, LastFailure> {
        let pods = self.lock();
        let failures = pods.get(pod).map(|pod| &pod.failures).into_iter().flatten();
        failures
            .map(|(volume, failure)| {
                let retry_in = failure.until.saturating_duration_since(now);
                (volume.clone(), LastFailure { message: failure.message.clone(), retry_in })
            })
            .collect()
    }

    /// How often an object that the pod refers to has changed.
    pub(crate) fn changes(&self, pod: &PodUid) -> u64 {
        self.lock().get(pod).map_or(0, |pod| pod.changes)
    }

    /// Wakes when an object that the pod refers to changes.
    pub(crate) fn changed(&self, pod: &PodUid) -> Arc<Notify> {
        self.lock().entry(pod.clone()).or_default().changed.clone()
    }

    pub(crate) fn content_turn(&self, pod: &PodUid) -> Arc<AsyncMutex<()>> {
        self.lock().entry(pod.clone()).or_default().content_turn.clone()
    }

    /// An object that the pod refers to has changed: what waits for one is tried at once, and its
    /// files are looked at again.
    pub(crate) fn object_changed(&self, pod: &PodUid, now: Instant) {
        let mut pods = self.lock();
        let Some(pod) = pods.get_mut(pod) else { return };
        pod.changes += 1;
        for failure in pod.failures.values_mut().filter(|failure| failure.cause.awaits_object()) {
            failure.until = now;
        }
        pod.changed.notify_waiters();
        if let Updates::Kept { next, .. } = &mut pod.updates {
            *next = now;
            self.due_changed.notify_one();
        }
    }

    /// The pod's files were written, and are looked at again at `next`.
    pub(crate) fn keep_updated(&self, uid: &PodUid, pod: &Arc<Pod>, next: Instant) {
        let mut pods = self.lock();
        let Some(memory) = pods.get_mut(uid) else { return };
        if matches!(memory.updates, Updates::None) {
            memory.updates = Updates::Kept { pod: pod.clone(), next, in_flight: false };
            self.due_changed.notify_one();
        }
    }

    /// The pod may tell something new about itself.
    pub(crate) fn update_pod(&self, uid: &PodUid, new: &Arc<Pod>, now: Instant) {
        let mut pods = self.lock();
        let Some(Updates::Kept { pod, next, .. }) = pods.get_mut(uid).map(|pod| &mut pod.updates)
        else {
            return;
        };
        if Arc::ptr_eq(pod, new) {
            return;
        }
        let told = |pod: &Pod| (pod.metadata.labels.clone(), pod.metadata.annotations.clone());
        if told(pod) != told(new) || pod.spec != new.spec {
            *next = now;
            self.due_changed.notify_one();
        }
        *pod = new.clone();
    }

    /// The pod's files stay as they are from now on.
    pub(crate) fn stop_updates(&self, uid: &PodUid) {
        if let Some(pod) = self.lock().get_mut(uid) {
            pod.updates = Updates::Stopped;
        }
    }

    /// The pod's files may be written.
    pub(crate) fn may_update(&self, uid: &PodUid) -> bool {
        let pods = self.lock();
        pods.get(uid).is_some_and(|pod| !matches!(pod.updates, Updates::Stopped))
    }

    /// Takes the pods whose files are due, and tells when the next ones are.
    pub(crate) fn take_due(&self, now: Instant) -> (Vec<(PodUid, Arc<Pod>)>, Option<Instant>) {
        let (mut due, mut earliest) = (Vec::new(), None::<Instant>);
        for (uid, memory) in self.lock().iter_mut() {
            let Updates::Kept { pod, next, in_flight } = &mut memory.updates else { continue };
            if *in_flight {
                continue;
            }
            if *next <= now {
                *in_flight = true;
                // What changes from here on makes it due anew.
                *next = Instant::now() + FAR_AWAY;
                due.push((uid.clone(), pod.clone()));
            } else {
                earliest = Some(earliest.map_or(*next, |earliest| earliest.min(*next)));
            }
        }
        (due, earliest)
    }

    /// The pod's files were looked at, and are so again at `at` at the latest.
    pub(crate) fn updated(&self, uid: &PodUid, at: Instant) {
        if let Some(Updates::Kept { next, in_flight, .. }) =
            self.lock().get_mut(uid).map(|pod| &mut pod.updates)
        {
            *in_flight = false;
            *next = (*next).min(at);
        }
    }

    /// Waits until some pod's files are due sooner than was told.
    pub(crate) async fn due_changed(&self) {
        self.due_changed.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, PodMemory>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Later than any moment at which files are looked at.
const FAR_AWAY: Duration = Duration::from_secs(86_400);
