use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_container_http::ContainerClient;
use rubelet_cri::{CriClient, CriError, observe, v1};
use rubelet_node_resources::LinuxResources;
use rubelet_types::{
    Clock, ContainerId, ContainerSnapshot, ContainerSpec, EventObject, EventRecorder, NodePaths,
    PodRef, PodSnapshot, ResourceAmounts, SandboxId, SandboxSnapshot, find_container, pod_ref,
    reasons,
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::container_config::{
    ContainerInputs, ImageUser, PreparedMount, compute_container_config,
};
use crate::dns::{ResolvConf, compute_dns};
use crate::environment::{EnvironmentFacts, compute_environment};
use crate::files;
use crate::hooks::{HookError, HookTarget, run_hook};
use crate::hosts_file::render_hosts_file;
use crate::sandbox_config::{SandboxInputs, compute_sandbox_config};
use crate::security::check_run_as_non_root;
use crate::settings::PodRuntimeSettings;
use crate::termination_message::TerminationMessages;

/// Why an operation on a pod failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeFailure {
    /// The Kubernetes reason; empty where there is none.
    pub reason: &'static str,
    /// The text that users read.
    pub message: String,
    /// It was cancelled, and is no failure of the pod's.
    pub cancelled: bool,
}

impl RuntimeFailure {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), cancelled: false }
    }

    fn cancelled() -> Self {
        Self { reason: "", message: "cancelled".to_owned(), cancelled: true }
    }
}

impl From<CriError> for RuntimeFailure {
    fn from(error: CriError) -> Self {
        Self::new("", error.to_string())
    }
}

/// What a sandbox needs beside the pod.
#[derive(Clone, Debug)]
pub struct SandboxToCreate {
    /// Number of the sandbox.
    pub attempt: u32,
    /// The pod's cgroup as the runtime takes it.
    pub cgroup_parent: String,
    /// Sum of the containers' resources.
    pub resources: Option<LinuxResources>,
    /// The RuntimeClass's overhead.
    pub overhead: Option<LinuxResources>,
}

/// What a container needs beside its spec.
#[derive(Clone, Debug)]
pub struct ContainerToStart {
    /// The container's name.
    pub name: String,
    /// Its sandbox.
    pub sandbox: SandboxToCreate,
    /// The sandbox's id.
    pub sandbox_id: SandboxId,
    /// Restart count; `None` continues after the logs that are there.
    pub restart_count: Option<u32>,
    /// The instance whose process namespace it joins.
    pub target: Option<ContainerId>,
    /// The image's reference in the runtime.
    pub image_ref: String,
    /// The user the image runs as.
    pub image_user: ImageUser,
    /// Its volumes, ready on the node.
    pub mounts: Vec<PreparedMount>,
    /// Its resources.
    pub resources: LinuxResources,
    /// The pod's addresses.
    pub pod_ips: Vec<String>,
    /// The node's addresses.
    pub host_ips: Vec<String>,
    /// What the node can give.
    pub allocatable: ResourceAmounts,
}

/// Carries out what is due for pods on the runtime. Cheap to share.
#[derive(Debug)]
pub struct PodRuntime {
    cri: CriClient,
    http: ContainerClient,
    paths: NodePaths,
    settings: PodRuntimeSettings,
    events: EventRecorder,
    clock: Clock,
    starts: Semaphore,
    messages: TerminationMessages,
    node_masked_paths: Vec<String>,
    resolv_conf: Option<PathBuf>,
}

const NODE_HOSTS_FILE: &str = "/etc/hosts";

impl PodRuntime {
    /// A runtime that reads the node's resolver configuration from `resolv_conf`, if any.
    pub fn new(
        cri: CriClient,
        http: ContainerClient,
        paths: NodePaths,
        settings: PodRuntimeSettings,
        resolv_conf: Option<PathBuf>,
        events: EventRecorder,
        clock: Clock,
    ) -> Self {
        Self {
            cri,
            http,
            paths,
            starts: Semaphore::new(settings.concurrent_starts.max(1)),
            settings,
            events,
            clock,
            messages: TerminationMessages::default(),
            node_masked_paths: thermal_throttle_paths(),
            resolv_conf,
        }
    }

