use std::future::Future;

use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1::{AuthConfig, Image, ImageSpec, PodSandboxConfig};
use rubelet_cri::{CriClient, CriError};
use rubelet_types::PodRef;

use crate::credentials::{PullCredential, PullCredentialsError};

/// What the image manager needs from the runtime.
pub trait ImageService: Send + Sync + 'static {
    /// The image as the runtime has it; none if it does not.
    fn image_status(
        &self,
        image: ImageSpec,
    ) -> impl Future<Output = Result<Option<Image>, CriError>> + Send;

    /// All images of the node.
    fn list_images(&self) -> impl Future<Output = Result<Vec<Image>, CriError>> + Send;

    /// Pulls an image and returns the runtime's reference to it. Dropping the future cancels the pull.
    fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: PodSandboxConfig,
    ) -> impl Future<Output = Result<String, CriError>> + Send;
}

impl ImageService for CriClient {
    async fn image_status(&self, image: ImageSpec) -> Result<Option<Image>, CriError> {
        CriClient::image_status(self, image).await
    }

    async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        CriClient::list_images(self, None).await
    }

    async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: PodSandboxConfig,
    ) -> Result<String, CriError> {
        CriClient::pull_image(self, image, auth, Some(sandbox_config)).await
    }
}

/// For which pull credentials are looked up.
#[derive(Clone, Copy, Debug)]
pub struct CredentialLookup<'a> {
    /// The pod that needs the image.
    pub pod: &'a PodRef,
    /// The pod as its source has it.
    pub pod_object: &'a Pod,
    /// Registry and path in full, such as `docker.io/library/busybox`.
    pub repository: &'a str,
    /// The image as it is pulled.
    pub image: &'a str,
}

/// Where credentials for registries come from.
pub trait ImageCredentials: Send + Sync + 'static {
    /// All credentials that fit, the best first. They are tried in this order; with none, the pull
    /// is anonymous.
    ///
    /// # Errors
    /// When it cannot be told, and nothing should be pulled before that is mended.
    fn credentials(
        &self,
        lookup: CredentialLookup<'_>,
    ) -> impl Future<Output = Result<Vec<PullCredential>, PullCredentialsError>> + Send;
}
