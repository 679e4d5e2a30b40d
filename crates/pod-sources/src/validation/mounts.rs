use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use super::error::{Errors, FieldPath};
use super::spec::PodContext;
use super::{syntax, text};

pub(super) fn validate(
    container: &Container,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    validate_mounts(container, pod, &at.child("volumeMounts"), errors);
    validate_devices(container, pod, &at.child("volumeDevices"), errors);
}

fn validate_mounts(
    container: &Container,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let devices = container.volume_devices.as_deref().unwrap_or_default();
    let device_names: BTreeSet<&str> = devices.iter().map(|it| it.name.as_str()).collect();
    let device_paths: BTreeSet<&str> = devices.iter().map(|it| it.device_path.as_str()).collect();
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let at = at.index(index);
        let (name, path) = (mount.name.as_str(), mount.mount_path.as_str());
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        if !pod.volumes.contains_key(name) {
            errors.not_found(&at.child("name"), name, "");
        }
        if path.is_empty() {
            errors.required(&at.child("mountPath"), "");
        }
        if !paths.insert(path) {
            errors.invalid(&at.child("mountPath"), path, "must be unique");
        }
        if device_names.contains(name) {
            errors.invalid(&at.child("name"), name, "must not already exist in volumeDevices");
        }
        if device_paths.contains(path) {
            errors.invalid(
                &at.child("mountPath"),
                path,
                "must not already exist as a path in volumeDevices",
            );
        }
        validate_sub_path(mount, &at, errors);
        validate_propagation(mount, container, &at.child("mountPropagation"), errors);
        validate_recursive_read_only(mount, &at.child("recursiveReadOnly"), errors);
    }
}

fn validate_sub_path(mount: &VolumeMount, at: &FieldPath, errors: &mut Errors) {
    let (sub_path, expression) = (text(&mount.sub_path), text(&mount.sub_path_expr));
    errors.invalid_each(&at.child("subPath"), sub_path, syntax::descending_path(sub_path));
    if expression.is_empty() {
        return;
    }
    let at = at.child("subPathExpr");
    if !sub_path.is_empty() {
        errors.invalid(&at, expression, "subPathExpr and subPath are mutually exclusive");
    }
    errors.invalid_each(&at, expression, syntax::descending_path(expression));
}

fn validate_propagation(
    mount: &VolumeMount,
    container: &Container,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let supported = ["Bidirectional", "HostToContainer", "None"];
    let Some(mode) = mount.mount_propagation.as_deref() else { return };
    if !supported.contains(&mode) {
        errors.not_supported(at, mode, &supported);
    }
    let privileged =
        container.security_context.as_ref().and_then(|it| it.privileged).unwrap_or_default();
    if mode == "Bidirectional" && !privileged {
        errors.forbidden(
            at,
            "Bidirectional mount propagation is available only to privileged containers",
        );
    }
}

fn validate_recursive_read_only(mount: &VolumeMount, at: &FieldPath, errors: &mut Errors) {
    match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if mount.read_only != Some(true) {
                errors.forbidden(at, "may only be specified when readOnly is true");
            }
            if mount.mount_propagation.as_deref().is_some_and(|mode| mode != "None") {
                errors.forbidden(
                    at,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        Some(other) => {
            errors.not_supported(at, other, &["Disabled", "Enabled", "IfPossible"]);
        }
    }
}

fn validate_devices(
    container: &Container,
    pod: &PodContext<'_>,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let mount_names: BTreeSet<&str> = mounts.iter().map(|it| it.name.as_str()).collect();
    let mount_paths: BTreeSet<&str> = mounts.iter().map(|it| it.mount_path.as_str()).collect();
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let at = at.index(index);
        let (name, path) = (device.name.as_str(), device.device_path.as_str());
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else if !names.insert(name) {
            errors.invalid(&at.child("name"), name, "must be unique");
        }
        if !pod.volumes.contains_key(name) {
            errors.not_found(&at.child("name"), name, "");
        } else if pod.volumes.get(name).is_some_and(|volume| {
            volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none()
        }) {
            errors.invalid(
                &at.child("name"),
                name,
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block \
                 mode",
            );
        }
        let at_path = at.child("devicePath");
        if path.is_empty() {
            errors.required(&at_path, "");
        }
        if !paths.insert(path) {
            errors.invalid(&at_path, path, "must be unique");
        }
        if !syntax::no_backsteps(path).is_empty() {
            errors.invalid(&at_path, path, "can not contain backsteps ('..')");
        }
        if mount_names.contains(name) {
            errors.invalid(&at.child("name"), name, "must not already exist in volumeMounts");
        }
        if mount_paths.contains(path) {
            errors.invalid(&at_path, path, "must not already exist as a path in volumeMounts");
        }
    }
}
