//! What the sandbox of a pod is made with, beside the pod itself.

use k8s_openapi::api::core::v1::Pod;
use rubelet_container_manager::ContainerManagerError;
use rubelet_pod_runtime::{SandboxToCreate, UserNamespace};
use rubelet_types::error_chain;

use crate::executor::Executor;
use crate::runtime_classes::look_up_runtime_handler;

impl Executor {
    /// The pod's sandbox, of which `attempt` is the number.
    ///
    /// # Errors
    /// With the text that users read.
    pub(crate) async fn sandbox_to_create(
        &self,
        pod: &Pod,
        attempt: u32,
    ) -> Result<SandboxToCreate, String> {
        let manager = &self.container_manager;
        let text = |error: ContainerManagerError| error_chain(&error);
        let runtime_handler = look_up_runtime_handler(pod, self.runtime_classes.as_ref()).await?;
        Ok(SandboxToCreate {
            attempt,
            cgroup_parent: manager.pod_cgroup_parent(pod).map_err(text)?,
            resources: Some(manager.sandbox_resources(pod, false).map_err(text)?),
            overhead: Some(manager.sandbox_overhead(pod).map_err(text)?),
            extra_groups: self.volumes_of(pod).extra_groups.clone(),
            user_namespace: self.user_namespace(pod, &runtime_handler).await?,
            runtime_handler,
        })
    }

    /// The ids of a pod that asked for its own; none for all others.
    async fn user_namespace(
        &self,
        pod: &Pod,
        handler: &str,
    ) -> Result<Option<UserNamespace>, String> {
        if pod.spec.as_ref().and_then(|spec| spec.host_users) != Some(false) {
            return Ok(None);
        }
        let pod = rubelet_types::pod_ref(pod);
        let name = pod.to_string();
        let failed =
            |reason: String| format!("GeneratePodSandboxConfig for pod {name:?} failed: {reason}");
        let can = self.runtime_state.borrow().features();
        can.check_user_namespaces(handler).map_err(failed)?;
        let users = self.user_namespaces.ensure(&pod.uid).await;
        users.map(Some).map_err(|error| failed(error_chain(&error)))
    }
}
