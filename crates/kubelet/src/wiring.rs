//! The composition root: all managers, wired together on what the environment gives.
//!
//! [`assemble`] only builds: it spawns nothing and does no I/O. [`Kubelet::run`] is everything that
//! lives, in one future: whoever drops it has killed the kubelet, as surely as SIGKILL would.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use jiff::tz::TimeZone;
use k8s_openapi::api::core::v1::Pod;
use rubelet_allocation_manager::AllocationManager;
use rubelet_checkpoint::PodStatusStore;
use rubelet_config::{Effective, Gate, read_credential_providers};
use rubelet_container_http::ContainerClient;
use rubelet_container_logs::{LogReader, LogRotation};
use rubelet_container_manager::{CgroupDriver, ContainerManager};
use rubelet_cri::{CriClient, CriError, v1};
use rubelet_event_recorder::EventSender;
use rubelet_image_manager::{CredentialProviders, ImageManager, PullCredentials};
use rubelet_linux::Host;
use rubelet_metrics::Registry;
use rubelet_node_status::{NodeHandle, node_without_status};
use rubelet_pleg::{Pleg, PlegHandle, PlegSettings, PodLifecycleEvent, Unlisted};
use rubelet_pod_runtime::{PodRuntime, UserNamespaces};
use rubelet_pod_sources::{
    MirrorPods, PodChange, PodChanges, PodConfig, PodOperation as SourceOperation,
};
use rubelet_pod_workers::{PodWorkers, RecordedDecision, WorkerSummary};
use rubelet_probe_manager::{ProbeManager, ProbeUpdates, Prober};
use rubelet_status_manager::{StatusChanges, StatusManager};
use rubelet_sync_loop::{PodOperation, SyncLoop, SyncLoopHealth, SyncLoopInputs, SyncLoopSettings};
use rubelet_types::{
    Clock, EventObject, EventRecorder, NodePaths, PodFullName, PodSnapshot, PodUid, ProbeUpdate,
    error_chain,
};
use rubelet_volume_manager::{MountPort, VolumeContent, VolumeManager, VolumeManagerConfig};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, ClusterLoops, ClusterParts, ClusterSettings};
use crate::container_logs::{KubeletLogs, running_containers};
use crate::executor::{Executor, RuntimeExec};
use crate::metrics::{NodeMetrics, PodGauges};
use crate::node::{HostIps, Node};
use crate::pod_admission::{OwnNode, PodAdmission};
use crate::pods::DesiredPods;
use crate::resize::{ResizeMetricsView, ResizeProgress, ResizeTriggers};
use crate::runtime_state::{RuntimeState, watch_runtime};
use crate::settings;
use crate::sync_handler::KubeletHandler;
use crate::version::KUBERNETES_MINOR;
use crate::why::PodExplainer;

/// Capacity of the channels into the sync loop.
const EVENT_CAPACITY: usize = 1000;

/// What a kubelet stands on: everything that differs between a node and a simulation of one.
#[derive(Debug)]
pub struct Parts<'a> {
    /// What was configured.
    pub effective: &'a Effective,
    /// The node's name and addresses.
    pub node: Node,
    /// Where its files are.
    pub paths: NodePaths,
    /// The wall clock.
    pub clock: Clock,
    /// Where events go.
    pub events: EventRecorder,
    /// The container runtime.
    pub cri: CriClient,
    /// The name by which the runtime introduced itself; it prefixes container ids.
    pub runtime_name: String,
    /// Its version in its own words.
    pub runtime_version: String,
    /// Keeps cgroups, and was started (see [`start_container_manager`]).
    pub container_manager: Arc<ContainerManager>,
    /// Programs that give credentials for images (see [`credential_providers`]).
    pub credential_providers: CredentialProviders,
    /// Mounts volumes.
    pub mounts: Arc<dyn MountPort>,
    /// The sources of pods, and what comes out of them.
    pub sources: (PodConfig, PodChanges),
    /// What there is beside if it is a node of a cluster.
    pub cluster: Option<ClusterParts>,
    /// How many sandbox creations, container starts and volumes are worked on at once.
    pub concurrent_starts: usize,
    /// When the process started.
    pub started: Instant,
}

