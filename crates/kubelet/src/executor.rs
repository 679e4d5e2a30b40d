//! Carries out what pod workers order, and takes in what they report.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_allocation_manager::AllocationManager;
use rubelet_apiserver::Store;
use rubelet_checkpoint::PodStatusStore;
use rubelet_container_manager::ContainerManager;
use rubelet_cri::CriClient;
use rubelet_cri::observe::RelistEntry;
use rubelet_image_manager::{ImageManager, PullCredentials};
use rubelet_pleg::{PodInspector, Unlisted};
use rubelet_pod_lifecycle::{
    Action, ActionFailure, ActionOutcome, ContainerStart, ContainerStop, NetworkState, ResizeDue,
    Stage, StopCause,
};
use rubelet_pod_runtime::{
    ContainerAllocation, ContainerToStart, PodRuntime, RuntimeFailure, UserNamespaces,
};
use rubelet_pod_status::{
    ContainerProbes, Gates, NodeFacts, StartFailure, StatusInput, StatusOverride, TerminalPhase,
    compute_pod_status,
};
use rubelet_pod_workers::{ActionOrder, PodPort, PodReport};
use rubelet_probe_manager::{ExecError, ExecOutput, ExecPort, ProbeManager, Prober};
use rubelet_status_manager::{SetOutcome, StatusManager};
use rubelet_types::{
    Clock, ContainerId, EventObject, EventRecorder, NodePaths, PodRef, PodSnapshot, PodUid,
    ProbeKind, ProbeResult, error_chain, find_container, is_static_pod, is_terminal_phase,
    pod_restart_policy, reasons,
};
use rubelet_volume_manager::{PodVolumes, VolumeManager};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::PodObjects;
use crate::metrics::PodMetrics;
use crate::mounts::{ReadyVolumes, prepare_devices, prepare_mounts};
use crate::node::HostIps;
use crate::pods::{DesiredPods, Standing};
use crate::resize::{ResizeMetrics, ResizeProgress, ResizeTriggers, Trigger};
use crate::runtime_classes::known_runtime_handler;
use crate::runtime_state::RuntimeState;

/// Runs exec probes through the runtime.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeExec(pub(crate) CriClient);

impl ExecPort for RuntimeExec {
    async fn exec(
        &self,
        container: &ContainerId,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecOutput, ExecError> {
        let answer = self.0.exec_sync(container, command.to_vec(), Some(timeout)).await;
        match answer {
            Ok(answer) => Ok(ExecOutput {
                exit_code: answer.exit_code,
                output: [answer.stdout, answer.stderr].concat(),
            }),
            Err(error) if error.kind == rubelet_cri::CriErrorKind::DeadlineExceeded => {
                Err(ExecError::TimedOut)
            }
            Err(error) => Err(ExecError::Failed(Box::new(error))),
        }
    }
}

pub(crate) type Probes = ProbeManager<Prober<RuntimeExec>>;

/// What is remembered of a pod between orders. All of it can be lost: it is made again.
#[derive(Debug, Default)]
struct PodMemory {
    volumes: Option<Arc<PodVolumes>>,
    /// Addresses of the pod before its sandbox was stopped.
    ips: Vec<String>,
    told_deadline: bool,
    probes_ended: bool,
    finished: bool,
    /// Its worker has begun something.
    begun: bool,
}

/// The managers, wired together for the pod workers.
pub(crate) struct Executor {
    pub(crate) runtime: Arc<PodRuntime>,
    pub(crate) images: ImageManager<CriClient, PullCredentials>,
    pub(crate) volumes: VolumeManager,
    pub(crate) user_namespaces: UserNamespaces,
    pub(crate) container_manager: Arc<ContainerManager>,
    pub(crate) probes: Probes,
    pub(crate) statuses: StatusManager,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) status_store: PodStatusStore,
    pub(crate) runtime_state: watch::Receiver<RuntimeState>,
    /// None for a kubelet that is alone.
    pub(crate) runtime_classes: Option<Store<RuntimeClass>>,
    /// None for a kubelet that is alone.
    pub(crate) pod_objects: Option<Arc<PodObjects>>,
    pub(crate) paths: NodePaths,
    pub(crate) node_name: String,
    pub(crate) host_ips: HostIps,
    /// The name of the runtime; it prefixes container ids.
    pub(crate) runtime_name: String,
    pub(crate) runtime_version: String,
    pub(crate) gates: Gates,
    pub(crate) events: EventRecorder,
    pub(crate) clock: Clock,
    pub(crate) memory: Mutex<HashMap<PodUid, PodMemoryEntry>>,
    pub(crate) metrics: Arc<PodMetrics>,
    pub(crate) allocations: Arc<AllocationManager>,
    pub(crate) resizes: ResizeProgress,
    pub(crate) resize_triggers: ResizeTriggers,
    pub(crate) resize_metrics: Arc<ResizeMetrics>,
    /// Is told what was made, so that it is missed should it vanish.
    pub(crate) unlisted: Arc<Unlisted>,
}

