use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rubelet_types::PodUid;
use tokio::sync::Notify;

/// The pods that refer to an object which has changed. Clones share everything; each pod is told
/// once, to whoever asks first, however often its objects change meanwhile.
#[derive(Clone, Debug, Default)]
pub struct ChangedPods(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    pods: Mutex<BTreeSet<PodUid>>,
    added: Notify,
}

impl ChangedPods {
    /// Waits until there are some, and takes them.
    pub async fn next(&self) -> BTreeSet<PodUid> {
        loop {
            let pods = std::mem::take(&mut *self.lock());
            if !pods.is_empty() {
                return pods;
            }
            self.0.added.notified().await;
        }
    }

    pub(crate) fn add(&self, pods: impl IntoIterator<Item = PodUid>) {
        self.lock().extend(pods);
        self.0.added.notify_one();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<PodUid>> {
        self.0.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
