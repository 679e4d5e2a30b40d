use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_metrics::Collector;
use rubelet_types::{
    Clock, EventObject, EventRecorder, NodePaths, PodRef, PodUid, Quantity, ResourceAmounts,
    error_chain, pod_ref,
};
use rubelet_volume_plan::{
    ContainerPresence, DesiredVolume, FailureStage, RejectedVolume, VOLUME_RETRY_INITIAL,
    VolumeAction, VolumePlugin, VolumeSource, desired_volumes, plan_volumes,
};
use tokio::time::{Instant, timeout_at};

use crate::blocking::PodOperations;
use crate::content::{ContentToSetUp, set_up_content};
use crate::contents::{Payloads, VolumeContent, cause_of};
use crate::empty_dir::{FsGroup, create_private_directories};
use crate::error::{
    EnsureVolumesError, FAILED_MOUNT, Operation, PrepareSubPathError, ReleaseVolumesError,
    SetUpError, TearDownError, VolumeFailure,
};
use crate::host_path::set_up_host_path;
use crate::memory::{Cause, Memory, RecentFailure};
use crate::metrics::{VolumeCounts, VolumeMetrics};
use crate::mounted::PodVolumes;
use crate::observe::{PodDirectory, observe, observe_sub_paths};
use crate::orphans::{LeftOrphan, OrphanLog, OrphanReport, pods_on_disk, remove_orphan};
use crate::ownership::FsGroupChangePolicy;
use crate::persistent::{SetUp, VolumeTurns};
use crate::port::MountPort;
use crate::sub_path::SubPathMount;
use crate::tear_down::{remove_sub_path, tear_down_pod};

/// How long a caller waits for a pod's volumes before it is told that they are not ready.
const OPERATION_LIMIT: Duration = Duration::from_secs(123);
/// How long the clean-up of one unknown pod may hold up that of the next.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

/// What the volume manager has to know of the node.
#[derive(Clone, Debug)]
pub struct VolumeManagerConfig {
    /// Where pods' directories are.
    pub paths: NodePaths,
    /// Allocatable memory of the node in bytes, the upper bound of memory volumes; none if unknown.
    pub allocatable_memory: Option<u64>,
    /// How many pods' volumes are worked on at once.
    pub operations_at_once: usize,
    /// `syncFrequency`: how often files are compared with what they should be, if nobody says earlier
    /// that they have changed.
    pub sync_frequency: Duration,
}

/// Mounts and unmounts the volumes of pods.
///
/// Cheap to clone; clones share everything. All methods are idempotent, and may be dropped at any
/// time: what a thread has begun goes on, and the pod's next operation waits for it.
#[derive(Clone, Debug)]
pub struct VolumeManager {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) config: VolumeManagerConfig,
    pub(crate) content: VolumeContent,
    mounts: Arc<dyn MountPort>,
    events: EventRecorder,
    operations: PodOperations,
    pub(crate) memory: Memory,
    turns: VolumeTurns,
    orphan_log: OrphanLog,
    metrics: Arc<VolumeMetrics>,
}

/// A volume that could not be set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedVolume<'a> {
    /// As the pod calls it.
    pub(crate) name: &'a str,
    /// As it is called on disk, and in what users read.
    pub(crate) spec_name: &'a str,
}

/// How the set-ups of one call went so far, by volume.
type Progress = Arc<Mutex<BTreeMap<String, Result<(), SetUpError>>>>;

/// How the set-ups of one call went.
pub(crate) struct SetUpResults {
    /// How often objects that the pod refers to had changed when they were read.
    pub(crate) changes: u64,
    /// Of a volume that has no result its end was not awaited.
    pub(crate) by_volume: BTreeMap<String, Option<Result<(), SetUpError>>>,
}

impl VolumeManager {
    /// Manages the volumes beneath `config.paths` by way of `mounts`, without an API server.
    pub fn new(
        config: VolumeManagerConfig,
        mounts: Arc<dyn MountPort>,
        events: EventRecorder,
    ) -> Self {
        let mut allocatable = ResourceAmounts::default();
        if let Some(memory) = config.allocatable_memory {
            let memory = i64::try_from(memory).unwrap_or(i64::MAX);
            allocatable.set("memory", Quantity::from_bytes(memory));
        }
        let clock = Clock::system();
        let content = VolumeContent { objects: None, claims: None, allocatable, clock };
        Self::with_content(config, mounts, events, content)
    }

