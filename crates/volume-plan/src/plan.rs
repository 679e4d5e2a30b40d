use std::collections::BTreeSet;

use crate::{DesiredVolume, EmptyDirMedium, HostPathVolume, VolumePlugin, VolumeSource};

/// Whether some container of the pod may still use its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerPresence {
    /// A container runs, may run, or may be started: volumes are only set up, never taken down.
    MayRun,
    /// The last container is gone for good and none will be started: volumes are only taken down.
    Gone,
}

/// A file system found mounted on a volume's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedFilesystem {
    /// The file system's type, such as `tmpfs`.
    pub fs_type: String,
    /// Page size in bytes of a hugetlbfs, where the mount table tells.
    pub page_size_bytes: Option<u64>,
    /// Nobody can write through the mount.
    pub read_only: bool,
}

/// What is found of one volume beneath the pod's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVolume {
    /// Name of its plugin's directory, such as `kubernetes.io~empty-dir`.
    pub plugin_directory: String,
    /// The volume's name.
    pub name: String,
    /// Its directory exists. Without it, its marker or the remains of a removal were found.
    pub present: bool,
    /// What is mounted on its directory.
    pub mounted: Option<MountedFilesystem>,
    /// Its marker says that its set-up was completed once.
    pub ready: bool,
}

/// What is found of one prepared `subPath` beneath the pod's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObservedSubPath {
    /// The volume.
    pub volume: String,
    /// The container that mounts it.
    pub container: String,
    /// Index of the mount in the container's `volumeMounts`.
    pub index: String,
}

/// What is found of one device that was given to the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedDevice {
    /// Name of its plugin's directory.
    pub plugin_directory: String,
    /// The volume's name on disk.
    pub name: String,
    /// The device that its link names; none if it is no link.
    pub device: Option<String>,
}

/// Everything found of a pod's volumes, on disk and in the mount table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedPodVolumes {
    /// Volume directories and markers.
    pub volumes: Vec<ObservedVolume>,
    /// Prepared sub-paths.
    pub sub_paths: Vec<ObservedSubPath>,
    /// Devices.
    pub devices: Vec<ObservedDevice>,
    /// hostPath volumes that were checked before and need no second look: a path that vanishes
    /// under a running pod, or a dead network mount, does not disturb it.
    pub checked_host_paths: BTreeSet<String>,
}

/// One operation on one volume.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeAction {
    /// Make the volume ready for containers. Doing it again is harmless.
    SetUp(DesiredVolume),
    /// Unmount a sub-path and remove its mount point, which holds no data of its own.
    RemoveSubPath(ObservedSubPath),
    /// Unmount the directory of a volume that lives and dies with its pod, and delete its contents.
    /// Only after all its sub-paths are removed.
    TearDownDirectory {
        /// The plugin.
        plugin: VolumePlugin,
        /// The volume.
        name: String,
    },
    /// Unmount a volume that outlives its pod, and remove its mount point, which holds no data of its
    /// own. Only after all its sub-paths are removed.
    Unmount {
        /// The plugin.
        plugin: VolumePlugin,
        /// The volume's name on disk.
        name: String,
    },
    /// Remove the link by which the pod's containers got a device.
    RemoveDeviceLink {
        /// The plugin.
        plugin: VolumePlugin,
        /// The volume's name on disk.
        name: String,
    },
    /// Remove a left-over volume directory, which must be empty: nobody knows what is in it.
    RemoveEmptyDirectory {
        /// Name of the plugin's directory.
        plugin_directory: String,
        /// The volume.
        name: String,
    },
}

/// A volume that must not be touched, because no known plugin can tell what its mount is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedVolume {
    /// Name of the plugin's directory.
    pub plugin_directory: String,
    /// The volume.
    pub name: String,
}

