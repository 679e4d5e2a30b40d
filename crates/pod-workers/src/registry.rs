use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_pod_lifecycle::{BackOffSettings, PodEvent, PodState, Stage, StopCause};
use rubelet_types::{Clock, PodFullName, PodRef, PodSnapshot, PodUid, is_static_pod, pod_ref};
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::mailbox::Mailbox;
use crate::metrics::WorkerMetrics;
use crate::port::PodPort;
use crate::worker::{Published, Surroundings, Worker};

/// A decision as it is kept for whoever asks why.
#[derive(Clone, Debug, Serialize)]
pub struct RecordedDecision {
    /// When it was taken.
    pub at: Timestamp,
    /// The pod's stage then.
    pub stage: Stage,
    /// Why, in words.
    pub because: Vec<String>,
    /// The actions it began.
    pub actions: Vec<String>,
}

/// What is known of a worker from outside.
#[derive(Clone, Debug, Serialize)]
pub struct WorkerSummary {
    /// The pod.
    pub pod: PodRef,
    /// Its stage.
    pub stage: Stage,
    /// No source lists it any more.
    pub is_removed: bool,
    /// It is known from the runtime alone.
    pub is_orphan: bool,
}

/// An action that a worker has begun and that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RunningAction {
    /// What it is.
    pub action: String,
    /// When it was begun.
    pub since: Timestamp,
}

/// What a worker is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerActivity {
    /// The actions in flight, the oldest first.
    pub actions: Vec<RunningAction>,
    /// When it decides anew, if nothing happens before.
    pub wakes_at: Option<Timestamp>,
}

/// What is known of a pod before anybody works on it.
#[derive(Clone, Debug, Default)]
pub struct Beginning {
    /// The start time of an earlier status.
    pub started_at: Option<Timestamp>,
    /// It never starts anything: what there is of it is stopped for this reason, and released.
    pub end: Option<StopCause>,
    /// The runtime holds nothing of it, and need not be asked before the pod is begun with.
    pub holds_nothing: bool,
}

#[derive(Debug)]
struct Entry {
    mailbox: Arc<Mailbox>,
    published: Arc<Mutex<Published>>,
    /// No container of it can run any more.
    terminated: watch::Receiver<bool>,
    full_name: PodFullName,
    is_static: bool,
    /// The pod came back to its source while it was on its way out.
    restart: Option<Arc<Pod>>,
    removed: bool,
}

#[derive(Debug, Default)]
struct Registry {
    /// In the order of uids, so that whoever goes through all of them does so in one order.
    entries: BTreeMap<PodUid, Entry>,
    /// Which static pod holds a full name, and who waits for it, in order.
    holders: HashMap<PodFullName, PodUid>,
    queues: HashMap<PodFullName, VecDeque<PodUid>>,
}

/// All pod workers. Cloning gives another handle.
#[derive(Debug)]
pub struct PodWorkers<P> {
    shared: Arc<Shared<P>>,
}

#[derive(Debug)]
struct Shared<P> {
    port: Arc<P>,
    clock: Clock,
    back_off: BackOffSettings,
    registry: Mutex<Registry>,
    metrics: Arc<WorkerMetrics>,
    tasks: TaskTracker,
    abort: CancellationToken,
}

impl<P> Clone for PodWorkers<P> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<P: PodPort> PodWorkers<P> {
    /// Workers that have their actions carried out by `port`.
    pub fn new(port: Arc<P>, clock: Clock, back_off: BackOffSettings) -> Self {
        Self {
            shared: Arc::new(Shared {
                port,
                clock,
                back_off,
                registry: Mutex::default(),
                metrics: Arc::default(),
                tasks: TaskTracker::new(),
                abort: CancellationToken::new(),
            }),
        }
    }