    /// Manages the volumes beneath `config.paths` by way of `mounts`, those that show objects of the
    /// API among them.
    pub fn with_content(
        config: VolumeManagerConfig,
        mounts: Arc<dyn MountPort>,
        events: EventRecorder,
        content: VolumeContent,
    ) -> Self {
        let operations = PodOperations::new(config.operations_at_once);
        Self {
            inner: Arc::new(Inner {
                config,
                content,
                mounts,
                events,
                operations,
                memory: Memory::default(),
                turns: VolumeTurns::default(),
                orphan_log: OrphanLog::default(),
                metrics: Arc::default(),
            }),
        }
    }

    /// What is counted of operations on volumes.
    pub fn metrics(&self) -> Arc<VolumeMetrics> {
        self.inner.metrics.clone()
    }

    /// Counts, whenever it is asked, the volumes that there are.
    pub fn volume_counts(&self) -> Arc<dyn Collector> {
        Arc::new(VolumeCounts(self.inner.clone()))
    }

    /// Makes ready all volumes that the containers of `pod` use. Those that failed a moment ago
    /// are not tried again before their back-off (500 ms doubling to 2 m 2 s) has passed.
    ///
    /// # Errors
    /// When some volume is not ready, with the reason for each. Events have been recorded.
    pub async fn ensure_pod_volumes(
        &self,
        pod: &Arc<Pod>,
    ) -> Result<PodVolumes, EnsureVolumesError> {
        let inner = &self.inner;
        let reference = pod_ref(pod);
        let claims = inner.read_claims(pod, &reference).await;
        let desired = desired_volumes(pod, inner.config.allocatable_memory, &claims);
        if desired.volumes.is_empty() && desired.rejected.is_empty() {
            return Ok(PodVolumes::default());
        }
        let wanted = desired.volumes.iter().map(|volume| (&*volume.name, volume.plugin()));
        inner.memory.remember(&reference.uid, wanted, Instant::now());
        let mut failures = inner.waiting(&reference.uid);
        let mut is_news = false;
        for rejected in desired.rejected {
            if failures.contains_key(&rejected.name) {
                continue;
            }
            let failure = match rejected.error.stage() {
                FailureStage::Process => {
                    is_news = true;
                    inner.not_processed(&reference.uid, &rejected)
                }
                FailureStage::NodeAffinity
                | FailureStage::MountOptions
                | FailureStage::SetUp
                | FailureStage::Map => {
                    let (name, spec_name) = (&*rejected.name, &*rejected.spec_name);
                    let volume = FailedVolume { name, spec_name };
                    inner.set_up_failed(&reference, volume, &rejected.error.into(), 0).0
                }
            };
            failures.insert(rejected.name, failure);
        }
        let due: Vec<DesiredVolume> = desired
            .volumes
            .iter()
            .filter(|volume| !failures.contains_key(&volume.name))
            .cloned()
            .collect();
        let SetUpResults { changes, mut by_volume } = inner.set_up(pod, &reference, due).await;
        for DesiredVolume { name, spec_name, .. } in &desired.volumes {
            let failure = match by_volume.remove(name) {
                None | Some(Some(Ok(()))) => continue,
                Some(Some(Err(error))) => {
                    let volume = FailedVolume { name, spec_name };
                    inner.set_up_failed(&reference, volume, &error, changes).0
                }
                Some(None) => {
                    is_news = true;
                    VolumeFailure::TimedOut
                }
            };
            failures.insert(name.clone(), failure);
        }
        if failures.is_empty() {
            let has_content =
                |volume: &DesiredVolume| matches!(volume.source, VolumeSource::Content(_));
            if desired.volumes.iter().any(has_content) {
                inner.memory.keep_updated(
                    &reference.uid,
                    pod,
                    Instant::now() + inner.update_period(),
                );
            }
            return Ok(PodVolumes::new(&inner.config.paths, &reference.uid, desired.volumes));
        }
        let error = EnsureVolumesError { pod: reference, failures };
        if is_news {
            // Failed set-ups have their own events; the summary is for what has none.
            let object = EventObject::Pod(error.pod.clone());
            inner.events.warning(object, FAILED_MOUNT, error.to_string());
        }
        Err(error)
    }

