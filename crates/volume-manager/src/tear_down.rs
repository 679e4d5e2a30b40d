//! Taking a pod's volumes down. Each step checks for itself that no mount is where something is
//! about to be deleted, because a mount may have appeared since the last look.

use std::fs;
use std::io;
use std::path::Path;

use rubelet_volume_plan::{
    ContainerPresence, ObservedPodVolumes, ObservedSubPath, VolumeAction, VolumePlugin,
    plan_volumes,
};
use tokio::time::Instant;

use crate::content::WRAPPED_PREFIX;
use crate::error::TearDownError;
use crate::metrics::VolumeMetrics;
use crate::observe::{
    ObserveError, PodDirectory, list, mounts_beneath, observe, observe_sub_paths,
};
use crate::persistent::{VolumeTurns, release_local_device};
use crate::port::MountPort;

/// Takes down everything in a pod's directory and removes it. The caller vouches that the last
/// container is gone. Returns every step that failed; none means that the directory is gone.
pub(crate) fn tear_down_pod(
    mounts: &dyn MountPort,
    turns: &VolumeTurns,
    metrics: &VolumeMetrics,
    pod: &PodDirectory,
) -> Vec<TearDownError> {
    match observe(mounts, pod) {
        Ok(observed) => tear_down_observed(mounts, turns, metrics, pod, &observed),
        Err(error) => vec![error.into()],
    }
}

pub(crate) fn tear_down_observed(
    mounts: &dyn MountPort,
    turns: &VolumeTurns,
    metrics: &VolumeMetrics,
    pod: &PodDirectory,
    observed: &ObservedPodVolumes,
) -> Vec<TearDownError> {
    let plan = plan_volumes(&[], observed, ContainerPresence::Gone);
    let mut failures: Vec<TearDownError> = plan
        .blocked
        .into_iter()
        .map(|blocked| TearDownError::UnknownPlugin {
            plugin_directory: blocked.plugin_directory,
            volume: blocked.name,
        })
        .collect();
    failures.extend(plan.actions.iter().filter_map(|action| {
        let begun = Instant::now();
        let applied = apply_tear_down(mounts, turns, pod, action);
        metrics.took_down(action, begun.elapsed(), applied.is_ok());
        applied.err()
    }));
    if failures.is_empty() {
        failures.extend(remove_pod_directory(mounts, pod).err());
    }
    failures
}

fn apply_tear_down(
    mounts: &dyn MountPort,
    turns: &VolumeTurns,
    pod: &PodDirectory,
    action: &VolumeAction,
) -> Result<(), TearDownError> {
    match action {
        VolumeAction::RemoveSubPath(sub_path) => remove_sub_path(mounts, pod, sub_path),
        VolumeAction::TearDownDirectory { plugin, name } => {
            tear_down_directory(mounts, pod, *plugin, name)
        }
        VolumeAction::Unmount { plugin, name } => {
            unmount_volume(mounts, pod, *plugin, name)?;
            match plugin {
                VolumePlugin::Local => release_local_device(mounts, pod, turns, name),
                _ => Ok(()),
            }
        }
        VolumeAction::RemoveDeviceLink { plugin, name } => {
            if *plugin == VolumePlugin::Local {
                remove_device_map(mounts, &pod.local_device_map(name))?;
            }
            let link = pod.device(plugin.directory_name(), name);
            gone(&link, fs::remove_file(&link))
        }
        VolumeAction::RemoveEmptyDirectory { plugin_directory, name } => {
            remove_left_over(mounts, &pod.volume(plugin_directory, name))
        }
        // No plan for a pod whose containers are gone sets anything up.
        VolumeAction::SetUp(_) => Ok(()),
    }
}

/// Unmounts a sub-path and removes its mount point, which never holds data of its own: so a mount
/// that hides from us makes the removal fail instead of losing data.
pub(crate) fn remove_sub_path(
    mounts: &dyn MountPort,
    pod: &PodDirectory,
    sub_path: &ObservedSubPath,
) -> Result<(), TearDownError> {
    let path = pod.sub_path(sub_path);
    unmount_all_at(mounts, &path)?;
    remove_mount_point(&path)?;
    let mut directory = path.as_path();
    for _ in 0..3 {
        let Some(parent) = directory.parent() else { break };
        if !remove_if_empty(parent)? {
            break;
        }
        directory = parent;
    }
    Ok(())
}

/// Removes what another kubelet has made to hold a device: a bind mount of it, and a loop device on
/// that.
fn remove_device_map(mounts: &dyn MountPort, map: &Path) -> Result<(), TearDownError> {
    match fs::symlink_metadata(map) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ObserveError::read(map)(error).into()),
        Ok(_) => {}
    }
    mounts
        .detach_loop_devices(map)
        .map_err(|source| TearDownError::Detach { path: map.to_owned(), source })?;
    unmount_all_at(mounts, map)?;
    remove_mount_point(map)?;
    match map.parent() {
        Some(parent) => remove_if_empty(parent).map(drop),
        None => Ok(()),
    }
}

