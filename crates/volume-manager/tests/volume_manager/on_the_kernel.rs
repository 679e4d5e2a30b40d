//! The volume manager on real mounts. Each test has a process and a mount namespace of its own.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

use rubelet_types::PodRef;
use rubelet_volume_manager::{HostMounts, MountedVolume, SubPathMount, TearDownError};
use rubelet_volume_plan::VolumePlugin;
use serde_json::json;

use crate::contract;
use crate::support::{Node, in_private_mount_namespace, pod, pod_with};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn sub_path(volume: &str, volume_path: &Path, sub_path: &str) -> SubPathMount {
    SubPathMount {
        volume: volume.to_owned(),
        volume_path: volume_path.to_owned(),
        container: "app".to_owned(),
        index: 0,
        sub_path: sub_path.to_owned(),
    }
}

#[test]
fn host_mounts_keep_the_contract() {
    in_private_mount_namespace("on_the_kernel::host_mounts_keep_the_contract", || async {
        let temp = tempfile::tempdir().unwrap();
        contract::check(&HostMounts, temp.path());
    });
}

#[test]
fn an_empty_dir_on_disk_lives_and_dies_with_its_pod() {
    let name = "on_the_kernel::an_empty_dir_on_disk_lives_and_dies_with_its_pod";
    in_private_mount_namespace(name, || async {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let mut node = Node::new(HostMounts);
        let (pod, reference) = pod("u1", json!([{"name": "a", "emptyDir": {}}]));
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let path = node.empty_dir(&reference, "a");
        assert_eq!(
            volumes.by_name["a"],
            MountedVolume {
                spec_name: "a".to_owned(),
                host_path: path.clone(),
                read_only: false,
                plugin: VolumePlugin::EmptyDir,
                selinux_relabel: true,
            }
        );
        assert_eq!(mode(&path), 0o777, "whatever the umask");
        let marker = node.pod_dir(&reference).join("plugins/kubernetes.io~empty-dir/a/ready");
        assert!(marker.is_file());

        fs::write(path.join("data"), "kept").unwrap();
        node.restart();
        assert_eq!(node.manager.ensure_pod_volumes(&pod).await.unwrap(), volumes);
        assert_eq!(fs::read_to_string(path.join("data")).unwrap(), "kept");

        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
        node.manager.release_pod_volumes(&reference).await.unwrap();
    });
}

#[test]
fn fs_group_owns_empty_dirs_and_no_host_paths() {
    let name = "on_the_kernel::fs_group_owns_empty_dirs_and_no_host_paths";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        let host = node.temp.path().join("host");
        fs::create_dir(&host).unwrap();
        let before = (mode(&host), fs::metadata(&host).unwrap().gid());
        for policy in ["Always", "OnRootMismatch"] {
            let (pod, reference) = pod_with(
                policy,
                json!([
                    {"name": "disk", "emptyDir": {}},
                    {"name": "memory", "emptyDir": {"medium": "Memory"}},
                    {"name": "host", "hostPath": {"path": host, "type": "Directory"}},
                ]),
                json!({"securityContext": {"fsGroup": 2000, "fsGroupChangePolicy": policy}}),
            );
            let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
            for volume in ["disk", "memory"] {
                let path = &volumes.by_name[volume].host_path;
                assert_eq!(fs::metadata(path).unwrap().gid(), 2000, "{volume}");
                assert_eq!(mode(path) & 0o2777, 0o2777, "{volume}");
            }
            assert_eq!(volumes.by_name["host"].host_path, host);
            assert!(!volumes.by_name["host"].selinux_relabel);
            assert_eq!((mode(&host), fs::metadata(&host).unwrap().gid()), before);
            node.manager.release_pod_volumes(&reference).await.unwrap();
        }
    });
}

