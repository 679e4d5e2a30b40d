//! What the HTTP servers show.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_cri::{observe, v1};
use rubelet_server::{About, KubeletState, StateError};
use rubelet_types::Clock;
use serde_json::Value;

use crate::logging::LogHandle;
use crate::version::KUBERNETES_VERSION;
use crate::wiring::KubeletView;

/// The views behind `/pods`, `/runningpods/` and `/configz`.
#[derive(Debug)]
pub(crate) struct ServerState {
    pub(crate) view: KubeletView,
    pub(crate) configz: Value,
    pub(crate) log: LogHandle,
    /// Flags that were given.
    pub(crate) flags: BTreeMap<String, String>,
    pub(crate) clock: Clock,
    pub(crate) started: Timestamp,
    /// Where archives of containers go.
    pub(crate) checkpoints: PathBuf,
    /// `streamingConnectionIdleTimeout`.
    pub(crate) streaming_idle_timeout: Duration,
}

impl KubeletState for ServerState {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.view.pods().into_iter().map(Arc::new).collect()
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, StateError> {
        let running = v1::ContainerFilter {
            state: Some(v1::ContainerStateValue {
                state: i32::from(v1::ContainerState::ContainerRunning),
            }),
            ..Default::default()
        };
        let sandboxes = self.view.cri().list_pod_sandbox(None).await.map_err(StateError::new)?;
        let containers =
            self.view.cri().list_containers(Some(running)).await.map_err(StateError::new)?;
        let image_of = |id: &str| {
            containers
                .iter()
                .find(|container| container.id == id)
                .and_then(|container| container.image.as_ref())
                .map(|image| image.image.clone())
        };
        Ok(observe::group_by_pod(&sandboxes, &containers)
            .into_values()
            .filter(|entry| {
                !entry.containers.is_empty()
                    || entry
                        .sandboxes
                        .iter()
                        .any(|sandbox| sandbox.state == rubelet_types::SandboxState::Ready)
            })
            .map(|entry| Pod {
                metadata: ObjectMeta {
                    name: Some(entry.pod.name.to_string()),
                    namespace: Some(entry.pod.namespace.to_string()),
                    uid: Some(entry.pod.uid.to_string()),
                    ..ObjectMeta::default()
                },
                spec: Some(PodSpec {
                    containers: entry
                        .containers
                        .iter()
                        .map(|container| Container {
                            name: container.name.clone(),
                            image: image_of(container.id.as_str()),
                            ..Container::default()
                        })
                        .collect(),
                    ..PodSpec::default()
                }),
                status: None,
            })
            .collect())
    }

    fn configz(&self) -> Value {
        self.configz.clone()
    }

    fn about(&self) -> About {
        About {
            version: KUBERNETES_VERSION.trim_start_matches('v').to_owned(),
            started: self.started,
            now: self.clock.now(),
            flags: self.flags.clone(),
        }
    }

    fn set_log_verbosity(&self, verbosity: u32) {
        tracing::info!(from = self.log.verbosity(), to = verbosity, "Log verbosity changes");
        self.log.set_verbosity(verbosity);
    }
}
