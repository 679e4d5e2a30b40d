use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::mount::{MountTable, MountTableError};

/// Deeper directories are lifted to the top of the tree instead of being descended into, so that
/// no tree can exhaust the stack or the file descriptors.
const MAX_DEPTH: usize = 64;

/// How often a directory is read again because somebody put something into it.
const MAX_PASSES: u32 = 8;

/// A tree was not removed, or not whole.
#[derive(Debug, thiserror::Error)]
pub enum RemoveTreeError {
    /// Something is mounted in it; nothing beneath a mount point was touched.
    #[error("{path:?} has mounts in it: {mounts:?}")]
    Mounted {
        /// The tree.
        path: PathBuf,
        /// The mount points, innermost first.
        mounts: Vec<PathBuf>,
    },
    /// A directory belongs to another file system.
    #[error("{path:?} is on another file system")]
    OtherFileSystem {
        /// The directory.
        path: PathBuf,
    },
    /// A file with content, or of a special kind, is in a tree that was to be empty.
    #[error("{path:?} is not empty")]
    NotEmpty {
        /// The file.
        path: PathBuf,
    },
    /// The system's error.
    #[error("cannot remove {path:?}")]
    Os {
        /// What could not be removed.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is mounted cannot be told, so nothing was removed.
    #[error(transparent)]
    Table(#[from] MountTableError),
}

/// Removes the directory, file or link at `path` and everything in it, without ever entering a
/// mount point or another file system and without following a link. When anything is mounted in
/// the tree, nothing at all is removed; a mount that appears meanwhile stops the removal at it. A
/// path that does not exist is removed already. Can block for long.
///
/// # Errors
/// [`RemoveTreeError::Mounted`] names what is mounted.
pub fn remove_tree_one_filesystem(path: &Path) -> Result<(), RemoveTreeError> {
    remove(path, Content::Remove)
}

/// Removes a tree that holds nothing but directories and empty files, as unfinished mounts leave
/// behind; the first file with content stops it. Mounts are treated as in
/// [`remove_tree_one_filesystem`].
///
/// # Errors
/// [`RemoveTreeError::NotEmpty`] names the file that stopped it.
pub fn remove_empty_tree(path: &Path) -> Result<(), RemoveTreeError> {
    remove(path, Content::Keep)
}

/// What to do with files that have content.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Remove,
    Keep,
}

fn remove(path: &Path, content: Content) -> Result<(), RemoveTreeError> {
    let os_error =
        |errno: Errno| RemoveTreeError::Os { path: path.to_owned(), source: errno.into() };
    let (Some(parent_path), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(os_error(Errno::BUSY));
    };
    let parent_path = if parent_path.as_os_str().is_empty() { Path::new(".") } else { parent_path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::open(parent_path, flags, Mode::empty()) {
        Ok(parent) => parent,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(os_error(errno)),
    };
    let name = CString::new(name.as_encoded_bytes()).map_err(|_| os_error(Errno::INVAL))?;
    refuse_mounts(&parent, &name, path)?;
    let removal = Removal { content, tree: path };
    match removal.open_child(parent.as_fd(), &name, path) {
        Ok(top) => {
            removal.empty(top)?;
            rustix::fs::unlinkat(&parent, name.as_c_str(), AtFlags::REMOVEDIR)
                .or_else(|errno| if errno == Errno::NOENT { Ok(()) } else { Err(errno) })
                .map_err(os_error)
        }
        Err(OpenChildError::NotADirectory) => removal.remove_file(parent.as_fd(), &name, path),
        Err(OpenChildError::Gone) => Ok(()),
        Err(OpenChildError::Failed(error)) => Err(error),
    }
}

fn refuse_mounts(parent: &OwnedFd, name: &CStr, path: &Path) -> Result<(), RemoveTreeError> {
    let parent = std::fs::read_link(format!("/proc/self/fd/{}", parent.as_raw_fd()))
        .map_err(|source| RemoveTreeError::Os { path: path.to_owned(), source })?;
    let real = parent.join(os_str(name));
    let table = MountTable::read()?;
    let mounts: Vec<PathBuf> =
        table.at_or_beneath(&real).iter().map(|mount| mount.mount_point.clone()).collect();
    if mounts.is_empty() {
        return Ok(());
    }
    Err(RemoveTreeError::Mounted { path: path.to_owned(), mounts })
}

fn os_str(name: &CStr) -> &std::ffi::OsStr {
    use std::os::unix::ffi::OsStrExt as _;
    std::ffi::OsStr::from_bytes(name.to_bytes())
}

enum OpenChildError {
    NotADirectory,
    Gone,
    Failed(RemoveTreeError),
}

struct Removal<'a> {
    content: Content,
    tree: &'a Path,
}

/// A directory that is being emptied.
struct Level {
    directory: OwnedFd,
    path: PathBuf,
    /// Its name in the level above; none for the top.
    name: Option<CString>,
    entries: Vec<CString>,
    passes: u32,
}

impl Level {
    fn new(
        directory: OwnedFd,
        path: PathBuf,
        name: Option<CString>,
    ) -> Result<Self, RemoveTreeError> {
        let mut level = Self { directory, path, name, entries: Vec::new(), passes: 0 };
        level.read()?;
        Ok(level)
    }

