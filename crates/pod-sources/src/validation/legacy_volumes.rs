//! Volume plugins of the time before CSI. The kubelet mounts few of them any more; the API still
//! checks their shape.

use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, FCVolumeSource, FlockerVolumeSource, ISCSIVolumeSource,
    QuobyteVolumeSource, StorageOSVolumeSource, Volume,
};

use super::error::{Errors, FieldPath};
use super::{syntax, text};

pub(super) fn validate(volume: &Volume, at: &FieldPath, errors: &mut Errors) {
    validate_required(volume, at, errors);
    if let Some(it) = &volume.git_repo {
        let directory = text(&it.directory);
        let faults = syntax::descending_path(directory);
        errors.invalid_each(&at.child("gitRepo").child("directory"), directory, faults);
    }
    for (name, partition) in [
        ("persistentDisk", volume.gce_persistent_disk.as_ref().and_then(|it| it.partition)),
        (
            "awsElasticBlockStore",
            volume.aws_elastic_block_store.as_ref().and_then(|it| it.partition),
        ),
    ] {
        if let Some(number) = partition.filter(|number| !(0..=255).contains(number)) {
            errors.invalid(
                &at.child(name).child("partition"),
                &number,
                "must be between 1 and 255, inclusive",
            );
        }
    }
    if let Some(it) = &volume.iscsi {
        validate_iscsi(it, &volume.name, at, errors);
    }
    if let Some(it) = &volume.fc {
        validate_fc(it, &at.child("fc"), errors);
    }
    if let Some(it) = &volume.flocker {
        validate_flocker(it, &at.child("flocker"), errors);
    }
    if let Some(it) = &volume.quobyte {
        validate_quobyte(it, &at.child("quobyte"), errors);
    }
    if let Some(it) = &volume.azure_disk {
        validate_azure_disk(it, &at.child("azureDisk"), errors);
    }
    if let Some(it) = &volume.storageos {
        validate_storage_os(it, &at.child("storageos"), errors);
    }
}

/// Fields that only have to be there.
fn validate_required(volume: &Volume, at: &FieldPath, errors: &mut Errors) {
    let mut required = |source: &str, fields: &[(&str, bool)]| {
        for (field, is_missing) in fields {
            if *is_missing {
                errors.required(&at.child(source).child(field), "");
            }
        }
    };
    if let Some(it) = &volume.git_repo {
        required("gitRepo", &[("repository", it.repository.is_empty())]);
    }
    if let Some(it) = &volume.gce_persistent_disk {
        required("persistentDisk", &[("pdName", it.pd_name.is_empty())]);
    }
    if let Some(it) = &volume.aws_elastic_block_store {
        required("awsElasticBlockStore", &[("volumeID", it.volume_id.is_empty())]);
    }
    if let Some(it) = &volume.glusterfs {
        required(
            "glusterfs",
            &[("endpoints", it.endpoints.is_empty()), ("path", it.path.is_empty())],
        );
    }
    if let Some(it) = &volume.rbd {
        required("rbd", &[("monitors", it.monitors.is_empty()), ("image", it.image.is_empty())]);
    }
    if let Some(it) = &volume.cinder {
        required(
            "cinder",
            &[
                ("volumeID", it.volume_id.is_empty()),
                ("secretRef.name", it.secret_ref.as_ref().is_some_and(|it| it.name.is_empty())),
            ],
        );
    }
    if let Some(it) = &volume.cephfs {
        required("cephfs", &[("monitors", it.monitors.is_empty())]);
    }
    if let Some(it) = &volume.azure_file {
        required(
            "azureFile",
            &[("secretName", it.secret_name.is_empty()), ("shareName", it.share_name.is_empty())],
        );
    }
    if let Some(it) = &volume.vsphere_volume {
        required("vsphereVolume", &[("volumePath", it.volume_path.is_empty())]);
    }
    if let Some(it) = &volume.photon_persistent_disk {
        required("photonPersistentDisk", &[("pdID", it.pd_id.is_empty())]);
    }
    if let Some(it) = &volume.portworx_volume {
        required("portworxVolume", &[("volumeID", it.volume_id.is_empty())]);
    }
    if let Some(it) = &volume.scale_io {
        required(
            "scaleIO",
            &[
                ("gateway", it.gateway.is_empty()),
                ("system", it.system.is_empty()),
                ("volumeName", text(&it.volume_name).is_empty()),
            ],
        );
    }
}

fn validate_iscsi(
    source: &ISCSIVolumeSource,
    volume_name: &str,
    volume_path: &FieldPath,
    errors: &mut Errors,
) {
    let at = volume_path.child("iscsi");
    if source.target_portal.is_empty() {
        errors.required(&at.child("targetPortal"), "");
    }
    if source.iqn.is_empty() {
        errors.required(&at.child("iqn"), "");
    } else {
        validate_iscsi_name(&source.iqn, &at.child("iqn"), errors);
    }
    if !(0..=255).contains(&source.lun) {
        let faults = syntax::in_range(source.lun.into(), 0, 255);
        errors.invalid_each(&at.child("lun"), &source.lun, faults);
    }
    let authenticates =
        source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    if authenticates && source.secret_ref.is_none() {
        errors.required(&at.child("secretRef"), "");
    }
    if let Some(initiator) = &source.initiator_name {
        validate_iscsi_name(initiator, &at.child("initiatorname"), errors);
        if volume_name.len() + 1 + source.target_portal.len() > 64 {
            errors.invalid(
                &volume_path.child("name"),
                volume_name,
                "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                 iscsi.initiatorName is specified.",
            );
        }
    }
}

