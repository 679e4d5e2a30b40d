use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{
    ConfigMap, NodeSelector, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
};
use rubelet_types::Fetched;
use rubelet_volume_manager::{ClaimPort, ContentPort};
use rubelet_volume_plan::{TokenOutcome, TokenSpec, TrustBundleSpec};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// A small API server: objects by name, and reads that may be made to wait.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeContent(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    secrets: BTreeMap<String, Arc<Secret>>,
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    volumes: BTreeMap<String, Arc<PersistentVolume>>,
    trust_bundles: BTreeMap<String, String>,
    token: String,
    /// Nothing answers.
    is_down: bool,
    /// Reads of this object wait for a permit, after they have been answered.
    held: Option<(String, Arc<Semaphore>)>,
    reads: usize,
}

impl FakeContent {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Stores a ConfigMap of one key.
    pub(crate) fn set_config_map(&self, name: &str, key: &str, value: &str) {
        let object = serde_json::from_value(json!({"data": {key: value}})).unwrap();
        self.state().config_maps.insert(name.to_owned(), Arc::new(object));
    }

    pub(crate) fn delete_config_map(&self, name: &str) {
        self.state().config_maps.remove(name);
    }

    /// Stores a Secret of one key; `value` is base64.
    pub(crate) fn set_secret(&self, name: &str, key: &str, value: &str) {
        let object = serde_json::from_value(json!({"data": {key: value}})).unwrap();
        self.state().secrets.insert(name.to_owned(), Arc::new(object));
    }

    /// Stores a claim that is bound to a volume of this spec, whose name is `pv-` and the claim's.
    pub(crate) fn set_claim(&self, name: &str, mut volume_spec: Value) {
        let volume = format!("pv-{name}");
        volume_spec["claimRef"] = json!({"uid": name});
        let object = json!({"metadata": {"name": volume}, "spec": volume_spec});
        let object = serde_json::from_value(object).unwrap();
        self.state().volumes.insert(volume, Arc::new(object));
        self.set_claim_phase(name, "Bound");
    }

    /// The claim is in this phase from now on.
    pub(crate) fn set_claim_phase(&self, name: &str, phase: &str) {
        let object = json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"volumeName": format!("pv-{name}")},
            "status": {"phase": phase},
        });
        let object = serde_json::from_value(object).unwrap();
        self.state().claims.insert(name.to_owned(), Arc::new(object));
    }

    /// Tokens are this from now on.
    pub(crate) fn set_token(&self, token: &str) {
        self.state().token = token.to_owned();
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// What is read of `name` arrives when the semaphore has a permit for it.
    pub(crate) fn hold(&self, name: &str) -> Arc<Semaphore> {
        let permits = Arc::new(Semaphore::new(0));
        self.state().held = Some((name.to_owned(), permits.clone()));
        permits
    }

    pub(crate) fn reads(&self) -> usize {
        self.state().reads
    }

    fn read<T: Clone + Send + 'static>(
        &self,
        name: &str,
        find: impl FnOnce(&State) -> Option<T>,
    ) -> BoxFuture<'static, Fetched<T>> {
        let mut state = self.state();
        state.reads += 1;
        let answer = if state.is_down {
            Fetched::Failed("connection refused".to_owned())
        } else {
            find(&state).map_or(Fetched::NotFound, Fetched::Found)
        };
        let held = state.held.as_ref().filter(|(held, _)| held == name);
        let held = held.map(|(_, permits)| permits.clone());
        async move {
            if let Some(permits) = held {
                permits.acquire().await.unwrap().forget();
            }
            answer
        }
        .boxed()
    }
}

impl ContentPort for FakeContent {
    fn config_map<'a>(
        &'a self,
        _namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<ConfigMap>>> {
        self.read(name, |state| state.config_maps.get(name).cloned())
    }

    fn secret<'a>(
        &'a self,
        _namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<Secret>>> {
        self.read(name, |state| state.secrets.get(name).cloned())
    }

    fn token<'a>(&'a self, pod: &'a Pod, token: &'a TokenSpec) -> BoxFuture<'a, TokenOutcome> {
        let state = self.state();
        let outcome = if state.is_down {
            TokenOutcome::Failed("failed to fetch token: connection refused".to_owned())
        } else {
            let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
            let audience = token.audience.as_deref().unwrap_or("api");
            let text = format!("{}:{audience}:{}", account.unwrap_or("-"), state.token);
            TokenOutcome::Issued(text.into())
        };
        async move { outcome }.boxed()
    }

    fn trust_bundles<'a>(
        &'a self,
        bundle: &'a TrustBundleSpec,
    ) -> BoxFuture<'a, Fetched<Vec<String>>> {
        let TrustBundleSpec::Name(name) = bundle else { panic!("{bundle:?}") };
        self.read(name, |state| Some(vec![state.trust_bundles.get(name)?.clone()]))
    }
}

impl FakeContent {
    /// The bundle of this name is this from now on.
    pub(crate) fn set_trust_bundle(&self, name: &str, text: &str) {
        self.state().trust_bundles.insert(name.to_owned(), text.to_owned());
    }
}

impl ClaimPort for FakeContent {
    fn claim<'a>(
        &'a self,
        _namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<PersistentVolumeClaim>>> {
        self.read(name, |state| state.claims.get(name).cloned())
    }

    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Fetched<Arc<PersistentVolume>>> {
        self.read(name, |state| state.volumes.get(name).cloned())
    }

    fn is_this_node(&self, selector: &NodeSelector) -> bool {
        selector
            .node_selector_terms
            .iter()
            .flat_map(|term| term.match_fields.iter().flatten())
            .all(|field| field.values.iter().flatten().any(|name| name == "here"))
    }
}
