use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use rubelet_types::{NodePaths, PodUid};
use rubelet_volume_plan::{DesiredVolume, ImageVolume, VolumePlugin, VolumeSource};

/// A volume that is ready for containers to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// Its name on disk: that of the PersistentVolume behind a claim, otherwise as in the pod.
    pub spec_name: String,
    /// Where it is on the node.
    pub host_path: PathBuf,
    /// No container may write to it, whatever its mount says.
    pub read_only: bool,
    /// What set it up.
    pub plugin: VolumePlugin,
    /// The runtime may relabel it for SELinux: it belongs to the pod alone.
    pub selinux_relabel: bool,
}

/// A device that is ready for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedDevice {
    /// Where it is on the node.
    pub host_path: PathBuf,
    /// No container may write to it.
    pub read_only: bool,
}

/// The volumes of a pod that are ready, which are all that its containers use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodVolumes {
    /// By the name that containers mount them by.
    pub by_name: HashMap<String, MountedVolume>,
    /// Devices, by the name that containers map them by.
    pub devices: BTreeMap<String, MappedDevice>,
    /// Volumes that the runtime mounts, by the name that containers mount them by.
    pub images: BTreeMap<String, ImageVolume>,
    /// Groups that all containers get because of the volumes, sorted.
    pub extra_groups: Vec<i64>,
}

impl PodVolumes {
    pub(crate) fn new(paths: &NodePaths, pod: &PodUid, volumes: Vec<DesiredVolume>) -> Self {
        let mut ready = Self::default();
        for volume in volumes {
            let plugin = volume.plugin();
            let DesiredVolume { name, spec_name, read_only, extra_group, source } = volume;
            ready.extra_groups.extend(extra_group);
            let host_path = match source {
                VolumeSource::HostPath(host_path) => PathBuf::from(host_path.path),
                VolumeSource::Image(image) => {
                    ready.images.insert(name, image);
                    continue;
                }
                VolumeSource::Block(_) => {
                    let host_path = paths.pod_device(pod, plugin.name(), &spec_name);
                    ready.devices.insert(name, MappedDevice { host_path, read_only });
                    continue;
                }
                VolumeSource::EmptyDir(_)
                | VolumeSource::Content(_)
                | VolumeSource::Local(_)
                | VolumeSource::Nfs(_) => paths.pod_volume_dir(pod, plugin.name(), &spec_name),
            };
            let selinux_relabel = match plugin {
                VolumePlugin::HostPath | VolumePlugin::Nfs => false,
                VolumePlugin::Local => !read_only,
                _ => true,
            };
            let mounted =
                MountedVolume { spec_name, host_path, read_only, plugin, selinux_relabel };
            ready.by_name.insert(name, mounted);
        }
        ready.extra_groups.sort_unstable();
        ready.extra_groups.dedup();
        ready
    }
}
