use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::walk::{Links, WalkError, create_directory, walk};

/// A path beneath a directory could not be opened or made.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The path is absolute, or goes upwards.
    #[error("{path:?} is not a relative path without \"..\"")]
    NotBeneath {
        /// The path.
        path: PathBuf,
    },
    /// An element of the path is a symbolic link, or leads out of the directory.
    #[error("{path:?} has a symbolic link in {root:?}")]
    Link {
        /// The directory.
        root: PathBuf,
        /// The path beneath it.
        path: PathBuf,
    },
    /// The system's error.
    #[error("cannot open {path:?} in {root:?}")]
    Os {
        /// The directory.
        root: PathBuf,
        /// The path beneath it.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl PathError {
    /// Something that was to be opened does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Os { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A handle of a directory beneath which paths are opened without following any link. What happens
/// to the directory's own path meanwhile does not matter.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// For errors only.
    path: PathBuf,
}

impl Directory {
    /// Opens a directory by its path, following links: for paths that only root can change.
    ///
    /// # Errors
    /// When it does not exist or is no directory.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| PathError::Os {
            root: PathBuf::from("/"),
            path: path.to_owned(),
            source: errno.into(),
        })?;
        Ok(Self { fd, path: path.to_owned() })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory `path` beneath this one.
    ///
    /// # Errors
    /// When the path is not beneath, has a link, does not exist or is no directory.
    pub fn open_directory(&self, path: &Path) -> Result<Self, PathError> {
        let fd = self.open_handle(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Self { fd, path: self.path.join(path) })
    }

    /// Opens the file `path` beneath this directory for reading. Opening a FIFO does not block.
    ///
    /// # Errors
    /// When the path is not beneath, has a link or cannot be read.
    pub fn open_file(&self, path: &Path) -> Result<File, PathError> {
        let fd = self.open_handle(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
        Ok(File::from(fd))
    }

    /// Creates the file `path` beneath this directory, which must not exist yet, with exactly this
    /// mode, and opens it for writing.
    ///
    /// # Errors
    /// When the path is not beneath, has a link, exists or cannot be created.
    pub fn create_file(&self, path: &Path, mode: u32) -> Result<File, PathError> {
        let mode = Mode::from_raw_mode(mode);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let fd = self.open_handle(path, flags, mode)?;
        rustix::fs::fchmod(&fd, mode).map_err(|errno| self.os_error(path, errno))?;
        Ok(File::from(fd))
    }

    /// Makes sure that the directory `path` exists beneath this one. Directories that are missing
    /// get exactly this mode; what exists is left alone.
    ///
    /// # Errors
    /// When the path is not beneath, has a link, or an element is no directory.
    pub fn create_directory(&self, path: &Path, mode: u32) -> Result<Self, PathError> {
        check_beneath(path)?;
        let mut fd = self.clone_handle(path)?;
        for element in path.components() {
            let name = element.as_os_str();
            create_directory(fd.as_fd(), name, Mode::from_raw_mode(mode))
                .map_err(|errno| self.os_error(path, errno))?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            fd = rustix::fs::openat(&fd, name, flags, Mode::empty())
                .map_err(|errno| self.os_error(path, errno))?;
        }
        Ok(Self { fd, path: self.path.join(path) })
    }

    /// Opens what `path` names, whatever it is (`O_PATH`).
    ///
    /// # Errors
    /// When the path is not beneath, has a link or does not exist.
    pub fn open_any(&self, path: &Path) -> Result<OwnedFd, PathError> {
        self.open_handle(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())
    }

    fn clone_handle(&self, path: &Path) -> Result<OwnedFd, PathError> {
        self.fd.try_clone().map_err(|source| PathError::Os {
            root: self.path.clone(),
            path: path.to_owned(),
            source,
        })
    }

    fn open_handle(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, PathError> {
        check_beneath(path)?;
        let flags = flags | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.fd, path, flags, mode, resolve) {
            Ok(fd) => Ok(fd),
            // Before Linux 5.6.
            Err(Errno::NOSYS) => self.walk_to(path, flags, mode),
            Err(errno) => Err(self.os_error(path, errno)),
        }
    }

    /// What [`Self::open_handle`] does, without the kernel's help.
    fn walk_to(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, PathError> {
        let error = |error| match error {
            WalkError::Escapes | WalkError::Link => self.os_error(path, Errno::LOOP),
            WalkError::Os(errno) => self.os_error(path, errno),
        };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return walk(self.fd.as_fd(), path, Links::Refuse, None).map_err(error);
        };
        let parent = walk(self.fd.as_fd(), parent, Links::Refuse, None).map_err(error)?;
        let flags = flags | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&parent, name, flags, mode)
            .map_err(|errno| self.os_error(path, errno))?;
        if flags.contains(OFlags::PATH) {
            // Such a handle of a link is not refused by NOFOLLOW.
            let stat = rustix::fs::fstat(&fd).map_err(|errno| self.os_error(path, errno))?;
            if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
                return Err(self.os_error(path, Errno::LOOP));
            }
        }
        Ok(fd)
    }

    pub(super) fn os_error(&self, path: &Path, errno: Errno) -> PathError {
        let (root, path) = (self.path.clone(), path.to_owned());
        match errno {
            Errno::LOOP | Errno::XDEV => PathError::Link { root, path },
            errno => PathError::Os { root, path, source: errno.into() },
        }
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Refuses absolute paths and those with `..`; every path that goes on has normal elements only.
pub(super) fn check_beneath(path: &Path) -> Result<(), PathError> {
    let beneath = path.components().all(|part| matches!(part, Component::Normal(_)));
    if beneath && !path.as_os_str().is_empty() {
        Ok(())
    } else {
        Err(PathError::NotBeneath { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn tree() -> (tempfile::TempDir, Directory) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("root");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "inside").unwrap();
        std::fs::write(temp.path().join("secret"), "outside").unwrap();
        symlink("../secret", root.join("up")).unwrap();
        symlink("b", root.join("a/link")).unwrap();
        symlink(temp.path().join("secret"), root.join("absolute")).unwrap();
        let directory = Directory::open(&root).unwrap();
        (temp, directory)
    }

    type Opener = fn(&Directory, &str, OFlags) -> Result<OwnedFd, PathError>;

    /// The kernel's way and the way without it.
    const OPENERS: [Opener; 2] = [
        |directory, path, flags| directory.open_handle(Path::new(path), flags, Mode::empty()),
        |directory, path, flags| {
            directory.walk_to(Path::new(path), flags | OFlags::CLOEXEC, Mode::empty())
        },
    ];

    #[test]
    fn files_beneath_are_opened() {
        let (_temp, directory) = tree();
        for open in OPENERS {
            let mut content = String::new();
            File::from(open(&directory, "a/b/file", OFlags::RDONLY).unwrap())
                .read_to_string(&mut content)
                .unwrap();
            assert_eq!(content, "inside");
        }
    }

    #[test]
    fn links_are_refused_wherever_they_lead() {
        let (_temp, directory) = tree();
        for open in OPENERS {
            for path in ["up", "absolute", "a/link", "a/link/file"] {
                for flags in [OFlags::RDONLY, OFlags::PATH] {
                    let result = open(&directory, path, flags);
                    assert!(matches!(result, Err(PathError::Link { .. })), "{path} {result:?}");
                }
            }
        }
    }

    #[test]
    fn paths_that_are_not_beneath_are_refused() {
        let (_temp, directory) = tree();
        for path in ["", "/etc/passwd", "..", "a/../../secret", ".", "./a", "a/.."] {
            let path = Path::new(path);
            assert!(
                matches!(directory.open_file(path), Err(PathError::NotBeneath { .. })),
                "{path:?}"
            );
            assert!(directory.create_directory(path, 0o755).is_err(), "{path:?}");
            assert!(directory.create_file(path, 0o644).is_err(), "{path:?}");
        }
    }

    #[test]
    fn missing_is_told_apart() {
        let (_temp, directory) = tree();
        assert!(directory.open_file(Path::new("a/none")).unwrap_err().is_not_found());
        assert!(!directory.open_file(Path::new("up")).unwrap_err().is_not_found());
    }

    #[test]
    fn directories_are_created_with_their_mode() {
        let (temp, directory) = tree();
        directory.create_directory(Path::new("a/c/d"), 0o1777).unwrap();
        directory.create_directory(Path::new("a/c/d"), 0o700).unwrap();
        let mode = |path: &str| {
            temp.path().join("root").join(path).metadata().unwrap().permissions().mode() & 0o7777
        };
        assert_eq!((mode("a/c"), mode("a/c/d")), (0o1777, 0o1777));
        assert!(directory.create_directory(Path::new("a/link/x"), 0o755).is_err());
        assert!(!temp.path().join("root/a/b/x").exists());
        assert!(directory.create_directory(Path::new("a/b/file"), 0o755).is_err());
    }

    #[test]
    fn files_are_created_once_with_their_mode() {
        let (temp, directory) = tree();
        let path = Path::new("a/new");
        directory.create_file(path, 0o666).unwrap().write_all(b"x").unwrap();
        let made = temp.path().join("root/a/new");
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o666);
        assert!(directory.create_file(path, 0o666).is_err());
        assert!(directory.create_file(Path::new("up"), 0o666).is_err());
        assert_eq!(std::fs::read_to_string(temp.path().join("secret")).unwrap(), "outside");
    }
}
