use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use rubelet_volume_plan::{EmptyDirMedium, EmptyDirVolume};

use crate::error::SetUpError;
use crate::observe::{PodDirectory, READY_MARKER};
use crate::ownership::{FsGroupChangePolicy, OwnershipProgress, set_group_ownership};
use crate::port::{MountPoint, MountPort};

/// Everybody in the pod may write, whoever they run as.
const EMPTY_DIR_MODE: u32 = 0o777;

/// `fsGroup` of a pod with its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FsGroup {
    pub(crate) gid: u32,
    pub(crate) policy: FsGroupChangePolicy,
}

/// Makes an emptyDir ready: directory, mount, ownership, and at last the marker that says so.
pub(crate) fn set_up_empty_dir(
    mounts: &dyn MountPort,
    pod: &PodDirectory,
    name: &str,
    volume: &EmptyDirVolume,
    fs_group: Option<FsGroup>,
    progress: &mut OwnershipProgress<'_>,
) -> Result<(), SetUpError> {
    let path = pod.empty_dir(name);
    create_writable_directory(&path)?;
    // Of several mounts at one place the last one is visible.
    let mounted = mounts.mounted_at(&path).map_err(SetUpError::io("inspect", &path))?;
    ensure_medium(mounts, &path, volume.medium, mounted.as_ref())?;
    if let Some(FsGroup { gid, policy }) = fs_group {
        set_group_ownership(&path, gid, policy, progress)
            .map_err(SetUpError::io("change ownership of", &path))?;
    }
    set_ready_marker(pod, name)
}

/// Marks a directory as completely set up.
pub(crate) fn set_ready_marker(pod: &PodDirectory, name: &str) -> Result<(), SetUpError> {
    let marker = pod.empty_dir_marker(name);
    let file = marker.join(READY_MARKER);
    if file.exists() {
        return Ok(());
    }
    create_private_directories(&marker)?;
    fs::write(&file, "").map_err(SetUpError::io("create", &file))
}

/// Mounts what a volume's directory should be on. `mounted` is what is visible there.
pub(crate) fn ensure_medium(
    mounts: &dyn MountPort,
    path: &Path,
    medium: EmptyDirMedium,
    mounted: Option<&MountPoint>,
) -> Result<(), SetUpError> {
    let mounted_as = |fs_type: &str| mounted.filter(|mount| mount.fs_type == fs_type);
    match medium {
        EmptyDirMedium::Disk => Ok(()),
        EmptyDirMedium::Memory { size_bytes } => {
            if mounted_as("tmpfs").is_some() {
                return Ok(());
            }
            mounts.mount_tmpfs(path, size_bytes).map_err(SetUpError::io("mount tmpfs on", path))
        }
        EmptyDirMedium::HugePages { page_size_bytes, exact } => {
            if let Some(mounted) = mounted_as("hugetlbfs") {
                if exact && mounted.page_size_bytes != Some(page_size_bytes) {
                    return Err(SetUpError::PageSize {
                        path: path.to_owned(),
                        found: mounted.page_size_bytes,
                        wanted: page_size_bytes,
                    });
                }
                return Ok(());
            }
            mounts
                .mount_huge_pages(path, page_size_bytes)
                .map_err(SetUpError::io("mount hugetlbfs on", path))
        }
    }
}

/// The process's umask takes bits away from new directories, so the mode is set afterwards.
pub(crate) fn create_writable_directory(path: &Path) -> Result<(), SetUpError> {
    if let Some(parent) = path.parent() {
        create_private_directories(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(SetUpError::io("create directory", path)(error));
        }
        _ => {}
    }
    let mode =
        fs::symlink_metadata(path).map_err(SetUpError::io("read", path))?.permissions().mode();
    if mode & EMPTY_DIR_MODE == EMPTY_DIR_MODE {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(EMPTY_DIR_MODE))
        .map_err(SetUpError::io("set mode of", path))
}

/// Creates what is missing of a directory's path, for the kubelet and its group alone.
pub(crate) fn create_private_directories(path: &Path) -> Result<(), SetUpError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
        .map_err(SetUpError::io("create directory", path))
}
