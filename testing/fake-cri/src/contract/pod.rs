//! A pod to check with, which is removed in the end whatever happens.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rubelet_cri::{CriClient, v1};
use rubelet_types::{ContainerId, SandboxId, labels};
use tokio::time::{Instant, sleep};

use super::{CheckError, CheckResult, ContractOptions};

/// How often a state is asked for that is waited for.
const POLL: Duration = Duration::from_millis(20);

/// Makes the uids of one process different.
static NEXT_POD: AtomicU32 = AtomicU32::new(0);

pub(super) struct Pod<'a> {
    pub(super) client: &'a CriClient,
    pub(super) options: &'a ContractOptions,
    pub(super) uid: String,
    pub(super) config: v1::PodSandboxConfig,
    pub(super) sandbox: SandboxId,
}

/// Fails with a text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::contract::CheckError::Expectation(format!($($text)+)));
        }
    };
}
pub(super) use ensure;

/// Runs a pod, then `check` with it, then removes the pod.
pub(super) async fn with_pod<'a, F>(
    client: &'a CriClient,
    options: &'a ContractOptions,
    check: impl FnOnce(Pod<'a>) -> F,
) -> CheckResult
where
    F: Future<Output = CheckResult> + Send,
{
    let number = NEXT_POD.fetch_add(1, Ordering::Relaxed);
    let uid = format!("contract-{}-{number}", std::process::id());
    let log_directory = options.log_directory.join(format!("default_{uid}_{uid}"));
    std::fs::create_dir_all(&log_directory)
        .map_err(|source| CheckError::Log { path: log_directory.clone(), source })?;
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: uid.clone(),
            uid: uid.clone(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: uid.clone(),
        log_directory: log_directory.display().to_string(),
        labels: pod_labels(&uid),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: options.cgroup_parent.clone(),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let sandbox = client.run_pod_sandbox(config.clone(), "").await?;
    let result = check(Pod { client, options, uid, config, sandbox: sandbox.clone() }).await;
    let stopped = client.stop_pod_sandbox(&sandbox).await;
    let removed = client.remove_pod_sandbox(&sandbox).await;
    let outcome = result?;
    stopped?;
    removed?;
    Ok(outcome)
}

fn pod_labels(uid: &str) -> BTreeMap<String, String> {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([
        label(labels::POD_NAME, uid),
        label(labels::POD_NAMESPACE, "default"),
        label(labels::POD_UID, uid),
    ])
}

/// A network and IPC of the pod's own, process ids of each container's own.
fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption { pid: v1::NamespaceMode::Container.into(), ..Default::default() }
}

impl Pod<'_> {
    pub(super) fn by_uid(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(labels::POD_UID.to_owned(), self.uid.clone())])
    }

    pub(super) fn container_config(
        &self,
        name: &str,
        attempt: u32,
        command: &[&str],
    ) -> v1::ContainerConfig {
        let mut container_labels = pod_labels(&self.uid);
        container_labels.insert(labels::CONTAINER_NAME.to_owned(), name.to_owned());
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt }),
            image: Some(v1::ImageSpec { image: self.options.image.clone(), ..Default::default() }),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            labels: container_labels,
            annotations: BTreeMap::from([(
                labels::CONTAINER_RESTART_COUNT.to_owned(),
                attempt.to_string(),
            )]),
            log_path: format!("{name}-{attempt}.log"),
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(v1::LinuxContainerResources {
                    cpu_shares: 102,
                    oom_score_adj: 1000,
                    ..Default::default()
                }),
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(namespaces()),
                    ..Default::default()
                }),
            }),
            ..Default::default()
        }
    }

    pub(super) async fn create_config(
        &self,
        config: v1::ContainerConfig,
    ) -> Result<ContainerId, CheckError> {
        Ok(self.client.create_container(&self.sandbox, config, self.config.clone()).await?)
    }

    pub(super) async fn create(
        &self,
        name: &str,
        command: &[&str],
    ) -> Result<ContainerId, CheckError> {
        self.create_config(self.container_config(name, 0, command)).await
    }

    pub(super) async fn start(
        &self,
        name: &str,
        command: &[&str],
    ) -> Result<ContainerId, CheckError> {
        let id = self.create(name, command).await?;
        self.client.start_container(&id).await?;
        Ok(id)
    }

    pub(super) async fn status(&self, id: &ContainerId) -> Result<v1::ContainerStatus, CheckError> {
        let answer = self.client.container_status(id, false).await?;
        answer.status.ok_or_else(|| CheckError::Expectation(format!("no status of {id}")))
    }

    /// Waits until the container is in `state`.
    pub(super) async fn wait_for(
        &self,
        id: &ContainerId,
        state: v1::ContainerState,
    ) -> Result<v1::ContainerStatus, CheckError> {
        let started = Instant::now();
        loop {
            let status = self.status(id).await?;
            if status.state == i32::from(state) {
                return Ok(status);
            }
            ensure!(
                started.elapsed() < self.options.patience,
                "container is in state {} and does not get into {}",
                status.state,
                state.as_str_name()
            );
            sleep(POLL).await;
        }
    }

    pub(super) fn log_path(&self, name: &str) -> PathBuf {
        PathBuf::from(&self.config.log_directory).join(format!("{name}-0.log"))
    }

    /// Waits until the log has a line that ends with `text`.
    pub(super) async fn wait_for_log(&self, path: PathBuf, text: &str) -> Result<(), CheckError> {
        let started = Instant::now();
        loop {
            let log = std::fs::read_to_string(&path);
            let found = |log: &String| log.lines().any(|line| line.ends_with(text));
            if log.as_ref().is_ok_and(found) {
                return Ok(());
            }
            if started.elapsed() >= self.options.patience {
                let log = log.map_err(|source| CheckError::Log { path, source })?;
                return Err(CheckError::Expectation(format!("{text:?} is not in the log {log:?}")));
            }
            sleep(POLL).await;
        }
    }
}