/// What is due for a pod's volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumePlan {
    /// What to do, in this order. Actions on different volumes are independent of each other.
    pub actions: Vec<VolumeAction>,
    /// Needed volumes that are ready as they are.
    pub in_place: Vec<DesiredVolume>,
    /// Volumes that stand in the way of taking the pod's volumes down.
    pub blocked: Vec<BlockedVolume>,
}

/// Decides what is due.
///
/// While containers may run, needed volumes are set up and nothing is taken down, wanted or
/// not. When they are gone everything found is taken down, sub-paths first.
pub fn plan_volumes(
    desired: &[DesiredVolume],
    observed: &ObservedPodVolumes,
    presence: ContainerPresence,
) -> VolumePlan {
    match presence {
        ContainerPresence::MayRun => plan_set_up(desired, observed),
        ContainerPresence::Gone => plan_tear_down(observed),
    }
}

fn plan_set_up(desired: &[DesiredVolume], observed: &ObservedPodVolumes) -> VolumePlan {
    let mut plan = VolumePlan::default();
    for volume in desired {
        if is_in_place(volume, observed) {
            plan.in_place.push(volume.clone());
        } else {
            plan.actions.push(VolumeAction::SetUp(volume.clone()));
        }
    }
    plan
}

fn is_in_place(volume: &DesiredVolume, observed: &ObservedPodVolumes) -> bool {
    let found = observed.volumes.iter().find(|found| {
        found.name == volume.spec_name && found.plugin_directory == volume.plugin().directory_name()
    });
    match &volume.source {
        VolumeSource::EmptyDir(empty_dir) => {
            found.is_some_and(|found| is_empty_dir_in_place(empty_dir.medium, found))
        }
        VolumeSource::HostPath(HostPathVolume { .. }) => {
            observed.checked_host_paths.contains(&volume.name)
        }
        // Whether its files are right shows when they are compared, which is what setting it up does.
        VolumeSource::Content(_) => false,
        VolumeSource::Local(_) => found
            .and_then(|found| found.mounted.as_ref())
            // What was cut short between its mount and this restriction of it is not complete.
            .is_some_and(|mounted| mounted.read_only || !volume.read_only),
        VolumeSource::Nfs(_) => found.is_some_and(|found| found.mounted.is_some()),
        // The runtime mounts it.
        VolumeSource::Image(_) => true,
        VolumeSource::Block(block) => observed.devices.iter().any(|found| {
            found.name == volume.spec_name
                && found.plugin_directory == block.plugin.directory_name()
                && found.device.as_deref() == Some(&*block.device)
        }),
    }
}

fn is_empty_dir_in_place(medium: EmptyDirMedium, found: &ObservedVolume) -> bool {
    if !found.ready || !found.present {
        return false;
    }
    match (medium, &found.mounted) {
        (EmptyDirMedium::Disk, _) => true,
        (EmptyDirMedium::Memory { .. }, Some(mounted)) => mounted.fs_type == "tmpfs",
        (EmptyDirMedium::HugePages { page_size_bytes, exact }, Some(mounted)) => {
            mounted.fs_type == "hugetlbfs"
                && (!exact || mounted.page_size_bytes == Some(page_size_bytes))
        }
        (EmptyDirMedium::Memory { .. } | EmptyDirMedium::HugePages { .. }, None) => false,
    }
}

