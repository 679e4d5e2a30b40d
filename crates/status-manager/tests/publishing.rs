//! The sink hears every last word, whatever it does itself. Time is paused.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_pod_status::Gates;
use rubelet_status_manager::{
    StatusManager, StatusSink, VersionedStatus, WriteOutcome, publish_statuses,
};
use rubelet_types::{Clock, PodUid};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;

#[derive(Debug, thiserror::Error)]
#[error("no connection")]
struct NoConnection;

/// A small API server: it holds objects, and has knobs for what goes wrong.
struct Server {
    state: Mutex<Objects>,
    /// Writes of a pod in `slow` wait for a permit.
    gate: Semaphore,
}

#[derive(Default)]
struct Objects {
    held: BTreeMap<String, String>,
    writes: usize,
    fail: usize,
    slow: BTreeSet<String>,
    later: BTreeSet<String>,
    crash: BTreeSet<String>,
    drifted: BTreeSet<String>,
    under_way: BTreeSet<String>,
    most_at_once: usize,
}

impl Server {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(Objects::default()), gate: Semaphore::new(0) })
    }

    fn with<T>(&self, look: impl FnOnce(&mut Objects) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn reason(&self, uid: &str) -> Option<String> {
        self.with(|objects| objects.held.get(uid).cloned())
    }
}

impl StatusSink for Server {
    type Error = NoConnection;

    async fn write(&self, status: &VersionedStatus) -> Result<WriteOutcome, NoConnection> {
        let uid = status.pod.uid.to_string();
        let slow = self.with(|objects| {
            assert!(!objects.crash.remove(&uid), "the sink crashes");
            assert!(objects.under_way.insert(uid.clone()), "two writes of one pod at once");
            objects.most_at_once = objects.most_at_once.max(objects.under_way.len());
            objects.slow.contains(&uid)
        });
        if slow {
            self.gate.acquire().await.unwrap().forget();
        }
        self.with(|objects| {
            objects.under_way.remove(&uid);
            objects.writes += 1;
            if objects.fail > 0 {
                objects.fail -= 1;
                return Err(NoConnection);
            }
            if objects.later.contains(&uid) {
                return Ok(WriteOutcome::Later);
            }
            if status.finished {
                objects.held.remove(&uid);
                return Ok(WriteOutcome::Deleted);
            }
            objects.drifted.remove(&uid);
            objects.held.insert(uid, status.status.reason.clone().unwrap_or_default());
            Ok(WriteOutcome::Written)
        })
    }

    fn has_drifted(&self, status: &VersionedStatus) -> bool {
        self.with(|objects| objects.drifted.contains(status.pod.uid.as_str()))
    }
}

fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "namespace": "ns", "name": uid},
        "spec": {"containers": [{"name": "a"}]},
    }))
    .unwrap()
}

fn status(reason: &str) -> PodStatus {
    PodStatus {
        phase: Some("Running".to_owned()),
        reason: Some(reason.to_owned()),
        ..Default::default()
    }
}

fn start(server: &Arc<Server>) -> StatusManager {
    let clock = Clock::from_fn(|| Timestamp::from_second(1000).unwrap());
    let (manager, changes) = StatusManager::new(clock, Gates::default());
    tokio::spawn(publish_statuses(changes, Arc::clone(server)));
    manager
}

/// Waits for `holds` with a deadline, and says how long it took.
async fn until(mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(120), "it never came true");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_at_once_and_rest_is_silent() {
    let server = Server::new();
    let manager = start(&server);
    manager.set_status(&pod("u"), status("one"));
    let took = until(|| server.reason("u").as_deref() == Some("one")).await;
    assert!(took < Duration::from_millis(10), "{took:?}");
    manager.set_status(&pod("u"), status("one"));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(server.with(|objects| objects.writes), 1);
}

