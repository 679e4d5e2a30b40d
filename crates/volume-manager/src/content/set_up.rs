use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use jiff::Timestamp;
use rubelet_volume_plan::{ContentError, ContentVolume, EmptyDirMedium, Payload};
use rustix::fs::Gid;

use super::writer::{ContentWriter, Steps, has_content};
use crate::empty_dir::{create_writable_directory, ensure_medium, set_ready_marker};
use crate::error::SetUpError;
use crate::observe::PodDirectory;
use crate::port::MountPort;

/// Before a volume's name, what the marker of its directory is called: the directory is that of an
/// emptyDir, which the volume wraps. No emptyDir of a pod can be called so.
pub(crate) const WRAPPED_PREFIX: &str = "wrapped_";
/// What `fsGroup` may do with the volume's own directory.
const GROUP_ACCESS: u32 = 0o2770;

/// A volume with what is known of its files.
pub(crate) struct ContentToSetUp<'a> {
    pub(crate) name: &'a str,
    pub(crate) volume: &'a ContentVolume,
    pub(crate) payload: Result<Payload, ContentError>,
    pub(crate) now: Timestamp,
}

/// Makes a volume show its files. Without an API server that answers, files of before are good
/// enough: whoever uses them goes on.
pub(crate) fn set_up_content(
    mounts: &dyn MountPort,
    pod: &PodDirectory,
    content: ContentToSetUp<'_>,
) -> Result<(), SetUpError> {
    let ContentToSetUp { name, volume, payload, now } = content;
    let path = pod.volume(volume.plugin.directory_name(), name);
    let mounted = mounts.mounted_at(&path).map_err(SetUpError::io("inspect", &path))?;
    let payload = match payload {
        Ok(payload) => payload,
        Err(error) => {
            let is_on_medium = match volume.medium {
                EmptyDirMedium::Memory { .. } => {
                    mounted.is_some_and(|mount| mount.fs_type == "tmpfs")
                }
                EmptyDirMedium::Disk | EmptyDirMedium::HugePages { .. } => true,
            };
            let is_there =
                is_on_medium && has_content(&path).map_err(SetUpError::io("read", &path))?;
            if is_there && error.is_unreachable() {
                tracing::warn!(volume = name, path = %path.display(), %error,
                    "Volume keeps its files as they are: what they should be cannot be told");
                return Ok(());
            }
            return Err(SetUpError::Content(error));
        }
    };
    create_writable_directory(&path)?;
    ensure_medium(mounts, &path, volume.medium, mounted.as_ref())?;
    if let Some(group) = payload.group {
        give_to_group(&path, group)?;
    }
    set_ready_marker(pod, &format!("{WRAPPED_PREFIX}{name}"))?;
    let written = ContentWriter { mounts, directory: &path, now }
        .write(&payload, &volume.nested_mount_points, &mut Steps(&mut || Ok(())))
        .map_err(SetUpError::io("write files in", &path))?;
    if written {
        tracing::debug!(volume = name, path = %path.display(), "Wrote the files of a volume");
    }
    Ok(())
}

/// Gives the volume's own directory to `fsGroup`; the files get it when they are written.
fn give_to_group(path: &Path, group: u32) -> Result<(), SetUpError> {
    let metadata = fs::symlink_metadata(path).map_err(SetUpError::io("read", path))?;
    if metadata.gid() != group {
        rustix::fs::chown(path, None, Some(Gid::from_raw(group)))
            .map_err(|error| SetUpError::io("change ownership of", path)(error.into()))?;
    }
    let wanted = metadata.mode() & 0o7777 | GROUP_ACCESS;
    if metadata.gid() == group && metadata.mode() & 0o7777 == wanted {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(wanted))
        .map_err(SetUpError::io("set mode of", path))
}