    /// Reads the entries anew; fails when that happened too often.
    fn read(&mut self) -> Result<(), RemoveTreeError> {
        let error =
            |errno: Errno| RemoveTreeError::Os { path: self.path.clone(), source: errno.into() };
        self.passes += 1;
        if self.passes > MAX_PASSES {
            return Err(error(Errno::NOTEMPTY));
        }
        self.entries.clear();
        for entry in Dir::read_from(&self.directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name();
            if name != c"." && name != c".." {
                self.entries.push(name.to_owned());
            }
        }
        Ok(())
    }
}

impl Removal<'_> {
    /// Removes everything in `top`.
    fn empty(&self, top: OwnedFd) -> Result<(), RemoveTreeError> {
        let mut levels = vec![Level::new(top, self.tree.to_owned(), None)?];
        let mut lifted = 0u64;
        loop {
            let depth = levels.len();
            let Some(level) = levels.last_mut() else { return Ok(()) };
            let Some(name) = level.entries.pop() else {
                if self.finish_level(&mut levels)? {
                    return Ok(());
                }
                continue;
            };
            let path = level.path.join(os_str(&name));
            match self.open_child(level.directory.as_fd(), &name, &path) {
                Ok(child) if depth < MAX_DEPTH => {
                    levels.push(Level::new(child, path, Some(name))?);
                }
                Ok(_) => {
                    lifted += 1;
                    lift(&mut levels, &name, &path, lifted)?;
                }
                Err(OpenChildError::Gone) => {}
                Err(OpenChildError::NotADirectory) => {
                    self.remove_file(level.directory.as_fd(), &name, &path)?;
                }
                Err(OpenChildError::Failed(error)) => return Err(error),
            }
        }
    }

    /// Removes the directory at the end of `levels`, all of whose entries are gone; true when it was
    /// the top, which is left for the caller.
    fn finish_level(&self, levels: &mut Vec<Level>) -> Result<bool, RemoveTreeError> {
        let Some(mut done) = levels.pop() else { return Ok(true) };
        let (Some(name), Some(above)) = (done.name.clone(), levels.last()) else {
            // Deep directories were lifted here, or somebody wrote meanwhile.
            done.read()?;
            if done.entries.is_empty() {
                return Ok(true);
            }
            levels.push(done);
            return Ok(false);
        };
        match rustix::fs::unlinkat(&above.directory, name.as_c_str(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(false),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                done.read()?;
                levels.push(done);
                Ok(false)
            }
            Err(errno) => {
                Err(RemoveTreeError::Os { path: done.path.clone(), source: errno.into() })
            }
        }
    }

