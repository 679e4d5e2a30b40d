//! Everything the runtime holds, and the rules by which it changes. No waiting happens here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rubelet_cri::v1;
use rubelet_types::labels;
use tokio::sync::{mpsc, watch};
use tonic::{Code, Status};

use crate::images::Images;
use crate::inspect::Violation;
use crate::process::{ContainerLog, Exit, Signal};
use crate::script::{ExecAnswer, Script};
use crate::{FakeOptions, ScriptMatch};

#[derive(Debug)]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) config: v1::PodSandboxConfig,
    pub(crate) runtime_handler: String,
    pub(crate) ready: bool,
    pub(crate) created_at: i64,
    pub(crate) ip: Option<Ipv4Addr>,
    pub(crate) resources: Option<v1::LinuxContainerResources>,
    pub(crate) overhead: Option<v1::LinuxContainerResources>,
}

/// The process of a running container, as others see it.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) signals: mpsc::Sender<Signal>,
    pub(crate) ended: watch::Receiver<bool>,
}

#[derive(Debug)]
pub(crate) enum Phase {
    Created,
    Running { process: Process, stop_signal_sent: bool },
    Exited { finished_at: i64, exit_code: i32, reason: String, message: String },
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) sandbox_id: String,
    pub(crate) config: v1::ContainerConfig,
    pub(crate) image: v1::Image,
    pub(crate) created_at: i64,
    /// 0 until it is started.
    pub(crate) started_at: i64,
    pub(crate) phase: Phase,
    pub(crate) resources: v1::LinuxContainerResources,
    pub(crate) script: Arc<Script>,
    pub(crate) log: Arc<ContainerLog>,
}

impl Sandbox {
    pub(crate) fn host_network(&self) -> bool {
        namespaces(&self.config)
            .is_some_and(|options| options.network == i32::from(v1::NamespaceMode::Node))
    }

    pub(crate) fn state(&self) -> v1::PodSandboxState {
        if self.ready {
            v1::PodSandboxState::SandboxReady
        } else {
            v1::PodSandboxState::SandboxNotready
        }
    }

    pub(crate) fn status(&self) -> v1::PodSandboxStatus {
        let ip = self.ip.map(|ip| ip.to_string()).unwrap_or_default();
        v1::PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            network: Some(v1::PodSandboxNetworkStatus { ip, additional_ips: Vec::new() }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace { options: namespaces(&self.config).cloned() }),
            }),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.runtime_handler.clone(),
        }
    }

    pub(crate) fn listed(&self) -> v1::PodSandbox {
        v1::PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.runtime_handler.clone(),
        }
    }
}

fn namespaces(config: &v1::PodSandboxConfig) -> Option<&v1::NamespaceOption> {
    config.linux.as_ref()?.security_context.as_ref()?.namespace_options.as_ref()
}

impl Container {
    pub(crate) fn name(&self) -> &str {
        self.config.metadata.as_ref().map_or("", |metadata| &metadata.name)
    }

    pub(crate) fn state(&self) -> v1::ContainerState {
        match self.phase {
            Phase::Created => v1::ContainerState::ContainerCreated,
            Phase::Running { .. } => v1::ContainerState::ContainerRunning,
            Phase::Exited { .. } => v1::ContainerState::ContainerExited,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running { .. })
    }

    fn image_spec(&self) -> v1::ImageSpec {
        let asked = self.config.image.clone().unwrap_or_default();
        let image = self.image.repo_tags.first().unwrap_or(&self.image.id).clone();
        v1::ImageSpec { image, ..asked }
    }

    fn image_ref(&self) -> String {
        self.image.repo_digests.first().unwrap_or(&self.image.id).clone()
    }