#[test]
fn a_memory_volume_is_a_tmpfs_of_its_size() {
    let name = "on_the_kernel::a_memory_volume_is_a_tmpfs_of_its_size";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        let (pod, reference) =
            pod("u1", json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]));
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let path = node.empty_dir(&reference, "m");
        assert_eq!(node.mounts_of(&reference), vec![path.clone()]);
        let file_system = rustix::fs::statvfs(&path).unwrap();
        assert_eq!(file_system.f_blocks * file_system.f_frsize, 1 << 20);
        assert_eq!(mode(&path), 0o1777);

        fs::write(path.join("data"), "kept").unwrap();
        node.restart();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(node.mounts_of(&reference), vec![path.clone()], "not mounted twice");
        assert_eq!(fs::read_to_string(path.join("data")).unwrap(), "kept");
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(node.mounts_of(&reference).is_empty());
        assert!(!node.pod_dir(&reference).exists());
    });
}

#[test]
fn a_huge_page_volume_is_a_hugetlbfs() {
    let name = "on_the_kernel::a_huge_page_volume_is_a_hugetlbfs";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        let (pod, reference) = pod_with(
            "u1",
            json!([{"name": "h", "emptyDir": {"medium": "HugePages-2Mi"}}]),
            json!({"resources": {"requests": {"hugepages-2Mi": "2Mi"}}}),
        );
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let pod_dir = fs::canonicalize(node.pod_dir(&reference)).unwrap();
        let mounts = node.mounts.mounts_beneath(&pod_dir).unwrap();
        assert_eq!(
            mounts.iter().map(|m| (m.fs_type.as_str(), m.page_size_bytes)).collect::<Vec<_>>(),
            [("hugetlbfs", Some(2 << 20))]
        );
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(node.mounts_of(&reference).len(), 1);
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
    });
}

#[test]
fn a_busy_mount_keeps_its_files() {
    // kubernetes#7317.
    in_private_mount_namespace("on_the_kernel::a_busy_mount_keeps_its_files", || async {
        let node = Node::new(HostMounts);
        let (pod, reference) = pod("u1", json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let data = node.empty_dir(&reference, "m").join("data");
        fs::write(&data, "kept").unwrap();
        let user = fs::File::open(&data).unwrap();
        let error = node.manager.release_pod_volumes(&reference).await.unwrap_err();
        assert!(matches!(error.failures.as_slice(), [TearDownError::Unmount { .. }]), "{error}");
        assert!(error.to_string().contains("is busy"), "{error}");
        assert_eq!(fs::read_to_string(&data).unwrap(), "kept");
        drop(user);
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
    });
}

#[test]
fn a_mount_that_the_pod_left_in_its_volume_keeps_everything() {
    let name = "on_the_kernel::a_mount_that_the_pod_left_in_its_volume_keeps_everything";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        let precious = node.temp.path().join("precious");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("data"), "kept").unwrap();
        let (pod, reference) = pod("u1", json!([{"name": "a", "emptyDir": {}}]));
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let volume = node.empty_dir(&reference, "a");
        let inner = volume.join("inner");
        fs::create_dir(&inner).unwrap();
        fs::write(volume.join("own"), "kept").unwrap();
        rustix::mount::mount_bind(&precious, &inner).unwrap();
        let error = node.manager.release_pod_volumes(&reference).await.unwrap_err();
        assert!(
            matches!(error.failures.as_slice(), [TearDownError::MountRemains { .. }]),
            "{error}"
        );
        assert_eq!(fs::read_to_string(precious.join("data")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(volume.join("own")).unwrap(), "kept");
        rustix::mount::unmount(&inner, rustix::mount::UnmountFlags::empty()).unwrap();
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert_eq!(fs::read_to_string(precious.join("data")).unwrap(), "kept");
    });
}

