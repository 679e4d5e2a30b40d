use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    CSIVolumeSource, DownwardAPIVolumeFile, EmptyDirVolumeSource, EphemeralVolumeSource,
    FlexVolumeSource, HostPathVolumeSource, KeyToPath, PersistentVolumeClaimSpec, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_types::Quantity;

use super::error::{Errors, FieldPath};
use super::{containers, environment, legacy_volumes, metadata, projected, syntax, text};

/// The volumes of a pod by name.
pub(super) type KnownVolumes<'a> = BTreeMap<&'a str, &'a Volume>;

pub(super) fn validate<'a>(
    volumes: &'a [Volume],
    pod: &ObjectMeta,
    at: &FieldPath,
    errors: &mut Errors,
) -> KnownVolumes<'a> {
    let pod_name = text(&pod.name);
    let created_claims: BTreeSet<String> = volumes
        .iter()
        .filter(|volume| volume.ephemeral.is_some() && !pod_name.is_empty())
        .map(|volume| format!("{pod_name}-{}", volume.name))
        .collect();
    let mut known = KnownVolumes::new();
    for (index, volume) in volumes.iter().enumerate() {
        let at = at.index(index);
        validate_source(volume, pod_name, &at, errors);
        let name = &volume.name;
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        } else {
            errors.invalid_each(&at.child("name"), name, syntax::dns_label(name));
        }
        if known.insert(name, volume).is_some() {
            errors.duplicate(&at.child("name"), name);
        }
        if let Some(claim) = &volume.persistent_volume_claim
            && created_claims.contains(&claim.claim_name)
        {
            errors.invalid(
                &at.child("persistentVolumeClaim").child("claimName"),
                &claim.claim_name,
                "must not reference a PVC that gets created for an ephemeral volume",
            );
        }
    }
    known
}

fn validate_source(volume: &Volume, pod_name: &str, at: &FieldPath, errors: &mut Errors) {
    let mut sources = source_names(volume);
    if sources.next().is_none() {
        return errors.required(at, "must specify a volume type");
    }
    let surplus: Vec<&str> = sources.collect();
    for more in surplus {
        errors.forbidden(&at.child(more), "may not specify more than 1 volume type");
    }
    if let Some(it) = &volume.empty_dir {
        validate_empty_dir(it, &at.child("emptyDir"), errors);
    }
    if let Some(it) = &volume.host_path {
        validate_host_path(it, &at.child("hostPath"), errors);
    }
    if let Some(it) = &volume.secret {
        let at = at.child("secret");
        if text(&it.secret_name).is_empty() {
            errors.required(&at.child("secretName"), "");
        }
        validate_mode(it.default_mode, &at.child("defaultMode"), errors);
        validate_items(it.items.as_deref(), &at.child("items"), errors);
    }
    if let Some(it) = &volume.config_map {
        let at = at.child("configMap");
        if it.name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        validate_mode(it.default_mode, &at.child("defaultMode"), errors);
        validate_items(it.items.as_deref(), &at.child("items"), errors);
    }
    if let Some(it) = &volume.downward_api {
        let at = at.child("downwardAPI");
        validate_mode(it.default_mode, &at.child("defaultMode"), errors);
        for file in it.items.iter().flatten() {
            validate_downward_file(file, &at, errors);
        }
    }
    if let Some(it) = &volume.persistent_volume_claim
        && it.claim_name.is_empty()
    {
        errors.required(&at.child("persistentVolumeClaim").child("claimName"), "");
    }
    if let Some(it) = &volume.nfs {
        let at = at.child("nfs");
        if it.server.is_empty() {
            errors.required(&at.child("server"), "");
        }
        if it.path.is_empty() {
            errors.required(&at.child("path"), "");
        }
        if !it.path.starts_with('/') {
            errors.invalid(&at.child("path"), &it.path, "must be an absolute path");
        }
    }
    if let Some(it) = &volume.flex_volume {
        validate_flex(it, &at.child("flexVolume"), errors);
    }
    if let Some(it) = &volume.projected {
        projected::validate(it, &at.child("projected"), errors);
    }
    if let Some(it) = &volume.csi {
        validate_csi(it, &at.child("csi"), errors);
    }
    if let Some(it) = &volume.ephemeral {
        validate_ephemeral(it, &volume.name, pod_name, at, errors);
    }
    if let Some(it) = &volume.image {
        let at = at.child("image");
        if text(&it.reference).is_empty() {
            errors.required(&at.child("reference"), "");
        }
        let policy = text(&it.pull_policy);
        containers::validate_pull_policy(policy, &at.child("pullPolicy"), errors);
    }
    legacy_volumes::validate(volume, at, errors);
}

