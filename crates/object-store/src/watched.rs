//! Objects that are watched while some pod refers to them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use rubelet_types::PodUid;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::changed_pods::ChangedPods;
use crate::error::ReadObjectError;
use crate::kind::ReferredObject;
use crate::port::{ObjectApi, Observation};
use crate::settings::ObjectStoreSettings;
use crate::store::ObjectKey;

#[derive(Debug)]
pub(crate) struct WatchedObjects<K> {
    items: Mutex<HashMap<ObjectKey, Item<K>>>,
    changed: ChangedPods,
}

#[derive(Debug)]
struct Item<K> {
    shared: Arc<Shared<K>>,
    /// None when nobody has read the object for a while. Ended when it cannot change any more.
    watch: Option<AbortOnDropHandle<()>>,
    last_read: Instant,
}

#[derive(Debug)]
struct Shared<K> {
    known: watch::Sender<Known<K>>,
    /// Who refers to it.
    pods: Mutex<BTreeSet<PodUid>>,
    /// Somebody gave up waiting for it to be known.
    is_missed: AtomicBool,
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq)]
enum Known<K> {
    /// Nothing yet; with what the server said last.
    Nothing { trouble: Option<String> },
    /// It is this.
    Present(Arc<K>),
    /// It does not exist.
    Absent,
    /// It exists and cannot be understood; says why.
    Undecodable(String),
}

impl<K: ReferredObject> WatchedObjects<K> {
    pub(crate) fn new(changed: ChangedPods) -> Self {
        Self { items: Mutex::default(), changed }
    }

    /// The pod refers to the object, which is watched from now on.
    pub(crate) fn add(&self, api: &impl ObjectApi, key: &ObjectKey, pod: &PodUid) {
        let mut items = self.lock();
        let item = items.entry(key.clone()).or_insert_with(|| {
            let shared = Arc::new(Shared {
                known: watch::Sender::new(Known::Nothing { trouble: None }),
                pods: Mutex::default(),
                is_missed: AtomicBool::new(false),
            });
            let watch = Some(self.watch(api, key, &shared));
            Item { shared, watch, last_read: Instant::now() }
        });
        item.shared.pods().insert(pod.clone());
    }

    /// The pod does not refer to the object any more.
    pub(crate) fn remove(&self, key: &ObjectKey, pod: &PodUid) {
        let mut items = self.lock();
        let Some(item) = items.get(key) else { return };
        let is_unused = {
            let mut pods = item.shared.pods();
            pods.remove(pod);
            pods.is_empty()
        };
        if is_unused {
            items.remove(key);
        }
    }

    pub(crate) async fn get(
        &self,
        api: &impl ObjectApi,
        key: &ObjectKey,
        settings: &ObjectStoreSettings,
    ) -> Result<Arc<K>, ReadObjectError> {
        let shared = {
            let mut items = self.lock();
            let Some(item) = items.get_mut(key) else {
                let ObjectKey { namespace, name } = key.clone();
                return Err(ReadObjectError::NotRegistered { namespace, name });
            };
            item.last_read = Instant::now();
            if item.watch.is_none() {
                item.watch = Some(self.watch(api, key, &item.shared));
            }
            item.shared.clone()
        };
        let mut known = shared.known.subscribe();
        let synced = known.wait_for(|known| !matches!(known, Known::Nothing { .. }));
        let is_synced = matches!(timeout(settings.first_sync, synced).await, Ok(Ok(_)));
        if !is_synced {
            // Before the last look, so that what comes after it is not missed.
            shared.is_missed.store(true, Ordering::SeqCst);
        }
        let known = shared.known.borrow().clone();
        match known {
            Known::Present(object) => Ok(object),
            Known::Absent => {
                Err(ReadObjectError::NotFound { kind: K::KIND, name: key.name.clone() })
            }
            Known::Undecodable(message) => Err(ReadObjectError::Unavailable { message }),
            Known::Nothing { trouble } => {
                Err(ReadObjectError::NotSynced { kind: K::KIND, trouble })
            }
        }
    }

    /// Stops watching what nobody reads, as the objects of environments after their containers have
    /// started. What is known of them goes too.
    pub(crate) fn stop_idle(&self, settings: &ObjectStoreSettings) {
        let now = Instant::now();
        for (key, item) in self.lock().iter_mut() {
            let is_idle = now.duration_since(item.last_read) > settings.max_idle;
            let is_watching = item.watch.as_ref().is_some_and(|watch| !watch.is_finished());
            // A list that is under way would have to be begun anew.
            let is_synced = !matches!(*item.shared.known.borrow(), Known::Nothing { .. });
            if is_idle && is_watching && is_synced {
                tracing::debug!(kind = %K::KIND, object = %key, "Stopped watching what nobody reads");
                item.watch = None;
                item.shared.known.send_replace(Known::Nothing { trouble: None });
            }
        }
    }

    fn watch(
        &self,
        api: &impl ObjectApi,
        key: &ObjectKey,
        shared: &Arc<Shared<K>>,
    ) -> AbortOnDropHandle<()> {
        let observations = api.follow::<K>(&key.namespace, &key.name);
        let (shared, changed, key) = (shared.clone(), self.changed.clone(), key.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let mut observations = observations;
            while let Some(observation) = observations.next().await {
                if shared.take_in(observation, &key, &changed).is_final {
                    tracing::debug!(kind = %K::KIND, object = %key,
                        "Stopped watching what is immutable");
                    return;
                }
            }
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Item<K>>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TakenIn {
    /// The object will not change any more.
    is_final: bool,
}

impl<K: ReferredObject> Shared<K> {
    fn pods(&self) -> MutexGuard<'_, BTreeSet<PodUid>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(
        &self,
        observation: Observation<K>,
        key: &ObjectKey,
        changed: &ChangedPods,
    ) -> TakenIn {
        let mut is_final = false;
        let new = match observation {
            Observation::Present(object) => {
                is_final = object.is_immutable();
                Known::Present(Arc::new(object.slim()))
            }
            Observation::Absent => Known::Absent,
            Observation::Undecodable(why) => Known::Undecodable(why),
            Observation::Interrupted(why) => {
                tracing::debug!(kind = %K::KIND, object = %key, error = why,
                    "What is known of the object may be out of date");
                self.known.send_if_modified(|known| match known {
                    Known::Nothing { trouble } => {
                        *trouble = Some(why);
                        true
                    }
                    // Known is better than nothing.
                    Known::Present(_) | Known::Absent | Known::Undecodable(_) => false,
                });
                return TakenIn { is_final };
            }
        };
        let mut is_news = false;
        self.known.send_if_modified(|known| {
            if *known == new {
                return false;
            }
            is_news = !matches!(known, Known::Nothing { .. });
            *known = new;
            true
        });
        // Whoever waits for the first sight sees it without being told.
        if self.is_missed.swap(false, Ordering::SeqCst) || is_news {
            changed.add(self.pods().iter().cloned());
        }
        TakenIn { is_final }
    }
}
