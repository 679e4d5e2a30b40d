use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::timeout;

/// What kind of failure a request met, as far as somebody acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeApiErrorKind {
    /// There is no such object.
    NotFound,
    /// There is such an object already.
    AlreadyExists,
    /// The object has changed since it was read.
    Conflict,
    /// This kubelet may not do that.
    Forbidden,
    /// Nothing came back in time: the connection may lead nowhere.
    NoAnswer,
    /// Anything else.
    Other,
}

/// A request to the API server that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct NodeApiError {
    /// What was tried, such as `getting node n1`.
    pub what: String,
    /// The kind of failure.
    pub kind: NodeApiErrorKind,
    /// What the server or the connection said.
    #[source]
    pub source: Box<dyn Error + Send + Sync>,
}

impl NodeApiError {
    /// There is no such object.
    pub fn is_not_found(&self) -> bool {
        self.kind == NodeApiErrorKind::NotFound
    }
}

/// What node status needs from the API server. Requests need no deadline of their own.
pub trait NodeApi: Send + Sync + 'static {
    /// The Node as a watch of it shows it; none while it is not known, or does not exist.
    fn cached_node(&self, name: &str) -> Option<Arc<Node>>;

    /// Counts up with each change of [`NodeApi::cached_node`].
    fn cache_changes(&self) -> watch::Receiver<u64>;

    /// The Node as it is.
    fn get_node(&self, name: &str) -> impl Future<Output = Result<Node, NodeApiError>> + Send;

    /// Creates a Node.
    fn create_node(&self, node: &Node) -> impl Future<Output = Result<Node, NodeApiError>> + Send;

    /// Applies a strategic merge patch to `nodes/status`.
    fn patch_node_status(
        &self,
        name: &str,
        patch: &Value,
    ) -> impl Future<Output = Result<Node, NodeApiError>> + Send;

    /// A lease of the namespace `kube-node-lease`.
    fn get_lease(&self, name: &str) -> impl Future<Output = Result<Lease, NodeApiError>> + Send;

    /// Creates a lease.
    fn create_lease(
        &self,
        lease: &Lease,
    ) -> impl Future<Output = Result<Lease, NodeApiError>> + Send;

    /// Replaces a lease, if it is still the version that `lease` names.
    fn update_lease(
        &self,
        lease: &Lease,
    ) -> impl Future<Output = Result<Lease, NodeApiError>> + Send;

    /// Heartbeats fail one after another: the connections may lead nowhere, and are to be given up.
    fn close_connections(&self);
}

/// Nothing came back.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
struct NoAnswer(Duration);

/// A request with a deadline: a connection that leads nowhere is noticed by that alone.
pub(crate) async fn within<T>(
    deadline: Duration,
    request: impl Future<Output = Result<T, NodeApiError>>,
) -> Result<T, NodeApiError> {
    timeout(deadline, request).await.unwrap_or_else(|_| {
        Err(NodeApiError {
            what: "request to the API server".to_owned(),
            kind: NodeApiErrorKind::NoAnswer,
            source: Box::new(NoAnswer(deadline)),
        })
    })
}