/// The sources that are set, in the API's order.
fn source_names(volume: &Volume) -> impl Iterator<Item = &'static str> {
    [
        ("emptyDir", volume.empty_dir.is_some()),
        ("hostPath", volume.host_path.is_some()),
        ("gitRepo", volume.git_repo.is_some()),
        ("gcePersistentDisk", volume.gce_persistent_disk.is_some()),
        ("awsElasticBlockStore", volume.aws_elastic_block_store.is_some()),
        ("secret", volume.secret.is_some()),
        ("nfs", volume.nfs.is_some()),
        ("iscsi", volume.iscsi.is_some()),
        ("glusterfs", volume.glusterfs.is_some()),
        ("flocker", volume.flocker.is_some()),
        ("persistentVolumeClaim", volume.persistent_volume_claim.is_some()),
        ("rbd", volume.rbd.is_some()),
        ("cinder", volume.cinder.is_some()),
        ("cephfs", volume.cephfs.is_some()),
        ("quobyte", volume.quobyte.is_some()),
        ("downwardAPI", volume.downward_api.is_some()),
        ("fc", volume.fc.is_some()),
        ("flexVolume", volume.flex_volume.is_some()),
        ("configMap", volume.config_map.is_some()),
        ("azureFile", volume.azure_file.is_some()),
        ("vsphereVolume", volume.vsphere_volume.is_some()),
        ("photonPersistentDisk", volume.photon_persistent_disk.is_some()),
        ("portworxVolume", volume.portworx_volume.is_some()),
        ("azureDisk", volume.azure_disk.is_some()),
        ("storageos", volume.storageos.is_some()),
        ("projected", volume.projected.is_some()),
        ("scaleIO", volume.scale_io.is_some()),
        ("csi", volume.csi.is_some()),
        ("ephemeral", volume.ephemeral.is_some()),
        ("image", volume.image.is_some()),
    ]
    .into_iter()
    .filter(|(_, is_set)| *is_set)
    .map(|(name, _)| name)
}

fn validate_empty_dir(source: &EmptyDirVolumeSource, at: &FieldPath, errors: &mut Errors) {
    if let Some(limit) = &source.size_limit {
        let at = at.child("sizeLimit");
        match Quantity::try_from(limit) {
            Ok(limit) if limit.is_negative() => {
                errors.forbidden(&at, "SizeLimit field must be a valid resource quantity");
            }
            Ok(_) => {}
            Err(error) => errors.invalid(&at, &limit.0, &error.to_string()),
        }
    }
    // The API server takes any medium; a node cannot make any but these.
    let medium = text(&source.medium);
    let page_size = medium.strip_prefix("HugePages-").map(str::parse::<Quantity>);
    let known = ["", "Memory", "HugePages"].contains(&medium)
        || matches!(page_size, Some(Ok(size)) if size > Quantity::ZERO);
    if !known {
        errors.not_supported(
            &at.child("medium"),
            medium,
            &["", "Memory", "HugePages", "HugePages-<size>"],
        );
    }
}

fn validate_host_path(source: &HostPathVolumeSource, at: &FieldPath, errors: &mut Errors) {
    let path = &source.path;
    if path.is_empty() {
        return errors.required(&at.child("path"), "");
    }
    errors.invalid_each(&at.child("path"), path, syntax::no_backsteps(path));
    let types = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    let type_ = text(&source.type_);
    if !types.contains(&type_) {
        errors.not_supported(&at.child("type"), type_, &types);
    }
}

