//! From the volumes of a pod to the mounts and devices of a container.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, VolumeMount};
use rubelet_pod_runtime::{Device, ImageMount, PreparedMount, prepare_mount};
use rubelet_types::{PodRef, expand};
use rubelet_volume_manager::{PodVolumes, SubPathMount, VolumeManager};
use rubelet_volume_plan::check_sub_path;

/// What a container can mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyVolumes<'a> {
    pub(crate) volumes: &'a PodVolumes,
    /// Images that are on the node, by volume.
    pub(crate) images: &'a BTreeMap<String, ImageMount>,
}

/// Prepares every volume mount of `container`. `Err` carries the text of a
/// `CreateContainerConfigError`.
pub(crate) async fn prepare_mounts(
    volumes: &VolumeManager,
    pod_ref: &PodRef,
    container: &Container,
    ready: ReadyVolumes<'_>,
    environment: &[(String, String)],
    runtime_supports_rro: bool,
) -> Result<Vec<PreparedMount>, String> {
    let mut prepared = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        if let Some(image) = ready.images.get(&mount.name) {
            let sub_path = sub_path(mount, environment)?.unwrap_or_default();
            check_sub_path(&sub_path).map_err(|error| error.to_string())?;
            let no_path = Path::new("");
            let mut mounted = prepare_mount(mount, container, no_path, true, runtime_supports_rro)
                .map_err(|error| error.to_string())?;
            mounted.image = Some(ImageMount { sub_path, ..image.clone() });
            prepared.push(mounted);
            continue;
        }
        let Some(volume) = ready.volumes.by_name.get(&mount.name) else {
            return Err(format!(
                "cannot find volume {:?} to mount into container {:?}",
                mount.name, container.name
            ));
        };
        let host_path = match sub_path(mount, environment)? {
            None => volume.host_path.clone(),
            Some(sub_path) => volumes
                .prepare_sub_path(
                    pod_ref,
                    SubPathMount {
                        volume: volume.spec_name.clone(),
                        volume_path: volume.host_path.clone(),
                        container: container.name.clone(),
                        index,
                        sub_path,
                    },
                )
                .await
                .map_err(|error| error.to_string())?,
        };
        let mut mounted =
            prepare_mount(mount, container, &host_path, volume.read_only, runtime_supports_rro)
                .map_err(|error| error.to_string())?;
        mounted.selinux_relabel = volume.selinux_relabel;
        prepared.push(mounted);
    }
    Ok(prepared)
}

/// The devices that `container` maps. `Err` carries the text of a `CreateContainerConfigError`.
pub(crate) fn prepare_devices(
    container: &Container,
    pod_volumes: &PodVolumes,
) -> Result<Vec<Device>, String> {
    let devices = container.volume_devices.iter().flatten().map(|device| {
        if !device.device_path.starts_with('/') {
            return Err(format!(
                "error DevicePath `{}` must be an absolute path",
                device.device_path
            ));
        }
        let Some(mapped) = pod_volumes.devices.get(&device.name) else {
            return Err(format!(
                "cannot find volume {:?} to pass into container {:?}",
                device.name, container.name
            ));
        };
        Ok(Device {
            host_path: mapped.host_path.to_string_lossy().into_owned(),
            container_path: device.device_path.clone(),
            permissions: if mapped.read_only { "r" } else { "mrw" }.to_owned(),
        })
    });
    devices.collect()
}

/// The path within the volume, if the mount names one.
fn sub_path(
    mount: &VolumeMount,
    environment: &[(String, String)],
) -> Result<Option<String>, String> {
    if let Some(path) = mount.sub_path.as_deref().filter(|path| !path.is_empty()) {
        return Ok(Some(path.to_owned()));
    }
    let Some(template) = mount.sub_path_expr.as_deref().filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let known: BTreeMap<&str, &str> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut missing = BTreeSet::new();
    let path = expand(template, |name| {
        let value = known.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.insert(name.to_owned());
        }
        value.map(|value| (*value).to_owned())
    });
    if missing.is_empty() {
        return Ok(Some(path));
    }
    Err(format!("missing value for {}", missing.into_iter().collect::<Vec<_>>().join(", ")))
}
