//! One status for each pod, and only what is new counts.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_pod_status::{Gates, IllegalTransition};
use rubelet_status_manager::{SetOutcome, StatusChanges, StatusCounters, StatusManager};
use rubelet_types::{Clock, PodUid};
use serde_json::{Value, json};

fn manager() -> (StatusManager, StatusChanges) {
    let clock = Clock::from_fn(|| Timestamp::from_second(1000).unwrap());
    StatusManager::new(clock, Gates::default())
}

fn pod(uid: &str, policy: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "namespace": "ns", "name": uid},
        "spec": {"restartPolicy": policy, "containers": [{"name": "a"}]},
    }))
    .unwrap()
}

fn status(phase: &str, container: Value) -> PodStatus {
    serde_json::from_value(json!({"phase": phase, "containerStatuses": [{
        "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": container,
    }]}))
    .unwrap()
}

fn running() -> PodStatus {
    status("Running", json!({"running": {"startedAt": "1970-01-01T00:00:01Z"}}))
}

fn ended(phase: &str, code: i32) -> PodStatus {
    status(phase, json!({"terminated": {"exitCode": code}}))
}

#[test]
fn a_version_grows_with_every_change_and_only_then() {
    let (manager, mut changes) = manager();
    let pod = pod("u", "Never");
    assert_eq!(manager.set_status(&pod, running()), SetOutcome::Changed { version: 1 });
    assert_eq!(manager.set_status(&pod, running()), SetOutcome::Unchanged);
    assert_eq!(manager.set_status(&pod, ended("Failed", 1)), SetOutcome::Changed { version: 2 });
    let expected = StatusCounters { changed: 2, unchanged: 1, refused: 0 };
    assert_eq!(manager.counters(), expected);

    let taken = changes.take(|_| true).unwrap();
    assert_eq!((taken.version, taken.status.phase.as_deref()), (2, Some("Failed")));
    assert_eq!(changes.take(|_| true), None, "changes of one pod coalesce");
}

#[test]
fn contradictions_are_refused_and_counted() {
    let (manager, mut changes) = manager();
    let pod = pod("u", "Never");
    manager.set_status(&pod, ended("Running", 1));
    changes.take(|_| true).unwrap();
    assert!(matches!(
        manager.set_status(&pod, running()),
        SetOutcome::Refused(IllegalTransition::ContainerCameBack { .. })
    ));
    manager.set_status(&pod, ended("Failed", 1));
    assert!(matches!(
        manager.set_status(&pod, ended("Succeeded", 1)),
        SetOutcome::Refused(IllegalTransition::PhaseLeftTerminal { .. })
    ));
    assert_eq!(manager.counters().refused, 2);
    let current = manager.status(&PodUid::new("u")).unwrap();
    assert_eq!((current.version, current.status.phase.as_deref()), (2, Some("Failed")));
}

#[test]
fn a_pod_that_had_ended_before_the_start_stays_so() {
    let (manager, _changes) = manager();
    let pod = Pod { status: Some(ended("Succeeded", 0)), ..pod("u", "Always") };
    let outcome = manager.set_status(&pod, running());
    assert!(matches!(outcome, SetOutcome::Refused(IllegalTransition::PhaseLeftTerminal { .. })));
    assert_eq!(manager.status(&PodUid::new("u")), None);
}

#[test]
fn after_a_start_only_what_is_new_is_told() {
    let (manager, mut changes) = manager();
    let known = Pod { status: Some(running()), ..pod("known", "Always") };
    let stale = Pod { status: Some(running()), ..pod("stale", "Always") };
    manager.set_status(&known, running());
    manager.set_status(&stale, ended("Running", 1));
    assert_eq!(changes.take(|_| true).unwrap().pod.uid, PodUid::new("stale"));
    assert_eq!(changes.take(|_| true), None);
    assert!(manager.status(&PodUid::new("known")).is_some());
}

#[test]
fn finishing_completes_the_status_and_tells_it() {
    let (manager, mut changes) = manager();
    let pod = pod("u", "Always");
    manager.set_status(&pod, running());
    changes.take(|_| true).unwrap();
    manager.finish(&pod);
    let last = changes.take(|_| true).unwrap();
    assert!(last.finished);
    assert_eq!(last.status.phase.as_deref(), Some("Failed"));
    let container = &last.status.container_statuses.as_ref().unwrap()[0];
    let end = container.state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("ContainerStatusUnknown")));

    assert_eq!(manager.finish(&pod), SetOutcome::Unchanged, "once is enough");
    let mut again = last.status.clone();
    again.reason = Some("Late".to_owned());
    manager.set_status(&pod, again);
    assert!(manager.status(&PodUid::new("u")).unwrap().finished, "finished is for ever");
}

#[test]
fn finishing_tells_even_if_the_status_was_complete() {
    let (manager, mut changes) = manager();
    let pod = pod("u", "Never");
    manager.set_status(&pod, ended("Succeeded", 0));
    manager.finish(&pod);
    let complete = changes.take(|_| true).unwrap();
    assert_eq!(complete.status.phase.as_deref(), Some("Succeeded"));
    assert!(complete.finished);
}

#[test]
fn resend_tells_again_and_orphans_are_forgotten() {
    let (manager, mut changes) = manager();
    manager.set_status(&pod("a", "Always"), running());
    manager.set_status(&pod("b", "Always"), running());
    while changes.take(|_| true).is_some() {}
    manager.resend(&PodUid::new("a"));
    manager.resend(&PodUid::new("b"));
    manager.resend(&PodUid::new("nobody"));
    assert_eq!(manager.remove_orphans(|uid| uid.as_str() == "a"), 1);
    assert_eq!(changes.take(|_| true).unwrap().pod.uid, PodUid::new("a"));
    assert_eq!(changes.take(|_| true), None);
    assert_eq!(manager.status(&PodUid::new("b")), None);
}

#[test]
fn a_pod_that_comes_back_after_its_end_begins_anew() {
    let (manager, mut changes) = manager();
    let pod = pod("u", "Never");
    manager.set_status(&pod, ended("Failed", 1));
    assert!(matches!(manager.set_status(&pod, running()), SetOutcome::Refused(_)));
    manager.remove(&PodUid::new("u"));
    assert_eq!(changes.take(|_| true), None);
    assert_eq!(manager.set_status(&pod, running()), SetOutcome::Changed { version: 1 });
}

#[test]
fn pods_are_shown_with_the_status_they_have_here() {
    let (manager, _changes) = manager();
    let known = Pod { status: Some(ended("Running", 1)), ..pod("known", "Always") };
    let unknown = Pod { status: Some(ended("Running", 1)), ..pod("unknown", "Always") };
    manager.set_status(&known, running());
    let shown = manager.pods_with_status([&known, &unknown]);
    assert_eq!(shown[0].status, Some(running()));
    assert_eq!(shown[0].spec, known.spec);
    assert_eq!(shown[1], unknown);
}

#[test]
fn where_nobody_listens_nothing_piles_up() {
    let (manager, changes) = manager();
    manager.set_status(&pod("u", "Always"), running());
    drop(changes);
    assert_eq!(
        manager.set_status(&pod("u", "Always"), ended("Running", 1)),
        SetOutcome::Changed { version: 2 }
    );
}
