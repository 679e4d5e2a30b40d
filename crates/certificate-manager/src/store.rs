//! Certificates with their keys on disk, in upstream's layout, so that either kubelet can take over
//! from the other.
//!
//! | in the certificate directory | what |
//! |---|---|
//! | `kubelet-client-<time>.pem`, `kubelet-server-<time>.pem` | one pair each, mode 0600 |
//! | `kubelet-client-current.pem`, `kubelet-server-current.pem` | link to the pair in use |
//! | `kubelet-client-updated.pem`, ... | the link that is about to take the place of the one before |
//! | `kubelet-client.key.tmp` | key of the first request, while that is on its way |
//! | `<name>.damaged-<n>` | a file that could not be used, for people to look at |

mod recovery;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rubelet_checkpoint::{Durability, WriteError, set_aside, write_atomic};
use rubelet_types::error_chain;

use crate::certificate::{CertificatePair, PairError};
use crate::key::SigningKey;
use crate::request::Purpose;

/// How the time stands in the names of files: local time, as upstream has it.
const TIME_IN_NAMES: &str = "%Y-%m-%d-%H-%M-%S";
const CURRENT: &str = "current";
const UPDATED: &str = "updated";
/// No pair comes near this.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Where a certificate and its key are; both may be in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    /// The certificate's file.
    pub certificate: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// The certificates for one purpose in the certificate directory. All methods block.
#[derive(Clone, Debug)]
pub struct CertificateStore {
    directory: PathBuf,
    purpose: Purpose,
    /// Files of an administrator that are used as long as there are none of our own.
    given: Option<PairFiles>,
}

/// The store cannot be read or written. Trying again may help.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file is there and cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A directory cannot be made.
    #[error("could not create directory {} to store certificates", path.display())]
    CreateDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A pair cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A pair that was just written reads differently.
    #[error("{} does not hold what was written there", path.display())]
    Verify {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PairError,
    },
    /// A link or file cannot be made, renamed or removed.
    #[error("cannot {action} {}", path.display())]
    Change {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The name for a link that is about to be put in place is taken by something else.
    #[error("expected {} to be a symlink but it is a file", path.display())]
    NotALink {
        /// The name.
        path: PathBuf,
    },
    /// There is no random number for a key.
    #[error("unable to generate a new private key")]
    Generate {
        /// Why.
        source: rcgen::Error,
    },
}

/// The steps of an update, in their order; the tests stop between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateStep {
    /// The pair is written under its own name.
    Write,
    /// It is read again.
    Verify,
    /// A link that an interrupted update left is removed.
    RemoveStale,
    /// The new link is made.
    Link,
    /// A file where only a link may be gets a second name.
    KeepFile,
    /// The new link takes the place of the one before.
    Rename,
    /// The directory is flushed.
    Flush,
}

