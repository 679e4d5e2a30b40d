//! What a pod needs before anything of it can run: its directories, its cgroup and its volumes.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_container_manager::ContainerManagerError;
use rubelet_pod_lifecycle::ActionOutcome;
use rubelet_pod_workers::ActionOrder;
use rubelet_types::{EventObject, PodUid, error_chain};
use tokio_util::sync::CancellationToken;

use crate::executor::{Executor, failure_of};

impl Executor {
    pub(crate) async fn prepare(&self, order: &ActionOrder) -> ActionOutcome {
        let object = EventObject::Pod(order.pod_ref.clone());
        // Neither needs the other, and both take a while.
        let (dirs, cgroups) =
            tokio::join!(self.make_pod_dirs(&order.pod_ref.uid), self.ensure_cgroups(&order.pod));
        if let Err(error) = dirs {
            let message = format!("error making pod data directories: {error}");
            self.events.warning(object, "Failed", message.clone());
            return failure_of("", message, None);
        }
        if let Err(error) = cgroups {
            let message = format!("unable to ensure pod container exists: {}", error_chain(&error));
            self.events.warning(object, "FailedCreatePodContainer", message.clone());
            return failure_of("", message, None);
        }
        ActionOutcome::Done
    }

    pub(crate) async fn mount_volumes(
        &self,
        order: &ActionOrder,
        cancel: &CancellationToken,
    ) -> ActionOutcome {
        if let Some(objects) = &self.pod_objects {
            objects.register(&order.pod);
        }
        let ready = self.volumes.wait_for_pod_volumes(&order.pod);
        match cancel.run_until_cancelled(ready).await {
            None => ActionOutcome::Cancelled,
            Some(Ok(volumes)) => {
                self.set_ready_volumes(order.pod_ref.uid.clone(), Arc::new(volumes));
                ActionOutcome::Done
            }
            Some(Err(error)) => {
                // Who waits for an object waits where its appearance is noticed.
                let delay =
                    if error.awaits_object() { Some(Duration::ZERO) } else { error.retry_after() };
                let retry_at = delay.and_then(|delay| self.clock.now().checked_add(delay).ok());
                failure_of("", error.to_string(), retry_at)
            }
        }
    }

    /// The pod's cgroup, and those of the tiers, which weigh what their pods ask for, this one now
    /// among them.
    async fn ensure_cgroups(&self, pod: &Pod) -> Result<(), ContainerManagerError> {
        let active = self.active_pods();
        let tiers = self.container_manager.update_qos_cgroups(active.iter().map(AsRef::as_ref));
        if let Err(error) = tiers.await {
            tracing::warn!(pod = %rubelet_types::pod_ref(pod), error = &error as &dyn std::error::Error,
                "QoS cgroups not updated");
        }
        self.container_manager.ensure_pod_cgroup(pod).await.map(drop)
    }

    async fn make_pod_dirs(&self, uid: &PodUid) -> Result<(), String> {
        let dirs = [
            self.paths.pod_dir(uid),
            self.paths.pod_volumes_dir(uid),
            self.paths.pod_plugins_dir(uid),
        ];
        let made = tokio::task::spawn_blocking(move || {
            dirs.iter()
                .try_for_each(|dir| DirBuilder::new().recursive(true).mode(0o750).create(dir))
        });
        made.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}
