//! The volume manager on a mount table in memory: failures and hangs that a real kernel does not
//! produce at will.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::Duration;

use rubelet_metrics::{Format, Registry};
use rubelet_volume_manager::{EnsureVolumesError, SubPathMount, TearDownError, VolumeFailure};
use serde_json::json;

use crate::contract;
use crate::fake_mounts::FakeMounts;
use crate::support::{ALLOCATABLE, Node, pod, pod_with};

fn node() -> (Node, FakeMounts) {
    let mounts = FakeMounts::default();
    (Node::new(mounts.clone()), mounts)
}

fn retry_after(error: &EnsureVolumesError) -> u128 {
    error.retry_after().unwrap().as_millis()
}

#[test]
fn the_fake_keeps_the_contract() {
    let temp = tempfile::tempdir().unwrap();
    contract::check(&FakeMounts::default(), temp.path());
}

#[tokio::test]
async fn a_pod_without_used_volumes_needs_nothing() {
    let (node, _) = node();
    let (pod, reference) = pod("u1", json!([]));
    assert!(node.manager.ensure_pod_volumes(&pod).await.unwrap().by_name.is_empty());
    assert!(!node.pod_dir(&reference).exists());
    node.manager.release_pod_volumes(&reference).await.unwrap();
}

#[tokio::test]
async fn unknown_kinds_are_named_and_do_not_hold_up_the_others() {
    let (node, _) = node();
    let (pod, reference) = pod(
        "u1",
        json!([{"name": "a", "emptyDir": {}}, {"name": "b", "glusterfs": {"endpoints": "e", "path": "p"}}]),
    );
    let error = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
    let text = "Unable to attach or mount volumes: unmounted volumes=[b], unattached volumes=[], \
                failed to process volumes=[b]: failed to get Plugin from volumeSpec for volume \
                \"b\" err=no volume plugin matched: glusterfs";
    assert_eq!(error.to_string(), text);
    assert_eq!(error.retry_after(), Some(Duration::from_millis(500)));
    assert_eq!(node.take_events(), [format!("pod-u1 Warning FailedMount {text}")]);
    assert!(node.empty_dir(&reference, "a").is_dir());
}

#[tokio::test]
async fn a_memory_volume_has_the_size_of_the_tightest_bound() {
    let (node, mounts) = node();
    let (pod, reference) = pod(
        "u1",
        json!([
            {"name": "small", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "large", "emptyDir": {"medium": "Memory", "sizeLimit": "1Ti"}},
        ]),
    );
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    assert_eq!(mounts.tmpfs_size(&node.empty_dir(&reference, "small")), Some(1 << 20));
    assert_eq!(mounts.tmpfs_size(&node.empty_dir(&reference, "large")), Some(ALLOCATABLE));
}

