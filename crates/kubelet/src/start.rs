//! The phases of a start, and the way down.

#[cfg(test)]
mod tests;

use std::fs::DirBuilder;
use std::future::Future;
use std::os::unix::fs::DirBuilderExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::StreamExt;
use inotify::{Inotify, WatchMask};
use rubelet_config::Effective;
use rubelet_container_manager::CgroupDriver;
use rubelet_cri::{CriClient, CriError, RuntimeVersion, v1};
use rubelet_event_recorder::log_events;
use rubelet_linux::{Host, LockFile};
use rubelet_pleg::PlegHealth;
use rubelet_pod_sources::PodSource;
use rubelet_server::{HealthChecks, HealthMetrics};
use rubelet_sync_loop::SyncLoopHealth;
use rubelet_types::{Clock, NodePaths};
use rubelet_volume_manager::HostMounts;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::access_settings;
use crate::cluster::ClusterParts;
use crate::credentials::{Joined, SignedServing};
use crate::iptables::keep_iptables_chains;
use crate::logging::{self, LogHandle};
use crate::metrics::{self, OtherMetrics};
use crate::node::Node;
use crate::rest::return_memory;
use crate::server_state::ServerState;
use crate::servers;
use crate::settings;
use crate::version::KUBERNETES_VERSION;
use crate::wiring::{
    KubeletView, Parts, assemble, credential_providers, event_recorder, pod_sources,
    start_container_manager,
};

/// The directory of archives of containers, beneath the root directory.
const CHECKPOINTS: &str = "checkpoints";
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
    let log = logging::init(&(&effective.config.logging).into(), clock.clone())
        .context("starting the log")?;
    announce(&effective);
    let stop = stop_on_signals()?;
    let tasks = TaskTracker::new();
    let life = serve(&effective, &clock, log, &stop, &tasks);
    let result = Box::pin(limit_shutdown(life, &stop)).await;
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

