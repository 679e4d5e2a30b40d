use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1::{Image, ImageSpec, PodSandboxConfig};
use rubelet_types::{
    Clock, EventObject, EventRecorder, EventType, PodRef, PodUid, format_go_duration, reasons,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::back_off::PullBackOff;
use crate::credentials::PullCredential;
use crate::error::EnsureImageError;
use crate::metrics::{Asked, Check, ImageMetrics};
use crate::pull::{PullRequest, PullTurns, PulledImage, Puller};
use crate::rate_limit::TokenBucket;
use crate::reference::with_default_tag;
use crate::service::{CredentialLookup, ImageCredentials, ImageService};
use crate::shared::SharedPulls;
use crate::verification::{
    CredentialVerification, Judgement, LIST_RETRY, PullRecords, RecordError,
};

/// How pulls are limited (the fields of `KubeletConfiguration` of the same names).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageManagerConfig {
    /// `serializeImagePulls`: one pull at a time.
    pub serialize_image_pulls: bool,
    /// `maxParallelImagePulls`; none means no limit. Only looked at without `serialize_image_pulls`.
    pub max_parallel_image_pulls: Option<NonZeroU32>,
    /// `registryPullQPS`: pulls per second; 0 means no limit.
    pub registry_pull_qps: u32,
    /// `registryBurst`: pulls at once that the rate allows after a quiet time.
    pub registry_burst: u32,
    /// How long a pull waits after its first failure; upstream 10 s.
    pub back_off_initial: Duration,
    /// The longest a failing pull waits; upstream 300 s.
    pub back_off_max: Duration,
    /// How it is verified that a pod may use an image that is already there; none if it is not
    /// (feature gate `KubeletEnsureSecretPulledImages` off).
    pub credential_verification: Option<CredentialVerification>,
}

impl Default for ImageManagerConfig {
    fn default() -> Self {
        Self {
            serialize_image_pulls: true,
            max_parallel_image_pulls: None,
            registry_pull_qps: 5,
            registry_burst: 10,
            back_off_initial: Duration::from_secs(10),
            back_off_max: Duration::from_secs(300),
            credential_verification: None,
        }
    }
}

/// When an image is pulled (`imagePullPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PullPolicy {
    /// Before every start of a container.
    Always,
    /// When the node does not have it.
    IfNotPresent,
    /// Never; it has to be there.
    Never,
}

impl PullPolicy {
    /// Reads the API's value. What is neither `IfNotPresent` nor `Never` counts as `Always`: API
    /// defaulting and validation leave nothing else.
    pub fn parse(policy: &str) -> Self {
        match policy {
            "IfNotPresent" => Self::IfNotPresent,
            "Never" => Self::Never,
            _ => Self::Always,
        }
    }
}

/// The request to have an image on the node.
#[derive(Clone, Copy, Debug)]
pub struct EnsureImage<'a> {
    /// The pod that needs it.
    pub pod: &'a PodRef,
    /// The pod as its source has it. The runtime gets to see its annotations; its pull secrets and
    /// its service account say which credentials it has.
    pub pod_object: &'a Pod,
    /// The image as the pod's spec says.
    pub image: &'a str,
    /// `imagePullPolicy`.
    pub policy: PullPolicy,
    /// The container that events are about, such as `spec.containers{app}`.
    pub field_path: &'a str,
    /// The sandbox the image is pulled for, which the runtime gets to see.
    pub sandbox_config: &'a PodSandboxConfig,
}

/// The user that an image runs as when the pod's spec names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// A numeric user id; also of an image that names nobody, which runs as 0.
    Uid(i64),
    /// A name, which only the image itself can resolve.
    Name(String),
}

/// An image that is on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRef {
    /// The runtime's reference: what containers are created from and what their status shows.
    pub image_ref: String,
    /// The user that the image runs as.
    pub user: ImageUser,
}

/// How it stands with an image that a pod waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullState {
    /// A pull of it is under way, for whichever pod, or waits for its turn.
    pub in_flight: bool,
    /// How the pod's last pull failed: reason and message.
    pub last_error: Option<String>,
    /// How long until the next one.
    pub retry_in: Option<Duration>,
}

/// Makes sure that images are on the node.
///
/// Cheap to clone; clones share everything.
pub struct ImageManager<S, C> {
    inner: Arc<Inner<S, C>>,
}

