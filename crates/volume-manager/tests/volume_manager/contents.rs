//! Volumes that show objects of the API: waiting for them, and keeping up with them.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::PodRef;
use rubelet_volume_manager::VolumeFailure;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fake_mounts::FakeMounts;
use crate::support::{Node, SYNC_FREQUENCY, pod, pod_with};

const CONFIG_MAP: &str = "kubernetes.io/configmap";

fn node() -> Node {
    Node::new(FakeMounts::default())
}

fn config_map(name: &str) -> Value {
    json!([{"name": "c", "configMap": {"name": name}}])
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Waits until a file has this content; time passes only when nothing else is to be done.
async fn until_reads(path: &Path, content: &str) {
    let deadline = Instant::now() + Duration::from_secs(600);
    while read(path) != content {
        assert!(Instant::now() < deadline, "{} is {:?}", path.display(), read(path));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

const MISSING: &str = "MountVolume.SetUp failed for volume \"c\" : configmap \"x\" not found";

#[tokio::test(start_paused = true)]
async fn a_missing_object_is_told_waited_for_and_found_at_once() {
    let node = node();
    let (pod, reference) = pod("u1", config_map("x"));
    let begun = Instant::now();
    let manager = node.manager.clone();
    let waiting = tokio::spawn({
        let pod = pod.clone();
        async move { manager.wait_for_pod_volumes(&pod).await }
    });
    tokio::time::sleep(Duration::from_millis(1600)).await;
    // At 0, 0.5 and 1.5 seconds.
    let event = format!("pod-u1 Warning FailedMount {MISSING}");
    assert_eq!(node.take_events(), vec![event; 3]);
    assert!(!node.volume(&reference, CONFIG_MAP, "c").exists(), "nothing is made for nothing");

    node.content.set_config_map("x", "key", "value");
    node.manager.object_changed(&reference.uid);
    let volumes = waiting.await.unwrap().unwrap();
    // The clock's steps are milliseconds; the next try would have been a second later.
    assert!(begun.elapsed() < Duration::from_millis(1700), "{:?}", begun.elapsed());
    let mounted = &volumes.by_name["c"];
    assert_eq!(mounted.host_path, node.volume(&reference, CONFIG_MAP, "c"));
    assert!(mounted.read_only && mounted.selinux_relabel);
    assert_eq!(read(&mounted.host_path.join("key")), "value");
    assert_eq!(node.take_events(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_appears_while_its_absence_is_noted_is_not_missed() {
    let node = node();
    let (pod, reference) = pod("u1", config_map("x"));
    let held = node.content.hold("x");
    let begun = Instant::now();
    let manager = node.manager.clone();
    let waiting = tokio::spawn({
        let pod = pod.clone();
        async move { manager.wait_for_pod_volumes(&pod).await }
    });
    while node.content.reads() == 0 {
        tokio::task::yield_now().await;
    }
    // The answer "not found" is on its way.
    node.content.set_config_map("x", "key", "value");
    node.manager.object_changed(&reference.uid);
    held.add_permits(2);
    waiting.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_millis(100), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_with_the_summary() {
    let node = node();
    let (pod, reference) = pod("u1", config_map("x"));
    let begun = Instant::now();
    let error = node.manager.wait_for_pod_volumes(&pod).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 123);
    assert!(matches!(
        &error.failures["c"],
        VolumeFailure::SetUpFailed { awaits_object: true, message, .. } if message == MISSING
    ));
    let events = node.take_events();
    let summary = format!(
        "pod-u1 Warning FailedMount Unable to attach or mount volumes: unmounted volumes=[c], \
         unattached volumes=[], failed to process volumes=[]: {MISSING}"
    );
    assert_eq!(events.last(), Some(&summary));
    // Half a second, doubled each time.
    assert_eq!(events.len(), 8 + 1, "{events:?}");
    node.manager.release_pod_volumes(&reference).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn other_failures_are_not_waited_for() {
    let node = node();
    let volumes = json!([{"name": "c", "configMap": {"name": "x", "items": []}},
        {"name": "h", "hostPath": {"path": "/nowhere/at/all", "type": "Directory"}}]);
    node.content.set_config_map("x", "key", "value");
    let (pod, _) = pod("u1", volumes);
    let begun = Instant::now();
    node.manager.wait_for_pod_volumes(&pod).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_does_not_answer_holds_up_nobody_else() {
    let node = node();
    node.content.set_config_map("fast", "key", "value");
    let held = node.content.hold("slow");
    let (slow, slow_reference) = pod("u1", config_map("slow"));
    let (fast, _) = pod("u2", config_map("fast"));
    let begun = Instant::now();
    let manager = node.manager.clone();
    let hanging = tokio::spawn(async move { manager.ensure_pod_volumes(&slow).await });
    tokio::task::yield_now().await;
    node.manager.ensure_pod_volumes(&fast).await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(100));
    let error = hanging.await.unwrap().unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 10);
    assert!(
        error.to_string().ends_with(
            "MountVolume.SetUp failed for volume \"c\" : failed to sync configmap cache: timed \
             out waiting for the condition"
        ),
        "{error}"
    );
    drop(held);
    node.manager.release_pod_volumes(&slow_reference).await.unwrap();
}

fn spawn_updates(node: &Node) -> tokio::task::JoinHandle<()> {
    let manager = node.manager.clone();
    tokio::spawn(async move { manager.keep_contents_fresh().await })
}

#[tokio::test(start_paused = true)]
async fn running_pods_see_changes() {
    let node = node();
    node.content.set_config_map("x", "key", "1");
    node.content.set_token("t1");
    let volumes = json!([
        {"name": "c", "configMap": {"name": "x"}},
        {"name": "p", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token", "audience": "vault"}},
            {"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}]}},
    ]);
    let (pod, reference) = pod_with("u1", volumes, json!({"serviceAccountName": "sa"}));
    let updates = spawn_updates(&node);
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let key = node.volume(&reference, CONFIG_MAP, "c").join("key");
    let projected = node.volume(&reference, "kubernetes.io/projected", "p");
    assert_eq!(read(&projected.join("token")), "sa:vault:t1");

    // At once, if there is news of it.
    node.content.set_config_map("x", "key", "2");
    let begun = Instant::now();
    node.manager.object_changed(&reference.uid);
    until_reads(&key, "2").await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());

    // Without news, by and by.
    node.content.set_config_map("x", "key", "3");
    node.content.set_token("t2");
    until_reads(&key, "3").await;
    until_reads(&projected.join("token"), "sa:vault:t2").await;
    let took = begun.elapsed().as_secs();
    let least = SYNC_FREQUENCY.as_secs();
    assert!((least - 1..=least * 3 / 2 + 1).contains(&took), "{took}");

    let mut relabelled = Pod::clone(&pod);
    relabelled.metadata.labels = Some([("app".to_owned(), "web".to_owned())].into());
    let begun = Instant::now();
    node.manager.update_pod(&Arc::new(relabelled));
    until_reads(&projected.join("labels"), "app=\"web\"").await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());

    // A pod on its way out is left alone.
    node.manager.stop_updates(&reference.uid);
    node.content.delete_config_map("x");
    node.manager.object_changed(&reference.uid);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!((read(&key).as_str(), node.take_events()), ("3", vec![]));
    updates.abort();
}

#[tokio::test(start_paused = true)]
async fn files_stay_while_the_new_ones_cannot_be_told() {
    let node = node();
    node.content.set_config_map("x", "key", "1");
    let (pod, reference) = pod("u1", config_map("x"));
    let updates = spawn_updates(&node);
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let key = node.volume(&reference, CONFIG_MAP, "c").join("key");

    node.content.set_down(true);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!((read(&key).as_str(), node.take_events()), ("1", vec![]), "nobody is told twice");
    node.content.set_down(false);

    node.content.delete_config_map("x");
    node.manager.object_changed(&reference.uid);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(read(&key), "1");
    assert_eq!(node.take_events(), [format!("pod-u1 Warning FailedMount {MISSING}")]);
    node.content.set_config_map("x", "key", "2");
    node.manager.object_changed(&reference.uid);
    until_reads(&key, "2").await;
    updates.abort();
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_files_are_good_enough_until_the_api_server_answers() {
    let mut node = node();
    node.content.set_config_map("x", "key", "1");
    node.content.set_secret("s", "key", "Mg==");
    let volumes = json!([
        {"name": "c", "configMap": {"name": "x"}},
        {"name": "s", "secret": {"secretName": "s"}},
    ]);
    let (pod, reference) = pod("u1", volumes.clone());
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    node.content.set_down(true);
    node.restart();
    node.manager.ensure_pod_volumes(&pod).await.unwrap();

    // And are brought up to date when it does.
    let updates = spawn_updates(&node);
    node.content.set_config_map("x", "key", "changed");
    node.content.set_down(false);
    until_reads(&node.volume(&reference, CONFIG_MAP, "c").join("key"), "changed").await;
    updates.abort();

    // What is known to be gone is gone, and a new pod has no files of before.
    node.content.delete_config_map("x");
    node.restart();
    let error = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
    assert_eq!(error.failures.keys().collect::<Vec<_>>(), ["c"]);
    node.content.set_down(true);
    let (new, _) = crate::support::pod("u2", volumes);
    let error = node.manager.ensure_pod_volumes(&new).await.unwrap_err();
    assert_eq!(error.failures.len(), 2, "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_is_read_too_late_is_not_written_into_what_is_gone() {
    let node = node();
    node.content.set_config_map("x", "key", "1");
    let (pod, reference) = pod("u1", config_map("x"));
    let updates = spawn_updates(&node);
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let held = node.content.hold("x");
    let reads = node.content.reads();
    node.manager.object_changed(&reference.uid);
    while node.content.reads() == reads {
        tokio::task::yield_now().await;
    }
    node.manager.release_pod_volumes(&reference).await.unwrap();
    assert!(!node.pod_dir(&reference).exists());
    held.add_permits(1);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!node.pod_dir(&reference).exists());
    updates.abort();
}

#[tokio::test(start_paused = true)]
async fn volumes_of_the_api_go_with_their_pod() {
    let node = node();
    node.content.set_config_map("x", "key", "1");
    node.content.set_secret("s", "key", "Mg==");
    let (pod, reference): (_, PodRef) = pod(
        "u1",
        json!([
            {"name": "c", "configMap": {"name": "x"}},
            {"name": "s", "secret": {"secretName": "s"}},
            {"name": "d", "downwardAPI": {}},
            {"name": "p", "projected": {}},
        ]),
    );
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    assert_eq!(node.mounts_of(&reference).len(), 3, "all but the ConfigMap's");
    for name in ["c", "s", "d", "p"] {
        let marker = format!("plugins/kubernetes.io~empty-dir/wrapped_{name}/ready");
        assert!(node.pod_dir(&reference).join(marker).is_file(), "{name}");
    }
    node.manager.release_pod_volumes(&reference).await.unwrap();
    assert!(node.mounts_of(&reference).is_empty());
    assert!(!node.pod_dir(&reference).exists());
}

#[tokio::test(start_paused = true)]
async fn what_the_cluster_trusts_is_a_file() {
    let node = node();
    let (pod, reference) = pod(
        "u1",
        json!([{"name": "p", "projected": {"sources": [
            {"clusterTrustBundle": {"name": "all", "path": "ca.pem"}},
            {"clusterTrustBundle": {"name": "none", "path": "none.pem", "optional": true}},
        ]}}]),
    );
    node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
    let [event] = node.take_events().try_into().unwrap();
    assert!(
        event.ends_with(
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"all\" not \
             found"
        ),
        "{event}"
    );
    node.content.set_trust_bundle("all", "-----BEGIN X-----\nAQID\n-----END X-----\n");
    node.manager.object_changed(&reference.uid);
    let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let path = &volumes.by_name["p"].host_path;
    assert_eq!(
        fs::read_to_string(path.join("ca.pem")).unwrap(),
        "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n"
    );
    assert_eq!(fs::read_to_string(path.join("none.pem")).unwrap(), "");
    node.manager.release_pod_volumes(&reference).await.unwrap();
}
