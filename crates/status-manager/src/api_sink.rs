//! Statuses of pods on their way to the API server.

use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error;
use std::future::Future;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_pod_status::status_patch;
use rubelet_types::{PodRef, PodUid, is_mirror_pod, is_terminal_phase, pod_ref};
use serde_json::Value;

use crate::manager::VersionedStatus;
use crate::publish::{StatusSink, WriteOutcome};

/// The object that shows the status of a pod.
#[derive(Clone, Debug)]
pub enum StatusObject {
    /// The API server's copy as it was last seen: the pod itself, or the mirror pod of a static pod.
    Seen(Arc<Pod>),
    /// A static pod whose mirror pod was not created yet.
    NotYet,
    /// The pod's object is gone, and nobody is to be told.
    Gone,
}

/// What the API server holds of pods, and how it is changed.
pub trait PodStatusApi: Send + Sync + 'static {
    /// Why a request failed.
    type Error: Error + Send + Sync + 'static;

    /// The object that shows the status of `pod`, from memory.
    fn object(&self, pod: &PodRef) -> StatusObject;

    /// Reads an object anew; `None` if there is none of that name.
    fn get(&self, object: &PodRef)
    -> impl Future<Output = Result<Option<Pod>, Self::Error>> + Send;

    /// Sends a strategic merge patch, which names the uid, to the status of an object. Answers with
    /// the object, or `None` if there is none of that name or it is another one.
    fn patch_status(
        &self,
        object: &PodRef,
        patch: &Value,
    ) -> impl Future<Output = Result<Option<Pod>, Self::Error>> + Send;

    /// Deletes an object at once, if it still has that uid.
    fn delete(&self, object: &PodRef) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// What is remembered of a pod's object so that nothing is compared twice.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The resource version that the last write made.
    written: u64,
    /// The version of the status and the resource version of the object that were found to agree.
    agreed: Option<(u64, u64)>,
}

/// Writes statuses to the API server as upstream's status manager does: as strategic merge patches
/// of `pods/status`, which leave alone what others write there. Once a worker has released
/// everything of a pod that is being deleted, deletes the pod's object.
#[derive(Debug)]
pub struct ApiStatusSink<A> {
    api: A,
    seen: Mutex<HashMap<PodUid, Seen>>,
}

impl<A: PodStatusApi> ApiStatusSink<A> {
    /// A sink that writes to `api`.
    pub fn new(api: A) -> Self {
        Self { api, seen: Mutex::default() }
    }

    /// Forgets all pods but those that `keep` names.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.seen().retain(|uid, _| keep(uid));
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<PodUid, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object as it is at least since the last write. What the watch has shown may be older
    /// than that, and a patch made from it would miss what the write changed.
    async fn newest(&self, pod: &PodUid, shown: Arc<Pod>) -> Result<Option<Arc<Pod>>, A::Error> {
        let written = self.seen().get(pod).map_or(0, |seen| seen.written);
        if resource_version(&shown) >= written {
            return Ok(Some(shown));
        }
        let object = pod_ref(&shown);
        let found = self.api.get(&object).await?;
        Ok(found.filter(|found| pod_ref(found).uid == object.uid).map(Arc::new))
    }
}

impl<A: PodStatusApi> StatusSink for ApiStatusSink<A> {
    type Error = A::Error;

    async fn write(&self, status: &VersionedStatus) -> Result<WriteOutcome, A::Error> {
        let uid = &status.pod.uid;
        let shown = match self.api.object(&status.pod) {
            StatusObject::Seen(shown) => shown,
            StatusObject::NotYet => return Ok(WriteOutcome::Later),
            StatusObject::Gone => return Ok(WriteOutcome::Written),
        };
        let Some(mut object) = self.newest(uid, shown).await? else {
            return Ok(WriteOutcome::Written);
        };
        let reference = pod_ref(&object);
        let patch = {
            let shown = shown_status(&object, &status.status);
            status_patch(reference.uid.as_str(), &shown, &status.status)
        };
        if let Some(patch) = patch {
            let Some(patched) = self.api.patch_status(&reference, &patch).await? else {
                return Ok(WriteOutcome::Written);
            };
            tracing::debug!(pod = %reference, version = status.version, "Pod status written");
            self.seen().entry(uid.clone()).or_default().written = resource_version(&patched);
            object = Arc::new(patched);
        }
        if is_to_be_deleted(&object, status) {
            self.api.delete(&reference).await?;
            tracing::debug!(pod = %reference, "Pod object deleted");
            self.seen().remove(uid);
            return Ok(WriteOutcome::Deleted);
        }
        let agreed = (status.version, resource_version(&object));
        self.seen().entry(uid.clone()).or_default().agreed = Some(agreed);
        Ok(WriteOutcome::Written)
    }

    fn has_drifted(&self, status: &VersionedStatus) -> bool {
        let StatusObject::Seen(object) = self.api.object(&status.pod) else { return false };
        let uid = &status.pod.uid;
        let seen = self.seen().get(uid).copied().unwrap_or_default();
        let version = resource_version(&object);
        if version < seen.written {
            return false;
        }
        if is_to_be_deleted(&object, status) {
            return true;
        }
        if seen.agreed == Some((status.version, version)) {
            return false;
        }
        let shown = shown_status(&object, &status.status);
        let drifted = status_patch(pod_ref(&object).uid.as_str(), &shown, &status.status).is_some();
        if !drifted {
            self.seen().entry(uid.clone()).or_default().agreed = Some((status.version, version));
        }
        drifted
    }
}

/// What the object shows, as far as `ours` goes by it. The end that a mirror pod shows binds nobody:
/// a static pod that a kubelet refused or that ended is started again by a later one.
fn shown_status<'a>(object: &'a Pod, ours: &PodStatus) -> Cow<'a, PodStatus> {
    static NOTHING: LazyLock<PodStatus> = LazyLock::new(PodStatus::default);
    let shown = object.status.as_ref().unwrap_or(&NOTHING);
    let is_over = |status: &PodStatus| is_terminal_phase(status.phase.as_deref());
    if is_mirror_pod(object) && is_over(shown) && !is_over(ours) {
        return Cow::Owned(PodStatus { phase: None, ..shown.clone() });
    }
    Cow::Borrowed(shown)
}

/// Resource versions of one resource are numbers that grow (KEP-5504). One that is none counts as
/// older than all.
fn resource_version(object: &Pod) -> u64 {
    object.metadata.resource_version.as_deref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The object waits for nothing but the word that all of the pod is gone.
fn is_to_be_deleted(object: &Pod, status: &VersionedStatus) -> bool {
    let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
    status.finished
        && object.metadata.deletion_timestamp.is_some()
        && is_terminal_phase(phase)
        && !is_mirror_pod(object)
}