struct Inner<S, C> {
    puller: Arc<Puller<S>>,
    pulls: Arc<SharedPulls>,
    credentials: C,
    events: EventRecorder,
    clock: Clock,
    back_off: Mutex<PullBackOff>,
    metrics: Arc<ImageMetrics>,
}

impl<S, C> Clone for ImageManager<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<S, C> fmt::Debug for ImageManager<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageManager").finish_non_exhaustive()
    }
}

impl<S: ImageService, C: ImageCredentials> ImageManager<S, C> {
    /// Manages the images that `service` keeps.
    pub fn new(
        config: &ImageManagerConfig,
        service: S,
        credentials: C,
        events: EventRecorder,
        clock: Clock,
    ) -> Self {
        let rate = (config.registry_pull_qps > 0).then(|| {
            let (per_second, burst) = (config.registry_pull_qps, config.registry_burst);
            Mutex::new(TokenBucket::new(per_second, burst, Instant::now()))
        });
        let metrics = Arc::<ImageMetrics>::default();
        let records = config
            .credential_verification
            .clone()
            .map(|verification| PullRecords::new(verification, clock.clone(), metrics.clone()));
        let turns = PullTurns::new(config.serialize_image_pulls, config.max_parallel_image_pulls);
        Self {
            inner: Arc::new(Inner {
                puller: Arc::new(Puller { service, records, turns, rate }),
                pulls: Arc::default(),
                credentials,
                events,
                clock,
                back_off: Mutex::new(PullBackOff::new(
                    config.back_off_initial,
                    config.back_off_max,
                )),
                metrics,
            }),
        }
    }

    /// What is counted of images.
    pub fn metrics(&self) -> Arc<ImageMetrics> {
        self.inner.metrics.clone()
    }

    /// Makes ready what records of pulls need. To be awaited before the first image is asked for.
    ///
    /// # Errors
    /// When their directories cannot be made; a kubelet does not start then.
    pub async fn open(&self) -> Result<(), RecordError> {
        match &self.inner.puller.records {
            Some(records) => records.open().await,
            None => Ok(()),
        }
    }

    /// Takes in the records of pulls that an earlier kubelet left. Ends when that is done; until
    /// then what is unclear counts as not verified.
    pub async fn reconcile_records(&self) {
        let Some(records) = &self.inner.puller.records else { return };
        loop {
            let listed = self.inner.clock.now();
            match self.inner.puller.service.list_images().await {
                Ok(images) => return records.reconcile(images, listed).await,
                Err(error) => {
                    tracing::warn!(error = %error, "Cannot list images, trying again");
                    tokio::time::sleep(LIST_RETRY).await;
                }
            }
        }
    }

    /// How it stands with the pull of `image`, as the pod's spec says; none if it is not being pulled
    /// and has not failed a while ago. For whoever asks why a pod waits.
    pub fn pull_state(&self, pod: &PodUid, image: &str) -> Option<PullState> {
        let in_flight = self.inner.pulls.is_pulling(image);
        let back_off = self.inner.back_off.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = back_off.waiting(pod, image, Instant::now());
        let (retry_in, last_error) =
            waiting.map(|waiting| (waiting.remaining, waiting.last_error)).unzip();
        (in_flight || last_error.is_some()).then_some(PullState { in_flight, last_error, retry_in })
    }

    /// Returns once the image is on the node. Both the token and dropping the future give up;
    /// a pull that another pod waits for goes on.
    ///
    /// # Errors
    /// With the reason and the message for the container's status. Events have been recorded.
    pub async fn ensure_image(
        &self,
        request: EnsureImage<'_>,
        cancel: &CancellationToken,
    ) -> Result<ImageRef, EnsureImageError> {
        // What is cancelled is nobody's failure: no event, no back-off.
        cancel.run_until_cancelled(self.inner.ensure(request)).await.unwrap_or_else(|| {
            Err(EnsureImageError {
                reason: reasons::ERR_IMAGE_PULL,
                message: "context canceled".to_owned(),
                retry_at: None,
            })
        })
    }
}

impl<S: ImageService, C: ImageCredentials> Inner<S, C> {
    async fn ensure(&self, request: EnsureImage<'_>) -> Result<ImageRef, EnsureImageError> {
        let mut asked = Asked::default();
        let ensured = self.ensure_asked(request, &mut asked).await;
        self.metrics.asked(request.policy, asked);
        ensured
    }

