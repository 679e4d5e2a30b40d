//! Mirror pods: how the API server sees static pods.
//!
//! For each static pod there is to be one pod object of the same name, marked with the static pod's
//! hash and owned by the node. It is a picture: deleting it changes nothing on the node, and it is
//! made again. [`plan_mirror_pods`] says what is to be done; [`keep_mirror_pods`] does it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rubelet_types::{PodFullName, PodRef, labels, pod_annotation, pod_ref};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Everything is compared again after this, whatever was noticed.
const REVIEW_PERIOD: Duration = Duration::from_secs(60);
/// While a mirror waits for the end of its pod, it is looked whether that has come after this.
const ENDING_PERIOD: Duration = Duration::from_secs(2);
/// What was asked of the API server shows in its watch; if not, it is asked again after this.
const SETTLE: Duration = Duration::from_secs(5);
/// First and longest wait after a request that failed.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The node object that owns mirror pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorOwner {
    /// The node's name.
    pub name: String,
    /// The uid of its object.
    pub uid: String,
}

/// One thing to do at the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorAction {
    /// Create this pod.
    Create(Box<Pod>),
    /// Delete the pod object at once, and no other one of its name.
    Delete(PodRef),
}

impl MirrorAction {
    fn full_name(&self) -> PodFullName {
        match self {
            Self::Create(pod) => pod_ref(pod).full_name(),
            Self::Delete(pod) => pod.full_name(),
        }
    }
}

/// What becomes of a mirror whose static pod is in no source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutPod {
    /// Not all sources have been heard: one of them may have the pod.
    IsKept,
    /// The pod is being stopped, and its last status is still to be told.
    AwaitsItsEnd,
    /// It goes.
    Goes,
}

/// What is to be done about mirror pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MirrorPlan {
    /// At the API server, now.
    pub actions: Vec<MirrorAction>,
    /// Some go when their pods have ended.
    pub awaits_an_end: bool,
}

/// What is to be done so that each of `static_pods` has its mirror among `mirrors`, and no other
/// mirror is left. Without an `owner` (no node object, or one that is being deleted) none is
/// created. What becomes of one whose pod has left its source says `without_pod`.
pub fn plan_mirror_pods(
    static_pods: &[Arc<Pod>],
    mirrors: &[Arc<Pod>],
    owner: Option<&MirrorOwner>,
    without_pod: impl Fn(&PodFullName) -> WithoutPod,
) -> MirrorPlan {
    let mut unclaimed: HashMap<PodFullName, &Arc<Pod>> =
        mirrors.iter().map(|mirror| (pod_ref(mirror).full_name(), mirror)).collect();
    let mut plan = MirrorPlan::default();
    let actions = &mut plan.actions;
    for pod in static_pods {
        match unclaimed.remove(&pod_ref(pod).full_name()) {
            Some(mirror) if is_mirror_of(mirror, pod) => {}
            // Its successor is created once it is gone.
            Some(mirror) => actions.push(MirrorAction::Delete(pod_ref(mirror))),
            None => {
                actions.extend(
                    owner.and_then(|owner| mirror_pod(pod, owner)).map(MirrorAction::Create),
                );
            }
        }
    }
    for mirror in mirrors.iter().map(|mirror| pod_ref(mirror)) {
        let name = mirror.full_name();
        if !unclaimed.contains_key(&name) {
            continue;
        }
        match without_pod(&name) {
            WithoutPod::IsKept => {}
            WithoutPod::AwaitsItsEnd => plan.awaits_an_end = true,
            WithoutPod::Goes => plan.actions.push(MirrorAction::Delete(mirror)),
        }
    }
    plan
}

/// The object is the picture of `pod` as it is now, and stays.
fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    let marked = pod_annotation(mirror, labels::CONFIG_MIRROR);
    mirror.metadata.deletion_timestamp.is_none()
        && marked.is_some()
        && marked == pod_annotation(pod, labels::CONFIG_HASH)
}

/// `None` for a pod without a hash, which no static pod is.
fn mirror_pod(pod: &Pod, owner: &MirrorOwner) -> Option<Box<Pod>> {
    let hash = pod_annotation(pod, labels::CONFIG_HASH)?.to_owned();
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    annotations.insert(labels::CONFIG_MIRROR.to_owned(), hash);
    let metadata = ObjectMeta {
        name: pod.metadata.name.clone(),
        namespace: pod.metadata.namespace.clone(),
        labels: pod.metadata.labels.clone(),
        annotations: Some(annotations),
        owner_references: Some(vec![OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        }]),
        ..ObjectMeta::default()
    };
    Some(Box::new(Pod { metadata, spec: pod.spec.clone(), status: None }))
}

/// The mirror pods that the API server is known to hold. One owner writes (the sync handler),
/// everybody may read.
#[derive(Debug, Default)]
pub struct MirrorPods {
    by_name: Mutex<HashMap<PodFullName, Arc<Pod>>>,
    all_sources_heard: AtomicBool,
    changed: Notify,
}

impl MirrorPods {
    fn lock(&self) -> MutexGuard<'_, HashMap<PodFullName, Arc<Pod>>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The API server holds `mirror`, in this version.
    pub fn set(&self, mirror: &Arc<Pod>) {
        self.lock().insert(pod_ref(mirror).full_name(), Arc::clone(mirror));
        self.changed.notify_one();
    }

