use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_pod_status::{
    Gates, IllegalTransition, check_transition, differ_in_details, finished_status, statuses_equal,
};
use rubelet_types::{Clock, PodRef, PodUid, pod_ref};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::metrics::StatusMetrics;

/// How long a change of details waits for one that matters, to be told with it. A pod's sandbox is
/// ready a moment before its containers run, and gone a moment after them; upstream, which looks
/// once a second, seldom sees these moments.
const DETAILS_WAIT: Duration = Duration::from_secs(1);

/// One status of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionedStatus {
    /// The pod. Of a static pod, the static pod and not its mirror.
    pub pod: PodRef,
    /// Grows with every change, from 1 on.
    pub version: u64,
    /// The status.
    pub status: PodStatus,
    /// The worker has released everything the pod held: its object may be deleted.
    pub finished: bool,
    /// When the first change was made that has not been told yet (for
    /// `kubelet_pod_status_sync_duration_seconds`).
    pub pending_since: Timestamp,
}

/// What became of a status that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetOutcome {
    /// It is the pod's status now.
    Changed {
        /// Its version.
        version: u64,
    },
    /// It says what the status before said.
    Unchanged,
    /// It contradicts the status before, which stays.
    Refused(IllegalTransition),
}

/// How often what happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusCounters {
    /// Statuses that changed something.
    pub changed: u64,
    /// Statuses that said nothing new.
    pub unchanged: u64,
    /// Statuses that were refused. Each one is a fault of this kubelet.
    pub refused: u64,
}

#[derive(Debug)]
struct Entry {
    current: Arc<VersionedStatus>,
    /// The newest version that the sink has taken; 0 for none.
    written: u64,
}

#[derive(Debug)]
struct State {
    entries: HashMap<PodUid, Entry>,
    /// Pods with something to tell, and since when it is due. Stays empty while nobody listens.
    dirty: BTreeMap<PodUid, Instant>,
    listening: bool,
    counters: StatusCounters,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Holds one permit at most: however many changes, there is one reason to look.
    changed: Notify,
    clock: Clock,
    gates: Gates,
    metrics: Arc<StatusMetrics>,
}

impl Shared {
    /// The state is whole whenever the lock is free, so a panic elsewhere does not spoil it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Owner of the statuses of all pods (upstream: the kubelet's status manager). Cheap to clone; all
/// clones share one state. Nothing in it blocks longer than a map access takes.
#[derive(Clone, Debug)]
pub struct StatusManager {
    shared: Arc<Shared>,
}

impl StatusManager {
    /// An empty manager, and the one place where its changes come out. A kubelet that reports to
    /// nobody drops the latter.
    pub fn new(clock: Clock, gates: Gates) -> (Self, StatusChanges) {
        let state = State {
            entries: HashMap::new(),
            dirty: BTreeMap::new(),
            listening: true,
            counters: StatusCounters::default(),
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Notify::new(),
            clock,
            gates,
            metrics: Arc::default(),
        });
        (Self { shared: Arc::clone(&shared) }, StatusChanges { shared })
    }

    /// The status that `uid` has now. Its `status` is what the next computation calls `previous`;
    /// a pod without one goes by its own status.
    pub fn status(&self, uid: &PodUid) -> Option<Arc<VersionedStatus>> {
        self.shared.state().entries.get(uid).map(|entry| Arc::clone(&entry.current))
    }

    /// Makes `status` the status of `pod`, if it says anything new and does not contradict the one
    /// before.
    pub fn set_status(&self, pod: &Pod, status: PodStatus) -> SetOutcome {
        self.shared.store(pod, false, |_| status)
    }

    /// The worker of `pod` has released everything: what is missing in its status is completed
    /// (containers without a final state have failed, a phase that is not terminal becomes Failed
    /// unless the pod is static), and the sink is told, so that it can delete the pod's object.
    pub fn finish(&self, pod: &Pod) -> SetOutcome {
        let now = self.shared.clock.now();
        let gates = self.shared.gates;
        self.shared.store(pod, true, |previous| finished_status(pod, previous, gates, now))
    }

