use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::stream::{self, BoxStream, StreamExt};
use rubelet_object_store::{Freshness, ObjectApi, Observation, ReadFailure, ReferredObject};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Objects by kind, namespace and name; watches see every state that is there when they look.
#[derive(Clone, Debug)]
pub(crate) struct FakeApi(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    version: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Value>,
    reads: Vec<(String, Freshness)>,
    /// Why nothing answers.
    down: Option<String>,
    /// Watches are opened and say nothing.
    silent: bool,
    watches: Vec<String>,
}

/// Open as long as somebody follows the object.
struct OpenWatch {
    shared: Arc<Shared>,
    key: String,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap();
        let place = state.watches.iter().position(|key| *key == self.key).unwrap();
        state.watches.remove(place);
    }
}

impl FakeApi {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared { state: Mutex::default(), version: watch::Sender::new(0) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn changed(&self) {
        self.0.version.send_modify(|version| *version += 1);
    }

    /// Stores a ConfigMap of namespace `ns`.
    pub(crate) fn set(&self, name: &str, mut object: Value) {
        object["metadata"]["name"] = name.into();
        object["metadata"]["namespace"] = "ns".into();
        self.state().objects.insert(format!("ConfigMap/ns/{name}"), object);
        self.changed();
    }

    pub(crate) fn set_data(&self, name: &str, value: &str) {
        self.set(name, json!({"data": {"key": value}}));
    }

    pub(crate) fn delete(&self, name: &str) {
        self.state().objects.remove(&format!("ConfigMap/ns/{name}"));
        self.changed();
    }

    pub(crate) fn set_down(&self, why: Option<&str>) {
        self.state().down = why.map(str::to_owned);
        self.changed();
    }

    pub(crate) fn set_silent(&self, silent: bool) {
        self.state().silent = silent;
        self.changed();
    }

    /// What is being followed.
    pub(crate) fn watches(&self) -> Vec<String> {
        let mut watches = self.state().watches.clone();
        watches.sort();
        watches
    }

    pub(crate) fn take_reads(&self) -> Vec<(String, Freshness)> {
        std::mem::take(&mut self.state().reads)
    }
}

fn key<K: ReferredObject>(namespace: &str, name: &str) -> String {
    format!("{}/{namespace}/{name}", K::KIND)
}

impl ObjectApi for FakeApi {
    async fn read<K: ReferredObject>(
        &self,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<K, ReadFailure> {
        tokio::task::yield_now().await;
        let mut state = self.state();
        let key = key::<K>(namespace, name);
        state.reads.push((key.clone(), freshness));
        if let Some(why) = &state.down {
            return Err(ReadFailure::Unavailable(why.clone()));
        }
        match state.objects.get(&key) {
            Some(object) => Ok(serde_json::from_value(object.clone()).unwrap()),
            None => Err(ReadFailure::NotFound),
        }
    }

    fn follow<K: ReferredObject>(
        &self,
        namespace: &str,
        name: &str,
    ) -> BoxStream<'static, Observation<K>> {
        let key = key::<K>(namespace, name);
        self.state().watches.push(key.clone());
        let open = OpenWatch { shared: self.0.clone(), key };
        let mut versions = self.0.version.subscribe();
        versions.mark_changed();
        let unfolded = stream::unfold((open, versions), async |(open, mut versions)| {
            loop {
                versions.changed().await.ok()?;
                let observation = {
                    let state = open.shared.state.lock().unwrap();
                    if state.silent {
                        continue;
                    }
                    match (&state.down, state.objects.get(&open.key)) {
                        (Some(why), _) => Observation::Interrupted(why.clone()),
                        (None, Some(object)) => match serde_json::from_value::<K>(object.clone()) {
                            Ok(object) => Observation::Present(object),
                            Err(error) => Observation::Undecodable(error.to_string()),
                        },
                        (None, None) => Observation::Absent,
                    }
                };
                return Some((observation, (open, versions)));
            }
        });
        unfolded.boxed()
    }
}