/// Makes the cgroups above pods on the machine `host`.
///
/// # Errors
///
/// The machine or the configuration is unfit; a kubelet ends then.
pub async fn start_container_manager(
    effective: &Effective,
    driver: CgroupDriver,
    host: Host,
    events: EventRecorder,
) -> anyhow::Result<Arc<ContainerManager>> {
    let manager =
        ContainerManager::new(settings::container_manager(effective, driver), host, events);
    manager.start().await.context("failed to start ContainerManager")?;
    Ok(Arc::new(manager))
}

/// The sources of pods that are configured.
///
/// # Errors
///
/// `staticPodURL` is no URL.
pub fn pod_sources(
    effective: &Effective,
    node: &Node,
    clock: Clock,
    events: EventRecorder,
) -> anyhow::Result<(PodConfig, PodChanges)> {
    Ok(PodConfig::new(settings::pod_sources(effective, node), clock, events)?)
}

/// What records events for the API server, and what carries them there.
pub fn event_recorder(
    effective: &Effective,
    node: &Node,
    clock: Clock,
) -> (EventRecorder, EventSender) {
    rubelet_event_recorder::event_recorder(settings::event_recorder(effective, node), clock)
}

/// The programs that give credentials for images, as `--image-credential-provider-config` and
/// `--image-credential-provider-bin-dir` name them. Blocking.
///
/// # Errors
///
/// The configuration is wrong, or a program is missing.
pub fn credential_providers(effective: &Effective) -> anyhow::Result<CredentialProviders> {
    let options = &effective.options;
    let (Some(config), Some(dir)) =
        (&options.image_credential_provider_config, &options.image_credential_provider_bin_dir)
    else {
        return Ok(CredentialProviders::default());
    };
    let tokens = effective.gates.enabled(Gate::KubeletServiceAccountTokenForCredentialProviders);
    read_credential_providers(config, tokens)
        .map_err(anyhow::Error::from)
        .and_then(|configured| Ok(CredentialProviders::open(configured, dir)?))
        .context("failed to register CRI auth plugins")
}

/// A kubelet that was built and does not run yet.
#[derive(Debug)]
pub struct Kubelet {
    view: KubeletView,
    handler: Arc<KubeletHandler>,
    pleg: Pleg<Executor>,
    lifecycle: mpsc::Receiver<PodLifecycleEvent>,
    runtime_state: watch::Sender<RuntimeState>,
    probe_updates: ProbeUpdates,
    sync_loop: SyncLoop<KubeletHandler>,
    into_sync_loop: IntoSyncLoop,
    pod_config: PodConfig,
    changes: mpsc::Receiver<PodChange>,
    cluster: Option<Cluster>,
    status_changes: StatusChanges,
    log_rotation: LogRotation<CriClient>,
}

/// The senders' side of the sync loop's inputs.
#[derive(Debug)]
struct IntoSyncLoop {
    config: mpsc::Sender<(PodOperation, Vec<Arc<Pod>>)>,
    pod_lifecycle: mpsc::Sender<PodSnapshot>,
    probes: mpsc::Sender<ProbeUpdate>,
    /// No device plugin speaks yet; the loop listens all the same.
    _container_manager: mpsc::Sender<PodUid>,
}

/// What may be seen of a kubelet from outside. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KubeletView {
    workers: PodWorkers<Executor>,
    desired: Arc<DesiredPods>,
    statuses: StatusManager,
    pleg: PlegHandle,
    sync_loop: SyncLoopHealth,
    cri: CriClient,
    node: Option<NodeHandle>,
    logs: LogReader<CriClient>,
    executor: Arc<Executor>,
    mirrors: Arc<MirrorPods>,
    metrics: Registry,
}

impl KubeletView {
    /// Who can say why a pod is not running.
    pub(crate) fn pod_explainer(&self) -> PodExplainer {
        PodExplainer {
            executor: self.executor.clone(),
            workers: self.workers.clone(),
            desired: self.desired.clone(),
            pleg: self.pleg.clone(),
        }
    }

    /// The logs of its containers; `stop` breaks them off.
    pub(crate) fn container_logs(
        &self,
        effective: &Effective,
        stop: &CancellationToken,
    ) -> KubeletLogs {
        KubeletLogs {
            desired: self.desired.clone(),
            statuses: self.statuses.clone(),
            reader: self.logs.clone(),
            clock: self.executor.clock.clone(),
            split_streams: effective.gates.enabled(Gate::PodLogsQuerySplitStreams),
            stop: stop.clone(),
        }
    }

