//! Setting volumes up. Those that outlive their pods are mounted for the pod, and nothing of them is
//! ever deleted.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rubelet_types::{EventObject, EventRecorder, PodRef};
use rubelet_volume_plan::{
    BlockVolume, DesiredVolume, EmptyDirVolume, LocalVolume, NfsVolume, VolumePlugin,
};
use tokio::time::Instant;

use crate::empty_dir::{FsGroup, create_private_directories, set_up_empty_dir};
use crate::error::{SetUpError, TearDownError};
use crate::observe::{ObserveError, PodDirectory, mounts_beneath};
use crate::ownership::{OwnershipProgress, set_group_ownership};
use crate::port::MountPort;
use crate::tear_down::{remove_mount_point, unmount_all_at};

/// Who works on a persistent volume, of the pods that share it.
#[derive(Debug, Default)]
pub(crate) struct VolumeTurns(Mutex<HashMap<String, Weak<Mutex<()>>>>);

impl VolumeTurns {
    /// Whoever locks it works on the volume alone.
    pub(crate) fn of(&self, volume: &str) -> Arc<Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(volume).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(volume.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

/// What the set-up of a volume needs.
pub(crate) struct SetUp<'a> {
    pub(crate) mounts: &'a dyn MountPort,
    pub(crate) directory: &'a PodDirectory,
    pub(crate) pod: &'a PodRef,
    pub(crate) events: &'a EventRecorder,
    pub(crate) turns: &'a VolumeTurns,
}

impl SetUp<'_> {
    /// Binds a directory of the node.
    pub(crate) fn local(
        &self,
        volume: &DesiredVolume,
        local: &LocalVolume,
        fs_group: Option<FsGroup>,
    ) -> Result<(), SetUpError> {
        let turn = self.turns.of(&volume.spec_name);
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let source = match local_place(&local.path)? {
            LocalPlace::Directory(directory) => directory.to_owned(),
            LocalPlace::Device(device) => self.mount_device(volume, local, device)?,
        };
        let source = &*source;
        let target = self.place(VolumePlugin::Local, &volume.spec_name);
        if let Some(group) = fs_group {
            let shared = self.is_mounted_by_others(source, &target)?;
            if shared {
                self.tell_other_group(volume, source, group)?;
            } else if !volume.read_only {
                // Before the mount: whoever finds that may take the group for right.
                self.give_to_group(source, group)
                    .map_err(SetUpError::io("change ownership of", source))?;
            }
        }
        create_private_directories(&target)?;
        let bound = self.mounts.bind(source, &target, volume.read_only);
        bound.map_err(SetUpError::io("mount", &target))
    }

    /// Mounts a device where all pods of the node get it from; formats it if it holds nothing.
    fn mount_device(
        &self,
        volume: &DesiredVolume,
        local: &LocalVolume,
        device: &Path,
    ) -> Result<PathBuf, SetUpError> {
        let place = self.directory.local_device(&volume.spec_name);
        let mounted = mounts_beneath(self.mounts, &place)?;
        if mounted.iter().any(|mount| mount.path == place) {
            return Ok(place);
        }
        create_private_directories(&place)?;
        let LocalVolume { fs_type, mount_options, .. } = local;
        let mut options = mount_options.clone();
        if volume.read_only {
            options.push("ro".to_owned());
        }
        let mounted = self.mounts.format_and_mount(device, &place, fs_type, &options);
        mounted.map_err(|source| {
            // Empty, or not ours to remove.
            let _ = fs::remove_dir(&place);
            let (device, fs_type) = (device.to_owned(), fs_type.clone());
            SetUpError::Device { device, place: place.clone(), fs_type, source }
        })?;
        Ok(place)
    }

    fn give_to_group(&self, directory: &Path, group: FsGroup) -> io::Result<()> {
        let tell = |message| self.tell_progress(message);
        let name = directory.display().to_string();
        let mut progress = OwnershipProgress::new(name, Instant::now(), &tell);
        set_group_ownership(directory, group.gid, group.policy, &mut progress)
    }

    fn tell_progress(&self, message: String) {
        let object = EventObject::Pod(self.pod.clone());
        self.events.warning(object, "VolumePermissionChangeInProgress", message);
    }

    /// Makes an emptyDir ready, and gives it to the pod's group.
    pub(crate) fn empty_dir(
        &self,
        name: &str,
        volume: &EmptyDirVolume,
        fs_group: Option<FsGroup>,
    ) -> Result<(), SetUpError> {
        let tell = |message| self.tell_progress(message);
        let volume_name =
            format!("{}/volumes/{}/{name}", self.pod.uid, VolumePlugin::EmptyDir.directory_name());
        let mut progress = OwnershipProgress::new(volume_name, Instant::now(), &tell);
        set_up_empty_dir(self.mounts, self.directory, name, volume, fs_group, &mut progress)
    }

    /// Mounts a directory of an NFS server.
    pub(crate) fn nfs(&self, volume: &DesiredVolume, nfs: &NfsVolume) -> Result<(), SetUpError> {
        let target = self.place(VolumePlugin::Nfs, &volume.spec_name);
        create_private_directories(&target)?;
        let mut options = nfs.mount_options.clone();
        if volume.read_only {
            options.push("ro".to_owned());
        }
        let mounted = self.mounts.mount_file_system(&nfs.source, &target, "nfs", &options);
        mounted.map_err(|error| {
            // Empty, or not ours to remove.
            let _ = fs::remove_dir(&target);
            SetUpError::FileSystem(error)
        })
    }

