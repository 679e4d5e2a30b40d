//! The environment of a container that is about to start.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_pod_runtime::{
    EnvironmentFacts, EnvironmentFiles, compute_environment, read_environment_files,
};
use rubelet_types::error_chain;
use rubelet_volume_manager::PodVolumes;

use crate::executor::Executor;

impl Executor {
    /// The variables of `container` in order, with what they take from objects of the API server and
    /// from files in `volumes`. `Err` carries the text of a `CreateContainerConfigError`.
    pub(crate) async fn environment(
        &self,
        pod: &Pod,
        container: &Container,
        volumes: &PodVolumes,
        pod_ips: &[String],
    ) -> Result<Vec<(String, String)>, String> {
        let allocatable =
            self.container_manager.allocatable().map_err(|error| error_chain(&error))?;
        let files = environment_files(container, volumes).await?;
        let objects = match &self.pod_objects {
            Some(objects) => Some(objects.of_environment(pod, container).await),
            None => None,
        };
        let facts = EnvironmentFacts {
            pod_ips,
            host_ips: &self.host_ips.get(),
            node_name: &self.node_name,
            allocatable,
            objects: objects.as_ref(),
            files: &files,
        };
        compute_environment(pod, container, &facts).map_err(|error| error.to_string())
    }
}

/// The files that environment variables refer to, read where that may block.
async fn environment_files(
    container: &Container,
    volumes: &PodVolumes,
) -> Result<EnvironmentFiles, String> {
    let refers = container.env.iter().flatten().any(|variable| {
        variable.value_from.as_ref().is_some_and(|source| source.file_key_ref.is_some())
    });
    if !refers {
        return Ok(EnvironmentFiles::default());
    }
    let paths: BTreeMap<String, PathBuf> = volumes
        .by_name
        .iter()
        .map(|(name, volume)| (name.clone(), volume.host_path.clone()))
        .collect();
    let container = container.clone();
    tokio::task::spawn_blocking(move || read_environment_files(&container, &paths))
        .await
        .map_err(|error| error_chain(&error))
}