    /// What its managers count.
    pub(crate) fn managers_metrics(&self) -> Registry {
        self.metrics.clone()
    }

    /// Everything that `/metrics/probes` shows.
    pub fn probe_metrics(&self) -> Registry {
        Registry::new().with(Arc::new(self.executor.probes.clone()))
    }

    /// The Node at the API server; none for a kubelet that is alone.
    pub(crate) fn node(&self) -> Option<NodeHandle> {
        self.node.clone()
    }

    /// All pod workers.
    pub fn workers(&self) -> Vec<WorkerSummary> {
        self.workers.summaries()
    }

    /// The last decisions about a pod, oldest first.
    pub fn decisions(&self, uid: &PodUid) -> Vec<RecordedDecision> {
        self.workers.decisions(uid)
    }

    /// The pods that sources want, with the statuses in force.
    pub fn pods(&self) -> Vec<Pod> {
        self.statuses.pods_with_status(self.desired.all())
    }

    /// The pod of that name that the sources want, as its source gave it.
    pub(crate) fn desired_pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.desired.by_name(namespace, name)
    }

    /// The uid by which the API server knows the static pod of that name.
    pub(crate) fn mirror_uid(&self, name: &PodFullName) -> Option<String> {
        self.mirrors.get(name).and_then(|mirror| mirror.metadata.uid.clone())
    }

    /// The container runtime.
    pub(crate) fn cri(&self) -> &CriClient {
        &self.cri
    }

    /// Whether the runtime is listed regularly.
    pub fn pleg(&self) -> &PlegHandle {
        &self.pleg
    }

    /// Whether the sync loop turns.
    pub fn sync_loop(&self) -> &SyncLoopHealth {
        &self.sync_loop
    }
}

