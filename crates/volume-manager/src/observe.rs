use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rubelet_types::{NodePaths, PodUid, UnsafePathElement};
use rubelet_volume_plan::{
    MountedFilesystem, ObservedDevice, ObservedPodVolumes, ObservedSubPath, ObservedVolume,
    VolumePlugin,
};

use crate::content::WRAPPED_PREFIX;
use crate::port::{MountPoint, MountPort};

/// What is there could not be found out.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The pod's uid cannot be the name of a directory.
    #[error("invalid pod uid")]
    Uid(#[from] UnsafePathElement),
    /// A directory, or the mount table beneath it, could not be read.
    #[error("read {path}")]
    Read {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A name that is not UTF-8, which no kubelet has made.
    #[error("unexpected file name {path:?}")]
    FileName {
        /// The file.
        path: PathBuf,
    },
}

impl ObserveError {
    /// A directory on the way to what was to be found is not there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Read { path, source }
    }
}

/// Name of the file that marks an emptyDir as completely set up.
pub(crate) const READY_MARKER: &str = "ready";
const SUB_PATHS: &str = "volume-subpaths";
/// What the name of a volume's directory begins with while its contents are being deleted. No volume can be
/// called so.
const DELETING_PREFIX: &str = "deleting~";

/// The directory of a pod, without links on the way, as the mount table names it.
#[derive(Clone, Debug)]
pub(crate) struct PodDirectory {
    path: PathBuf,
}