    /// Reads all the runtime holds of a pod, termination messages included.
    ///
    /// # Errors
    ///
    /// The runtime did not answer; with the text of the failure.
    pub async fn inspect(self: &Arc<Self>, pod: &PodRef) -> Result<PodSnapshot, CriError> {
        let mut snapshot = observe::pod_snapshot(&self.cri, pod, &self.clock).await?;
        if snapshot.containers.iter().all(|container| container.exit_code().is_none()) {
            return Ok(snapshot);
        }
        let this = self.clone();
        let without_messages = snapshot.clone();
        let filled = tokio::task::spawn_blocking(move || {
            this.messages.fill(&mut snapshot, &this.paths);
            snapshot
        });
        Ok(filled.await.unwrap_or(without_messages))
    }

    /// Creates and starts a sandbox, and tells what became of it.
    ///
    /// # Errors
    ///
    /// The runtime refused, or it was cancelled before the runtime was asked.
    pub async fn create_sandbox(
        &self,
        pod: &Pod,
        sandbox: SandboxToCreate,
        cancel: &CancellationToken,
    ) -> Result<SandboxSnapshot, RuntimeFailure> {
        let object = EventObject::Pod(pod_ref(pod));
        let result = self.try_create_sandbox(pod, sandbox, cancel).await;
        if let Err(failure) = &result
            && !failure.cancelled
        {
            self.events.warning(
                object,
                "FailedCreatePodSandBox",
                format!("Failed to create pod sandbox: {}", failure.message),
            );
        }
        result
    }

    async fn try_create_sandbox(
        &self,
        pod: &Pod,
        sandbox: SandboxToCreate,
        cancel: &CancellationToken,
    ) -> Result<SandboxSnapshot, RuntimeFailure> {
        let config = self.sandbox_config(pod, sandbox, true).await?;
        let log_dir = self.paths.pod_log_dir(&pod_ref(pod));
        blocking(move || files::ensure_dir(&log_dir, 0o755)).await?;
        let _permit = self.permit(cancel).await?;
        let id = self.cri.run_pod_sandbox(config, "").await?;
        let answer = self.cri.pod_sandbox_status(&id, false).await?;
        let status = answer
            .status
            .ok_or_else(|| RuntimeFailure::new("", format!("the runtime has no status of {id}")))?;
        Ok(observe::sandbox_snapshot(&status))
    }

    async fn sandbox_config(
        &self,
        pod: &Pod,
        sandbox: SandboxToCreate,
        tell: bool,
    ) -> Result<v1::PodSandboxConfig, RuntimeFailure> {
        let host = match self.resolv_conf.clone() {
            Some(path) => {
                let text = blocking(move || std::fs::read_to_string(path)).await?;
                ResolvConf::parse(&text)
            }
            None => ResolvConf::default(),
        };
        let (dns, warnings) = compute_dns(pod, &self.settings.dns, &host);
        if tell {
            for warning in warnings {
                let object = EventObject::Pod(pod_ref(pod));
                self.events.warning(object, warning.reason, warning.message);
            }
        }
        compute_sandbox_config(
            SandboxInputs {
                pod,
                attempt: sandbox.attempt,
                cgroup_parent: &sandbox.cgroup_parent,
                dns,
                resources: sandbox.resources,
                overhead: sandbox.overhead,
            },
            &self.settings,
            &self.paths,
        )
        .map_err(|error| RuntimeFailure::new("", error.to_string()))
    }

    /// Creates and starts a container, runs its postStart hook, and tells what became of it.
    ///
    /// # Errors
    ///
    /// Carries the reason that status shows. A container whose postStart hook failed was killed.
    pub async fn start_container(
        &self,
        pod: &Pod,
        start: ContainerToStart,
        cancel: &CancellationToken,
    ) -> Result<ContainerSnapshot, RuntimeFailure> {
        let Some(spec) = find_container(pod, &start.name) else {
            return Err(RuntimeFailure::new(
                reasons::CREATE_CONTAINER_CONFIG_ERROR,
                format!("container {} is not in the pod's spec", start.name),
            ));
        };
        let object = container_object(pod, &spec);
        let result = self.try_start_container(pod, &spec, start, &object, cancel).await;
        if let Err(failure) = &result
            && !failure.cancelled
            && failure.reason != reasons::POST_START_HOOK_ERROR
        {
            self.events.warning(object, "Failed", format!("Error: {}", failure.message));
        }
        result
    }

