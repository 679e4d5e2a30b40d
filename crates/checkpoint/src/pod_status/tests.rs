//! The store on a real directory; each "restart" is a new store on it.

use std::os::unix::fs::MetadataExt;

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

struct Node {
    root: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    fn paths(&self) -> NodePaths {
        NodePaths::new(self.root.path(), "/var/log/pods", "/var/log/containers")
    }

    /// A kubelet that has just started.
    fn store(&self) -> PodStatusStore {
        PodStatusStore::new(&self.paths(), Handle::current())
    }

    fn file(&self, uid: &str) -> PathBuf {
        self.root.path().join("pod_statuses").join(uid)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.root.path().join("pod_statuses"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn status(phase: &str, restart_count: i32) -> PodStatus {
    let time = |text: &str| Some(Time(text.parse().unwrap()));
    PodStatus {
        phase: Some(phase.into()),
        start_time: time("2026-01-02T03:04:05Z"),
        conditions: Some(vec![PodCondition {
            type_: "Ready".into(),
            status: "True".into(),
            last_transition_time: time("2026-01-02T03:04:09Z"),
            ..PodCondition::default()
        }]),
        container_statuses: Some(vec![ContainerStatus {
            name: "main".into(),
            container_id: Some("containerd://0123".into()),
            ready: true,
            started: Some(true),
            restart_count,
            ..ContainerStatus::default()
        }]),
        ..PodStatus::default()
    }
}

#[tokio::test]
async fn a_restart_finds_what_was_saved_last() {
    let node = Node::new();
    let uid = PodUid::new("a");
    let store = node.store();
    assert_eq!(store.load(&uid).await, None);
    for count in 0..50 {
        store.save(&uid, &status("Running", count));
        let seen = store.load(&uid).await.unwrap();
        assert_eq!(seen, status("Running", count), "also before it is written");
    }
    store.flush().await;
    assert_eq!(node.store().load(&uid).await, Some(status("Running", 49)));
    assert_eq!(node.names(), ["a"]);
    assert_eq!(fs::metadata(node.file("a")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(node.root.path().join("pod_statuses")).unwrap().mode() & 0o777, 0o700);
}

#[tokio::test]
async fn a_finished_pod_is_remembered_without_its_directory() {
    let node = Node::new();
    let uid = PodUid::new("a");
    fs::create_dir_all(node.paths().pod_dir(&uid)).unwrap();
    let store = node.store();
    store.save(&uid, &status("Succeeded", 0));
    store.flush().await;
    fs::remove_dir(node.paths().pod_dir(&uid)).unwrap();
    assert_eq!(node.store().load(&uid).await, Some(status("Succeeded", 0)));
}

#[tokio::test]
async fn the_same_status_is_not_written_again_not_even_after_a_restart() {
    let node = Node::new();
    let uid = PodUid::new("a");
    let store = node.store();
    store.save(&uid, &status("Running", 1));
    store.flush().await;
    // Every save that writes makes a new file.
    let inode = || fs::metadata(node.file("a")).unwrap().ino();
    let first = inode();
    let keep_inode_taken = fs::File::open(node.file("a")).unwrap();

    store.save(&uid, &status("Running", 1));
    store.flush().await;
    assert_eq!(inode(), first);

    let store = node.store();
    let loaded = store.load(&uid).await.unwrap();
    store.save(&uid, &loaded);
    store.flush().await;
    assert_eq!(inode(), first);

    store.save(&uid, &status("Running", 2));
    store.flush().await;
    assert_ne!(inode(), first);
    drop(keep_inode_taken);
}

#[tokio::test]
async fn a_damaged_status_is_ignored_at_every_length_and_replaced_by_the_next() {
    let node = Node::new();
    let uid = PodUid::new("a");
    let store = node.store();
    store.save(&uid, &status("Running", 1));
    store.flush().await;
    let whole = fs::read(node.file("a")).unwrap();
    for length in 0..whole.len() {
        fs::write(node.file("a"), &whole[..length]).unwrap();
        assert_eq!(node.store().load(&uid).await, None, "{length}");
    }
    let store = node.store();
    assert_eq!(store.load(&uid).await, None);
    store.save(&uid, &status("Running", 1));
    store.flush().await;
    assert_eq!(node.store().load(&uid).await, Some(status("Running", 1)));
    assert_eq!(node.names(), ["a"]);
}

#[tokio::test]
async fn a_status_of_a_newer_version_is_read_as_far_as_we_know_it() {
    let node = Node::new();
    let data = r#"{"phase":"Running","fromTheFuture":{"a":[1]}}"#;
    let file = serde_json::json!({"data": data, "checksum": crate::go_string_checksum(data)});
    fs::create_dir(node.root.path().join("pod_statuses")).unwrap();
    fs::write(node.file("a"), file.to_string()).unwrap();
    let loaded = node.store().load(&PodUid::new("a")).await.unwrap();
    assert_eq!(loaded.phase.as_deref(), Some("Running"));
}

#[tokio::test]
async fn forgotten_is_forgotten_and_may_come_again() {
    let node = Node::new();
    let uid = PodUid::new("a");
    let store = node.store();
    store.save(&uid, &status("Succeeded", 1));
    store.forget(&uid);
    assert_eq!(store.load(&uid).await, None);
    store.flush().await;
    assert_eq!(node.store().load(&uid).await, None);

    store.save(&uid, &status("Pending", 0));
    store.flush().await;
    assert_eq!(node.store().load(&uid).await, Some(status("Pending", 0)));
}

#[tokio::test]
async fn retain_drops_the_pods_that_are_no_more_and_what_a_crash_left() {
    let node = Node::new();
    let before = node.store();
    for uid in ["kept", "gone-before"] {
        before.save(&PodUid::new(uid), &status("Running", 1));
    }
    before.flush().await;
    fs::write(node.file(".half-written"), "{").unwrap();
    fs::create_dir(node.file("not-ours")).unwrap();

    let store = node.store();
    store.save(&PodUid::new("gone-now"), &status("Running", 1));
    let retaining = store.clone();
    tokio::spawn(async move { retaining.retain(|uid| uid.as_str() == "kept").await })
        .await
        .unwrap();
    store.flush().await;
    assert_eq!(node.names(), ["kept", "not-ours"]);
    assert_eq!(store.load(&PodUid::new("kept")).await, Some(status("Running", 1)));
}

#[tokio::test]
async fn retain_on_a_node_without_statuses_does_nothing() {
    let node = Node::new();
    let store = node.store();
    store.retain(|_| false).await;
    store.flush().await;
    assert!(!node.root.path().join("pod_statuses").exists());
}

#[tokio::test]
async fn a_save_that_failed_is_made_up_for_by_flush() {
    let node = Node::new();
    let uid = PodUid::new("a");
    let store = node.store();
    let in_the_way = node.root.path().join("pod_statuses");
    fs::write(&in_the_way, "").unwrap();
    store.save(&uid, &status("Running", 1));
    store.flush().await;
    assert_eq!(node.store().load(&uid).await, None);
    assert_eq!(store.load(&uid).await, Some(status("Running", 1)));

    fs::remove_file(&in_the_way).unwrap();
    store.flush().await;
    assert_eq!(node.store().load(&uid).await, Some(status("Running", 1)));
}

#[tokio::test]
async fn a_uid_that_is_no_file_name_touches_nothing() {
    let node = Node::new();
    fs::write(node.root.path().join("victim"), "precious").unwrap();
    let store = node.store();
    for uid in ["", ".", "..", "../victim", "/etc/passwd", ".hidden", "a\0b"] {
        let uid = PodUid::new(uid);
        store.save(&uid, &status("Running", 1));
        assert_eq!(store.load(&uid).await, None);
        store.forget(&uid);
    }
    store.flush().await;
    assert_eq!(fs::read(node.root.path().join("victim")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(node.root.path()).unwrap().count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_pods_from_many_tasks() {
    let node = Node::new();
    let store = node.store();
    let mut tasks = tokio::task::JoinSet::new();
    for pod in 0..8 {
        let store = store.clone();
        tasks.spawn(async move {
            for count in 0..40 {
                store.save(&PodUid::new(format!("pod-{pod}")), &status("Running", count));
                tokio::task::yield_now().await;
            }
        });
    }
    tasks.join_all().await;
    store.flush().await;
    let after = node.store();
    for pod in 0..8 {
        let loaded = after.load(&PodUid::new(format!("pod-{pod}"))).await;
        assert_eq!(loaded, Some(status("Running", 39)), "{pod}");
    }
    assert_eq!(node.names().len(), 8);
}

#[tokio::test]
async fn a_disk_that_hangs_holds_nobody_who_saves() {
    let node = Node::new();
    let store = node.store();
    // Writers that never come back: all places are taken.
    store.shared.state().writers = WRITERS;
    for count in 0..1000 {
        store.save(&PodUid::new("a"), &status("Running", count));
    }
    assert_eq!(store.shared.state().changes.queued(), 1);
    assert_eq!(store.load(&PodUid::new("a")).await, Some(status("Running", 999)));
    assert!(!node.root.path().join("pod_statuses").exists());
}
