//! Objects that are read, and kept for a time.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rubelet_types::PodUid;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use crate::error::ReadObjectError;
use crate::kind::ReferredObject;
use crate::port::{Freshness, ObjectApi, ReadFailure};
use crate::store::ObjectKey;

#[derive(Debug)]
pub(crate) struct CachedObjects<K> {
    items: Mutex<HashMap<ObjectKey, Item<K>>>,
}

#[derive(Debug)]
struct Item<K> {
    pods: BTreeSet<PodUid>,
    kept: Arc<AsyncMutex<Kept<K>>>,
    /// Read it anew: somebody new refers to it and may expect it to be newer.
    is_outdated: bool,
}

#[derive(Debug)]
struct Kept<K> {
    /// None if it did not exist.
    last: Option<(Option<Arc<K>>, Instant)>,
}

impl<K> Default for CachedObjects<K> {
    fn default() -> Self {
        Self { items: Mutex::default() }
    }
}

impl<K: ReferredObject> CachedObjects<K> {
    pub(crate) fn add(&self, key: &ObjectKey, pod: &PodUid) {
        let mut items = self.lock();
        let item = items.entry(key.clone()).or_insert_with(|| Item {
            pods: BTreeSet::new(),
            kept: Arc::new(AsyncMutex::new(Kept { last: None })),
            is_outdated: true,
        });
        item.is_outdated = true;
        item.pods.insert(pod.clone());
    }

    pub(crate) fn remove(&self, key: &ObjectKey, pod: &PodUid) {
        let mut items = self.lock();
        let Some(item) = items.get_mut(key) else { return };
        item.pods.remove(pod);
        if item.pods.is_empty() {
            items.remove(key);
        }
    }

    pub(crate) async fn get(
        &self,
        api: &impl ObjectApi,
        key: &ObjectKey,
        ttl: Duration,
    ) -> Result<Arc<K>, ReadObjectError> {
        let (kept, is_outdated) = {
            let mut items = self.lock();
            let Some(item) = items.get_mut(key) else {
                let ObjectKey { namespace, name } = key.clone();
                return Err(ReadObjectError::NotRegistered { namespace, name });
            };
            (item.kept.clone(), std::mem::take(&mut item.is_outdated))
        };
        // One reads, the others wait for what it reads.
        let mut kept = kept.lock().await;
        let now = Instant::now();
        let is_fresh =
            |(_, read_at): &&(_, Instant)| !is_outdated && now.duration_since(*read_at) < ttl;
        let not_found = || ReadObjectError::NotFound { kind: K::KIND, name: key.name.clone() };
        if let Some((object, _)) = kept.last.as_ref().filter(is_fresh) {
            return object.clone().ok_or_else(not_found);
        }
        // Only what was seen before may be as the server's cache has it.
        let was_seen = matches!(&kept.last, Some((Some(_), _)));
        let freshness =
            if was_seen && !is_outdated { Freshness::Cached } else { Freshness::Consistent };
        match api.read::<K>(&key.namespace, &key.name, freshness).await {
            Ok(object) => {
                let object = Arc::new(object.slim());
                kept.last = Some((Some(object.clone()), Instant::now()));
                Ok(object)
            }
            Err(ReadFailure::NotFound) => {
                kept.last = Some((None, Instant::now()));
                Err(not_found())
            }
            Err(ReadFailure::Unavailable(message)) => {
                if is_outdated && let Some(item) = self.lock().get_mut(key) {
                    item.is_outdated = true;
                }
                match &kept.last {
                    Some((Some(object), _)) => Ok(object.clone()),
                    Some((None, _)) | None => Err(ReadObjectError::Unavailable { message }),
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Item<K>>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
