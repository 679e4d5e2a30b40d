use std::ffi::CString;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsOpenFlags, MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};

use super::{MountTable, MountTableError};

/// A mount could not be made or changed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The place to mount at cannot be opened, or is a link.
    #[error("cannot open mount point {target}")]
    OpenTarget {
        /// The place.
        target: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot mount {file_system} at {target}")]
    Mount {
        /// The file system type, or `bind`.
        file_system: &'static str,
        /// The place.
        target: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot change the mount at {target}")]
    Change {
        /// The place.
        target: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Whether something is mounted there cannot be told.
    #[error("cannot tell whether {path} is a mount point")]
    Inspect {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The mount table is needed and cannot be had.
    #[error(transparent)]
    Table(#[from] MountTableError),
}

/// Why something is still mounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Some process uses it: try again later.
    #[error("{target} is busy")]
    Busy {
        /// The mount point.
        target: PathBuf,
    },
    /// Nothing is mounted there: what was wanted is the case.
    #[error("{target} is not a mount point")]
    NotMounted {
        /// The path.
        target: PathBuf,
    },
    /// The kernel refused otherwise.
    #[error("cannot unmount {target}")]
    Failed {
        /// The mount point.
        target: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Options of a tmpfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TmpfsOptions {
    /// Most bytes it may hold; the kernel's default (half of memory) if none.
    pub size: Option<u64>,
    /// Its pages never go to swap; see [`tmpfs_noswap_supported`].
    pub noswap: bool,
    /// Permissions of its root.
    pub mode: Option<u32>,
}

/// Options of a hugetlbfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugetlbfsOptions {
    /// Bytes of a page.
    pub page_size: u64,
    /// Most bytes it may hold.
    pub size: Option<u64>,
}

/// Mounts a tmpfs at the directory `target`, which must not be a link.
///
/// # Errors
/// When the target cannot be opened or the kernel refuses.
pub fn mount_tmpfs(target: &Path, options: &TmpfsOptions) -> Result<(), MountError> {
    mount_at(target, "tmpfs", &tmpfs_data(options))
}

/// Mounts a hugetlbfs at the directory `target`, which must not be a link.
///
/// # Errors
/// When the target cannot be opened, or the kernel refuses (it has no pages of that size).
pub fn mount_hugetlbfs(target: &Path, options: &HugetlbfsOptions) -> Result<(), MountError> {
    mount_at(target, "hugetlbfs", &hugetlbfs_data(options))
}

fn tmpfs_data(options: &TmpfsOptions) -> String {
    let mut data = String::new();
    if let Some(size) = options.size {
        append(&mut data, "size", &size);
    }
    if let Some(mode) = options.mode {
        append(&mut data, "mode", &format_args!("{mode:o}"));
    }
    if options.noswap {
        if !data.is_empty() {
            data.push(',');
        }
        data.push_str("noswap");
    }
    data
}

fn hugetlbfs_data(options: &HugetlbfsOptions) -> String {
    let mut data = String::new();
    append(&mut data, "pagesize", &options.page_size);
    if let Some(size) = options.size {
        append(&mut data, "size", &size);
    }
    data
}

fn append(data: &mut String, key: &str, value: &dyn std::fmt::Display) {
    let separator = if data.is_empty() { "" } else { "," };
    // Writing to a String cannot fail.
    let _ = write!(data, "{separator}{key}={value}");
}

fn mount_at(target: &Path, file_system: &'static str, data: &str) -> Result<(), MountError> {
    let directory = open_target(target, OFlags::DIRECTORY)?;
    let failed =
        |source: io::Error| MountError::Mount { file_system, target: target.to_owned(), source };
    let data = CString::new(data).map_err(|error| failed(error.into()))?;
    rustix::mount::mount(
        file_system,
        fd_path(directory.as_fd()),
        file_system,
        MountFlags::empty(),
        data.as_c_str(),
    )
    .map_err(|errno| failed(errno.into()))
}

fn open_target(target: &Path, flags: OFlags) -> Result<OwnedFd, MountError> {
    let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(target, flags, Mode::empty())
        .map_err(|errno| MountError::OpenTarget { target: target.to_owned(), source: errno.into() })
}

/// A path by which the kernel finds exactly the file behind `fd`.
fn fd_path(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Makes the file or directory behind `source` appear at `target` (not what is mounted beneath it).
/// Both are handles, so that nobody can exchange them meanwhile; `target_path` is for errors only.
///
/// # Errors
/// When the kernel refuses.
pub fn bind_mount(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    target_path: &Path,
) -> Result<(), MountError> {
    let clone = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let result = match rustix::mount::open_tree(source, "", clone) {
        Ok(tree) => rustix::mount::move_mount(
            tree,
            "",
            target,
            "",
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
        ),
        // Before Linux 5.2.
        Err(Errno::NOSYS) => bind_mount_by_magic_link(source, target),
        Err(errno) => Err(errno),
    };
    result.map_err(|errno| MountError::Mount {
        file_system: "bind",
        target: target_path.to_owned(),
        source: errno.into(),
    })
}

fn bind_mount_by_magic_link(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    rustix::mount::mount_bind(fd_path(source), fd_path(target))
}

/// Makes the bind mount at `target` read-only and keeps its other flags.
///
/// # Errors
/// When nothing is mounted there or the kernel refuses.
pub fn remount_bind_read_only(target: &Path) -> Result<(), MountError> {
    let table = MountTable::read()?;
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    for option in table.at(target).map(|mount| mount.options.as_slice()).unwrap_or_default() {
        // A flag that is not repeated would be dropped, or refused where it is locked.
        flags |= match option.as_str() {
            "nosuid" => MountFlags::NOSUID,
            "nodev" => MountFlags::NODEV,
            "noexec" => MountFlags::NOEXEC,
            "noatime" => MountFlags::NOATIME,
            "nodiratime" => MountFlags::NODIRATIME,
            "relatime" => MountFlags::RELATIME,
            _ => MountFlags::empty(),
        };
    }
    rustix::mount::mount_remount(target, flags, "")
        .map_err(|errno| MountError::Change { target: target.to_owned(), source: errno.into() })
}

/// Makes sure that `path`, free of links, lies on a mount that shares its mounts with other
/// namespaces: mounts made beneath it later reach the containers that ask for them.
///
/// # Errors
/// When the mount table cannot be read or the kernel refuses.
pub fn ensure_shared(path: &Path) -> Result<(), MountError> {
    let table = MountTable::read()?;
    if table.containing(path).is_some_and(|mount| mount.shared_group.is_some()) {
        return Ok(());
    }
    let failed =
        |errno: Errno| MountError::Change { target: path.to_owned(), source: errno.into() };
    if table.at(path).is_none() {
        rustix::mount::mount_bind_recursive(path, path).map_err(failed)?;
    }
    rustix::mount::mount_change(path, MountPropagationFlags::SHARED | MountPropagationFlags::REC)
        .map_err(failed)
}

/// Something is mounted at `path` itself; a link there is not followed. A path that does not exist
/// is no mount point.
///
/// # Errors
/// When the path cannot be inspected, for instance because the mounted file system is broken.
pub fn is_mount_point(path: &Path) -> Result<bool, MountError> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE) {
        Ok(stat) if stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
        }
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        // Before Linux 5.8.
        Ok(_) | Err(Errno::NOSYS) => is_in_table(path),
        Err(errno) => Err(MountError::Inspect { path: path.to_owned(), source: errno.into() }),
    }
}

fn is_in_table(path: &Path) -> Result<bool, MountError> {
    let inspect = |source| MountError::Inspect { path: path.to_owned(), source };
    let resolved = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => parent.canonicalize().map_err(inspect)?.join(name),
        _ => path.canonicalize().map_err(inspect)?,
    };
    Ok(MountTable::read()?.at(&resolved).is_some())
}

/// Unmounts what is mounted on top at `target`; a link there is not followed. Can block for long
/// while the file system writes its data back.
///
/// # Errors
/// [`UnmountError::Busy`] and [`UnmountError::NotMounted`] tell the usual causes.
pub fn unmount(target: &Path) -> Result<(), UnmountError> {
    rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
        Errno::BUSY => UnmountError::Busy { target: target.to_owned() },
        Errno::INVAL | Errno::NOENT => UnmountError::NotMounted { target: target.to_owned() },
        errno => UnmountError::Failed { target: target.to_owned(), source: errno.into() },
    })
}

