//! The calls of the runtime service.

use std::time::Duration;
use tokio::time::Instant;

use rubelet_types::{ContainerId, SandboxId};

use crate::{CriClient, CriError, CriErrorKind, Rpc, v1};

/// The API version spoken here.
const API_VERSION: &str = "v1";
/// The version of the kubelet's side that [`v1::VersionRequest`] carries, as upstream sends it.
const KUBELET_API_VERSION: &str = "0.1.0";

/// The runtime's name and version, from an answer that was found acceptable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// Such as `containerd`.
    pub name: String,
    /// Such as `v2.1.4`.
    pub version: String,
    /// Always `v1`.
    pub api_version: String,
}

impl CriClient {
    /// Name and versions as the runtime tells them.
    pub async fn version(&self) -> Result<v1::VersionResponse, CriError> {
        let message = v1::VersionRequest { version: KUBELET_API_VERSION.to_owned() };
        let version = self
            .runtime(Rpc::Version, message, |mut client, request| async move {
                client.version(request).await
            })
            .await?;
        let v1::VersionResponse { runtime_name, runtime_version, runtime_api_version, .. } =
            &version;
        if [runtime_name, runtime_version, runtime_api_version].iter().any(|part| part.is_empty()) {
            return Err(CriError::incomplete_answer(
                Rpc::Version,
                format!(
                    "not all fields are set in VersionResponse: runtime_name {runtime_name:?}, \
                     runtime_version {runtime_version:?}, \
                     runtime_api_version {runtime_api_version:?}"
                ),
            ));
        }
        Ok(version)
    }

    /// Makes sure that the runtime speaks CRI v1.
    ///
    /// # Errors
    ///
    /// [`CriErrorKind::Unimplemented`] for another API version (or for a runtime without `v1`
    /// services at all), and whatever the call itself meets.
    pub async fn check_version(&self) -> Result<RuntimeVersion, CriError> {
        let answer = self.version().await?;
        if answer.runtime_api_version != API_VERSION {
            return Err(CriError::new(
                Rpc::Version,
                CriErrorKind::Unimplemented,
                format!(
                    "{} {} speaks CRI {}, the kubelet needs {API_VERSION}",
                    answer.runtime_name, answer.runtime_version, answer.runtime_api_version
                ),
            ));
        }
        Ok(RuntimeVersion {
            name: answer.runtime_name,
            version: answer.runtime_version,
            api_version: answer.runtime_api_version,
        })
    }

    /// Conditions, handlers and features; `verbose` adds the runtime's own `info`.
    ///
    /// # Errors
    ///
    /// Also if one of the two conditions that must be there is missing.
    pub async fn status(&self, verbose: bool) -> Result<v1::StatusResponse, CriError> {
        let message = v1::StatusRequest { verbose };
        let status = self
            .runtime(Rpc::Status, message, |mut client, request| async move {
                client.status(request).await
            })
            .await?;
        let conditions = status.status.as_ref().map_or(&[][..], |status| &status.conditions);
        for required in ["RuntimeReady", "NetworkReady"] {
            if !conditions.iter().any(|condition| condition.r#type == required) {
                return Err(CriError::incomplete_answer(
                    Rpc::Status,
                    format!("the runtime's status lacks the condition {required}"),
                ));
            }
        }
        Ok(status)
    }