impl PodDirectory {
    /// The directory where the pod's is or would be. `<root>/pods` must exist.
    pub(crate) fn locate(paths: &NodePaths, uid: &PodUid) -> Result<Self, ObserveError> {
        NodePaths::check_element(uid.as_str())?;
        let pods = paths.pods_dir();
        let pods = fs::canonicalize(&pods).map_err(ObserveError::read(&pods))?;
        Ok(Self { path: pods.join(uid.as_str()) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn volumes(&self) -> PathBuf {
        self.path.join("volumes")
    }

    pub(crate) fn volume_devices(&self) -> PathBuf {
        self.path.join("volumeDevices")
    }

    /// Where a device is mounted that is a local volume of this and perhaps other pods. Contract:
    /// another kubelet finds it there.
    pub(crate) fn local_device(&self, spec_name: &str) -> PathBuf {
        self.of_local_plugin().join("mounts").join(spec_name)
    }

    /// Where another kubelet holds the device that it gave to the pod. Nothing is made there here.
    pub(crate) fn local_device_map(&self, spec_name: &str) -> PathBuf {
        let uid = self.path.file_name().unwrap_or_default();
        self.of_local_plugin().join("volumeDevices").join(spec_name).join(uid)
    }

    fn of_local_plugin(&self) -> PathBuf {
        let root = self.path.ancestors().nth(2).unwrap_or(&self.path);
        root.join("plugins").join(VolumePlugin::Local.name())
    }

    /// The link by which the pod's containers get a device.
    pub(crate) fn device(&self, plugin_directory: &str, name: &str) -> PathBuf {
        self.volume_devices().join(plugin_directory).join(name)
    }

    pub(crate) fn volume(&self, plugin_directory: &str, name: &str) -> PathBuf {
        self.volumes().join(plugin_directory).join(name)
    }

    pub(crate) fn empty_dir(&self, name: &str) -> PathBuf {
        self.volume(VolumePlugin::EmptyDir.directory_name(), name)
    }

    /// Where the contents of a volume's directory are while they are being deleted.
    pub(crate) fn deleting_volume(&self, plugin_directory: &str, name: &str) -> PathBuf {
        self.volume(plugin_directory, &format!("{DELETING_PREFIX}{name}"))
    }

    fn empty_dir_markers(&self) -> PathBuf {
        self.path.join("plugins").join(VolumePlugin::EmptyDir.directory_name())
    }

    /// The directory that holds the marker of an emptyDir.
    pub(crate) fn empty_dir_marker(&self, name: &str) -> PathBuf {
        self.empty_dir_markers().join(name)
    }

    pub(crate) fn sub_paths(&self) -> PathBuf {
        self.path.join(SUB_PATHS)
    }

    pub(crate) fn sub_path(&self, sub_path: &ObservedSubPath) -> PathBuf {
        self.path.join(self.sub_path_within(sub_path))
    }

    /// The place of a sub-path, relative to the pod's directory.
    pub(crate) fn sub_path_within(&self, sub_path: &ObservedSubPath) -> PathBuf {
        Path::new(SUB_PATHS).join(&sub_path.volume).join(&sub_path.container).join(&sub_path.index)
    }
}

/// All mounts at or beneath `directory`.
pub(crate) fn mounts_beneath(
    mounts: &dyn MountPort,
    directory: &Path,
) -> Result<Vec<MountPoint>, ObserveError> {
    mounts.mounts_beneath(directory).map_err(ObserveError::read(directory))
}

/// Reads what is there of a pod's volumes. Directories of volumes themselves are listed, never
/// entered nor asked about: a dead network mount would not answer.
pub(crate) fn observe(
    mounts: &dyn MountPort,
    pod: &PodDirectory,
) -> Result<ObservedPodVolumes, ObserveError> {
    let mounted: BTreeMap<PathBuf, MountPoint> = mounts_beneath(mounts, pod.path())?
        .into_iter()
        .map(|mount| (mount.path.clone(), mount))
        .collect();
    let ready = ready_empty_dirs(pod)?;
    let mut volumes: BTreeMap<(String, String), ObservedVolume> = BTreeMap::new();
    let mut found = |plugin_directory: &str, name: &str, present: bool| {
        let is_empty_dir = plugin_directory == VolumePlugin::EmptyDir.directory_name();
        let mount = mounted.get(&pod.volume(plugin_directory, name));
        let key = (plugin_directory.to_owned(), name.to_owned());
        let volume = volumes.entry(key).or_insert_with(|| ObservedVolume {
            plugin_directory: plugin_directory.to_owned(),
            name: name.to_owned(),
            present: false,
            mounted: mount.map(|mount| MountedFilesystem {
                fs_type: mount.fs_type.clone(),
                page_size_bytes: mount.page_size_bytes,
                read_only: mount.read_only,
            }),
            ready: is_empty_dir && ready.contains(name),
        });
        volume.present |= present;
    };
    for plugin_directory in list(&pod.volumes())? {
        for name in list(&pod.volumes().join(&plugin_directory))? {
            match name.strip_prefix(DELETING_PREFIX) {
                Some(name) => found(&plugin_directory, name, false),
                None => found(&plugin_directory, &name, true),
            }
        }
    }
    for name in &ready {
        found(VolumePlugin::EmptyDir.directory_name(), name, false);
    }
    Ok(ObservedPodVolumes {
        volumes: volumes.into_values().collect(),
        sub_paths: observe_sub_paths(pod)?,
        devices: observe_devices(pod)?,
        checked_host_paths: BTreeSet::new(),
    })
}

/// All prepared sub-paths of a pod, mounted or not.
pub(crate) fn observe_sub_paths(pod: &PodDirectory) -> Result<Vec<ObservedSubPath>, ObserveError> {
    let mut sub_paths = Vec::new();
    for volume in list(&pod.sub_paths())? {
        let of_volume = pod.sub_paths().join(&volume);
        for container in list(&of_volume)? {
            for index in list(&of_volume.join(&container))? {
                sub_paths.push(ObservedSubPath {
                    volume: volume.clone(),
                    container: container.clone(),
                    index,
                });
            }
        }
    }
    Ok(sub_paths)
}

/// The devices that were given to a pod. Links are read and not followed.
fn observe_devices(pod: &PodDirectory) -> Result<Vec<ObservedDevice>, ObserveError> {
    let mut devices = Vec::new();
    for plugin_directory in list(&pod.volume_devices())? {
        for name in list(&pod.volume_devices().join(&plugin_directory))? {
            let link = pod.device(&plugin_directory, &name);
            let device = match fs::read_link(&link) {
                Ok(device) => Some(device.to_string_lossy().into_owned()),
                // It is no link.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => None,
                Err(error) => return Err(ObserveError::read(&link)(error)),
            };
            devices.push(ObservedDevice {
                plugin_directory: plugin_directory.clone(),
                name,
                device,
            });
        }
    }
    Ok(devices)
}

/// EmptyDirs that are marked as complete. Markers of directories that other volumes wrap say
/// nothing: their files are looked at each time.
fn ready_empty_dirs(pod: &PodDirectory) -> Result<BTreeSet<String>, ObserveError> {
    let mut ready = BTreeSet::new();
    for name in list(&pod.empty_dir_markers())? {
        if name.starts_with(WRAPPED_PREFIX) {
            continue;
        }
        if list(&pod.empty_dir_marker(&name))?.iter().any(|file| file == READY_MARKER) {
            ready.insert(name);
        }
    }
    Ok(ready)
}

/// The names in a directory, sorted. A directory that is missing is empty.
pub(crate) fn list(directory: &Path) -> Result<Vec<String>, ObserveError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(ObserveError::read(directory)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(ObserveError::read(directory))?;
        let name = entry
            .file_name()
            .into_string()
            .map_err(|name: OsString| ObserveError::FileName { path: directory.join(name) })?;
        names.push(name);
    }
    names.sort_unstable();
    Ok(names)
}
