//! From the volumes of a pod to the mounts of a container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};
use rubelet_cri::v1::MountPropagation;
use rubelet_pod_runtime::PreparedMount;
use rubelet_types::{PodRef, expand};
use rubelet_volume_manager::{PodVolumes, SubPathMount, VolumeManager};

/// Prepares every volume mount of `container`. `Err` carries the text of a
/// `CreateContainerConfigError`.
pub(crate) async fn prepare_mounts(
    volumes: &VolumeManager,
    pod_ref: &PodRef,
    pod: &Pod,
    container: &Container,
    pod_volumes: &PodVolumes,
    environment: &[(String, String)],
) -> Result<Vec<PreparedMount>, String> {
    let mut prepared = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let Some(volume) = pod_volumes.by_name.get(&mount.name) else {
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
                        volume: mount.name.clone(),
                        volume_path: volume.host_path.clone(),
                        container: container.name.clone(),
                        index,
                        sub_path,
                    },
                )
                .await
                .map_err(|error| error.to_string())?,
        };
        let read_only = mount.read_only.unwrap_or(false) || volume.read_only;
        let recursive = mount.recursive_read_only.as_deref().unwrap_or("Disabled");
        prepared.push(PreparedMount {
            host_path: host_path.to_string_lossy().into_owned(),
            container_path: absolute(&mount.mount_path),
            read_only,
            recursive_read_only: read_only && recursive == "Enabled",
            propagation: propagation(mount, container, pod)?,
            selinux_relabel: volume.selinux_relabel,
        });
    }
    Ok(prepared)
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
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
    let mut missing = None;
    let path = expand(template, |name| {
        let value = known.get(name).map(|value| (*value).to_owned());
        if value.is_none() {
            missing.get_or_insert_with(|| name.to_owned());
        }
        value
    });
    match missing {
        Some(name) => Err(format!("missing value for {name:?}")),
        None => Ok(Some(path)),
    }
}

fn propagation(
    mount: &VolumeMount,
    container: &Container,
    pod: &Pod,
) -> Result<MountPropagation, String> {
    match mount.mount_propagation.as_deref() {
        None | Some("None") => Ok(MountPropagation::PropagationPrivate),
        Some("HostToContainer") => Ok(MountPropagation::PropagationHostToContainer),
        Some("Bidirectional") => {
            let privileged =
                container.security_context.as_ref().and_then(|context| context.privileged);
            if privileged != Some(true) {
                return Err(format!(
                    "container {:?} of pod {} is not privileged and must not propagate mounts",
                    container.name,
                    rubelet_types::pod_ref(pod)
                ));
            }
            Ok(MountPropagation::PropagationBidirectional)
        }
        Some(other) => Err(format!("invalid MountPropagation mode: {other:?}")),
    }
}
