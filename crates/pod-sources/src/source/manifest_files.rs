//! What stands in a manifest directory, and which pods that makes.
//!
//! Everything here blocks on the file system; it runs on threads that may.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::fnv1a_128;
use rustix::fs::{Mode, OFlags};

use crate::decode::{MAX_MANIFEST_BYTES, ManifestWarning, decode_pod};
use crate::{ManifestError, ManifestOrigin, StaticPodPolicy, prepare_static_pod};

/// A file that was changed less than this before it was read may change again without a trace in
/// its times, and is read again.
const RACY_SECONDS: i64 = 2;

/// Why a file gives no pod.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error("cannot read the manifest: {0}")]
    Io(#[source] io::Error),
    #[error("it is a {0}, not a regular file; it is never opened")]
    NotRegular(&'static str),
    #[error("{0}")]
    Manifest(ManifestError),
}

/// Something to tell the operator, once per content.
#[derive(Debug)]
pub(super) enum Notice {
    /// The file is skipped; `kept` says that the pod of its last good version keeps running.
    Skipped { path: PathBuf, error: FileError, kept: bool },
    /// The file is used, but its author should look.
    Warnings { path: PathBuf, warnings: Vec<ManifestWarning> },
    /// The path cannot be listed; what it held before stays.
    Unlistable { path: PathBuf, error: io::Error },
}

/// What a scan found.
#[derive(Debug)]
pub(super) struct Scan {
    /// The pods are to be handed over: they are not the ones of the scan before, or it was the
    /// first.
    pub(super) changed: bool,
    pub(super) notices: Vec<Notice>,
}

impl Scan {
    /// Nothing found yet.
    pub(super) fn empty() -> Self {
        Self { changed: false, notices: Vec::new() }
    }

    /// What this and a later scan found.
    pub(super) fn extend(&mut self, later: Self) {
        self.changed |= later.changed;
        self.notices.extend(later.notices);
    }
}

/// Identity and version of a file's content as far as `stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fingerprint {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

#[derive(Debug)]
struct ManifestFile {
    /// `None` if it has to be read again whatever `stat` says.
    fingerprint: Option<Fingerprint>,
    /// Of what was last looked at: content, or kind of error. Equal ones are reported once.
    content: u128,
    /// Of its last good version.
    pod: Option<Pod>,
}

/// The pods of a directory of manifests, or of one manifest.
///
/// A file that cannot be used does not stop the pod of its last good version as long as the file is
/// there: it may be half written, and an editor's slip must not take the control plane down. The Go
/// kubelet removes such a pod.
#[derive(Debug)]
pub(super) struct ManifestFiles {
    root: PathBuf,
    policy: StaticPodPolicy,
    files: BTreeMap<PathBuf, ManifestFile>,
    listed: bool,
    unlistable: bool,
}

impl ManifestFiles {
    pub(super) fn new(root: PathBuf, policy: StaticPodPolicy) -> Self {
        Self { root, policy, files: BTreeMap::new(), listed: false, unlistable: false }
    }

    /// The pods in the order of their files' names.
    pub(super) fn pods(&self) -> Vec<Pod> {
        self.files.values().filter_map(|file| file.pod.clone()).collect()
    }

    /// Looks at everything but `unsettled` paths, which are being written or replaced and stay as
    /// they were.
    pub(super) fn rescan(&mut self, unsettled: &BTreeSet<PathBuf>, now: Timestamp) -> Scan {
        let mut scan = Scan { changed: !self.listed, ..Scan::empty() };
        let paths = match list(&self.root) {
            Ok(paths) => paths,
            Err(error) => {
                // Not knowing is not the same as empty. Said once until it can be listed again.
                if !std::mem::replace(&mut self.unlistable, true) {
                    scan.notices.push(Notice::Unlistable { path: self.root.clone(), error });
                }
                return Scan { changed: false, ..scan };
            }
        };
        self.listed = true;
        self.unlistable = false;
        let mut before = std::mem::take(&mut self.files);
        for path in unsettled {
            if let Some(file) = before.remove(path) {
                self.files.insert(path.clone(), file);
            }
        }
        for path in paths.into_iter().filter(|path| !unsettled.contains(path)) {
            if let Some(file) = before.remove(&path) {
                self.files.insert(path.clone(), file);
            }
            self.look_at(&path, now, false, &mut scan);
        }
        scan.changed |= before.values().any(|file| file.pod.is_some());
        scan
    }

    /// Looks at one file, of which something was noticed.
    pub(super) fn rescan_file(&mut self, path: &Path, now: Timestamp) -> Scan {
        let mut scan = Scan::empty();
        self.look_at(path, now, true, &mut scan);
        scan
    }

    fn look_at(&mut self, path: &Path, now: Timestamp, must_read: bool, scan: &mut Scan) {
        let known = self.files.get(path);
        let looked = look(path, known.and_then(|file| file.fingerprint).filter(|_| !must_read));
        let (outcome, fingerprint, content) = match looked {
            Look::Gone => {
                let gone = self.files.remove(path);
                scan.changed |= gone.is_some_and(|file| file.pod.is_some());
                return;
            }
            Look::Unchanged => return,
            Look::Failed(error) => {
                let content = fnv1a_128(format!("{error}").as_bytes());
                (Err(error), None, content)
            }
            Look::Read { bytes, fingerprint } => {
                let settled = now.as_second() - fingerprint.changed.0 >= RACY_SECONDS;
                let content = fnv1a_128(&bytes);
                let fingerprint = settled.then_some(fingerprint);
                if let Some(file) = self.files.get_mut(path).filter(|file| file.content == content)
                {
                    file.fingerprint = fingerprint;
                    return;
                }
                let pod = self.pod_of(path, &bytes, scan);
                (pod.map_err(FileError::Manifest), fingerprint, content)
            }
        };
        let before = self.files.remove(path);
        let is_news = before.as_ref().is_none_or(|file| file.content != content);
        let old_pod = before.and_then(|file| file.pod);
        let pod = match outcome {
            Ok(pod) => {
                scan.changed |= old_pod.as_ref() != Some(&pod);
                Some(pod)
            }
            Err(error) => {
                if is_news {
                    let kept = old_pod.is_some();
                    scan.notices.push(Notice::Skipped { path: path.to_owned(), error, kept });
                }
                old_pod
            }
        };
        self.files.insert(path.to_owned(), ManifestFile { fingerprint, content, pod });
    }

    fn pod_of(&self, path: &Path, bytes: &[u8], scan: &mut Scan) -> Result<Pod, ManifestError> {
        let manifest = decode_pod(bytes)?;
        let origin = ManifestOrigin::File(path.to_owned());
        let pod = manifest.pods.into_iter().next().unwrap_or_default();
        let pod = prepare_static_pod(pod, &origin, &self.policy)?;
        if !manifest.warnings.is_empty() {
            let warnings = manifest.warnings;
            scan.notices.push(Notice::Warnings { path: path.to_owned(), warnings });
        }
        Ok(pod)
    }
}

/// The files of `root`, not of directories beneath it; `root` itself if it is one. A missing `root`
/// has none.
fn list(root: &Path) -> io::Result<Vec<PathBuf>> {
    let metadata = match std::fs::metadata(root) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    if !metadata.is_dir() {
        return Ok(vec![root.to_owned()]);
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if !is_ignored(&entry.file_name()) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Hidden files are somebody's bookkeeping.
pub(super) fn is_ignored(name: &std::ffi::OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

enum Look {
    Gone,
    Unchanged,
    Read { bytes: Vec<u8>, fingerprint: Fingerprint },
    Failed(FileError),
}

/// Reads `path` unless it is a directory or still has the fingerprint `known`. Links are followed:
/// mounted config maps consist of them.
fn look(path: &Path, known: Option<Fingerprint>) -> Look {
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        // Also a link that leads nowhere.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Look::Gone,
        Err(error) => return Look::Failed(FileError::Io(error)),
    };
    if known == Some(fingerprint(&metadata)) {
        return Look::Unchanged;
    }
    if let Some(kind) = special_kind(&metadata) {
        return Look::Failed(FileError::NotRegular(kind));
    }
    match read(path) {
        Ok((metadata, bytes)) => match special_kind(&metadata) {
            Some(kind) => Look::Failed(FileError::NotRegular(kind)),
            None => Look::Read { bytes, fingerprint: fingerprint(&metadata) },
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Look::Gone,
        Err(error) => Look::Failed(FileError::Io(error)),
    }
}

fn special_kind(metadata: &std::fs::Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("directory")
    } else if kind.is_fifo() {
        Some("named pipe")
    } else if kind.is_socket() {
        Some("socket")
    } else {
        Some("device")
    }
}

fn fingerprint(metadata: &std::fs::Metadata) -> Fingerprint {
    Fingerprint {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }
}

/// The file may have been exchanged since it was looked at: opening must not block whatever it is
/// by now, and one byte above the limit is enough to know that it is too large.
fn read(path: &Path) -> io::Result<(std::fs::Metadata, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    let mut bytes = Vec::new();
    if metadata.is_file() {
        let limit = MAX_MANIFEST_BYTES as u64 + 1;
        file.take(limit).read_to_end(&mut bytes)?;
    }
    Ok((metadata, bytes))
}

#[cfg(test)]
mod tests;
