//! The last published status of each pod that has no API server behind it: static pods whose mirror
//! pod cannot be reached, and every pod of a standalone kubelet. With it a restart of the kubelet
//! flips nothing: start time, phase, conditions and their transition times, and the ready, started
//! and restart count of containers are as before until something really changes.
//!
//! # Where, and why there
//!
//! One file per pod, `<root>/pod_statuses/<uid>`, not one in the pod's own directory. That one is
//! removed when a pod has ended, but a static pod that has Succeeded or Failed must still say so,
//! with its start time and conditions, after a restart of the kubelet (a phase never leaves
//! Succeeded or Failed). And nothing here waits for the pod's directory, or writes into it while it
//! is being removed. A status goes when its owner says so ([`PodStatusStore::forget`]), or when
//! [`PodStatusStore::retain`] finds that the pod is no more. A Go kubelet ignores the directory.
//!
//! # What it is worth
//!
//! A hint. The runtime stays the truth about containers: a stored container status counts only for
//! the container id it names, and never lowers a restart count (another kubelet may have run the
//! node in between). Hence no flush to the disk, which would cost milliseconds per change of a
//! container: after a power loss a status may be old or damaged, and a damaged one is ignored. The
//! containers are gone then, too.
//!
//! # How
//!
//! [`PodStatusStore::save`] only notes the wish, the latest one per pod. At most [`WRITERS`] threads
//! carry wishes out, at most one of them per pod, and they end when nothing is left to do. A disk
//! that hangs holds those threads, and nobody who saves.

mod changes;
#[cfg(test)]
mod tests;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::PodStatus;
use rubelet_types::{NodePaths, PodUid, fnv1a_128};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tracing::warn;

use self::changes::{Change, Changes, Known};
use crate::atomic::{Durability, WriteError, WriteStep, write_atomic};
use crate::envelope::{self, Damage};
use crate::file::{Contents, read_file, remove_file};

/// So many statuses are written at the same time.
const WRITERS: usize = 2;

/// Keeps the last status of pods across restarts of the kubelet. Cheap to clone; all clones are the
/// same store. There is one store per directory.
#[derive(Clone, Debug)]
pub struct PodStatusStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    runtime: Handle,
    state: Mutex<State>,
    /// Told when the last writer has ended.
    idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    changes: Changes,
    writers: usize,
}

impl PodStatusStore {
    /// The store of the node with these paths; its files are written on blocking threads of
    /// `runtime`. Does no I/O, and starts nothing.
    pub fn new(paths: &NodePaths, runtime: Handle) -> Self {
        Self {
            shared: Arc::new(Shared {
                directory: paths.pod_statuses_dir(),
                runtime,
                state: Mutex::default(),
                idle: Notify::new(),
            }),
        }
    }

    /// Keeps `status` for the pod, some moments later. Never waits; the latest one wins, and one
    /// that equals what is stored costs no write. A write that fails is logged, and made up for by
    /// the next save or [`Self::flush`].
    pub fn save(&self, uid: &PodUid, status: &PodStatus) {
        if !is_file_name(uid.as_str()) {
            warn!(pod_uid = %uid, "the pod's status is not kept: its uid cannot name a file");
            return;
        }
        match envelope::encode(status) {
            Ok(contents) => {
                let fingerprint = fnv1a_128(&contents);
                self.want(uid, Change::Write { contents: contents.into(), fingerprint });
            }
            Err(error) => {
                warn!(pod_uid = %uid, %error, "the pod's status is not kept: it has no JSON");
            }
        }
    }

    /// The status kept last, if there is one that can be used. A damaged one is logged and counts
    /// as none; the next save replaces it.
    pub async fn load(&self, uid: &PodUid) -> Option<PodStatus> {
        if !is_file_name(uid.as_str()) {
            return None;
        }
        let seen = match self.shared.state().changes.known(uid) {
            Known::Contents(contents) => return decode(uid, &contents),
            Known::Absent => return None,
            Known::OnDisk { seen } => seen,
        };
        let path = self.shared.path(uid);
        let read = self.shared.runtime.spawn_blocking(move || read_file(&path)).await;
        let contents = match read.map_err(io::Error::other).flatten() {
            Ok(Contents::Bytes(bytes)) => bytes,
            Ok(Contents::Missing) => return None,
            Ok(Contents::TooLarge) => {
                warn!(pod_uid = %uid, error = %Damage::TooLarge, "ignoring the stored pod status");
                return None;
            }
            Err(error) => {
                warn!(pod_uid = %uid, %error, "cannot read the stored pod status");
                return None;
            }
        };
        let status = decode(uid, &contents)?;
        self.shared.state().changes.note_read(uid, fnv1a_128(&contents), seen);
        Some(status)
    }

