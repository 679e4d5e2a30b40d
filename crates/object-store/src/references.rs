use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, LocalObjectReference, Pod, Volume};
use rubelet_types::containers;

/// Names of the objects that a pod refers to, in its own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodReferences {
    /// ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Secrets.
    pub secrets: BTreeSet<String>,
}

/// The objects that a pod refers to: in its environment, its volumes and for pulling its images.
pub fn pod_references(pod: &Pod) -> PodReferences {
    let mut found = PodReferences::default();
    for spec in containers(pod) {
        found.add_container(&spec.container);
    }
    let Some(spec) = &pod.spec else { return found };
    for secret in spec.image_pull_secrets.iter().flatten() {
        found.add_secret(&secret.name);
    }
    for volume in spec.volumes.iter().flatten() {
        found.add_volume(volume);
    }
    found
}

impl PodReferences {
    fn add_config_map(&mut self, name: &str) {
        if !name.is_empty() {
            self.config_maps.insert(name.to_owned());
        }
    }

    fn add_secret(&mut self, name: &str) {
        if !name.is_empty() {
            self.secrets.insert(name.to_owned());
        }
    }

    fn add_container(&mut self, container: &Container) {
        for source in container.env_from.iter().flatten() {
            if let Some(reference) = &source.config_map_ref {
                self.add_config_map(&reference.name);
            }
            if let Some(reference) = &source.secret_ref {
                self.add_secret(&reference.name);
            }
        }
        let sources = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref());
        for source in sources {
            if let Some(key) = &source.config_map_key_ref {
                self.add_config_map(&key.name);
            }
            if let Some(key) = &source.secret_key_ref {
                self.add_secret(&key.name);
            }
        }
    }

    fn add_volume(&mut self, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            self.add_config_map(&source.name);
        }
        if let Some(source) = &volume.secret {
            self.add_secret(source.secret_name.as_deref().unwrap_or_default());
        }
        if let Some(source) = &volume.azure_file {
            self.add_secret(&source.secret_name);
        }
        for projection in volume.projected.iter().flat_map(|it| it.sources.iter().flatten()) {
            if let Some(source) = &projection.config_map {
                self.add_config_map(&source.name);
            }
            if let Some(source) = &projection.secret {
                self.add_secret(&source.name);
            }
        }
        let by_reference: [Option<&LocalObjectReference>; 8] = [
            volume.cephfs.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.cinder.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.csi.as_ref().and_then(|it| it.node_publish_secret_ref.as_ref()),
            volume.flex_volume.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.iscsi.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.rbd.as_ref().and_then(|it| it.secret_ref.as_ref()),
            volume.scale_io.as_ref().map(|it| &it.secret_ref),
            volume.storageos.as_ref().and_then(|it| it.secret_ref.as_ref()),
        ];
        for reference in by_reference.into_iter().flatten() {
            self.add_secret(&reference.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_places_are_looked_at() {
        let pod = serde_json::from_value(json!({"spec": {
            "imagePullSecrets": [{"name": "pull"}, {"name": ""}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "from"}}]}],
            "containers": [{"name": "c",
                "envFrom": [{"secretRef": {"name": "from"}}],
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "key", "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}},
                    {"name": "C", "value": "plain"}]}],
            "ephemeralContainers": [{"name": "e", "envFrom": [{"secretRef": {"name": "debug"}}]}],
            "volumes": [
                {"name": "a", "configMap": {"name": "volume"}},
                {"name": "b", "secret": {"secretName": "volume"}},
                {"name": "c", "projected": {"sources": [
                    {"configMap": {"name": "kube-root-ca.crt"}}, {"secret": {"name": "part"}},
                    {"serviceAccountToken": {"path": "token"}}]}},
                {"name": "d", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "e", "iscsi": {"iqn": "q", "lun": 0, "targetPortal": "t",
                    "secretRef": {"name": "chap"}}},
            ],
        }}))
        .unwrap();
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(
            pod_references(&pod),
            PodReferences {
                config_maps: set(&["from", "key", "kube-root-ca.crt", "volume"]),
                secrets: set(&["chap", "csi", "debug", "from", "key", "part", "pull", "volume"]),
            }
        );
        assert_eq!(pod_references(&Pod::default()), PodReferences::default());
    }
}