    /// As [`VolumeManager::ensure_pod_volumes`], and waits for objects of the API that are missing:
    /// tries again after each back-off, and at once when
    /// [`VolumeManager::object_changed`] tells of a change, for up to 2 m 3 s. May be dropped at any
    /// time.
    ///
    /// # Errors
    /// When some volume is not ready for another reason, or not in time.
    pub async fn wait_for_pod_volumes(
        &self,
        pod: &Arc<Pod>,
    ) -> Result<PodVolumes, EnsureVolumesError> {
        let deadline = Instant::now() + OPERATION_LIMIT;
        let inner = &self.inner;
        let changed = inner.memory.changed(&pod_ref(pod).uid);
        loop {
            let mut change = pin!(changed.notified());
            // From here on no change goes unnoticed.
            change.as_mut().enable();
            let error = match self.ensure_pod_volumes(pod).await {
                Ok(volumes) => return Ok(volumes),
                Err(error) if error.awaits_object() => error,
                Err(error) => return Err(error),
            };
            let retry_at = Instant::now() + error.retry_after().unwrap_or(VOLUME_RETRY_INITIAL);
            if deadline <= retry_at {
                if timeout_at(deadline, change).await.is_err() {
                    let object = EventObject::Pod(error.pod.clone());
                    inner.events.warning(object, FAILED_MOUNT, error.to_string());
                    return Err(error);
                }
            } else {
                let _ = timeout_at(retry_at, change).await;
            }
        }
    }

    /// Takes down all volumes of a pod and removes its directory. The caller vouches that the pod's
    /// last container is gone and that none will be started.
    ///
    /// # Errors
    /// With every step that failed; the rest is done. Try again to go on.
    pub async fn release_pod_volumes(&self, pod: &PodRef) -> Result<(), ReleaseVolumesError> {
        let inner = &self.inner;
        // Before: whatever writes files from here on would write them into what has been removed.
        inner.memory.stop_updates(&pod.uid);
        let (paths, this) = (inner.config.paths.clone(), inner.clone());
        let uid = pod.uid.clone();
        let torn_down = inner.operations.run(&pod.uid, OPERATION_LIMIT, move || {
            match PodDirectory::locate(&paths, &uid) {
                Ok(directory) => {
                    tear_down_pod(&*this.mounts, &this.turns, &this.metrics, &directory)
                }
                // Where there are no pods there is nothing to take down.
                Err(error) if error.is_missing() => Vec::new(),
                Err(error) => vec![error.into()],
            }
        });
        let failures = torn_down.await.unwrap_or_else(|_| vec![TearDownError::InProgress]);
        if failures.is_empty() {
            inner.memory.forget(&pod.uid);
            return Ok(());
        }
        Err(ReleaseVolumesError {
            pod: pod.clone(),
            failures,
            retry_after: inner.memory.release_failed(&pod.uid),
        })
    }

    /// Prepares a `subPath` of a volume that is ready, and returns the path to mount into the
    /// container. A directory that is missing in the volume is made.
    ///
    /// # Errors
    /// When the path is refused, leads out of the volume, or cannot be bound.
    pub async fn prepare_sub_path(
        &self,
        pod: &PodRef,
        mount: SubPathMount,
    ) -> Result<PathBuf, PrepareSubPathError> {
        mount.check()?;
        let inner = &self.inner;
        let (paths, mounts) = (inner.config.paths.clone(), inner.mounts.clone());
        let place = mount.place();
        let path = paths
            .pod_subpaths_dir(&pod.uid)
            .join(&place.volume)
            .join(&place.container)
            .join(&place.index);
        let (uid, wanted) = (pod.uid.clone(), mount.clone());
        let prepared = inner.operations.run(&pod.uid, OPERATION_LIMIT, move || {
            let directory = PodDirectory::locate(&paths, &uid).map_err(io::Error::other)?;
            let target = directory.sub_path_within(&place);
            let (volume, sub_path) = (&wanted.volume_path, Path::new(&wanted.sub_path));
            mounts.prepare_sub_path(volume, sub_path, directory.path(), &target)
        });
        let ended = prepared.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        ended.map_err(|source| {
            let error = mount.error(source);
            // What the pod's owner gets to read leaves this out.
            tracing::warn!(%pod, error = error_chain(&error), "Could not prepare a subPath");
            error
        })?;
        Ok(path)
    }

