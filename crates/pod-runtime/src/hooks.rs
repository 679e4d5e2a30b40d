//! Lifecycle hooks: `exec`, `httpGet`, `sleep`.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, LifecycleHandler};
use rubelet_container_http::{ContainerClient, HttpTarget, Purpose};
use rubelet_cri::CriClient;
use rubelet_types::{ContainerId, EventObject, EventRecorder, PodRef};
use tokio_util::sync::CancellationToken;

use crate::metrics::HookMetrics;
use crate::text::tail;

/// Bytes of a command's output that get into a message: statuses carry it.
const MAX_OUTPUT: usize = 4096;

/// A hook that did not do its work. Its text stands in the container's status, and not in events:
/// it may hold what the container said.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    #[error(
        "Exec lifecycle hook ([{command}]) for Container {container:?} in Pod {pod:?} failed - \
         error: {cause}, message: {output:?}"
    )]
    Exec { command: String, container: String, pod: String, cause: String, output: String },
    #[error(
        "HTTP lifecycle hook ({path}) for Container {container:?} in Pod {pod:?} failed - error: \
         {cause}"
    )]
    Http { path: String, container: String, pod: String, cause: String },
    #[error("Cannot run handler: invalid handler: it names neither exec, httpGet nor sleep")]
    NoHandler,
    #[error("container terminated before the hook finished")]
    Cancelled,
}

/// Where a hook runs.
#[derive(Clone, Copy)]
pub(crate) struct HookTarget<'a> {
    pub(crate) pod: &'a PodRef,
    pub(crate) id: &'a ContainerId,
    pub(crate) container: &'a Container,
    pub(crate) pod_ip: &'a str,
}

/// What hooks are run with.
#[derive(Clone, Copy)]
pub(crate) struct HookRunner<'a> {
    pub(crate) cri: &'a CriClient,
    pub(crate) http: &'a ContainerClient,
    pub(crate) events: &'a EventRecorder,
    pub(crate) metrics: &'a HookMetrics,
}

impl HookRunner<'_> {
    /// Runs a hook to its end. Cancelling it ends its connection or call.
    pub(crate) async fn run(
        self,
        handler: &LifecycleHandler,
        target: HookTarget<'_>,
        cancel: &CancellationToken,
    ) -> Result<(), HookError> {
        let work = async {
            if let Some(action) = &handler.exec {
                self.exec(action, target).await
            } else if let Some(action) = &handler.http_get {
                self.http_get(action, target).await
            } else if let Some(sleep) = &handler.sleep {
                let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(())
            } else {
                Err(HookError::NoHandler)
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {
                let sleeps = handler.exec.is_none() && handler.http_get.is_none();
                if sleeps && handler.sleep.is_some() {
                    self.metrics.sleeps_cut_short.inc();
                }
                Err(HookError::Cancelled)
            }
            result = work => result,
        }
    }

    async fn exec(self, action: &ExecAction, target: HookTarget<'_>) -> Result<(), HookError> {
        let command = action.command.clone().unwrap_or_default();
        let words = command.join(" ");
        let (cause, output) = match self.cri.exec_sync(target.id, command, None).await {
            Ok(answer) if answer.exit_code == 0 => return Ok(()),
            Ok(answer) => {
                let said = String::from_utf8_lossy(&answer.stderr);
                let cause = format!(
                    "command '{words}' exited with {}: {}",
                    answer.exit_code,
                    tail(&said, MAX_OUTPUT)
                );
                let all = [answer.stdout, answer.stderr].concat();
                (cause, tail(&String::from_utf8_lossy(&all), MAX_OUTPUT).to_owned())
            }
            Err(error) => (error.to_string(), String::new()),
        };
        Err(HookError::Exec {
            command: words,
            container: target.container.name.clone(),
            pod: target.pod.to_string(),
            cause,
            output,
        })
    }

    async fn http_get(
        self,
        action: &HTTPGetAction,
        target: HookTarget<'_>,
    ) -> Result<(), HookError> {
        let failed = |cause: String| HookError::Http {
            path: action.path.clone().unwrap_or_default(),
            container: target.container.name.clone(),
            pod: target.pod.to_string(),
            cause,
        };
        let names_host = action.host.as_deref().is_some_and(|host| !host.is_empty());
        if !names_host && target.pod_ip.is_empty() {
            return Err(failed("the pod has no IP address to ask".to_owned()));
        }
        let request =
            HttpTarget::new(action, target.container, target.pod_ip, Purpose::LifecycleHook)
                .map_err(|error| failed(error.to_string()))?;
        let response =
            self.http.http_hook(&request).await.map_err(|error| failed(error.to_string()))?;
        if response.fell_back_to_http {
            self.metrics.http_fallbacks.inc();
            self.events.warning(
                EventObject::Pod(target.pod.clone()),
                "LifecycleHTTPFallback",
                format!(
                    "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                    request.authority()
                ),
            );
        }
        Ok(())
    }
}
