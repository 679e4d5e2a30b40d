use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::watch;

use crate::node_host_ips;

/// Whose word a published Node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeOrigin {
    /// The kubelet's own: what it would create, or what it runs with alone. Labels and taints that
    /// others have set are not in it.
    Computed,
    /// The API server's.
    ApiServer,
}

/// The Node as the kubelet knows it.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedNode {
    /// The Node.
    pub node: Arc<Node>,
    /// Whose word it is.
    pub origin: NodeOrigin,
}

/// The Node for whoever needs it: admission, the addresses of pods on the host's network, the
/// downward API. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    pub(crate) published: watch::Receiver<Option<PublishedNode>>,
}

impl NodeHandle {
    /// The Node as it is known now; none in the first moments of a start.
    pub fn current(&self) -> Option<PublishedNode> {
        self.published.borrow().clone()
    }

    /// The Node, as soon as there is one. Never, if node status ends before.
    pub async fn node(&self) -> Arc<Node> {
        self.wait_for(|_| true).await
    }

    /// The API server's Node, as soon as it is known. What was given to the node by label there, such
    /// as the right to run some pods, is not known before.
    pub async fn from_api_server(&self) -> Arc<Node> {
        self.wait_for(|published| published.origin == NodeOrigin::ApiServer).await
    }

    async fn wait_for(&self, fits: impl Fn(&PublishedNode) -> bool) -> Arc<Node> {
        let mut published = self.published.clone();
        let found = published.wait_for(|node| node.as_ref().is_some_and(&fits)).await;
        match found.map(|found| found.as_ref().map(|published| published.node.clone())) {
            Ok(Some(node)) => node,
            // Nobody publishes any more.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Waits for the next change.
    pub async fn changed(&mut self) {
        if self.published.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Addresses of pods on the host's network; see [`node_host_ips`].
    pub fn host_ips(&self) -> Vec<IpAddr> {
        self.published.borrow().as_ref().map(|it| node_host_ips(&it.node)).unwrap_or_default()
    }
}