    /// The cgroup driver; none if the runtime is too old to tell.
    pub async fn runtime_config(&self) -> Result<Option<v1::RuntimeConfigResponse>, CriError> {
        let answer = self
            .runtime(
                Rpc::RuntimeConfig,
                v1::RuntimeConfigRequest {},
                |mut client, request| async move { client.runtime_config(request).await },
            )
            .await;
        match answer {
            Ok(config) => Ok(Some(config)),
            Err(error) if error.is_unimplemented() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells the runtime the node's pod CIDR, or both of a dual-stack node, comma-separated.
    pub async fn update_runtime_config(&self, pod_cidr: &str) -> Result<(), CriError> {
        let network_config = Some(v1::NetworkConfig { pod_cidr: pod_cidr.to_owned() });
        let message = v1::UpdateRuntimeConfigRequest {
            runtime_config: Some(v1::RuntimeConfig { network_config }),
        };
        self.runtime(Rpc::UpdateRuntimeConfig, message, |mut client, request| async move {
            client.update_runtime_config(request).await
        })
        .await?;
        Ok(())
    }

    /// Creates and starts a sandbox, within twice the usual deadline.
    pub async fn run_pod_sandbox(
        &self,
        config: v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<SandboxId, CriError> {
        let message = v1::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: runtime_handler.to_owned(),
        };
        let deadline = Some(self.request_timeout().saturating_mul(2));
        let started = Instant::now();
        let answer = self
            .runtime_within(
                Rpc::RunPodSandbox,
                deadline,
                message,
                |mut client, request| async move { client.run_pod_sandbox(request).await },
            )
            .await;
        self.metrics().record_sandbox(runtime_handler, started.elapsed(), answer.is_err());
        let answer = answer?;
        if answer.pod_sandbox_id.is_empty() {
            return Err(CriError::incomplete_answer(
                Rpc::RunPodSandbox,
                "the runtime returned no sandbox id",
            ));
        }
        Ok(SandboxId::new(answer.pod_sandbox_id))
    }

    /// Stops everything in the sandbox. A sandbox that is gone is stopped.
    pub async fn stop_pod_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let message = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_string() };
        let answer = self
            .runtime(Rpc::StopPodSandbox, message, |mut client, request| async move {
                client.stop_pod_sandbox(request).await
            })
            .await;
        gone_is_done(answer)
    }