/// Builds a kubelet. Nothing is spawned and nothing read.
pub fn assemble(parts: Parts<'_>) -> Kubelet {
    let Parts { effective, node, paths, clock, events, cri, .. } = parts;
    let config = &effective.config;
    let (runtime_state, runtime_state_rx) = watch::channel(RuntimeState::default());
    let http = ContainerClient::new(KUBERNETES_MINOR);
    let gates = settings::reports(&effective.gates);
    let (statuses, status_changes) = StatusManager::new(clock.clone(), gates);
    let status_store = PodStatusStore::new(&paths, tokio::runtime::Handle::current());
    let (probes, probe_updates) = ProbeManager::new(
        Prober::new(RuntimeExec(cri.clone()), http.clone()),
        clock.clone(),
        events.clone(),
        parts.started,
    );
    let resize_rules = settings::resize_rules(effective);
    let desired = Arc::new(DesiredPods::new(resize_rules));
    let allocations = Arc::new(AllocationManager::new(paths.root(), resize_rules, desired.clone()));
    let own_node = Arc::new(node_without_status(&settings::node_status(effective, &node.name)));
    let pod_logs = paths.pod_logs().to_owned();
    let mirrors = Arc::new(MirrorPods::default());
    let cluster = parts.cluster.map(|cluster| {
        let shared = ClusterSettings {
            effective,
            node_name: &node.name,
            container_manager: &parts.container_manager,
            clock: &clock,
            events: &events,
            desired: &desired,
            mirrors: &mirrors,
        };
        Cluster::new(cluster, shared)
    });
    let provider_metrics = parts.credential_providers.metrics();
    let unlisted = Arc::<Unlisted>::default();
    let executor = Arc::new(Executor {
        runtime: Arc::new(PodRuntime::new(
            cri.clone(),
            http,
            paths.clone(),
            settings::pod_runtime(effective, &node, parts.concurrent_starts),
            (!config.resolv_conf.is_empty()).then(|| PathBuf::from(&config.resolv_conf)),
            events.clone(),
            clock.clone(),
        )),
        images: ImageManager::new(
            &settings::image_manager(effective, &paths),
            cri.clone(),
            PullCredentials::new(
                cluster.as_ref().map(|cluster| cluster.pod_objects() as _),
                settings::node_credential_files(&paths),
                parts.credential_providers,
                events.clone(),
            ),
            events.clone(),
            clock.clone(),
        ),
        volumes: VolumeManager::with_content(
            VolumeManagerConfig {
                paths: paths.clone(),
                allocatable_memory: allocatable_memory(&parts.container_manager),
                operations_at_once: parts.concurrent_starts,
                sync_frequency: config.sync_frequency.as_duration(),
            },
            parts.mounts,
            events.clone(),
            VolumeContent {
                objects: cluster.as_ref().map(|cluster| cluster.pod_objects() as _),
                claims: cluster.as_ref().map(Cluster::claims),
                allocatable: parts.container_manager.allocatable().cloned().unwrap_or_default(),
                clock: clock.clone(),
            },
        ),
        user_namespaces: UserNamespaces::new(paths.clone(), settings::user_namespaces(config)),
        container_manager: parts.container_manager,
        probes,
        statuses: statuses.clone(),
        desired: desired.clone(),
        status_store,
        runtime_state: runtime_state_rx,
        runtime_classes: cluster.as_ref().map(Cluster::runtime_classes),
        pod_objects: cluster.as_ref().map(Cluster::pod_objects),
        paths,
        runtime_name: parts.runtime_name,
        runtime_version: parts.runtime_version,
        host_ips: HostIps { published: cluster.as_ref().map(Cluster::node), detected: node.ips },
        node_name: node.name.clone(),
        gates,
        events,
        clock: clock.clone(),
        memory: std::sync::Mutex::default(),
        metrics: Arc::default(),
        allocations,
        resizes: ResizeProgress::default(),
        resize_triggers: ResizeTriggers::default(),
        resize_metrics: Arc::default(),
        unlisted: unlisted.clone(),
    });
    let logs = LogReader::new(pod_logs.clone(), cri.clone());
    let policy = settings::log_rotation(config);
    let zone = TimeZone::system();
    let log_rotation = LogRotation::new(pod_logs, cri.clone(), policy, clock.clone(), zone);
    let workers = PodWorkers::new(executor.clone(), clock.clone(), settings::back_off(config));
    let (lifecycle_tx, lifecycle) = mpsc::channel(EVENT_CAPACITY);
    let pleg =
        Pleg::new(cri.clone(), executor.clone(), PlegSettings::default(), unlisted, lifecycle_tx);
    let (pod_config, PodChanges { changes, ready }) = parts.sources;
    let admission = Arc::new(PodAdmission::new(
        executor.clone(),
        workers.clone(),
        desired.clone(),
        pleg.handle(),
        match &cluster {
            Some(cluster) => cluster.node_object(own_node),
            None => Arc::new(OwnNode(own_node)),
        },
        config.allowed_unsafe_sysctls.clone(),
        ready.clone(),
    ));
    let handler = Arc::new(KubeletHandler {
        executor: executor.clone(),
        workers: workers.clone(),
        desired: desired.clone(),
        mirrors: mirrors.clone(),
        earlier_mirrors: cluster.as_ref().map(Cluster::earlier_mirrors),
        status_sink: cluster.as_ref().map(Cluster::sink),
        pleg: pleg.handle(),
        admission,
        waiting: Mutex::default(),
        last_deep_clean: Mutex::new(None),
        orphans: Mutex::default(),
    });
    let (into_sync_loop, inputs) = sync_loop_channels(ready);
    let sync_loop = SyncLoop::new(
        handler.clone(),
        inputs,
        SyncLoopSettings {
            sync_frequency: config.sync_frequency.as_duration(),
            ..SyncLoopSettings::default()
        },
    );
    let of_cluster = cluster.as_ref().map(Cluster::metrics).into_iter().flatten();
    let metrics = Registry::new()
        .with(Arc::new(NodeMetrics {
            name: node.name,
            gates: effective.gates.clone(),
            is_cgroup_v2: executor.container_manager.uses_cgroup_v2().ok(),
        }))
        .with(Arc::new(PodGauges {
            executor: executor.clone(),
            workers: workers.clone(),
            desired: desired.clone(),
            mirrors: mirrors.clone(),
            pleg: pleg.handle(),
            clock,
        }))
        .with(executor.metrics.clone())
        .with(executor.metrics.startup.clone())
        .with(executor.resize_metrics.clone())
        .with(Arc::new(ResizeMetricsView(executor.clone())))
        .with(workers.metrics())
        .with(pleg.handle().metrics())
        .with(cri.metrics().clone())
        .with(executor.runtime.hook_metrics())
        .with(statuses.metrics())
        .with(executor.images.metrics())
        .with(provider_metrics)
        .with(executor.volumes.metrics())
        .with(executor.volumes.volume_counts())
        .with(executor.container_manager.metrics());
    let metrics = of_cluster.fold(metrics, Registry::with);
    Kubelet {
        view: KubeletView {
            workers,
            desired,
            statuses,
            pleg: pleg.handle(),
            sync_loop: sync_loop.health(),
            cri,
            node: cluster.as_ref().map(Cluster::node),
            logs,
            executor,
            mirrors,
            metrics,
        },
        handler,
        pleg,
        lifecycle,
        runtime_state,
        probe_updates,
        sync_loop,
        into_sync_loop,
        pod_config,
        changes,
        cluster,
        status_changes,
        log_rotation,
    }
}

