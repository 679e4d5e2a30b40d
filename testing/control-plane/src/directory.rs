//! The directory of one control plane.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;

const PREFIX: &str = "control-plane-";
const LOCK: &str = "lock";

/// A directory that is removed with this value, else by [`sweep_abandoned`].
#[derive(Debug)]
pub(crate) struct RunDirectory {
    path: PathBuf,
    /// Locked for as long as the maker lives: that is how others know.
    _lock: File,
}

impl RunDirectory {
    /// Makes a directory below `run` that nobody else uses.
    pub(crate) fn create(run: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(run).with_context(|| format!("cannot make {}", run.display()))?;
        let path = make_unused(run)?;
        Self::lock(path.clone()).inspect_err(|_| {
            // The error that is told says more.
            let _ = fs::remove_dir_all(&path);
        })
    }

    fn lock(path: PathBuf) -> anyhow::Result<Self> {
        // It gets its name when it is locked: a sweep in between would take it for abandoned.
        let partial = path.join("lock.partial");
        let lock = File::create(&partial)
            .and_then(|lock| lock.lock().map(|()| lock))
            .and_then(|lock| fs::rename(&partial, path.join(LOCK)).map(|()| lock))
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { path, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn make_unused(run: &Path) -> anyhow::Result<PathBuf> {
    let pid = std::process::id();
    for serial in 0.. {
        let path = match serial {
            0 => run.join(format!("{PREFIX}{pid}")),
            _ => run.join(format!("{PREFIX}{pid}-{serial}")),
        };
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        }
    }
    unreachable!("the numbers do not end")
}

/// Removes the directories below `run` whose makers are gone.
pub(crate) fn sweep_abandoned(run: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(run).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        if lock.try_lock().is_err() {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => {}
            // Somebody else swept it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot remove {}", path.display()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_swept_when_its_maker_is_gone_and_not_before() {
        let run = std::env::temp_dir().join(format!("rubelet-run-{}", std::process::id()));
        let held = RunDirectory::create(&run).expect("made");
        let abandoned = run.join(format!("{PREFIX}of-somebody-else"));
        fs::create_dir(&abandoned).expect("made");
        fs::write(abandoned.join(LOCK), "").expect("written");
        let foreign = run.join("something-else");
        fs::create_dir(&foreign).expect("made");
        sweep_abandoned(&run).expect("swept");
        assert!(held.path().exists() && foreign.exists() && !abandoned.exists());
        let path = held.path().to_owned();
        drop(held);
        assert!(!path.exists());
        fs::remove_dir_all(run).expect("removed");
    }
}