    /// Opens the directory `name`, unless it is a mount point or on another file system.
    fn open_child(
        &self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
    ) -> Result<OwnedFd, OpenChildError> {
        let os_error = |errno: Errno| {
            OpenChildError::Failed(RemoveTreeError::Os {
                path: path.to_owned(),
                source: errno.into(),
            })
        };
        let mounted = || {
            OpenChildError::Failed(RemoveTreeError::Mounted {
                path: self.tree.to_owned(),
                mounts: vec![path.to_owned()],
            })
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        let opened =
            match rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve) {
                // Before Linux 5.6: open it, then see where it is.
                Err(Errno::NOSYS) => rustix::fs::openat(parent, name, flags, Mode::empty())
                    .and_then(|child| match on_same_mount(parent, child.as_fd())? {
                        true => Ok(child),
                        false => Err(Errno::XDEV),
                    }),
                opened => opened,
            };
        let child = match opened {
            Ok(child) => child,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(OpenChildError::NotADirectory),
            Err(Errno::NOENT) => return Err(OpenChildError::Gone),
            Err(Errno::XDEV) => return Err(mounted()),
            Err(errno) => return Err(os_error(errno)),
        };
        let device = |fd| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
        if device(parent).map_err(os_error)? != device(child.as_fd()).map_err(os_error)? {
            let path = path.to_owned();
            return Err(OpenChildError::Failed(RemoveTreeError::OtherFileSystem { path }));
        }
        Ok(child)
    }

    fn remove_file(
        &self,
        parent: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
    ) -> Result<(), RemoveTreeError> {
        let os_error =
            |errno: Errno| RemoveTreeError::Os { path: path.to_owned(), source: errno.into() };
        if self.content == Content::Keep {
            let stat =
                rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(os_error)?;
            let empty = FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_size == 0;
            if !empty {
                return Err(RemoveTreeError::NotEmpty { path: path.to_owned() });
            }
        }
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // Something is mounted on the file.
            Err(Errno::BUSY) => Err(RemoveTreeError::Mounted {
                path: self.tree.to_owned(),
                mounts: vec![path.to_owned()],
            }),
            Err(errno) => Err(os_error(errno)),
        }
    }
}

/// Moves a directory that lies too deep to the top of the tree, where it is found again.
fn lift(
    levels: &mut [Level],
    name: &CStr,
    path: &Path,
    number: u64,
) -> Result<(), RemoveTreeError> {
    let os_error =
        |errno: Errno| RemoveTreeError::Os { path: path.to_owned(), source: errno.into() };
    let (Some(top), Some(level)) = (levels.first(), levels.last()) else { return Ok(()) };
    let new_name = format!(".removing-{}-{number}", std::process::id());
    rustix::fs::renameat(&level.directory, name, &top.directory, new_name.as_str())
        .map_err(os_error)?;
    // That is progress, not somebody working against us.
    levels[0].passes = 0;
    Ok(())
}

/// Both directories are on one mount, by the kernel's mount ids.
fn on_same_mount(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(mount_id(one)? == mount_id(other)?)
}

