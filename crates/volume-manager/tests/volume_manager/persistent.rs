//! Volumes behind claims.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::PodRef;
use rubelet_volume_manager::{HostMounts, MappedDevice, SubPathMount};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::fake_mounts::FakeMounts;
use crate::support::{Node, in_private_mount_namespace, pod, pod_with};

type SomePod = (std::sync::Arc<Pod>, PodRef);

fn claiming(uid: &str, claim: Value, security: Value) -> SomePod {
    pod_with(
        uid,
        json!([{"name": "data", "persistentVolumeClaim": claim}]),
        json!({ "securityContext": security }),
    )
}

fn disk(node: &Node) -> PathBuf {
    let disk = node.temp.path().join("disk");
    fs::create_dir_all(&disk).unwrap();
    fs::set_permissions(&disk, fs::Permissions::from_mode(0o700)).unwrap();
    disk
}

fn gid(path: &Path) -> u32 {
    fs::metadata(path).unwrap().gid()
}

#[test]
fn a_local_volume_is_mounted_for_its_pods_and_outlives_them() {
    let name = "persistent::a_local_volume_is_mounted_for_its_pods_and_outlives_them";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        let disk = disk(&node);
        node.content.set_claim("c1", json!({"local": {"path": disk}}));
        let (pod, reference) = claiming("u1", json!({"claimName": "c1"}), json!({"fsGroup": 2000}));
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let path = node.volume(&reference, "kubernetes.io/local-volume", "pv-c1");
        let mounted = &volumes.by_name["data"];
        assert_eq!((&mounted.host_path, mounted.spec_name.as_str()), (&path, "pv-c1"));
        fs::write(path.join("file"), "data").unwrap();
        assert_eq!(fs::read_to_string(disk.join("file")).unwrap(), "data");
        assert_eq!(gid(&disk), 2000);
        assert_eq!(fs::metadata(&disk).unwrap().permissions().mode() & 0o7777, 0o2770);

        node.restart();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(node.mounts_of(&reference).len(), 1, "not mounted twice");

        // Files have one group: the second pod is told, and the group stays.
        let (other, other_reference) =
            claiming("u2", json!({"claimName": "c1", "readOnly": true}), json!({"fsGroup": 3000}));
        let volumes = node.manager.ensure_pod_volumes(&other).await.unwrap();
        assert!(volumes.by_name["data"].read_only);
        assert!(fs::write(volumes.by_name["data"].host_path.join("file"), "").is_err());
        assert_eq!(gid(&disk), 2000);
        assert_eq!(
            node.take_events(),
            ["pod-u2 Warning AlreadyMountedVolume The requested fsGroup is 3000, but the volume \
              pv-c1 has GID 2000. The volume may not be shareable."]
        );

        node.manager.release_pod_volumes(&other_reference).await.unwrap();
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists() && !node.pod_dir(&other_reference).exists());
        assert_eq!(fs::read_to_string(disk.join("file")).unwrap(), "data");

        // And a pod after them may have it otherwise.
        let (third, third_reference) =
            claiming("u3", json!({"claimName": "c1"}), json!({"fsGroup": 3000}));
        node.manager.ensure_pod_volumes(&third).await.unwrap();
        assert_eq!(gid(&disk.join("file")), 3000);
        node.restart();
        // Nobody knows the pod any more.
        let report = node.manager.clean_orphans(&HashSet::new()).await.unwrap();
        assert_eq!((report.removed.len(), report.left.len()), (1, 0));
        assert!(!node.pod_dir(&third_reference).exists());
        assert_eq!(fs::read_to_string(disk.join("file")).unwrap(), "data");
    });
}

