use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Secret, Service};
use rubelet_types::Fetched;

/// Objects of the API that environment variables of one pod refer to.
#[derive(Clone, Default)]
pub struct ApiObjects {
    /// ConfigMaps of the pod's namespace, by name.
    pub config_maps: BTreeMap<String, Fetched<Arc<ConfigMap>>>,
    /// Secrets of the pod's namespace, by name.
    pub secrets: BTreeMap<String, Fetched<Arc<Secret>>>,
    /// The services of the cluster, of which those of the pod's namespace and the API server's own
    /// are enough; none until they have been listed once.
    pub services: Option<Vec<Arc<Service>>>,
}

/// Names only: values are secret.
impl fmt::Debug for ApiObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiObjects")
            .field("config_maps", &self.config_maps.keys())
            .field("secrets", &self.secrets.keys())
            .field("services", &self.services.as_ref().map(Vec::len))
            .finish()
    }
}

/// Names of the objects that a container's environment refers to, in the pod's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferencedObjects {
    /// ConfigMaps.
    pub config_maps: BTreeSet<String>,
    /// Secrets.
    pub secrets: BTreeSet<String>,
}

/// What has to be read from the API server before the container's environment can be computed.
pub fn referenced_objects(container: &Container) -> ReferencedObjects {
    let mut found = ReferencedObjects::default();
    for source in container.env_from.iter().flatten() {
        found.config_maps.extend(source.config_map_ref.iter().map(|object| object.name.clone()));
        found.secrets.extend(source.secret_ref.iter().map(|object| object.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref())
    {
        let config_map = source.config_map_key_ref.iter().map(|key| key.name.clone());
        found.config_maps.extend(config_map);
        found.secrets.extend(source.secret_key_ref.iter().map(|key| key.name.clone()));
    }
    found
}