    /// Removes the sandbox and its containers. A sandbox that is gone is removed.
    pub async fn remove_pod_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let message = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_string() };
        let answer = self
            .runtime(Rpc::RemovePodSandbox, message, |mut client, request| async move {
                client.remove_pod_sandbox(request).await
            })
            .await;
        gone_is_done(answer)
    }

    /// Tells the runtime what the pod's cgroup was set to. A runtime that does not want to know
    /// is no error.
    pub async fn update_pod_sandbox_resources(
        &self,
        id: &SandboxId,
        overhead: Option<v1::LinuxContainerResources>,
        resources: Option<v1::LinuxContainerResources>,
    ) -> Result<(), CriError> {
        let message = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.to_string(),
            overhead,
            resources,
        };
        let answer = self
            .runtime(Rpc::UpdatePodSandboxResources, message, |mut client, request| async move {
                client.update_pod_sandbox_resources(request).await
            })
            .await;
        match answer {
            // containerd 2.2 says it in words instead of by the code.
            Err(error)
                if !error.is_unimplemented() && !error.message.contains("not implemented") =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// All sandboxes that match `filter`.
    pub async fn list_pod_sandbox(
        &self,
        filter: Option<v1::PodSandboxFilter>,
    ) -> Result<Vec<v1::PodSandbox>, CriError> {
        let in_one = self.runtime(
            Rpc::ListPodSandbox,
            v1::ListPodSandboxRequest { filter: filter.clone() },
            |mut client, request| async move { client.list_pod_sandbox(request).await },
        );
        self.list(
            Rpc::StreamPodSandboxes,
            v1::StreamPodSandboxesRequest { filter },
            |mut clients, request| async move { clients.runtime.stream_pod_sandboxes(request).await },
            |part: v1::StreamPodSandboxesResponse| part.pod_sandboxes,
            async { Ok(in_one.await?.items) },
        )
        .await
    }

    /// One sandbox in detail; `verbose` adds the runtime's own `info`.
    pub async fn pod_sandbox_status(
        &self,
        id: &SandboxId,
        verbose: bool,
    ) -> Result<v1::PodSandboxStatusResponse, CriError> {
        let message = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_string(), verbose };
        self.runtime(Rpc::PodSandboxStatus, message, |mut client, request| async move {
            client.pod_sandbox_status(request).await
        })
        .await
    }

    /// Creates a container in a sandbox. `sandbox_config` is what the sandbox was made with.
    pub async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        let message = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let answer = self
            .runtime(Rpc::CreateContainer, message, |mut client, request| async move {
                client.create_container(request).await
            })
            .await?;
        if answer.container_id.is_empty() {
            return Err(CriError::incomplete_answer(
                Rpc::CreateContainer,
                "the runtime returned no container id",
            ));
        }
        Ok(ContainerId::new(answer.container_id))
    }

    /// Starts a created container.
    pub async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let message = v1::StartContainerRequest { container_id: id.to_string() };
        self.runtime(Rpc::StartContainer, message, |mut client, request| async move {
            client.start_container(request).await
        })
        .await?;
        Ok(())
    }

    /// Stops a container: its stop signal now, SIGKILL after `grace_seconds`. The deadline is the
    /// usual one on top of the grace. A container that is gone is stopped.
    pub async fn stop_container(
        &self,
        id: &ContainerId,
        grace_seconds: i64,
    ) -> Result<(), CriError> {
        let message =
            v1::StopContainerRequest { container_id: id.to_string(), timeout: grace_seconds };
        let grace = Duration::from_secs(u64::try_from(grace_seconds).unwrap_or(0));
        let deadline = Some(self.request_timeout().saturating_add(grace));
        let answer = self
            .runtime_within(
                Rpc::StopContainer,
                deadline,
                message,
                |mut client, request| async move { client.stop_container(request).await },
            )
            .await;
        gone_is_done(answer)
    }

    /// Removes a container, also a running one. A container that is gone is removed.
    pub async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        let message = v1::RemoveContainerRequest { container_id: id.to_string() };
        let answer = self
            .runtime(Rpc::RemoveContainer, message, |mut client, request| async move {
                client.remove_container(request).await
            })
            .await;
        gone_is_done(answer)
    }

    /// All containers that match `filter`.
    pub async fn list_containers(
        &self,
        filter: Option<v1::ContainerFilter>,
    ) -> Result<Vec<v1::Container>, CriError> {
        let in_one = self.runtime(
            Rpc::ListContainers,
            v1::ListContainersRequest { filter: filter.clone() },
            |mut client, request| async move { client.list_containers(request).await },
        );
        self.list(
            Rpc::StreamContainers,
            v1::StreamContainersRequest { filter },
            |mut clients, request| async move { clients.runtime.stream_containers(request).await },
            |part: v1::StreamContainersResponse| part.containers,
            async { Ok(in_one.await?.containers) },
        )
        .await
    }

    /// One container in detail; `verbose` adds the runtime's own `info`.
    pub async fn container_status(
        &self,
        id: &ContainerId,
        verbose: bool,
    ) -> Result<v1::ContainerStatusResponse, CriError> {
        let message = v1::ContainerStatusRequest { container_id: id.to_string(), verbose };
        self.runtime(Rpc::ContainerStatus, message, |mut client, request| async move {
            client.container_status(request).await
        })
        .await
    }

    /// Changes the resources of a container; what is 0 or empty stays.
    pub async fn update_container_resources(
        &self,
        id: &ContainerId,
        resources: v1::LinuxContainerResources,
    ) -> Result<(), CriError> {
        let message = v1::UpdateContainerResourcesRequest {
            container_id: id.to_string(),
            linux: Some(resources),
            ..Default::default()
        };
        self.runtime(Rpc::UpdateContainerResources, message, |mut client, request| async move {
            client.update_container_resources(request).await
        })
        .await?;
        Ok(())
    }

    /// Opens the container's log file anew, after it was renamed.
    pub async fn reopen_container_log(&self, id: &ContainerId) -> Result<(), CriError> {
        let message = v1::ReopenContainerLogRequest { container_id: id.to_string() };
        self.runtime(Rpc::ReopenContainerLog, message, |mut client, request| async move {
            client.reopen_container_log(request).await
        })
        .await?;
        Ok(())
    }

    /// Runs `command` in the container and waits for it. The runtime kills it after `timeout`
    /// (rounded up to seconds; the answer is then [`CriErrorKind::DeadlineExceeded`]); the deadline
    /// of the call is the usual one on top. Without `timeout` there is no deadline at all.
    pub async fn exec_sync(
        &self,
        id: &ContainerId,
        command: Vec<String>,
        timeout: Option<Duration>,
    ) -> Result<v1::ExecSyncResponse, CriError> {
        let timeout = timeout.filter(|timeout| !timeout.is_zero());
        let seconds = timeout.map_or(0, |timeout| {
            let started_second = u64::from(timeout.subsec_nanos() > 0);
            i64::try_from(timeout.as_secs().saturating_add(started_second)).unwrap_or(i64::MAX)
        });
        let message =
            v1::ExecSyncRequest { container_id: id.to_string(), cmd: command, timeout: seconds };
        let deadline = timeout.map(|timeout| self.request_timeout().saturating_add(timeout));
        self.runtime_within(Rpc::ExecSync, deadline, message, |mut client, request| async move {
            client.exec_sync(request).await
        })
        .await
    }

    /// Prepares a stream to a command and returns the address of the streaming server.
    pub async fn exec(&self, request: v1::ExecRequest) -> Result<String, CriError> {
        let answer =
            self.runtime(Rpc::Exec, request, |mut client, request| async move {
                client.exec(request).await
            })
            .await?;
        url_of(Rpc::Exec, answer.url)
    }

    /// Prepares a stream to a container's own process and returns the address of the streaming
    /// server.
    pub async fn attach(&self, request: v1::AttachRequest) -> Result<String, CriError> {
        let answer = self
            .runtime(Rpc::Attach, request, |mut client, request| async move {
                client.attach(request).await
            })
            .await?;
        url_of(Rpc::Attach, answer.url)
    }

    /// Prepares streams to `ports` of a sandbox and returns the address of the streaming server.
    pub async fn port_forward(
        &self,
        sandbox: &SandboxId,
        ports: Vec<i32>,
    ) -> Result<String, CriError> {
        let message = v1::PortForwardRequest { pod_sandbox_id: sandbox.to_string(), port: ports };
        let answer = self
            .runtime(Rpc::PortForward, message, |mut client, request| async move {
                client.port_forward(request).await
            })
            .await?;
        url_of(Rpc::PortForward, answer.url)
    }

    /// Saves a container to the archive `location`. As upstream does, a `timeout` below the usual
    /// deadline is raised to it.
    pub async fn checkpoint_container(
        &self,
        id: &ContainerId,
        location: &str,
        timeout: Duration,
    ) -> Result<(), CriError> {
        let deadline = timeout.max(self.request_timeout());
        let message = v1::CheckpointContainerRequest {
            container_id: id.to_string(),
            location: location.to_owned(),
            timeout: i64::try_from(deadline.as_secs()).unwrap_or(i64::MAX),
        };
        self.runtime_within(
            Rpc::CheckpointContainer,
            Some(deadline),
            message,
            |mut client, request| async move { client.checkpoint_container(request).await },
        )
        .await?;
        Ok(())
    }

    /// Saves a pod, within `deadline` or else the usual one.
    pub async fn checkpoint_pod(
        &self,
        message: v1::CheckpointPodRequest,
        deadline: Option<Duration>,
    ) -> Result<(), CriError> {
        let deadline = deadline.unwrap_or(self.request_timeout());
        self.runtime_within(
            Rpc::CheckpointPod,
            Some(deadline),
            message,
            |mut client, request| async move { client.checkpoint_pod(request).await },
        )
        .await?;
        Ok(())
    }

    /// Restores a pod, within `deadline` or else the usual one.
    pub async fn restore_pod(
        &self,
        message: v1::RestorePodRequest,
        deadline: Option<Duration>,
    ) -> Result<v1::RestorePodResponse, CriError> {
        let deadline = deadline.unwrap_or(self.request_timeout());
        self.runtime_within(
            Rpc::RestorePod,
            Some(deadline),
            message,
            |mut client, request| async move { client.restore_pod(request).await },
        )
        .await
    }
}

/// NotFound is success for whoever wanted the object stopped or removed.
fn gone_is_done<R>(answer: Result<R, CriError>) -> Result<(), CriError> {
    match answer {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

fn url_of(rpc: Rpc, url: String) -> Result<String, CriError> {
    if url.is_empty() {
        return Err(CriError::incomplete_answer(rpc, "URL is not set"));
    }
    Ok(url)
}