#[test]
fn whatever_goes_wrong_with_the_mounts_the_data_stays() {
    let name = "persistent::whatever_goes_wrong_with_the_mounts_the_data_stays";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        let disk = disk(&node);
        fs::create_dir(disk.join("part")).unwrap();
        fs::write(disk.join("part/file"), "data").unwrap();
        let kept = || assert_eq!(fs::read_to_string(disk.join("part/file")).unwrap(), "data");
        node.content.set_claim("c1", json!({"local": {"path": disk}}));
        let (pod, reference) = claiming("u1", json!({"claimName": "c1"}), json!({}));
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let mounted = &volumes.by_name["data"];
        let part = SubPathMount {
            volume: mounted.spec_name.clone(),
            volume_path: mounted.host_path.clone(),
            container: "app".to_owned(),
            index: 0,
            sub_path: "part".to_owned(),
        };
        let part = node.manager.prepare_sub_path(&reference, part).await.unwrap();
        assert_eq!(fs::read_to_string(part.join("file")).unwrap(), "data");
        assert!(part.ends_with("volume-subpaths/pv-c1/app/0"), "{part:?}");

        // Somebody still uses the part: nothing is forced.
        let open = fs::File::open(part.join("file")).unwrap();
        node.manager.release_pod_volumes(&reference).await.unwrap_err();
        kept();
        drop(open);

        // The pod is forgotten, and of its directory so much is lost that nothing tells what is
        // mounted there (kubernetes#72257).
        node.restart();
        node.mounts.unmount(&fs::canonicalize(&mounted.host_path).unwrap()).unwrap();
        fs::remove_dir(&mounted.host_path).unwrap();
        fs::remove_dir(mounted.host_path.parent().unwrap()).unwrap();
        fs::remove_dir(node.pod_dir(&reference).join("volumes")).unwrap();
        let report = node.manager.clean_orphans(&HashSet::new()).await.unwrap();
        assert_eq!((report.removed.len(), report.left.len()), (0, 1));
        kept();
        let [event] = node.take_events().try_into().unwrap();
        assert!(event.starts_with("node Warning OrphanedPodNotCleanedUp orphaned pod"), "{event}");

        fs::create_dir(node.pod_dir(&reference).join("volumes")).unwrap();
        let report = node.manager.clean_orphans(&HashSet::new()).await.unwrap();
        assert_eq!((report.removed.len(), report.left.len()), (1, 0));
        kept();
    });
}

#[test]
fn a_device_is_linked_for_its_pod() {
    let name = "persistent::a_device_is_linked_for_its_pod";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        let device = node.temp.path().join("device");
        let number = rustix::fs::makedev(7, 200);
        let (kind, mode) = (rustix::fs::FileType::BlockDevice, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(rustix::fs::CWD, &device, kind, mode, number).unwrap();
        node.content.set_claim("c1", json!({"local": {"path": device}, "volumeMode": "Block"}));
        let mut manifest = serde_json::to_value(&*pod("u1", json!([])).0).unwrap();
        manifest["spec"] = json!({
            "volumes": [{"name": "raw", "persistentVolumeClaim": {"claimName": "c1"}}],
            "containers": [{"name": "c",
                "volumeDevices": [{"name": "raw", "devicePath": "/dev/x"}]}],
        });
        let pod: std::sync::Arc<Pod> = serde_json::from_value(manifest).unwrap();
        let reference = rubelet_types::pod_ref(&pod);
        let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
        let link = node.pod_dir(&reference).join("volumeDevices/kubernetes.io~local-volume/pv-c1");
        let mapped = MappedDevice { host_path: link.clone(), read_only: false };
        assert_eq!(volumes.devices["raw"], mapped);
        assert_eq!(fs::read_link(&link).unwrap(), device);
        let [event] = node.take_events().try_into().unwrap();
        assert!(event.starts_with("pod-u1 Normal SuccessfulMountVolume MapVolume."), "{event}");
        node.restart();
        node.manager.ensure_pod_volumes(&pod).await.unwrap();
        assert_eq!(node.take_events(), [""; 0], "it is there");
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
        assert!(device.exists());

        fs::remove_file(&device).unwrap();
        fs::write(&device, "").unwrap();
        let failed = node.manager.ensure_pod_volumes(&pod).await.unwrap_err().to_string();
        let expected = format!(
            "MapVolume.MapPodDevice failed for volume \"pv-c1\" : path {device:?} is not a block \
             device"
        );
        assert!(failed.contains(&expected), "{failed}");
        assert_eq!(node.take_events(), [format!("pod-u1 Warning FailedMapVolume {expected}")]);
    });
}

/// A device of the node that is a file; gone when it is dropped.
struct Loop {
    device: PathBuf,
    backing: Vec<u8>,
}

impl Loop {
    fn new(file: &Path) -> Self {
        fs::write(file, vec![0; 4 << 20]).unwrap();
        Self::on(file)
    }

    /// Over what is there.
    fn on(file: &Path) -> Self {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let device = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
        let backing = fs::read(shown(&device)).unwrap();
        Self { device, backing }
    }

