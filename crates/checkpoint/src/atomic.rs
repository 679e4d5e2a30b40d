//! Replaces a file as a whole: whoever reads it, at whatever moment the process or the machine
//! stopped, sees the old contents or the new ones.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// What a save survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A power loss: contents and name are on the disk before the save returns (two `fsync`s, some
    /// milliseconds on a slow disk). For state that nobody else knows.
    Synced,
    /// The end of the process, by whatever signal, but not of the machine: after a power loss the
    /// file may be old, empty or cut short. For hints whose loss costs little.
    Unsynced,
}

/// The steps of a save, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStep {
    /// The temporary file `.<name>` is made beside the file, mode 0600.
    Create,
    /// The contents are written to it.
    Write,
    /// They are flushed to the disk ([`Durability::Synced`] only).
    Sync,
    /// It takes the file's name. From here on the new contents are what readers see.
    Rename,
    /// The name is flushed to the disk ([`Durability::Synced`] only).
    SyncDirectory,
}

impl fmt::Display for WriteStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "creating the temporary file",
            Self::Write => "writing the contents",
            Self::Sync => "flushing the contents",
            Self::Rename => "renaming the temporary file",
            Self::SyncDirectory => "flushing the directory",
        })
    }
}

/// A save did not succeed; trying it again is safe and may help (full disk, I/O error).
///
/// The old contents are untouched, except after [`WriteStep::SyncDirectory`]: there readers see the
/// new ones, but a power loss may bring the old ones back.
#[derive(Debug, thiserror::Error)]
#[error("cannot save {}: {step} failed", .path.display())]
pub struct WriteError {
    /// The file to be replaced.
    pub path: PathBuf,
    /// Where it failed.
    pub step: WriteStep,
    /// Why.
    pub source: io::Error,
}

/// Replaces the file at `path` by `contents`, mode 0600, as one atomic record. Blocking.
///
/// There must be one writer of a file at a time: its temporary file has a fixed name, so that a
/// crash leaves at most one behind, which the next save replaces.
///
/// # Errors
/// When a step fails; the temporary file is removed again.
pub fn write_atomic(
    path: &Path,
    contents: &[u8],
    durability: Durability,
) -> Result<(), WriteError> {
    write_stepwise(path, contents, durability, |_| Ok(()))
}

/// `before` is asked before each step; the tests fail or crash there.
fn write_stepwise(
    path: &Path,
    contents: &[u8],
    durability: Durability,
    before: impl FnMut(WriteStep) -> io::Result<()>,
) -> Result<(), WriteError> {
    let failed =
        |(step, source): (WriteStep, io::Error)| WriteError { path: path.to_owned(), step, source };
    let temporary = temporary_path(path).map_err(|error| failed((WriteStep::Create, error)))?;
    let written = run_steps(path, &temporary, contents, durability, before);
    if written.is_err() {
        // Not there any more after the rename; and if it cannot be removed, the next save does it.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

fn run_steps(
    path: &Path,
    temporary: &Path,
    contents: &[u8],
    durability: Durability,
    mut before: impl FnMut(WriteStep) -> io::Result<()>,
) -> Result<(), (WriteStep, io::Error)> {
    let mut file = at(WriteStep::Create, &mut before, || create_temporary(temporary))?;
    at(WriteStep::Write, &mut before, || file.write_all(contents))?;
    if durability == Durability::Synced {
        at(WriteStep::Sync, &mut before, || file.sync_all())?;
    }
    drop(file);
    at(WriteStep::Rename, &mut before, || fs::rename(temporary, path))?;
    if durability == Durability::Synced {
        at(WriteStep::SyncDirectory, &mut before, || sync_directory(path))?;
    }
    Ok(())
}

fn at<T>(
    step: WriteStep,
    before: &mut impl FnMut(WriteStep) -> io::Result<()>,
    work: impl FnOnce() -> io::Result<T>,
) -> Result<T, (WriteStep, io::Error)> {
    before(step).and_then(|()| work()).map_err(|error| (step, error))
}

/// `.<name>` beside `<name>`.
pub(crate) fn temporary_path(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a file name")
    })?;
    let mut temporary = OsString::from(".");
    temporary.push(name);
    Ok(path.with_file_name(temporary))
}

fn create_temporary(path: &Path) -> io::Result<File> {
    // A new file each time, and none through a link: what an earlier crash left may have any
    // mode and any contents.
    let create = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match create() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            create()
        }
        made => made,
    }
}

fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match File::open(directory)?.sync_all() {
        // File systems that cannot flush a directory say so with EINVAL; there is no better then.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const STEPS: [WriteStep; 5] = [
        WriteStep::Create,
        WriteStep::Write,
        WriteStep::Sync,
        WriteStep::Rename,
        WriteStep::SyncDirectory,
    ];

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn flushes_before_and_after_the_rename_if_asked_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut steps = Vec::new();
        let mut record = |durability| {
            steps.clear();
            write_stepwise(&path, b"x", durability, |step| {
                steps.push(step);
                Ok(())
            })
            .unwrap();
            steps.clone()
        };
        assert_eq!(record(Durability::Synced), STEPS);
        assert_eq!(
            record(Durability::Unsynced),
            [WriteStep::Create, WriteStep::Write, WriteStep::Rename]
        );
    }

    #[test]
    fn a_failed_step_leaves_the_old_contents_and_no_rubbish() {
        for failing in STEPS {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state");
            write_atomic(&path, b"old", Durability::Synced).unwrap();
            let error = write_stepwise(&path, b"new", Durability::Synced, |step| {
                if step == failing { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
            })
            .unwrap_err();
            assert_eq!(error.step, failing);
            assert_eq!(error.source.kind(), io::ErrorKind::StorageFull);
            let visible: &[u8] = if failing == WriteStep::SyncDirectory { b"new" } else { b"old" };
            assert_eq!(fs::read(&path).unwrap(), visible, "{failing}");
            assert_eq!(names(directory.path()), ["state"], "{failing}");
        }
    }

    #[test]
    fn after_a_crash_at_any_step_the_file_is_whole_and_the_next_save_works() {
        for crashing in STEPS {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("state");
            write_atomic(&path, b"old", Durability::Synced).unwrap();
            // Unwinding runs no cleanup in between: it leaves behind what a kill would.
            let crashed = catch_unwind(AssertUnwindSafe(|| {
                write_stepwise(&path, b"new", Durability::Synced, |step| {
                    assert!(step != crashing, "crash");
                    Ok(())
                })
            }));
            assert!(crashed.is_err());
            let renamed = crashing == WriteStep::SyncDirectory;
            let visible: &[u8] = if renamed { b"new" } else { b"old" };
            assert_eq!(fs::read(&path).unwrap(), visible, "{crashing}");

            write_atomic(&path, b"newer", Durability::Synced).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"newer", "{crashing}");
            assert_eq!(names(directory.path()), ["state"], "{crashing}");
        }
    }

    #[test]
    fn files_are_private_and_a_link_in_the_way_is_replaced_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let victim = directory.path().join("victim");
        fs::write(&victim, b"precious").unwrap();
        symlink(&victim, &path).unwrap();
        symlink(&victim, directory.path().join(".state")).unwrap();
        write_atomic(&path, b"new", Durability::Unsynced).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.is_file());
        assert_eq!(metadata.mode() & 0o777, 0o600);
        assert_eq!(names(directory.path()), ["state", "victim"]);
    }

    #[test]
    fn a_path_without_a_file_name_is_an_error() {
        let error = write_atomic(Path::new("/"), b"x", Durability::Synced).unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::InvalidInput);
    }
}