    async fn try_start_container(
        &self,
        pod: &Pod,
        spec: &ContainerSpec<'_>,
        start: ContainerToStart,
        object: &EventObject,
        cancel: &CancellationToken,
    ) -> Result<ContainerSnapshot, RuntimeFailure> {
        let container = &*spec.container;
        let sandbox_id = start.sandbox_id.clone();
        let sandbox_config = self.sandbox_config(pod, start.sandbox.clone(), false).await?;
        let config = self.container_config(pod, spec, &start).await?;
        let restart_count = config.metadata.as_ref().map_or(0, |metadata| metadata.attempt);

        let permit = self.permit(cancel).await?;
        let created = self.cri.create_container(&sandbox_id, config, sandbox_config).await;
        let id = match created {
            Ok(id) => id,
            Err(error) => {
                self.remove_reserved(&error).await;
                return Err(RuntimeFailure::new(
                    reasons::CREATE_CONTAINER_ERROR,
                    error.to_string(),
                ));
            }
        };
        self.events.normal(object.clone(), "Created", "Container created");
        if cancel.is_cancelled() {
            if let Err(error) = self.cri.remove_container(&id).await {
                tracing::warn!(container = %id, error = %error,
                    "Could not remove a container whose start was cancelled");
            }
            return Err(RuntimeFailure::cancelled());
        }
        if let Err(error) = self.cri.start_container(&id).await {
            return Err(RuntimeFailure::new(
                reasons::RUN_CONTAINER_ERROR,
                without_id(&error.to_string(), &id, &container.name),
            ));
        }
        drop(permit);
        self.events.normal(object.clone(), "Started", "Container started");
        self.link_log(pod, &container.name, &id, restart_count).await;

        if let Some(hook) = container.lifecycle.as_ref().and_then(|hooks| hooks.post_start.as_ref())
        {
            let target = HookTarget {
                id: &id,
                container,
                pod_ip: start.pod_ips.first().map(String::as_str).unwrap_or_default(),
                object: EventObject::Pod(pod_ref(pod)),
            };
            match run_hook(&self.cri, &self.http, &self.events, hook, target, cancel).await {
                Ok(()) => {}
                Err(HookError::Cancelled) => return Err(RuntimeFailure::cancelled()),
                Err(error) => {
                    return Err(self.post_start_failed(pod, object, &id, spec, &error).await);
                }
            }
        }
        let answer = self.cri.container_status(&id, false).await?;
        let status = answer
            .status
            .ok_or_else(|| RuntimeFailure::new("", format!("the runtime has no status of {id}")))?;
        Ok(observe::container_snapshot(&status, Some(sandbox_id)))
    }

    async fn post_start_failed(
        &self,
        pod: &Pod,
        object: &EventObject,
        id: &ContainerId,
        spec: &ContainerSpec<'_>,
        error: &HookError,
    ) -> RuntimeFailure {
        tracing::warn!(pod = %pod_ref(pod), container = spec.container.name, error = %error,
            "PostStart hook failed");
        self.events.warning(object.clone(), "FailedPostStartHook", "PostStartHook failed");
        self.events.normal(object.clone(), "Killing", "FailedPostStartHook");
        let grace = rubelet_types::termination_grace_seconds(pod);
        if let Err(error) = self.cri.stop_container(id, grace).await {
            tracing::warn!(container = %id, error = %error,
                "Could not kill a container whose PostStart hook failed");
        }
        RuntimeFailure::new(reasons::POST_START_HOOK_ERROR, "PostStartHook failed")
    }

    async fn container_config(
        &self,
        pod: &Pod,
        spec: &ContainerSpec<'_>,
        start: &ContainerToStart,
    ) -> Result<v1::ContainerConfig, RuntimeFailure> {
        let container = &*spec.container;
        let config_error =
            |message: String| RuntimeFailure::new(reasons::CREATE_CONTAINER_CONFIG_ERROR, message);
        check_run_as_non_root(pod, container, &start.image_user)
            .map_err(|error| config_error(error.to_string()))?;
        let facts = EnvironmentFacts {
            pod_ips: &start.pod_ips,
            host_ips: &start.host_ips,
            node_name: &self.settings.node_name,
            allocatable: &start.allocatable,
        };
        let environment = compute_environment(pod, container, &facts)
            .map_err(|error| config_error(error.to_string()))?;
        let (mounts, restart_count) = self
            .prepare_files(pod, spec, start)
            .await
            .map_err(|failure| config_error(failure.message))?;
        compute_container_config(
            ContainerInputs {
                pod,
                container,
                restart_count,
                image_ref: &start.image_ref,
                image_user: &start.image_user,
                target: start.target.as_ref(),
                environment: &environment,
                mounts: &mounts,
                resources: start.resources.clone(),
                seccomp_default: self.settings.seccomp_default,
                node_masked_paths: &self.node_masked_paths,
            },
            &self.paths,
        )
        .map_err(|error| config_error(error.to_string()))
    }

