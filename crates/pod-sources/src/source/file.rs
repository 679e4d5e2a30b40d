//! `staticPodPath` as a source.
//!
//! Reading everything from time to time is the truth; inotify makes it fast. A file is read when
//! its writer has closed it, so that half of a manifest is rarely seen; when it goes away, what may
//! take its place (editors rename, scripts remove and copy) is waited for a moment.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rubelet_types::Clock;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::manifest_files::{ManifestFiles, Notice, Scan, is_ignored};
use super::watch::{DirectoryWatch, Hint};
use crate::{PodSourceHandle, StaticPodPolicy};

/// Looking more often than that would be all it does.
const SHORTEST_PERIOD: Duration = Duration::from_millis(10);
/// How long to wait with a look at everything when the directory's layout changes.
const LAYOUT_DELAY: Duration = Duration::from_millis(20);
/// First pause before a watch that could not be set is tried again; it doubles up to the period
/// unless the path is missing.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Names that are remembered between two looks; above that, everything is looked at.
const MAX_DUE: usize = 1000;

/// How long after a hint to look.
#[derive(Clone, Copy, Debug)]
struct Delays {
    /// Changes of one moment are looked at together.
    complete: Duration,
    /// How long after it was made a file may wait for its first byte. A link never gets one.
    created: Duration,
    /// How long a writer may pause.
    unfinished: Duration,
    /// How long something may take the place of a removed file.
    gone: Duration,
}

const DELAYS: Delays = Delays {
    complete: Duration::from_millis(2),
    created: Duration::from_millis(100),
    unfinished: Duration::from_millis(500),
    gone: Duration::from_millis(50),
};

/// Opens a watch; a field, so that tests can run out of watches.
type OpenWatch = fn(&Path) -> io::Result<DirectoryWatch>;

/// Reads `staticPodPath` and hands over its pods.
#[derive(Debug)]
pub(crate) struct FileSource {
    root: PathBuf,
    period: Duration,
    policy: StaticPodPolicy,
    clock: Clock,
    handle: PodSourceHandle,
    open_watch: OpenWatch,
    delays: Delays,
}

/// When to look at what.
#[derive(Debug)]
struct Agenda {
    everything: Instant,
    names: HashMap<PathBuf, Instant>,
}

impl Agenda {
    fn next(&self) -> Instant {
        self.names.values().copied().chain([self.everything]).min().unwrap_or(self.everything)
    }

    /// Takes what is due; the rest is unsettled.
    fn take_due(&mut self, now: Instant) -> (Vec<PathBuf>, BTreeSet<PathBuf>) {
        let mut due: Vec<PathBuf> = Vec::new();
        self.names.retain(|path, when| {
            let is_due = *when <= now;
            if is_due {
                due.push(path.clone());
            }
            !is_due
        });
        due.sort();
        (due, self.names.keys().cloned().collect())
    }

    fn everything_by(&mut self, when: Instant) {
        self.everything = self.everything.min(when);
    }
}

/// A watch, or when to try again to get one.
#[derive(Debug)]
enum Watching {
    Yes(DirectoryWatch),
    No { retry: Instant, pause: Duration },
}

impl FileSource {
    pub(crate) fn new(
        root: PathBuf,
        period: Duration,
        policy: StaticPodPolicy,
        clock: Clock,
        handle: PodSourceHandle,
    ) -> Self {
        Self {
            root,
            period: period.max(SHORTEST_PERIOD),
            policy,
            clock,
            handle,
            open_watch: DirectoryWatch::open,
            delays: DELAYS,
        }
    }

