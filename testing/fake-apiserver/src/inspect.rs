//! What tests see and do without a request.

use rubelet_apiserver::ApiObject;
use serde_json::Value;

use crate::kinds::{KINDS, Kind};
use crate::server::FakeApiServer;
use crate::storage::Key;

impl FakeApiServer {
    /// The object, if there is one and it can be understood.
    pub fn get<K: ApiObject>(&self, namespace: &str, name: &str) -> Option<K> {
        let object = self.inner.storage().get(&key::<K>(namespace, name))?;
        serde_json::from_value((*object).clone()).ok()
    }

    /// All objects of a kind that can be understood.
    pub fn list<K: ApiObject>(&self) -> Vec<K> {
        let objects = self.inner.storage().list(kind::<K>(), None);
        objects
            .iter()
            .filter_map(|object| serde_json::from_value((**object).clone()).ok())
            .collect()
    }

    /// Keeps the object as it is, status included, in place of one of the same name. A uid and a
    /// namespace are given to it if it has none.
    pub fn put<K: ApiObject>(&self, object: &K) -> K {
        let value = serde_json::to_value(object).expect("API objects can be written as JSON");
        let kept = self.put_value(kind::<K>(), value);
        serde_json::from_value(kept).expect("it was written from this type")
    }

    /// The same with an object that may be anything: `resource` is the plural name of its kind.
    ///
    /// # Panics
    ///
    /// If there is no such kind.
    pub fn put_raw(&self, resource: &str, object: Value) {
        let kind = KINDS.iter().find(|kind| kind.plural == resource).expect("a kind that is kept");
        self.put_value(kind, object);
    }

    fn put_value(&self, kind: &'static Kind, mut object: Value) -> Value {
        if let Some(object) = object.as_object_mut() {
            object.remove("kind");
            object.remove("apiVersion");
        }
        let mut storage = self.inner.storage();
        if kind.is_namespaced && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let key = Key { plural: kind.plural, namespace: text("namespace"), name: text("name") };
        if object["metadata"]["uid"].is_null() {
            let old = storage.get(&key).map(|old| old["metadata"]["uid"].clone());
            object["metadata"]["uid"] = old.unwrap_or_else(|| storage.next_uid().into());
        }
        if object["metadata"]["creationTimestamp"].is_null() {
            object["metadata"]["creationTimestamp"] =
                crate::pods::timestamp(self.inner.clock.now());
        }
        let kept = storage.put(key, object);
        drop(storage);
        self.inner.tell_watches();
        (*kept).clone()
    }

    /// Changes the object in place, if it is there. Says whether it is.
    pub fn change<K: ApiObject>(
        &self,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut K),
    ) -> bool {
        let Some(mut object) = self.get::<K>(namespace, name) else { return false };
        change(&mut object);
        self.put(&object);
        true
    }

    /// Removes the object at once. Says whether it was there.
    pub fn remove<K: ApiObject>(&self, namespace: &str, name: &str) -> bool {
        let was_there = self.inner.storage().remove(&key::<K>(namespace, name)).is_some();
        self.inner.tell_watches();
        was_there
    }
}

fn kind<K: ApiObject>() -> &'static Kind {
    let plural = K::plural(&());
    KINDS.iter().find(|kind| kind.plural == plural).expect("a kind that is kept")
}

fn key<K: ApiObject>(namespace: &str, name: &str) -> Key {
    let kind = kind::<K>();
    let namespace = if kind.is_namespaced { namespace.to_owned() } else { String::new() };
    Key { plural: kind.plural, namespace, name: name.to_owned() }
}