/// Opaque to the start: see [`PodMemory`].
#[derive(Debug, Default)]
pub(crate) struct PodMemoryEntry(PodMemory);

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("node", &self.node_name).finish_non_exhaustive()
    }
}

fn outcome(result: Result<(), RuntimeFailure>) -> ActionOutcome {
    match result {
        Ok(()) => ActionOutcome::Done,
        Err(failure) => failed(failure),
    }
}

fn failed(failure: RuntimeFailure) -> ActionOutcome {
    if failure.cancelled {
        return ActionOutcome::Cancelled;
    }
    failure_of(failure.reason, failure.message, None)
}

pub(crate) fn failure_of(
    reason: &'static str,
    message: String,
    retry_at: Option<Timestamp>,
) -> ActionOutcome {
    ActionOutcome::Failed(ActionFailure { reason, message, retry_at })
}

impl PodPort for Executor {
    async fn run(&self, order: ActionOrder, cancel: CancellationToken) -> ActionOutcome {
        match order.action.clone() {
            Action::PreparePod => {
                self.count_beginning(&order.pod_ref.uid);
                self.prepare(&order).await
            }
            Action::MountVolumes => self.mount_volumes(&order, &cancel).await,
            Action::CreateSandbox { attempt } => {
                self.create_sandbox(&order, attempt, &cancel).await
            }
            Action::StopSandbox { id } => outcome(self.runtime.stop_sandbox(&id).await),
            Action::RemoveSandbox { id } => outcome(self.runtime.remove_sandbox(&id).await),
            // Boxed: its state is large, and the other actions need not carry it.
            Action::StartContainer(start) => {
                Box::pin(self.start_container(&order, start, &cancel)).await
            }
            Action::RunPreStop { id, name, budget, reason } => {
                self.runtime.announce_stop(&order.pod, &name, reason.message(&name));
                let ips = self.pod_ips(&order.pod, Some(&order.snapshot));
                let ip = ips.first().map(String::as_str).unwrap_or_default();
                self.runtime.run_pre_stop(&order.pod, ip, &id, &name, budget, &cancel).await;
                ActionOutcome::Done
            }
            Action::StopContainer(stop) => self.stop_container(&order, &stop).await,
            Action::RemoveContainer { id, keep_log, .. } => outcome(
                self.runtime.remove_container(&order.pod_ref, &order.snapshot, &id, keep_log).await,
            ),
            Action::ResizePod => Box::pin(self.resize_pod(&order)).await,
            Action::ReleasePod => self.release(&order).await,
            Action::RemovePod => outcome(self.runtime.remove_pod(&order.pod_ref).await),
        }
    }

    async fn look(&self, pod: &PodRef) -> Result<PodSnapshot, String> {
        self.inspect(pod, None).await
    }

    fn network(&self) -> NetworkState {
        self.runtime_state.borrow().network.clone()
    }

    fn probe_result(
        &self,
        pod: &PodUid,
        container: &str,
        id: &ContainerId,
        kind: ProbeKind,
    ) -> Option<ProbeResult> {
        self.probes.result(pod, container, id, kind)
    }

