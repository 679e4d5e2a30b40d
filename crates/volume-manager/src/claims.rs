//! Reads the claims that a pod uses, and the volumes behind them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::{NodeSelector, PersistentVolume, Pod};
use rubelet_types::{Fetched, PodRef};
use rubelet_volume_plan::{ClaimObjects, used_claims};
use tokio::time::timeout;

use crate::manager::Inner;

/// An object that could not be read in this time is not waited for.
const READ_LIMIT: Duration = Duration::from_secs(10);

impl Inner {
    /// What the API server says now about the claims that the pod's containers use. Nothing is kept:
    /// once a volume is mounted nobody asks again.
    pub(crate) async fn read_claims(&self, pod: &Pod, reference: &PodRef) -> ClaimObjects {
        let names = used_claims(pod);
        let Some(port) = self.content.claims.as_deref() else {
            let text = || "the kubelet has no API server".to_owned();
            let claims = names.into_iter().map(|name| (name, Fetched::Failed(text())));
            return ClaimObjects { claims: claims.collect(), ..ClaimObjects::default() };
        };
        let namespace = &*reference.namespace;
        let claims = names.into_iter().map(async |name| {
            let claim = within_limit(port.claim(namespace, &name)).await;
            (name, claim)
        });
        let claims = join_all(claims).await.into_iter().collect();
        let mut objects = ClaimObjects { claims, ..ClaimObjects::default() };
        let volumes = objects.bound_volumes().into_iter().map(async |name| {
            let volume = within_limit(port.volume(&name)).await;
            (name, volume)
        });
        objects.volumes = join_all(volumes).await.into_iter().collect();
        objects.elsewhere = objects
            .volumes
            .iter()
            .filter_map(|(name, volume)| match volume {
                Fetched::Found(volume) => required_node(volume).map(|selector| (name, selector)),
                Fetched::NotFound | Fetched::Failed(_) => None,
            })
            .filter(|(_, selector)| !port.is_this_node(selector))
            .map(|(name, _)| name.clone())
            .collect();
        objects
    }
}

/// The nodes that the volume is for, if it is not for all.
fn required_node(volume: &PersistentVolume) -> Option<&NodeSelector> {
    volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()
}

async fn within_limit<T>(read: BoxFuture<'_, Fetched<Arc<T>>>) -> Fetched<Arc<T>> {
    timeout(READ_LIMIT, read)
        .await
        .unwrap_or_else(|_| Fetched::Failed("context deadline exceeded".to_owned()))
}