    /// Whether it is still this one: once detached, the kernel may give its name to somebody else's.
    fn is_attached(&self) -> bool {
        fs::read(shown(&self.device)).is_ok_and(|backing| backing == self.backing)
    }
}

/// Where the kernel says what is behind a loop device.
fn shown(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file")
}

impl Drop for Loop {
    fn drop(&mut self) {
        if self.is_attached() {
            let _ = Command::new("losetup").arg("--detach").arg(&self.device).output();
        }
    }
}

#[test]
fn a_local_device_is_mounted_once_for_all_pods_and_until_the_last_has_left() {
    let name =
        "persistent::a_local_device_is_mounted_once_for_all_pods_and_until_the_last_has_left";
    in_private_mount_namespace(name, || async {
        let mut node = Node::new(HostMounts);
        let device = Loop::new(&node.temp.path().join("disk"));
        node.content.set_claim("c1", json!({"local": {"path": device.device}}));
        let pods: Vec<SomePod> = ["u1", "u2"]
            .iter()
            .map(|uid| claiming(uid, json!({"claimName": "c1"}), json!({"fsGroup": 2000})))
            .collect();
        let mut places = Vec::new();
        for (pod, _) in &pods {
            let volumes = node.manager.ensure_pod_volumes(pod).await.unwrap();
            places.push(volumes.by_name["data"].host_path.clone());
        }
        fs::write(places[0].join("file"), "data").unwrap();
        assert_eq!(fs::read_to_string(places[1].join("file")).unwrap(), "data");
        assert_eq!(gid(&places[1]), 2000);
        let plugins = fs::canonicalize(node.paths.root()).unwrap().join("plugins");
        let shared = plugins.join("kubernetes.io/local-volume/mounts/pv-c1");
        let is_mounted = |node: &Node| !node.mounts.mounts_beneath(&shared).unwrap().is_empty();

        node.restart();
        node.manager.release_pod_volumes(&pods[0].1).await.unwrap();
        assert!(is_mounted(&node), "the other pod uses it");
        assert_eq!(fs::read_to_string(places[1].join("file")).unwrap(), "data");
        node.manager.release_pod_volumes(&pods[1].1).await.unwrap();
        assert!(!is_mounted(&node) && !shared.exists());

        // It has a file system now.
        let volumes = node.manager.ensure_pod_volumes(&pods[0].0).await.unwrap();
        let file = volumes.by_name["data"].host_path.join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), "data");
        node.manager.release_pod_volumes(&pods[0].1).await.unwrap();
        assert_eq!(node.take_events(), [""; 0]);
    });
}

#[test]
fn a_device_that_another_kubelet_gave_to_a_pod_is_taken_back() {
    let name = "persistent::a_device_that_another_kubelet_gave_to_a_pod_is_taken_back";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        let device = Loop::new(&node.temp.path().join("disk"));
        let (_, reference) = pod("u1", json!([]));
        let root = fs::canonicalize(node.paths.root()).unwrap();
        let links = node.pod_dir(&reference).join("volumeDevices/kubernetes.io~local-volume");
        fs::create_dir_all(&links).unwrap();
        symlink(&device.device, links.join("pv1")).unwrap();
        // As the Go kubelet holds it: bound, and with a loop device of its own on the bind mount.
        let map = root.join("plugins/kubernetes.io/local-volume/volumeDevices/pv1/u1");
        fs::create_dir_all(map.parent().unwrap()).unwrap();
        fs::write(&map, "").unwrap();
        let bound =
            Command::new("mount").arg("--bind").args([&device.device, &map]).status().unwrap();
        assert!(bound.success());
        let lock = Loop::on(&map);
        // The kernel lets go of a device only when all have closed it, and whoever looks for a free
        // one has it open for a moment: then it goes the next time, as with every caller.
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(error) = node.manager.release_pod_volumes(&reference).await {
            assert!(Instant::now() < deadline, "{error:?}");
            tokio::time::sleep(error.retry_after).await;
        }
        assert!(!lock.is_attached());
        assert!(!map.parent().unwrap().exists());
        assert!(!node.pod_dir(&reference).exists());
        assert_eq!(fs::read(&device.device).unwrap().len(), 4 << 20, "the device itself is there");
    });
}