#[test]
fn host_paths_are_checked_used_and_left_alone() {
    let name = "on_the_kernel::host_paths_are_checked_used_and_left_alone";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        let host = node.temp.path().join("host");
        fs::write(&host, "a file").unwrap();
        let (wrong, _) =
            pod("wrong", json!([{"name": "h", "hostPath": {"path": host, "type": "Directory"}}]));
        let error = node.manager.ensure_pod_volumes(&wrong).await.unwrap_err();
        let message = format!(
            "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: {} is not a \
             directory",
            host.display()
        );
        assert!(error.to_string().ends_with(&message), "{error}");
        assert_eq!(node.take_events(), [format!("pod-wrong Warning FailedMount {message}")]);

        fs::remove_file(&host).unwrap();
        fs::create_dir(&host).unwrap();
        fs::write(host.join("data"), "kept").unwrap();
        let (pod, reference) =
            pod("u1", json!([{"name": "h", "hostPath": {"path": host, "type": "Directory"}}]));
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let path =
            node.manager.prepare_sub_path(&reference, sub_path("h", &host, "logs")).await.unwrap();
        fs::write(path.join("log"), "kept").unwrap();
        // A path that vanishes later does not disturb the running pod.
        fs::rename(&host, node.temp.path().join("moved")).unwrap();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        fs::rename(node.temp.path().join("moved"), &host).unwrap();

        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
        assert_eq!(fs::read_to_string(host.join("data")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(host.join("logs/log")).unwrap(), "kept");
    });
}

#[test]
fn sub_paths_come_and_go_with_their_container() {
    let name = "on_the_kernel::sub_paths_come_and_go_with_their_container";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        let (pod, reference) = pod("u1", json!([{"name": "a", "emptyDir": {}}]));
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let volume = &volumes.by_name["a"].host_path;
        let prepare =
            |path: &str| node.manager.prepare_sub_path(&reference, sub_path("a", volume, path));
        let place = prepare("x/y").await.unwrap();
        assert_eq!(place, node.paths.pod_subpaths_dir(&reference.uid).join("a/app/0"));
        assert_eq!(mode(&volume.join("x/y")), 0o777);
        assert_eq!(prepare("x/y").await.unwrap(), place);
        assert_eq!(node.mounts_of(&reference).len(), 1);
        fs::write(volume.join("file"), "content").unwrap();
        prepare("file").await.unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "content");

        symlink("/etc", volume.join("escape")).unwrap();
        let error = prepare("escape").await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "failed to prepare subPath for volumeMount \"a\" of container \"app\""
        );
        for refused in ["/etc", "x/../../.."] {
            prepare(refused).await.unwrap_err();
        }

        node.manager.remove_container_sub_paths(&reference, "other").await.unwrap();
        assert_eq!(node.mounts_of(&reference).len(), 1);
        node.manager.remove_container_sub_paths(&reference, "app").await.unwrap();
        assert!(node.mounts_of(&reference).is_empty());
        assert!(!node.paths.pod_subpaths_dir(&reference.uid).exists());
        assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "content");
        node.manager.release_pod_volumes(&reference).await.unwrap();
    });
}

#[test]
fn orphans_with_sub_paths_and_no_volumes_are_left_whole() {
    // kubernetes#72257: data of local volumes was deleted on 26 of 29 nodes.
    let name = "on_the_kernel::orphans_with_sub_paths_and_no_volumes_are_left_whole";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        // The volume is on the same file system as the pods, so device numbers tell nothing.
        let local = node.temp.path().join("local-pv");
        fs::create_dir_all(local.join("db")).unwrap();
        fs::write(local.join("db/data"), "kept").unwrap();
        let (pod, reference) = pod("u1", json!([{"name": "h", "hostPath": {"path": local}}]));
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let place =
            node.manager.prepare_sub_path(&reference, sub_path("h", &local, "db")).await.unwrap();
        fs::remove_dir(node.paths.pod_volumes_dir(&reference.uid)).unwrap();
        node.restart();
        for _ in 0..3 {
            let report = node.manager.clean_orphans(&HashSet::new()).await.unwrap();
            assert!(report.removed.is_empty());
            let [left] = report.left.as_slice() else { panic!("{report:?}") };
            assert!(
                matches!(left.failures.as_slice(), [TearDownError::VolumesMissing { .. }]),
                "{left:?}"
            );
        }
        assert_eq!(fs::read_to_string(place.join("data")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(local.join("db/data")).unwrap(), "kept");
        let events = node.take_events();
        assert_eq!(events.len(), 1);
        assert!(events[0].contains("is missing: not touching the pod's directory"), "{events:?}");

        // Once somebody has looked after the mount, the rest goes.
        rustix::mount::unmount(&place, rustix::mount::UnmountFlags::empty()).unwrap();
        let report = node.manager.clean_orphans(&HashSet::new()).await.unwrap();
        assert_eq!(report.removed, vec![reference.uid.clone()]);
        assert!(!node.pod_dir(&reference).exists());
        assert_eq!(fs::read_to_string(local.join("db/data")).unwrap(), "kept");
    });
}