#[tokio::test(start_paused = true)]
async fn a_failing_volume_is_tried_with_growing_delays() {
    let (node, mounts) = node();
    mounts.fail_mount(Some(io::ErrorKind::OutOfMemory));
    let (pod, reference) = pod("u1", json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    let event = format!(
        "MountVolume.SetUp failed for volume \"m\" : mount tmpfs on {}: out of memory",
        node.empty_dir(&reference, "m").display()
    );
    for (attempt, delay) in [500, 1000, 2000].into_iter().enumerate() {
        let error = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
        assert_eq!(retry_after(&error), delay);
        assert_eq!(
            error.to_string(),
            format!(
                "Unable to attach or mount volumes: unmounted volumes=[m], unattached \
                 volumes=[], failed to process volumes=[]: {event}"
            )
        );
        assert_eq!(node.take_events(), [format!("pod-u1 Warning FailedMount {event}")]);
        assert_eq!(mounts.mount_attempts(), attempt + 1);

        let failures = node.manager.failures(&reference.uid);
        assert_eq!(failures.keys().collect::<Vec<_>>(), ["m"]);
        assert!(failures["m"].message.contains("out of memory"), "{failures:?}");
        assert_eq!(failures["m"].retry_in.as_millis(), delay);

        let too_early = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
        assert_eq!(too_early.failures.keys().collect::<Vec<_>>(), ["m"]);
        assert!(retry_after(&too_early) <= delay);
        assert_eq!((node.take_events(), mounts.mount_attempts()), (vec![], attempt + 1));
        tokio::time::advance(too_early.retry_after().unwrap()).await;
    }
    mounts.fail_mount(None);
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    assert_eq!(mounts.mount_attempts(), 4);
    assert!(node.manager.failures(&reference.uid).is_empty());
}

#[tokio::test]
async fn an_unmount_that_fails_loses_nothing() {
    // kubernetes#7317: what looked unmounted was deleted.
    let (node, mounts) = node();
    let (pod, reference) = pod("u1", json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let data = node.empty_dir(&reference, "m").join("data");
    fs::write(&data, "kept").unwrap();
    for error in [io::ErrorKind::ResourceBusy, io::ErrorKind::InvalidInput] {
        mounts.fail_unmount(Some(error));
        let error = node.manager.release_pod_volumes(&reference).await.unwrap_err();
        assert!(matches!(error.failures.as_slice(), [TearDownError::Unmount { .. }]), "{error}");
        assert_eq!(fs::read_to_string(&data).unwrap(), "kept");
    }
    mounts.fail_unmount(None);
    node.manager.release_pod_volumes(&reference).await.unwrap();
    assert!(!node.pod_dir(&reference).exists());
}

#[tokio::test]
async fn a_sub_path_that_stays_keeps_its_volume() {
    let (node, mounts) = node();
    let (pod, reference) = pod("u1", json!([{"name": "a", "emptyDir": {}}]));
    let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let sub_path = SubPathMount {
        volume: "a".to_owned(),
        volume_path: volumes.by_name["a"].host_path.clone(),
        container: "app".to_owned(),
        index: 0,
        sub_path: "logs".to_owned(),
    };
    node.manager.prepare_sub_path(&reference, sub_path).await.unwrap();
    let data = node.empty_dir(&reference, "a").join("logs/data");
    fs::write(&data, "kept").unwrap();
    mounts.fail_unmount(Some(io::ErrorKind::ResourceBusy));
    let error = node.manager.release_pod_volumes(&reference).await.unwrap_err();
    assert!(
        matches!(
            error.failures.as_slice(),
            [TearDownError::Unmount { .. }, TearDownError::SubPathsRemain { .. }]
        ),
        "{error}"
    );
    assert_eq!(fs::read_to_string(&data).unwrap(), "kept");
    mounts.fail_unmount(None);
    node.manager.release_pod_volumes(&reference).await.unwrap();
    assert!(!node.pod_dir(&reference).exists());
}

#[tokio::test]
async fn a_removal_that_was_cut_short_is_finished() {
    let (mut node, _) = node();
    let (pod, reference) = pod("u1", json!([{"name": "a", "emptyDir": {}}]));
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let volume = node.empty_dir(&reference, "a");
    fs::write(volume.join("data"), "x").unwrap();
    fs::rename(&volume, volume.with_file_name("deleting~a")).unwrap();
    node.restart();
    node.manager.release_pod_volumes(&reference).await.unwrap();
    assert!(!node.pod_dir(&reference).exists());
}

#[tokio::test]
async fn a_volume_of_an_unknown_plugin_is_left_alone() {
    let (node, mounts) = node();
    let (pod, reference) = pod("u1", json!([{"name": "a", "emptyDir": {}}]));
    node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let pv = node.paths.pod_volume_dir(&reference.uid, "kubernetes.io/csi", "pv");
    fs::create_dir_all(&pv).unwrap();
    fs::write(pv.join("vol_data.json"), "{}").unwrap();
    mounts.mount(&pv, "ext4");
    let error = node.manager.release_pod_volumes(&reference).await.unwrap_err();
    assert!(matches!(error.failures.as_slice(), [TearDownError::UnknownPlugin { .. }]), "{error}");
    assert!(!node.empty_dir(&reference, "a").exists(), "the others are down");
    assert!(pv.join("vol_data.json").exists());

    // Without the mount it is a left-over, yet one with content.
    let pv_path = fs::canonicalize(&pv).unwrap();
    rubelet_volume_manager::MountPort::unmount(&mounts, &pv_path).unwrap();
    let error = node.manager.release_pod_volumes(&reference).await.unwrap_err();
    assert!(matches!(error.failures.as_slice(), [TearDownError::Remove { .. }]), "{error}");
    fs::remove_file(pv.join("vol_data.json")).unwrap();
    node.manager.release_pod_volumes(&reference).await.unwrap();
}

#[tokio::test]
async fn orphans_are_removed_when_they_are_understood() {
    let (mut node, mounts) = node();
    let memory = json!([
        {"name": "a", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}},
    ]);
    let (running, running_ref) = pod("running", memory.clone());
    let (gone, gone_ref) = pod("gone", memory.clone());
    let (new, new_ref) = pod("new", memory);
    node.manager.ensure_pod_volumes(&running).await.unwrap();
    node.manager.ensure_pod_volumes(&gone).await.unwrap();
    // kubernetes#27651: what an interrupted clean-up left.
    let left_over = node.paths.pods_dir().join("left-over");
    fs::create_dir_all(left_over.join("volumes/kubernetes.io~csi/pv/mount")).unwrap();
    fs::create_dir_all(left_over.join("containers/app")).unwrap();
    fs::write(left_over.join("etc-hosts"), "127.0.0.1").unwrap();
    // A mount that nobody can explain.
    let mounted = node.paths.pods_dir().join("mounted");
    fs::create_dir_all(mounted.join("volumes/kubernetes.io~csi/pv/mount")).unwrap();
    fs::create_dir_all(mounted.join("volumes/kubernetes.io~empty-dir/a")).unwrap();
    let pv = mounted.join("volumes/kubernetes.io~csi/pv");
    mounts.mount(&fs::canonicalize(&pv).unwrap(), "ext4");

    node.restart();
    node.manager.ensure_pod_volumes(&new).await.unwrap();
    let keep = HashSet::from([running_ref.uid.clone()]);
    for _ in 0..2 {
        let report = node.manager.clean_orphans(&keep).await.unwrap();
        let left: Vec<_> = report.left.iter().map(|left| left.uid.as_str()).collect();
        assert_eq!(left, ["mounted"]);
    }
    let text = Registry::new().with(node.manager.metrics()).expose(Format::Prometheus);
    for line in
        ["kubelet_orphan_pod_cleaned_volumes 1", "kubelet_orphan_pod_cleaned_volumes_errors 1"]
    {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    assert!(!node.pod_dir(&gone_ref).exists() && !left_over.exists());
    assert_eq!(node.mounts_of(&gone_ref).len(), 0);
    assert!(node.empty_dir(&running_ref, "a").exists());
    assert!(node.empty_dir(&new_ref, "a").exists(), "given volumes by this process");
    assert!(pv.exists() && mounted.join("volumes/kubernetes.io~empty-dir/a").exists());
    assert_eq!(
        node.take_events(),
        ["node Warning OrphanedPodNotCleanedUp orphaned pod \"mounted\" found, but volume \
             \"pv\" is mounted by kubernetes.io~csi, which is not known"],
        "one event, however often it is looked at"
    );
}

#[tokio::test]
async fn files_and_links_among_the_pods_are_nobodys() {
    let (node, _) = node();
    let outside = node.temp.path().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, node.paths.pods_dir().join("link")).unwrap();
    fs::write(node.paths.pods_dir().join("file"), "").unwrap();
    let report = node.manager.clean_orphans(&HashSet::new()).await.unwrap();
    assert!(report.removed.is_empty() && report.left.is_empty());
    assert!(outside.exists());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_hangs_holds_up_its_own_pod_alone() {
    let (node, mounts) = node();
    let memory = json!([
        {"name": "a", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}},
    ]);
    let release = mounts.hang_next_mount();
    let (hung, hung_ref) = pod("hung", memory.clone());
    let waiting = {
        let (manager, hung) = (node.manager.clone(), hung.clone());
        tokio::spawn(async move { manager.ensure_pod_volumes(&hung).await })
    };
    while mounts.mount_attempts() == 0 {
        tokio::task::yield_now().await;
    }
    let (other, other_ref) = pod("other", memory);
    node.manager.ensure_pod_volumes(&other).await.unwrap();
    node.manager.release_pod_volumes(&other_ref).await.unwrap();

    // Paused time stands still while a blocking thread runs, so it is moved by hand.
    for _ in 0..2 {
        tokio::time::advance(Duration::from_secs(123)).await;
        tokio::task::yield_now().await;
    }
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.failures.get("m"), Some(&VolumeFailure::TimedOut));
    assert!(error.to_string().ends_with(
        "unmounted volumes=[m], unattached volumes=[], failed to process volumes=[]: context \
         deadline exceeded"
    ));
    drop(release);
    node.manager.ensure_pod_volumes(&hung).await.unwrap();
    assert_eq!(mounts.mount_attempts(), 2, "the first mount came about after all");
    node.manager.release_pod_volumes(&hung_ref).await.unwrap();
}

#[tokio::test]
async fn a_bad_fs_group_is_a_failure_and_no_panic() {
    let (node, _) = node();
    let (pod, _) = pod_with(
        "u1",
        json!([{"name": "a", "emptyDir": {}}]),
        json!({"securityContext": {"fsGroup": -1}}),
    );
    let error = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
    assert!(error.to_string().ends_with("volume \"a\" : fsGroup -1 is no group id"), "{error}");
}

#[tokio::test]
async fn a_uid_that_leaves_its_directory_is_refused() {
    let (node, _) = node();
    let (pod, reference) = pod("../evil", json!([{"name": "a", "emptyDir": {}}]));
    node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
    node.manager.release_pod_volumes(&reference).await.unwrap_err();
    assert!(!node.temp.path().join("kubelet/evil").exists());
}