    pub(crate) fn status(&self) -> v1::ContainerStatus {
        let (finished_at, exit_code, reason, message) = match &self.phase {
            Phase::Created | Phase::Running { .. } => (0, 0, String::new(), String::new()),
            Phase::Exited { finished_at, exit_code, reason, message } => {
                (*finished_at, *exit_code, reason.clone(), message.clone())
            }
        };
        v1::ContainerStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at,
            exit_code,
            image: Some(self.image_spec()),
            image_ref: self.image_ref(),
            image_id: self.image.id.clone(),
            reason,
            message,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.log.path().map(|path| path.display().to_string()).unwrap_or_default(),
            resources: Some(v1::ContainerResources {
                linux: Some(self.resources.clone()),
                windows: None,
            }),
            user: self.user(),
            stop_signal: self.config.stop_signal,
        }
    }

    fn user(&self) -> Option<v1::ContainerUser> {
        let context = self.config.linux.as_ref()?.security_context.as_ref()?;
        let uid = context.run_as_user.or(self.image.uid).map_or(0, |user| user.value);
        let gid = context.run_as_group.map_or(0, |group| group.value);
        let supplemental_groups = context.supplemental_groups.clone();
        Some(v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser { uid, gid, supplemental_groups }),
        })
    }

    pub(crate) fn listed(&self) -> v1::Container {
        v1::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.sandbox_id.clone(),
            metadata: self.config.metadata.clone(),
            image: Some(self.image_spec()),
            image_ref: self.image_ref(),
            image_id: self.image.id.clone(),
            state: self.state().into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
        }
    }

    /// Where the process finds its termination message file, if one is mounted.
    fn termination_message_file(&self) -> Option<&str> {
        let path = self.config.annotations.get(labels::CONTAINER_TERMINATION_MESSAGE_PATH)?;
        let mount = self.config.mounts.iter().find(|mount| mount.container_path == *path)?;
        Some(&mount.host_path)
    }

    /// How much CPU time it has used by `now`, in nanoseconds.
    pub(crate) fn cpu_nanoseconds(&self, now: i64) -> u64 {
        let until = match self.phase {
            Phase::Created => return 0,
            Phase::Running { .. } => now,
            Phase::Exited { finished_at, .. } => finished_at,
        };
        let ran = u64::try_from(until.saturating_sub(self.started_at)).unwrap_or(0);
        ran.saturating_mul(self.script.cpu_milli) / 1000
    }
}

/// All objects of the runtime.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) sandboxes: BTreeMap<String, Sandbox>,
    pub(crate) containers: BTreeMap<String, Container>,
    pub(crate) images: Images,
    pub(crate) network_ready: bool,
    pub(crate) runtime_ready: bool,
    pub(crate) pod_cidr: String,
    pub(crate) scripts: Vec<(ScriptMatch, Script)>,
    pub(crate) violations: Vec<Violation>,
    /// By container name and command.
    pub(crate) execs: BTreeMap<(String, Vec<String>), ExecAnswer>,
    pub(crate) events_lost: bool,
    /// Name to the id that has it or is being created with it.
    names: BTreeMap<String, String>,
    used_ips: BTreeSet<Ipv4Addr>,
    first_pod_ip: Ipv4Addr,
    pod_ips: u32,
    handlers: Vec<String>,
    last_time: i64,
    random: StdRng,
}

impl State {
    pub(crate) fn new(options: &FakeOptions) -> Self {
        Self {
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            images: Images::default(),
            network_ready: true,
            runtime_ready: true,
            pod_cidr: String::new(),
            scripts: Vec::new(),
            violations: Vec::new(),
            execs: BTreeMap::new(),
            events_lost: false,
            names: BTreeMap::new(),
            used_ips: BTreeSet::new(),
            first_pod_ip: options.first_pod_ip,
            pod_ips: options.pod_ips,
            handlers: options.runtime_handlers.clone(),
            last_time: 0,
            random: StdRng::seed_from_u64(options.seed),
        }
    }

