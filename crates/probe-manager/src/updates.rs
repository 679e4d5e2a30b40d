use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rubelet_types::{PodUid, ProbeKind, ProbeUpdate};
use tokio::sync::Notify;

type Key = (PodUid, String, ProbeKind);

/// Changes that nobody has read yet: at most one per probe, the latest. So it is bounded by the
/// number of probes, no sender ever waits, and no reader misses where a result ended up.
#[derive(Debug, Default)]
struct Pending {
    order: VecDeque<Key>,
    updates: HashMap<Key, ProbeUpdate>,
}

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    more: Notify,
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct UpdateSender(Arc<Shared>);

/// The changes of results that probes brought about, in order, the latest of each probe.
#[derive(Debug)]
pub struct ProbeUpdates(Arc<Shared>);

pub(crate) fn updates() -> (UpdateSender, ProbeUpdates) {
    let shared = Arc::new(Shared::default());
    (UpdateSender(shared.clone()), ProbeUpdates(shared))
}

impl UpdateSender {
    pub(crate) fn send(&self, update: ProbeUpdate) {
        let key = (update.pod.clone(), update.container.clone(), update.kind);
        let mut pending = self.0.pending();
        if pending.updates.insert(key.clone(), update).is_none() {
            pending.order.push_back(key);
        }
        drop(pending);
        self.0.more.notify_one();
    }
}

impl ProbeUpdates {
    /// The next change; waits for one. Cancel-safe.
    pub async fn recv(&mut self) -> ProbeUpdate {
        loop {
            if let Some(update) = self.try_recv() {
                return update;
            }
            self.0.more.notified().await;
        }
    }

    /// The next change, if there is one.
    pub fn try_recv(&mut self) -> Option<ProbeUpdate> {
        let mut pending = self.0.pending();
        let key = pending.order.pop_front()?;
        pending.updates.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use rubelet_types::ProbeResult;

    use super::*;

    fn update(container: &str, result: ProbeResult) -> ProbeUpdate {
        ProbeUpdate {
            pod: "uid".into(),
            container: container.to_owned(),
            container_id: "id".into(),
            kind: ProbeKind::Readiness,
            result,
        }
    }

    #[tokio::test]
    async fn the_latest_of_each_probe_arrives() {
        let (sender, mut updates) = updates();
        for _ in 0..1000 {
            sender.send(update("a", ProbeResult::Failure));
            sender.send(update("b", ProbeResult::Success));
            sender.send(update("a", ProbeResult::Success));
        }
        assert_eq!(updates.recv().await, update("a", ProbeResult::Success));
        assert_eq!(updates.recv().await, update("b", ProbeResult::Success));
        assert_eq!(updates.try_recv(), None);
        let waiting = tokio::spawn(async move { updates.recv().await });
        tokio::task::yield_now().await;
        sender.send(update("c", ProbeResult::Failure));
        assert_eq!(waiting.await.unwrap(), update("c", ProbeResult::Failure));
    }
}