#[tokio::test(start_paused = true)]
async fn details_are_told_with_what_matters_or_a_second_later() {
    let server = Server::new();
    let manager = start(&server);
    let with_ip =
        |ip: &str, reason: &str| PodStatus { pod_ip: Some(ip.to_owned()), ..status(reason) };
    let writes = || server.with(|objects| objects.writes);
    manager.set_status(&pod("u"), with_ip("10.0.0.1", "one"));
    until(|| writes() == 1).await;

    manager.set_status(&pod("u"), with_ip("10.0.0.2", "one"));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(writes(), 1, "an address alone was told at once");
    // One more detail puts nothing off.
    manager.set_status(&pod("u"), with_ip("10.0.0.3", "one"));
    let took = until(|| writes() == 2).await;
    assert!((450..550).contains(&took.as_millis()), "{took:?}");

    manager.set_status(&pod("u"), with_ip("10.0.0.4", "one"));
    manager.set_status(&pod("u"), with_ip("10.0.0.4", "two"));
    let took = until(|| server.reason("u").as_deref() == Some("two")).await;
    assert!(took < Duration::from_millis(10), "{took:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(writes(), 3);

    manager.set_status(&pod("u"), with_ip("10.0.0.5", "two"));
    manager.finish(&pod("u"));
    let took = until(|| server.reason("u").is_none()).await;
    assert!(took < Duration::from_millis(10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_write_delays_nobody_else_and_meets_the_newest_status_next() {
    let server = Server::new();
    server.with(|objects| objects.slow.insert("slow".to_owned()));
    let manager = start(&server);
    manager.set_status(&pod("slow"), status("0"));
    until(|| server.with(|objects| objects.under_way.contains("slow"))).await;
    let slow = PodUid::new("slow");
    assert_eq!(manager.reached_sink(&slow), Some(false));
    for reason in ["1", "2", "3"] {
        manager.set_status(&pod("slow"), status(reason));
    }
    manager.set_status(&pod("quick"), status("here"));
    let took = until(|| server.reason("quick").is_some()).await;
    assert!(took < Duration::from_millis(10), "{took:?}");
    server.gate.add_permits(2);
    until(|| server.reason("slow").as_deref() == Some("3")).await;
    assert_eq!(server.with(|objects| objects.writes), 3, "versions in between were written");
    until(|| manager.reached_sink(&slow) == Some(true)).await;
    assert_eq!(manager.reached_sink(&PodUid::new("unknown")), None);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_is_given_up_and_tried_again() {
    let server = Server::new();
    server.with(|objects| objects.slow.insert("u".to_owned()));
    let manager = start(&server);
    manager.set_status(&pod("u"), status("one"));
    until(|| server.with(|objects| objects.under_way.contains("u"))).await;
    tokio::time::sleep(Duration::from_secs(29)).await;
    server.with(|objects| {
        objects.slow.clear();
        // The write is dropped at its deadline and cannot say so itself.
        objects.under_way.clear();
    });
    let took = until(|| server.reason("u").is_some()).await;
    assert!(took <= Duration::from_secs(12), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_tried_again_within_ten_seconds() {
    let server = Server::new();
    server.with(|objects| objects.fail = 2);
    let manager = start(&server);
    manager.set_status(&pod("u"), status("one"));
    let took = until(|| server.reason("u").is_some()).await;
    assert!(took <= Duration::from_secs(21), "{took:?}");
    assert_eq!(server.with(|objects| objects.writes), 3);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_crashes_loses_nothing() {
    let server = Server::new();
    server.with(|objects| objects.crash.insert("u".to_owned()));
    let manager = start(&server);
    manager.set_status(&pod("u"), status("one"));
    until(|| server.reason("u").is_some()).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_told_yet_is_told_later() {
    let server = Server::new();
    server.with(|objects| objects.later.insert("static".to_owned()));
    let manager = start(&server);
    manager.set_status(&pod("static"), status("one"));
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(server.reason("static"), None);
    server.with(|objects| objects.later.clear());
    manager.resend(&PodUid::new("static"));
    let took = until(|| server.reason("static").is_some()).await;
    assert!(took < Duration::from_millis(10), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn drift_is_mended() {
    let server = Server::new();
    let manager = start(&server);
    manager.set_status(&pod("u"), status("ours"));
    until(|| server.reason("u").is_some()).await;
    server.with(|objects| {
        objects.held.insert("u".to_owned(), "theirs".to_owned());
        objects.drifted.insert("u".to_owned());
    });
    let took = until(|| server.reason("u").as_deref() == Some("ours")).await;
    assert!(took <= Duration::from_secs(11), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_finished_pod_is_deleted_and_forgotten() {
    let server = Server::new();
    let manager = start(&server);
    manager.set_status(&pod("u"), status("one"));
    until(|| server.reason("u").is_some()).await;
    manager.finish(&pod("u"));
    until(|| server.reason("u").is_none()).await;
    until(|| manager.status(&PodUid::new("u")).is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn many_changes_are_written_with_bounded_haste() {
    let server = Server::new();
    let uids: Vec<String> = (0..200).map(|n| format!("pod-{n:03}")).collect();
    server.with(|objects| objects.slow.extend(uids.iter().cloned()));
    let manager = start(&server);
    for uid in &uids {
        manager.set_status(&pod(uid), status("one"));
    }
    until(|| server.with(|objects| objects.under_way.len() == 16)).await;
    server.gate.add_permits(uids.len());
    until(|| server.with(|objects| objects.held.len() == uids.len())).await;
    assert_eq!(server.with(|objects| objects.most_at_once), 16);
}