    fn resize_due(&self, pod: &Arc<Pod>) -> Option<ResizeDue> {
        self.compute_resize_due(pod)
    }

    fn report(&self, report: &PodReport<'_>) {
        self.tell(report);
        if report.is_orphan {
            return;
        }
        let is_over = matches!(report.stage, Stage::Terminated { .. } | Stage::Finished { .. });
        if self.desired.set_over(&report.pod_ref.uid, is_over) && is_over {
            self.resize_triggers.pull(Trigger::PodTerminated);
        }
        self.follow_resize(report);
        if report.stage.is_stopping() {
            self.volumes.stop_updates(&report.pod_ref.uid);
        } else {
            self.volumes.update_pod(report.pod);
        }
        self.sync_probes(report);
        self.publish_status(report);
        if matches!(report.stage, Stage::Finished { .. }) {
            let mut memory = self.memory();
            let entry = &mut memory.entry(report.pod_ref.uid.clone()).or_default().0;
            if !std::mem::replace(&mut entry.finished, true) {
                drop(memory);
                let outcome = self.statuses.finish(report.pod);
                self.save_status(report, &outcome);
            }
        }
    }

    fn forget(&self, pod: &PodRef) {
        self.metrics.startup.forget(&pod.uid);
        self.probes.remove_pod(&pod.uid);
        if let Some(objects) = &self.pod_objects {
            objects.forget(&pod.uid);
        }
        self.forget_resize(&pod.uid);
        self.memory().remove(&pod.uid);
        self.statuses.remove(&pod.uid);
        self.status_store.forget(&pod.uid);
    }
}

impl PodInspector for Executor {
    async fn inspect(
        &self,
        pod: &PodRef,
        known: Option<&RelistEntry>,
    ) -> Result<PodSnapshot, String> {
        self.runtime.inspect(pod, known).await.map_err(|error| error.to_string())
    }
}

impl Executor {
    fn memory(&self) -> MutexGuard<'_, HashMap<PodUid, PodMemoryEntry>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod's addresses, those of before its sandbox was stopped if need be.
    pub(crate) fn pod_ips(&self, pod: &Pod, snapshot: Option<&PodSnapshot>) -> Vec<String> {
        if rubelet_types::is_host_network(pod) {
            return self.host_ips.get();
        }
        let now = snapshot.map(PodSnapshot::ips).unwrap_or_default();
        if !now.is_empty() {
            return now.to_vec();
        }
        let uid = rubelet_types::pod_ref(pod).uid;
        self.memory().get(&uid).map(|entry| entry.0.ips.clone()).unwrap_or_default()
    }

    /// The volumes of a pod, once all of them are ready.
    pub(crate) fn ready_volumes(&self, uid: &PodUid) -> Option<Arc<PodVolumes>> {
        self.memory().get(uid)?.0.volumes.clone()
    }

    pub(crate) fn set_ready_volumes(&self, uid: PodUid, volumes: Arc<PodVolumes>) {
        self.memory().entry(uid).or_default().0.volumes = Some(volumes);
    }

    /// The desired pods that use resources, or have them kept: let in, and not known to have ended.
    pub(crate) fn active_pods(&self) -> Vec<Arc<Pod>> {
        self.active_pods_and_standing().into_iter().map(|(pod, _)| pod).collect()
    }

    /// The same, with whether they run already.
    pub(crate) fn active_pods_and_standing(&self) -> Vec<(Arc<Pod>, Standing)> {
        let ended = |pod: &Pod| {
            let known = self.statuses.status(&rubelet_types::pod_ref(pod).uid);
            is_terminal_phase(known.as_ref().and_then(|known| known.status.phase.as_deref()))
        };
        let mut pods = self.desired.active();
        pods.retain(|(pod, _)| !ended(pod));
        pods
    }

    /// The pod's volumes that are ready.
    pub(crate) fn volumes_of(&self, pod: &Pod) -> Arc<PodVolumes> {
        self.ready_volumes(&rubelet_types::pod_ref(pod).uid).unwrap_or_default()
    }