    /// Log directory, hosts file and termination message file; answers the mounts and the restart
    /// count.
    async fn prepare_files(
        &self,
        pod: &Pod,
        spec: &ContainerSpec<'_>,
        start: &ContainerToStart,
    ) -> Result<(Vec<PreparedMount>, u32), RuntimeFailure> {
        let pod_ref = pod_ref(pod);
        let container = spec.container.clone().into_owned();
        let log_dir = self.paths.container_log_dir(&pod_ref, &container.name);
        let etc_hosts = self.paths.etc_hosts(&pod_ref.uid);
        let message_dir = files::termination_dir(&self.paths, &pod_ref.uid, &container.name);
        let mut mounts = start.mounts.clone();
        let host_network = rubelet_types::is_host_network(pod);
        let taken = |path: &str| {
            container
                .volume_mounts
                .iter()
                .flatten()
                .any(|m| m.mount_path.trim_end_matches('/') == path)
        };
        let manage_hosts = (host_network || !start.pod_ips.is_empty()) && !taken(NODE_HOSTS_FILE);
        let hosts = if manage_hosts {
            let node_file = if host_network {
                blocking(|| std::fs::read_to_string(NODE_HOSTS_FILE)).await?
            } else {
                String::new()
            };
            let domain = &self.settings.cluster_domain;
            Some(render_hosts_file(pod, &start.pod_ips, domain, &node_file))
        } else {
            None
        };
        let known_count = start.restart_count;
        let message_path = container.termination_message_path.clone().unwrap_or_default();
        let (restart_count, message_file) = blocking(move || {
            let count = known_count.unwrap_or_else(|| files::next_restart_count(&log_dir));
            files::ensure_dir(&log_dir, 0o755)?;
            if let Some(content) = hosts {
                files::write_hosts_file(&etc_hosts, &content)?;
            }
            let message_file = if message_path.is_empty() {
                None
            } else {
                Some((files::create_termination_message_file(&message_dir)?, message_path))
            };
            Ok::<_, files::FileError>((count, message_file))
        })
        .await?;
        let own_mount = |host_path: PathBuf, container_path: String| PreparedMount {
            host_path: host_path.to_string_lossy().into_owned(),
            container_path,
            read_only: false,
            recursive_read_only: false,
            propagation: v1::MountPropagation::PropagationPrivate,
            selinux_relabel: true,
        };
        if manage_hosts {
            let path = self.paths.etc_hosts(&pod_ref.uid);
            mounts.push(own_mount(path, NODE_HOSTS_FILE.to_owned()));
        }
        if let Some((file, path)) = message_file {
            mounts.push(own_mount(file, path));
        }
        Ok((mounts, restart_count))
    }