/// The kernel can keep a tmpfs out of swap (Linux 6.4 and newer). Asks the kernel without mounting
/// anything; needs the right to mount.
pub fn tmpfs_noswap_supported() -> bool {
    rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)
        .and_then(|context| rustix::mount::fsconfig_set_flag(context, "noswap"))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_as_the_kernel_reads_them() {
        let tmpfs = |size, noswap, mode| tmpfs_data(&TmpfsOptions { size, noswap, mode });
        assert_eq!(tmpfs(None, false, None), "");
        assert_eq!(tmpfs(Some(4096), false, None), "size=4096");
        assert_eq!(tmpfs(Some(4096), true, Some(0o1777)), "size=4096,mode=1777,noswap");
        assert_eq!(tmpfs(None, true, None), "noswap");
        assert_eq!(
            hugetlbfs_data(&HugetlbfsOptions { page_size: 2 << 20, size: Some(4 << 20) }),
            "pagesize=2097152,size=4194304"
        );
    }

    #[test]
    fn mount_points_of_the_machine() {
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(is_in_table(Path::new("/proc")).unwrap());
        assert!(!is_mount_point(Path::new("/proc/self/fd")).unwrap());
        assert!(!is_mount_point(Path::new("/no/such/path")).unwrap());
        assert!(!is_mount_point(Path::new("/proc/cpuinfo/x")).unwrap());
    }

    #[test]
    fn unmounting_nothing_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        for path in [directory.path().to_owned(), directory.path().join("missing")] {
            assert!(matches!(unmount(&path), Err(UnmountError::NotMounted { .. })), "{path:?}");
        }
    }

    use crate::test_namespace::in_private_mount_namespace;

    fn handle(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn a_tmpfs_comes_and_goes() {
        in_private_mount_namespace("mount::mounting::tests::a_tmpfs_comes_and_goes", || {
            let temp = tempfile::tempdir().unwrap();
            let target = temp.path().join("with space");
            std::fs::create_dir(&target).unwrap();
            let noswap = tmpfs_noswap_supported();
            let options = TmpfsOptions { size: Some(1 << 20), noswap, mode: Some(0o1777) };
            mount_tmpfs(&target, &options).unwrap();
            assert!(is_mount_point(&target).unwrap());
            assert!(is_in_table(&target).unwrap());
            let table = MountTable::read().unwrap();
            let mount = table.at(&target).unwrap();
            assert_eq!(mount.file_system, "tmpfs");
            assert!(mount.super_options.contains(&"size=1024k".to_owned()), "{mount:?}");
            assert_eq!(mount.super_options.contains(&"noswap".to_owned()), noswap);

            let open = std::fs::File::create(target.join("open")).unwrap();
            assert!(matches!(unmount(&target), Err(UnmountError::Busy { .. })));
            drop(open);
            unmount(&target).unwrap();
            assert!(!is_mount_point(&target).unwrap());
        });
    }

    #[test]
    fn a_hugetlbfs_for_every_page_size_of_the_kernel() {
        in_private_mount_namespace(
            "mount::mounting::tests::a_hugetlbfs_for_every_page_size_of_the_kernel",
            || {
                let temp = tempfile::tempdir().unwrap();
                for pool in crate::Host::system().huge_pages().unwrap() {
                    let page_size = pool.page_size;
                    let size = Some(2 * page_size);
                    mount_hugetlbfs(temp.path(), &HugetlbfsOptions { page_size, size }).unwrap();
                    let table = MountTable::read().unwrap();
                    let real = temp.path().canonicalize().unwrap();
                    assert_eq!(table.at(&real).unwrap().file_system, "hugetlbfs");
                    unmount(temp.path()).unwrap();
                }
                let odd = HugetlbfsOptions { page_size: 12_288, size: None };
                assert!(matches!(
                    mount_hugetlbfs(temp.path(), &odd),
                    Err(MountError::Mount { file_system: "hugetlbfs", .. })
                ));
            },
        );
    }

    #[test]
    fn nothing_is_mounted_through_a_link() {
        in_private_mount_namespace(
            "mount::mounting::tests::nothing_is_mounted_through_a_link",
            || {
                let temp = tempfile::tempdir().unwrap();
                let (real, link) = (temp.path().join("real"), temp.path().join("link"));
                std::fs::create_dir(&real).unwrap();
                std::os::unix::fs::symlink(&real, &link).unwrap();
                let result = mount_tmpfs(&link, &TmpfsOptions::default());
                assert!(matches!(result, Err(MountError::OpenTarget { .. })), "{result:?}");
                mount_tmpfs(&real, &TmpfsOptions::default()).unwrap();
                assert!(!is_mount_point(&link).unwrap());
                assert!(matches!(unmount(&link), Err(UnmountError::NotMounted { .. })));
                unmount(&real).unwrap();
            },
        );
    }

    #[test]
    fn files_and_directories_are_bound_by_handle() {
        in_private_mount_namespace(
            "mount::mounting::tests::files_and_directories_are_bound_by_handle",
            || {
                let temp = tempfile::tempdir().unwrap();
                let path = |name: &str| temp.path().join(name);
                std::fs::create_dir(path("source")).unwrap();
                std::fs::write(path("source/file"), "content").unwrap();
                std::fs::create_dir(path("target")).unwrap();
                std::fs::write(path("target-file"), "").unwrap();

                bind_mount(
                    handle(&path("source")).as_fd(),
                    handle(&path("target")).as_fd(),
                    &path("target"),
                )
                .unwrap();
                bind_mount_by_magic_link(
                    handle(&path("source/file")).as_fd(),
                    handle(&path("target-file")).as_fd(),
                )
                .unwrap();
                assert_eq!(std::fs::read_to_string(path("target/file")).unwrap(), "content");
                assert_eq!(std::fs::read_to_string(path("target-file")).unwrap(), "content");
                assert!(is_mount_point(&path("target-file")).unwrap());

                remount_bind_read_only(&path("target")).unwrap();
                assert!(std::fs::write(path("target/file"), "x").is_err());
                std::fs::write(path("source/file"), "still writable here").unwrap();
                unmount(&path("target")).unwrap();
                unmount(&path("target-file")).unwrap();
            },
        );
    }

    #[test]
    fn a_directory_becomes_shared_once() {
        in_private_mount_namespace(
            "mount::mounting::tests::a_directory_becomes_shared_once",
            || {
                let temp = tempfile::tempdir().unwrap();
                let path = temp.path().canonicalize().unwrap();
                ensure_shared(&path).unwrap();
                let first = MountTable::read().unwrap();
                assert!(first.at(&path).unwrap().shared_group.is_some());
                std::fs::create_dir(path.join("inner")).unwrap();
                ensure_shared(&path.join("inner")).unwrap();
                ensure_shared(&path).unwrap();
                assert_eq!(MountTable::read().unwrap().mounts().len(), first.mounts().len());
                unmount(&path).unwrap();
            },
        );
    }
}
