//! Who may use an image that is already on the node (KEP-2535).
//!
//! Whoever could pull an image may use it. What the kubelet pulled, and with whose credentials, is kept
//! in records ([`store`]), so that it is known after a restart; the rules ([`access`], [`policy`]) are
//! pure.
//!
//! A pull is announced by an intent before it begins, and the intent goes when the record is there.
//! Killed in between, the kubelet finds the intent and knows that the image is not one that was on
//! the node from the beginning.

mod access;
mod policy;
mod record;
mod store;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rubelet_cri::v1::Image;
use rubelet_types::{Clock, error_chain};
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

pub use self::policy::VerificationPolicy;
pub(crate) use self::record::ImagePullCredentials;
pub use self::store::RecordError;

use self::access::{Access, decide_access};
use self::record::merge_credentials;
use self::store::RecordStore;
use crate::credentials::PullCredential;
use crate::metrics::{Check, ImageMetrics};
use crate::reference::{name_without_tag, parse_image_reference};

/// How it is verified that a pod may use an image that is already on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialVerification {
    /// For which images (`imagePullCredentialsVerificationPolicy`).
    pub policy: VerificationPolicy,
    /// Where the records are: `<root>/image_manager`.
    pub directory: PathBuf,
}

/// What can be said of a present image without the pod's credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The pod may use it.
    Accessible,
    /// The pod has to be able to pull it.
    MustPull,
    /// The pod may use it if it has one of these.
    Depends(ImagePullCredentials),
}

/// Keeps the records of pulls.
#[derive(Debug)]
pub(crate) struct PullRecords {
    policy: VerificationPolicy,
    clock: Clock,
    /// Goes along to the thread that works on the files, and back when that is done, whoever still
    /// waits for it: there is one writer at a time.
    files: Arc<Mutex<Files>>,
    metrics: Arc<ImageMetrics>,
}

#[derive(Debug)]
struct Files {
    store: RecordStore,
    /// The pulls that run, by image.
    pulling: HashMap<String, usize>,
    metrics: Arc<ImageMetrics>,
}

impl PullRecords {
    pub(crate) fn new(
        verification: CredentialVerification,
        clock: Clock,
        metrics: Arc<ImageMetrics>,
    ) -> Self {
        let CredentialVerification { policy, directory } = verification;
        let files = Files {
            store: RecordStore::new(&directory),
            pulling: HashMap::new(),
            metrics: metrics.clone(),
        };
        Self { policy, clock, files: Arc::new(Mutex::new(files)), metrics }
    }

    /// Makes the directories. To be called before anything else.
    pub(crate) async fn open(&self) -> Result<(), RecordError> {
        self.with_files(|files| {
            files.store.make_directories()?;
            files.count();
            Ok(())
        })
        .await?
    }

    /// A pull of `image`, as the pod's spec writes it, is about to begin.
    pub(crate) async fn begin_pull(&self, image: &str) -> Result<(), RecordError> {
        let image = image.to_owned();
        self.with_files(move |files| {
            files.store.write_intent(&image)?;
            *files.pulling.entry(image).or_default() += 1;
            files.count();
            Ok(())
        })
        .await?
    }

    /// The pull of `image` has failed, or was given up.
    pub(crate) async fn end_failed_pull(&self, image: &str) {
        let image = image.to_owned();
        let ended = self.with_files(move |files| {
            let ended = files.end_pull(&image);
            files.count();
            ended
        });
        log_failure(ended.await.and_then(|ended| ended), "Could not remove the intent of a pull");
    }

    /// The pull of `image` gave `image_ref`, with a credential or without.
    pub(crate) async fn end_pull(
        &self,
        image: &str,
        image_ref: &str,
        used: Option<&PullCredential>,
    ) {
        let (image, image_ref) = (image.to_owned(), image_ref.to_owned());
        let (credentials, now) = (ImagePullCredentials::of_pull(used), self.clock.now());
        let ended = self
            .with_files(move |files| {
                // If that fails the intent stays: the image is still known as one that was pulled.
                let ended = files
                    .add_credentials(&image, &image_ref, Some(&credentials), now)
                    .and_then(|()| files.end_pull(&image));
                files.count();
                ended
            })
            .await;
        log_failure(ended.and_then(|ended| ended), "Could not record a pull");
    }

    /// Whether a pod may use `image`, which is on the node as `image_ref`.
    pub(crate) async fn judge(&self, image: &str, image_ref: &str) -> Judgement {
        let (owned, owned_ref) = (image.to_owned(), image_ref.to_owned());
        let known = self
            .with_files(move |files| {
                let record = files.store.read_record(&owned_ref)?;
                let is_known = record.is_some()
                    || files.pulling.contains_key(&owned)
                    || files.store.has_intent(&owned)?;
                Ok((is_known, record))
            })
            .await;
        let (was_pulled, record) = match known.and_then(|known| known) {
            Ok(known) => known,
            Err(error) => {
                // What cannot be told is not taken for granted.
                tracing::warn!(
                    image,
                    imageRef = image_ref,
                    error = error_chain(&error),
                    "Unable to access records about image pulls"
                );
                self.metrics.checked(Check::Failed);
                return Judgement::MustPull;
            }
        };
        if !self.policy.requires_verification(image, was_pulled) {
            self.metrics.checked(Check::Allowed);
            return Judgement::Accessible;
        }
        let name = name_without_tag(image);
        let of_name = record.and_then(|mut record| record.credential_mapping.remove(name?));
        match of_name {
            Some(known) if known.node_pods_accessible => {
                self.metrics.checked(Check::Recorded);
                Judgement::Accessible
            }
            Some(known) if !known.is_empty() => Judgement::Depends(known),
            _ => {
                self.metrics.checked(Check::MustAuthenticate);
                Judgement::MustPull
            }
        }
    }

