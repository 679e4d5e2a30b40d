use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::directory::check_beneath;
use super::walk::{Links, WalkError, walk};
use super::{Directory, PathError};
use crate::mount::{MountError, UnmountError, bind_mount, is_mount_point, unmount};

const TARGET_DIRECTORY_MODE: u32 = 0o750;
const TARGET_FILE_MODE: u32 = 0o640;

/// A subPath of a volume could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum SubPathError {
    /// The subPath is absolute or goes upwards.
    #[error("subPath {path:?} must be a relative path without \"..\"")]
    Invalid {
        /// The subPath.
        path: PathBuf,
    },
    /// The subPath leads out of the volume, by a link in it.
    #[error("subPath {path:?} leads out of volume {volume:?}")]
    Escapes {
        /// Root of the volume on the node.
        volume: PathBuf,
        /// The subPath.
        path: PathBuf,
    },
    /// The volume or the subPath cannot be opened or created.
    #[error("cannot open subPath {path:?} of volume {volume:?}")]
    Open {
        /// Root of the volume on the node.
        volume: PathBuf,
        /// The subPath.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The place in the pod's directory cannot be made.
    #[error("cannot prepare the place of a subPath")]
    Target(#[from] PathError),
    /// It cannot be bound there.
    #[error("cannot bind a subPath")]
    Mount(#[from] MountError),
    /// An older mount there cannot be removed.
    #[error("cannot replace an older subPath")]
    Unmount(#[from] UnmountError),
}

/// Makes `sub_path` of the volume at `volume` appear at `target` beneath `pod_directory` and returns
/// the full path there. Running it again is harmless; when the subPath names something else by
/// then, that replaces it.
///
/// Links in the volume are followed as long as they stay in it, as users expect. Missing directories
/// are created with the mode of the volume's root. Everything is done on open handles, and the bind
/// mount is made from the handle: whoever exchanges directories and links in the volume meanwhile
/// gets some object of the volume, never one outside (CVE-2017-1002101, CVE-2021-25741).
///
/// Can block when the volume is remote.
///
/// # Errors
/// When the subPath is invalid, leads out of the volume, or cannot be opened, created or bound.
pub fn prepare_sub_path(
    volume: &Path,
    sub_path: &Path,
    pod_directory: &Path,
    target: &Path,
) -> Result<PathBuf, SubPathError> {
    if check_beneath(sub_path).is_err() {
        return Err(SubPathError::Invalid { path: sub_path.to_owned() });
    }
    let object = open_sub_path(volume, sub_path)?;
    let open_error = |errno: Errno| SubPathError::Open {
        volume: volume.to_owned(),
        path: sub_path.to_owned(),
        source: errno.into(),
    };
    let wanted = rustix::fs::fstat(&object).map_err(open_error)?;
    bind_into_pod(&object, &wanted, &Directory::open(pod_directory)?, target)
}

/// A handle of the subPath that certainly lies in the volume.
fn open_sub_path(volume: &Path, sub_path: &Path) -> Result<OwnedFd, SubPathError> {
    let error = |error: WalkError| match error {
        WalkError::Escapes | WalkError::Link => {
            SubPathError::Escapes { volume: volume.to_owned(), path: sub_path.to_owned() }
        }
        WalkError::Os(errno) => SubPathError::Open {
            volume: volume.to_owned(),
            path: sub_path.to_owned(),
            source: errno.into(),
        },
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(volume, flags, Mode::empty()).map_err(|e| error(e.into()))?;
    let mode = rustix::fs::fstat(&root).map_err(|e| error(e.into()))?.st_mode;
    let mut root_paths = vec![volume.to_owned()];
    if let Ok(real) = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())) {
        root_paths.push(real);
    }
    let missing = Mode::from_raw_mode(mode & 0o7777);
    walk(root.as_fd(), sub_path, Links::Within(&root_paths), Some(missing)).map_err(error)
}

fn bind_into_pod(
    object: &OwnedFd,
    wanted: &Stat,
    pod: &Directory,
    target: &Path,
) -> Result<PathBuf, SubPathError> {
    check_beneath(target)?;
    let full = pod.path().join(target);
    while is_mount_point(&full)? {
        if is_same(&pod.open_any(target)?, wanted, pod, target)? {
            return Ok(full);
        }
        unmount(&full)?;
    }
    let place = ensure_place(pod, target, FileType::from_raw_mode(wanted.st_mode))?;
    bind_mount(object.as_fd(), place.as_fd(), &full)?;
    Ok(full)
}

fn is_same(
    present: &OwnedFd,
    wanted: &Stat,
    pod: &Directory,
    target: &Path,
) -> Result<bool, PathError> {
    let stat = rustix::fs::fstat(present).map_err(|errno| os_error(pod, target, errno))?;
    Ok((stat.st_dev, stat.st_ino) == (wanted.st_dev, wanted.st_ino))
}

/// The directory, or empty file, to mount on.
fn ensure_place(pod: &Directory, target: &Path, kind: FileType) -> Result<OwnedFd, PathError> {
    if kind.is_dir() {
        if let Ok(present) = pod.open_any(target)
            && !has_type(&present, FileType::Directory)
        {
            remove_place(pod, target, AtFlags::empty())?;
        }
        pod.create_directory(target, TARGET_DIRECTORY_MODE)?;
        return pod.open_any(target);
    }
    if let Some(parent) = target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        pod.create_directory(parent, TARGET_DIRECTORY_MODE)?;
    }
    match pod.open_any(target) {
        Ok(present) if has_type(&present, FileType::Directory) => {
            remove_place(pod, target, AtFlags::REMOVEDIR)?;
        }
        Ok(present) => return Ok(present),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    pod.create_file(target, TARGET_FILE_MODE)?;
    pod.open_any(target)
}

fn has_type(object: &OwnedFd, kind: FileType) -> bool {
    rustix::fs::fstat(object).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == kind)
}

fn remove_place(pod: &Directory, target: &Path, flags: AtFlags) -> Result<(), PathError> {
    let error = |errno| os_error(pod, target, errno);
    let name = target.file_name().unwrap_or(OsStr::new("."));
    match target.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => rustix::fs::unlinkat(pod.open_directory(parent)?, name, flags),
        None => rustix::fs::unlinkat(pod, name, flags),
    }
    .map_err(error)
}

