//! The pods that the sources want, as one published view.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{PodUid, pod_ref};

/// All desired pods by uid. One owner writes (the sync handler), everybody may read.
#[derive(Debug, Default)]
pub(crate) struct DesiredPods(Mutex<HashMap<PodUid, Arc<Pod>>>);

impl DesiredPods {
    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Arc<Pod>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, pod: &Arc<Pod>) {
        self.lock().insert(pod_ref(pod).uid, pod.clone());
    }

    pub(crate) fn remove(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    pub(crate) fn contains(&self, uid: &PodUid) -> bool {
        self.lock().contains_key(uid)
    }

    /// All of them, in the order of their full names.
    pub(crate) fn all(&self) -> Vec<Arc<Pod>> {
        let mut pods: Vec<_> = self.lock().values().cloned().collect();
        pods.sort_by_cached_key(|pod| pod_ref(pod).full_name());
        pods
    }
}
