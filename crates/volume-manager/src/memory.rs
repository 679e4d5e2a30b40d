use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rubelet_types::PodUid;
use rubelet_volume_plan::{VOLUME_RETRY_INITIAL, compute_next_retry_delay};
use tokio::time::Instant;

/// What is remembered between calls. All of it may be lost: then a hostPath is checked once more,
/// and a failing volume is tried once more than it had to be.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<HashMap<PodUid, PodMemory>>);

#[derive(Debug, Default)]
struct PodMemory {
    checked_host_paths: BTreeSet<String>,
    failures: BTreeMap<String, Failure>,
    /// How long the pod's release waited after its last failure.
    release_delay: Option<Duration>,
}

#[derive(Debug)]
struct Failure {
    delay: Duration,
    until: Instant,
    message: String,
}

impl Memory {
    /// The pod's volumes are wanted: it is no orphan until it is forgotten.
    pub(crate) fn remember(&self, pod: &PodUid) {
        self.lock().entry(pod.clone()).or_default();
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

    /// A volume was set up.
    pub(crate) fn succeeded(&self, pod: &PodUid, volume: &str, is_host_path: bool) {
        if let Some(pod) = self.lock().get_mut(pod) {
            pod.failures.remove(volume);
            if is_host_path {
                pod.checked_host_paths.insert(volume.to_owned());
            }
        }
    }

    /// A volume's set-up failed; returns how long it waits.
    pub(crate) fn failed(
        &self,
        pod: &PodUid,
        volume: &str,
        message: &str,
        now: Instant,
    ) -> Duration {
        let mut pods = self.lock();
        let failures = &mut pods.entry(pod.clone()).or_default().failures;
        let delay = compute_next_retry_delay(failures.get(volume).map(|failure| failure.delay));
        let failure = Failure { delay, until: now + delay, message: message.to_owned() };
        failures.insert(volume.to_owned(), failure);
        delay
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

    /// Volumes that failed so recently that they are not tried again: how long they still wait,
    /// and the message of the failure.
    pub(crate) fn waiting(
        &self,
        pod: &PodUid,
        now: Instant,
    ) -> BTreeMap<String, (Duration, String)> {
        let pods = self.lock();
        let failures = pods.get(pod).map(|pod| &pod.failures).into_iter().flatten();
        failures
            .filter(|(_, failure)| failure.until > now)
            .map(|(volume, failure)| {
                let remaining = failure.until.duration_since(now);
                (volume.clone(), (remaining, failure.message.clone()))
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, PodMemory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