    /// What they count.
    pub fn metrics(&self) -> Arc<WorkerMetrics> {
        self.shared.metrics.clone()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.shared.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A source lists the pod. Known pods are updated; a pod on its way out that comes back runs
    /// again as soon as it is gone.
    pub fn add(&self, pod: Arc<Pod>, beginning: Beginning) {
        let mut registry = self.registry();
        let uid = pod_ref(&pod).uid;
        if let Some(entry) = registry.entries.get_mut(&uid) {
            if entry.removed {
                entry.restart = Some(pod);
            } else {
                entry.mailbox.update(pod);
            }
            return;
        }
        let state = PodState::new(pod.clone(), self.shared.back_off);
        let is_static = is_static_pod(&pod);
        let mailbox = self.insert(&mut registry, state, is_static, false);
        let Beginning { started_at, end, holds_nothing } = beginning;
        if holds_nothing {
            mailbox.observed(PodSnapshot::empty(pod_ref(&pod), self.shared.clock.now()));
        }
        if let Some(time) = started_at {
            mailbox.start_time(time);
        }
        if let Some(cause) = end {
            mailbox.stop(cause, None);
        }
        self.admit_or_queue(&mut registry, &uid);
    }

    /// The source has a new version of the pod.
    pub fn update(&self, pod: Arc<Pod>) {
        self.add(pod, Beginning::default());
    }

    /// No source lists the pod any more: it is stopped, released and erased.
    pub fn remove(&self, uid: &PodUid) {
        if let Some(entry) = self.registry().entries.get_mut(uid) {
            entry.removed = true;
            entry.restart = None;
            entry.mailbox.remove();
        }
    }

    /// Stops the pod for a reason of the node.
    pub fn stop(&self, uid: &PodUid, cause: StopCause, grace_seconds: Option<i64>) {
        if let Some(entry) = self.registry().entries.get(uid) {
            entry.mailbox.stop(cause, grace_seconds);
        }
    }

    /// The runtime holds a pod that no source knows: it is stopped within `grace_seconds`, released
    /// and erased. `pod` is what can be told of its spec from the runtime.
    pub fn add_orphan(&self, pod: Arc<Pod>, grace_seconds: i64) {
        let mut registry = self.registry();
        let uid = pod_ref(&pod).uid;
        if registry.entries.contains_key(&uid) {
            return;
        }
        self.shared.metrics.orphaned.inc();
        let mut state = PodState::new(pod, self.shared.back_off);
        let now = self.shared.clock.now();
        let stop =
            PodEvent::Stop { cause: StopCause::Orphaned, grace_seconds: Some(grace_seconds) };
        state.apply(stop, now);
        state.apply(PodEvent::Removed, now);
        // Whether it was static is not known, so it keeps static pods of its name waiting.
        self.insert(&mut registry, state, true, true);
        let full_name = registry.entries[&uid].full_name.clone();
        registry.holders.entry(full_name).or_insert(uid);
    }

    /// The runtime was seen to hold this of a pod. Answers whether anybody here knows the pod.
    pub fn observed(&self, snapshot: PodSnapshot) -> bool {
        match self.registry().entries.get(&snapshot.pod.uid) {
            Some(entry) => {
                entry.mailbox.observed(snapshot);
                true
            }
            None => false,
        }
    }

    /// Has a pod looked at again, because something it depends on changed.
    pub fn wake(&self, uid: &PodUid) {
        if let Some(entry) = self.registry().entries.get(uid) {
            entry.mailbox.wake();
        }
    }

    /// An object that the pod's containers are configured from has changed: those that could not be
    /// created for want of it are tried again at once.
    pub fn object_changed(&self, uid: &PodUid) {
        if let Some(entry) = self.registry().entries.get(uid) {
            entry.mailbox.object_changed();
        }
    }

    /// Has every pod looked at again.
    pub fn wake_all(&self) {
        for entry in self.registry().entries.values() {
            entry.mailbox.wake();
        }
    }

    /// Waits until no container of the pod can run any more, by its worker's word, or nobody works
    /// on it. Answers false if the workers were shut down before that.
    pub fn terminated(&self, uid: &PodUid) -> impl Future<Output = bool> + Send + use<P> {
        let terminated = self.registry().entries.get(uid).map(|entry| entry.terminated.clone());
        async move {
            match terminated {
                Some(mut terminated) => terminated.wait_for(|is_so| *is_so).await.is_ok(),
                None => true,
            }
        }
    }

    /// Somebody works on the pod.
    pub fn knows(&self, uid: &PodUid) -> bool {
        self.registry().entries.contains_key(uid)
    }

    /// All workers.
    pub fn summaries(&self) -> Vec<WorkerSummary> {
        let registry = self.registry();
        registry
            .entries
            .values()
            .map(|entry| {
                entry.published.lock().unwrap_or_else(PoisonError::into_inner).summary.clone()
            })
            .collect()
    }

    /// Shows all workers to `visit`, and whether their pods are static.
    pub fn visit(&self, mut visit: impl FnMut(&WorkerSummary, bool)) {
        for entry in self.registry().entries.values() {
            let published = entry.published.lock().unwrap_or_else(PoisonError::into_inner);
            visit(&published.summary, entry.is_static);
        }
    }

    /// The last decisions about a pod, oldest first.
    pub fn decisions(&self, uid: &PodUid) -> Vec<RecordedDecision> {
        let registry = self.registry();
        registry.entries.get(uid).map_or_else(Vec::new, |entry| {
            let published = entry.published.lock().unwrap_or_else(PoisonError::into_inner);
            published.decisions.iter().cloned().collect()
        })
    }

    /// What the worker of a pod is doing; none if nobody works on it.
    pub fn activity(&self, uid: &PodUid) -> Option<WorkerActivity> {
        let registry = self.registry();
        let published = &registry.entries.get(uid)?.published;
        Some(published.lock().unwrap_or_else(PoisonError::into_inner).activity.clone())
    }

    /// Ends all workers and leaves the pods as they are. Nothing more is begun, and whatever is under
    /// way is given up, but for calls that create a sandbox or start a container: these come to their
    /// end. Returns when no worker is left.
    pub async fn shut_down(&self) {
        for entry in self.registry().entries.values() {
            entry.mailbox.shut_down();
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    /// Ends all workers, and the actions they have begun, at once and wherever they are.
    pub fn abort(&self) {
        self.shared.abort.cancel();
    }

    fn insert(
        &self,
        registry: &mut Registry,
        state: PodState,
        is_static: bool,
        is_orphan: bool,
    ) -> Arc<Mailbox> {
        let pod = state.pod_ref().clone();
        let mailbox = Arc::new(Mailbox::default());
        let published = Arc::new(Mutex::new(Published {
            summary: WorkerSummary {
                pod: pod.clone(),
                stage: state.stage().clone(),
                is_removed: state.is_removed(),
                is_orphan,
            },
            decisions: VecDeque::new(),
            activity: WorkerActivity::default(),
        }));
        let (told_terminated, terminated) = watch::channel(false);
        let worker = Box::new(Worker::new(
            state,
            is_orphan,
            Surroundings {
                port: self.shared.port.clone(),
                clock: self.shared.clock.clone(),
                metrics: self.shared.metrics.clone(),
            },
            mailbox.clone(),
            published.clone(),
            told_terminated,
        ));
        registry.entries.insert(
            pod.uid.clone(),
            Entry {
                mailbox: mailbox.clone(),
                published,
                terminated,
                full_name: pod.full_name(),
                is_static,
                restart: None,
                removed: is_orphan,
            },
        );
        let workers = self.clone();
        let abort = self.shared.abort.clone();
        self.shared.tasks.spawn(abort.run_until_cancelled_owned(async move {
            let gone = worker.run(|pod| workers.release_name(pod)).await;
            if gone {
                workers.forget(&pod);
            }
        }));
        mailbox
    }

    fn admit_or_queue(&self, registry: &mut Registry, uid: &PodUid) {
        let Some(entry) = registry.entries.get_mut(uid) else { return };
        if entry.is_static {
            let holder =
                registry.holders.entry(entry.full_name.clone()).or_insert_with(|| uid.clone());
            if holder != uid {
                tracing::info!(pod = %entry.full_name, uid = %uid, holder = %holder,
                    "Static pod waits until the one of the same name has ended");
                registry.queues.entry(entry.full_name.clone()).or_default().push_back(uid.clone());
                return;
            }
        }
        entry.mailbox.admit();
    }

    /// The pod is finished: the next static pod of its full name may start.
    fn release_name(&self, pod: &PodRef) {
        let mut registry = self.registry();
        let registry = &mut *registry;
        let full_name = pod.full_name();
        if registry.holders.get(&full_name) != Some(&pod.uid) {
            // It was stopped while it waited for the name.
            if let Some(queue) = registry.queues.get_mut(&full_name) {
                queue.retain(|uid| *uid != pod.uid);
            }
            return;
        }
        registry.holders.remove(&full_name);
        let Some(queue) = registry.queues.get_mut(&full_name) else { return };
        while let Some(next) = queue.pop_front() {
            if let Some(entry) = registry.entries.get_mut(&next)
                && !entry.removed
            {
                registry.holders.insert(full_name.clone(), next);
                entry.mailbox.admit();
                break;
            }
        }
        if registry.queues.get(&full_name).is_some_and(VecDeque::is_empty) {
            registry.queues.remove(&full_name);
        }
    }

    fn forget(&self, pod: &PodRef) {
        // Before the entry goes: a pod of this uid that is added again must not lose what it has.
        self.shared.port.forget(pod);
        let restart = self.registry().entries.remove(&pod.uid).and_then(|entry| entry.restart);
        if let Some(pod) = restart {
            self.shared.metrics.restarted(is_static_pod(&pod));
            self.add(pod, Beginning::default());
        }
    }
}
