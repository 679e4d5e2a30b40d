//! Mirror pods: how the API server sees static pods.
//!
//! For each static pod there is to be one pod object of the same name, marked with the static pod's
//! hash and owned by the node. It is a picture: deleting it changes nothing on the node, and it is
//! made again. [`plan_mirror_pods`] says what is to be done; [`keep_mirror_pods`] does it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use rubelet_types::{PodFullName, PodRef, labels, pod_annotation, pod_ref};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Everything is compared again after this, whatever was noticed.
const REVIEW_PERIOD: Duration = Duration::from_secs(60);
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

/// What is to be done so that each of `static_pods` has its mirror among `mirrors`, and no other
/// mirror is left. Without an `owner` (no node object, or one that is being deleted) none is
/// created. The mirror of a pod that has left its source stays while `is_ending` says that the pod
/// is being stopped: its last status is still to be told.
pub fn plan_mirror_pods(
    static_pods: &[Arc<Pod>],
    mirrors: &[Arc<Pod>],
    owner: Option<&MirrorOwner>,
    is_ending: impl Fn(&PodFullName) -> bool,
) -> Vec<MirrorAction> {
    let mut unclaimed: HashMap<PodFullName, &Arc<Pod>> =
        mirrors.iter().map(|mirror| (pod_ref(mirror).full_name(), mirror)).collect();
    let mut plan = Vec::new();
    for pod in static_pods {
        match unclaimed.remove(&pod_ref(pod).full_name()) {
            Some(mirror) if is_mirror_of(mirror, pod) => {}
            // Its successor is created once it is gone.
            Some(mirror) => plan.push(MirrorAction::Delete(pod_ref(mirror))),
            None => {
                plan.extend(
                    owner.and_then(|owner| mirror_pod(pod, owner)).map(MirrorAction::Create),
                );
            }
        }
    }
    let orphans = mirrors.iter().map(|mirror| pod_ref(mirror)).filter(|mirror| {
        let name = mirror.full_name();
        unclaimed.contains_key(&name) && !is_ending(&name)
    });
    plan.extend(orphans.map(MirrorAction::Delete));
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
        let plan =
            plan_mirror_pods(&port.static_pods(), &mirrors.all(), port.owner().as_ref(), |name| {
                port.is_ending(name)
            });
        // Something else is due for that name: what held it back is over.
        holds.retain(|name, (held, _)| {
            plan.iter().any(|action| action.full_name() == *name && same_kind(action, held))
        });
        for action in plan {
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
        let review = Instant::now() + REVIEW_PERIOD;
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
