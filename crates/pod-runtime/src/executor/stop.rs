//! Stopping containers and sandboxes.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{ContainerId, SandboxId, find_container, pod_ref};
use tokio_util::sync::CancellationToken;

use super::{PodRuntime, container_object};
use crate::failure::RuntimeFailure;
use crate::hooks::{HookError, HookTarget};

impl PodRuntime {
    /// Runs a preStop hook until it ends, its budget is used up, or it is cancelled.
    pub async fn run_pre_stop(
        &self,
        pod: &Pod,
        pod_ip: &str,
        id: &ContainerId,
        name: &str,
        budget: Duration,
        cancel: &CancellationToken,
    ) {
        let Some(spec) = find_container(pod, name) else { return };
        let Some(hook) =
            spec.container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref())
        else {
            return;
        };
        if budget.is_zero() {
            return;
        }
        let pod_ref = pod_ref(pod);
        let target = HookTarget { pod: &pod_ref, id, container: &spec.container, pod_ip };
        match tokio::time::timeout(budget, self.hooks().run(hook, target, cancel)).await {
            Ok(Ok(()) | Err(HookError::Cancelled)) => {}
            Ok(Err(error)) => {
                tracing::warn!(pod = %pod_ref, container = name, error = %error,
                    "PreStop hook failed");
                let object = container_object(pod, &spec);
                // What it said stays out of events: it may be secret.
                self.events.warning(object, "FailedPreStopHook", "PreStopHook failed");
            }
            Err(_) => {
                tracing::info!(pod = %pod_ref, container = name,
                    "PreStop hook not completed in grace period");
            }
        }
    }

    /// Tells that a container is being stopped.
    pub fn announce_stop(&self, pod: &Pod, name: &str, message: String) {
        if let Some(spec) = find_container(pod, name) {
            self.events.normal(container_object(pod, &spec), "Killing", message);
        }
    }

    /// Stops a container: its stop signal now, the kill signal after `timeout`.
    ///
    /// # Errors
    ///
    /// The runtime could not.
    pub async fn stop_container(
        &self,
        id: &ContainerId,
        timeout: Duration,
    ) -> Result<(), RuntimeFailure> {
        // Rounded up: a container never gets less time than it was promised.
        let seconds = i64::try_from(timeout.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
        Ok(self.cri.stop_container(id, seconds).await?)
    }

    /// Stops a sandbox.
    ///
    /// # Errors
    ///
    /// The runtime could not.
    pub async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeFailure> {
        Ok(self.cri.stop_pod_sandbox(id).await?)
    }
}
