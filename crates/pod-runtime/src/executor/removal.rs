//! Removing what pods leave behind.

use std::path::PathBuf;

use rubelet_cri::{CriError, observe, v1};
use rubelet_types::{
    ContainerId, ContainerSnapshot, ContainerState, NodePaths, PodRef, PodSnapshot, PodUid,
    SandboxId,
};

use super::PodRuntime;
use crate::failure::{RuntimeFailure, blocking};
use crate::files;
use crate::sandbox_config::check_pod_names;
use crate::termination_message::message_file;

impl PodRuntime {
    /// Removes a dead container, the file of its termination message, and its logs unless `keep_log`.
    /// The logs go first: once the container is gone nobody comes back for them.
    ///
    /// One that `snapshot` shows as created is looked at once more. Whoever created it may have had it
    /// started and died meanwhile; when that start succeeds or fails after the snapshot, the container
    /// ran, and with it would go the only record of that.
    ///
    /// # Errors
    ///
    /// The runtime or the file system could not, or the container is no longer only created.
    pub async fn remove_container(
        &self,
        pod: &PodRef,
        snapshot: &PodSnapshot,
        id: &ContainerId,
        keep_log: bool,
    ) -> Result<(), RuntimeFailure> {
        // What the runtime's labels say of foreign containers makes no paths.
        let found = snapshot.containers.iter().find(|container| {
            container.id == *id
                && check_pod_names(pod).is_ok()
                && NodePaths::check_element(&container.name).is_ok()
        });
        if found.is_some_and(|container| container.state == ContainerState::Created) {
            self.ensure_only_created(id).await?;
        }
        if let Some(container) = found.filter(|_| !keep_log) {
            let log = self
                .paths
                .container_log_dir(pod, &container.name)
                .join(format!("{}.log", container.restart_count));
            let link = files::log_link(&self.paths, pod, &container.name, id);
            blocking(move || files::remove_container_logs(&log, &link)).await?;
        }
        self.cri.remove_container(id).await?;
        if let Some(file) = found.and_then(|container| self.termination_file(pod, container)) {
            blocking(move || files::remove_if_there(&file)).await?;
        }
        Ok(())
    }

    async fn ensure_only_created(&self, id: &ContainerId) -> Result<(), RuntimeFailure> {
        let status = match self.cri.container_status(id, false).await {
            Ok(answer) => answer.status,
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error.into()),
        };
        match status {
            Some(status) if status.state() != v1::ContainerState::ContainerCreated => {
                let message = format!("container {id} was started meanwhile");
                Err(RuntimeFailure::new("", message))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The file that a kubelet made for the container's termination message.
    fn termination_file(&self, pod: &PodRef, container: &ContainerSnapshot) -> Option<PathBuf> {
        let file = message_file(container)?;
        let ours = self.paths.container_dir(&pod.uid, &container.name);
        (file.parent() == Some(ours.as_path())).then(|| file.to_owned())
    }

    /// Removes logs of pods that `keep` does not know, which no worker is there to remove: those of
    /// pods that ended while no kubelet ran.
    ///
    /// # Errors
    ///
    /// The file system could not.
    pub async fn remove_orphaned_logs(
        &self,
        keep: impl Fn(&PodUid) -> bool + Send + 'static,
    ) -> Result<(), RuntimeFailure> {
        let paths = self.paths.clone();
        let removed = blocking(move || files::remove_orphaned_logs(&paths, keep)).await?;
        if removed > 0 {
            tracing::info!(removed, "Removed orphaned pod log directories");
        }
        Ok(())
    }

    /// Removes a sandbox that nobody uses any more, and stops it before: a runtime removes none
    /// whose network is still up.
    ///
    /// # Errors
    ///
    /// The runtime could not.
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeFailure> {
        self.cri.stop_pod_sandbox(id).await?;
        Ok(self.cri.remove_pod_sandbox(id).await?)
    }

    /// Removes everything the runtime holds of a pod that nobody wants any more, and its logs.
    ///
    /// # Errors
    ///
    /// Something could not be removed; all else is gone.
    pub async fn remove_pod(&self, pod: &PodRef) -> Result<(), RuntimeFailure> {
        let snapshot = observe::pod_snapshot(&self.cri, pod, None, &self.clock).await?;
        let mut result: Result<(), CriError> = Ok(());
        for container in &snapshot.containers {
            result = result.and(self.cri.remove_container(&container.id).await);
        }
        for sandbox in &snapshot.sandboxes {
            let removed = match self.cri.stop_pod_sandbox(&sandbox.id).await {
                Ok(()) => self.cri.remove_pod_sandbox(&sandbox.id).await,
                Err(error) => Err(error),
            };
            result = result.and(removed);
        }
        self.messages.forget(&pod.uid);
        // Whatever still runs goes on writing its logs.
        result?;
        if check_pod_names(pod).is_err() {
            return Ok(());
        }
        let (paths, pod) = (self.paths.clone(), pod.clone());
        blocking(move || files::remove_pod_logs(&paths, &pod)).await
    }
}