/// Permission bits of files in a volume.
pub(super) fn validate_mode(mode: Option<i32>, at: &FieldPath, errors: &mut Errors) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        errors.invalid(at, &mode, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

pub(super) fn validate_items(items: Option<&[KeyToPath]>, at: &FieldPath, errors: &mut Errors) {
    for (index, item) in items.unwrap_or_default().iter().enumerate() {
        let at = at.index(index);
        if item.key.is_empty() {
            errors.required(&at.child("key"), "");
        }
        if item.path.is_empty() {
            errors.required(&at.child("path"), "");
        }
        errors.invalid_each(&at.child("path"), &item.path, syntax::unreserved_path(&item.path));
        validate_mode(item.mode, &at.child("mode"), errors);
    }
}

pub(super) fn validate_downward_file(
    file: &DownwardAPIVolumeFile,
    at: &FieldPath,
    errors: &mut Errors,
) {
    if file.path.is_empty() {
        errors.required(&at.child("path"), "");
    }
    errors.invalid_each(&at.child("path"), &file.path, syntax::unreserved_path(&file.path));
    match (&file.field_ref, &file.resource_field_ref) {
        (Some(field), other) => {
            environment::validate_field_reference(
                field,
                &environment::VOLUME_FIELDS,
                &at.child("fieldRef"),
                errors,
            );
            if other.is_some() {
                errors.invalid(
                    at,
                    "resource",
                    "fieldRef and resourceFieldRef can not be specified simultaneously",
                );
            }
        }
        (None, Some(resource)) => environment::validate_resource_reference(
            resource,
            true,
            &at.child("resourceFieldRef"),
            errors,
        ),
        (None, None) => {
            errors.required(at, "one of fieldRef and resourceFieldRef is required");
        }
    }
    validate_mode(file.mode, &at.child("mode"), errors);
}

fn validate_csi(source: &CSIVolumeSource, at: &FieldPath, errors: &mut Errors) {
    let driver = &source.driver;
    if driver.is_empty() {
        errors.required(&at.child("driver"), "");
    }
    if driver.len() > 63 {
        errors.too_long(&at.child("driver"), 63);
    }
    let faults = syntax::dns_subdomain(&driver.to_lowercase());
    errors.invalid_each(&at.child("driver"), driver, faults);
    if let Some(secret) = &source.node_publish_secret_ref {
        let at = at.child("nodePublishSecretRef").child("name");
        if secret.name.is_empty() {
            errors.required(&at, "");
        } else {
            errors.invalid_each(&at, &secret.name, syntax::dns_subdomain(&secret.name));
        }
    }
}

fn validate_flex(source: &FlexVolumeSource, at: &FieldPath, errors: &mut Errors) {
    if source.driver.is_empty() {
        errors.required(&at.child("driver"), "");
    }
    for key in source.options.iter().flat_map(|options| options.keys()) {
        let namespace = key.split_once('/').map_or(key.as_str(), |(namespace, _)| namespace);
        let namespace = format!(".{}", namespace.to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            errors.invalid(
                &at.child("options").key(key),
                key,
                "kubernetes.io and k8s.io namespaces are reserved",
            );
        }
    }
}

fn validate_ephemeral(
    source: &EphemeralVolumeSource,
    volume_name: &str,
    pod_name: &str,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let template_path = at.child("ephemeral").child("volumeClaimTemplate");
    match &source.volume_claim_template {
        None => errors.required(&template_path, ""),
        Some(template) => {
            let at = template_path.child("metadata");
            if let Some(meta) = &template.metadata {
                let annotations = meta.annotations.as_ref();
                metadata::validate_annotations(annotations, &at.child("annotations"), errors);
                metadata::validate_labels(meta.labels.as_ref(), &at.child("labels"), errors);
                for (name, is_set) in [
                    ("name", meta.name.is_some()),
                    ("generateName", meta.generate_name.is_some()),
                    ("namespace", meta.namespace.is_some()),
                    ("uid", meta.uid.is_some()),
                    ("ownerReferences", meta.owner_references.is_some()),
                    ("finalizers", meta.finalizers.is_some()),
                ] {
                    if is_set {
                        errors.forbidden(&at.child(name), "cannot be set");
                    }
                }
            }
            validate_claim(&template.spec, &template_path.child("spec"), errors);
        }
    }
    if !pod_name.is_empty() && !volume_name.is_empty() {
        let claim = format!("{pod_name}-{volume_name}");
        for fault in syntax::dns_subdomain(&claim) {
            let detail = format!("PVC name {claim:?}: {fault}");
            errors.invalid(&at.child("name"), volume_name, &detail);
        }
    }
}

fn validate_claim(claim: &PersistentVolumeClaimSpec, at: &FieldPath, errors: &mut Errors) {
    let modes = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    let asked = claim.access_modes.as_deref().unwrap_or_default();
    let at_modes = at.child("accessModes");
    if asked.is_empty() {
        errors.required(&at_modes, "at least 1 access mode is required");
    }
    for mode in asked.iter().filter(|mode| !modes.contains(&mode.as_str())) {
        errors.not_supported(&at_modes, mode, &modes);
    }
    if asked.len() > 1 && asked.iter().any(|mode| mode == "ReadWriteOncePod") {
        errors.forbidden(&at_modes, "may not use ReadWriteOncePod with other access modes");
    }
    metadata::validate_label_selector(claim.selector.as_ref(), &at.child("selector"), errors);
    let at_storage = at.child("resources").key("storage");
    let requests = claim.resources.as_ref().and_then(|it| it.requests.as_ref());
    match requests.and_then(|list| list.get("storage")) {
        None => errors.required(&at_storage, ""),
        Some(size) => match Quantity::try_from(size) {
            Ok(amount) if amount > Quantity::ZERO => {}
            Ok(_) => errors.invalid(&at_storage, &size.0, "must be greater than zero"),
            Err(error) => errors.invalid(&at_storage, &size.0, &error.to_string()),
        },
    }
    let class = text(&claim.storage_class_name);
    if !class.is_empty() {
        errors.invalid_each(&at.child("storageClassName"), class, syntax::dns_subdomain(class));
    }
    let mode = text(&claim.volume_mode);
    if !["", "Block", "Filesystem"].contains(&mode) {
        errors.not_supported(&at.child("volumeMode"), mode, &["Block", "Filesystem"]);
    }
}
