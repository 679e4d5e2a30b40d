//! The phases of a start, and the way down.

use std::fs::DirBuilder;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rubelet_checkpoint::PodStatusStore;
use rubelet_config::Effective;
use rubelet_container_http::ContainerClient;
use rubelet_container_manager::{CgroupDriver, ContainerManager};
use rubelet_cri::{CriClient, CriOptions, RuntimeVersion, v1};
use rubelet_image_manager::{AnonymousPulls, ImageManager};
use rubelet_linux::{Host, LockFile};
use rubelet_pleg::{Pleg, PlegHealth, PlegSettings};
use rubelet_pod_runtime::PodRuntime;
use rubelet_pod_sources::{PodConfig, PodOperation as SourceOperation};
use rubelet_pod_status::NodeFacts;
use rubelet_pod_workers::PodWorkers;
use rubelet_probe_manager::{ProbeManager, Prober};
use rubelet_server::{
    Access, Authorization, BoundListener, HealthChecks, HealthzServer, KubeletServer,
    MinTlsVersion, ReadOnlyServer, ServingTls, TlsFiles, TlsOptions,
};
use rubelet_status_manager::StatusManager;
use rubelet_sync_loop::{PodOperation, SyncLoop, SyncLoopInputs, SyncLoopSettings};
use rubelet_types::{Clock, EventObject, NodePaths};
use rubelet_volume_manager::{HostMounts, VolumeManager, VolumeManagerConfig};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::events::log_events;
use crate::executor::{Executor, RuntimeExec};
use crate::logging;
use crate::node::Node;
use crate::pods::DesiredPods;
use crate::runtime_state::{RuntimeState, watch_runtime};
use crate::server_state::ServerState;
use crate::settings;
use crate::sync_handler::KubeletHandler;
use crate::version::{KUBERNETES_MINOR, KUBERNETES_VERSION};

/// Capacity of the channels into the sync loop.
const EVENT_CAPACITY: usize = 1000;
/// The runtime is asked again after this while it does not answer.
const RUNTIME_RETRY: Duration = Duration::from_secs(1);
/// `RuntimeConfig` is asked this often before configuration counts.
const CGROUP_DRIVER_TRIES: u32 = 3;
/// Wait between these.
const CGROUP_DRIVER_RETRY: Duration = Duration::from_secs(2);

/// Runs a kubelet until it is told to stop.
///
/// # Errors
///
/// Something without which there is no kubelet failed: the text says what and how to mend it.
pub async fn run(effective: Effective) -> anyhow::Result<()> {
    let clock = Clock::system();
    let _log = logging::init(&(&effective.config.logging).into(), clock.clone())
        .context("starting the log")?;
    announce(&effective);
    let stop = stop_on_signals()?;
    let tasks = TaskTracker::new();
    let result = serve(&effective, &clock, &stop, &tasks).await;
    stop.cancel();
    tasks.close();
    if tokio::time::timeout(settings::SHUTDOWN_LIMIT, tasks.wait()).await.is_err() {
        tracing::warn!("Some tasks did not end in time");
    }
    if result.is_ok() {
        tracing::info!("Kubelet stopped; pods are left as they are");
    }
    result
}

fn announce(effective: &Effective) {
    tracing::info!(kubeletVersion = KUBERNETES_VERSION, "Kubelet version");
    for flag in &effective.given_flags {
        tracing::info!(flag = flag.name, value = flag.value, "Flag given");
    }
    for warning in &effective.warnings {
        tracing::warn!("{warning}");
    }
    for file in &effective.skipped_files {
        tracing::debug!(file = %file.display(), "Not a drop-in, skipped");
    }
    if effective.options.is_standalone() {
        tracing::info!("Standalone mode, no API client");
    }
}

/// A token that fires on SIGTERM and SIGINT. A second signal ends the process at once.
fn stop_on_signals() -> anyhow::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    let fired = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if fired.is_cancelled() {
                tracing::warn!("Second signal, ending at once");
                rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                )
                .ok();
            }
            tracing::info!("Signal received, shutting down");
            fired.cancel();
        }
    });
    Ok(stop)
}