    async fn create_sandbox(
        &self,
        order: &ActionOrder,
        attempt: u32,
        cancel: &CancellationToken,
    ) -> ActionOutcome {
        let sandbox = match self.sandbox_to_create(&order.pod, attempt).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                let message = format!("Failed to create pod sandbox: {error}");
                let object = EventObject::Pod(order.pod_ref.clone());
                self.events.warning(object, "FailedCreatePodSandBox", message.clone());
                return failure_of("", message, None);
            }
        };
        let created = self.runtime.create_sandbox(&order.pod, sandbox, cancel).await;
        let is_failed = created.as_ref().is_err_and(|failure| !failure.cancelled);
        self.metrics.sandbox(has_own_users(&order.pod), is_failed);
        match created {
            Ok(snapshot) => {
                self.unlisted.sandbox_made(&order.pod_ref, &snapshot.id);
                ActionOutcome::SandboxCreated(snapshot)
            }
            Err(failure) => failed(failure),
        }
    }

    async fn start_container(
        &self,
        order: &ActionOrder,
        start: ContainerStart,
        cancel: &CancellationToken,
    ) -> ActionOutcome {
        let kind = find_container(&order.pod, &start.name).map(|spec| spec.kind);
        let (Ok(outcome) | Err(outcome)) = self.try_start_container(order, start, cancel).await;
        if let Some(kind) = kind {
            let failed = match &outcome {
                ActionOutcome::Failed(failure) => Some(failure.reason),
                _ => None,
            };
            self.metrics.container(kind, failed);
        }
        outcome
    }

    /// A worker has something done for its pod for the first time.
    fn count_beginning(&self, uid: &PodUid) {
        let mut memory = self.memory();
        let entry = &mut memory.entry(uid.clone()).or_default().0;
        if !std::mem::replace(&mut entry.begun, true)
            && let Some(seen) = self.desired.seen(uid)
        {
            self.metrics.worker_began(seen.elapsed());
        }
    }

    async fn try_start_container(
        &self,
        order: &ActionOrder,
        start: ContainerStart,
        cancel: &CancellationToken,
    ) -> Result<ActionOutcome, ActionOutcome> {
        let pod = &order.pod;
        let config_error =
            |message: String| failure_of(reasons::CREATE_CONTAINER_CONFIG_ERROR, message, None);
        let Some(spec) = find_container(pod, &start.name) else {
            return Err(config_error(format!("container {} is not in the pod's spec", start.name)));
        };
        let attempt = order
            .snapshot
            .sandboxes
            .iter()
            .find(|sandbox| sandbox.id == start.sandbox)
            .map_or(0, |sandbox| sandbox.attempt);
        let sandbox = self.sandbox_to_create(pod, attempt).await.map_err(config_error)?;
        let sandbox_config =
            self.runtime.sandbox_config(pod, sandbox.clone(), false).await.map_err(|failure| {
                let pod = order.pod_ref.to_string();
                let message = &failure.message;
                config_error(format!("GeneratePodSandboxConfig for pod {pod:?} failed: {message}"))
            })?;
        let volumes = self.volumes_of(pod);
        let image_volumes =
            self.ensure_image_volumes(order, &spec, &volumes, &sandbox_config, cancel).await?;
        let image = spec.container.image.as_deref().unwrap_or_default();
        let policy = spec.container.image_pull_policy.as_deref().unwrap_or_default();
        let image =
            self.ensure_image(order, &spec, (image, policy), &sandbox_config, cancel).await?;

        let pod_ips = self.pod_ips(pod, Some(&order.snapshot));
        let environment = self
            .environment(pod, &spec.container, &volumes, &pod_ips)
            .await
            .map_err(|message| self.config_failed(order, &spec, message))?;
        let can = self.runtime_state.borrow().features().handler(&sandbox.runtime_handler);
        let mounts = prepare_mounts(
            &self.volumes,
            &order.pod_ref,
            &spec.container,
            ReadyVolumes { volumes: &volumes, images: &image_volumes },
            &environment,
            can.recursive_read_only_mounts,
        )
        .await
        .map_err(|message| self.config_failed(order, &spec, message))?;
        let devices = prepare_devices(&spec.container, &volumes)
            .map_err(|message| self.config_failed(order, &spec, message))?;
        let resources = self
            .container_manager
            .container_resources(pod, &spec.container, false)
            .map_err(|error| config_error(error_chain(&error)))?;
        let image_volumes = image_volumes.len();
        let to_start = ContainerToStart {
            name: start.name,
            sandbox,
            sandbox_config: Box::new(sandbox_config),
            sandbox_id: start.sandbox,
            restart_count: start.restart_count,
            target: start.target,
            image_ref: image.image_ref,
            image_user: match image.user {
                rubelet_image_manager::ImageUser::Uid(uid) => {
                    rubelet_pod_runtime::ImageUser::Uid(uid)
                }
                rubelet_image_manager::ImageUser::Name(name) if name.is_empty() => {
                    rubelet_pod_runtime::ImageUser::Unset
                }
                rubelet_image_manager::ImageUser::Name(name) => {
                    rubelet_pod_runtime::ImageUser::Name(name)
                }
            },
            mounts,
            resources,
            pod_ips,
            environment,
            allocation: ContainerAllocation { devices, ..ContainerAllocation::default() },
        };
        self.allocations.creating(pod, &spec.container.name).await;
        // Boxed: what comes before does not have to make room for its state.
        let started = Box::pin(self.runtime.start_container(pod, to_start, cancel)).await;
        let cannot_mount = started.as_ref().is_err_and(|failure| {
            failure.reason == reasons::CREATE_CONTAINER_ERROR
                && failure.message.contains(IMAGE_VOLUME_MOUNT_FAILED)
        });
        self.metrics.image_volumes(image_volumes, cannot_mount);
        let snapshot = started.map_err(failed)?;
        self.unlisted.container_made(&order.pod_ref, &snapshot.id);
        Ok(ActionOutcome::ContainerStarted(Box::new(snapshot)))
    }

    /// The outcome of a start whose configuration cannot be made, of which an event tells.
    pub(crate) fn config_failed(
        &self,
        order: &ActionOrder,
        spec: &rubelet_types::ContainerSpec<'_>,
        message: String,
    ) -> ActionOutcome {
        let object =
            EventObject::Container { pod: order.pod_ref.clone(), field_path: spec.field_path() };
        self.events.warning(object, "Failed", format!("Error: {message}"));
        failure_of(reasons::CREATE_CONTAINER_CONFIG_ERROR, message, None)
    }

    async fn stop_container(&self, order: &ActionOrder, stop: &ContainerStop) -> ActionOutcome {
        if !stop.announced {
            self.runtime.announce_stop(&order.pod, &stop.name, stop.reason.message(&stop.name));
        }
        let result = self.runtime.stop_container(&stop.id, stop.timeout).await;
        if let Err(failure) = &result {
            self.events.warning(
                EventObject::Pod(order.pod_ref.clone()),
                "FailedKillPod",
                format!("error killing pod: {}", failure.message),
            );
        }
        outcome(result)
    }

    async fn release(&self, order: &ActionOrder) -> ActionOutcome {
        if let Err(error) = self.volumes.release_pod_volumes(&order.pod_ref).await {
            let retry_at = self.clock.now().checked_add(error.retry_after).ok();
            return failure_of("", error_chain(&error), retry_at);
        }
        if let Err(error) = self.container_manager.destroy_pod_cgroup(&order.pod_ref.uid).await {
            return failure_of("", error_chain(&error), None);
        }
        ActionOutcome::Done
    }

    /// Events about what a decision newly found.
    fn tell(&self, report: &PodReport<'_>) {
        let object = || EventObject::Pod(report.pod_ref.clone());
        if let Some((reason, message)) = report.new_problem {
            let kind = if reason == "SandboxChanged" {
                EventRecorder::normal
            } else {
                EventRecorder::warning
            };
            kind(&self.events, object(), reason, message.to_owned());
        }
        for name in &report.new_back_offs {
            let Some(spec) = find_container(report.pod, name) else { continue };
            let object = EventObject::Container {
                pod: report.pod_ref.clone(),
                field_path: spec.field_path(),
            };
            self.events.warning(
                object,
                "BackOff",
                format!("Back-off restarting failed container {name} in pod {}", report.pod_ref),
            );
        }
        if let Stage::Terminating { cause: StopCause::DeadlineExceeded, .. } = report.stage {
            let mut memory = self.memory();
            let entry = &mut memory.entry(report.pod_ref.uid.clone()).or_default().0;
            if !std::mem::replace(&mut entry.told_deadline, true) {
                self.events.normal(object(), reasons::DEADLINE_EXCEEDED, DEADLINE_MESSAGE);
            }
        }
    }

    fn sync_probes(&self, report: &PodReport<'_>) {
        let uid = &report.pod_ref.uid;
        match report.stage {
            Stage::Waiting => {}
            Stage::Syncing | Stage::Terminating { .. } => {
                if matches!(report.stage, Stage::Terminating { .. }) {
                    self.probes.stop_liveness_and_startup(uid);
                }
                let Some(snapshot) = report.snapshot else { return };
                if !snapshot.ips().is_empty() {
                    let ips = snapshot.ips().to_vec();
                    self.memory().entry(uid.clone()).or_default().0.ips = ips;
                }
                let ips = self.pod_ips(report.pod, Some(snapshot));
                self.probes.set_pod(report.pod, snapshot, &ips);
            }
            Stage::Terminated { .. } | Stage::Finished { .. } => {
                let mut memory = self.memory();
                let entry = &mut memory.entry(uid.clone()).or_default().0;
                if !std::mem::replace(&mut entry.probes_ended, true) {
                    drop(memory);
                    self.probes.remove_pod(uid);
                }
            }
        }
    }

    fn publish_status(&self, report: &PodReport<'_>) {
        let uid = &report.pod_ref.uid;
        let own = report.pod.status.clone().unwrap_or_default();
        let known = self.statuses.status(uid);
        let previous = known.as_ref().map_or(&own, |known| &known.status);
        let holds_containers = report.snapshot.is_some_and(|seen| !seen.containers.is_empty());
        if is_terminal_phase(previous.phase.as_deref())
            && report.stage.is_stopping()
            && !holds_containers
        {
            // It has ended, or was never let in: there is nothing to see that would say more.
            return;
        }
        let start_failures: BTreeMap<String, StartFailure> = report
            .failures
            .iter()
            .map(|(name, reason, message)| {
                let failure =
                    StartFailure { reason: (*reason).to_owned(), message: (*message).to_owned() };
                ((*name).to_owned(), failure)
            })
            .collect();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let starting: BTreeSet<String> = names(&report.starting);
        let vanished: BTreeSet<String> = names(&report.vanished);
        let probes = |name: &str, id: &ContainerId| ContainerProbes {
            readiness: self.probes.result(uid, name, id, ProbeKind::Readiness),
            startup: self.probes.result(uid, name, id, ProbeKind::Startup),
        };
        let now = self.clock.now();
        let handler = known_runtime_handler(report.pod, self.runtime_classes.as_ref());
        let can = self.runtime_state.borrow().features().handler(&handler);
        let facts = NodeFacts {
            host_ips: self.host_ips.get(),
            runtime_name: self.runtime_name.clone(),
            recursive_read_only_mounts: can.recursive_read_only_mounts,
        };
        let mut input = StatusInput::new(report.pod, previous, &facts, now);
        input.snapshot = report.snapshot;
        input.probes = &probes;
        input.start_failures = &start_failures;
        input.starting = &starting;
        input.vanished = &vanished;
        let resize_conditions = self.resizes.conditions(uid);
        input.resize_conditions = &resize_conditions;
        let pod_cgroup = self.pod_cgroup_in_force(report.pod);
        input.pod_cgroup = pod_cgroup.as_ref();
        input.granted_is_in_force = pod_cgroup.is_none();
        input.gates = self.gates;
        input.restarting_all = report.restarting_all;
        let cause = match report.stage {
            Stage::Waiting | Stage::Syncing => None,
            Stage::Terminating { cause, .. } => {
                input.stage = rubelet_pod_status::Stage::Terminating;
                Some(cause)
            }
            Stage::Terminated { cause, .. } | Stage::Finished { cause } => {
                input.stage = rubelet_pod_status::Stage::Terminated;
                Some(cause)
            }
        };
        input.is_leaving = matches!(cause, Some(StopCause::Deleted | StopCause::Orphaned));
        let imposed = cause.and_then(imposed_end);
        input.outcome_override = imposed.as_ref();
        let status = compute_pod_status(&input);
        let begins_to_run = matches!(previous.phase.as_deref(), None | Some("Pending"))
            && status.phase.as_deref() == Some("Running");
        let becomes_ready = !is_ready(&status) && matches!(report.stage, Stage::Syncing);
        let outcome = self.statuses.set_status(report.pod, status);
        if let SetOutcome::Refused(refusal) = &outcome {
            tracing::warn!(pod = %report.pod_ref, error = %refusal,
                policy = ?pod_restart_policy(report.pod), "Refused a status");
        }
        let changed = matches!(outcome, SetOutcome::Changed { .. });
        if changed
            && begins_to_run
            && let Some(seen) = self.desired.seen(uid)
        {
            self.metrics.pod_runs(seen.elapsed());
        }
        self.save_status(report, &outcome);
        if becomes_ready && changed {
            // What is not ready yet is probed now, not a period later.
            self.probes.trigger_readiness(uid);
        }
    }

    /// Keeps a changed status for the next run of the kubelet, unless the API server does. A manifest
    /// that was removed and comes back begins anew, and whether a pod fits is asked anew by each
    /// kubelet: what a removal or a refusal came to is not kept.
    fn save_status(&self, report: &PodReport<'_>, outcome: &SetOutcome) {
        let cause = match report.stage {
            Stage::Waiting | Stage::Syncing => None,
            Stage::Terminating { cause, .. }
            | Stage::Terminated { cause, .. }
            | Stage::Finished { cause } => Some(cause),
        };
        let begins_anew = matches!(cause, Some(StopCause::Deleted | StopCause::Disrupted(_)));
        let uid = &report.pod_ref.uid;
        if matches!(outcome, SetOutcome::Changed { .. })
            && is_static_pod(report.pod)
            && !begins_anew
            && let Some(known) = self.statuses.status(uid)
        {
            self.status_store.save(uid, &known.status);
        }
    }
}

