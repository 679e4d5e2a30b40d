//! When the runtime tells that containers have ended.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use futures_util::StreamExt;
use rubelet_cri::{ContainerEventKind, CriClient, CriOptions};
use rubelet_e2e::Cluster;

use super::node::Node;

/// The runtime tells before the kubelet does, if it does at all.
const PATIENCE: Duration = Duration::from_secs(10);

/// A subscription to the runtime's events, beside the kubelet's own, as long as it lives.
#[derive(Debug)]
pub(super) struct Ends(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    told: Mutex<BTreeMap<String, Instant>>,
    changed: Condvar,
}

impl Ends {
    pub(super) fn watch(node: &Node<'_>) -> anyhow::Result<Self> {
        let cluster: &Cluster = &node.cluster;
        let endpoint = format!("unix://{}", cluster.runtimes()[0].socket().display());
        let client = cluster
            .block_on(async { CriClient::connect_lazy(&endpoint, None, CriOptions::default()) })?;
        let shared = Arc::new(Shared::default());
        let told = Arc::downgrade(&shared);
        cluster.spawn(async move {
            let mut events = pin!(client.container_events());
            while let Some(Ok(event)) = events.next().await {
                let Some(shared) = told.upgrade() else { return };
                if event.kind == ContainerEventKind::Stopped {
                    let mut told = shared.told.lock().unwrap_or_else(PoisonError::into_inner);
                    told.entry(event.id).or_insert_with(Instant::now);
                    shared.changed.notify_all();
                }
            }
        });
        Ok(Self(shared))
    }

    /// When it told of the end of this container.
    pub(super) fn of(&self, container: &str) -> anyhow::Result<Instant> {
        let told = self.0.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (told, _) = self
            .0
            .changed
            .wait_timeout_while(told, PATIENCE, |told| !told.contains_key(container))
            .unwrap_or_else(PoisonError::into_inner);
        told.get(container)
            .copied()
            .with_context(|| format!("the runtime does not tell of the end of {container}"))
    }
}
