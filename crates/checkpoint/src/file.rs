//! One value in one file.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::atomic::{Durability, WriteError, temporary_path, write_atomic};
use crate::envelope::{self, Damage, MAX_FILE_BYTES};

/// So many damaged versions of one file are kept; the oldest go, lest a file that is damaged again
/// and again fills the disk.
const DAMAGED_KEPT: usize = 4;

/// A file that holds one value of the type its owner gives it.
///
/// It has one owner: no two saves of one file may run at the same time. All methods block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    path: PathBuf,
    durability: Durability,
}

/// What a file gave.
#[derive(Debug)]
pub enum Loaded<T> {
    /// There is no file: a first start, or somebody deleted it, which is the documented way to
    /// make the kubelet forget.
    Missing,
    /// The value as it was saved last.
    Value(T),
    /// There was a file, but what it held is lost to us. It has been set aside; the owner reports
    /// it and rebuilds what it can prove.
    Damaged(DamagedFile),
}

/// A file that could not be used, and where it is now.
#[derive(Debug, thiserror::Error)]
#[error("checkpoint {} is damaged", .path.display())]
pub struct DamagedFile {
    /// The file's name, under which there is nothing now (if it could be set aside).
    pub path: PathBuf,
    /// Where a person can look at it, `<name>.damaged-<n>`; or why it could not be set aside, and
    /// so will be overwritten by the next save.
    pub set_aside: Result<PathBuf, io::Error>,
    /// What is wrong with it.
    #[source]
    pub damage: Damage,
}

/// A checkpoint could not be read or written, which says nothing about what it holds.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file is there but its bytes cannot be had (permission, I/O error): try again later, and
    /// do not act as if it were missing.
    #[error("cannot read checkpoint {}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The value has no JSON, or more than [`MAX_FILE_BYTES`] of it: permanent, an error of the owner.
    #[error("cannot encode checkpoint {}", .path.display())]
    Encode {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file could not be replaced: the owner must not act on a value that is not saved.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The file could not be removed: try again later.
    #[error("cannot remove checkpoint {}", .path.display())]
    Remove {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl CheckpointFile {
    /// The file at `path`, in a directory that exists. Does no I/O.
    pub fn new(path: impl Into<PathBuf>, durability: Durability) -> Self {
        Self { path: path.into(), durability }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the value; a file that cannot be used is set aside.
    ///
    /// # Errors
    /// [`CheckpointError::Read`] when the bytes cannot be had.
    pub fn load<T: DeserializeOwned>(&self) -> Result<Loaded<T>, CheckpointError> {
        let contents = read_file(&self.path)
            .map_err(|source| CheckpointError::Read { path: self.path.clone(), source })?;
        let damage = match contents {
            Contents::Missing => return Ok(Loaded::Missing),
            Contents::TooLarge => Damage::TooLarge,
            Contents::Bytes(bytes) => match envelope::decode(&bytes) {
                Ok(value) => return Ok(Loaded::Value(value)),
                Err(damage) => damage,
            },
        };
        Ok(Loaded::Damaged(DamagedFile {
            path: self.path.clone(),
            set_aside: set_aside(&self.path),
            damage,
        }))
    }

    /// Replaces the value, as one atomic record.
    ///
    /// # Errors
    /// [`CheckpointError::Encode`], or [`CheckpointError::Write`]: see there what the file holds then.
    pub fn save<T: Serialize + ?Sized>(&self, value: &T) -> Result<(), CheckpointError> {
        let encode_error = |source| CheckpointError::Encode { path: self.path.clone(), source };
        let contents =
            envelope::encode(value).map_err(|error| encode_error(io::Error::other(error)))?;
        if contents.len() as u64 > MAX_FILE_BYTES {
            return Err(encode_error(io::ErrorKind::FileTooLarge.into()));
        }
        Ok(write_atomic(&self.path, &contents, self.durability)?)
    }

    /// Removes the value and whatever a crash during a save left. Nothing there is success.
    ///
    /// # Errors
    /// [`CheckpointError::Remove`].
    pub fn remove(&self) -> Result<(), CheckpointError> {
        remove_file(&self.path)
            .map_err(|source| CheckpointError::Remove { path: self.path.clone(), source })
    }
}

pub(crate) enum Contents {
    Missing,
    TooLarge,
    Bytes(Vec<u8>),
}

pub(crate) fn read_file(path: &Path) -> io::Result<Contents> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::Missing),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(if bytes.len() as u64 > MAX_FILE_BYTES {
        Contents::TooLarge
    } else {
        Contents::Bytes(bytes)
    })
}

pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    for path in [path, &temporary_path(path)?] {
        match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Renames a file that cannot be used to `<name>.damaged-<n>` in the same directory, with an `n`
/// greater than all before, and returns its new path. The newest few are kept. Blocking.
///
/// Not for a directory whose every file is a record of its own (`image_manager/pulled`): a Go
/// kubelet would read the renamed file there.
///
/// # Errors
/// When the directory cannot be read or the file not be renamed; it is where it was then.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a file name")
    })?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        numbers.extend(damaged_number(name, &entry?.file_name()));
    }
    numbers.sort_unstable();

    let numbered = |number: u32| {
        let mut numbered = name.to_owned();
        numbered.push(format!("{DAMAGED}{number}"));
        path.with_file_name(numbered)
    };
    let target = numbered(numbers.last().map_or(1, |last| last.saturating_add(1)));
    fs::rename(path, &target)?;
    let surplus = (numbers.len() + 1).saturating_sub(DAMAGED_KEPT);
    for number in &numbers[..surplus.min(numbers.len())] {
        // The room it takes is the only harm if this fails, and the next time tries again.
        let _ = fs::remove_file(numbered(*number));
    }
    Ok(target)
}

