use k8s_openapi::api::core::v1::{Container, VolumeMount, VolumeMountStatus};

/// Status of the volume mounts of `container`. Only mounts that are read-only say whether that is
/// recursive.
pub(crate) fn volume_mount_statuses(
    container: &Container,
    recursive_supported: bool,
) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
    let statuses = mounts.iter().map(|mount| {
        let read_only = mount.read_only.unwrap_or(false);
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only,
            recursive_read_only: read_only.then(|| {
                let recursive = recursive_supported && wants_recursive(mount);
                if recursive { "Enabled" } else { "Disabled" }.to_owned()
            }),
            volume_status: None,
        }
    });
    Some(statuses.collect())
}

/// Recursion is asked for, and not ruled out by mount propagation.
fn wants_recursive(mount: &VolumeMount) -> bool {
    let propagates =
        mount.mount_propagation.as_deref().is_some_and(|propagation| propagation != "None");
    match mount.recursive_read_only.as_deref() {
        Some("IfPossible") => !propagates,
        Some("Enabled") => true,
        _ => false,
    }
}
