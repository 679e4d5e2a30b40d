use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use rubelet_types::{Fetched, PodUid, pod_ref};
use tokio::time::sleep;

use crate::cached::CachedObjects;
use crate::changed_pods::ChangedPods;
use crate::error::{ReadObjectError, fetched};
use crate::kind::ReferredObject;
use crate::port::{Freshness, ObjectApi, ReadFailure};
use crate::references::{PodReferences, pod_references};
use crate::settings::{ChangeDetection, ObjectStoreSettings};
use crate::watched::WatchedObjects;

/// How often it is looked for watches that nobody needs.
const IDLE_CHECK: Duration = Duration::from_secs(60);

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ObjectKey {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// ConfigMaps and Secrets that pods refer to. Cheap to clone; clones share everything.
///
/// Objects are read for registered pods only ([`ObjectStore::register_pod`]), except with the
/// strategy `Get`. Dropping the last clone ends all watches.
pub struct ObjectStore<A> {
    inner: Arc<Inner<A>>,
}

struct Inner<A> {
    api: A,
    settings: ObjectStoreSettings,
    ttl: Mutex<Duration>,
    config_maps: Strategy<ConfigMap>,
    secrets: Strategy<Secret>,
    pods: Mutex<HashMap<PodUid, Registration>>,
    changed: ChangedPods,
}

struct Registration {
    namespace: String,
    references: PodReferences,
}

enum Strategy<K> {
    Watch(WatchedObjects<K>),
    Cache(CachedObjects<K>),
    Get,
}

impl<A> Clone for ObjectStore<A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

/// Without the objects, which may be secret.
impl<A> fmt::Debug for ObjectStore<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pods = self.inner.pods.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("ObjectStore")
            .field("settings", &self.inner.settings)
            .field("pods", &pods)
            .finish_non_exhaustive()
    }
}

impl<A: ObjectApi> ObjectStore<A> {
    /// A store that reads from `api`. Nothing is read before some pod is registered.
    pub fn new(api: A, settings: ObjectStoreSettings) -> Self {
        let changed = ChangedPods::default();
        Self {
            inner: Arc::new(Inner {
                api,
                settings,
                ttl: Mutex::new(settings.ttl),
                config_maps: Strategy::new(settings.strategy, &changed),
                secrets: Strategy::new(settings.strategy, &changed),
                pods: Mutex::default(),
                changed,
            }),
        }
    }

    /// The pod refers to the objects that its spec names, and to no others any more: those that
    /// nobody else refers to are watched from now on, or not any longer. To be called for a new pod
    /// and for each new version of one, within a Tokio runtime. Never blocks.
    pub fn register_pod(&self, pod: &Pod) {
        let uid = pod_ref(pod).uid;
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let references = pod_references(pod);
        let mut pods = self.pods();
        let inner = &*self.inner;
        // The new ones first, so that what stays is not given up in between.
        let before = pods.remove(&uid).unwrap_or_else(|| Registration {
            namespace: namespace.clone(),
            references: PodReferences::default(),
        });
        for name in references.config_maps.difference(&before.references.config_maps) {
            inner.config_maps.add(&inner.api, &key(&namespace, name), &uid);
        }
        for name in references.secrets.difference(&before.references.secrets) {
            inner.secrets.add(&inner.api, &key(&namespace, name), &uid);
        }
        for name in before.references.config_maps.difference(&references.config_maps) {
            inner.config_maps.remove(&key(&before.namespace, name), &uid);
        }
        for name in before.references.secrets.difference(&references.secrets) {
            inner.secrets.remove(&key(&before.namespace, name), &uid);
        }
        if references != PodReferences::default() {
            pods.insert(uid, Registration { namespace, references });
        }
    }

    /// The pod is gone, and refers to nothing any more. Never blocks.
    pub fn unregister_pod(&self, uid: &PodUid) {
        let mut pods = self.pods();
        let Some(Registration { namespace, references }) = pods.remove(uid) else { return };
        for name in &references.config_maps {
            self.inner.config_maps.remove(&key(&namespace, name), uid);
        }
        for name in &references.secrets {
            self.inner.secrets.remove(&key(&namespace, name), uid);
        }
    }

