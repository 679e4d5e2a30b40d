use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rubelet_checkpoint::{Durability, WriteError, write_atomic};
use sha2::{Digest, Sha256};

use super::record::{
    ImagePulledRecord, decode_intent, decode_record, encode_intent, encode_record,
};

/// Files of records begin so; what does not is none.
const PREFIX: &str = "sha256-";
/// The Go kubelet's half-written files end so.
const TEMPORARY: &str = ".tmp";
/// Larger files are no records.
const MAX_BYTES: u64 = 4 << 20;

/// A record of a pull could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A directory could not be made.
    #[error("cannot make the directory {}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read or removed.
    #[error("cannot access the record {}", .path.display())]
    Access {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write a record")]
    Write(#[source] WriteError),
    /// A record could not be put in writing.
    #[error("cannot encode a record")]
    Encode(#[source] serde_json::Error),
    /// A file is no record.
    #[error("cannot decode the record {}: {problem}", .path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The work on a file came to no end.
    #[error("the work on the records was lost")]
    Lost,
}

/// The files of the records. All of it blocks.
#[derive(Debug)]
pub(super) struct RecordStore {
    pulling: PathBuf,
    pulled: PathBuf,
}

impl RecordStore {
    pub(super) fn new(directory: &Path) -> Self {
        Self { pulling: directory.join("pulling"), pulled: directory.join("pulled") }
    }

    pub(super) fn make_directories(&self) -> Result<(), RecordError> {
        for path in [&self.pulling, &self.pulled] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|source| RecordError::Directory { path: path.clone(), source })?;
        }
        Ok(())
    }

    pub(super) fn write_intent(&self, image: &str) -> Result<(), RecordError> {
        let text = encode_intent(image).map_err(RecordError::Encode)?;
        self.write(&file(&self.pulling, image), &text)
    }

    pub(super) fn has_intent(&self, image: &str) -> Result<bool, RecordError> {
        let path = file(&self.pulling, image);
        let Some(text) = read(&path)? else { return Ok(false) };
        let intent =
            decode_intent(&text).map_err(|problem| RecordError::Decode { path, problem })?;
        Ok(intent == image)
    }

    pub(super) fn delete_intent(&self, image: &str) -> Result<(), RecordError> {
        delete(file(&self.pulling, image))
    }

    /// The images of all intents that can be read.
    pub(super) fn list_intents(&self) -> Vec<String> {
        list(&self.pulling, decode_intent)
    }

    pub(super) fn read_record(
        &self,
        image_ref: &str,
    ) -> Result<Option<ImagePulledRecord>, RecordError> {
        let path = file(&self.pulled, image_ref);
        let Some(text) = read(&path)? else { return Ok(None) };
        let record =
            decode_record(&text).map_err(|problem| RecordError::Decode { path, problem })?;
        Ok(Some(record).filter(|record| record.image_ref == image_ref))
    }

    pub(super) fn write_record(&self, record: &ImagePulledRecord) -> Result<(), RecordError> {
        let text = encode_record(record).map_err(RecordError::Encode)?;
        self.write(&file(&self.pulled, &record.image_ref), &text)
    }

    pub(super) fn delete_record(&self, image_ref: &str) -> Result<(), RecordError> {
        delete(file(&self.pulled, image_ref))
    }

    /// All records that can be read.
    pub(super) fn list_records(&self) -> Vec<ImagePulledRecord> {
        list(&self.pulled, decode_record)
    }

    /// How many intents and how many records there are, readable or not.
    pub(super) fn counts(&self) -> (u32, u32) {
        let count = |directory| {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let records = names.filter(|name| is_record(name)).count();
            u32::try_from(records).unwrap_or(u32::MAX)
        };
        (count(&self.pulling), count(&self.pulled))
    }

    /// Survives a power loss: an image without its record is one that everybody may use.
    fn write(&self, path: &Path, text: &[u8]) -> Result<(), RecordError> {
        self.make_directories()?;
        write_atomic(path, text, Durability::Synced).map_err(RecordError::Write)
    }
}

fn is_record(file_name: &str) -> bool {
    file_name.starts_with(PREFIX) && !file_name.ends_with(TEMPORARY)
}

/// The file for an image or a reference to one.
fn file(directory: &Path, of: &str) -> PathBuf {
    let hash: String =
        Sha256::digest(of.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    directory.join(format!("{PREFIX}{hash}"))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, RecordError> {
    let access = |source| RecordError::Access { path: path.to_owned(), source };
    let mut text = Vec::new();
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => {
            opened.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text)).map_err(access)?
        }
    };
    Ok(Some(text))
}

fn delete(path: PathBuf) -> Result<(), RecordError> {
    match fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(RecordError::Access { path, source })
        }
        _ => Ok(()),
    }
}

/// What the files of a directory hold. Those that cannot be used are left as they are.
fn list<T>(directory: &Path, decode: fn(&[u8]) -> Result<T, String>) -> Vec<T> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(directory = %directory.display(), error = %error,
                "Cannot list records of image pulls");
            return Vec::new();
        }
    };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !is_record(&name) {
            continue;
        }
        let read = read(&entry.path())
            .map_err(|error| rubelet_types::error_chain(&error))
            .and_then(|text| text.map(|text| decode(&text)).transpose());
        match read {
            Ok(value) => found.extend(value),
            Err(problem) => tracing::warn!(path = %entry.path().display(), error = problem,
                "Cannot use a record of an image pull"),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_upstream_names_them() {
        let name = |of| file(Path::new("d"), of).display().to_string();
        assert_eq!(
            name("testimageref"),
            "d/sha256-b3c0cc4278800b03a308ceb2611161430df571ca733122f0a40ac8b9792a9064"
        );
        assert_eq!(
            name("docker.io/testing/test:latest"),
            "d/sha256-aef2af226629a35d5f3ef0fdbb29fdbebf038d0acd8850590e8c48e1e283aa56"
        );
    }
}
