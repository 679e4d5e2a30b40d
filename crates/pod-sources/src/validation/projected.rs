use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, PodCertificateProjection, ProjectedVolumeSource,
    ServiceAccountTokenProjection, VolumeProjection,
};

use super::error::{Errors, FieldPath};
use super::{metadata, syntax, text, volumes};

const KEY_TYPES: [&str; 6] =
    ["ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519", "RSA3072", "RSA4096"];

pub(super) fn validate(source: &ProjectedVolumeSource, at: &FieldPath, errors: &mut Errors) {
    volumes::validate_mode(source.default_mode, &at.child("defaultMode"), errors);
    let mut paths = BTreeSet::new();
    for (index, projection) in source.sources.iter().flatten().enumerate() {
        validate_projection(projection, &mut paths, at, &at.child("sources").index(index), errors);
    }
}

/// `paths` are the files that earlier sources of the same volume make.
fn validate_projection<'a>(
    projection: &'a VolumeProjection,
    paths: &mut BTreeSet<&'a str>,
    volume_path: &FieldPath,
    at: &FieldPath,
    errors: &mut Errors,
) {
    let VolumeProjection {
        cluster_trust_bundle,
        config_map,
        downward_api,
        pod_certificate,
        secret,
        service_account_token,
    } = projection;
    let mut claim = |path: &'a str, shown: &str, errors: &mut Errors| {
        if !path.is_empty() && !paths.insert(path) {
            errors.invalid(volume_path, shown, "conflicting duplicate paths");
        }
    };
    let mut sources = 0;
    let named = [
        ("secret", secret.as_ref().map(|it| (&it.name, it.items.as_deref()))),
        ("configMap", config_map.as_ref().map(|it| (&it.name, it.items.as_deref()))),
    ];
    for (kind, source) in named {
        let Some((name, items)) = source else { continue };
        sources += 1;
        let at = at.child(kind);
        if name.is_empty() {
            errors.required(&at.child("name"), "");
        }
        volumes::validate_items(items, &at.child("items"), errors);
        for item in items.unwrap_or_default() {
            claim(&item.path, name, errors);
        }
    }
    if let Some(it) = downward_api {
        sources += 1;
        for file in it.items.iter().flatten() {
            volumes::validate_downward_file(file, &at.child("downwardAPI"), errors);
            claim(&file.path, &file.path, errors);
        }
    }
    if let Some(it) = service_account_token {
        sources += 1;
        validate_token(it, &at.child("serviceAccountToken"), errors);
        claim(&it.path, &it.path, errors);
    }
    if let Some(it) = cluster_trust_bundle {
        sources += 1;
        validate_trust_bundle(it, &at.child("clusterTrustBundle"), errors);
        claim(&it.path, &it.path, errors);
    }
    if let Some(it) = pod_certificate {
        sources += 1;
        validate_certificate(it, &at.child("podCertificate"), errors);
        for path in certificate_paths(it) {
            claim(path.1, path.1, errors);
        }
    }
    if sources > 1 {
        errors.forbidden(at, "may not specify more than 1 volume type per source");
    }
}

fn validate_token(source: &ServiceAccountTokenProjection, at: &FieldPath, errors: &mut Errors) {
    let seconds = source.expiration_seconds.unwrap_or_default();
    let at_seconds = at.child("expirationSeconds");
    if seconds < 600 {
        errors.invalid(&at_seconds, &seconds, "may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        errors.invalid(
            &at_seconds,
            &seconds,
            "may not specify a duration larger than 2^32 seconds",
        );
    }
    validate_path(&source.path, &at.child("path"), errors);
}

fn validate_path(path: &str, at: &FieldPath, errors: &mut Errors) {
    if path.is_empty() {
        errors.required(at, "");
    } else {
        errors.invalid_each(at, path, syntax::unreserved_path(path));
    }
}

fn validate_trust_bundle(
    source: &ClusterTrustBundleProjection,
    at: &FieldPath,
    errors: &mut Errors,
) {
    match (&source.name, &source.signer_name) {
        (Some(name), Some(_)) => {
            errors.invalid(at, name, "only one of name and signerName may be used");
        }
        (Some(name), None) => {
            let at_name = at.child("name");
            if name.is_empty() {
                errors.required(&at_name, "must be a valid object name");
            }
            // The signer's name stands before the last colon, its slash written as a colon.
            let own = name.rsplit(':').next().unwrap_or(name);
            for fault in syntax::dns_subdomain(own) {
                let detail = format!("not a valid clustertrustbundlename: {fault}");
                errors.invalid(&at_name, name, &detail);
            }
            if source.label_selector.is_some() {
                errors.forbidden(
                    &at.child("labelSelector"),
                    "labelSelector must be unset if name is specified",
                );
            }
        }
        (None, Some(signer)) => {
            validate_signer(signer, &at.child("signerName"), errors);
            let selector = source.label_selector.as_ref();
            metadata::validate_label_selector(selector, &at.child("labelSelector"), errors);
        }
        (None, None) => errors.required(at, "either name or signerName must be specified"),
    }
    validate_path(&source.path, &at.child("path"), errors);
}

fn validate_signer(signer: &str, at: &FieldPath, errors: &mut Errors) {
    if signer.is_empty() {
        return errors.required(at, "must be a valid signer name");
    }
    let (domain, path) = signer.split_once('/').unwrap_or((signer, ""));
    if path.is_empty() || path.contains('/') {
        errors.invalid(
            at,
            signer,
            "must be a fully qualified domain and path of the form 'example.com/signer-name'",
        );
        return;
    }
    errors.invalid_each(at, domain, syntax::dns_subdomain(domain));
    if !domain.contains('.') {
        errors.invalid(
            at,
            domain,
            "should be a domain with at least two segments separated by dots",
        );
    }
    errors.invalid_each(at, path, syntax::dns_subdomain(path));
}

fn certificate_paths(
    source: &PodCertificateProjection,
) -> impl Iterator<Item = (&'static str, &str)> {
    [
        ("credentialBundlePath", text(&source.credential_bundle_path)),
        ("keyPath", text(&source.key_path)),
        ("certificateChainPath", text(&source.certificate_chain_path)),
    ]
    .into_iter()
    .filter(|(_, path)| !path.is_empty())
}

fn validate_certificate(source: &PodCertificateProjection, at: &FieldPath, errors: &mut Errors) {
    validate_signer(&source.signer_name, &at.child("signerName"), errors);
    if !KEY_TYPES.contains(&source.key_type.as_str()) {
        errors.not_supported(&at.child("keyType"), &source.key_type, &KEY_TYPES);
    }
    if let Some(seconds) = source.max_expiration_seconds {
        errors.invalid_each(
            &at.child("maxExpirationSeconds"),
            &seconds,
            syntax::in_range(seconds.into(), 3_600, 7_862_400),
        );
    }
    if certificate_paths(source).next().is_none() {
        errors.required(
            at,
            "specify at least one of credentialBundlePath, keyPath, and certificateChainPath",
        );
    }
    for (name, path) in certificate_paths(source) {
        errors.invalid_each(&at.child(name), path, syntax::unreserved_path(path));
    }
}