async fn serve(
    effective: &Effective,
    clock: &Clock,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> anyhow::Result<()> {
    let config = &effective.config;
    if !effective.options.is_standalone() {
        bail!(
            "--kubeconfig is given, and this kubelet cannot join a cluster: leave the flag out to \
             run the pods of staticPodPath and staticPodURL standalone"
        );
    }
    let _lock = take_lock_file(effective, stop).await?;
    let started = Instant::now();
    let node = Node::detect(&effective.options)?;
    let paths = settings::node_paths(effective);
    make_directories(&paths)?;
    prepare_process(effective);
    let events = log_events();

    // The health port answers first, so that a supervisor sees a kubelet that waits for its runtime.
    let sync_loop_health = Arc::new(std::sync::OnceLock::new());
    let pleg_health = Arc::new(std::sync::OnceLock::new());
    serve_healthz(effective, stop, tasks, health_checks(&sync_loop_health)).await?;

    let cri = connect_runtime(effective)?;
    let Some(version) = stop.run_until_cancelled(wait_for_runtime(&cri)).await else {
        return Ok(());
    };
    tracing::info!(
        containerRuntime = version.name,
        version = version.version,
        "Container runtime connected"
    );
    let Some(driver) = stop.run_until_cancelled(cgroup_driver(&cri, effective)).await else {
        return Ok(());
    };
    let container_manager = Arc::new(ContainerManager::new(
        settings::container_manager(effective, driver),
        Host::system(),
        events.clone(),
    ));
    container_manager.start().await.context("failed to start ContainerManager")?;

    let (runtime_state, runtime_state_rx) = watch::channel(RuntimeState::default());
    tasks.spawn(watch_runtime(cri.clone(), runtime_state, stop.clone()));

    let http = ContainerClient::new(KUBERNETES_MINOR);
    let gates = rubelet_pod_status::Gates::default();
    let (statuses, _standalone_reports_to_nobody) = StatusManager::new(clock.clone(), gates);
    let status_store = PodStatusStore::new(&paths, tokio::runtime::Handle::current());
    let (probes, mut probe_updates) = ProbeManager::new(
        Prober::new(RuntimeExec(cri.clone()), http.clone()),
        clock.clone(),
        events.clone(),
        started,
    );
    let allocatable_memory = container_manager
        .allocatable()
        .ok()
        .and_then(|allocatable| u64::try_from(allocatable.memory_bytes()).ok());
    let executor = Arc::new(Executor {
        runtime: Arc::new(PodRuntime::new(
            cri.clone(),
            http,
            paths.clone(),
            settings::pod_runtime(effective, &node, settings::concurrent_starts()),
            (!config.resolv_conf.is_empty()).then(|| PathBuf::from(&config.resolv_conf)),
            events.clone(),
            clock.clone(),
        )),
        images: ImageManager::new(
            &settings::image_manager(config),
            cri.clone(),
            AnonymousPulls,
            events.clone(),
            clock.clone(),
        ),
        volumes: VolumeManager::new(
            VolumeManagerConfig {
                paths: paths.clone(),
                allocatable_memory,
                operations_at_once: settings::concurrent_starts(),
            },
            Arc::new(HostMounts::default()),
            events.clone(),
        ),
        container_manager: container_manager.clone(),
        probes: probes.clone(),
        statuses: statuses.clone(),
        status_store: status_store.clone(),
        runtime_state: runtime_state_rx.clone(),
        paths,
        node_facts: NodeFacts {
            host_ips: node.host_ips(),
            runtime_name: version.name.clone(),
            recursive_read_only_mounts: false,
        },
        node: node.clone(),
        gates,
        events: events.clone(),
        clock: clock.clone(),
        memory: std::sync::Mutex::default(),
    });
    let workers = PodWorkers::new(executor.clone(), clock.clone(), settings::back_off(config));

    // The runtime is the truth about what runs: it is looked at before any pod is taken on.
    let (lifecycle_tx, mut lifecycle_rx) = mpsc::channel(EVENT_CAPACITY);
    let pleg = Pleg::new(cri.clone(), executor.clone(), PlegSettings::default(), lifecycle_tx);
    let pleg_handle = pleg.handle();
    let _ = pleg_health.set(pleg_handle.clone());
    tasks.spawn(pleg.run(stop.clone()));
    if stop.run_until_cancelled(pleg_handle.relisted_once()).await.is_none() {
        return Ok(());
    }

    let desired = Arc::new(DesiredPods::default());
    let handler = Arc::new(KubeletHandler {
        executor: executor.clone(),
        workers: workers.clone(),
        desired: desired.clone(),
        pleg: pleg_handle.clone(),
        allowed_unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
        last_deep_clean: Mutex::new(None),
    });
    let (pod_config, mut changes) =
        PodConfig::new(settings::pod_sources(effective, &node), clock.clone(), events.clone())?;
    let (config_tx, config_rx) = mpsc::channel(1);
    let (snapshot_tx, snapshot_rx) = mpsc::channel(EVENT_CAPACITY);
    let (probe_tx, probe_rx) = mpsc::channel(EVENT_CAPACITY);
    let (_device_tx, device_rx) = mpsc::channel(1);
    let sync_loop = SyncLoop::new(
        handler,
        SyncLoopInputs {
            config: config_rx,
            pod_lifecycle: snapshot_rx,
            probes: probe_rx,
            container_manager: device_rx,
            sources_ready: changes.ready.clone(),
        },
        SyncLoopSettings {
            sync_frequency: config.sync_frequency.as_duration(),
            ..SyncLoopSettings::default()
        },
    );
    let _ = sync_loop_health.set(sync_loop.health());
    tasks.spawn(async move {
        while let Some(change) = changes.changes.recv().await {
            let operation = match change.op {
                SourceOperation::Add => PodOperation::Add,
                SourceOperation::Update => PodOperation::Update,
                SourceOperation::Remove => PodOperation::Remove,
                SourceOperation::Delete => PodOperation::Delete,
                SourceOperation::Reconcile => PodOperation::Reconcile,
            };
            if config_tx.send((operation, change.pods)).await.is_err() {
                return;
            }
        }
    });
    tasks.spawn(async move {
        while let Some(event) = lifecycle_rx.recv().await {
            if snapshot_tx.send(event.snapshot).await.is_err() {
                return;
            }
        }
    });
    tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
        loop {
            let update = probe_updates.recv().await;
            if probe_tx.send(update).await.is_err() {
                return;
            }
        }
    }));
    tasks.spawn(wake_on_runtime_change(runtime_state_rx, workers.clone(), stop.clone()));
    let qos_pods = desired.clone();
    tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
        container_manager.run(move || qos_pods.all()).await;
    }));

    let state = Arc::new(ServerState { desired, statuses, cri, configz: config.configz() });
    serve_api(effective, &node, clock, stop, tasks, state, health_checks(&sync_loop_health))
        .await?;
    tasks.spawn(sync_loop.run(stop.clone()));
    tasks.spawn(pod_config.run(stop.clone()));

    events.normal(EventObject::Node, "Starting", "Starting kubelet.");
    notify_supervisor(stop, tasks, &sync_loop_health, &pleg_health);
    stop.cancelled().await;
    workers.shut_down().await;
    status_store.flush().await;
    Ok(())
}