    /// A point in time of the protocol; later than every one before, also while time stands still.
    pub(crate) fn tick(&mut self, now: Timestamp) -> i64 {
        let now = i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX);
        self.last_time = now.max(self.last_time.saturating_add(1));
        self.last_time
    }

    pub(crate) fn new_id(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.random.random::<u64>())).collect()
    }

    /// Reserves `name` for `id`; the text of the error is containerd's.
    pub(crate) fn reserve(&mut self, kind: &str, name: &str, id: &str) -> Result<(), Status> {
        if let Some(owner) = self.names.get(name) {
            return Err(Status::unknown(format!(
                "failed to reserve {kind} name {name:?}: name {name:?} is reserved for {owner:?}"
            )));
        }
        self.names.insert(name.to_owned(), id.to_owned());
        Ok(())
    }

    /// Gives all names of `id` back.
    pub(crate) fn release(&mut self, id: &str) {
        self.names.retain(|_, owner| owner != id);
    }

    pub(crate) fn check_new_sandbox(
        &self,
        config: &v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> Result<(), Status> {
        if !runtime_handler.is_empty() && !self.handlers.iter().any(|h| h == runtime_handler) {
            return Err(Status::unknown(format!(
                "failed to get sandbox runtime: no runtime for {runtime_handler:?} is configured"
            )));
        }
        let host_network = namespaces(config)
            .is_some_and(|options| options.network == i32::from(v1::NamespaceMode::Node));
        if !host_network && !self.network_ready {
            return Err(Status::unknown(
                "failed to setup network for sandbox: cni plugin not initialized",
            ));
        }
        Ok(())
    }

    pub(crate) fn add_sandbox(
        &mut self,
        id: &str,
        config: v1::PodSandboxConfig,
        runtime_handler: String,
        now: Timestamp,
    ) -> Result<(), Status> {
        self.check_new_sandbox(&config, &runtime_handler)?;
        let created_at = self.tick(now);
        let linux = config.linux.as_ref();
        let mut sandbox = Sandbox {
            id: id.to_owned(),
            resources: linux.and_then(|linux| linux.resources.clone()),
            overhead: linux.and_then(|linux| linux.overhead.clone()),
            config,
            runtime_handler,
            ready: true,
            created_at,
            ip: None,
        };
        if !sandbox.host_network() {
            sandbox.ip = Some(self.take_ip()?);
        }
        let uid = pod_uid(&sandbox.config.labels);
        let other = self
            .sandboxes
            .values()
            .find(|other| other.ready && uid.is_some() && pod_uid(&other.config.labels) == uid);
        if let (Some(uid), Some(other)) = (uid, other) {
            self.violations.push(Violation::TwoReadySandboxes {
                pod_uid: uid.to_owned(),
                sandboxes: [other.id.clone(), id.to_owned()],
            });
        }
        self.sandboxes.insert(id.to_owned(), sandbox);
        Ok(())
    }

    fn take_ip(&mut self) -> Result<Ipv4Addr, Status> {
        let first = u32::from(self.first_pod_ip);
        let free = (1..=self.pod_ips)
            .map(|offset| Ipv4Addr::from(first.wrapping_add(offset)))
            .find(|ip| !self.used_ips.contains(ip));
        let ip = free.ok_or_else(|| {
            Status::unknown("failed to setup network for sandbox: no IP addresses available")
        })?;
        self.used_ips.insert(ip);
        Ok(ip)
    }

    pub(crate) fn sandbox(&self, id: &str) -> Result<&Sandbox, Status> {
        self.sandboxes.get(id).ok_or_else(|| {
            Status::not_found(format!(
                "an error occurred when try to find sandbox {id:?}: not found"
            ))
        })
    }

    /// Marks a sandbox as stopped, and gives its address back.
    pub(crate) fn stop_sandbox(&mut self, id: &str) -> bool {
        let Some(sandbox) = self.sandboxes.get_mut(id) else { return false };
        if let Some(ip) = sandbox.ip.take() {
            self.used_ips.remove(&ip);
        }
        std::mem::replace(&mut sandbox.ready, false)
    }

    pub(crate) fn remove_sandbox(&mut self, id: &str) -> bool {
        self.stop_sandbox(id);
        self.release(id);
        self.sandboxes.remove(id).is_some()
    }

    pub(crate) fn containers_of(&self, sandbox_id: &str) -> Vec<String> {
        let of_sandbox = |container: &&Container| container.sandbox_id == sandbox_id;
        self.containers.values().filter(of_sandbox).map(|c| c.id.clone()).collect()
    }

    pub(crate) fn add_container(
        &mut self,
        id: &str,
        sandbox_id: &str,
        config: v1::ContainerConfig,
        clock: &rubelet_types::Clock,
    ) -> Result<(), Status> {
        let sandbox = self.sandboxes.get(sandbox_id).ok_or_else(|| {
            Status::not_found(format!("failed to find sandbox id {sandbox_id:?}: not found"))
        })?;
        if !sandbox.ready {
            return Err(Status::unknown(format!("sandbox {sandbox_id:?} is not running")));
        }
        let asked = config.image.as_ref().map_or("", |image| &image.image);
        let image = self.images.find(asked).cloned().ok_or_else(|| {
            Status::not_found(format!("failed to resolve image {asked:?}: not found"))
        })?;
        let log_path = (!config.log_path.is_empty() && !sandbox.config.log_directory.is_empty())
            .then(|| Path::new(&sandbox.config.log_directory).join(&config.log_path));
        let resources =
            config.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
        let created_at = self.tick(clock.now());
        let container = Container {
            id: id.to_owned(),
            sandbox_id: sandbox_id.to_owned(),
            script: Arc::new(self.script_for(&config, &image)),
            config,
            image,
            created_at,
            started_at: 0,
            phase: Phase::Created,
            resources,
            log: Arc::new(ContainerLog::new(log_path, clock.clone())),
        };
        self.containers.insert(id.to_owned(), container);
        Ok(())
    }

    fn script_for(&self, config: &v1::ContainerConfig, image: &v1::Image) -> Script {
        let command: Vec<String> = config.command.iter().chain(&config.args).cloned().collect();
        let chosen = self.scripts.iter().rev().find(|(matches, _)| match matches {
            ScriptMatch::Image(name) => self.images.find(name).is_some_and(|i| i.id == image.id),
            ScriptMatch::Container(name) => {
                config.metadata.as_ref().is_some_and(|metadata| metadata.name == *name)
            }
            ScriptMatch::Command(words) => *words == command,
        });
        chosen.map_or_else(|| Script::from_command(&command), |(_, script)| script.clone())
    }

    pub(crate) fn container(&self, id: &str) -> Result<&Container, Status> {
        self.containers.get(id).ok_or_else(|| no_container(id))
    }

    pub(crate) fn container_mut(&mut self, id: &str) -> Result<&mut Container, Status> {
        self.containers.get_mut(id).ok_or_else(|| no_container(id))
    }

    /// The process of a running container; none if it does not run.
    pub(crate) fn process_of(&self, id: &str) -> Option<Process> {
        match &self.containers.get(id)?.phase {
            Phase::Running { process, .. } => Some(process.clone()),
            Phase::Created | Phase::Exited { .. } => None,
        }
    }

    /// Notes that the stop signal is sent now; false if it was before, or nothing runs.
    pub(crate) fn note_stop_signal(&mut self, id: &str) -> bool {
        match self.containers.get_mut(id).map(|container| &mut container.phase) {
            Some(Phase::Running { stop_signal_sent, .. }) => {
                !std::mem::replace(stop_signal_sent, true)
            }
            _ => false,
        }
    }

    /// What is needed to start container `id`, if it may be started.
    pub(crate) fn check_start(&self, id: &str) -> Result<(Arc<Script>, Arc<ContainerLog>), Status> {
        let container = self.container(id)?;
        if !matches!(container.phase, Phase::Created) {
            return Err(Status::unknown(format!(
                "failed to set starting state for container {id:?}: container is in {} state",
                container.state().as_str_name()
            )));
        }
        let sandbox = self.sandbox(&container.sandbox_id)?;
        if !sandbox.ready {
            return Err(Status::unknown(format!(
                "sandbox container {:?} is not running",
                sandbox.id
            )));
        }
        Ok((container.script.clone(), container.log.clone()))
    }

    pub(crate) fn set_running(&mut self, id: &str, process: Process, now: Timestamp) {
        let started_at = self.tick(now);
        let Some(container) = self.containers.get(id) else { return };
        let identity = (pod_uid(&container.config.labels).map(str::to_owned), container.name());
        let twin = self.containers.values().find(|other| {
            other.is_running()
                && identity.0.is_some()
                && (pod_uid(&other.config.labels), other.name())
                    == (identity.0.as_deref(), identity.1)
        });
        if let (Some(pod_uid), Some(twin)) = (identity.0.clone(), twin) {
            self.violations.push(Violation::TwoRunningContainers {
                pod_uid,
                name: identity.1.to_owned(),
                containers: [twin.id.clone(), id.to_owned()],
            });
        }
        if let Some(container) = self.containers.get_mut(id) {
            container.started_at = started_at;
            container.phase = Phase::Running { process, stop_signal_sent: false };
        }
    }

    pub(crate) fn set_exited(&mut self, id: &str, exit: Exit, now: Timestamp) {
        self.set_exited_as(id, exit.code, exit.reason(), "", now);
        let Some(container) = self.containers.get(id) else { return };
        let message = container.script.termination_message.as_deref();
        if let (Some(message), Some(file)) = (message, container.termination_message_file())
            && let Err(error) = std::fs::write(file, message)
        {
            tracing::warn!(%error, file, "cannot write the termination message");
        }
    }

    pub(crate) fn set_exited_as(
        &mut self,
        id: &str,
        exit_code: i32,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) {
        let finished_at = self.tick(now);
        let Some(container) = self.containers.get_mut(id) else { return };
        container.phase = Phase::Exited {
            finished_at,
            exit_code,
            reason: reason.to_owned(),
            message: message.to_owned(),
        };
    }

    pub(crate) fn remove_container(&mut self, id: &str) -> bool {
        self.release(id);
        self.containers.remove(id).is_some()
    }
}

fn no_container(id: &str) -> Status {
    Status::new(
        Code::NotFound,
        format!("an error occurred when try to find container {id:?}: not found"),
    )
}

pub(crate) fn pod_uid(object_labels: &BTreeMap<String, String>) -> Option<&str> {
    object_labels.get(labels::POD_UID).map(String::as_str)
}

/// Every label of `selector` is there with its value.
pub(crate) fn selected(
    object_labels: &BTreeMap<String, String>,
    selector: &BTreeMap<String, String>,
) -> bool {
    selector.iter().all(|(key, value)| object_labels.get(key) == Some(value))
}
