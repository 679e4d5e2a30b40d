//! The calls of the image service.

use crate::{CriClient, CriError, Rpc, v1};

impl CriClient {
    /// All images, or those that `filter` names.
    pub async fn list_images(
        &self,
        filter: Option<v1::ImageFilter>,
    ) -> Result<Vec<v1::Image>, CriError> {
        let in_one = self.image_within(
            Rpc::ListImages,
            Some(self.request_timeout()),
            v1::ListImagesRequest { filter: filter.clone() },
            |mut client, request| async move { client.list_images(request).await },
        );
        self.list(
            Rpc::StreamImages,
            v1::StreamImagesRequest { filter },
            |mut clients, request| async move { clients.image.stream_images(request).await },
            |part: v1::StreamImagesResponse| part.images,
            async { Ok(in_one.await?.images) },
        )
        .await
    }

    /// One image; none if the runtime does not have it.
    ///
    /// # Errors
    ///
    /// Also if the runtime leaves out the image's id or size, without which nobody can use it.
    pub async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>, CriError> {
        let name = image.image.clone();
        let message = v1::ImageStatusRequest { image: Some(image), verbose: false };
        let answer = self
            .image_within(
                Rpc::ImageStatus,
                Some(self.request_timeout()),
                message,
                |mut client, request| async move { client.image_status(request).await },
            )
            .await?;
        match answer.image {
            Some(image) if image.id.is_empty() || image.size == 0 => {
                Err(CriError::incomplete_answer(
                    Rpc::ImageStatus,
                    format!("Id or size of image {name:?} is not set"),
                ))
            }
            found => Ok(found),
        }
    }

    /// Pulls an image and returns the runtime's reference to it. There is no deadline; dropping
    /// the future cancels the pull.
    pub async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String, CriError> {
        let name = image.image.clone();
        let message = v1::PullImageRequest { image: Some(image), auth, sandbox_config };
        let answer = self
            .image_within(Rpc::PullImage, None, message, |mut client, request| async move {
                client.pull_image(request).await
            })
            .await?;
        if answer.image_ref.is_empty() {
            return Err(CriError::incomplete_answer(
                Rpc::PullImage,
                format!("imageRef of image {name:?} is not set"),
            ));
        }
        Ok(answer.image_ref)
    }

    /// Removes an image. An image that is gone is removed.
    pub async fn remove_image(&self, image: v1::ImageSpec) -> Result<(), CriError> {
        let message = v1::RemoveImageRequest { image: Some(image) };
        let answer = self
            .image_within(
                Rpc::RemoveImage,
                Some(self.request_timeout()),
                message,
                |mut client, request| async move { client.remove_image(request).await },
            )
            .await;
        match answer {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// The file systems that hold images and containers, and what they use there.
    pub async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse, CriError> {
        self.image_within(
            Rpc::ImageFsInfo,
            Some(self.request_timeout()),
            v1::ImageFsInfoRequest {},
            |mut client, request| async move { client.image_fs_info(request).await },
        )
        .await
    }
}