fn validate_iscsi_name(name: &str, at: &FieldPath, errors: &mut Errors) {
    let alphanumeric = |text: &str, length: usize| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let good = if let Some(rest) = name.strip_prefix("iqn") {
        // iqn.yyyy-mm.authority:name
        let (authority, unique) = rest.split_once(':').unwrap_or((rest, ""));
        let date = authority.as_bytes();
        let digits = |range: std::ops::Range<usize>| {
            date.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
        };
        authority.len() > 9
            && date[0] == b'.'
            && digits(1..5)
            && date[5] == b'-'
            && digits(6..8)
            && date[8] == b'.'
            && date[9..].iter().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(byte))
            && !unique.is_empty()
            && !unique.contains([',', ';', '*', '&', '$', '|'])
            && !unique.contains(char::is_whitespace)
    } else if let Some(rest) = name.strip_prefix("eui.") {
        alphanumeric(rest, 16)
    } else if let Some(rest) = name.strip_prefix("naa.") {
        alphanumeric(rest, 32)
    } else if name.starts_with("eui") || name.starts_with("naa") {
        false
    } else {
        return errors.invalid(at, name, "must be valid format starting with iqn, eui, or naa");
    };
    if !good {
        errors.invalid(at, name, "must be valid format");
    }
}

fn validate_fc(source: &FCVolumeSource, at: &FieldPath, errors: &mut Errors) {
    let names = source.target_wwns.as_deref().unwrap_or_default();
    let ids = source.wwids.as_deref().unwrap_or_default();
    let at_names = at.child("targetWWNs");
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => {
            errors.required(&at_names, "must specify either targetWWNs or wwids, but not both");
        }
        (false, false) => errors.invalid(
            &at_names,
            names,
            "targetWWNs and wwids can not be specified simultaneously",
        ),
        _ => {}
    }
    if names.is_empty() {
        return;
    }
    match source.lun {
        None => {
            errors.required(&at.child("lun"), "lun is required if targetWWNs is specified");
        }
        Some(lun) => {
            errors.invalid_each(&at.child("lun"), &lun, syntax::in_range(lun.into(), 0, 255));
        }
    }
}

fn validate_flocker(source: &FlockerVolumeSource, at: &FieldPath, errors: &mut Errors) {
    let (name, id) = (text(&source.dataset_name), text(&source.dataset_uuid));
    if name.is_empty() && id.is_empty() {
        errors.required(at, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !id.is_empty() {
        errors.invalid(
            at,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        );
    }
    if name.contains('/') {
        errors.invalid(&at.child("datasetName"), name, "must not contain '/'");
    }
}

fn validate_quobyte(source: &QuobyteVolumeSource, at: &FieldPath, errors: &mut Errors) {
    let pairs = "must be a host:port pair or multiple pairs separated by commas";
    let is_pair = |pair: &str| {
        pair.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'))
    };
    if source.registry.is_empty() {
        errors.required(&at.child("registry"), pairs);
    } else if text(&source.tenant).len() >= 65 {
        errors.required(
            &at.child("tenant"),
            "must be a UUID and may not exceed a length of 64 characters",
        );
    } else if !source.registry.split(',').all(is_pair) {
        errors.invalid(&at.child("registry"), &source.registry, pairs);
    }
    if source.volume.is_empty() {
        errors.required(&at.child("volume"), "");
    }
}

fn validate_azure_disk(source: &AzureDiskVolumeSource, at: &FieldPath, errors: &mut Errors) {
    if source.disk_name.is_empty() {
        errors.required(&at.child("diskName"), "");
    }
    if source.disk_uri.is_empty() {
        errors.required(&at.child("diskURI"), "");
    }
    let modes = ["None", "ReadOnly", "ReadWrite"];
    if let Some(mode) = source.caching_mode.as_deref().filter(|mode| !modes.contains(mode)) {
        errors.not_supported(&at.child("cachingMode"), mode, &modes);
    }
    let kinds = ["Dedicated", "Managed", "Shared"];
    let Some(kind) = source.kind.as_deref() else { return };
    if !kinds.contains(&kind) {
        errors.not_supported(&at.child("kind"), kind, &kinds);
    }
    let (prefix, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/\
             {disk-id}",
        )
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    if !source.disk_uri.starts_with(prefix) {
        errors.not_supported(&at.child("diskURI"), &source.disk_uri, &[form]);
    }
}

fn validate_storage_os(source: &StorageOSVolumeSource, at: &FieldPath, errors: &mut Errors) {
    let name = text(&source.volume_name);
    if name.is_empty() {
        errors.required(&at.child("volumeName"), "");
    } else {
        errors.invalid_each(&at.child("volumeName"), name, syntax::dns_label(name));
    }
    let namespace = text(&source.volume_namespace);
    if !namespace.is_empty() {
        let faults = syntax::dns_label(namespace);
        errors.invalid_each(&at.child("volumeNamespace"), namespace, faults);
    }
    if source.secret_ref.as_ref().is_some_and(|secret| secret.name.is_empty()) {
        errors.required(&at.child("secretRef").child("name"), "");
    }
}