    /// The ConfigMap.
    ///
    /// # Errors
    /// When it does not exist, or that cannot be told.
    pub async fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<ConfigMap>, ReadObjectError> {
        self.inner.get(&self.inner.config_maps, &key(namespace, name)).await
    }

    /// The Secret.
    ///
    /// # Errors
    /// When it does not exist, or that cannot be told.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Secret>, ReadObjectError> {
        self.inner.get(&self.inner.secrets, &key(namespace, name)).await
    }

    /// As [`ObjectStore::config_map`], in the form that those take in who use it.
    pub async fn fetch_config_map(&self, namespace: &str, name: &str) -> Fetched<Arc<ConfigMap>> {
        fetched(self.config_map(namespace, name).await)
    }

    /// As [`ObjectStore::secret`], in the form that those take in who use it.
    pub async fn fetch_secret(&self, namespace: &str, name: &str) -> Fetched<Arc<Secret>> {
        fetched(self.secret(namespace, name).await)
    }

    /// Pods whose objects have changed, appeared or gone; only with the strategy `Watch`.
    pub fn changed_pods(&self) -> ChangedPods {
        self.inner.changed.clone()
    }

    /// How long objects of the strategy `Cache` are taken to be as they were read: what the node's
    /// annotation `node.alpha.kubernetes.io/ttl` says; none for the default.
    pub fn set_ttl(&self, ttl: Option<Duration>) {
        *self.inner.ttl.lock().unwrap_or_else(PoisonError::into_inner) =
            ttl.unwrap_or(self.inner.settings.ttl);
    }

    /// Closes watches of objects that nobody has read for a while. Never returns; to be run once.
    pub async fn stop_idle_watches(&self) {
        loop {
            sleep(IDLE_CHECK).await;
            if let Strategy::Watch(objects) = &self.inner.config_maps {
                objects.stop_idle(&self.inner.settings);
            }
            if let Strategy::Watch(objects) = &self.inner.secrets {
                objects.stop_idle(&self.inner.settings);
            }
        }
    }

    fn pods(&self) -> MutexGuard<'_, HashMap<PodUid, Registration>> {
        self.inner.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: ObjectApi> Inner<A> {
    async fn get<K: ReferredObject>(
        &self,
        strategy: &Strategy<K>,
        key: &ObjectKey,
    ) -> Result<Arc<K>, ReadObjectError> {
        match strategy {
            Strategy::Watch(objects) => objects.get(&self.api, key, &self.settings).await,
            Strategy::Cache(objects) => {
                let ttl = *self.ttl.lock().unwrap_or_else(PoisonError::into_inner);
                objects.get(&self.api, key, ttl).await
            }
            Strategy::Get => {
                let read =
                    self.api.read::<K>(&key.namespace, &key.name, Freshness::Consistent).await;
                match read {
                    Ok(object) => Ok(Arc::new(object.slim())),
                    Err(ReadFailure::NotFound) => {
                        Err(ReadObjectError::NotFound { kind: K::KIND, name: key.name.clone() })
                    }
                    Err(ReadFailure::Unavailable(message)) => {
                        Err(ReadObjectError::Unavailable { message })
                    }
                }
            }
        }
    }
}

impl<K: ReferredObject> Strategy<K> {
    fn new(strategy: ChangeDetection, changed: &ChangedPods) -> Self {
        match strategy {
            ChangeDetection::Watch => Self::Watch(WatchedObjects::new(changed.clone())),
            ChangeDetection::Cache => Self::Cache(CachedObjects::default()),
            ChangeDetection::Get => Self::Get,
        }
    }

    fn add(&self, api: &impl ObjectApi, key: &ObjectKey, pod: &PodUid) {
        match self {
            Self::Watch(objects) => objects.add(api, key, pod),
            Self::Cache(objects) => objects.add(key, pod),
            Self::Get => {}
        }
    }

    fn remove(&self, key: &ObjectKey, pod: &PodUid) {
        match self {
            Self::Watch(objects) => objects.remove(key, pod),
            Self::Cache(objects) => objects.remove(key, pod),
            Self::Get => {}
        }
    }
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }
}
