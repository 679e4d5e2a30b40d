//! Lifecycle hooks: `exec`, `httpGet`, `sleep`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};
use rubelet_container_http::{ContainerClient, HttpTarget, Purpose};
use rubelet_cri::CriClient;
use rubelet_types::{ContainerId, EventObject, EventRecorder};
use tokio_util::sync::CancellationToken;

/// A hook that did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error("command '{command}' exited with {exit_code}: {output}")]
    Exited { command: String, exit_code: i32, output: String },
    #[error("{0}")]
    Runtime(#[from] rubelet_cri::CriError),
    #[error("{0}")]
    Http(#[from] rubelet_container_http::HttpGetError),
    #[error("{0}")]
    Port(#[from] rubelet_container_http::PortError),
    #[error("cannot run handler: the lifecycle handler names neither exec, httpGet nor sleep")]
    NoHandler,
    #[error("the hook was abandoned")]
    Cancelled,
}

/// Where a hook runs.
pub(crate) struct HookTarget<'a> {
    pub(crate) id: &'a ContainerId,
    pub(crate) container: &'a Container,
    pub(crate) pod_ip: &'a str,
    /// The pod, for events.
    pub(crate) object: EventObject,
}

pub(crate) async fn run_hook(
    cri: &CriClient,
    http: &ContainerClient,
    events: &EventRecorder,
    handler: &LifecycleHandler,
    target: HookTarget<'_>,
    cancel: &CancellationToken,
) -> Result<(), HookError> {
    // Dropping the hook's future ends its connection or its call.
    tokio::select! {
        () = cancel.cancelled() => Err(HookError::Cancelled),
        result = run(cri, http, events, handler, target) => result,
    }
}

async fn run(
    cri: &CriClient,
    http: &ContainerClient,
    events: &EventRecorder,
    handler: &LifecycleHandler,
    target: HookTarget<'_>,
) -> Result<(), HookError> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let answer = cri.exec_sync(target.id, command.clone(), None).await?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        return Err(HookError::Exited {
            command: command.join(" "),
            exit_code: answer.exit_code,
            output: String::from_utf8_lossy(&[answer.stdout, answer.stderr].concat())
                .trim_end()
                .to_owned(),
        });
    }
    if let Some(action) = &handler.http_get {
        let request =
            HttpTarget::new(action, target.container, target.pod_ip, Purpose::LifecycleHook)?;
        let response = http.http_hook(&request).await?;
        if response.fell_back_to_http {
            events.warning(
                target.object,
                "LifecycleHTTPFallback",
                format!(
                    "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                    request.authority()
                ),
            );
        }
        return Ok(());
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err(HookError::NoHandler)
}
