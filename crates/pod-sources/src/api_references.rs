//! References from a pod to API objects.

use k8s_openapi::api::core::v1::{Pod, Volume};
use rubelet_types::containers;

/// The first API resource `pod` refers to, as the plural that the Go kubelet names in "static pods
/// may not reference ...". A static pod needs no API server, and a reference would let whoever can
/// write a file on the node read objects through the kubelet's rights.
pub fn find_api_reference(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    let named = |name: Option<&str>| name.is_some_and(|name| !name.is_empty());
    if named(spec.service_account_name.as_deref()) || named(spec.service_account.as_deref()) {
        return Some("serviceaccounts");
    }
    let volumes = spec.volumes.as_deref().unwrap_or_default();
    let pull_secrets = spec.image_pull_secrets.as_deref().unwrap_or_default();
    if pull_secrets.iter().any(|secret| named(Some(&secret.name)))
        || containers(pod).any(|spec| environment_refers(&spec.container).secret)
        || volumes.iter().any(|volume| named(secret_name(volume)))
        || volumes.iter().any(|volume| {
            projects(volume, |source| {
                named(source.secret.as_ref().map(|secret| secret.name.as_str()))
            })
        })
    {
        return Some("secrets");
    }
    if containers(pod).any(|spec| environment_refers(&spec.container).config_map)
        || volumes.iter().any(|volume| {
            named(volume.config_map.as_ref().map(|config_map| config_map.name.as_str()))
        })
        || volumes.iter().any(|volume| {
            projects(volume, |source| {
                named(source.config_map.as_ref().map(|config_map| config_map.name.as_str()))
            })
        })
    {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    volumes.iter().find_map(volume_reference)
}

struct EnvironmentReferences {
    secret: bool,
    config_map: bool,
}

fn environment_refers(container: &k8s_openapi::api::core::v1::Container) -> EnvironmentReferences {
    let mut found = EnvironmentReferences { secret: false, config_map: false };
    for source in container.env_from.iter().flatten() {
        found.secret |= source.secret_ref.as_ref().is_some_and(|it| !it.name.is_empty());
        found.config_map |= source.config_map_ref.as_ref().is_some_and(|it| !it.name.is_empty());
    }
    for source in container.env.iter().flatten().filter_map(|env| env.value_from.as_ref()) {
        found.secret |= source.secret_key_ref.as_ref().is_some_and(|it| !it.name.is_empty());
        found.config_map |=
            source.config_map_key_ref.as_ref().is_some_and(|it| !it.name.is_empty());
    }
    found
}

fn secret_name(volume: &Volume) -> Option<&str> {
    let by_reference = volume
        .cephfs
        .as_ref()
        .and_then(|it| it.secret_ref.as_ref())
        .or(volume.cinder.as_ref().and_then(|it| it.secret_ref.as_ref()))
        .or(volume.flex_volume.as_ref().and_then(|it| it.secret_ref.as_ref()))
        .or(volume.rbd.as_ref().and_then(|it| it.secret_ref.as_ref()))
        .or(volume.scale_io.as_ref().map(|it| &it.secret_ref))
        .or(volume.iscsi.as_ref().and_then(|it| it.secret_ref.as_ref()))
        .or(volume.storageos.as_ref().and_then(|it| it.secret_ref.as_ref()))
        .or(volume.csi.as_ref().and_then(|it| it.node_publish_secret_ref.as_ref()))
        .map(|reference| reference.name.as_str());
    volume
        .secret
        .as_ref()
        .and_then(|it| it.secret_name.as_deref())
        .or(volume.azure_file.as_ref().map(|it| it.secret_name.as_str()))
        .or(by_reference)
}

fn projects(
    volume: &Volume,
    test: impl Fn(&k8s_openapi::api::core::v1::VolumeProjection) -> bool,
) -> bool {
    let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_deref());
    sources.unwrap_or_default().iter().any(test)
}