    /// A create call that timed out may leave a container that holds the name; the runtime names it
    /// when it refuses the next one. It was never started, so it can go.
    async fn remove_reserved(&self, error: &CriError) {
        let Some(id) = reserved_id(&error.to_string()) else { return };
        match self.cri.container_status(&id, false).await {
            Ok(answer)
                if answer.status.as_ref().is_some_and(|status| {
                    status.state == i32::from(v1::ContainerState::ContainerCreated)
                }) =>
            {
                tracing::info!(container = %id, "Removing the container that a timed-out creation left");
                if let Err(error) = self.cri.remove_container(&id).await {
                    tracing::warn!(container = %id, error = %error, "Could not remove it");
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::info!(container = %id, error = %error, "The name is still being given away");
            }
        }
    }

    async fn link_log(&self, pod: &Pod, container: &str, id: &ContainerId, restart_count: u32) {
        let pod_ref = pod_ref(pod);
        let link = files::log_link(&self.paths, &pod_ref, container, id);
        let log =
            self.paths.container_log_dir(&pod_ref, container).join(format!("{restart_count}.log"));
        if let Err(failure) = blocking(move || files::link_log(&link, &log)).await {
            tracing::warn!(pod = %pod_ref, container, error = failure.message, "Could not link the log");
        }
    }

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
        let target = HookTarget {
            id,
            container: &spec.container,
            pod_ip,
            object: EventObject::Pod(pod_ref(pod)),
        };
        let run = run_hook(&self.cri, &self.http, &self.events, hook, target, cancel);
        match tokio::time::timeout(budget, run).await {
            Ok(Ok(()) | Err(HookError::Cancelled)) => {}
            Ok(Err(error)) => {
                tracing::warn!(pod = %pod_ref(pod), container = name, error = %error,
                    "PreStop hook failed");
                let object = container_object(pod, &spec);
                self.events.warning(object, "FailedPreStopHook", "PreStopHook failed");
            }
            Err(_) => {
                tracing::info!(pod = %pod_ref(pod), container = name,
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

    /// Removes a dead container and its logs.
    ///
    /// # Errors
    ///
    /// The runtime or the file system could not.
    pub async fn remove_container(
        &self,
        pod: &PodRef,
        snapshot: &PodSnapshot,
        id: &ContainerId,
    ) -> Result<(), RuntimeFailure> {
        self.cri.remove_container(id).await?;
        if let Some(container) = snapshot.containers.iter().find(|container| container.id == *id) {
            let log = self
                .paths
                .container_log_dir(pod, &container.name)
                .join(format!("{}.log", container.restart_count));
            let link = files::log_link(&self.paths, pod, &container.name, id);
            blocking(move || files::remove_container_logs(&log, &link)).await?;
        }
        self.messages.retain(|known| known != id);
        Ok(())
    }

    /// Stops a sandbox.
    ///
    /// # Errors
    ///
    /// The runtime could not.
    pub async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeFailure> {
        Ok(self.cri.stop_pod_sandbox(id).await?)
    }

    /// Removes a stopped sandbox.
    ///
    /// # Errors
    ///
    /// The runtime could not.
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeFailure> {
        Ok(self.cri.remove_pod_sandbox(id).await?)
    }

    /// Removes everything the runtime holds of a pod that nobody wants any more, and its logs.
    ///
    /// # Errors
    ///
    /// Something could not be removed; what was removed stays removed.
    pub async fn remove_pod(&self, pod: &PodRef) -> Result<(), RuntimeFailure> {
        let snapshot = observe::pod_snapshot(&self.cri, pod, &self.clock).await?;
        for container in &snapshot.containers {
            self.cri.remove_container(&container.id).await?;
        }
        for sandbox in &snapshot.sandboxes {
            self.cri.remove_pod_sandbox(&sandbox.id).await?;
        }
        let gone: Vec<_> = snapshot.containers.iter().map(|container| &container.id).collect();
        self.messages.retain(|known| !gone.contains(&known));
        let (paths, pod) = (self.paths.clone(), pod.clone());
        blocking(move || files::remove_pod_logs(&paths, &pod)).await
    }

    async fn permit(
        &self,
        cancel: &CancellationToken,
    ) -> Result<tokio::sync::SemaphorePermit<'_>, RuntimeFailure> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(RuntimeFailure::cancelled()),
            permit = self.starts.acquire() => permit.map_err(|_| RuntimeFailure::cancelled()),
        }
    }
}

fn container_object(pod: &Pod, spec: &ContainerSpec<'_>) -> EventObject {
    EventObject::Container { pod: pod_ref(pod), field_path: spec.field_path() }
}

/// Runtimes name containers by id, people by name.
fn without_id(message: &str, id: &ContainerId, name: &str) -> String {
    message.replace(&format!("{:?}", id.as_str()), name).replace(id.as_str(), name)
}

/// The id in `... name "x" is reserved for "<id>"`.
fn reserved_id(message: &str) -> Option<ContainerId> {
    let (_, rest) = message.split_once("is reserved for \"")?;
    let (id, _) = rest.split_once('"')?;
    (!id.is_empty()).then(|| ContainerId::new(id))
}

/// Files that tell of the load of the whole machine.
fn thermal_throttle_paths() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/devices/system/cpu") else { return Vec::new() };
    let mut found: Vec<String> = entries
        .flatten()
        .filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| {
                name.strip_prefix("cpu").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
            })
        })
        .map(|entry| entry.path().join("thermal_throttle"))
        .filter(|path| path.exists())
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    found.sort();
    found
}

/// Runs file system work where it may block.
async fn blocking<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, RuntimeFailure>
where
    T: Send + 'static,
    E: std::error::Error + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(RuntimeFailure::new("", describe(&error))),
        Err(_) => Err(RuntimeFailure::new("", "internal error: file system work panicked")),
    }
}

fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_reserved_name_is_found_in_the_runtimes_message() {
        let message = "rpc error: code = Unknown desc = failed to reserve container name \
                       \"c_p_ns_u_0\": name \"c_p_ns_u_0\" is reserved for \"4f53\"";
        assert_eq!(reserved_id(message), Some(ContainerId::new("4f53")));
        assert_eq!(reserved_id("something else"), None);
    }

    #[test]
    fn ids_in_messages_become_names() {
        let id = ContainerId::new("4f53");
        assert_eq!(
            without_id("task \"4f53\" failed in 4f53", &id, "web"),
            "task web failed in web"
        );
    }
}