fn mount_id(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok()).ok_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_goes_whole_and_links_are_not_followed() {
        let temp = tempfile::tempdir().unwrap();
        let kept = temp.path().join("kept");
        fs::create_dir(&kept).unwrap();
        fs::write(kept.join("data"), "data").unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::write(tree.join("a/file"), "x").unwrap();
        symlink(&kept, tree.join("a/b/link")).unwrap();
        symlink("nowhere", tree.join("dangling")).unwrap();
        remove_tree_one_filesystem(&tree).unwrap();
        assert!(!tree.exists());
        assert_eq!(fs::read_to_string(kept.join("data")).unwrap(), "data");
        remove_tree_one_filesystem(&tree).unwrap();
        remove_tree_one_filesystem(&tree.join("x/y")).unwrap();
    }

    #[test]
    fn a_link_is_removed_itself() {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir(temp.path().join("kept")).unwrap();
        symlink("kept", temp.path().join("link")).unwrap();
        remove_tree_one_filesystem(&temp.path().join("link")).unwrap();
        assert!(!temp.path().join("link").is_symlink());
        assert!(temp.path().join("kept").is_dir());
    }

    #[test]
    fn depth_is_no_obstacle() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut deepest = rustix::fs::open(&tree, flags, Mode::empty()).unwrap();
        for _ in 0..1000 {
            rustix::fs::mkdirat(&deepest, "directory", Mode::RWXU).unwrap();
            deepest = rustix::fs::openat(&deepest, "directory", flags, Mode::empty()).unwrap();
        }
        remove_tree_one_filesystem(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn content_stops_the_removal_of_an_empty_tree() {
        let temp = tempfile::tempdir().unwrap();
        let tree = temp.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/placeholder"), "").unwrap();
        fs::write(tree.join("a/b/data"), "data").unwrap();
        let error = remove_empty_tree(&tree).unwrap_err();
        assert!(
            matches!(&error, RemoveTreeError::NotEmpty { path } if path.ends_with("a/b/data")),
            "{error}"
        );
        assert_eq!(fs::read_to_string(tree.join("a/b/data")).unwrap(), "data");
        fs::remove_file(tree.join("a/b/data")).unwrap();
        remove_empty_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    #[test]
    fn mount_ids_tell_mounts_apart() {
        let open = |path: &str| rustix::fs::open(path, OFlags::PATH, Mode::empty()).unwrap();
        assert!(on_same_mount(open("/proc").as_fd(), open("/proc/self").as_fd()).unwrap());
        assert!(!on_same_mount(open("/proc").as_fd(), open("/").as_fd()).unwrap());
    }

    #[test]
    fn the_root_is_never_removed() {
        assert!(remove_tree_one_filesystem(Path::new("/")).is_err());
    }

    use crate::mount::{TmpfsOptions, bind_mount, mount_tmpfs, unmount};
    use crate::test_namespace::in_private_mount_namespace;

    fn handle(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    /// A tree with a bind mount of the same file system, and data that must survive.
    fn tree_with_mount() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let precious = temp.path().join("precious");
        let tree = temp.path().join("tree");
        fs::create_dir(&precious).unwrap();
        fs::write(precious.join("data"), "data").unwrap();
        fs::create_dir_all(tree.join("a/mount")).unwrap();
        fs::write(tree.join("z"), "z").unwrap();
        let target = tree.join("a/mount");
        bind_mount(handle(&precious).as_fd(), handle(&target).as_fd(), &target).unwrap();
        (temp, tree, target)
    }

    #[test]
    fn mounts_in_the_tree_stop_it_before_it_begins() {
        in_private_mount_namespace(
            "path::remove_tree::tests::mounts_in_the_tree_stop_it_before_it_begins",
            || {
                let (_temp, tree, target) = tree_with_mount();
                mount_tmpfs(&target, &TmpfsOptions::default()).unwrap();
                for remove in [remove_tree_one_filesystem, remove_empty_tree] {
                    match remove(&tree) {
                        Err(RemoveTreeError::Mounted { path, mounts }) => {
                            assert_eq!(path, tree);
                            assert_eq!(mounts, [target.clone(), target.clone()]);
                        }
                        other => panic!("{other:?}"),
                    }
                    assert!(tree.join("z").exists());
                    // The tree itself is a mount point: the same.
                    assert!(matches!(remove(&target), Err(RemoveTreeError::Mounted { .. })));
                }
                unmount(&target).unwrap();
                unmount(&target).unwrap();
                remove_tree_one_filesystem(&tree).unwrap();
                assert!(!tree.exists());
                let data = tree.with_file_name("precious").join("data");
                assert_eq!(fs::read_to_string(data).unwrap(), "data");
            },
        );
    }

    #[test]
    fn a_mount_that_appears_meanwhile_stops_it_there() {
        in_private_mount_namespace(
            "path::remove_tree::tests::a_mount_that_appears_meanwhile_stops_it_there",
            || {
                let (temp, tree, target) = tree_with_mount();
                // As if the mount table had been read before the mount was made.
                let removal = Removal { content: Content::Remove, tree: &tree };
                let top = rustix::fs::open(&tree, OFlags::RDONLY, Mode::empty()).unwrap();
                match removal.empty(top) {
                    Err(RemoveTreeError::Mounted { mounts, .. }) => {
                        assert_eq!(mounts, std::slice::from_ref(&target))
                    }
                    other => panic!("{other:?}"),
                }
                let data = temp.path().join("precious/data");
                assert_eq!(fs::read_to_string(&data).unwrap(), "data");
                unmount(&target).unwrap();

                // The same for a mount on a file.
                let file = tree.join("file");
                fs::write(&file, "").unwrap();
                bind_mount(handle(&data).as_fd(), handle(&file).as_fd(), &file).unwrap();
                let top = rustix::fs::open(&tree, OFlags::RDONLY, Mode::empty()).unwrap();
                assert!(matches!(removal.empty(top), Err(RemoveTreeError::Mounted { .. })));
                assert_eq!(fs::read_to_string(&data).unwrap(), "data");
                unmount(&file).unwrap();
            },
        );
    }
}