    async fn ensure_asked(
        &self,
        request: EnsureImage<'_>,
        asked: &mut Asked,
    ) -> Result<ImageRef, EnsureImageError> {
        let written = request.image;
        let (image, reference) = with_default_tag(written).map_err(|error| {
            let message = format!(
                "Failed to apply default image tag {written:?}: couldn't parse image name \
                 {written:?}: {error}"
            );
            self.inspect_failed(request, reasons::INVALID_IMAGE_NAME, message)
        })?;
        let spec = ImageSpec {
            image,
            user_specified_image: written.to_owned(),
            annotations: request
                .pod_object
                .metadata
                .annotations
                .iter()
                .flatten()
                .map(owned)
                .collect(),
            ..Default::default()
        };
        let lookup = CredentialLookup {
            pod: request.pod,
            pod_object: request.pod_object,
            repository: &reference.repository,
            image: &spec.image,
        };
        let mut credentials = None;
        if request.policy != PullPolicy::Always {
            let found = self.find_present(request, &spec).await?;
            asked.present = Some(found.is_some());
            if let Some(found) = found
                && self.may_use(lookup, request.image, &found, &mut credentials).await
            {
                asked.pulled = Some(false);
                return Ok(self.present(request, found));
            }
            asked.pulled = Some(true);
            if request.policy == PullPolicy::Never {
                return Err(self.never_pulled(request));
            }
        }
        asked.pulled = Some(true);
        self.pull(request, spec.clone(), lookup, credentials).await
    }

    /// The image as the runtime has it, if it does.
    async fn find_present(
        &self,
        request: EnsureImage<'_>,
        spec: &ImageSpec,
    ) -> Result<Option<Image>, EnsureImageError> {
        let status = self.puller.service.image_status(spec.clone()).await;
        status.map_err(|error| {
            let message = format!("Failed to inspect image {:?}: {error}", spec.image);
            self.inspect_failed(request, reasons::IMAGE_INSPECT_ERROR, message)
        })
    }

    /// The pod may use an image that is there. The pod's credentials are looked up if it depends on
    /// them, and left for the pull that may follow.
    async fn may_use(
        &self,
        lookup: CredentialLookup<'_>,
        image: &str,
        found: &Image,
        credentials: &mut Option<Vec<PullCredential>>,
    ) -> bool {
        let Some(records) = &self.puller.records else { return true };
        match records.judge(image, &found.id).await {
            Judgement::Accessible => true,
            Judgement::MustPull => false,
            Judgement::Depends(known) => match self.credentials.credentials(lookup).await {
                Ok(looked_up) => {
                    let credentials = credentials.insert(looked_up);
                    records.accepts(image, &found.id, &known, credentials).await
                }
                // The pull will fail for the same reason, and users be told.
                Err(error) => {
                    self.metrics.checked(Check::Failed);
                    tracing::warn!(pod = %lookup.pod, image, error = %error,
                        "Cannot verify that the pod may use an image");
                    false
                }
            },
        }
    }

    fn present(&self, request: EnsureImage<'_>, found: Image) -> ImageRef {
        let verified =
            if self.puller.records.is_some() { " and can be accessed by the pod" } else { "" };
        let message =
            format!("Container image {:?} already present on machine{verified}", request.image);
        self.record(request, EventType::Normal, "Pulled", message);
        ImageRef { user: user_of(&found), image_ref: found.id }
    }

    fn never_pulled(&self, request: EnsureImage<'_>) -> EnsureImageError {
        let message =
            format!("Container image {:?} is not present with pull policy of Never", request.image);
        let reason = reasons::ERR_IMAGE_NEVER_PULL;
        self.record(request, EventType::Warning, reason, message.clone());
        EnsureImageError { reason, message, retry_at: None }
    }

    async fn pull(
        &self,
        request: EnsureImage<'_>,
        spec: ImageSpec,
        lookup: CredentialLookup<'_>,
        credentials: Option<Vec<PullCredential>>,
    ) -> Result<ImageRef, EnsureImageError> {
        if let Some(error) = self.in_back_off(request) {
            return Err(error);
        }
        let credentials = match credentials {
            Some(credentials) => credentials,
            None => match self.credentials.credentials(lookup).await {
                Ok(credentials) => credentials,
                Err(error) => return Err(self.pull_failed(request, &error.to_string())),
            },
        };
        let written = request.image;
        self.record(request, EventType::Normal, "Pulling", format!("Pulling image {written:?}"));
        let started = Instant::now();
        let pull = PullRequest {
            image: spec,
            credentials,
            sandbox_config: request.sandbox_config.clone(),
        };
        match &*self.pulls.pull(&self.puller, pull).await {
            Ok(pulled) => self.pulled(request, pulled, started.elapsed()),
            Err(error) => Err(self.pull_failed(request, error)),
        }
    }