fn os_error(pod: &Directory, target: &Path, errno: Errno) -> PathError {
    PathError::Os { root: pod.path().to_owned(), path: target.to_owned(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{CWD, RenameFlags};

    use super::*;
    use crate::mount::MountTable;
    use crate::test_namespace::in_private_mount_namespace;

    struct Pod {
        temp: tempfile::TempDir,
        volume: PathBuf,
        directory: PathBuf,
    }

    impl Pod {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let (volume, directory) = (temp.path().join("volume"), temp.path().join("pod"));
            fs::create_dir_all(volume.join("dir/inner")).unwrap();
            fs::write(volume.join("dir/file"), "inside").unwrap();
            fs::create_dir_all(&directory).unwrap();
            fs::create_dir(temp.path().join("outside")).unwrap();
            fs::write(temp.path().join("outside/secret"), "outside").unwrap();
            Self { temp, volume, directory }
        }

        fn prepare(&self, sub_path: &str) -> Result<PathBuf, SubPathError> {
            let target = Path::new("volume-subpaths/vol/container/0");
            prepare_sub_path(&self.volume, Path::new(sub_path), &self.directory, target)
        }

        fn mounts(&self) -> usize {
            let directory = self.directory.canonicalize().unwrap();
            MountTable::read().unwrap().at_or_beneath(&directory).len()
        }
    }

    fn identity(path: &Path) -> (u64, u64) {
        let metadata = fs::metadata(path).unwrap();
        (metadata.dev(), metadata.ino())
    }

    #[test]
    fn directories_and_files_appear_in_the_pod() {
        in_private_mount_namespace(
            "path::sub_path::tests::directories_and_files_appear_in_the_pod",
            || {
                let pod = Pod::new();
                let target = pod.prepare("dir").unwrap();
                assert_eq!(target, pod.directory.join("volume-subpaths/vol/container/0"));
                assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "inside");
                let parent = target.parent().unwrap();
                assert_eq!(fs::metadata(parent).unwrap().permissions().mode() & 0o777, 0o750);

                // Again: the same mount. Something else: it takes the place, whatever its kind.
                assert_eq!(pod.prepare("dir").unwrap(), target);
                assert_eq!(pod.mounts(), 1);
                pod.prepare("dir/file").unwrap();
                assert_eq!(fs::read_to_string(&target).unwrap(), "inside");
                pod.prepare("dir/inner").unwrap();
                assert_eq!(identity(&target), identity(&pod.volume.join("dir/inner")));
                assert_eq!(pod.mounts(), 1);
                unmount(&target).unwrap();
            },
        );
    }

    #[test]
    fn missing_directories_are_made_like_the_volume() {
        in_private_mount_namespace(
            "path::sub_path::tests::missing_directories_are_made_like_the_volume",
            || {
                let pod = Pod::new();
                fs::set_permissions(&pod.volume, fs::Permissions::from_mode(0o2777)).unwrap();
                let target = pod.prepare("new/deep").unwrap();
                for made in ["new", "new/deep"] {
                    let mode = fs::metadata(pod.volume.join(made)).unwrap().permissions().mode();
                    assert_eq!(mode & 0o7777, 0o2777, "{made}");
                }
                unmount(&target).unwrap();
            },
        );
    }

    #[test]
    fn links_work_as_long_as_they_stay() {
        in_private_mount_namespace(
            "path::sub_path::tests::links_work_as_long_as_they_stay",
            || {
                let pod = Pod::new();
                let link = |to: &Path, name: &str| symlink(to, pod.volume.join(name)).unwrap();
                link(Path::new("dir"), "near");
                link(Path::new("../near/./inner/.."), "dir/back");
                link(&pod.volume.join("dir"), "absolute");
                link(Path::new("late/one"), "dangling");
                let inside = identity(&pod.volume.join("dir"));
                for sub_path in ["near", "dir/back", "absolute", "near/back", "near/inner/../"] {
                    match pod.prepare(sub_path) {
                        Ok(target) => assert_eq!(identity(&target), inside, "{sub_path}"),
                        Err(SubPathError::Invalid { .. }) => assert!(sub_path.contains("..")),
                        Err(other) => panic!("{sub_path}: {other:?}"),
                    }
                }
                pod.prepare("dangling").unwrap();
                assert!(pod.volume.join("late/one").is_dir());
                unmount(&pod.directory.join("volume-subpaths/vol/container/0")).unwrap();
            },
        );
    }

    #[test]
    fn links_that_leave_are_refused() {
        let pod = Pod::new();
        let outside = pod.temp.path().join("outside");
        let link = |to: &Path, name: &str| symlink(to, pod.volume.join(name)).unwrap();
        link(&outside, "absolute");
        link(Path::new("../outside"), "up");
        link(Path::new("../../../../../../../../etc"), "far");
        link(Path::new("/"), "root");
        link(Path::new("../volume/dir"), "around");
        link(&pod.volume.join("../outside"), "sly");
        for sub_path in [
            "absolute",
            "absolute/secret",
            "up",
            "up/secret",
            "up/new",
            "far/passwd",
            "root/etc",
            "around",
            "sly",
        ] {
            let result = pod.prepare(sub_path);
            assert!(matches!(result, Err(SubPathError::Escapes { .. })), "{sub_path} {result:?}");
        }
        link(Path::new("loop"), "loop");
        assert!(matches!(pod.prepare("loop"), Err(SubPathError::Open { .. })));
        assert!(matches!(pod.prepare("dir/file/x"), Err(SubPathError::Open { .. })));
        for sub_path in ["", "/etc", "..", "dir/../../outside", "."] {
            let result = pod.prepare(sub_path);
            assert!(matches!(result, Err(SubPathError::Invalid { .. })), "{sub_path} {result:?}");
        }
        assert!(!outside.join("new").exists());
        assert_eq!(pod.mounts(), 0);
    }

    #[test]
    fn nobody_wins_a_race_against_it() {
        in_private_mount_namespace("path::sub_path::tests::nobody_wins_a_race_against_it", || {
            let pod = Pod::new();
            let outside = pod.temp.path().join("outside");
            fs::create_dir(outside.join("inner")).unwrap();
            let forbidden = [identity(&outside), identity(&outside.join("inner"))];
            symlink(&outside, pod.volume.join("trap")).unwrap();
            let stop = AtomicBool::new(false);
            let mut outcomes = (0, 0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (one, other) = (pod.volume.join("dir"), pod.volume.join("trap"));
                    while !stop.load(Ordering::Relaxed) {
                        rustix::fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE)
                            .unwrap();
                    }
                });
                let mut attempts = 0;
                // Both outcomes must have been seen, or it was no race.
                while attempts < 500 || outcomes.0 == 0 || outcomes.1 == 0 {
                    attempts += 1;
                    assert!(attempts < 200_000, "the race never took place: {outcomes:?}");
                    match pod.prepare("dir/inner") {
                        Ok(target) => {
                            outcomes.0 += 1;
                            let got = identity(&target);
                            if forbidden.contains(&got) {
                                stop.store(true, Ordering::Relaxed);
                                panic!("led outside at attempt {attempts}");
                            }
                            unmount(&target).unwrap();
                        }
                        Err(SubPathError::Escapes { .. }) => outcomes.1 += 1,
                        Err(other) => {
                            stop.store(true, Ordering::Relaxed);
                            panic!("{other:?}");
                        }
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
            let left: Vec<_> = fs::read_dir(&outside).unwrap().collect();
            assert_eq!(left.len(), 2, "nothing was made outside");
        });
    }
}
