use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The lock file could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockFileError {
    /// Another process holds it.
    #[error("lock file {path} is held by another process")]
    Held {
        /// The file.
        path: PathBuf,
    },
    /// It cannot be opened or locked.
    #[error("cannot lock {path}")]
    Failed {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// An exclusive lock on a file (`--lock-file`), held until dropped or until the process ends.
#[derive(Debug)]
pub struct LockFile {
    _fd: OwnedFd,
    path: PathBuf,
}

impl LockFile {
    /// Creates the file if it is missing and waits until this process has it. Blocks for as long as
    /// another process holds it.
    ///
    /// # Errors
    /// When the file cannot be opened or locked.
    pub fn acquire(path: &Path) -> Result<Self, LockFileError> {
        Self::lock(path, FlockOperation::LockExclusive)
    }

    /// Like [`Self::acquire`], but does not wait.
    ///
    /// # Errors
    /// [`LockFileError::Held`] when another process has it.
    pub fn try_acquire(path: &Path) -> Result<Self, LockFileError> {
        Self::lock(path, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(path: &Path, operation: FlockOperation) -> Result<Self, LockFileError> {
        let failed =
            |errno: Errno| LockFileError::Failed { path: path.to_owned(), source: errno.into() };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        loop {
            match rustix::fs::flock(&fd, operation) {
                Ok(()) => return Ok(Self { _fd: fd, path: path.to_owned() }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(LockFileError::Held { path: path.to_owned() });
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("kubelet.lock");
        let held = LockFile::acquire(&path).unwrap();
        assert!(matches!(LockFile::try_acquire(&path), Err(LockFileError::Held { .. })));
        drop(held);
        assert_eq!(LockFile::try_acquire(&path).unwrap().path(), path);
        let missing = temp.path().join("none/kubelet.lock");
        assert!(matches!(LockFile::acquire(&missing), Err(LockFileError::Failed { .. })));
    }
}
