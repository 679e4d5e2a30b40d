mod removal;
mod resize;
mod start;
mod stop;

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_container_http::ContainerClient;
use rubelet_cri::observe::{self, RelistEntry};
use rubelet_cri::{CriClient, CriError, v1};
use rubelet_node_resources::LinuxResources;
use rubelet_types::{
    Clock, ContainerId, ContainerSpec, EventObject, EventRecorder, NodePaths, PodRef, PodSnapshot,
    SandboxId, SandboxSnapshot, error_chain, pod_ref,
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::container_config::{ContainerAllocation, ImageUser};
use crate::dns::{ResolvConf, compute_dns, resolv_conf_problem};
use crate::failure::{RuntimeFailure, blocking};
use crate::files;
use crate::hooks::HookRunner;
use crate::metrics::HookMetrics;
use crate::mounts::PreparedMount;
use crate::node_security::NodeSecurity;
use crate::sandbox_config::{SandboxInputs, compute_sandbox_config};
use crate::settings::PodRuntimeSettings;
use crate::termination_message::TerminationMessages;
use crate::turns::{Start, StartTurns, Turn};
use crate::user_namespace::UserNamespace;

/// What a sandbox needs beside the pod.
#[derive(Clone, Debug, Default)]
pub struct SandboxToCreate {
    /// Number of the sandbox.
    pub attempt: u32,
    /// The pod's cgroup as the runtime takes it.
    pub cgroup_parent: String,
    /// Sum of the containers' resources.
    pub resources: Option<LinuxResources>,
    /// The RuntimeClass's overhead.
    pub overhead: Option<LinuxResources>,
    /// The RuntimeClass's `handler`; empty for the runtime's default.
    pub runtime_handler: String,
    /// Groups that come with the pod's volumes (annotation `pv.beta.kubernetes.io/gid`).
    pub extra_groups: Vec<i64>,
    /// The ids of a pod with `hostUsers: false`; without them such a pod is refused.
    pub user_namespace: Option<UserNamespace>,
}

/// What a container needs beside its spec.
#[derive(Clone, Debug)]
pub struct ContainerToStart {
    /// The container's name.
    pub name: String,
    /// Its sandbox.
    pub sandbox: SandboxToCreate,
    /// The sandbox's configuration ([`PodRuntime::sandbox_config`]).
    pub sandbox_config: Box<v1::PodSandboxConfig>,
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
    /// Its environment, in order ([`compute_environment`](crate::compute_environment)).
    pub environment: Vec<(String, String)>,
    /// What others give to it.
    pub allocation: ContainerAllocation,
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
    starts: StartTurns,
    messages: TerminationMessages,
    node_security: OnceCell<NodeSecurity>,
    resolv_conf: Option<PathBuf>,
    hook_metrics: Arc<HookMetrics>,
}

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
            starts: StartTurns::new(settings.concurrent_starts),
            settings,
            events,
            clock,
            messages: TerminationMessages::default(),
            node_security: OnceCell::new(),
            resolv_conf,
            hook_metrics: Arc::default(),
        }
    }

    /// What is counted of lifecycle hooks.
    pub fn hook_metrics(&self) -> Arc<HookMetrics> {
        self.hook_metrics.clone()
    }

    /// Reads all the runtime holds of a pod, termination messages included; sooner if it is told what
    /// is `known` of it.
    ///
    /// # Errors
    ///
    /// The runtime did not answer; with the text of the failure.
    pub async fn inspect(
        self: &Arc<Self>,
        pod: &PodRef,
        known: Option<&RelistEntry>,
    ) -> Result<PodSnapshot, CriError> {
        let mut snapshot = observe::pod_snapshot(&self.cri, pod, known, &self.clock).await?;
        if snapshot.containers.iter().all(|container| container.exit_code().is_none()) {
            self.messages.forget(&pod.uid);
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

    /// Tells by an event on the node (`CheckLimitsForResolvConf`) if the node's resolver file cannot
    /// be read, or will not fit into the configuration of pods. For the start of the kubelet.
    pub async fn check_node_resolv_conf(&self) {
        let Some(path) = &self.resolv_conf else { return };
        let problem = match self.node_resolv_conf().await {
            Ok(host) => resolv_conf_problem(path, &host, &self.settings.dns.cluster_domain),
            Err(failure) => Some(failure.message),
        };
        if let Some(message) = problem {
            self.events.warning(EventObject::Node, "CheckLimitsForResolvConf", message);
        }
    }

    async fn node_resolv_conf(&self) -> Result<ResolvConf, RuntimeFailure> {
        match self.resolv_conf.clone() {
            Some(path) => {
                let text = blocking(move || files::read_node_file(&path)).await?;
                Ok(ResolvConf::parse(&text))
            }
            None => Ok(ResolvConf::default()),
        }
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
        let created = self.run_sandbox(pod, sandbox, cancel).await;
        let id = created.inspect_err(|failure| {
            // What fails while its pod is being deleted is nobody's problem.
            if !failure.cancelled && !cancel.is_cancelled() {
                let message = format!("Failed to create pod sandbox: {}", failure.message);
                self.events.warning(object.clone(), "FailedCreatePodSandBox", message);
            }
        })?;
        let status = self.cri.pod_sandbox_status(&id, false).await.map_err(RuntimeFailure::from);
        let status = status.and_then(|answer| {
            answer.status.ok_or_else(|| RuntimeFailure::new("", "pod sandbox status is nil"))
        });
        let status = status.inspect_err(|failure| {
            let message = format!("Unable to get pod sandbox status: {}", failure.message);
            self.events.warning(object, "FailedPodSandBoxStatus", message);
        })?;
        Ok(observe::sandbox_snapshot(&status))
    }

    async fn run_sandbox(
        &self,
        pod: &Pod,
        sandbox: SandboxToCreate,
        cancel: &CancellationToken,
    ) -> Result<SandboxId, RuntimeFailure> {
        // First: of a node full of pods most wait here, and need not hold a configuration meanwhile.
        let _turn = self.turn(Start::Sandbox, cancel).await?;
        let runtime_handler = sandbox.runtime_handler.clone();
        let config = self.sandbox_config(pod, sandbox, true).await?;
        let log_dir = self.paths.pod_log_dir(&pod_ref(pod));
        blocking(move || files::ensure_dir(&log_dir, 0o755)).await?;
        Ok(self.cri.run_pod_sandbox(config, &runtime_handler).await?)
    }

    /// The runtime's configuration of the pod's sandbox, which image pulls and container creations
    /// carry too. With `tell`, what had to be left out of the name resolution becomes events.
    ///
    /// # Errors
    ///
    /// The node's resolver file cannot be read, the pod's hostname cannot be set, or a security
    /// setting cannot be carried out.
    pub async fn sandbox_config(
        &self,
        pod: &Pod,
        sandbox: SandboxToCreate,
        tell: bool,
    ) -> Result<v1::PodSandboxConfig, RuntimeFailure> {
        let host = self.node_resolv_conf().await?;
        let (dns, warnings) = compute_dns(pod, &self.settings.dns, &host);
        if tell {
            for warning in warnings {
                self.events.warning(warning.object, warning.reason, warning.message);
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
                extra_groups: &sandbox.extra_groups,
                user_namespace: sandbox.user_namespace.as_ref(),
            },
            &self.settings,
            &self.paths,
        )
        .map_err(|error| RuntimeFailure::new("", error_chain(&error)))
    }

    async fn turn(&self, start: Start, cancel: &CancellationToken) -> Result<Turn, RuntimeFailure> {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(RuntimeFailure::cancelled()),
            turn = self.starts.wait(start) => Ok(turn),
        }
    }

    fn hooks(&self) -> HookRunner<'_> {
        HookRunner {
            cri: &self.cri,
            http: &self.http,
            events: &self.events,
            metrics: &self.hook_metrics,
        }
    }
}

fn container_object(pod: &Pod, spec: &ContainerSpec<'_>) -> EventObject {
    EventObject::Container { pod: pod_ref(pod), field_path: spec.field_path() }
}
