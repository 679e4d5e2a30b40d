use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rubelet_types::{EventObject, EventRecorder, NodePaths, PodUid, error_chain};
use rubelet_volume_plan::{ContainerPresence, ObservedPodVolumes, plan_volumes};
use tokio::time::Instant;

use crate::error::TearDownError;
use crate::metrics::VolumeMetrics;
use crate::observe::{ObserveError, PodDirectory, list, mounts_beneath, observe};
use crate::persistent::VolumeTurns;
use crate::port::MountPort;
use crate::tear_down::tear_down_observed;

/// How often the log names the orphans that are left.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// An orphan whose directory is still there.
#[derive(Debug)]
pub struct LeftOrphan {
    /// The pod that nobody knows any more.
    pub uid: PodUid,
    /// Why.
    pub failures: Vec<TearDownError>,
}

/// What became of the directories of unknown pods.
#[derive(Debug, Default)]
pub struct OrphanReport {
    /// Those that are gone.
    pub removed: Vec<PodUid>,
    /// Those that are left.
    pub left: Vec<LeftOrphan>,
}

/// Uids of all pods that have a directory.
pub(crate) fn pods_on_disk(paths: &NodePaths) -> Result<Vec<PodUid>, TearDownError> {
    let pods = paths.pods_dir();
    let mut uids = Vec::new();
    for name in list(&pods)? {
        // Files, and links most of all, are nobody's pod.
        let path = pods.join(&name);
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_dir() => uids.push(PodUid::new(name)),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(ObserveError::read(&path)(error).into()),
        }
    }
    Ok(uids)
}

/// Removes the directory of a pod that nobody knows, if everything in it is understood; otherwise
/// nothing at all is touched.
///
/// It was not always so: with `volumes` missing, an empty list of volumes was once taken for a
/// pod without volumes, and data behind sub-paths was deleted (kubernetes#72257).
pub(crate) fn remove_orphan(
    mounts: &dyn MountPort,
    turns: &VolumeTurns,
    metrics: &VolumeMetrics,
    pod: &PodDirectory,
) -> Vec<TearDownError> {
    match find_obstacles(mounts, pod) {
        Ok(Ok(observed)) => tear_down_observed(mounts, turns, metrics, pod, &observed),
        Ok(Err(obstacles)) => obstacles,
        Err(error) => vec![error],
    }
}

type Obstacles = Vec<TearDownError>;

fn find_obstacles(
    mounts: &dyn MountPort,
    pod: &PodDirectory,
) -> Result<Result<ObservedPodVolumes, Obstacles>, TearDownError> {
    let volumes = pod.volumes();
    let is_missing = match fs::symlink_metadata(&volumes) {
        Ok(_) => false,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(error) => return Err(ObserveError::read(&volumes)(error).into()),
    };
    if is_missing && let Some(mount) = mounts_beneath(mounts, pod.path())?.into_iter().next() {
        return Ok(Err(vec![TearDownError::VolumesMissing { volumes, mount: mount.path }]));
    }
    let observed = observe(mounts, pod)?;
    let blocked = plan_volumes(&[], &observed, ContainerPresence::Gone).blocked;
    if blocked.is_empty() {
        return Ok(Ok(observed));
    }
    Ok(Err(blocked
        .into_iter()
        .map(|blocked| TearDownError::UnknownPlugin {
            plugin_directory: blocked.plugin_directory,
            volume: blocked.name,
        })
        .collect()))
}

/// Tells people about orphans that are left, without telling them all the time.
#[derive(Debug, Default)]
pub(crate) struct OrphanLog(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    logged_at: Option<Instant>,
    reported: BTreeSet<PodUid>,
}

impl OrphanLog {
    /// One warning in the log per minute, and one event per orphan.
    pub(crate) fn report(&self, report: &OrphanReport, events: &EventRecorder, now: Instant) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.reported.retain(|uid| report.left.iter().any(|left| left.uid == *uid));
        for left in &report.left {
            if state.reported.insert(left.uid.clone()) {
                let message = describe(left);
                events.warning(EventObject::Node, "OrphanedPodNotCleanedUp", message);
            }
        }
        let Some(first) = report.left.first() else { return };
        if state.logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            state.logged_at = Some(now);
            tracing::warn!(
                count = report.left.len(),
                example = describe(first),
                "Orphaned pods found, but not cleaned up"
            );
        }
    }
}

fn describe(left: &LeftOrphan) -> String {
    let reasons: Vec<String> = left.failures.iter().map(|failure| error_chain(failure)).collect();
    format!("orphaned pod {:?} found, but {}", left.uid.as_str(), reasons.join("; "))
}