fn plan_tear_down(observed: &ObservedPodVolumes) -> VolumePlan {
    let mut plan = VolumePlan::default();
    plan.actions.extend(observed.sub_paths.iter().cloned().map(VolumeAction::RemoveSubPath));
    for found in &observed.volumes {
        let name = found.name.clone();
        match VolumePlugin::from_directory_name(&found.plugin_directory) {
            Some(
                plugin @ (VolumePlugin::EmptyDir
                | VolumePlugin::ConfigMap
                | VolumePlugin::Secret
                | VolumePlugin::DownwardApi
                | VolumePlugin::Projected),
            ) => plan.actions.push(VolumeAction::TearDownDirectory { plugin, name }),
            Some(plugin @ (VolumePlugin::Local | VolumePlugin::Nfs)) => {
                plan.actions.push(VolumeAction::Unmount { plugin, name });
            }
            Some(VolumePlugin::HostPath | VolumePlugin::Image) | None
                if found.mounted.is_none() =>
            {
                plan.actions.push(VolumeAction::RemoveEmptyDirectory {
                    plugin_directory: found.plugin_directory.clone(),
                    name,
                });
            }
            Some(VolumePlugin::HostPath | VolumePlugin::Image) | None => plan
                .blocked
                .push(BlockedVolume { plugin_directory: found.plugin_directory.clone(), name }),
        }
    }
    for found in &observed.devices {
        let name = found.name.clone();
        match VolumePlugin::from_directory_name(&found.plugin_directory) {
            Some(plugin) if found.device.is_some() => {
                plan.actions.push(VolumeAction::RemoveDeviceLink { plugin, name });
            }
            Some(_) | None => plan
                .blocked
                .push(BlockedVolume { plugin_directory: found.plugin_directory.clone(), name }),
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{BlockVolume, EmptyDirVolume, HostPathType, LocalVolume};

    fn empty_dir(name: &str, medium: EmptyDirMedium) -> DesiredVolume {
        desired(name, VolumeSource::EmptyDir(EmptyDirVolume { medium, size_limit: None }))
    }

    fn desired(name: &str, source: VolumeSource) -> DesiredVolume {
        DesiredVolume {
            name: name.to_owned(),
            spec_name: name.to_owned(),
            read_only: false,
            extra_group: None,
            source,
        }
    }

    fn host_path(name: &str) -> DesiredVolume {
        let path_type = HostPathType::Directory;
        desired(name, VolumeSource::HostPath(HostPathVolume { path: "/srv".to_owned(), path_type }))
    }

    fn found(
        plugin_directory: &str,
        name: &str,
        fs_type: Option<&str>,
        ready: bool,
    ) -> ObservedVolume {
        ObservedVolume {
            plugin_directory: plugin_directory.to_owned(),
            name: name.to_owned(),
            present: true,
            mounted: fs_type.map(|fs_type| MountedFilesystem {
                fs_type: fs_type.to_owned(),
                page_size_bytes: (fs_type == "hugetlbfs").then_some(2 << 20),
                read_only: false,
            }),
            ready,
        }
    }

    fn sub_path(volume: &str) -> ObservedSubPath {
        ObservedSubPath {
            volume: volume.to_owned(),
            container: "c".to_owned(),
            index: "0".to_owned(),
        }
    }

    fn tear_down(plugin: VolumePlugin, name: &str) -> VolumeAction {
        VolumeAction::TearDownDirectory { plugin, name: name.to_owned() }
    }

    const EMPTY_DIR: &str = "kubernetes.io~empty-dir";

    #[test]
    fn what_is_complete_is_left_in_place() {
        let memory = EmptyDirMedium::Memory { size_bytes: None };
        let pages = |mebibytes: u64, exact| EmptyDirMedium::HugePages {
            page_size_bytes: mebibytes << 20,
            exact,
        };
        for (case, medium, fs_type, ready, in_place) in [
            ("disk", EmptyDirMedium::Disk, None, true, true),
            ("disk, no marker", EmptyDirMedium::Disk, None, false, false),
            ("memory", memory, Some("tmpfs"), true, true),
            ("memory, not mounted", memory, None, true, false),
            ("memory, other mount", memory, Some("ext4"), true, false),
            ("memory, no marker", memory, Some("tmpfs"), false, false),
            ("huge pages", pages(2, true), Some("hugetlbfs"), true, true),
            ("huge pages, other size", pages(4, true), Some("hugetlbfs"), true, false),
            ("huge pages, any size", pages(4, false), Some("hugetlbfs"), true, true),
        ] {
            let observed = ObservedPodVolumes {
                volumes: vec![found(EMPTY_DIR, "v", fs_type, ready)],
                ..Default::default()
            };
            let plan =
                plan_volumes(&[empty_dir("v", medium)], &observed, ContainerPresence::MayRun);
            assert_eq!(plan.in_place.len() == 1, in_place, "{case}");
            assert_eq!(plan.actions.len() == 1, !in_place, "{case}");
        }
    }

    #[test]
    fn a_marker_without_directory_counts_for_nothing() {
        let mut volume = found(EMPTY_DIR, "v", None, true);
        volume.present = false;
        let observed = ObservedPodVolumes { volumes: vec![volume], ..Default::default() };
        let plan = plan_volumes(
            &[empty_dir("v", EmptyDirMedium::Disk)],
            &observed,
            ContainerPresence::MayRun,
        );
        assert!(matches!(plan.actions.as_slice(), [VolumeAction::SetUp(_)]));
    }

    #[test]
    fn a_host_path_is_checked_once() {
        let mut observed = ObservedPodVolumes::default();
        let desired = [host_path("v")];
        let first = plan_volumes(&desired, &observed, ContainerPresence::MayRun);
        assert_eq!(first.actions, [VolumeAction::SetUp(host_path("v"))]);
        observed.checked_host_paths.insert("v".to_owned());
        let second = plan_volumes(&desired, &observed, ContainerPresence::MayRun);
        assert_eq!((second.actions, second.in_place), (vec![], vec![host_path("v")]));
    }

    #[test]
    fn tear_down_takes_sub_paths_first_and_stays_away_from_what_it_does_not_know() {
        let observed = ObservedPodVolumes {
            volumes: vec![
                found(EMPTY_DIR, "a", None, true),
                found(EMPTY_DIR, "b", Some("tmpfs"), true),
                found("kubernetes.io~secret", "s", Some("tmpfs"), false),
                found("kubernetes.io~csi", "pv", Some("ext4"), false),
                found("kubernetes.io~csi", "left-over", None, false),
            ],
            sub_paths: vec![sub_path("a")],
            ..Default::default()
        };
        let plan = plan_volumes(&[], &observed, ContainerPresence::Gone);
        assert_eq!(
            plan.actions,
            [
                VolumeAction::RemoveSubPath(sub_path("a")),
                tear_down(VolumePlugin::EmptyDir, "a"),
                tear_down(VolumePlugin::EmptyDir, "b"),
                tear_down(VolumePlugin::Secret, "s"),
                VolumeAction::RemoveEmptyDirectory {
                    plugin_directory: "kubernetes.io~csi".to_owned(),
                    name: "left-over".to_owned(),
                },
            ]
        );
        assert_eq!(
            plan.blocked,
            [BlockedVolume {
                plugin_directory: "kubernetes.io~csi".to_owned(),
                name: "pv".to_owned(),
            }]
        );
    }

    #[test]
    fn a_persistent_volume_is_found_by_its_own_name_and_taken_down_without_its_contents() {
        let local = LocalVolume {
            path: "/disk".to_owned(),
            fs_type: "ext4".to_owned(),
            mount_options: Vec::new(),
        };
        let mut volume = desired("data", VolumeSource::Local(local));
        volume.spec_name = "pv1".to_owned();
        let mut observed = ObservedPodVolumes {
            volumes: vec![found("kubernetes.io~local-volume", "pv1", Some("ext4"), false)],
            ..Default::default()
        };
        let in_place = |volume: &DesiredVolume, observed: &ObservedPodVolumes| {
            let plan =
                plan_volumes(std::slice::from_ref(volume), observed, ContainerPresence::MayRun);
            plan.in_place.len() == 1
        };
        assert!(in_place(&volume, &observed));
        volume.read_only = true;
        assert!(!in_place(&volume, &observed), "not read-only yet");
        observed.volumes[0].mounted.as_mut().unwrap().read_only = true;
        assert!(in_place(&volume, &observed));
        let plan = plan_volumes(&[], &observed, ContainerPresence::Gone);
        let plugin = VolumePlugin::Local;
        assert_eq!(plan.actions, [VolumeAction::Unmount { plugin, name: "pv1".to_owned() }]);
        observed.volumes[0].mounted = None;
        assert!(!in_place(&volume, &observed));
        assert_eq!(
            plan_volumes(&[], &observed, ContainerPresence::Gone).actions,
            [VolumeAction::Unmount { plugin, name: "pv1".to_owned() }]
        );
    }

    #[test]
    fn a_device_is_its_link() {
        let block = BlockVolume { plugin: VolumePlugin::Local, device: "/dev/a".to_owned() };
        let volume = desired("pv1", VolumeSource::Block(block));
        let device = |plugin_directory: &str, device: Option<&str>| ObservedPodVolumes {
            devices: vec![ObservedDevice {
                plugin_directory: plugin_directory.to_owned(),
                name: "pv1".to_owned(),
                device: device.map(str::to_owned),
            }],
            ..Default::default()
        };
        let local = "kubernetes.io~local-volume";
        for (observed, in_place, removable) in [
            (device(local, Some("/dev/a")), true, true),
            (device(local, Some("/dev/b")), false, true),
            (device(local, None), false, false),
            (device("kubernetes.io~csi", Some("/dev/a")), false, false),
        ] {
            let wanted = [volume.clone()];
            let plan = plan_volumes(&wanted, &observed, ContainerPresence::MayRun);
            assert_eq!(plan.in_place.len() == 1, in_place, "{observed:?}");
            let plan = plan_volumes(&[], &observed, ContainerPresence::Gone);
            let plugin = VolumePlugin::Local;
            let removal = VolumeAction::RemoveDeviceLink { plugin, name: "pv1".to_owned() };
            let removals = if removable { vec![removal] } else { vec![] };
            assert_eq!(plan.actions, removals, "{observed:?}");
            assert_eq!(plan.blocked.is_empty(), removable, "{observed:?}");
        }
    }

    fn any_found() -> impl Strategy<Value = ObservedVolume> {
        (
            prop::sample::select(vec![EMPTY_DIR, "kubernetes.io~csi", "kubernetes.io~host-path"]),
            "[ab]",
            prop::option::of(prop::sample::select(vec!["tmpfs", "hugetlbfs", "ext4"])),
            any::<(bool, bool)>(),
        )
            .prop_map(|(plugin, name, fs_type, (ready, present))| ObservedVolume {
                present,
                ..found(plugin, &name, fs_type, ready)
            })
    }

    proptest! {
        #[test]
        fn nothing_is_taken_down_while_containers_may_run(
            volumes in prop::collection::vec(any_found(), 0..6),
            sub_paths in prop::collection::vec("[ab]", 0..3),
        ) {
            let observed = ObservedPodVolumes {
                volumes,
                sub_paths: sub_paths.iter().map(|volume| sub_path(volume)).collect(),
                ..Default::default()
            };
            let desired = [empty_dir("a", EmptyDirMedium::Disk), host_path("h")];
            let plan = plan_volumes(&desired, &observed, ContainerPresence::MayRun);
            prop_assert!(plan.actions.iter().all(|a| matches!(a, VolumeAction::SetUp(_))));
            prop_assert_eq!(plan.actions.len() + plan.in_place.len(), desired.len());
        }

        #[test]
        fn once_containers_are_gone_every_find_is_accounted_for(
            volumes in prop::collection::vec(any_found(), 0..6),
        ) {
            let observed = ObservedPodVolumes { volumes, ..Default::default() };
            let desired = [empty_dir("a", EmptyDirMedium::Disk)];
            let plan = plan_volumes(&desired, &observed, ContainerPresence::Gone);
            prop_assert!(!plan.actions.iter().any(|a| matches!(a, VolumeAction::SetUp(_))));
            prop_assert_eq!(plan.actions.len() + plan.blocked.len(), observed.volumes.len());
        }
    }
}
