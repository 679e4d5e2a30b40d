use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

use crate::decode::ObjectKey;
use crate::objects::ApiObject;
use crate::watch::{Event, Watch};

/// Objects at hand: what an informer keeps. Cheap to clone, to ask and to read.
///
/// An object that was understood once, and is not any more, stays as it was last understood.
pub struct Store<K> {
    inner: Arc<Inner<K>>,
}

struct Inner<K> {
    /// By namespace and name.
    objects: RwLock<HashMap<(String, String), Arc<K>>>,
    /// Zero until all objects have been listed once; then counts the changes.
    changes: watch::Sender<u64>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<K> fmt::Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store<{}>({} objects)", std::any::type_name::<K>(), self.len())
    }
}

impl<K> Store<K> {
    pub(crate) fn new() -> Self {
        let objects = RwLock::new(HashMap::new());
        Self { inner: Arc::new(Inner { objects, changes: watch::Sender::new(0) }) }
    }

    /// All objects have been listed at least once.
    pub fn has_synced(&self) -> bool {
        *self.inner.changes.borrow() > 0
    }

    /// Waits for [`has_synced`](Self::has_synced).
    pub async fn synced(&self) {
        let mut changes = self.inner.changes.subscribe();
        // The sender lives in the store itself.
        let _ = changes.wait_for(|changes| *changes > 0).await;
    }

    /// The object; `namespace` is empty for kinds that are in none.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// All objects, in no order.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().values().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number that is 0 until the store has synced, and grows with each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.inner.changes.subscribe()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, HashMap<(String, String), Arc<K>>> {
        self.inner.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<(String, String), Arc<K>>)) {
        change(&mut self.inner.objects.write().unwrap_or_else(PoisonError::into_inner));
        self.inner.changes.send_modify(|changes| *changes += 1);
    }
}

/// Keeps `store` as `watch` says, for ever.
pub(crate) async fn keep<K: ApiObject>(store: Store<K>, mut watch: Watch<K>) {
    loop {
        match watch.next().await {
            Event::Replaced(set) => {
                for bad in &set.undecodable {
                    tell(bad.key.clone(), &bad.error, &K::kind(&()));
                }
                store.change(|objects| {
                    let kept: Vec<_> = set
                        .undecodable
                        .into_iter()
                        .filter_map(|bad| objects.remove_entry(&place(bad.key)))
                        .collect();
                    objects.clear();
                    objects.extend(
                        set.objects.into_iter().map(|object| (of(&object), Arc::new(object))),
                    );
                    objects.extend(kept);
                });
            }
            Event::Applied(object) => {
                store.change(|objects| drop(objects.insert(of(&object), Arc::new(object))));
            }
            Event::Deleted(key) => store.change(|objects| drop(objects.remove(&place(key)))),
            Event::Undecodable(bad) => tell(bad.key, &bad.error, &K::kind(&())),
            Event::Interrupted(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(kind = %K::kind(&()), %error, cause, "what is known may be out of date");
            }
        }
    }
}

fn tell(key: ObjectKey, error: &str, kind: &str) {
    let ObjectKey { namespace, name, uid } = key;
    tracing::warn!(kind, namespace, name, uid, error, "an object cannot be understood");
}

fn place(key: ObjectKey) -> (String, String) {
    (key.namespace, key.name)
}

fn of<K: ApiObject>(object: &K) -> (String, String) {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}
