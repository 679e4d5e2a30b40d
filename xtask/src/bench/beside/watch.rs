//! What the API server says of the pods of a namespace, with the moment in which it says so.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use rubelet_control_plane::Client;
use rubelet_e2e::{Cluster, PodView};
use serde_json::Value;

use crate::interrupt::Interrupt;

/// How often somebody who waits looks whether he is to give up.
const LOOK: Duration = Duration::from_millis(100);

/// A pod, and when things were first seen of it.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) pod: PodView,
    pub(super) added: Instant,
    pub(super) ready: Option<Instant>,
    pub(super) over: Option<Instant>,
}

/// Everything that was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) pods: BTreeMap<String, Watched>,
    /// How often a pod was written.
    pub(super) writes: u64,
    /// How often a pod that was ready became not ready.
    pub(super) flips: u64,
    broken: Option<String>,
}

impl Seen {
    fn take_in(&mut self, event: &Value) {
        let now = Instant::now();
        let pod = PodView::from_pod(&event["object"]);
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => {
                let is_over = pod.phase == "Succeeded" || pod.phase == "Failed";
                let is_ready = pod.ready;
                match self.pods.get_mut(&pod.name) {
                    Some(known) if known.pod.uid == pod.uid => {
                        self.writes += 1;
                        self.flips += u64::from(known.pod.ready && !is_ready && !is_over);
                        known.pod = pod;
                        known.ready = known.ready.or(is_ready.then_some(now));
                        known.over = known.over.or(is_over.then_some(now));
                    }
                    _ => {
                        let watched = Watched {
                            added: now,
                            ready: is_ready.then_some(now),
                            over: is_over.then_some(now),
                            pod,
                        };
                        self.pods.insert(watched.pod.name.clone(), watched);
                    }
                }
            }
            Some("DELETED") => {
                self.pods.remove(&pod.name);
            }
            _ => self.broken = Some(event.to_string()),
        }
    }

    /// The ids of a pod's containers.
    pub(super) fn containers_of(&self, name: &str) -> Vec<String> {
        let containers = self.pods.get(name).into_iter().flat_map(|one| &one.pod.containers);
        containers.map(|container| container.id.clone()).collect()
    }

    /// The ids of all containers.
    pub(super) fn containers(&self) -> Vec<String> {
        let pods = self.pods.values().flat_map(|watched| &watched.pod.containers);
        pods.map(|container| container.id.clone()).collect()
    }
}

/// A watch that goes on until it is dropped.
#[derive(Debug)]
pub(super) struct PodWatch(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    seen: Mutex<Seen>,
    changed: Condvar,
    is_dropped: std::sync::atomic::AtomicBool,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PodWatch {
    pub(super) fn start(cluster: &Cluster, client: Client, namespace: &str) -> Self {
        let shared = Arc::new(Shared::default());
        let path = format!("/api/v1/namespaces/{namespace}/pods?watch=true&timeoutSeconds=86400");
        let told = Arc::clone(&shared);
        cluster.spawn(async move {
            let ended = client
                .watch(&path, |event| {
                    if told.is_dropped.load(std::sync::atomic::Ordering::Relaxed) {
                        return ControlFlow::Break(());
                    }
                    told.seen().take_in(&event);
                    told.changed.notify_all();
                    ControlFlow::Continue(())
                })
                .await;
            let why = ended.map_or_else(|error| format!("{error:#}"), |()| "it ended".to_owned());
            told.seen().broken.get_or_insert(why);
            told.changed.notify_all();
        });
        Self(shared)
    }

    /// What was seen until now.
    pub(super) fn look<T>(&self, of: impl FnOnce(&mut Seen) -> T) -> T {
        of(&mut self.0.seen())
    }

    /// Waits until `found` finds something in what was seen.
    pub(super) fn wait<T>(
        &self,
        what: &str,
        timeout: Duration,
        interrupt: &Interrupt,
        mut found: impl FnMut(&Seen) -> Option<T>,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + timeout;
        let mut seen = self.0.seen();
        loop {
            if let Some(found) = found(&seen) {
                return Ok(found);
            }
            if let Some(why) = &seen.broken {
                bail!("the watch of pods broke: {why}");
            }
            if Instant::now() >= deadline {
                let states = seen
                    .pods
                    .values()
                    .map(|one| format!("{} {}", one.pod.name, one.pod.raw["status"]));
                bail!(
                    "waited {timeout:?} for {what}: {}",
                    states.take(3).collect::<Vec<_>>().join("\n")
                );
            }
            interrupt.check()?;
            let waited = self.0.changed.wait_timeout(seen, LOOK);
            seen = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for PodWatch {
    fn drop(&mut self) {
        self.0.is_dropped.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: &str, ready: &str, phase: &str) -> Value {
        json!({ "type": kind, "object": {
            "metadata": { "name": "a", "uid": "u" },
            "status": { "phase": phase, "conditions": [{ "type": "Ready", "status": ready }] },
        } })
    }

    #[test]
    fn a_pod_that_ends_does_not_flip_and_one_that_runs_does() {
        let mut seen = Seen::default();
        for (kind, ready, phase) in [
            ("ADDED", "False", "Pending"),
            ("MODIFIED", "True", "Running"),
            ("MODIFIED", "False", "Running"),
            ("MODIFIED", "True", "Running"),
            ("MODIFIED", "False", "Succeeded"),
        ] {
            seen.take_in(&event(kind, ready, phase));
        }
        assert_eq!((seen.writes, seen.flips), (4, 1));
        assert!(seen.pods["a"].over.is_some());
        seen.take_in(&event("DELETED", "False", "Succeeded"));
        assert!(seen.pods.is_empty() && seen.broken.is_none());
        seen.take_in(&json!({ "type": "ERROR" }));
        assert!(seen.broken.is_some());
    }
}