    /// Removes the sub-paths of one container, for instance when it could not be created after all.
    /// A restart needs no such call: what is still right is kept, the rest is replaced.
    ///
    /// # Errors
    /// With every sub-path that is still there.
    pub async fn remove_container_sub_paths(
        &self,
        pod: &PodRef,
        container: &str,
    ) -> Result<(), ReleaseVolumesError> {
        let inner = &self.inner;
        let (paths, mounts) = (inner.config.paths.clone(), inner.mounts.clone());
        let (uid, container) = (pod.uid.clone(), container.to_owned());
        let removed = inner.operations.run(&pod.uid, OPERATION_LIMIT, move || {
            let found = PodDirectory::locate(&paths, &uid)
                .and_then(|directory| Ok((observe_sub_paths(&directory)?, directory)));
            let (sub_paths, directory) = match found {
                Ok(found) => found,
                Err(error) if error.is_missing() => return Vec::new(),
                Err(error) => return vec![error.into()],
            };
            sub_paths
                .iter()
                .filter(|sub_path| sub_path.container == container)
                .filter_map(|sub_path| remove_sub_path(&*mounts, &directory, sub_path).err())
                .collect()
        });
        let failures = removed.await.unwrap_or_else(|_| vec![TearDownError::InProgress]);
        if failures.is_empty() {
            return Ok(());
        }
        Err(ReleaseVolumesError { pod: pod.clone(), failures, retry_after: VOLUME_RETRY_INITIAL })
    }

    /// Removes the directories of pods that are neither in `keep` nor have been given volumes by
    /// this process since. `keep` must name every pod that is desired, being stopped, or has a
    /// container in the runtime. What is not fully understood is left as it is; the log names it
    /// once a minute, an event once.
    ///
    /// # Errors
    /// When the pods' directories cannot be listed.
    pub async fn clean_orphans(
        &self,
        keep: &HashSet<PodUid>,
    ) -> Result<OrphanReport, TearDownError> {
        let inner = &self.inner;
        let on_disk = {
            let paths = inner.config.paths.clone();
            // No pod has this uid: the listing has a turn of its own.
            let nobody = PodUid::new("");
            let listed = inner.operations.run(&nobody, ORPHAN_LIMIT, move || pods_on_disk(&paths));
            listed.await.unwrap_or(Err(TearDownError::InProgress))?
        };
        let mut report = OrphanReport::default();
        for uid in on_disk {
            if keep.contains(&uid) || inner.memory.knows(&uid) {
                continue;
            }
            let (paths, this) = (inner.config.paths.clone(), inner.clone());
            let orphan = uid.clone();
            let removed = inner.operations.try_run(&uid, ORPHAN_LIMIT, move || {
                match PodDirectory::locate(&paths, &orphan) {
                    Ok(directory) => {
                        remove_orphan(&*this.mounts, &this.turns, &this.metrics, &directory)
                    }
                    Err(error) => vec![error.into()],
                }
            });
            let failures = match removed.await {
                Some(Ok(failures)) => failures,
                // It has just become somebody's pod.
                None if inner.memory.knows(&uid) => continue,
                Some(Err(_)) | None => vec![TearDownError::InProgress],
            };
            if failures.is_empty() {
                tracing::info!(pod_uid = %uid, "Removed the directory of an orphaned pod");
                report.removed.push(uid);
            } else {
                report.left.push(LeftOrphan { uid, failures });
            }
        }
        inner.metrics.orphans.set_count(report.removed.len() + report.left.len());
        inner.metrics.orphans_left.set_count(report.left.len());
        inner.orphan_log.report(&report, &inner.events, Instant::now());
        Ok(report)
    }
}