/// Gives `life` a short while to end in good order once `stop` fires.
async fn limit_shutdown(
    life: impl Future<Output = anyhow::Result<()>>,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let out_of_patience = async {
        stop.cancelled().await;
        tokio::time::sleep(settings::SHUTDOWN_LIMIT).await;
    };
    tokio::select! {
        biased;
        ended = life => ended,
        () = out_of_patience => {
            tracing::warn!("Work in flight did not end in time, leaving it to the next start");
            Ok(())
        }
    }
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

/// The phases of a start, in order, and then the kubelet's life.
async fn serve(
    effective: &Effective,
    clock: &Clock,
    log: LogHandle,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> anyhow::Result<()> {
    let _lock = take_lock_file(effective, stop).await?;
    exit_on_lock_contention(effective, stop, tasks)?;
    access_settings(effective).check(effective.options.kubeconfig.is_some())?;
    let (started, began) = (Instant::now(), clock.now());
    let node = Node::detect(&effective.options)?;
    let paths = settings::node_paths(effective);
    make_directories(&paths)?;
    prepare_process(effective);
    let credential_providers = credential_providers(effective)?;
    // The health port answers first, so that a supervisor sees a kubelet that waits for its
    // certificate or its runtime.
    let health = Health::default();
    servers::serve_healthz(effective, stop, tasks, health.checks()).await?;

    let joining = Joined::join(effective, &node, clock);
    let Some(joined) = stop.run_until_cancelled(joining).await else { return Ok(()) };
    let joined = joined?;
    let api = joined.as_ref().map(|joined| joined.api.clone());
    let client_certificate = joined.as_ref().and_then(|joined| joined.certificate_metrics(clock));
    // From now on, so that a certificate is asked for while the runtime is still away.
    let certificate_kept =
        joined.map(|joined| tokio::spawn(joined.keep_client_certificate(stop.clone())));
    let (events, event_sender) = match &api {
        Some(_) => {
            let (events, sender) = event_recorder(effective, &node, clock.clone());
            (events, Some(sender))
        }
        None => (log_events(&node.name), None),
    };

    let cri = connect_runtime(effective)?;
    let Some(version) = stop.run_until_cancelled(wait_for_runtime(&cri)).await else {
        return Ok(());
    };
    tracing::info!(
        containerRuntime = version.name,
        version = version.version,
        "Container runtime connected"
    );
    if api.is_none()
        && let Err(error) = tell_pod_cidr(&cri, &effective.config.pod_cidr).await
    {
        tracing::warn!(error = %error, "Could not tell the runtime the node's podCIDR");
    }
    let Some(driver) = stop.run_until_cancelled(cgroup_driver(&cri, effective)).await else {
        return Ok(());
    };
    let container_manager =
        start_container_manager(effective, driver, Host::system(), events.clone()).await?;
    let mut sources = pod_sources(effective, &node, clock.clone(), events.clone())?;
    let cluster = api.clone().zip(event_sender).map(|(api, events)| ClusterParts {
        api,
        pods: sources.0.register_source(PodSource::Api),
        events,
        host: Host::system(),
    });
    let checkpoints = paths.root().join(CHECKPOINTS);
    let kubelet = assemble(Parts {
        effective,
        paths,
        clock: clock.clone(),
        cri,
        runtime_name: version.name,
        runtime_version: version.version,
        container_manager,
        credential_providers,
        mounts: Arc::new(HostMounts),
        sources,
        node: node.clone(),
        events,
        cluster,
        concurrent_starts: settings::concurrent_starts(),
        started,
    });
    let view = kubelet.view();
    health.watch(&view);
    let config = &effective.config;
    let state = Arc::new(ServerState {
        view: view.clone(),
        configz: config.configz(),
        log,
        flags: effective
            .given_flags
            .iter()
            .map(|flag| (flag.name.to_owned(), flag.value.clone()))
            .collect(),
        clock: clock.clone(),
        started: began,
        checkpoints,
        streaming_idle_timeout: config.streaming_connection_idle_timeout.as_duration(),
    });
    let access = servers::access(effective, &node, api.clone())?;
    let signed = match (api, view.node()) {
        (Some(api), Some(handle)) if config.server_tls_bootstrap => {
            Some(SignedServing::open(effective, &node.name, clock, (api, handle)).await?)
        }
        _ => None,
    };
    let metrics = metrics::endpoints(
        &view,
        OtherMetrics {
            client_certificate,
            health: health.metrics.clone(),
            access: access.metrics(),
            serving_certificate: signed.as_ref().map(|signed| signed.metrics(clock)),
            ..OtherMetrics::default()
        },
    );
    let parts = servers::ApiParts { state, checks: health.checks(), access, signed, metrics };
    servers::serve_api(effective, &node, stop, tasks, parts).await?;
    tasks.spawn(until_stopped(stop.clone(), tell_supervisor(view)));
    if config.make_iptables_util_chains {
        tasks.spawn(until_stopped(stop.clone(), keep_iptables_chains()));
    }
    tasks.spawn(until_stopped(stop.clone(), return_memory()));
    let live = kubelet.run(stop.clone());
    match certificate_kept {
        Some(certificate_kept) => tokio::select! {
            biased;
            lived = live => lived,
            // It ends for no other reason before the kubelet does.
            Ok(Err(lost)) = certificate_kept => Err(lost),
        },
        None => live.await,
    }
}

async fn until_stopped(stop: CancellationToken, work: impl Future<Output = ()>) {
    stop.run_until_cancelled(work).await;
}

/// The checks of the health ports, which answer before there is a kubelet to ask.
#[derive(Clone, Debug, Default)]
struct Health {
    sync_loop: Arc<OnceLock<SyncLoopHealth>>,
    metrics: Arc<HealthMetrics>,
}

impl Health {
    fn watch(&self, view: &KubeletView) {
        // It is set once: there is one kubelet in a process.
        let _ = self.sync_loop.set(view.sync_loop().clone());
    }

    fn checks(&self) -> HealthChecks {
        let sync_loop = self.sync_loop.clone();
        HealthChecks::ping()
            .counted_in(self.metrics.clone())
            .with("log", || Ok(()))
            .with("syncloop", move || sync_loop.get().map_or(Ok(()), |health| health.check()))
    }
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

/// With `--exit-on-lock-contention`: ends the kubelet when somebody else opens the lock file, so that
/// the node can be handed over.
fn exit_on_lock_contention(
    effective: &Effective,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> anyhow::Result<()> {
    if !effective.options.exit_on_lock_contention {
        return Ok(());
    }
    let path = effective
        .options
        .lock_file
        .clone()
        .context("cannot exit on lock file contention: no lock file specified")?;
    let inotify = Inotify::init().context("watching the lock file")?;
    inotify
        .watches()
        .add(&path, WatchMask::OPEN | WatchMask::DELETE_SELF)
        .with_context(|| format!("watching the lock file {}", path.display()))?;
    let mut events = inotify.into_event_stream([0u8; 1024]).context("watching the lock file")?;
    let contended = stop.clone();
    tasks.spawn(until_stopped(stop.clone(), async move {
        if events.next().await.is_some() {
            tracing::info!(path = %path.display(), "Lock file contention, ending");
            contended.cancel();
        }
    }));
    Ok(())
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
        (root.join(CHECKPOINTS), 0o700),
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
        settings::cri(effective),
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

/// Standalone, the pods' address range comes from configuration.
async fn tell_pod_cidr(cri: &CriClient, pod_cidr: &str) -> Result<(), CriError> {
    if pod_cidr.is_empty() {
        return Ok(());
    }
    cri.update_runtime_config(pod_cidr).await
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

/// Tells systemd that the kubelet is ready once it has looked at the runtime, and then that it lives
/// as long as its loops turn.
async fn tell_supervisor(view: KubeletView) {
    view.pleg().relisted_once().await;
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        tracing::debug!(error = %error, "Nobody to tell that the kubelet is ready");
    }
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = tokio::time::interval(period / 2);
    loop {
        ticks.tick().await;
        let turning = view.sync_loop().check().is_ok();
        let listing = view.pleg().health() == PlegHealth::Healthy;
        if !turning || !listing {
            tracing::error!(turning, listing, "Unhealthy, not telling the watchdog");
            continue;
        }
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]) {
            tracing::warn!(error = %error, "Could not tell the watchdog");
        }
    }
}
