//! Claims at the API server, and the volumes behind them.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, PersistentVolumeClaim};
use rubelet_apiserver::{ApiError, ApiServer};
use rubelet_node_status::NodeHandle;
use rubelet_types::{Fetched, error_chain};
use rubelet_volume_manager::ClaimPort;
use tokio::sync::Semaphore;

use crate::admission::matches_selector;

/// How many claims and volumes are read at once, whatever the number of pods that start.
const READS_AT_ONCE: usize = 10;

/// Reads claims and volumes, and keeps none.
#[derive(Debug)]
pub(crate) struct ApiClaims {
    api: ApiServer,
    node: NodeHandle,
    places: Semaphore,
}

impl ApiClaims {
    pub(crate) fn new(api: ApiServer, node: NodeHandle) -> Self {
        Self { api, node, places: Semaphore::new(READS_AT_ONCE) }
    }

    async fn read<T>(&self, read: impl Future<Output = Result<T, ApiError>>) -> Fetched<Arc<T>> {
        // Closed by nobody.
        let _place = self.places.acquire().await;
        match read.await {
            Ok(object) => Fetched::Found(Arc::new(object)),
            Err(error) if error.is_not_found() => Fetched::NotFound,
            Err(error) => Fetched::Failed(error_chain(&error)),
        }
    }
}

impl ClaimPort for ApiClaims {
    fn claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<PersistentVolumeClaim>>> {
        async move {
            let claims = self.api.namespaced::<PersistentVolumeClaim>(namespace);
            self.read(claims.get(name)).await
        }
        .boxed()
    }

    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Fetched<Arc<PersistentVolume>>> {
        async move {
            let volumes = self.api.cluster::<PersistentVolume>();
            self.read(volumes.get(name)).await
        }
        .boxed()
    }

    fn is_this_node(&self, selector: &NodeSelector) -> bool {
        self.node.current().is_none_or(|published| matches_selector(selector, &published.node))
    }
}