impl Inner {
    /// Sets up what is due of `volumes`.
    pub(crate) async fn set_up(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        reference: &PodRef,
        volumes: Vec<DesiredVolume>,
    ) -> SetUpResults {
        let by_volume: BTreeMap<_, _> =
            volumes.iter().map(|volume| (volume.name.clone(), None)).collect();
        let mut results = SetUpResults { changes: self.memory.changes(&reference.uid), by_volume };
        if volumes.is_empty() {
            return results;
        }
        let deadline = Instant::now() + OPERATION_LIMIT;
        let progress = Progress::default();
        let fs_group = fs_group(pod);
        let shows_objects = volumes.iter().any(|v| matches!(v.source, VolumeSource::Content(_)));
        let mut turn = None;
        let mut payloads = Payloads::new();
        if shows_objects {
            let content_turn = self.memory.content_turn(&reference.uid);
            let Ok(taken) = timeout_at(deadline, content_turn.lock_owned()).await else {
                return results;
            };
            turn = Some(taken);
            // What was missed while waiting for the turn is in what is read now.
            results.changes = self.memory.changes(&reference.uid);
            let gid = fs_group.as_ref().ok().copied().flatten().map(|group| group.gid);
            payloads = self.payloads(pod, reference, &volumes, gid).await;
        }
        let job = SetUpJob {
            inner: self.clone(),
            fs_group: fs_group.map_err(|error| error_chain(&error)),
            reference: reference.clone(),
            volumes: volumes.clone(),
            payloads,
            progress: progress.clone(),
        };
        let limit = deadline.saturating_duration_since(Instant::now());
        // Whether it ended or not, the progress tells how far it came.
        let _ = self.operations.run(&reference.uid, limit, move || job.run()).await;
        drop(turn);
        let done = std::mem::take(&mut *progress.lock().unwrap_or_else(PoisonError::into_inner));
        for volume in &volumes {
            if let Some(Ok(())) = done.get(&volume.name) {
                let is_host_path = volume.plugin() == VolumePlugin::HostPath;
                let wanted_since =
                    self.memory.succeeded(&reference.uid, &volume.name, is_host_path);
                if let Some(since) = wanted_since {
                    self.metrics.ready(volume.plugin(), since.elapsed());
                }
            }
        }
        results.by_volume.extend(done.into_iter().map(|(name, result)| (name, Some(result))));
        results
    }

    fn waiting(&self, pod: &PodUid) -> BTreeMap<String, VolumeFailure> {
        self.memory
            .waiting(pod, Instant::now())
            .into_iter()
            .map(|(volume, failure)| {
                let RecentFailure { remaining: retry_after, message, cause } = failure;
                let failure = match cause {
                    Cause::NotProcessed => VolumeFailure::NotProcessed { message, retry_after },
                    Cause::Object { .. } | Cause::Other => {
                        let awaits_object = cause.awaits_object();
                        VolumeFailure::SetUpFailed { message, retry_after, awaits_object }
                    }
                };
                (volume, failure)
            })
            .collect()
    }

    /// Remembers a volume that leads nowhere as it is specified.
    fn not_processed(&self, pod: &PodUid, rejected: &RejectedVolume) -> VolumeFailure {
        let message = error_chain(&rejected.error);
        let (cause, now) = (Cause::NotProcessed, Instant::now());
        let retry_after = self.memory.failed(pod, &rejected.name, &message, cause, now);
        VolumeFailure::NotProcessed { message, retry_after }
    }

    /// Tells of a failed set-up; returns it as users read it and how long it waits.
    pub(crate) fn set_up_failed(
        &self,
        pod: &PodRef,
        volume: FailedVolume<'_>,
        error: &SetUpError,
        changes: u64,
    ) -> (VolumeFailure, Duration) {
        let Operation { failure, reason } = error.operation();
        let FailedVolume { name, spec_name } = volume;
        let message = format!("{failure} for volume {spec_name:?} : {}", error_chain(error));
        self.events.warning(EventObject::Pod(pod.clone()), reason, message.clone());
        tracing::warn!(%pod, volume = name, "{message}");
        let cause = cause_of(error, changes);
        let retry_after = self.memory.failed(&pod.uid, name, &message, cause, Instant::now());
        let awaits_object = cause.awaits_object();
        (VolumeFailure::SetUpFailed { message, retry_after, awaits_object }, retry_after)
    }
}

/// `fsGroup` of a pod with its policy.
fn fs_group(pod: &Pod) -> Result<Option<FsGroup>, SetUpError> {
    let Some(context) = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref()) else {
        return Ok(None);
    };
    let Some(fs_group) = context.fs_group else { return Ok(None) };
    let gid = u32::try_from(fs_group).map_err(|_| SetUpError::FsGroup { fs_group })?;
    let policy = FsGroupChangePolicy::parse(context.fs_group_change_policy.as_deref());
    Ok(Some(FsGroup { gid, policy }))
}

/// It is where a dead server or a dead disk does not answer.
fn may_hang(volume: &DesiredVolume) -> bool {
    matches!(
        volume.source,
        VolumeSource::HostPath(_)
            | VolumeSource::Local(_)
            | VolumeSource::Nfs(_)
            | VolumeSource::Block(_)
    )
}

/// The blocking part of [`Inner::set_up`].
struct SetUpJob {
    inner: Arc<Inner>,
    reference: PodRef,
    volumes: Vec<DesiredVolume>,
    payloads: Payloads,
    fs_group: Result<Option<FsGroup>, String>,
    progress: Progress,
}