type SyncLoopCheck = Arc<std::sync::OnceLock<rubelet_sync_loop::SyncLoopHealth>>;
type PlegCheck = Arc<std::sync::OnceLock<rubelet_pleg::PlegHandle>>;

fn health_checks(sync_loop: &SyncLoopCheck) -> HealthChecks {
    let sync_loop = sync_loop.clone();
    HealthChecks::ping()
        .with("log", || Ok(()))
        .with("syncloop", move || sync_loop.get().map_or(Ok(()), |health| health.check()))
}

async fn take_lock_file(
    effective: &Effective,
    stop: &CancellationToken,
) -> anyhow::Result<Option<LockFile>> {
    let Some(path) = effective.options.lock_file.clone() else { return Ok(None) };
    tracing::info!(path = %path.display(), "Acquiring file lock");
    let taking = tokio::task::spawn_blocking(move || LockFile::acquire(&path));
    match stop.run_until_cancelled(taking).await {
        Some(lock) => Ok(Some(lock?.context("unable to acquire file lock")?)),
        None => bail!("stopped while waiting for the file lock"),
    }
}

fn make_directories(paths: &NodePaths) -> anyhow::Result<()> {
    let root = paths.root();
    for (dir, mode) in [
        (root.to_owned(), 0o750),
        (paths.pod_logs().to_owned(), 0o750),
        (paths.pods_dir(), 0o750),
        (root.join("plugins"), 0o750),
        (root.join("plugins_registry"), 0o750),
        (root.join("pod-resources"), 0o750),
        (root.join("checkpoints"), 0o700),
        (paths.container_logs().to_owned(), 0o755),
    ] {
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&dir)
            .with_context(|| format!("error creating directory {}", dir.display()))?;
    }
    // Mounts that are made beneath the root have to reach containers.
    if let Err(error) = rubelet_linux::mount::ensure_shared(root) {
        tracing::warn!(path = %root.display(), error = %error,
            "Could not make the root directory a shared mount; mount propagation will not work");
    }
    Ok(())
}