    /// Runs until nobody takes the pods any more.
    pub(crate) async fn run(self) {
        info!(path = %self.root.display(), "Reading static pods");
        let mut files = ManifestFiles::new(self.root.clone(), self.policy.clone());
        let start = Instant::now();
        let mut watching = Watching::No { retry: start, pause: FIRST_RETRY };
        let mut agenda = Agenda { everything: start, names: HashMap::new() };
        let mut told_polling = false;
        loop {
            let now = Instant::now();
            if now >= agenda.next() {
                // The watch comes first: what happens after the look is seen by it.
                self.renew_watch(&mut watching, now, &mut told_polling).await;
                files = match self.look(files, &mut agenda, now).await {
                    Some(files) => files,
                    None => return,
                };
                if let Watching::No { retry, .. } = &watching {
                    agenda.everything_by(*retry);
                }
                continue;
            }
            let hint = async {
                match &mut watching {
                    Watching::Yes(watch) => watch.next().await,
                    Watching::No { .. } => std::future::pending().await,
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(agenda.next()) => {}
                hint = hint => {
                    let now = Instant::now();
                    if matches!(hint, Hint::Unknown { watch_is_dead: true }) {
                        watching = Watching::No { retry: now, pause: FIRST_RETRY };
                    }
                    self.note(hint, &watching, &mut agenda, now);
                }
            }
        }
    }

    /// Puts what a hint is about on the agenda.
    fn note(&self, hint: Hint, watching: &Watching, agenda: &mut Agenda, now: Instant) {
        let (name, delay) = match hint {
            Hint::Unknown { .. } => return agenda.everything_by(now + LAYOUT_DELAY),
            Hint::Complete(name) => (name, self.delays.complete),
            Hint::Created(name) => (name, self.delays.created),
            Hint::Gone(name) => (name, self.delays.gone),
            Hint::Unfinished(name) => (name, self.delays.unfinished),
        };
        if name.as_encoded_bytes().starts_with(b"..") {
            // The links of a mounted config map now lead elsewhere.
            return agenda.everything_by(now + LAYOUT_DELAY);
        }
        let Watching::Yes(watch) = watching else { return };
        let path = watch.directory().join(&name);
        let is_one_file = watch.directory() != self.root;
        if is_one_file && path.file_name() != self.root.file_name() {
            return;
        }
        if !is_one_file && is_ignored(&name) {
            return;
        }
        if agenda.names.len() >= MAX_DUE {
            agenda.names.clear();
            return agenda.everything_by(now + LAYOUT_DELAY);
        }
        let path = if is_one_file { self.root.clone() } else { path };
        agenda.names.insert(path, now + delay);
    }

    /// Looks at what is due and hands the pods over if they changed. `None` at shutdown.
    async fn look(
        &self,
        mut files: ManifestFiles,
        agenda: &mut Agenda,
        now: Instant,
    ) -> Option<ManifestFiles> {
        let (due, unsettled) = agenda.take_due(now);
        let everything = now >= agenda.everything;
        if everything {
            agenda.everything = now + self.period;
        }
        let wall = self.clock.now();
        let looked = tokio::task::spawn_blocking(move || {
            let mut scan = Scan::empty();
            for path in &due {
                scan.extend(files.rescan_file(path, wall));
            }
            if everything {
                scan.extend(files.rescan(&unsettled, wall));
            }
            (files, scan)
        });
        let (files, scan) = match looked.await {
            Ok(looked) => looked,
            Err(error) => {
                error!(%error, "Reading static pods failed");
                // A fault of ours must not end the source: everything is read anew when it is due.
                let files = ManifestFiles::new(self.root.clone(), self.policy.clone());
                return error.is_panic().then_some(files);
            }
        };
        for notice in &scan.notices {
            report(notice);
        }
        let goes_on = !scan.changed || self.handle.set(files.pods()).await;
        goes_on.then_some(files)
    }

    /// Makes sure that the watch shows what the path leads to.
    async fn renew_watch(&self, watching: &mut Watching, now: Instant, told: &mut bool) {
        let pause = match watching {
            Watching::Yes(watch) => {
                let check = tokio::task::spawn_blocking(watch.currency_check());
                if check.await.unwrap_or(false) {
                    return;
                }
                FIRST_RETRY
            }
            Watching::No { retry, .. } if *retry > now => return,
            Watching::No { pause, .. } => *pause,
        };
        let (open, root) = (self.open_watch, self.root.clone());
        let opened = tokio::task::spawn_blocking(move || open(&root)).await;
        *watching = match opened.map_err(io::Error::other).and_then(|opened| opened) {
            Ok(watch) => {
                if std::mem::take(told) {
                    info!(path = %self.root.display(), "Watching static pods again");
                }
                Watching::Yes(watch)
            }
            Err(error) => {
                let is_missing = error.kind() == io::ErrorKind::NotFound;
                if !is_missing && !std::mem::replace(told, true) {
                    warn!(path = %self.root.display(), period = ?self.period, %error,
                        "Cannot watch static pods; they are looked at periodically only");
                }
                // A path that is missing costs next to nothing to look for.
                let next = if is_missing { FIRST_RETRY } else { pause * 2 };
                let next = next.min(self.period.max(FIRST_RETRY));
                Watching::No { retry: now + pause, pause: next }
            }
        };
    }
}

fn report(notice: &Notice) {
    match notice {
        Notice::Skipped { path, error, kept: false } => {
            error!(path = %path.display(), %error, "Could not process manifest file");
        }
        Notice::Skipped { path, error, kept: true } => {
            error!(path = %path.display(), %error,
                "Could not process manifest file; the pod of its last good version keeps running");
        }
        Notice::Warnings { path, warnings } => {
            let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            warn!(path = %path.display(), warnings = warnings.join("; "),
                "Manifest file has suspicious content");
        }
        Notice::Unlistable { path, error } => {
            error!(path = %path.display(), %error,
                "Unable to read config path; the static pods read before stay");
        }
    }
}

#[cfg(test)]
mod tests;
