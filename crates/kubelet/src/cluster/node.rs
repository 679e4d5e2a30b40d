//! The Node object for admission.

use std::pin::Pin;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use rubelet_apiserver::ApiServer;
use rubelet_node_status::NodeHandle;

use crate::pod_admission::NodeObject;

/// The Node as node status knows it, and as the API server has it.
#[derive(Debug)]
pub(crate) struct ApiNode {
    pub(crate) api: ApiServer,
    pub(crate) name: String,
    pub(crate) node: NodeHandle,
    /// As it would be created.
    pub(crate) own: Arc<Node>,
}

impl NodeObject for ApiNode {
    fn last_seen(&self) -> Arc<Node> {
        self.node.current().map_or_else(|| Arc::clone(&self.own), |published| published.node)
    }

    fn read(&self) -> Pin<Box<dyn Future<Output = Option<Arc<Node>>> + Send + '_>> {
        Box::pin(async {
            match self.api.cluster::<Node>().get(&self.name).await {
                Ok(node) => Some(Arc::new(node)),
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "The Node object could not be read anew"
                    );
                    None
                }
            }
        })
    }
}