/// Takes a volume away from the pod that lives on without it.
fn unmount_volume(
    mounts: &dyn MountPort,
    pod: &PodDirectory,
    plugin: VolumePlugin,
    name: &str,
) -> Result<(), TearDownError> {
    refuse_sub_paths(pod, name)?;
    let path = pod.volume(plugin.directory_name(), name);
    unmount_all_at(mounts, &path)?;
    remove_mount_point(&path)
}

fn refuse_sub_paths(pod: &PodDirectory, volume: &str) -> Result<(), TearDownError> {
    if observe_sub_paths(pod)?.iter().any(|sub_path| sub_path.volume == volume) {
        return Err(TearDownError::SubPathsRemain { volume: volume.to_owned() });
    }
    Ok(())
}

fn tear_down_directory(
    mounts: &dyn MountPort,
    pod: &PodDirectory,
    plugin: VolumePlugin,
    name: &str,
) -> Result<(), TearDownError> {
    refuse_sub_paths(pod, name)?;
    let plugin_directory = plugin.directory_name();
    let path = pod.volume(plugin_directory, name);
    let deleting = pod.deleting_volume(plugin_directory, name);
    let marker = match plugin {
        VolumePlugin::EmptyDir => pod.empty_dir_marker(name),
        _ => pod.empty_dir_marker(&format!("{WRAPPED_PREFIX}{name}")),
    };
    unmount_all_at(mounts, &path)?;
    refuse_mounts_beneath(mounts, &path)?;
    remove_tree(mounts, &deleting)?;
    // From here on nobody can take the half of it that is left for a volume.
    match fs::rename(&path, &deleting) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(TearDownError::Remove { path, source: error });
        }
        _ => {}
    }
    remove_tree(mounts, &marker)?;
    remove_tree(mounts, &deleting)
}

/// Removes the pod's directory after its volumes: what is left in it is the kubelet's own.
fn remove_pod_directory(mounts: &dyn MountPort, pod: &PodDirectory) -> Result<(), TearDownError> {
    for tree in [pod.volumes(), pod.volume_devices(), pod.sub_paths()] {
        remove_left_over(mounts, &tree)?;
    }
    refuse_mounts_beneath(mounts, pod.path())?;
    for name in list(pod.path())? {
        remove_tree(mounts, &pod.path().join(name))?;
    }
    gone(pod.path(), fs::remove_dir(pod.path()))
}

/// Unmounts whatever is mounted exactly at `path`, be it in several layers.
pub(crate) fn unmount_all_at(mounts: &dyn MountPort, path: &Path) -> Result<(), TearDownError> {
    let layers = |mounts: &dyn MountPort| -> Result<usize, TearDownError> {
        let found = mounts_beneath(mounts, path)?;
        Ok(found.iter().filter(|mount| mount.path == path).count())
    };
    for _ in 0..layers(mounts)? {
        if let Err(source) = mounts.unmount(path) {
            // Somebody else may have been faster.
            if layers(mounts)? == 0 {
                return Ok(());
            }
            return Err(TearDownError::Unmount { path: path.to_owned(), source });
        }
    }
    Ok(())
}

fn refuse_mounts_beneath(mounts: &dyn MountPort, path: &Path) -> Result<(), TearDownError> {
    match mounts_beneath(mounts, path)?.into_iter().next() {
        Some(mount) => {
            Err(TearDownError::MountRemains { path: path.to_owned(), mount: mount.path })
        }
        None => Ok(()),
    }
}

fn remove_tree(mounts: &dyn MountPort, path: &Path) -> Result<(), TearDownError> {
    refuse_mounts_beneath(mounts, path)?;
    mounts
        .remove_tree(path)
        .map_err(|source| TearDownError::Remove { path: path.to_owned(), source })
}

/// Removes what an operation left that was cut short: it holds no data, or stays.
fn remove_left_over(mounts: &dyn MountPort, path: &Path) -> Result<(), TearDownError> {
    refuse_mounts_beneath(mounts, path)?;
    mounts
        .remove_empty_tree(path)
        .map_err(|source| TearDownError::Remove { path: path.to_owned(), source })
}

/// Removes a mount point, which is an empty directory or a file.
pub(crate) fn remove_mount_point(path: &Path) -> Result<(), TearDownError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    gone(path, removed)
}

/// Removes a directory if it is empty; tells whether it is gone.
fn remove_if_empty(path: &Path) -> Result<bool, TearDownError> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        removed => gone(path, removed).map(|()| true),
    }
}

fn gone(path: &Path, removed: io::Result<()>) -> Result<(), TearDownError> {
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(TearDownError::Remove { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
