//! What pods get from the API server: ConfigMaps, Secrets, tokens, and where services are.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, Node, Pod, Secret, Service, ServiceAccount,
};
use rubelet_apiserver::{ApiServer, Store};
use rubelet_image_manager::{CredentialObjects, ObjectCoordinates, ServiceAccountFacts};
use rubelet_object_store::{ChangedPods, ObjectStore};
use rubelet_pod_runtime::{ApiObjects, referenced_objects};
use rubelet_token_manager::{TokenError, TokenManager, WantedToken};
use rubelet_types::{Fetched, PodRef, PodUid, error_chain, is_static_pod, pod_ref};
use rubelet_volume_manager::ContentPort;
use rubelet_volume_plan::{TokenOutcome, TokenSpec, TrustBundleSpec};
use secrecy::SecretString;
use tokio::time::timeout;

use super::trust_bundles::TrustBundles;

/// How long a container waits for the services to be listed for the first time.
const SERVICES_WAIT: Duration = Duration::from_secs(5);
/// Says how long objects of the cache are taken to be as they were read, in seconds.
const TTL_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// How long tokens live that are shown to credential providers: the API server's own default, in
/// seconds.
const PROVIDER_TOKEN_SECONDS: i64 = 3600;

/// What pods get from the API server.
#[derive(Debug)]
pub(crate) struct PodObjects {
    api: ApiServer,
    objects: ObjectStore<ApiServer>,
    tokens: TokenManager<ApiServer>,
    services: Store<Service>,
    trust_bundles: TrustBundles,
}

impl PodObjects {
    pub(crate) fn new(
        api: ApiServer,
        objects: ObjectStore<ApiServer>,
        tokens: TokenManager<ApiServer>,
        services: Store<Service>,
        trust_bundles: TrustBundles,
    ) -> Self {
        Self { api, objects, tokens, services, trust_bundles }
    }

    /// The pod, in this version, is about to be prepared.
    pub(crate) fn register(&self, pod: &Pod) {
        self.objects.register_pod(pod);
    }

    /// Nothing is left of the pod.
    pub(crate) fn forget(&self, pod: &PodUid) {
        self.objects.unregister_pod(pod);
        self.tokens.forget_pod(pod);
    }

    /// Pods whose objects have changed.
    pub(crate) fn changed_pods(&self) -> ChangedPods {
        self.objects.changed_pods()
    }

    /// Closes watches that nobody needs. Never returns.
    pub(crate) async fn stop_idle_watches(&self) {
        self.objects.stop_idle_watches().await;
    }

    /// Takes in what the Node says about caching.
    pub(crate) fn node_changed(&self, node: &Node) {
        let ttl = node.metadata.annotations.as_ref().and_then(|all| all.get(TTL_ANNOTATION));
        self.objects.set_ttl(ttl.and_then(|ttl| ttl.parse().ok()).map(Duration::from_secs));
    }

    /// What the environment of a container refers to.
    pub(crate) async fn of_environment(&self, pod: &Pod, container: &Container) -> ApiObjects {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let needed = referenced_objects(container);
        let config_maps = join_all(needed.config_maps.into_iter().map(async |name| {
            let found = self.objects.fetch_config_map(namespace, &name).await;
            (name, found)
        }));
        let secrets = join_all(needed.secrets.into_iter().map(async |name| {
            let found = self.objects.fetch_secret(namespace, &name).await;
            (name, found)
        }));
        let (config_maps, secrets, services) =
            tokio::join!(config_maps, secrets, self.services(pod, namespace));
        ApiObjects {
            config_maps: config_maps.into_iter().collect(),
            secrets: secrets.into_iter().collect(),
            services,
        }
    }

    /// The services that the pod may be told of; none while they are not known.
    async fn services(&self, pod: &Pod, namespace: &str) -> Option<Vec<Arc<Service>>> {
        // A static pod may be what serves the API.
        if !is_static_pod(pod) {
            let _ = timeout(SERVICES_WAIT, self.services.synced()).await;
        }
        if !self.services.has_synced() {
            return None;
        }
        let is_near = |service: &Arc<Service>| {
            let home = service.metadata.namespace.as_deref();
            home == Some(namespace) || home == Some("default")
        };
        let mut services = self.services.list();
        services.retain(is_near);
        Some(services)
    }
}

impl CredentialObjects for PodObjects {
    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<Secret>>> {
        self.objects.fetch_secret(namespace, name).boxed()
    }

    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<ServiceAccountFacts, String>> {
        async move {
            let accounts = self.api.namespaced::<ServiceAccount>(namespace);
            let found = accounts.get(name).await.map_err(|error| error_chain(&error))?;
            Ok(ServiceAccountFacts {
                uid: found.metadata.uid.unwrap_or_default(),
                annotations: found.metadata.annotations.unwrap_or_default(),
            })
        }
        .boxed()
    }

    fn service_account_token<'a>(
        &'a self,
        pod: &'a PodRef,
        service_account: &'a ObjectCoordinates,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<SecretString, String>> {
        let wanted = WantedToken {
            pod: pod.clone(),
            service_account: service_account.name.clone(),
            service_account_uid: Some(service_account.uid.clone()),
            audiences: vec![audience.to_owned()],
            expiration_seconds: PROVIDER_TOKEN_SECONDS,
        };
        async move {
            let issued = self.tokens.token(&wanted).await.map_err(|error| error.to_string())?;
            Ok(SecretString::from(&*issued.token))
        }
        .boxed()
    }
}

impl ContentPort for PodObjects {
    fn config_map<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<ConfigMap>>> {
        self.objects.fetch_config_map(namespace, name).boxed()
    }

    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<Secret>>> {
        self.objects.fetch_secret(namespace, name).boxed()
    }

    fn token<'a>(&'a self, pod: &'a Pod, token: &'a TokenSpec) -> BoxFuture<'a, TokenOutcome> {
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let wanted = WantedToken {
            pod: pod_ref(pod),
            service_account: account.unwrap_or_default(),
            service_account_uid: None,
            audiences: token.audience.iter().cloned().collect(),
            expiration_seconds: token.expiration_seconds,
        };
        async move {
            match self.tokens.token(&wanted).await {
                Ok(issued) => TokenOutcome::Issued(issued.token),
                Err(error @ TokenError::Gone { .. }) => TokenOutcome::Refused(error.to_string()),
                Err(error) => TokenOutcome::Failed(error.to_string()),
            }
        }
        .boxed()
    }

    fn trust_bundles<'a>(
        &'a self,
        bundle: &'a TrustBundleSpec,
    ) -> BoxFuture<'a, Fetched<Vec<String>>> {
        self.trust_bundles.read(bundle).boxed()
    }
}
