//! What the API server is told of pods, and when their objects are deleted.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_status_manager::{
    ApiStatusSink, PodStatusApi, StatusObject, StatusSink, VersionedStatus, WriteOutcome,
};
use rubelet_types::{PodRef, pod_ref};
use serde_json::{Value, json};

/// One object at the API server, what the watch has shown of it, and what was asked.
#[derive(Default)]
struct Api {
    held: Option<Pod>,
    shown: Option<Pod>,
    log: Vec<String>,
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Api>>);

impl Server {
    fn with<T>(&self, look: impl FnOnce(&mut Api) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    fn log(&self) -> String {
        self.with(|api| std::mem::take(&mut api.log).join(", "))
    }

    fn watch_catches_up(&self) {
        self.with(|api| api.shown.clone_from(&api.held));
    }
}

impl PodStatusApi for Server {
    type Error = Infallible;

    fn object(&self, _pod: &PodRef) -> StatusObject {
        self.with(|api| match &api.shown {
            Some(pod) => StatusObject::Seen(Arc::new(pod.clone())),
            None => StatusObject::NotYet,
        })
    }

    async fn get(&self, _object: &PodRef) -> Result<Option<Pod>, Infallible> {
        Ok(self.with(|api| {
            api.log.push("get".to_owned());
            api.held.clone()
        }))
    }

    async fn patch_status(
        &self,
        object: &PodRef,
        patch: &Value,
    ) -> Result<Option<Pod>, Infallible> {
        Ok(self.with(|api| {
            assert_eq!(patch["metadata"]["uid"], json!(object.uid.as_str()));
            api.log.push(format!("patch {}", patch["status"]));
            let held = api.held.as_mut().filter(|held| pod_ref(held).uid == object.uid)?;
            let mut status = serde_json::to_value(&held.status).unwrap();
            for (name, value) in patch["status"].as_object().unwrap() {
                status[name] = value.clone();
            }
            held.status = serde_json::from_value(status).unwrap();
            let version: u64 = held.metadata.resource_version.as_ref().unwrap().parse().unwrap();
            held.metadata.resource_version = Some((version + 1).to_string());
            Some(held.clone())
        }))
    }

    async fn delete(&self, object: &PodRef) -> Result<(), Infallible> {
        self.with(|api| {
            api.log.push(format!("delete {}", object.uid));
            api.held = None;
        });
        Ok(())
    }
}

fn pod(uid: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": uid, "resourceVersion": "1"},
        "status": {"phase": "Pending"},
    }))
    .unwrap()
}

fn deleting(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    pod
}

fn status(version: u64, phase: &str, finished: bool) -> VersionedStatus {
    VersionedStatus {
        pod: PodRef::new("u", "ns", "p"),
        version,
        status: PodStatus { phase: Some(phase.to_owned()), ..PodStatus::default() },
        finished,
        pending_since: Timestamp::UNIX_EPOCH,
    }
}

fn server(pod: Pod) -> (Server, ApiStatusSink<Server>) {
    let server = Server::default();
    server.with(|api| api.held = Some(pod));
    server.watch_catches_up();
    (server.clone(), ApiStatusSink::new(server))
}

async fn write(sink: &ApiStatusSink<Server>, status: &VersionedStatus) -> WriteOutcome {
    sink.write(status).await.unwrap()
}

