//! One pull: its turn, the rate limit, one credential after the other.

use std::num::NonZeroU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rubelet_cri::v1::{Image, ImageSpec, PodSandboxConfig};
use rubelet_types::error_chain;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::credentials::PullCredential;
use crate::rate_limit::TokenBucket;
use crate::service::ImageService;
use crate::verification::PullRecords;

/// Everything that makes a pull what it is.
#[derive(Clone, Debug)]
pub(crate) struct PullRequest {
    pub(crate) image: ImageSpec,
    pub(crate) credentials: Vec<PullCredential>,
    pub(crate) sandbox_config: PodSandboxConfig,
}

/// A pull that succeeded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PulledImage {
    pub(crate) image_ref: String,
    /// The credential that it took; none if it took none.
    pub(crate) used: Option<PullCredential>,
    /// How long the runtime took, without waiting for a turn.
    pub(crate) took: Duration,
    /// What the runtime says of the image; the text of its error when it does not.
    pub(crate) status: Result<Option<Image>, String>,
}

/// How a pull ended: with the image, or with the text that users read.
pub(crate) type PullOutcome = Result<PulledImage, String>;

/// How many pulls run at once. Whoever waits is served in the order of arrival.
#[derive(Debug)]
pub(crate) struct PullTurns(Option<Semaphore>);

impl PullTurns {
    /// `serialize` allows one pull at a time, whatever `max_parallel` says; without either there is
    /// no limit.
    pub(crate) fn new(serialize: bool, max_parallel: Option<NonZeroU32>) -> Self {
        let turns = if serialize {
            Some(1)
        } else {
            max_parallel.map(|max| usize::try_from(max.get()).unwrap_or(usize::MAX))
        };
        Self(turns.map(|turns| Semaphore::new(turns.min(Semaphore::MAX_PERMITS))))
    }

    async fn wait(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed, so an error cannot happen and costs nothing but the limit.
        match &self.0 {
            Some(turns) => turns.acquire().await.ok(),
            None => None,
        }
    }
}

impl PulledImage {
    /// What the image is known by on the node, also later.
    fn id(&self) -> &str {
        match &self.status {
            Ok(Some(image)) => &image.id,
            Ok(None) | Err(_) => &self.image_ref,
        }
    }
}

/// Runs pulls against the runtime.
#[derive(Debug)]
pub(crate) struct Puller<S> {
    pub(crate) service: S,
    /// None if nobody verifies who may use what was pulled.
    pub(crate) records: Option<PullRecords>,
    pub(crate) turns: PullTurns,
    /// None when the rate is not limited.
    pub(crate) rate: Option<Mutex<TokenBucket>>,
}

impl<S: ImageService> Puller<S> {
    /// Pulls, and keeps the record of it; none if `cancel` came first. To be run to its end, so
    /// that no intent is left behind.
    pub(crate) async fn pull(
        &self,
        request: PullRequest,
        cancel: &CancellationToken,
    ) -> Option<PullOutcome> {
        let image = request.image.user_specified_image.clone();
        if let Some(records) = &self.records
            && let Err(error) = records.begin_pull(&image).await
        {
            let error = error_chain(&error);
            return Some(Err(format!(
                "Failed to record image pull intent for container image {image:?}: {error}"
            )));
        }
        let outcome = cancel.run_until_cancelled(self.pull_in_turn(request)).await;
        if let Some(records) = &self.records {
            match &outcome {
                Some(Ok(pulled)) => {
                    records.end_pull(&image, pulled.id(), pulled.used.as_ref()).await;
                }
                Some(Err(_)) | None => records.end_failed_pull(&image).await,
            }
        }
        outcome
    }

    async fn pull_in_turn(&self, request: PullRequest) -> PullOutcome {
        let _turn = self.turns.wait().await;
        if !self.within_rate() {
            return Err("pull QPS exceeded".to_owned());
        }
        let started = Instant::now();
        let (image_ref, used) = self.try_credentials(&request).await?;
        let took = started.elapsed();
        let pulled = ImageSpec { image: image_ref.clone(), ..request.image };
        let status = self.service.image_status(pulled).await.map_err(|error| error.to_string());
        Ok(PulledImage { image_ref, used, took, status })
    }

    fn within_rate(&self) -> bool {
        self.rate.as_ref().is_none_or(|rate| {
            rate.lock().unwrap_or_else(PoisonError::into_inner).try_take(Instant::now())
        })
    }

    async fn try_credentials(
        &self,
        request: &PullRequest,
    ) -> Result<(String, Option<PullCredential>), String> {
        let anonymous = request.credentials.is_empty().then_some(None);
        let credentials = request.credentials.iter().map(Some).chain(anonymous);
        let mut errors: Vec<String> = Vec::new();
        for credential in credentials {
            let pull = self.service.pull_image(
                request.image.clone(),
                credential.map(PullCredential::to_auth_config),
                request.sandbox_config.clone(),
            );
            match pull.await {
                Ok(image_ref) => return Ok((image_ref, credential.cloned())),
                Err(error) => {
                    let error = error.to_string();
                    if !errors.contains(&error) {
                        errors.push(error);
                    }
                }
            }
        }
        Err(match errors.as_slice() {
            [error] => error.clone(),
            errors => format!("[{}]", errors.join(", ")),
        })
    }
}