    /// Drops what is kept for the pod, some moments later. For a pod whose manifest is gone: the
    /// same manifest gives the same uid when it comes again, and begins a new life then.
    pub fn forget(&self, uid: &PodUid) {
        if is_file_name(uid.as_str()) {
            self.want(uid, Change::Remove);
        }
    }

    /// Drops what is kept for all pods that `keep` does not know, among them what earlier processes
    /// left. Call it once every source of pods has spoken, and as housekeeping. A pod that is saved
    /// while this runs stays. `keep` only looks: it must not call the store.
    pub async fn retain(&self, keep: impl Fn(&PodUid) -> bool + Send) {
        self.start_writers(self.shared.state(), |changes| changes.remove_except(&keep));
        let directory = self.shared.directory.clone();
        let listed = self.shared.runtime.spawn_blocking(move || stored_pods(&directory)).await;
        match listed.map_err(io::Error::other).flatten() {
            Ok(stored) => {
                for uid in stored.iter().filter(|uid| !keep(uid)) {
                    self.start_writers(self.shared.state(), |changes| changes.remove_unknown(uid));
                }
            }
            Err(error) => warn!(%error, "cannot list the stored pod statuses"),
        }
    }

    /// Waits until everything saved and forgotten before is done, and tries once more what failed.
    /// For shutdown; as long as the disk hangs this does not end, so give it a deadline.
    pub async fn flush(&self) {
        self.start_writers(self.shared.state(), |changes| changes.retry_failed());
        loop {
            let mut idle = pin!(self.shared.idle.notified());
            idle.as_mut().enable();
            if self.shared.state().writers == 0 {
                return;
            }
            idle.await;
        }
    }

    fn want(&self, uid: &PodUid, change: Change) {
        self.start_writers(self.shared.state(), |changes| changes.want(uid, change));
    }

    /// Makes a change to the wishes, and sees to it that somebody carries them out.
    fn start_writers(&self, mut state: MutexGuard<'_, State>, change: impl FnOnce(&mut Changes)) {
        change(&mut state.changes);
        // Those at work already do not count: they may hang.
        for _ in 0..state.changes.queued().min(WRITERS.saturating_sub(state.writers)) {
            state.writers += 1;
            let shared = Arc::clone(&self.shared);
            self.shared.runtime.spawn_blocking(move || shared.write_until_done());
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, uid: &PodUid) -> PathBuf {
        self.directory.join(uid.as_str())
    }

    fn write_until_done(&self) {
        loop {
            let (uid, change) = {
                let mut state = self.state();
                let Some(next) = state.changes.next() else {
                    // Under the same lock as the look at the queue: whoever queues after it
                    // starts a new writer.
                    state.writers -= 1;
                    if state.writers == 0 {
                        self.idle.notify_waiters();
                    }
                    return;
                };
                next
            };
            let applied = self.apply(&uid, &change);
            if let Err(error) = &applied {
                warn!(pod_uid = %uid, %error, "the stored pod status could not be changed");
            }
            self.state().changes.applied(&uid, applied.is_ok());
        }
    }

    fn apply(&self, uid: &PodUid, change: &Change) -> io::Result<()> {
        let path = self.path(uid);
        let Change::Write { contents, .. } = change else { return remove_file(&path) };
        let write = || write_atomic(&path, contents, Durability::Unsynced);
        let written = match write() {
            Err(WriteError { step: WriteStep::Create, source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                // The first status of this node.
                DirBuilder::new().mode(0o700).create(&self.directory)?;
                write()
            }
            written => written,
        };
        written.map_err(|error| error.source)
    }
}

/// Names of temporary files begin with a dot.
fn is_file_name(uid: &str) -> bool {
    NodePaths::check_element(uid).is_ok() && !uid.starts_with('.')
}

fn decode(uid: &PodUid, contents: &[u8]) -> Option<PodStatus> {
    match envelope::decode(contents) {
        Ok(status) => Some(status),
        Err(error) => {
            warn!(pod_uid = %uid, %error, "ignoring the stored pod status");
            None
        }
    }
}

/// The pods with a file in the directory, be it only what a crash during a save left.
fn stored_pods(directory: &Path) -> io::Result<Vec<PodUid>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut pods = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // Nothing of ours has another kind of name.
        let Some(uid) = name.to_str().map(|name| name.strip_prefix('.').unwrap_or(name)) else {
            continue;
        };
        if is_file_name(uid) && entry.file_type()?.is_file() {
            pods.push(PodUid::new(uid));
        }
    }
    Ok(pods)
}
