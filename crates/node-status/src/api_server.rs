use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use rubelet_apiserver::{ApiError, ApiErrorKind, ApiServer, Objects, Patch, Selector, Store};
use serde_json::Value;
use tokio::sync::watch;

use crate::lease::NAMESPACE;
use crate::{NodeApi, NodeApiError, NodeApiErrorKind};

/// The API server as node status uses it: heartbeats on connections of their own, without limits of
/// rate, and a watch of this one Node.
#[derive(Clone, Debug)]
pub struct ApiServerNodes {
    heartbeats: ApiServer,
    nodes: Objects<Node>,
    leases: Objects<Lease>,
    store: Store<Node>,
}

impl ApiServerNodes {
    /// Speaks to `server`, and watches the Node `name` as long as the future that comes with it is
    /// driven. It never ends.
    pub fn new(server: &ApiServer, name: &str) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let heartbeats = server.heartbeats();
        let (store, keep) = server.general().cluster::<Node>().informer(&Selector::name(name));
        let api = Self {
            nodes: heartbeats.cluster(),
            leases: heartbeats.namespaced(NAMESPACE),
            heartbeats,
            store,
        };
        (api, keep)
    }

    /// The watched Node, for whoever wants to know whether it was ever seen.
    pub fn store(&self) -> &Store<Node> {
        &self.store
    }
}

impl NodeApi for ApiServerNodes {
    fn cached_node(&self, name: &str) -> Option<Arc<Node>> {
        self.store.get("", name)
    }

    fn cache_changes(&self) -> watch::Receiver<u64> {
        self.store.changes()
    }

    async fn get_node(&self, name: &str) -> Result<Node, NodeApiError> {
        self.nodes.get(name).await.map_err(|error| failed("getting node", name, error))
    }

    async fn create_node(&self, node: &Node) -> Result<Node, NodeApiError> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        self.nodes.create(node).await.map_err(|error| failed("creating node", name, error))
    }

    async fn patch_node_status(&self, name: &str, patch: &Value) -> Result<Node, NodeApiError> {
        self.nodes
            .patch_status(name, &Patch::Strategic(patch.clone()))
            .await
            .map_err(|error| failed("patching status of node", name, error))
    }

    async fn get_lease(&self, name: &str) -> Result<Lease, NodeApiError> {
        self.leases.get(name).await.map_err(|error| failed("getting lease", name, error))
    }

    async fn create_lease(&self, lease: &Lease) -> Result<Lease, NodeApiError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        self.leases.create(lease).await.map_err(|error| failed("creating lease", name, error))
    }

    async fn update_lease(&self, lease: &Lease) -> Result<Lease, NodeApiError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        self.leases.update(name, lease).await.map_err(|error| failed("updating lease", name, error))
    }

    fn close_connections(&self) {
        self.heartbeats.close_connections();
    }
}

fn failed(what: &str, name: &str, error: ApiError) -> NodeApiError {
    let kind = match error.kind {
        ApiErrorKind::NotFound => NodeApiErrorKind::NotFound,
        ApiErrorKind::AlreadyExists => NodeApiErrorKind::AlreadyExists,
        ApiErrorKind::Conflict => NodeApiErrorKind::Conflict,
        ApiErrorKind::Forbidden => NodeApiErrorKind::Forbidden,
        ApiErrorKind::Timeout => NodeApiErrorKind::NoAnswer,
        _ => NodeApiErrorKind::Other,
    };
    NodeApiError { what: format!("{what} {name:?}"), kind, source: Box::new(error) }
}