fn allocatable_memory(manager: &ContainerManager) -> Option<u64> {
    let allocatable = manager.allocatable().ok()?;
    u64::try_from(allocatable.memory_bytes()).ok()
}

fn sync_loop_channels(sources_ready: watch::Receiver<bool>) -> (IntoSyncLoop, SyncLoopInputs) {
    let (config_tx, config) = mpsc::channel(1);
    let (pod_lifecycle_tx, pod_lifecycle) = mpsc::channel(EVENT_CAPACITY);
    let (probes_tx, probes) = mpsc::channel(EVENT_CAPACITY);
    let (container_manager_tx, container_manager) = mpsc::channel(1);
    let senders = IntoSyncLoop {
        config: config_tx,
        pod_lifecycle: pod_lifecycle_tx,
        probes: probes_tx,
        _container_manager: container_manager_tx,
    };
    (senders, SyncLoopInputs { config, pod_lifecycle, probes, container_manager, sources_ready })
}

/// Ends what the managers have spawned when the kubelet's life ends, in whichever way.
struct EndOfLife(Arc<KubeletHandler>);

impl Drop for EndOfLife {
    fn drop(&mut self) {
        self.0.workers.abort();
        self.0.executor.probes.retain_pods(|_| false);
    }
}

impl Kubelet {
    /// What may be seen of it.
    pub fn view(&self) -> KubeletView {
        self.view.clone()
    }

    /// Lives until `stop`, and leaves the pods as they are. Dropping the future ends everything at
    /// once and without a word, as the death of the process does; only file system work that was
    /// begun is still done.
    ///
    /// # Errors
    ///
    /// A part of it died, which no part may: the process should be started anew.
    pub async fn run(self, stop: CancellationToken) -> anyhow::Result<()> {
        let handler = self.handler.clone();
        let _end = EndOfLife(handler.clone());
        let mut loops = JoinSet::new();
        let lived = tokio::select! {
            // Loops end because of it.
            biased;
            () = stop.cancelled() => Ok(()),
            died = self.live(&mut loops, &stop) => died,
        };
        // Those that hang are dropped by whoever loses patience.
        handler.waiting.lock().await.shutdown().await;
        handler.workers.shut_down().await;
        handler.executor.status_store.flush().await;
        if let Err(error) = handler.executor.allocations.flush().await {
            tracing::warn!(error = error_chain(&error), "Could not save what pods were granted");
        }
        while loops.join_next().await.is_some() {}
        lived
    }