    /// Links a device to where containers get it from.
    pub(crate) fn block(
        &self,
        volume: &DesiredVolume,
        block: &BlockVolume,
    ) -> Result<(), SetUpError> {
        let device = Path::new(&block.device);
        let found = look_up(device)?;
        if !found.file_type().is_block_device() {
            return Err(SetUpError::NotBlockDevice { path: device.to_owned() });
        }
        let link = self.directory.device(block.plugin.directory_name(), &volume.spec_name);
        if let Some(parent) = link.parent() {
            create_private_directories(parent)?;
        }
        match fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(SetUpError::io("replace", &link)(error));
            }
            _ => {}
        }
        symlink(device, &link).map_err(SetUpError::io("create link", &link))?;
        let message = format!(
            "MapVolume.MapPodDevice succeeded for volume {:?} volumeMapPath {:?}",
            volume.spec_name,
            link.parent().unwrap_or(&link).display(),
        );
        let object = EventObject::Pod(self.pod.clone());
        self.events.normal(object, "SuccessfulMountVolume", message);
        Ok(())
    }

    fn place(&self, plugin: VolumePlugin, spec_name: &str) -> PathBuf {
        self.directory.volume(plugin.directory_name(), spec_name)
    }

    /// Another pod uses the directory.
    fn is_mounted_by_others(&self, source: &Path, own: &Path) -> Result<bool, SetUpError> {
        let mounts = self.mounts.other_mounts_of(source);
        let mounts = mounts.map_err(SetUpError::io("find the mounts of", source))?;
        let pods = self.directory.path().parent().unwrap_or(self.directory.path());
        Ok(mounts.iter().any(|mount| mount.starts_with(pods) && mount != own))
    }

    /// Files have one group: a pod that wants another one than a pod before it is told.
    fn tell_other_group(
        &self,
        volume: &DesiredVolume,
        source: &Path,
        group: FsGroup,
    ) -> Result<(), SetUpError> {
        let found = look_up(source)?.gid();
        if found != group.gid {
            let message = format!(
                "The requested fsGroup is {}, but the volume {} has GID {found}. The volume may \
                 not be shareable.",
                group.gid, volume.spec_name,
            );
            let object = EventObject::Pod(self.pod.clone());
            self.events.warning(object, "AlreadyMountedVolume", message);
        }
        Ok(())
    }
}

/// Where a local volume is.
enum LocalPlace<'a> {
    Directory(&'a Path),
    Device(&'a Path),
}

fn local_place(path: &str) -> Result<LocalPlace<'_>, SetUpError> {
    let path = Path::new(path);
    if path.components().any(|element| element == Component::ParentDir) {
        return Err(SetUpError::LocalPathBacksteps { path: path.to_owned() });
    }
    let found = look_up(path)?.file_type();
    if found.is_dir() {
        Ok(LocalPlace::Directory(path))
    } else if found.is_block_device() {
        Ok(LocalPlace::Device(path))
    } else {
        Err(SetUpError::NoDirectory)
    }
}

/// Unmounts a device that the last pod of the node has left.
pub(crate) fn release_local_device(
    mounts: &dyn MountPort,
    directory: &PodDirectory,
    turns: &VolumeTurns,
    spec_name: &str,
) -> Result<(), TearDownError> {
    let turn = turns.of(spec_name);
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let place = directory.local_device(spec_name);
    if !mounts_beneath(mounts, &place)?.iter().any(|mount| mount.path == place) {
        return remove_mount_point(&place);
    }
    let others = mounts.other_mounts_of(&place).map_err(ObserveError::read(&place))?;
    if !others.is_empty() {
        return Ok(());
    }
    unmount_all_at(mounts, &place)?;
    remove_mount_point(&place)
}

/// Follows links: where a volume is, is for the node's owner to say.
fn look_up(path: &Path) -> Result<fs::Metadata, SetUpError> {
    fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => SetUpError::NoSuchPath { path: path.to_owned() },
        _ => SetUpError::io("read", path)(error),
    })
}

#[cfg(test)]
mod tests {
    use rubelet_types::NodePaths;

    use super::*;
    use crate::host_mounts::HostMounts;

    #[test]
    fn a_change_of_owners_that_takes_long_is_told_of_the_pod() {
        let root = tempfile::tempdir().unwrap();
        let paths = NodePaths::new(root.path(), "/var/log/pods", "/var/log/containers");
        fs::create_dir(paths.pods_dir()).unwrap();
        let pod = PodRef::new("u1", "ns", "web");
        let told = Arc::new(Mutex::new(Vec::new()));
        let sink = told.clone();
        let events = EventRecorder::new(move |event| {
            let EventObject::Pod(pod) = event.object else { panic!("not of a pod") };
            sink.lock().unwrap().push(format!("{pod} {}: {}", event.reason, event.message));
        });
        let set_up = SetUp {
            mounts: &HostMounts,
            directory: &PodDirectory::locate(&paths, &pod.uid).unwrap(),
            pod: &pod,
            events: &events,
            turns: &VolumeTurns::default(),
        };
        set_up.tell_progress("Setting volume ownership for v, processed 6 files.".to_owned());
        assert_eq!(
            *told.lock().unwrap(),
            ["web_ns(u1) VolumePermissionChangeInProgress: \
              Setting volume ownership for v, processed 6 files."]
        );
    }
}