    fn in_back_off(&self, request: EnsureImage<'_>) -> Option<EnsureImageError> {
        let waiting = self.back_off.lock().unwrap_or_else(PoisonError::into_inner).waiting(
            &request.pod.uid,
            request.image,
            Instant::now(),
        )?;
        let message = format!("Back-off pulling image {:?}", request.image);
        self.record(request, EventType::Normal, "BackOff", message.clone());
        Some(EnsureImageError {
            reason: reasons::IMAGE_PULL_BACK_OFF,
            message: format!("{message}: {}", waiting.last_error),
            retry_at: Some(after(self.clock.now(), waiting.remaining)),
        })
    }

    fn pulled(
        &self,
        request: EnsureImage<'_>,
        pulled: &PulledImage,
        in_all: Duration,
    ) -> Result<ImageRef, EnsureImageError> {
        let size = match &pulled.status {
            Ok(Some(image)) => image.size,
            Ok(None) | Err(_) => 0,
        };
        self.metrics.pulled(size, pulled.took);
        let message = format!(
            "Successfully pulled image {:?} in {} ({} including waiting). Image size: {size} bytes.",
            request.image,
            go_millis(pulled.took),
            // Who joined a pull that was on its way has waited for less than all of it.
            go_millis(in_all.max(pulled.took)),
        );
        self.record(request, EventType::Normal, "Pulled", message);
        let user = match &pulled.status {
            Ok(image) => image.as_ref().map_or(ImageUser::Uid(0), user_of),
            // Whether the container runs as root must be known before it is created.
            Err(error) => {
                let message = format!("Failed to inspect image {:?}: {error}", pulled.image_ref);
                let reason = reasons::IMAGE_INSPECT_ERROR;
                return Err(self.inspect_failed(request, reason, message));
            }
        };
        Ok(ImageRef { image_ref: pulled.image_ref.clone(), user })
    }

    fn pull_failed(&self, request: EnsureImage<'_>, error: &str) -> EnsureImageError {
        let message = format!("Failed to pull image {:?}: {error}", request.image);
        self.record(request, EventType::Warning, "Failed", message);
        let (reason, message) = classify_pull_error(request.image, error);
        self.back_off.lock().unwrap_or_else(PoisonError::into_inner).record_failure(
            &request.pod.uid,
            request.image,
            format!("{reason}: {message}"),
            Instant::now(),
        );
        EnsureImageError { reason, message, retry_at: None }
    }

    fn inspect_failed(
        &self,
        request: EnsureImage<'_>,
        reason: &'static str,
        message: String,
    ) -> EnsureImageError {
        self.record(request, EventType::Warning, "InspectFailed", message.clone());
        EnsureImageError { reason, message, retry_at: None }
    }

    fn record(
        &self,
        request: EnsureImage<'_>,
        event_type: EventType,
        reason: &'static str,
        message: String,
    ) {
        tracing::info!(pod = %request.pod, container = request.field_path, reason, "{message}");
        let object = EventObject::Container {
            pod: request.pod.clone(),
            field_path: request.field_path.to_owned(),
        };
        self.events.record(rubelet_types::Event::new(object, event_type, reason, message));
    }
}

/// Some runtimes begin the text of an error with a reason that users know.
fn classify_pull_error(image: &str, error: &str) -> (&'static str, String) {
    for (reason, explanation) in [
        (reasons::REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (reasons::SIGNATURE_VALIDATION_FAILED, "the signature validation failed"),
    ] {
        if let Some(rest) = error.strip_prefix(reason) {
            return (reason, format!("image pull failed for {image} because {explanation}{rest}"));
        }
    }
    (reasons::ERR_IMAGE_PULL, error.to_owned())
}

fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

fn user_of(image: &Image) -> ImageUser {
    match &image.uid {
        Some(uid) => ImageUser::Uid(uid.value),
        None if image.username.is_empty() => ImageUser::Uid(0),
        None => ImageUser::Name(image.username.clone()),
    }
}

fn after(now: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    now.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

/// Whole milliseconds, as Go writes them.
fn go_millis(duration: Duration) -> String {
    format_go_duration(Duration::from_millis(
        u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
    ))
}