impl SetUpJob {
    fn run(mut self) {
        if !self.inner.memory.may_update(&self.reference.uid) {
            // Everything has been taken down since this was ordered.
            return;
        }
        let (directory, actions) = match self.plan() {
            Ok(planned) => planned,
            Err(error) => {
                // One reason for all of them, and the volumes do not share its cause.
                let message = error_chain(&error);
                for volume in &self.volumes {
                    let error = SetUpError::Preparation { message: message.clone() };
                    self.finish(&volume.name, Err(error));
                }
                return;
            }
        };
        // What cannot hang goes first.
        let (may_hang, others): (Vec<_>, Vec<_>) = actions.into_iter().partition(may_hang);
        for volume in others.into_iter().chain(may_hang) {
            let begun = Instant::now();
            let result = self.set_up(&directory, &volume);
            let is_block = matches!(volume.source, VolumeSource::Block(_));
            let (took, done) = (begun.elapsed(), result.is_ok());
            self.inner.metrics.set_up(volume.plugin(), is_block, took, done);
            self.finish(&volume.name, result);
        }
    }

    /// Reports what is in place already, and returns what is to be set up.
    fn plan(&self) -> Result<(PodDirectory, Vec<DesiredVolume>), SetUpError> {
        let Inner { config, mounts, memory, .. } = &*self.inner;
        create_private_directories(&config.paths.pods_dir())?;
        let directory = PodDirectory::locate(&config.paths, &self.reference.uid)?;
        create_private_directories(&directory.volumes())?;
        let is_content = |volume: &DesiredVolume| matches!(volume.source, VolumeSource::Content(_));
        if self.volumes.iter().all(is_content) {
            // Files are compared whatever is there. This is what goes on at rest, for each pod once a
            // minute, and to observe means to read a mount table as long as there are pods.
            return Ok((directory, self.volumes.clone()));
        }
        let mut observed = observe(&**mounts, &directory)?;
        observed.checked_host_paths = memory.checked_host_paths(&self.reference.uid);
        let plan = plan_volumes(&self.volumes, &observed, ContainerPresence::MayRun);
        for volume in plan.in_place {
            self.finish(&volume.name, Ok(()));
        }
        let due = plan.actions.into_iter().filter_map(|action| match action {
            VolumeAction::SetUp(volume) => Some(volume),
            // While containers may run, no plan takes anything down.
            VolumeAction::RemoveSubPath(_)
            | VolumeAction::TearDownDirectory { .. }
            | VolumeAction::Unmount { .. }
            | VolumeAction::RemoveDeviceLink { .. }
            | VolumeAction::RemoveEmptyDirectory { .. } => None,
        });
        Ok((directory, due.collect()))
    }

    fn set_up(
        &mut self,
        directory: &PodDirectory,
        volume: &DesiredVolume,
    ) -> Result<(), SetUpError> {
        let mounts = &*self.inner.mounts;
        let set_up = SetUp {
            mounts,
            directory,
            pod: &self.reference,
            events: &self.inner.events,
            turns: &self.inner.turns,
        };
        let fs_group =
            || self.fs_group.clone().map_err(|message| SetUpError::Preparation { message });
        match &volume.source {
            VolumeSource::EmptyDir(empty_dir) => {
                set_up.empty_dir(&volume.name, empty_dir, fs_group()?)
            }
            VolumeSource::HostPath(host_path) => set_up_host_path(host_path),
            VolumeSource::Local(local) => set_up.local(volume, local, fs_group()?),
            VolumeSource::Nfs(nfs) => set_up.nfs(volume, nfs),
            VolumeSource::Block(block) => set_up.block(volume, block),
            // The runtime mounts it.
            VolumeSource::Image(_) => Ok(()),
            VolumeSource::Content(content) => {
                fs_group()?;
                let Some(payload) = self.payloads.remove(&volume.name) else {
                    let message = "what its files should be was not read".to_owned();
                    return Err(SetUpError::Preparation { message });
                };
                let now = self.inner.content.clock.now();
                let content = ContentToSetUp { name: &volume.name, volume: content, payload, now };
                set_up_content(mounts, directory, content)
            }
        }
    }

    fn finish(&self, volume: &str, result: Result<(), SetUpError>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.insert(volume.to_owned(), result);
    }
}