#[test]
fn orphans_of_a_kubelet_that_was_killed_are_taken_down() {
    let name = "on_the_kernel::orphans_of_a_kubelet_that_was_killed_are_taken_down";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        let local = node.temp.path().join("local");
        fs::create_dir_all(local.join("db")).unwrap();
        fs::write(local.join("db/data"), "kept").unwrap();
        let (pod, reference) = pod(
            "u1",
            json!([
                {"name": "a", "emptyDir": {}},
                {"name": "m", "emptyDir": {"medium": "Memory"}},
                {"name": "h", "hostPath": {"path": local}},
            ]),
        );
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let prepare = sub_path("h", &local, "db");
        node.manager.prepare_sub_path(&reference, prepare).await.unwrap();
        assert_eq!(node.mounts_of(&reference).len(), 2);
        node.restart();
        let report = node.manager.clean_orphans(&HashSet::new()).await.unwrap();
        assert_eq!(report.removed, vec![reference.uid.clone()], "{report:?}");
        assert!(!node.pod_dir(&reference).exists());
        assert_eq!(fs::read_to_string(local.join("db/data")).unwrap(), "kept");
        assert!(node.take_events().is_empty());
    });
}

#[test]
fn a_root_behind_a_link_is_found_in_the_mount_table() {
    let name = "on_the_kernel::a_root_behind_a_link_is_found_in_the_mount_table";
    in_private_mount_namespace(name, || async {
        let temp = tempfile::tempdir().unwrap();
        let (real, link) = (temp.path().join("disk"), temp.path().join("kubelet"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &link).unwrap();
        let mut node = Node::over(temp, &link, Arc::new(HostMounts));
        let (pod, reference): (_, PodRef) =
            pod("u1", json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]));
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        node.restart();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(node.mounts_of(&reference).len(), 1);
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
        assert!(node.mounts_of(&reference).is_empty());
    });
}

#[test]
fn volumes_of_the_api_have_the_layout_that_others_know() {
    let name = "on_the_kernel::volumes_of_the_api_have_the_layout_that_others_know";
    in_private_mount_namespace(name, || async {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let mut node = Node::new(HostMounts);
        node.content.set_config_map("x", "key", "value");
        node.content.set_secret("s", "key", "czNjcmV0");
        node.content.set_token("t");
        let (pod, reference) = pod(
            "u1",
            json!([
                {"name": "c", "configMap": {"name": "x"}},
                {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
                {"name": "p", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}}]}},
            ]),
        );
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let directory = |name: &str, plugin: &str| {
            let path = node.volume(&reference, plugin, name);
            assert_eq!(volumes.by_name[name].host_path, path);
            assert!(volumes.by_name[name].read_only);
            path
        };
        let config_map = directory("c", "kubernetes.io/configmap");
        let secret = directory("s", "kubernetes.io/secret");
        let projected = directory("p", "kubernetes.io/projected");
        // Whatever the umask; the rest is what a tmpfs is mounted with.
        assert_eq!((mode(&config_map), mode(&secret)), (0o777, 0o1777));
        assert_eq!(node.mounts_of(&reference), vec![projected.clone(), secret.clone()]);
        let size = rustix::fs::statvfs(&secret).unwrap();
        assert_eq!(size.f_blocks * size.f_frsize, crate::support::ALLOCATABLE);
        let modes =
            [config_map.join("key"), secret.join("key"), projected.join("token")].map(|p| mode(&p));
        assert_eq!(modes, [0o644, 0o400, 0o644]);
        assert_eq!(fs::read_link(secret.join("key")).unwrap(), Path::new("..data/key"));
        assert_eq!(fs::read_to_string(secret.join("key")).unwrap(), "s3cret");

        let set = fs::read_link(secret.join("..data")).unwrap();
        assert_eq!(mode(&secret.join(&set)), 0o755);
        node.restart();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(node.mounts_of(&reference).len(), 2, "not mounted twice");
        assert_eq!(fs::read_link(secret.join("..data")).unwrap(), set, "nor written twice");

        // The node started anew: what was in memory is gone.
        rustix::mount::unmount(&secret, rustix::mount::UnmountFlags::empty()).unwrap();
        node.restart();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(secret.join("key")).unwrap(), "s3cret");

        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(node.mounts_of(&reference).is_empty());
        assert!(!node.pod_dir(&reference).exists());
    });
}

