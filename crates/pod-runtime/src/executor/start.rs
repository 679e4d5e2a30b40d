//! Starting a container.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_cri::{CriError, observe, v1};
use rubelet_types::{
    ContainerId, ContainerSnapshot, ContainerSpec, EventObject, NodePaths, error_chain,
    find_container, is_host_network, pod_ref, reasons, termination_grace_seconds,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ContainerToStart, PodRuntime, container_object};
use crate::container_config::{ContainerConfigError, ContainerInputs, compute_container_config};
use crate::failure::{RuntimeFailure, blocking};
use crate::files;
use crate::hooks::{HookError, HookTarget};
use crate::hosts_file::render_hosts_file;
use crate::mounts::PreparedMount;
use crate::node_security::NodeSecurity;
use crate::security::check_run_as_non_root;
use crate::turns::Start;

const HOSTS_FILE: &str = "/etc/hosts";

/// The least time between a container's stop signal and its kill signal.
const MINIMUM_GRACE: Duration = Duration::from_secs(2);

impl PodRuntime {
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
        let sandbox_id = start.sandbox_id.clone();
        let (id, log_path) = self.create_and_start(pod, &spec, &start, &object, cancel).await?;
        let told = async {
            self.run_post_start(pod, &spec, &start, &object, &id, cancel).await?;
            // It runs. If the runtime does not say so now, the next look will tell.
            let answer = self.cri.container_status(&id, false).await?;
            answer.status.ok_or_else(|| {
                RuntimeFailure::new("", format!("the runtime has no status of {id}"))
            })
        };
        // Nobody who waits for the container to run waits for the link.
        let link = self.link_log(pod, &start.name, &id, &log_path);
        let ((), status) = tokio::join!(link, told);
        Ok(observe::container_snapshot(&status?, Some(sandbox_id)))
    }

    /// Answers which container it is, and where its log is in the pod's directory of logs.
    async fn create_and_start(
        &self,
        pod: &Pod,
        spec: &ContainerSpec<'_>,
        start: &ContainerToStart,
        object: &EventObject,
        cancel: &CancellationToken,
    ) -> Result<(ContainerId, String), RuntimeFailure> {
        let name = &spec.container.name;
        let config = self.config(pod, spec, start).await.map_err(|message| {
            let reason = reasons::CREATE_CONTAINER_CONFIG_ERROR;
            self.failed(object, reason, message, None)
        })?;
        let log_path = config.log_path.clone();

        let turn = self.turn(Start::Container, cancel).await?;
        let created = self
            .cri
            .create_container(&start.sandbox_id, config, (*start.sandbox_config).clone())
            .await;
        let id = match created {
            Ok(id) => id,
            Err(error) => {
                self.remove_reserved(&error).await;
                let reason = reasons::CREATE_CONTAINER_ERROR;
                return Err(self.failed(object, reason, error.message, None));
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
            let reason = reasons::RUN_CONTAINER_ERROR;
            return Err(self.failed(object, reason, error.message, Some((&id, name))));
        }
        drop(turn);
        self.events.normal(object.clone(), "Started", "Container started");
        Ok((id, log_path))
    }

    /// Tells of a failed start. Messages of runtimes name containers by id; events, which are
    /// counted by their text, name them as people do.
    fn failed(
        &self,
        object: &EventObject,
        reason: &'static str,
        message: String,
        names: Option<(&ContainerId, &str)>,
    ) -> RuntimeFailure {
        let told = match names {
            Some((id, name)) => message.replace(id.as_str(), name),
            None => message.clone(),
        };
        self.events.warning(object.clone(), "Failed", format!("Error: {told}"));
        RuntimeFailure::new(reason, message)
    }

    async fn run_post_start(
        &self,
        pod: &Pod,
        spec: &ContainerSpec<'_>,
        start: &ContainerToStart,
        object: &EventObject,
        id: &ContainerId,
        cancel: &CancellationToken,
    ) -> Result<(), RuntimeFailure> {
        let container = &*spec.container;
        let Some(hook) = container.lifecycle.as_ref().and_then(|hooks| hooks.post_start.as_ref())
        else {
            return Ok(());
        };
        let pod_ref = pod_ref(pod);
        let pod_ip = start.pod_ips.first().map(String::as_str).unwrap_or_default();
        let target = HookTarget { pod: &pod_ref, id, container, pod_ip };
        let error = match self.hooks().run(hook, target, cancel).await {
            Ok(()) => return Ok(()),
            Err(HookError::Cancelled) => return Err(RuntimeFailure::cancelled()),
            Err(error) => error,
        };
        tracing::warn!(pod = %pod_ref, container = container.name, error = %error,
            "PostStart hook failed");
        self.events.warning(object.clone(), "FailedPostStartHook", "PostStartHook failed");
        self.events.normal(object.clone(), "Killing", "FailedPostStartHook");
        self.kill(pod, pod_ip, id, &container.name, cancel).await?;
        Err(RuntimeFailure::new(reasons::POST_START_HOOK_ERROR, error.to_string()))
    }

    /// Stops a container with the pod's grace, its preStop hook included. When that is cancelled,
    /// because the pod is stopped, whoever stops the pod goes on with it.
    async fn kill(
        &self,
        pod: &Pod,
        pod_ip: &str,
        id: &ContainerId,
        name: &str,
        cancel: &CancellationToken,
    ) -> Result<(), RuntimeFailure> {
        let grace = Duration::from_secs(u64::try_from(termination_grace_seconds(pod)).unwrap_or(0));
        let begun = Instant::now();
        self.run_pre_stop(pod, pod_ip, id, name, grace, cancel).await;
        let left = grace.saturating_sub(begun.elapsed()).max(MINIMUM_GRACE);
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(RuntimeFailure::cancelled()),
            stopped = self.stop_container(id, left) => {
                if let Err(failure) = stopped {
                    tracing::warn!(container = %id, error = failure.message,
                        "Could not kill a container whose PostStart hook failed");
                }
                Ok(())
            }
        }
    }

    /// Everything that the runtime needs to create a container. `Err` carries the text of a
    /// `CreateContainerConfigError`.
    async fn config(
        &self,
        pod: &Pod,
        spec: &ContainerSpec<'_>,
        start: &ContainerToStart,
    ) -> Result<v1::ContainerConfig, String> {
        let container = &*spec.container;
        let message = |failure: RuntimeFailure| failure.message;
        // Before any file is made under it.
        NodePaths::check_element(&container.name)
            .map_err(|error| error_chain(&ContainerConfigError::from(error)))?;
        if let Some(target) = spec.target.filter(|target| !target.is_empty())
            && start.target.is_none()
        {
            return Err(format!("unable to find target container {target}"));
        }
        check_run_as_non_root(pod, container, &start.image_user)
            .map_err(|error| error.to_string())?;
        let (mounts, restart_count) =
            self.prepare_files(pod, spec, start).await.map_err(message)?;
        let node = self.node_security().await.map_err(message)?;
        compute_container_config(
            ContainerInputs {
                pod,
                container,
                restart_count,
                image_ref: &start.image_ref,
                image_user: &start.image_user,
                target: start.target.as_ref(),
                environment: &start.environment,
                mounts: &mounts,
                allocation: &start.allocation,
                extra_groups: &start.sandbox.extra_groups,
                user_namespace: start.sandbox.user_namespace.as_ref(),
                resources: start.resources.clone(),
                seccomp_default: self.settings.seccomp_default,
                node_masked_paths: &node.masked_paths,
                selinux_enabled: node.selinux_enabled,
            },
            &self.paths,
        )
        .map_err(|error| error_chain(&error))
    }

    async fn node_security(&self) -> Result<&NodeSecurity, RuntimeFailure> {
        let observe = || Ok::<_, files::FileError>(NodeSecurity::observe());
        self.node_security.get_or_try_init(|| blocking(observe)).await
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
        let container = &*spec.container;
        let log_dir = self.paths.container_log_dir(&pod_ref, &container.name);
        let etc_hosts = self.paths.etc_hosts(&pod_ref.uid);
        let message_dir = self.paths.container_dir(&pod_ref.uid, &container.name);
        let hosts = self.hosts_file(pod, container, &start.pod_ips).await?;
        let message_path = container.termination_message_path.clone().unwrap_or_default();
        let known_count = start.restart_count;

        let hosts_place = hosts.as_ref().map(|_| etc_hosts.clone());
        let wants_message_file = !message_path.is_empty();
        let name = container.name.clone();
        let (restart_count, message_file) = blocking(move || {
            let count = known_count.unwrap_or_else(|| files::next_restart_count(&log_dir));
            files::ensure_dir(&log_dir, 0o755)?;
            if let Some(content) = hosts {
                files::write_hosts_file(&etc_hosts, &content)?;
            }
            let message_file = wants_message_file
                .then(|| files::create_termination_message_file(&message_dir))
                .and_then(|made| {
                    // The container can do without it.
                    made.inspect_err(|error| {
                        tracing::error!(pod = %pod_ref, container = name, error = %error,
                            "Could not create the termination message file");
                    })
                    .ok()
                });
            Ok::<_, files::FileError>((count, message_file))
        })
        .await?;

        let own_mount = |host_path: PathBuf, container_path: &str| PreparedMount {
            host_path: host_path.to_string_lossy().into_owned(),
            container_path: container_path.to_owned(),
            selinux_relabel: true,
            ..PreparedMount::default()
        };
        let mut mounts = start.mounts.clone();
        mounts.extend(hosts_place.map(|place| own_mount(place, HOSTS_FILE)));
        let absolute = Path::new("/").join(&message_path);
        mounts.extend(message_file.map(|file| own_mount(file, &absolute.to_string_lossy())));
        Ok((mounts, restart_count))
    }

    /// What to write into the pod's hosts file; none if the container brings its own, or the pod
    /// has no address yet.
    async fn hosts_file(
        &self,
        pod: &Pod,
        container: &Container,
        pod_ips: &[String],
    ) -> Result<Option<String>, RuntimeFailure> {
        let brings_its_own = container
            .volume_mounts
            .iter()
            .flatten()
            .any(|mount| mount.mount_path.trim_end_matches('/') == HOSTS_FILE);
        let host_network = is_host_network(pod);
        if brings_its_own || (!host_network && pod_ips.is_empty()) {
            return Ok(None);
        }
        let node_file = if host_network {
            blocking(|| files::read_node_file(Path::new(HOSTS_FILE))).await?
        } else {
            String::new()
        };
        render_hosts_file(pod, pod_ips, &self.settings.cluster_domain, &node_file)
            .map(Some)
            .map_err(|error| RuntimeFailure::new("", error.to_string()))
    }

    /// A create call that timed out may leave a container that holds the name; the runtime names it
    /// when it refuses the next one. It was never started, so it can go.
    async fn remove_reserved(&self, error: &CriError) {
        let Some(id) = reserved_id(&error.message) else { return };
        match self.cri.container_status(&id, false).await {
            Ok(answer)
                if answer.status.as_ref().is_some_and(|status| {
                    status.state == i32::from(v1::ContainerState::ContainerCreated)
                }) =>
            {
                tracing::info!(container = %id,
                    "Removing the container that a timed-out creation left");
                if let Err(error) = self.cri.remove_container(&id).await {
                    tracing::warn!(container = %id, error = %error, "Could not remove it");
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::info!(container = %id, error = %error,
                    "The name is still being given away");
            }
        }
    }

    async fn link_log(&self, pod: &Pod, container: &str, id: &ContainerId, log_path: &str) {
        let pod_ref = pod_ref(pod);
        let link = files::log_link(&self.paths, &pod_ref, container, id);
        let log = self.paths.pod_log_dir(&pod_ref).join(log_path);
        if let Err(failure) = blocking(move || files::link_log(&link, &log)).await {
            tracing::warn!(pod = %pod_ref, container, error = failure.message,
                "Could not link the log");
        }
    }
}

/// The id in `... name "x" is reserved for "<id>"`.
fn reserved_id(message: &str) -> Option<ContainerId> {
    let (_, rest) = message.split_once("is reserved for \"")?;
    let (id, _) = rest.split_once('"')?;
    (!id.is_empty()).then(|| ContainerId::new(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_reserved_name_is_found_in_the_runtimes_message() {
        let message = "failed to reserve container name \"c_p_ns_u_0\": name \"c_p_ns_u_0\" is \
                       reserved for \"4f53\"";
        assert_eq!(reserved_id(message), Some(ContainerId::new("4f53")));
        assert_eq!(reserved_id("something else"), None);
        assert_eq!(reserved_id("name \"x\" is reserved for \"\""), None);
    }
}