    /// Starts the loops in order; returns when one of them ends.
    async fn live(self, loops: &mut JoinSet<()>, stop: &CancellationToken) -> anyhow::Result<()> {
        let Self { view, handler, into_sync_loop, .. } = self;
        let executor = handler.executor.clone();
        executor.images.open().await.context("failed to set up the records of image pulls")?;
        executor.allocations.load().await.context("failed to read what pods were granted")?;
        let inputs = self.cluster.as_ref().map(Cluster::inputs);
        if let Some(cluster) = self.cluster {
            let others = ClusterLoops {
                desired: handler.desired.clone(),
                mirrors: handler.mirrors.clone(),
                workers: view.workers.clone(),
                volumes: executor.volumes.clone(),
                status_changes: self.status_changes,
                cri: view.cri.clone(),
                pleg: view.pleg.clone(),
            };
            cluster.spawn(loops, others, stop);
        } else {
            // Nobody is told.
            drop(self.status_changes);
        }
        let tell_node = move |answer: Result<&v1::StatusResponse, &CriError>| {
            if let Some(inputs) = &inputs {
                inputs.observe_runtime_status(answer);
            }
        };
        let watched = watch_runtime(view.cri.clone(), self.runtime_state, tell_node, stop.clone());
        loops.spawn(watched);
        loops.spawn(self.pleg.run(stop.clone()));
        // The runtime is the truth about what runs: it is looked at before any pod is taken on.
        view.pleg.relisted_once().await;
        // And a pod may need what only some runtimes can do. A runtime that is never known is the
        // end of its watcher, which is noticed below.
        let mut runtime_state = executor.runtime_state.clone();
        drop(runtime_state.wait_for(|state| state.features.is_some()).await);

        let IntoSyncLoop { config, pod_lifecycle, probes, _container_manager } = into_sync_loop;
        loops.spawn(forward_changes(self.changes, config));
        loops.spawn(forward_snapshots(self.lifecycle, pod_lifecycle));
        loops.spawn(until(stop.clone(), forward_probes(self.probe_updates, probes)));
        loops.spawn(until(stop.clone(), wake_on_change(runtime_state, view.workers.clone())));
        let (manager, of_pods) = (executor.container_manager.clone(), executor.clone());
        let keep_cgroups = async move { manager.run(move || of_pods.active_pods()).await };
        loops.spawn(until(stop.clone(), keep_cgroups));
        let (images, stopped) = (executor.images.clone(), stop.clone());
        loops.spawn(until(stop.clone(), async move {
            images.reconcile_records().await;
            stopped.cancelled().await;
        }));
        let (admission, allocations) = (handler.admission.clone(), executor.allocations.clone());
        loops.spawn(until(stop.clone(), async move { admission.retry_resizes().await }));
        loops.spawn(until(stop.clone(), async move { allocations.run().await }));
        let (pleg, paths, rotation) = (view.pleg, executor.paths.clone(), self.log_rotation);
        let rotate_logs =
            async move { rotation.run(|| running_containers(&pleg.pods(), &paths)).await };
        loops.spawn(until(stop.clone(), rotate_logs));
        loops.spawn(self.sync_loop.run(stop.clone()));
        loops.spawn(self.pod_config.run(stop.clone()));
        executor.events.normal(EventObject::Node, "Starting", "Starting kubelet.");
        match loops.join_next().await {
            Some(Err(error)) => Err(error).context("a loop of the kubelet died"),
            Some(Ok(())) | None => bail!("a loop of the kubelet ended"),
        }
    }
}

async fn until(stop: CancellationToken, work: impl Future<Output = ()>) {
    stop.run_until_cancelled(work).await;
}

async fn forward_changes(
    mut changes: mpsc::Receiver<PodChange>,
    config: mpsc::Sender<(PodOperation, Vec<Arc<Pod>>)>,
) {
    while let Some(change) = changes.recv().await {
        let operation = match change.op {
            SourceOperation::Add => PodOperation::Add,
            SourceOperation::Update => PodOperation::Update,
            SourceOperation::Remove => PodOperation::Remove,
            SourceOperation::Delete => PodOperation::Delete,
            SourceOperation::Reconcile => PodOperation::Reconcile,
        };
        if config.send((operation, change.pods)).await.is_err() {
            return;
        }
    }
}

async fn forward_snapshots(
    mut lifecycle: mpsc::Receiver<PodLifecycleEvent>,
    snapshots: mpsc::Sender<PodSnapshot>,
) {
    while let Some(event) = lifecycle.recv().await {
        if snapshots.send(event.snapshot).await.is_err() {
            return;
        }
    }
}

async fn forward_probes(mut updates: ProbeUpdates, probes: mpsc::Sender<ProbeUpdate>) {
    loop {
        let update = updates.recv().await;
        if probes.send(update).await.is_err() {
            return;
        }
    }
}

async fn wake_on_change(mut state: watch::Receiver<RuntimeState>, workers: PodWorkers<Executor>) {
    while state.changed().await.is_ok() {
        workers.wake_all();
    }
}