const DAMAGED: &str = ".damaged-";

/// The `n` of `<name>.damaged-<n>`.
fn damaged_number(name: &OsStr, candidate: &OsStr) -> Option<u32> {
    let number = candidate.as_bytes().strip_prefix(name.as_bytes())?;
    let number = number.strip_prefix(DAMAGED.as_bytes())?;
    // Only as we write them: "+1" and "01" would be numbers, too.
    let number = str::from_utf8(number).ok().filter(|text| !text.starts_with(['+', '0']))?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Value = BTreeMap<String, u64>;

    fn value(number: u64) -> Value {
        BTreeMap::from([("number".to_owned(), number)])
    }

    fn checkpoint(directory: &Path) -> CheckpointFile {
        CheckpointFile::new(directory.join("some_state"), Durability::Unsynced)
    }

    fn damaged(file: &CheckpointFile) -> DamagedFile {
        match file.load::<Value>().unwrap() {
            Loaded::Damaged(damaged) => damaged,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn missing_saved_replaced_removed() {
        let directory = tempfile::tempdir().unwrap();
        let file = checkpoint(directory.path());
        assert!(matches!(file.load::<Value>().unwrap(), Loaded::Missing));
        for number in [1, 2] {
            file.save(&value(number)).unwrap();
            assert!(
                matches!(file.load::<Value>().unwrap(), Loaded::Value(v) if v == value(number))
            );
        }
        fs::write(directory.path().join(".some_state"), "left by a crash").unwrap();
        file.remove().unwrap();
        assert!(matches!(file.load::<Value>().unwrap(), Loaded::Missing));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        file.remove().unwrap();
    }

    #[test]
    fn a_damaged_file_is_set_aside_as_it_was_and_a_save_begins_anew() {
        let directory = tempfile::tempdir().unwrap();
        let file = checkpoint(directory.path());
        fs::write(file.path(), b"\xff\0garbage").unwrap();
        let damaged = damaged(&file);
        assert_eq!(damaged.path, file.path());
        assert!(matches!(damaged.damage, Damage::Envelope(_)));
        let aside = damaged.set_aside.unwrap();
        assert_eq!(aside, directory.path().join("some_state.damaged-1"));
        assert_eq!(fs::read(aside).unwrap(), b"\xff\0garbage");

        assert!(matches!(file.load::<Value>().unwrap(), Loaded::Missing));
        file.save(&value(1)).unwrap();
        assert!(matches!(file.load::<Value>().unwrap(), Loaded::Value(_)));
    }

    #[test]
    fn truncated_at_every_offset_it_is_damaged_and_a_few_are_kept() {
        let directory = tempfile::tempdir().unwrap();
        let file = checkpoint(directory.path());
        file.save(&value(1)).unwrap();
        let whole = fs::read(file.path()).unwrap();
        for length in 0..whole.len() {
            fs::write(file.path(), &whole[..length]).unwrap();
            let damaged = damaged(&file);
            assert_eq!(matches!(damaged.damage, Damage::Empty), length == 0);
            assert_eq!(
                damaged.set_aside.unwrap(),
                directory.path().join(format!("some_state.damaged-{}", length + 1))
            );
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), DAMAGED_KEPT);
    }

    #[test]
    fn only_our_own_numbers_count() {
        let name = OsStr::new("state");
        let cases = [
            ("state.damaged-1", Some(1)),
            ("state.damaged-4294967295", Some(u32::MAX)),
            ("state.damaged-4294967296", None),
            ("state.damaged-+1", None),
            ("state.damaged-01", None),
            ("state.damaged-", None),
            ("state.damaged-1.old", None),
            ("state", None),
            ("other_state.damaged-1", None),
        ];
        for (candidate, number) in cases {
            assert_eq!(damaged_number(name, OsStr::new(candidate)), number, "{candidate}");
        }
    }

    #[test]
    fn an_oversized_file_is_damaged_without_being_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = checkpoint(directory.path());
        File::create(file.path()).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(matches!(damaged(&file).damage, Damage::TooLarge));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_neither_missing_nor_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let file = checkpoint(directory.path());
        fs::create_dir(file.path()).unwrap();
        assert!(matches!(file.load::<Value>(), Err(CheckpointError::Read { .. })));
        assert!(file.path().is_dir());
        assert!(matches!(
            file.save(&value(1)),
            Err(CheckpointError::Write(WriteError { step: crate::WriteStep::Rename, .. }))
        ));
        assert!(matches!(file.remove(), Err(CheckpointError::Remove { .. })));
    }

    #[test]
    fn a_value_without_json_is_not_saved() {
        let directory = tempfile::tempdir().unwrap();
        let file = checkpoint(directory.path());
        let no_text_keys = BTreeMap::from([(vec![1], 1)]);
        assert!(matches!(file.save(&no_text_keys), Err(CheckpointError::Encode { .. })));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