#[test]
fn fs_group_may_read_what_the_owner_may() {
    let name = "on_the_kernel::fs_group_may_read_what_the_owner_may";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        node.content.set_config_map("x", "key", "value");
        node.content.set_token("t");
        let (pod, reference) = pod_with(
            "u1",
            json!([
                {"name": "c", "configMap": {"name": "x", "defaultMode": 0o400}},
                {"name": "p", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "dir/token"}}]}},
            ]),
            json!({"securityContext": {"fsGroup": 2000, "runAsUser": 1000}}),
        );
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let (config_map, projected) =
            (&volumes.by_name["c"].host_path, &volumes.by_name["p"].host_path);
        let facts = |path: &Path| {
            let metadata = fs::metadata(path).unwrap();
            (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777)
        };
        assert_eq!(facts(&config_map.join("key")), (0, 2000, 0o440));
        assert_eq!(facts(&projected.join("dir/token")), (1000, 2000, 0o640));
        assert_eq!(facts(&projected.join("dir")), (0, 2000, 0o2755));
        assert_eq!(facts(config_map), (0, 2000, 0o2777));
        assert_eq!(facts(projected), (0, 2000, 0o3777));
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
    });
}

#[test]
fn a_sub_path_keeps_the_file_it_was_bound_to() {
    let name = "on_the_kernel::a_sub_path_keeps_the_file_it_was_bound_to";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        node.content.set_config_map("x", "key", "1");
        let (pod, reference) = pod("u1", json!([{"name": "c", "configMap": {"name": "x"}}]));
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let volume = volumes.by_name["c"].host_path.clone();
        let prepare = || {
            let mount = sub_path("c", &volume, "key");
            node.manager.prepare_sub_path(&reference, mount)
        };
        let bound = prepare().await.unwrap();
        node.content.set_config_map("x", "key", "2");
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(volume.join("key")).unwrap(), "2");
        assert_eq!(fs::read_to_string(&bound).unwrap(), "1", "a running container sees no change");
        assert_eq!(prepare().await.unwrap(), bound);
        assert_eq!(fs::read_to_string(&bound).unwrap(), "2", "one that is started anew does");
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
    });
}

#[test]
fn a_secret_that_does_not_fit_leaves_the_old_one() {
    let name = "on_the_kernel::a_secret_that_does_not_fit_leaves_the_old_one";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        node.content.set_secret("s", "key", "czNjcmV0");
        let (pod, reference) = pod_with(
            "u1",
            json!([{"name": "s", "secret": {"secretName": "s"}}]),
            json!({"containers": [{
                "name": "app",
                "volumeMounts": [{"name": "s", "mountPath": "/m"}],
                "resources": {"limits": {"memory": "64Ki"}},
            }]}),
        );
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let key = volumes.by_name["s"].host_path.join("key");
        node.content.set_secret("s", "key", &"QUFB".repeat(40_000));
        let error = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
        assert!(error.to_string().to_lowercase().contains("no space left"), "{error}");
        assert_eq!(fs::read_to_string(&key).unwrap(), "s3cret");
        // What the attempt left does not stand in the way of the next.
        node.content.set_secret("s", "key", &"QUFB".repeat(8_000));
        node.restart();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(fs::metadata(&key).unwrap().len(), 24_000);
        node.manager.release_pod_volumes(&reference).await.unwrap();
    });
}