fn prepare_process(effective: &Effective) {
    let config = &effective.config;
    if let Err(error) = rubelet_linux::write_own_oom_score_adj(config.oom_score_adj) {
        tracing::warn!(error = %error, "Could not set the kubelet's oom_score_adj");
    }
    let files = u64::try_from(config.max_open_files).unwrap_or(0);
    if let Err(error) = rubelet_linux::raise_open_file_limit(files) {
        tracing::warn!(error = %error, "Could not raise the limit of open files");
    }
}

fn connect_runtime(effective: &Effective) -> anyhow::Result<CriClient> {
    let config = &effective.config;
    CriClient::connect_lazy(
        &config.container_runtime_endpoint,
        Some(config.effective_image_service_endpoint()),
        CriOptions {
            request_timeout: config.runtime_request_timeout.as_duration(),
            ..CriOptions::default()
        },
    )
    .context("containerRuntimeEndpoint")
}

/// Asks until the runtime answers: it may be started after the kubelet.
async fn wait_for_runtime(cri: &CriClient) -> RuntimeVersion {
    let mut told = false;
    loop {
        match cri.check_version().await {
            Ok(version) => return version,
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(error = %error,
                        "The container runtime does not answer yet; asking again every second");
                }
                tokio::time::sleep(RUNTIME_RETRY).await;
            }
        }
    }
}

async fn cgroup_driver(cri: &CriClient, effective: &Effective) -> CgroupDriver {
    let configured = match effective.config.cgroup_driver.as_str() {
        "systemd" => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    };
    for attempt in 1..=CGROUP_DRIVER_TRIES {
        match cri.runtime_config().await {
            Ok(Some(answer)) => {
                let told = answer.linux.map(|linux| linux.cgroup_driver);
                let driver = match told.map(v1::CgroupDriver::try_from) {
                    Some(Ok(v1::CgroupDriver::Systemd)) => CgroupDriver::Systemd,
                    Some(Ok(v1::CgroupDriver::Cgroupfs)) => CgroupDriver::Cgroupfs,
                    _ => configured,
                };
                tracing::info!(cgroupDriver = ?driver, "Using cgroup driver setting received from the CRI");
                return driver;
            }
            Ok(None) => break,
            Err(error) => {
                tracing::warn!(error = %error, attempt, "Could not ask the runtime for its cgroup driver");
                if attempt < CGROUP_DRIVER_TRIES {
                    tokio::time::sleep(CGROUP_DRIVER_RETRY).await;
                }
            }
        }
    }
    tracing::info!(cgroupDriver = ?configured,
        "CRI does not tell its cgroup driver. Falling back to configuration");
    configured
}