#[test]
fn what_stands_in_the_way_of_a_volume_is_told() {
    let name = "persistent::what_stands_in_the_way_of_a_volume_is_told";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        let file = node.temp.path().join("file");
        fs::write(&file, "").unwrap();
        let missing = node.temp.path().join("missing");
        for (uid, spec, expected) in [
            (
                "missing",
                json!({"local": {"path": missing}}),
                format!(
                    "MountVolume.NewMounter initialization failed for volume \"pv-missing\" : path \
                     {missing:?} does not exist"
                ),
            ),
            (
                "file",
                json!({"local": {"path": file}}),
                "MountVolume.NewMounter initialization failed for volume \"pv-file\" : only \
                 directory and block device are supported"
                    .to_owned(),
            ),
            (
                "elsewhere",
                json!({"local": {"path": "/"}, "nodeAffinity": {"required": {
                    "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name",
                        "operator": "In", "values": ["there"]}]}]}}}),
                "MountVolume.NodeAffinity check failed for volume \"pv-elsewhere\" : no matching \
                 NodeSelectorTerms"
                    .to_owned(),
            ),
            (
                "climbs",
                json!({"local": {"path": "/tmp/../etc"}}),
                "MountVolume.SetUp failed for volume \"pv-climbs\" : invalid path: /tmp/../etc \
                 must not contain '..'"
                    .to_owned(),
            ),
            (
                "csi",
                json!({"csi": {"driver": "d.example.com", "volumeHandle": "h"}}),
                "MountVolume.SetUp failed for volume \"pv-csi\" : driver name d.example.com not \
                 found in the list of registered CSI drivers"
                    .to_owned(),
            ),
        ] {
            node.content.set_claim(uid, spec);
            let (pod, _) = claiming(uid, json!({ "claimName": uid }), json!({}));
            node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
            assert_eq!(node.take_events(), [format!("pod-{uid} Warning FailedMount {expected}")]);
        }
    });
}

#[test]
fn an_nfs_server_that_cannot_be_mounted_is_told_as_mount_tells_it() {
    let name = "persistent::an_nfs_server_that_cannot_be_mounted_is_told_as_mount_tells_it";
    in_private_mount_namespace(name, || async {
        let node = Node::new(HostMounts);
        node.content.set_claim(
            "c1",
            json!({"nfs": {"server": "127.0.0.1", "path": "/none"},
                "mountOptions": ["nolock", "timeo=1", "retry=0"]}),
        );
        let (pod, reference) =
            claiming("u1", json!({"claimName": "c1", "readOnly": true}), json!({}));
        node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
        let [event] = node.take_events().try_into().unwrap();
        let expected = "pod-u1 Warning FailedMount MountVolume.SetUp failed for volume \"pv-c1\" : \
                        mount failed: exit status 32\nMounting command: mount\nMounting arguments: \
                        -t nfs -o nolock,timeo=1,retry=0,ro -- 127.0.0.1:/none ";
        assert!(event.starts_with(expected), "{event}");
        assert!(event.contains("\nOutput: mount"), "{event}");
        node.manager.release_pod_volumes(&reference).await.unwrap();
        assert!(!node.pod_dir(&reference).exists());
    });
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_not_bound_is_told_once_and_looked_at_again() {
    let mounts = FakeMounts::default();
    let node = Node::new(mounts.clone());
    node.content.set_claim("c1", json!({"nfs": {"server": "s", "path": "/p"}}));
    node.content.set_claim_phase("c1", "Pending");
    let (pod, reference) = claiming("u1", json!({"claimName": "c1"}), json!({}));
    let error = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
    let expected = "Unable to attach or mount volumes: unmounted volumes=[data], unattached \
                    volumes=[], failed to process volumes=[data]: error processing PVC \
                    default/c1: PVC is not bound";
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.retry_after().unwrap().as_millis(), 500);
    let again = node.manager.ensure_pod_volumes(&pod).await.unwrap_err();
    assert_eq!(again.to_string(), expected, "it says why while it waits");
    assert_eq!(node.take_events(), [format!("pod-u1 Warning FailedMount {expected}")]);

    node.content.set_claim_phase("c1", "Bound");
    tokio::time::sleep(again.retry_after().unwrap()).await;
    let volumes = node.manager.ensure_pod_volumes(&pod).await.unwrap();
    let path = node.volume(&reference, "kubernetes.io/nfs", "pv-c1");
    assert_eq!(volumes.by_name["data"].host_path, path);
    assert_eq!(node.mounts_of(&reference), [path]);
    node.manager.release_pod_volumes(&reference).await.unwrap();
    assert_eq!(node.mounts_of(&reference), [""; 0].map(PathBuf::from));
}
