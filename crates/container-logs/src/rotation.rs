//! Keeps the logs of running containers small.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use jiff::tz::TimeZone;
use rubelet_linux::path::PathError;
use rubelet_types::{Clock, ContainerId, error_chain};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use crate::directory::LogDirectory;
use crate::error::RotateError;
use crate::rotate::{directory_error, prepare, put_back, set_aside};
use crate::runtime::LogRuntime;

/// When and how logs are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationPolicy {
    /// `containerLogMaxSize`: a log of so many bytes is rotated.
    pub max_size: u64,
    /// `containerLogMaxFiles`: so many files of a container instance are kept, the one that is written
    /// among them; at least 2.
    pub max_files: usize,
    /// `containerLogMaxWorkers`: so many logs are rotated at once.
    pub workers: usize,
    /// `containerLogMonitorInterval`: the sizes are looked at so often.
    pub interval: Duration,
}

/// A container whose log may grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningContainer {
    /// The runtime's id.
    pub id: ContainerId,
    /// Where its log should be.
    pub log: PathBuf,
}

/// What is due for a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    /// It is too large.
    Rotate,
    /// It is not there: somebody removed it, or a rotation was interrupted.
    Reopen,
}

/// Rotates logs. Those of containers that have ended do not grow, and stay as they are.
#[derive(Clone, Debug)]
pub struct LogRotation<R> {
    root: PathBuf,
    runtime: R,
    policy: RotationPolicy,
    clock: Clock,
    zone: TimeZone,
}

impl<R: LogRuntime> LogRotation<R> {
    /// Rotates logs beneath `root` (`podLogsDir`), named after the time in `zone`.
    pub fn new(
        root: PathBuf,
        runtime: R,
        policy: RotationPolicy,
        clock: Clock,
        zone: TimeZone,
    ) -> Self {
        Self { root, runtime, policy, clock, zone }
    }

    /// Looks after the logs of all `running` containers, for as long as it is polled.
    pub async fn run(&self, running: impl Fn() -> Vec<RunningContainer>) {
        let mut ticks = interval(self.policy.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look_after(running()).await;
        }
    }

    /// One round: rotates what has become too large, and has the runtime open what is missing. What
    /// cannot be done is told to the log, and left to the next round.
    pub async fn look_after(&self, running: Vec<RunningContainer>) {
        let (root, max_size) = (self.root.clone(), self.policy.max_size);
        let looked = spawn_blocking(move || {
            let mut due = Vec::new();
            for container in running {
                match look(&root, &container.log, max_size) {
                    Ok(Due::Nothing) => {}
                    Ok(what) => due.push((container, what)),
                    Err(error) => tracing::warn!(error = error_chain(&error),
                        path = %container.log.display(), "Failed to stat container log"),
                }
            }
            due
        });
        let due = looked.await.unwrap_or_default();
        stream::iter(due)
            .for_each_concurrent(self.policy.workers.max(1), async |(container, what)| {
                if let Err(error) = self.do_what_is_due(&container, what).await {
                    tracing::warn!(error = error_chain(&error), containerID = %container.id,
                        path = %container.log.display(), "Failed to rotate log for container");
                }
            })
            .await;
    }

    async fn do_what_is_due(
        &self,
        container: &RunningContainer,
        what: Due,
    ) -> Result<(), RotateError> {
        match what {
            Due::Nothing => Ok(()),
            Due::Rotate => self.rotate(&container.id, &container.log).await,
            Due::Reopen => {
                // It may log somewhere else, or be gone.
                let Ok(log) = self.runtime.log_path(&container.id).await else { return Ok(()) };
                let (root, path, max_size) = (self.root.clone(), log.clone(), self.policy.max_size);
                let what = blocking(&log, move || look(&root, &path, max_size)).await?;
                match what {
                    Due::Nothing => Ok(()),
                    Due::Rotate => self.rotate(&container.id, &log).await,
                    Due::Reopen => {
                        tracing::info!(containerID = %container.id, path = %log.display(),
                            "Container log does not exist, having it reopened");
                        self.reopen(&container.id).await
                    }
                }
            }
        }
    }

    async fn reopen(&self, id: &ContainerId) -> Result<(), RotateError> {
        self.runtime
            .reopen(id)
            .await
            .map_err(|source| RotateError::Reopen { id: id.clone(), source })
    }

    async fn rotate(&self, id: &ContainerId, log: &Path) -> Result<(), RotateError> {
        let (root, path, max_files) = (self.root.clone(), log.to_owned(), self.policy.max_files);
        let now = self.clock.now().to_zoned(self.zone.clone()).datetime();
        let (directory, rotated) = blocking(log, move || {
            let Some(directory) = open(&root, &path)? else {
                return Err(outside(&path));
            };
            for failure in prepare(&directory, max_files)? {
                tracing::warn!(error = error_chain(&failure), "A rotated log stays as it is");
            }
            let rotated = set_aside(&directory, now)?;
            Ok((directory, rotated))
        })
        .await?;
        tracing::debug!(containerID = %id, path = %log.display(), "Rotated container log");
        let reopened = self.reopen(id).await;
        if reopened.is_err() {
            blocking(log, move || put_back(&directory, rotated)).await?;
        }
        reopened
    }
}

fn open(root: &Path, log: &Path) -> Result<Option<LogDirectory>, RotateError> {
    LogDirectory::open(root, log)
        .map_err(|source| RotateError::Directory { path: log.to_owned(), source })
}

fn outside(log: &Path) -> RotateError {
    let source = PathError::NotBeneath { path: log.to_owned() };
    RotateError::Directory { path: log.to_owned(), source }
}

/// What is due for a log. One that lies elsewhere is nobody's business.
fn look(root: &Path, log: &Path, max_size: u64) -> Result<Due, RotateError> {
    let directory = match open(root, log) {
        Ok(Some(directory)) => directory,
        Ok(None) => return Ok(Due::Nothing),
        Err(RotateError::Directory { source, .. }) if source.is_not_found() => {
            return Ok(Due::Reopen);
        }
        Err(error) => return Err(error),
    };
    match directory.size() {
        Ok(size) if size >= max_size => Ok(Due::Rotate),
        Ok(_) => Ok(Due::Nothing),
        Err(error) if error.is_not_found() => Ok(Due::Reopen),
        // A runtime that keeps its logs elsewhere looks after them itself.
        Err(PathError::Link { .. }) => Ok(Due::Nothing),
        Err(error) => Err(directory_error(&directory, error)),
    }
}

async fn blocking<T: Send + 'static>(
    log: &Path,
    work: impl FnOnce() -> Result<T, RotateError> + Send + 'static,
) -> Result<T, RotateError> {
    let ended = |error| {
        let (root, path) = (PathBuf::new(), log.to_owned());
        let source = PathError::Os { root, path, source: io::Error::other(error) };
        RotateError::Directory { path: log.to_owned(), source }
    };
    spawn_blocking(work).await.map_err(ended)?
}