async fn wake_on_runtime_change(
    mut state: watch::Receiver<RuntimeState>,
    workers: PodWorkers<Executor>,
    stop: CancellationToken,
) {
    while let Some(Ok(())) = stop.run_until_cancelled(state.changed()).await {
        workers.wake_all();
    }
}

fn socket(address: &str, port: i32) -> anyhow::Result<SocketAddr> {
    let ip: IpAddr = address.parse().with_context(|| format!("{address:?} is no IP address"))?;
    let port = u16::try_from(port).with_context(|| format!("{port} is no port"))?;
    Ok(SocketAddr::new(ip, port))
}

async fn serve_healthz(
    effective: &Effective,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    checks: HealthChecks,
) -> anyhow::Result<()> {
    let config = &effective.config;
    if config.healthz_port <= 0 {
        return Ok(());
    }
    let address = socket(&config.healthz_bind_address, config.healthz_port)?;
    let listener = BoundListener::bind(address).await.context("starting the healthz server")?;
    tasks.spawn(HealthzServer::new(checks).run(listener, stop.clone()));
    Ok(())
}

async fn serve_api(
    effective: &Effective,
    node: &Node,
    clock: &Clock,
    stop: &CancellationToken,
    tasks: &TaskTracker,
    state: Arc<ServerState>,
    checks: HealthChecks,
) -> anyhow::Result<()> {
    let config = &effective.config;
    if config.enable_server {
        let listener = BoundListener::bind(socket(&config.address, config.port)?)
            .await
            .context("starting the server")?;
        let path = |text: &str| (!text.is_empty()).then(|| PathBuf::from(text));
        let files = match (path(&config.tls_cert_file), path(&config.tls_private_key_file)) {
            (Some(certificate), Some(key)) => TlsFiles::Given { certificate, key },
            _ => TlsFiles::SelfSigned {
                directory: effective.options.cert_dir.clone(),
                hostname: node.name.clone(),
            },
        };
        let options = TlsOptions {
            files,
            min_version: match config.tls_min_version.as_str() {
                "VersionTLS13" => MinTlsVersion::Tls13,
                _ => MinTlsVersion::Tls12,
            },
            cipher_suites: config.tls_cipher_suites.clone(),
            client_ca_file: path(&config.authentication.x509.client_ca_file),
        };
        let now = clock.now();
        let tls = tokio::task::spawn_blocking(move || ServingTls::load(options, now)).await??;
        let access = Access {
            anonymous: config.authentication.anonymous.enabled,
            authorization: match config.authorization.mode.as_str() {
                "AlwaysAllow" => Authorization::AlwaysAllow,
                _ => Authorization::WebhookWithoutApiServer,
            },
        };
        let server = KubeletServer::new(state.clone(), checks.clone(), access, tls);
        tasks.spawn(server.run(listener, stop.clone()));
    }
    if config.read_only_port > 0 {
        let listener = BoundListener::bind(socket(&config.address, config.read_only_port)?)
            .await
            .context("starting the read-only server")?;
        tasks.spawn(ReadOnlyServer::new(state, checks).run(listener, stop.clone()));
    }
    Ok(())
}

/// Tells systemd that the kubelet is ready, and that it lives as long as its loops turn.
fn notify_supervisor(
    stop: &CancellationToken,
    tasks: &TaskTracker,
    sync_loop: &SyncLoopCheck,
    pleg: &PlegCheck,
) {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::debug!(error = %error, "Nobody to tell that the kubelet is ready");
    }
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let (sync_loop, pleg, stop) = (sync_loop.clone(), pleg.clone(), stop.clone());
    tasks.spawn(stop.run_until_cancelled_owned(async move {
        let mut ticks = tokio::time::interval(period / 2);
        loop {
            ticks.tick().await;
            let turning = sync_loop.get().is_none_or(|health| health.check().is_ok());
            let listing = pleg.get().is_none_or(|pleg| pleg.health() == PlegHealth::Healthy);
            if !turning || !listing {
                tracing::error!(turning, listing, "Unhealthy, not telling the watchdog");
                continue;
            }
            if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]) {
                tracing::warn!(error = %error, "Could not tell the watchdog");
            }
        }
    }));
}