    /// Whether the sink has taken the status that `uid` has now; none without a sink, or a status.
    pub fn reached_sink(&self, uid: &PodUid) -> Option<bool> {
        let state = self.shared.state();
        let entry = state.entries.get(uid).filter(|_| state.listening)?;
        Some(entry.written >= entry.current.version)
    }

    /// Tells the sink again, changed or not: the object it writes to has changed.
    pub fn resend(&self, uid: &PodUid) {
        let mut state = self.shared.state();
        if let Some(entry) = state.entries.get_mut(uid) {
            entry.written = 0;
            self.shared.mark_dirty(&mut state, uid.clone(), Duration::ZERO);
        }
    }

    /// Forgets all pods but those that `keep` names, and says how many it forgot.
    pub fn remove_orphans(&self, keep: impl Fn(&PodUid) -> bool) -> usize {
        let mut state = self.shared.state();
        let before = state.entries.len();
        state.entries.retain(|uid, _| keep(uid));
        state.dirty.retain(|uid, _| keep(uid));
        before - state.entries.len()
    }

    /// Forgets the pod. Should it come back, its life begins anew, and so does its status.
    pub fn remove(&self, uid: &PodUid) {
        let mut state = self.shared.state();
        state.entries.remove(uid);
        state.dirty.remove(uid);
    }

    /// The pods with the statuses they have here, for whoever asks this kubelet about its pods. A
    /// pod without one is shown as it came.
    pub fn pods_with_status(&self, pods: impl IntoIterator<Item = impl Borrow<Pod>>) -> Vec<Pod> {
        let with_status = |pod: &Pod| {
            let current = self.status(&pod_ref(pod).uid);
            let status =
                current.map_or_else(|| pod.status.clone(), |current| Some(current.status.clone()));
            Pod { metadata: pod.metadata.clone(), spec: pod.spec.clone(), status }
        };
        pods.into_iter().map(|pod| with_status(pod.borrow())).collect()
    }

    /// What is counted of statuses, for scrapers.
    pub fn metrics(&self) -> Arc<StatusMetrics> {
        self.shared.metrics.clone()
    }

    /// How often what happened since the start.
    pub fn counters(&self) -> StatusCounters {
        self.shared.state().counters
    }
}

impl Shared {
    fn store(
        &self,
        pod: &Pod,
        finished: bool,
        next: impl FnOnce(&PodStatus) -> PodStatus,
    ) -> SetOutcome {
        let now = self.clock.now();
        let reference = pod_ref(pod);
        let mut guard = self.state();
        let state = &mut *guard;
        let entry = state.entries.get(&reference.uid);
        let cached = entry.map(|entry| Arc::clone(&entry.current));
        let nothing = PodStatus::default();
        let previous = match &cached {
            Some(current) => &current.status,
            None => pod.status.as_ref().unwrap_or(&nothing),
        };
        let status = next(previous);

        if let Err(refusal) = check_transition(pod, previous, &status) {
            state.counters.refused += 1;
            tracing::error!(pod = %reference, %refusal, "refused a pod status");
            return SetOutcome::Refused(refusal);
        }
        let same = statuses_equal(previous, &status);
        let finishes = finished && !cached.as_ref().is_some_and(|current| current.finished);
        if same && cached.is_some() && !finishes {
            state.counters.unchanged += 1;
            return SetOutcome::Unchanged;
        }
        if previous.phase != status.phase {
            tracing::info!(
                pod = %reference,
                from = previous.phase.as_deref().unwrap_or_default(),
                to = status.phase.as_deref().unwrap_or_default(),
                reason = status.reason.as_deref().unwrap_or_default(),
                "pod phase changed"
            );
        }
        state.counters.changed += 1;
        self.metrics.count_ends(previous, &status);
        let may_wait = cached.is_some() && !finishes && differ_in_details(previous, &status);
        let delay = if may_wait { DETAILS_WAIT } else { Duration::ZERO };

        let written = entry.map_or(0, |entry| entry.written);
        let pending_since = match &cached {
            Some(current) if current.version > written => current.pending_since,
            _ => now,
        };
        let version = cached.as_ref().map_or(0, |current| current.version) + 1;
        // After a start, what the API server has already need not be told again.
        let told = cached.is_none() && same && !finishes;
        let current = Arc::new(VersionedStatus {
            pod: reference.clone(),
            version,
            status,
            finished: finished || cached.is_some_and(|current| current.finished),
            pending_since,
        });
        let written = if told { version } else { written };
        state.entries.insert(reference.uid.clone(), Entry { current, written });
        if !told {
            self.mark_dirty(state, reference.uid, delay);
        }
        SetOutcome::Changed { version }
    }