impl CertificateStore {
    /// The store for `purpose` in `directory` (`--cert-dir`), which need not exist yet. Finishes an
    /// update that was interrupted.
    ///
    /// `given` are files that the administrator named (in the kubeconfig; `tlsCertFile`): they are
    /// used as long as the store has no pair of its own, and never written.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn open(
        directory: &Path,
        purpose: Purpose,
        given: Option<PairFiles>,
    ) -> Result<Self, StoreError> {
        // The links that are made must hold wherever they are followed from.
        let directory = std::path::absolute(directory)
            .map_err(|source| StoreError::Read { path: directory.to_owned(), source })?;
        let store = Self { directory, purpose, given };
        store.finish_update()?;
        Ok(store)
    }

    /// The link to the pair in use.
    pub fn current_path(&self) -> PathBuf {
        self.named(CURRENT)
    }

    /// Where a pair may be, the first that exists counts: our own, the administrator's, and the
    /// names of times before there were links.
    pub fn places(&self) -> Vec<PairFiles> {
        let current = self.current_path();
        let mut places = vec![PairFiles { certificate: current.clone(), key: current }];
        places.extend(self.given.clone());
        let old = |extension| self.directory.join(format!("{}.{extension}", self.prefix()));
        places.push(PairFiles { certificate: old("crt"), key: old("key") });
        places
    }

    /// The pair in use; nothing if there is none.
    ///
    /// A file of ours that is damaged is set aside, and the newest of those before that is good at
    /// `now` takes its place. One of the administrator's stays where it is, and the log tells.
    ///
    /// # Errors
    ///
    /// A file is there, and its bytes cannot be had: that says nothing about what it holds.
    pub fn current(&self, now: Timestamp) -> Result<Option<CertificatePair>, StoreError> {
        let current = self.current_path();
        for PairFiles { certificate, key } in self.places() {
            let is_ours = certificate == current;
            let (Some(certificate_pem), Some(key_pem)) = (read(&certificate)?, read(&key)?) else {
                continue;
            };
            match CertificatePair::from_pem(&certificate_pem, &key_pem) {
                Ok(pair) => return Ok(Some(pair)),
                Err(damage) if is_ours => {
                    if let Some(pair) = self.replace_damaged(&damage, now)? {
                        return Ok(Some(pair));
                    }
                }
                Err(damage) => tracing::warn!(
                    certFile = %certificate.display(), keyFile = %key.display(), error = %damage,
                    "Certificate and key cannot be used"
                ),
            }
        }
        Ok(None)
    }

    /// Makes `pair` the one in use.
    ///
    /// At whatever moment this is interrupted, readers find the pair before or the new one.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the pair before is still in use then.
    pub fn update(&self, pair: &CertificatePair, now: Timestamp) -> Result<(), StoreError> {
        self.update_stepwise(pair, now, |_| Ok(()))
    }

    fn update_stepwise(
        &self,
        pair: &CertificatePair,
        now: Timestamp,
        mut before: impl FnMut(UpdateStep) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        make_directory(&self.directory)?;
        let time = now.to_zoned(TimeZone::system()).strftime(TIME_IN_NAMES).to_string();
        let path = self.named(&time);
        before(UpdateStep::Write)?;
        write_atomic(&path, pair.to_pem().as_bytes(), Durability::Synced)?;
        before(UpdateStep::Verify)?;
        let written = read(&path)?.unwrap_or_default();
        CertificatePair::from_pem(&written, &written)
            .map_err(|source| StoreError::Verify { path: path.clone(), source })?;
        self.point_at(&path, before)
    }

    /// Points the link at `path`.
    fn point_at(
        &self,
        path: &Path,
        mut before: impl FnMut(UpdateStep) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (current, updated) = (self.current_path(), self.named(UPDATED));
        before(UpdateStep::RemoveStale)?;
        match is_link(&updated)? {
            None => {}
            Some(false) => return Err(StoreError::NotALink { path: updated }),
            Some(true) => {
                fs::remove_file(&updated).map_err(|source| changing("remove", &updated, source))?;
            }
        }
        before(UpdateStep::Link)?;
        symlink(path, &updated).map_err(|source| changing("link", &updated, source))?;
        before(UpdateStep::KeepFile)?;
        if is_link(&current)? == Some(false) {
            self.keep_file(&current)?;
        }
        before(UpdateStep::Rename)?;
        fs::rename(&updated, &current).map_err(|source| changing("rename", &updated, source))?;
        before(UpdateStep::Flush)?;
        flush(&self.directory)
    }

    /// Somebody put a file in the place of the link. Upstream refuses to renew from then on; here it
    /// gets another name and stays.
    fn keep_file(&self, file: &Path) -> Result<(), StoreError> {
        let kept = file.with_extension("pem.replaced");
        match fs::remove_file(&kept) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(changing("remove", &kept, source));
            }
            _ => {}
        }
        fs::hard_link(file, &kept).map_err(|source| changing("link", &kept, source))?;
        tracing::warn!(
            path = %file.display(), kept = %kept.display(),
            "Expected a symlink to the current certificate, and found a file: keeping it"
        );
        Ok(())
    }

    /// The key of a first request that is on its way; makes one if there is none. One that cannot be
    /// used is set aside.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn load_or_generate_key(&self) -> Result<SigningKey, StoreError> {
        let path = self.temporary_key_path();
        if let Some(pem) = read(&path)? {
            match SigningKey::from_pem(&pem) {
                Ok(key) => return Ok(key),
                Err(damage) => {
                    let aside =
                        set_aside(&path).map_err(|source| changing("rename", &path, source))?;
                    tracing::warn!(
                        path = %path.display(), aside = %aside.display(), error = %damage,
                        "The private key of an earlier certificate request cannot be used"
                    );
                }
            }
        }
        self.generate_key()
    }

    /// A new key for a first request, in the place of any before.
    ///
    /// # Errors
    ///
    /// [`StoreError`].
    pub fn generate_key(&self) -> Result<SigningKey, StoreError> {
        let key = SigningKey::generate().map_err(|source| StoreError::Generate { source })?;
        make_directory(&self.directory)?;
        let path = self.temporary_key_path();
        write_atomic(&path, key.to_pem().as_bytes(), Durability::Synced)?;
        Ok(key)
    }

    /// Removes the key of a first request. Nothing there is success.
    ///
    /// # Errors
    ///
    /// [`StoreError::Change`].
    pub fn remove_key(&self) -> Result<(), StoreError> {
        let path = self.temporary_key_path();
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(changing("remove", &path, source))
            }
            _ => Ok(()),
        }
    }

    fn temporary_key_path(&self) -> PathBuf {
        self.directory.join(format!("{}.key.tmp", self.prefix()))
    }

    fn prefix(&self) -> &'static str {
        match self.purpose {
            Purpose::Client => "kubelet-client",
            Purpose::Serving => "kubelet-server",
        }
    }

    fn named(&self, qualifier: &str) -> PathBuf {
        self.directory.join(format!("{}-{qualifier}.pem", self.prefix()))
    }
}

fn changing(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Change { action, path: path.to_owned(), source }
}

/// Readable by all, as upstream makes it: what is within is not.
pub(crate) fn make_directory(path: &Path) -> Result<(), StoreError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .map_err(|source| StoreError::CreateDirectory { path: path.to_owned(), source })
}

/// What a file holds, through links; nothing if there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let failed = |source| StoreError::Read { path: path.to_owned(), source };
    match fs::metadata(path) {
        Ok(metadata) if metadata.len() > MAX_FILE_BYTES => Ok(Some(Vec::new())),
        Ok(_) => fs::read(path).map(Some).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Whether `path` is a link; nothing if there is nothing.
fn is_link(path: &Path) -> Result<Option<bool>, StoreError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.is_symlink())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::Read { path: path.to_owned(), source }),
    }
}

fn flush(directory: &Path) -> Result<(), StoreError> {
    let flushed = fs::File::open(directory).and_then(|directory| directory.sync_all());
    match flushed {
        // File systems that cannot flush a directory say so.
        Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
            Err(changing("flush", directory, error))
        }
        _ => Ok(()),
    }
}

/// Tells of a step on the way that failed and that does not matter for the result.
fn warn_about(error: &StoreError) {
    tracing::warn!(error = error_chain(error), "The certificate directory could not be tidied up");
}

#[cfg(test)]
mod tests;
