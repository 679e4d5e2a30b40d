use k8s_openapi::api::core::v1::ImageVolumeSource;

/// A volume with the files of an image, which the runtime mounts into containers itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageVolume {
    /// The image, as the spec names it.
    pub reference: String,
    /// `pullPolicy`; empty if the spec says nothing.
    pub pull_policy: String,
}

impl ImageVolume {
    pub(crate) fn from_spec(source: &ImageVolumeSource) -> Self {
        Self {
            reference: source.reference.clone().unwrap_or_default(),
            pull_policy: source.pull_policy.clone().unwrap_or_default(),
        }
    }
}
