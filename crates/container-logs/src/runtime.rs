use std::future::Future;
use std::path::PathBuf;

use rubelet_cri::{CriClient, CriError, CriErrorKind, Rpc, v1};
use rubelet_types::ContainerId;

/// What readers and the rotation ask of the container runtime.
pub trait LogRuntime: Clone + Send + Sync + 'static {
    /// The path of the container's log on the host.
    ///
    /// # Errors
    /// The runtime's, when it does not know the container or does not answer.
    fn log_path(&self, id: &ContainerId) -> impl Future<Output = Result<PathBuf, CriError>> + Send;

    /// Whether the container runs. While the runtime does not answer, containers are taken to run.
    fn is_running(&self, id: &ContainerId) -> impl Future<Output = bool> + Send;

    /// Has the runtime open the container's log anew under its path.
    ///
    /// # Errors
    /// The runtime's. After a deadline it may have done so, or do so later.
    fn reopen(&self, id: &ContainerId) -> impl Future<Output = Result<(), CriError>> + Send;
}

impl LogRuntime for CriClient {
    async fn log_path(&self, id: &ContainerId) -> Result<PathBuf, CriError> {
        let answer = self.container_status(id, false).await?;
        let path = answer.status.map(|status| status.log_path).unwrap_or_default();
        if path.is_empty() {
            let text = "the status has no log path";
            return Err(CriError::new(Rpc::ContainerStatus, CriErrorKind::Other, text));
        }
        Ok(PathBuf::from(path))
    }

    async fn is_running(&self, id: &ContainerId) -> bool {
        match self.container_status(id, false).await {
            Ok(answer) => answer.status.is_some_and(|status| {
                status.state == i32::from(v1::ContainerState::ContainerRunning)
            }),
            Err(error) => !error.is_not_found(),
        }
    }

    async fn reopen(&self, id: &ContainerId) -> Result<(), CriError> {
        self.reopen_container_log(id).await
    }
}
