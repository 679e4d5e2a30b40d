//! The directory of a container's logs, as a handle.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};

use rubelet_linux::path::{Directory, PathError};

use crate::generation::{Rotated, kept_generations};

/// One log and its rotated files, in a directory beneath the root of all logs.
#[derive(Debug)]
pub(crate) struct LogDirectory {
    directory: Directory,
    log: OsString,
}

impl LogDirectory {
    /// Opens the directory of `log`, a path beneath `root`, without following a link beneath it. None
    /// if the path is not beneath. Blocks.
    pub(crate) fn open(root: &Path, log: &Path) -> Result<Option<Self>, PathError> {
        let beneath = log.strip_prefix(root).ok();
        let parts = beneath.and_then(|path| path.parent().zip(path.file_name()));
        let Some((parent, name)) = parts else { return Ok(None) };
        let root = Directory::open(root)?;
        let directory =
            if parent.as_os_str().is_empty() { root } else { root.open_directory(parent)? };
        Ok(Some(Self { directory, log: name.to_owned() }))
    }

    /// The name of the log that is written.
    pub(crate) fn log(&self) -> &OsStr {
        &self.log
    }

    /// The path of an entry, for messages.
    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The directory's handle.
    pub(crate) fn handle(&self) -> &Directory {
        &self.directory
    }

    /// Opens the entry `name` if it is a regular file.
    pub(crate) fn open_file(&self, name: &OsStr) -> Result<File, PathError> {
        let path = Path::new(name);
        let file = self.directory.open_file(path)?;
        let failed = |source| PathError::Os {
            root: self.directory.path().to_owned(),
            path: path.to_owned(),
            source,
        };
        if file.metadata().map_err(failed)?.is_file() {
            Ok(file)
        } else {
            Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")))
        }
    }

    /// The size of the log that is written, in bytes.
    pub(crate) fn size(&self) -> Result<u64, PathError> {
        let path = Path::new(&self.log);
        let found = File::from(self.directory.open_any(path)?).metadata();
        let failed = |source| PathError::Os {
            root: self.directory.path().to_owned(),
            path: path.to_owned(),
            source,
        };
        Ok(found.map_err(failed)?.len())
    }

    /// The rotated files that hold something, oldest first.
    pub(crate) fn generations(&self) -> Result<Vec<Rotated>, PathError> {
        Ok(kept_generations(&self.log, &self.directory.names()?))
    }

    /// A path that leads to this very directory, whatever happens to its own.
    pub(crate) fn magic_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_fd().as_raw_fd()))
    }
}