    /// Whether a pod with these credentials has one of those that are `known` for the image.
    pub(crate) async fn accepts(
        &self,
        image: &str,
        image_ref: &str,
        known: &ImagePullCredentials,
        credentials: &[PullCredential],
    ) -> bool {
        let access = decide_access(known, credentials);
        self.metrics.checked(match access {
            Access::Denied => Check::MustAuthenticate,
            Access::Accepted | Access::AcceptedAndLearnt(_) => Check::Recorded,
        });
        let more = match access {
            Access::Denied => return false,
            Access::Accepted => return true,
            Access::AcceptedAndLearnt(more) => more,
        };
        let (image, image_ref, now) = (image.to_owned(), image_ref.to_owned(), self.clock.now());
        let learnt = self
            .with_files(move |files| files.add_credentials(&image, &image_ref, Some(&more), now))
            .await;
        log_failure(learnt.and_then(|learnt| learnt), "Could not record a credential");
        true
    }

    /// Takes in what an earlier kubelet left: intents of images that are there become records, and
    /// records of images that are not there go. `images` is what the runtime had at some time after
    /// `listed`.
    pub(crate) async fn reconcile(&self, images: Vec<Image>, listed: Timestamp) {
        let now = self.clock.now();
        let done = self.with_files(move |files| {
            files.reconcile(&images, listed, now);
            files.count();
        });
        let done = done.await;
        log_failure(done, "Could not look at the records of pulls");
    }

    async fn with_files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Files) -> T + Send + 'static,
    ) -> Result<T, RecordError> {
        let mut files = Arc::clone(&self.files).lock_owned().await;
        spawn_blocking(move || work(&mut files)).await.map_err(|_| RecordError::Lost)
    }
}

fn log_failure(result: Result<(), RecordError>, what: &str) {
    if let Err(error) = result {
        tracing::error!(error = error_chain(&error), "{what}");
    }
}

impl Files {
    /// Tells how many files there are, after it has written or removed some.
    fn count(&self) {
        let (intents, records) = self.store.counts();
        self.metrics.intents.set(f64::from(intents));
        self.metrics.records.set(f64::from(records));
    }

    fn end_pull(&mut self, image: &str) -> Result<(), RecordError> {
        match self.pulling.get_mut(image) {
            Some(others) if *others > 1 => *others -= 1,
            _ => {
                self.store.delete_intent(image)?;
                self.pulling.remove(image);
            }
        }
        Ok(())
    }

    fn add_credentials(
        &mut self,
        image: &str,
        image_ref: &str,
        credentials: Option<&ImagePullCredentials>,
        now: Timestamp,
    ) -> Result<(), RecordError> {
        // What cannot be read is written anew.
        let record = self.store.read_record(image_ref).unwrap_or_else(|error| {
            tracing::warn!(
                imageRef = image_ref,
                error = error_chain(&error),
                "Replacing a record of an image pull"
            );
            None
        });
        let Some(name) = name_without_tag(image) else { return Ok(()) };
        match merge_credentials(record, image_ref, name, credentials, now) {
            Some(changed) => self.store.write_record(&changed),
            None => Ok(()),
        }
    }

    fn reconcile(&mut self, images: &[Image], listed: Timestamp, now: Timestamp) {
        for intent in self.store.list_intents() {
            if self.pulling.contains_key(&intent) {
                continue;
            }
            let mut written = Ok(());
            let mut found = false;
            for image in images.iter().filter(|image| is_name_of(&intent, image)) {
                found = true;
                written = written.and(self.add_credentials(&intent, &image.id, None, now));
            }
            if found {
                let done = written.and_then(|()| self.store.delete_intent(&intent));
                log_failure(done, "Could not make a record of the intent of a pull");
            }
        }
        for record in self.store.list_records() {
            let is_there = images.iter().any(|image| image.id == record.image_ref);
            if !is_there && record.last_updated_time.is_none_or(|updated| updated < listed) {
                log_failure(
                    self.store.delete_record(&record.image_ref),
                    "Could not remove the record of an image that is gone",
                );
            }
        }
    }
}

/// `written` is, in full, one of the names of the image.
fn is_name_of(written: &str, image: &Image) -> bool {
    let full = parse_image_reference(written).ok().map(|reference| match reference.digest {
        Some(digest) => format!("{}@{digest}", reference.repository),
        None => {
            let tag = reference.tag.as_deref().unwrap_or("latest");
            format!("{}:{tag}", reference.repository)
        }
    });
    let mut names = image.repo_tags.iter().chain(&image.repo_digests);
    names.any(|name| name == written || Some(name) == full.as_ref())
}

/// How long to wait before the runtime is asked for its images again.
pub(crate) const LIST_RETRY: Duration = Duration::from_secs(10);
