//! Images that containers need, those of their volumes among them: the kubelet has them pulled, the
//! runtime mounts what is a volume.

use std::collections::BTreeMap;

use rubelet_cri::v1::PodSandboxConfig;
use rubelet_image_manager::{EnsureImage, ImageRef, PullPolicy};
use rubelet_pod_lifecycle::{ActionFailure, ActionOutcome};
use rubelet_pod_runtime::ImageMount;
use rubelet_pod_workers::ActionOrder;
use rubelet_types::{ContainerSpec, EventObject};
use rubelet_volume_manager::PodVolumes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::executor::Executor;

/// The first containerd that mounts images.
const CONTAINERD_THAT_CAN: (u64, u64) = (2, 1);

/// Says why the runtime cannot mount images, if that is known. A runtime that CRI does not let one ask
/// is asked by trying.
fn refuse_image_volumes(name: &str, version: &str) -> Result<(), String> {
    let mut numbers = version.trim_start_matches('v').split(['.', '-', '~', '+']);
    let mut next = || numbers.next().and_then(|number| number.parse::<u64>().ok());
    match (name, next().zip(next())) {
        ("containerd", Some(found)) if found < CONTAINERD_THAT_CAN => Err(format!(
            "image volumes are not supported by {name} {version}: it must be {}.{} or newer",
            CONTAINERD_THAT_CAN.0, CONTAINERD_THAT_CAN.1
        )),
        _ => Ok(()),
    }
}

impl Executor {
    /// Has the images pulled whose volumes the container mounts; returns them by volume.
    ///
    /// # Errors
    /// With the outcome of the container's start: it waits for the same reasons as for its own image,
    /// or the runtime cannot mount images.
    pub(crate) async fn ensure_image_volumes(
        &self,
        order: &ActionOrder,
        spec: &ContainerSpec<'_>,
        volumes: &PodVolumes,
        sandbox_config: &PodSandboxConfig,
        cancel: &CancellationToken,
    ) -> Result<BTreeMap<String, ImageMount>, ActionOutcome> {
        let mut images = BTreeMap::new();
        for mount in spec.container.volume_mounts.iter().flatten() {
            let Some(volume) = volumes.images.get(&mount.name) else { continue };
            if images.contains_key(&mount.name) {
                continue;
            }
            // Before anything is pulled for it.
            refuse_image_volumes(&self.runtime_name, &self.runtime_version)
                .map_err(|message| self.config_failed(order, spec, message))?;
            let wanted = (volume.reference.as_str(), volume.pull_policy.as_str());
            let image = self.ensure_image(order, spec, wanted, sandbox_config, cancel).await?;
            let mounted = ImageMount {
                user_specified_image: volume.reference.clone(),
                image_ref: image.image_ref,
                sub_path: String::new(),
            };
            images.insert(mount.name.clone(), mounted);
        }
        Ok(images)
    }

    /// Has an image pulled that a container needs, its own or that of a volume: the image and its
    /// pull policy, as the pod's spec says.
    ///
    /// # Errors
    /// With the outcome of the container's start, of which an event has told.
    pub(crate) async fn ensure_image(
        &self,
        order: &ActionOrder,
        spec: &ContainerSpec<'_>,
        (image, policy): (&str, &str),
        sandbox_config: &PodSandboxConfig,
        cancel: &CancellationToken,
    ) -> Result<ImageRef, ActionOutcome> {
        let request = EnsureImage {
            pod: &order.pod_ref,
            pod_object: &order.pod,
            image,
            policy: PullPolicy::parse(policy),
            field_path: &spec.field_path(),
            sandbox_config,
        };
        let uid = &order.pod_ref.uid;
        self.metrics.startup.image_begun(uid, Instant::now());
        let ensured = self.images.ensure_image(request, cancel).await;
        self.metrics.startup.image_ended(uid, Instant::now());
        ensured.map_err(|error| {
            if cancel.is_cancelled() {
                return ActionOutcome::Cancelled;
            }
            let (pod, field_path) = (order.pod_ref.clone(), spec.field_path());
            let object = EventObject::Container { pod, field_path };
            self.events.warning(object, "Failed", format!("Error: {}", error.reason));
            ActionOutcome::Failed(ActionFailure {
                reason: error.reason,
                message: error.message,
                retry_at: error.retry_at,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_runtimes_are_told_apart() {
        for (name, version, can) in [
            ("containerd", "1.6.20~ds1", false),
            ("containerd", "v2.0.5", false),
            ("containerd", "2.1.0-rc.1", true),
            ("containerd", "v2.4.2", true),
            ("containerd", "3.0", true),
            ("containerd", "unknown", true),
            ("cri-o", "1.30.0", true),
        ] {
            assert_eq!(refuse_image_volumes(name, version).is_ok(), can, "{name} {version}");
        }
        assert_eq!(
            refuse_image_volumes("containerd", "1.6.20").unwrap_err(),
            "image volumes are not supported by containerd 1.6.20: it must be 2.1 or newer"
        );
    }
}