/// What runtimes say first when they cannot mount an image into a container.
const IMAGE_VOLUME_MOUNT_FAILED: &str = "ImageVolumeMountFailed";

/// The pod has users of its own (`hostUsers: false`).
fn has_own_users(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.host_users == Some(false))
}

/// How a pod ends that somebody else than its containers ended.
fn imposed_end(cause: &StopCause) -> Option<StatusOverride> {
    let (reason, message, condition) = match cause {
        StopCause::Deleted | StopCause::Completed | StopCause::Orphaned => return None,
        StopCause::DeadlineExceeded => (reasons::DEADLINE_EXCEEDED, DEADLINE_MESSAGE, None),
        StopCause::Disrupted(disruption) => {
            (&*disruption.reason, &*disruption.message, disruption.condition.as_deref())
        }
    };
    let disruption_target = |message: &str| PodCondition {
        type_: "DisruptionTarget".to_owned(),
        status: "True".to_owned(),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(message.to_owned()),
        ..PodCondition::default()
    };
    Some(StatusOverride {
        phase: TerminalPhase::Failed,
        reason: reason.to_owned(),
        message: message.to_owned(),
        conditions: condition.map(disruption_target).into_iter().collect(),
    })
}

fn is_ready(status: &k8s_openapi::api::core::v1::PodStatus) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

const DEADLINE_MESSAGE: &str = "Pod was active on the node longer than the specified deadline";