#[tokio::test]
async fn only_differences_are_written_and_nothing_is_read_for_it() {
    let (server, sink) = server(pod("u"));
    assert_eq!(write(&sink, &status(1, "Pending", false)).await, WriteOutcome::Written);
    assert_eq!(server.log(), "");
    assert_eq!(write(&sink, &status(2, "Running", false)).await, WriteOutcome::Written);
    assert_eq!(server.log(), r#"patch {"phase":"Running"}"#);
}

#[tokio::test]
async fn the_end_that_a_mirror_shows_binds_nobody() {
    for (is_mirror, written) in [(false, ""), (true, r#"patch {"phase":"Running","reason":null}"#)]
    {
        let mut refused = pod("u");
        let ended = json!({ "phase": "Failed", "reason": "OutOfcpu" });
        refused.status = Some(serde_json::from_value(ended).unwrap());
        if is_mirror {
            let mark = ("kubernetes.io/config.mirror".to_owned(), "hash".to_owned());
            refused.metadata.annotations = Some([mark].into());
        }
        let (server, sink) = server(refused);
        assert_eq!(sink.has_drifted(&status(1, "Running", false)), is_mirror);
        write(&sink, &status(1, "Running", false)).await;
        assert_eq!(server.log(), written);
    }
}

#[tokio::test]
async fn a_watch_that_is_behind_the_last_write_is_no_base_for_the_next() {
    let (server, sink) = server(pod("u"));
    write(&sink, &status(1, "Running", false)).await;
    // Back to what the watch still shows.
    write(&sink, &status(2, "Pending", false)).await;
    assert_eq!(server.log(), r#"patch {"phase":"Running"}, get, patch {"phase":"Pending"}"#);
    assert!(!sink.has_drifted(&status(2, "Pending", false)));
    server.watch_catches_up();
    assert!(!sink.has_drifted(&status(2, "Pending", false)));
}

#[tokio::test]
async fn what_somebody_else_wrote_over_is_noticed() {
    let (server, sink) = server(pod("u"));
    write(&sink, &status(1, "Running", false)).await;
    server.with(|api| {
        let held = api.held.as_mut().unwrap();
        held.status = Some(PodStatus { phase: Some("Pending".to_owned()), ..Default::default() });
        held.metadata.resource_version = Some("7".to_owned());
    });
    server.watch_catches_up();
    assert!(sink.has_drifted(&status(1, "Running", false)));
}

#[tokio::test]
async fn the_object_goes_when_all_of_the_pod_is_gone_and_not_before() {
    let (server, sink) = server(deleting(pod("u")));
    assert_eq!(write(&sink, &status(1, "Failed", false)).await, WriteOutcome::Written);
    assert_eq!(server.log(), r#"patch {"phase":"Failed"}"#);
    assert_eq!(write(&sink, &status(2, "Failed", true)).await, WriteOutcome::Deleted);
    assert_eq!(server.log(), "get, delete u");

    // Deleted by a user after its end: nothing changes but the deletion timestamp.
    let (server, sink) = self::server(pod("u"));
    assert_eq!(write(&sink, &status(1, "Succeeded", true)).await, WriteOutcome::Written);
    server.watch_catches_up();
    assert!(!sink.has_drifted(&status(1, "Succeeded", true)));
    server.with(|api| api.held = api.held.take().map(deleting));
    server.watch_catches_up();
    assert!(sink.has_drifted(&status(1, "Succeeded", true)));
    assert_eq!(write(&sink, &status(1, "Succeeded", true)).await, WriteOutcome::Deleted);
    assert_eq!(server.log(), r#"patch {"phase":"Succeeded"}, delete u"#);
}

#[tokio::test]
async fn a_pod_of_the_same_name_that_came_later_is_left_alone() {
    let (server, sink) = server(pod("u"));
    server.with(|api| api.held = Some(pod("later")));
    assert_eq!(write(&sink, &status(1, "Running", true)).await, WriteOutcome::Written);
    assert_eq!(server.log(), r#"patch {"phase":"Running"}"#);
    server.with(|api| assert_eq!(api.held, Some(pod("later"))));
}

#[tokio::test]
async fn a_static_pod_waits_for_its_mirror_which_is_never_deleted_for_it() {
    let server = Server::default();
    let sink = ApiStatusSink::new(server.clone());
    assert_eq!(write(&sink, &status(1, "Running", false)).await, WriteOutcome::Later);
    let mut mirror = deleting(pod("mirror"));
    let mark = (rubelet_types::labels::CONFIG_MIRROR.to_owned(), "u".to_owned());
    mirror.metadata.annotations = Some([mark].into());
    server.with(|api| api.held = Some(mirror));
    server.watch_catches_up();
    assert_eq!(write(&sink, &status(2, "Failed", true)).await, WriteOutcome::Written);
    assert_eq!(server.log(), r#"patch {"phase":"Failed"}"#);
}
