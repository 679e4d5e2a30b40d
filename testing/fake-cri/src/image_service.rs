//! The image service of the protocol.

use futures_util::stream::BoxStream;
use rubelet_cri::{Rpc, v1};
use tonic::{Request, Response, Status};

use crate::FakeRuntime;

type Answer<T> = Result<Response<T>, Status>;

/// Where the runtime says it keeps images and containers.
pub(crate) const STORE: &str = "/var/lib/fake-cri";

fn name_of(image: Option<v1::ImageSpec>) -> String {
    image.map(|image| image.image).unwrap_or_default()
}

impl FakeRuntime {
    fn images_matching(&self, filter: Option<v1::ImageFilter>) -> Vec<v1::Image> {
        let name = name_of(filter.and_then(|filter| filter.image));
        let state = self.shared.state();
        if name.is_empty() {
            state.images.iter().cloned().collect()
        } else {
            state.images.find(&name).cloned().into_iter().collect()
        }
    }
}

#[tonic::async_trait]
impl v1::image_service_server::ImageService for FakeRuntime {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        self.call(Rpc::ListImages, Vec::new(), async {
            let images = self.images_matching(request.into_inner().filter);
            Ok(v1::ListImagesResponse { images })
        })
        .await
    }

    type StreamImagesStream = BoxStream<'static, Result<v1::StreamImagesResponse, Status>>;

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Answer<Self::StreamImagesStream> {
        let items = || self.images_matching(request.into_inner().filter);
        self.in_parts(Rpc::StreamImages, items, |images| v1::StreamImagesResponse { images }).await
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let name = name_of(request.into_inner().image);
        self.call(Rpc::ImageStatus, vec![name.clone()], async {
            let image = self.shared.state().images.find(&name).cloned();
            Ok(v1::ImageStatusResponse { image, ..Default::default() })
        })
        .await
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        let v1::PullImageRequest { image, auth, .. } = request.into_inner();
        let name = name_of(image);
        self.call(Rpc::PullImage, vec![name.clone()], async {
            let pull = self.shared.state().images.pull(&name);
            // A caller that goes away cancels the pull here.
            tokio::time::sleep(pull.after).await;
            let image = pull.finish(auth.as_ref())?;
            let image_ref = image.id.clone();
            self.shared.change(|state| state.images.add(image));
            Ok(v1::PullImageResponse { image_ref })
        })
        .await
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        let name = name_of(request.into_inner().image);
        self.call(Rpc::RemoveImage, vec![name.clone()], async {
            self.shared.change(|state| state.images.remove(&name));
            Ok(v1::RemoveImageResponse {})
        })
        .await
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Answer<v1::ImageFsInfoResponse> {
        self.call(Rpc::ImageFsInfo, Vec::new(), async {
            let mut state = self.shared.state();
            let usage = |timestamp, used: u64, inodes: usize| v1::FilesystemUsage {
                timestamp,
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: STORE.to_owned() }),
                used_bytes: Some(v1::UInt64Value { value: used }),
                inodes_used: Some(v1::UInt64Value {
                    value: u64::try_from(inodes).unwrap_or(u64::MAX),
                }),
            };
            let now = state.tick(self.shared.options.clock.now());
            let images = state.images.iter();
            let (size, count) = images.fold((0, 0), |(s, c), image| (s + image.size, c + 1));
            Ok(v1::ImageFsInfoResponse {
                image_filesystems: vec![usage(now, size, count)],
                container_filesystems: vec![usage(now, 0, state.containers.len())],
            })
        })
        .await
    }
}
