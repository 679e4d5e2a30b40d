//! The way from a request on the node's API into a container.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::{CriError, CriErrorKind, v1};
use rubelet_server::{ContainerAccess, ContainerTarget, PodTarget, StreamOptions, StreamingError};
use rubelet_types::{ContainerId, SandboxId, labels, pod_ref};

use crate::server_state::ServerState;

impl ContainerAccess for ServerState {
    async fn exec(
        &self,
        target: &ContainerTarget,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> Result<String, StreamingError> {
        let pod = self.pod(&target.pod)?;
        let container = self.running_container(&pod, target).await?;
        let container = container.ok_or_else(|| no_container(target))?;
        let StreamOptions { stdin, stdout, stderr, tty } = streams;
        let container_id = container.to_string();
        let request = v1::ExecRequest { container_id, cmd: command, tty, stdin, stdout, stderr };
        self.view.cri().exec(request).await.map_err(refused)
    }

    async fn attach(
        &self,
        target: &ContainerTarget,
        streams: StreamOptions,
    ) -> Result<String, StreamingError> {
        let pod = self.pod(&target.pod)?;
        let container = self.running_container(&pod, target).await?;
        let (Some(container), Some(tty)) = (container, has_terminal(&pod, &target.container))
        else {
            let ContainerTarget { pod: PodTarget { namespace, name, .. }, container } = target;
            let text = format!("container {container} not found in pod {name}_{namespace}");
            return Err(StreamingError::Failed(text));
        };
        let StreamOptions { stdin, stdout, stderr, tty: _ } = streams;
        let container_id = container.to_string();
        let request = v1::AttachRequest { container_id, stdin, tty, stdout, stderr };
        self.view.cri().attach(request).await.map_err(refused)
    }

    async fn port_forward(
        &self,
        target: &PodTarget,
        ports: Vec<u16>,
    ) -> Result<String, StreamingError> {
        let pod = self.pod(target)?;
        if !self.is_meant(&pod, target) {
            return Err(StreamingError::OtherPod);
        }
        let ready = v1::PodSandboxFilter {
            state: Some(v1::PodSandboxStateValue {
                state: i32::from(v1::PodSandboxState::SandboxReady),
            }),
            label_selector: [(labels::POD_UID.to_owned(), pod_ref(&pod).uid.to_string())].into(),
            ..Default::default()
        };
        let sandboxes = self.view.cri().list_pod_sandbox(Some(ready)).await.map_err(refused)?;
        let sandbox = sandboxes.into_iter().max_by_key(|sandbox| sandbox.created_at);
        let Some(sandbox) = sandbox else {
            let text = format!("pod not found (\"{}_{}\")", target.name, target.namespace);
            return Err(StreamingError::Failed(text));
        };
        let ports = ports.into_iter().map(i32::from).collect();
        let sandbox = SandboxId::new(sandbox.id);
        self.view.cri().port_forward(&sandbox, ports).await.map_err(refused)
    }

    async fn run(
        &self,
        target: &ContainerTarget,
        command: Vec<String>,
    ) -> Result<Vec<u8>, StreamingError> {
        let pod = self.pod(&target.pod)?;
        let container = self.running_container(&pod, target).await?;
        let container = container.ok_or_else(|| no_container(target))?;
        let words = command.join(" ");
        let told = self.view.cri().exec_sync(&container, command, None).await.map_err(refused)?;
        if told.exit_code != 0 {
            let stderr = String::from_utf8_lossy(&told.stderr);
            let text = format!("command '{words}' exited with {}: {stderr}", told.exit_code);
            return Err(StreamingError::Failed(text));
        }
        Ok([told.stdout, told.stderr].concat())
    }

    async fn checkpoint(
        &self,
        target: &ContainerTarget,
        timeout: Option<u32>,
    ) -> Result<String, StreamingError> {
        let pod = self.pod(&target.pod)?;
        let ContainerTarget { pod: PodTarget { namespace, name, .. }, container } = target;
        if has_terminal(&pod, container).is_none() {
            let text = format!("container {container} does not exist");
            return Err(StreamingError::NotFound(text));
        }
        let failed = |why: String| {
            StreamingError::Failed(format!(
                "checkpointing of {namespace}/{name}/{container} failed ({why})"
            ))
        };
        let running = self.running_container(&pod, target).await;
        let running = running.map_err(|error| failed(error.to_string()))?;
        let id = running.ok_or_else(|| failed(format!("container {container} not found")))?;
        let now = self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ");
        let file = format!("checkpoint-{name}_{namespace}-{container}-{now}.tar");
        let archive = self.checkpoints.join(file).display().to_string();
        let timeout = Duration::from_secs(timeout.unwrap_or_default().into());
        let saved = self.view.cri().checkpoint_container(&id, &archive, timeout).await;
        saved.map_err(|error| failed(error.to_string()))?;
        Ok(archive)
    }

    fn idle_timeout(&self) -> Duration {
        self.streaming_idle_timeout
    }
}

impl ServerState {
    /// The pod of that name that the sources want.
    fn pod(&self, target: &PodTarget) -> Result<Arc<Pod>, StreamingError> {
        self.view.desired_pod(&target.namespace, &target.name).ok_or(StreamingError::NoSuchPod)
    }

    /// Whether a request that says a uid means that pod, by its own or by its mirror's.
    fn is_meant(&self, pod: &Pod, target: &PodTarget) -> bool {
        let Some(uid) = &target.uid else { return true };
        let pod = pod_ref(pod);
        *uid == pod.uid.as_str()
            || self.view.mirror_uid(&pod.full_name()).is_some_and(|mirror| mirror == *uid)
    }

    async fn running_container(
        &self,
        pod: &Pod,
        target: &ContainerTarget,
    ) -> Result<Option<ContainerId>, StreamingError> {
        if !self.is_meant(pod, &target.pod) {
            return Ok(None);
        }
        let running = v1::ContainerFilter {
            state: Some(v1::ContainerStateValue {
                state: i32::from(v1::ContainerState::ContainerRunning),
            }),
            label_selector: [
                (labels::POD_UID.to_owned(), pod_ref(pod).uid.to_string()),
                (labels::CONTAINER_NAME.to_owned(), target.container.clone()),
            ]
            .into(),
            ..Default::default()
        };
        let containers = self.view.cri().list_containers(Some(running)).await.map_err(refused)?;
        let newest = containers.into_iter().max_by_key(|container| container.created_at);
        Ok(newest.map(|container| ContainerId::new(container.id)))
    }
}

fn no_container(target: &ContainerTarget) -> StreamingError {
    StreamingError::Failed(format!("container not found ({:?})", target.container))
}

/// Whether a container of any kind has a terminal; none if the pod has no such container.
fn has_terminal(pod: &Pod, name: &str) -> Option<bool> {
    let spec = pod.spec.as_ref()?;
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    containers
        .map(|container| (&container.name, container.tty))
        .chain(ephemeral.map(|container| (&container.name, container.tty)))
        .find(|(known, _)| *known == name)
        .map(|(_, tty)| tty.unwrap_or_default())
}

fn refused(error: CriError) -> StreamingError {
    let text = error.to_string();
    match error.kind {
        CriErrorKind::NotFound => StreamingError::NotFound(text),
        CriErrorKind::ResourceExhausted => StreamingError::Busy(text),
        _ => StreamingError::Failed(text),
    }
}