    fn mark_dirty(&self, state: &mut State, uid: PodUid, delay: Duration) {
        if state.listening {
            let due = Instant::now() + delay;
            let known = state.dirty.entry(uid).or_insert(due);
            *known = due.min(*known);
            self.changed.notify_one();
        }
    }
}

/// Where the changes of a [`StatusManager`] come out. There is one for each manager; dropping it
/// says that nobody listens.
#[derive(Debug)]
pub struct StatusChanges {
    shared: Arc<Shared>,
}

impl StatusChanges {
    /// Waits until there may be something to take. Losing the race in a `select!` loses nothing.
    pub async fn changed(&mut self) {
        self.shared.changed.notified().await;
    }

    /// Takes the newest status of some pod that has something to tell, which is due, and that
    /// `ready` accepts.
    pub fn take(&mut self, ready: impl Fn(&PodUid) -> bool) -> Option<Arc<VersionedStatus>> {
        let now = Instant::now();
        let mut state = self.shared.state();
        let (uid, _) = state.dirty.iter().find(|(uid, due)| **due <= now && ready(uid))?;
        let uid = uid.clone();
        state.dirty.remove(&uid);
        state.entries.get(&uid).map(|entry| Arc::clone(&entry.current))
    }

    /// When something will be due that is not due yet.
    pub fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        self.shared.state().dirty.values().copied().filter(|due| *due > now).min()
    }

    /// The sink has taken `version` of `uid`.
    pub(crate) fn written(&mut self, uid: &PodUid, version: u64) {
        let now = self.shared.clock.now();
        if let Some(entry) = self.shared.state().entries.get_mut(uid) {
            if version > entry.written {
                let took = now.duration_since(entry.current.pending_since);
                self.shared.metrics.written_after(took.try_into().unwrap_or_default());
            }
            entry.written = entry.written.max(version);
        }
    }

    /// The object of `uid` is gone for good, and with it the need to report.
    pub(crate) fn forget(&mut self, uid: &PodUid) {
        let mut state = self.shared.state();
        state.entries.remove(uid);
        state.dirty.remove(uid);
    }

    /// Puts all pods on the list again that the sink has not taken, or that `drifted` says need it.
    /// Those that `idle` does not accept are left for the next time: a write is under way.
    pub(crate) fn review(
        &mut self,
        idle: impl Fn(&PodUid) -> bool,
        drifted: impl Fn(&VersionedStatus) -> bool,
    ) {
        // The sink is asked without the lock: workers need not wait for it.
        let (due, taken): (Vec<_>, Vec<_>) = {
            let state = self.shared.state();
            let entries = state.entries.iter().filter(|(uid, _)| idle(uid));
            entries
                .map(|(_, entry)| (Arc::clone(&entry.current), entry.written))
                .partition(|(current, written)| current.version > *written)
        };
        let drifted = taken.into_iter().filter(|(current, _)| drifted(current));
        let uids: Vec<PodUid> =
            due.into_iter().chain(drifted).map(|(current, _)| current.pod.uid.clone()).collect();
        let now = Instant::now();
        let mut state = self.shared.state();
        for uid in uids {
            if state.entries.contains_key(&uid) {
                state.dirty.insert(uid, now);
            }
        }
    }
}

impl Drop for StatusChanges {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.listening = false;
        state.dirty.clear();
    }
}