/// Volumes that need the API even without naming an object.
fn volume_reference(volume: &Volume) -> Option<&'static str> {
    if volume.config_map.is_some() {
        return Some("configmaps (via configmap volumes)");
    }
    if volume.secret.is_some() {
        return Some("secrets (via secret volumes)");
    }
    if volume.csi.is_some() {
        return Some("csidrivers (via CSI volumes)");
    }
    if volume.glusterfs.is_some() {
        return Some("endpoints (via glusterFS volumes)");
    }
    if volume.persistent_volume_claim.is_some() {
        return Some("persistentvolumeclaims");
    }
    if volume.ephemeral.is_some() {
        return Some("persistentvolumeclaims (via ephemeral volumes)");
    }
    if volume.azure_file.is_some() {
        return Some("secrets (via azureFile volumes)");
    }
    let sources = volume.projected.as_ref().and_then(|projected| projected.sources.as_deref());
    sources.unwrap_or_default().iter().find_map(|source| {
        if source.config_map.is_some() {
            Some("configmaps (via projected volumes)")
        } else if source.secret.is_some() {
            Some("secrets (via projected volumes)")
        } else if source.service_account_token.is_some() {
            Some("serviceaccounts (via projected volumes)")
        } else if source.cluster_trust_bundle.is_some() {
            Some("clustertrustbundles")
        } else if source.pod_certificate.is_some() {
            Some("podcertificates")
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reference(spec: Value) -> Option<&'static str> {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{"name": "c", "image": "i"}]);
        }
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        find_api_reference(&pod)
    }

    fn volume(source: Value) -> Value {
        let mut volume = source;
        volume["name"] = "v".into();
        json!({"volumes": [volume]})
    }

    fn container(extra: Value) -> Value {
        let mut container = extra;
        container["name"] = "c".into();
        json!({"containers": [container]})
    }

    #[test]
    fn every_reference_to_an_api_object_is_found() {
        for (spec, expected) in [
            (json!({}), None),
            (json!({"serviceAccountName": "sa"}), Some("serviceaccounts")),
            (json!({"serviceAccount": "sa"}), Some("serviceaccounts")),
            (json!({"imagePullSecrets": [{"name": "s"}]}), Some("secrets")),
            (json!({"imagePullSecrets": [{"name": ""}]}), None),
            (container(json!({"envFrom": [{"secretRef": {"name": "s"}}]})), Some("secrets")),
            (container(json!({"envFrom": [{"configMapRef": {"name": "s"}}]})), Some("configmaps")),
            (
                container(json!({"env": [{"name": "A", "valueFrom":
                    {"secretKeyRef": {"name": "s", "key": "k"}}}]})),
                Some("secrets"),
            ),
            (
                container(json!({"env": [{"name": "A", "valueFrom":
                    {"configMapKeyRef": {"name": "s", "key": "k"}}}]})),
                Some("configmaps"),
            ),
            (
                json!({"initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s"}}]}]}),
                Some("secrets"),
            ),
            (volume(json!({"secret": {"secretName": "s"}})), Some("secrets")),
            (volume(json!({"secret": {}})), Some("secrets (via secret volumes)")),
            (volume(json!({"configMap": {"name": "s"}})), Some("configmaps")),
            (volume(json!({"csi": {"driver": "d"}})), Some("csidrivers (via CSI volumes)")),
            (
                volume(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s"}}})),
                Some("secrets"),
            ),
            (
                volume(json!({"persistentVolumeClaim": {"claimName": "s"}})),
                Some("persistentvolumeclaims"),
            ),
            (
                volume(json!({"ephemeral": {}})),
                Some("persistentvolumeclaims (via ephemeral volumes)"),
            ),
            (
                volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
                Some("serviceaccounts (via projected volumes)"),
            ),
            (
                volume(json!({"projected": {"sources": [
                    {"downwardAPI": {}}, {"clusterTrustBundle": {"path": "t"}}]}})),
                Some("clustertrustbundles"),
            ),
            (
                volume(json!({"projected": {"sources": [{"secret": {"name": "s"}}]}})),
                Some("secrets"),
            ),
            (volume(json!({"projected": {"sources": [{"downwardAPI": {}}]}})), None),
            (json!({"resourceClaims": [{"name": "c"}]}), Some("resourceclaims")),
            (volume(json!({"hostPath": {"path": "/etc"}})), None),
            (volume(json!({"emptyDir": {}})), None),
            (volume(json!({"image": {"reference": "r"}})), None),
        ] {
            assert_eq!(reference(spec.clone()), expected, "{spec}");
        }
    }
}
