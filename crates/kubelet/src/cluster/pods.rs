//! Pod objects at the API server: statuses on their way there, and mirror pods.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_apiserver::{ApiError, ApiErrorKind, ApiServer, Delete, Patch};
use rubelet_node_status::{NodeHandle, NodeOrigin};
use rubelet_pod_sources::{MirrorOwner, MirrorPods, MirrorPort};
use rubelet_pod_workers::PodWorkers;
use rubelet_status_manager::{PodStatusApi, StatusObject};
use rubelet_types::{
    PodFullName, PodRef, error_chain, is_static_pod, labels, pod_annotation, pod_ref,
};
use serde_json::Value;

use crate::executor::Executor;
use crate::pods::DesiredPods;

/// Statuses of pods at the API server: of its own pods, and of static pods by way of their mirrors.
#[derive(Debug)]
pub(crate) struct ApiPodStatuses {
    pub(crate) api: ApiServer,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) mirrors: Arc<MirrorPods>,
}

impl PodStatusApi for ApiPodStatuses {
    type Error = ApiError;

    fn object(&self, pod: &PodRef) -> StatusObject {
        let desired = self.desired.get(&pod.uid).map(|(desired, _)| desired);
        if let Some(desired) = &desired
            && !is_static_pod(desired)
        {
            return StatusObject::Seen(Arc::clone(desired));
        }
        // A static pod that has left its source still has its end told.
        let mirror = self.mirrors.get(&pod.full_name()).filter(|mirror| {
            pod_annotation(mirror, labels::CONFIG_MIRROR) == Some(pod.uid.as_str())
        });
        match (mirror, desired) {
            (Some(mirror), _) => StatusObject::Seen(mirror),
            (None, Some(_)) => StatusObject::NotYet,
            (None, None) => StatusObject::Gone,
        }
    }

    async fn get(&self, object: &PodRef) -> Result<Option<Pod>, ApiError> {
        present(self.api.namespaced::<Pod>(&object.namespace).get(&object.name).await)
    }

    async fn patch_status(&self, object: &PodRef, patch: &Value) -> Result<Option<Pod>, ApiError> {
        let pods = self.api.namespaced::<Pod>(&object.namespace);
        match pods.patch_status(&object.name, &Patch::Strategic(patch.clone())).await {
            // So it says too if the uid that the patch names is not the object's: it is another pod
            // by now.
            Err(error) if matches!(error.kind, ApiErrorKind::Conflict | ApiErrorKind::Invalid) => {
                let held = self.get(object).await?;
                if held.is_some_and(|held| pod_ref(&held).uid == object.uid) {
                    Err(error)
                } else {
                    Ok(None)
                }
            }
            patched => present(patched),
        }
    }

    async fn delete(&self, object: &PodRef) -> Result<(), ApiError> {
        delete_now(&self.api, object).await
    }
}

fn present(found: Result<Pod, ApiError>) -> Result<Option<Pod>, ApiError> {
    match found {
        Ok(pod) => Ok(Some(pod)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes a pod object without grace, if it is still there and the same one.
async fn delete_now(api: &ApiServer, pod: &PodRef) -> Result<(), ApiError> {
    let how = Delete {
        grace_period_seconds: Some(0),
        uid: Some(pod.uid.to_string()),
        ..Delete::default()
    };
    match api.namespaced::<Pod>(&pod.namespace).delete(&pod.name, &how).await {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}

/// How long a start waits for what the API server says of a static pod that already runs.
const MIRROR_PATIENCE: Duration = Duration::from_secs(3);

/// What the mirrors of static pods said before this kubelet started: another kubelet may have had the
/// node meanwhile, and it keeps no statuses on the node.
#[derive(Debug)]
pub(crate) struct EarlierMirrors {
    api: ApiServer,
    /// An API server that does not answer is waited for once, not for each pod: it may be one of them.
    is_silent: AtomicBool,
}

impl EarlierMirrors {
    pub(crate) fn new(api: ApiServer) -> Self {
        Self { api, is_silent: AtomicBool::new(false) }
    }

    /// The status in the mirror of `pod`; none if there is no mirror of that very pod, or nobody says.
    pub(crate) async fn status(&self, pod: &PodRef) -> Option<PodStatus> {
        if self.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        let pods = self.api.namespaced::<Pod>(&pod.namespace);
        let error = match tokio::time::timeout(MIRROR_PATIENCE, pods.get(&pod.name)).await {
            Ok(Ok(mirror)) => {
                let is_of_pod =
                    pod_annotation(&mirror, labels::CONFIG_MIRROR) == Some(pod.uid.as_str());
                return mirror.status.filter(|_| is_of_pod);
            }
            Ok(Err(error)) if error.is_not_found() => return None,
            Ok(Err(error)) => error_chain(&error),
            Err(_) => format!("no answer within {MIRROR_PATIENCE:?}"),
        };
        tracing::warn!(pod = %pod, error,
            "Could not read the mirror of a static pod that runs; what another kubelet said is lost");
        self.is_silent.store(true, Ordering::Relaxed);
        None
    }
}

/// Mirror pods at the API server.
#[derive(Debug)]
pub(crate) struct ApiMirrorPods {
    pub(crate) api: ApiServer,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) workers: PodWorkers<Executor>,
    pub(crate) node: NodeHandle,
}

impl MirrorPort for ApiMirrorPods {
    fn static_pods(&self) -> Vec<Arc<Pod>> {
        self.desired.all().into_iter().filter(|pod| is_static_pod(pod)).collect()
    }

    fn owner(&self) -> Option<MirrorOwner> {
        let published = self.node.current()?;
        let metadata = &published.node.metadata;
        if published.origin != NodeOrigin::ApiServer || metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(MirrorOwner { name: metadata.name.clone()?, uid: metadata.uid.clone()? })
    }

    fn is_ending(&self, name: &PodFullName) -> bool {
        self.workers.summaries().iter().any(|worker| worker.pod.full_name() == *name)
    }

    async fn create(&self, pod: &Pod) -> Result<(), String> {
        let reference = pod_ref(pod);
        match self.api.namespaced::<Pod>(&reference.namespace).create(pod).await {
            Err(error) if !error.is_already_exists() => Err(error_chain(&error)),
            _ => Ok(()),
        }
    }

    async fn delete(&self, pod: &PodRef) -> Result<(), String> {
        delete_now(&self.api, pod).await.map_err(|error| error_chain(&error))
    }
}