    /// The API server does not hold `mirror` any more.
    pub fn remove(&self, mirror: &PodRef) {
        let mut by_name = self.lock();
        let name = mirror.full_name();
        // Its successor may have come before it went.
        if by_name.get(&name).is_some_and(|known| pod_ref(known).uid == mirror.uid) {
            by_name.remove(&name);
        }
        drop(by_name);
        self.changed.notify_one();
    }

    /// The mirror pod of the static pod of that name.
    pub fn get(&self, name: &PodFullName) -> Option<Arc<Pod>> {
        self.lock().get(name).cloned()
    }

    /// All of them, in the order of their names.
    pub fn all(&self) -> Vec<Arc<Pod>> {
        let mut mirrors: Vec<_> = self.lock().values().cloned().collect();
        mirrors.sort_by_cached_key(|mirror| pod_ref(mirror).full_name());
        mirrors
    }

    /// Every source has told which pods there are: a mirror without a pod among them may go. Costs
    /// nothing to say again.
    pub fn all_sources_heard(&self) {
        if !self.all_sources_heard.swap(true, Ordering::Relaxed) {
            self.changed.notify_one();
        }
    }

    /// Static pods or the node have changed: everything is compared again.
    pub fn review(&self) {
        self.changed.notify_one();
    }
}

/// What [`keep_mirror_pods`] needs from the rest of the kubelet.
pub trait MirrorPort: Send + Sync + 'static {
    /// The static pods that the sources want.
    fn static_pods(&self) -> Vec<Arc<Pod>>;

    /// The node's object, unless there is none or it is being deleted.
    fn owner(&self) -> Option<MirrorOwner>;

    /// A pod of that name has left its source and is still being stopped.
    fn is_ending(&self, name: &PodFullName) -> bool;

    /// Creates a pod object. That there is one of the name is no error: the watch will show whether
    /// it is the right one. `Err` carries the text of the failure.
    fn create(&self, pod: &Pod) -> impl Future<Output = Result<(), String>> + Send;

    /// Deletes the object of that name and uid at once; that it is not there is no error.
    fn delete(&self, pod: &PodRef) -> impl Future<Output = Result<(), String>> + Send;
}

/// When something may be tried for a name again.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
    retry: Duration,
}

/// Keeps mirror pods as they are to be, until the future is dropped.
pub async fn keep_mirror_pods(mirrors: &MirrorPods, port: &impl MirrorPort) {
    let mut holds: HashMap<PodFullName, (MirrorAction, Hold)> = HashMap::new();
    loop {
        let all_sources_heard = mirrors.all_sources_heard.load(Ordering::Relaxed);
        let plan =
            plan_mirror_pods(&port.static_pods(), &mirrors.all(), port.owner().as_ref(), |name| {
                match all_sources_heard {
                    false => WithoutPod::IsKept,
                    true if port.is_ending(name) => WithoutPod::AwaitsItsEnd,
                    true => WithoutPod::Goes,
                }
            });
        // Something else is due for that name: what held it back is over.
        holds.retain(|name, (held, _)| {
            let mut due = plan.actions.iter();
            due.any(|action| action.full_name() == *name && same_kind(action, held))
        });
        let period = if plan.awaits_an_end { ENDING_PERIOD } else { REVIEW_PERIOD };
        for action in plan.actions {
            let name = action.full_name();
            let now = Instant::now();
            let before = holds.get(&name).map(|(_, hold)| *hold);
            if before.is_some_and(|hold| hold.until > now) {
                continue;
            }
            let hold = match apply(port, &action).await {
                Ok(()) => Hold { until: Instant::now() + SETTLE, retry: RETRY.0 },
                Err(error) => {
                    let retry = before.map_or(RETRY.0, |hold| (hold.retry * 2).min(RETRY.1));
                    tracing::warn!(pod = %name, error, "Mirror pod not as it should be");
                    Hold { until: Instant::now() + retry, retry }
                }
            };
            holds.insert(name, (action, hold));
        }
        let next = holds.values().map(|(_, hold)| hold.until).min();
        let review = Instant::now() + period;
        tokio::select! {
            () = mirrors.changed.notified() => {}
            () = tokio::time::sleep_until(next.map_or(review, |next| next.min(review))) => {}
        }
    }
}

fn same_kind(a: &MirrorAction, b: &MirrorAction) -> bool {
    match (a, b) {
        (MirrorAction::Delete(a), MirrorAction::Delete(b)) => a == b,
        (MirrorAction::Create(a), MirrorAction::Create(b)) => {
            pod_annotation(a, labels::CONFIG_MIRROR) == pod_annotation(b, labels::CONFIG_MIRROR)
        }
        _ => false,
    }
}

async fn apply(port: &impl MirrorPort, action: &MirrorAction) -> Result<(), String> {
    match action {
        MirrorAction::Create(pod) => {
            tracing::info!(pod = %pod_ref(pod).full_name(), "Creating a mirror pod for static pod");
            port.create(pod).await
        }
        MirrorAction::Delete(pod) => {
            tracing::info!(pod = %pod, "Deleting a mirror pod");
            port.delete(pod).await
        }
    }
}

#[cfg(test)]
mod tests;
