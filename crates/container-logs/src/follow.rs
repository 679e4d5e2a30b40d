//! A log as a stream of bytes.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use rubelet_types::ContainerId;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use crate::directory::LogDirectory;
use crate::error::LogError;
use crate::options::LogOptions;
use crate::read::{Reader, Step, Successor};
use crate::runtime::LogRuntime;
use crate::watch::LogWatch;

/// A follower looks so often, whether or not it was told that something happened.
const FORCED_CHECK: Duration = Duration::from_secs(1);

/// A file whose writer may still be at it is believed to be finished after so long without a word: the
/// runtime may have lines to write to a log that it was told to leave. Who watches is told when the file
/// is closed, and gives a busy machine more time.
const SILENCE: Duration = Duration::from_secs(1);
const SILENCE_WATCHED: Duration = Duration::from_secs(5);

/// Followers that are told by the kernel; further ones look each second. The kernel gives a user 128
/// such watches, and others need some, too.
const MAX_WATCHES: usize = 32;

/// While a log is rotated, it has for a moment no file of its name.
const BETWEEN_FILES: (u32, Duration) = (20, Duration::from_millis(50));

/// Reads the logs of containers for whoever asks for one.
#[derive(Clone, Debug)]
pub struct LogReader<R> {
    root: PathBuf,
    runtime: R,
    watches: Arc<Semaphore>,
}

impl<R: LogRuntime> LogReader<R> {
    /// Reads logs beneath `root` (`podLogsDir`), and nothing else.
    pub fn new(root: PathBuf, runtime: R) -> Self {
        Self { root, runtime, watches: Arc::new(Semaphore::new(MAX_WATCHES)) }
    }

    /// Opens the log of the container instance `id`. The stream ends where `options` say, or, when it
    /// follows, with the last word of the container; who drops it gives up. It reads only when it is
    /// polled. An error is the last thing it gives.
    ///
    /// # Errors
    /// The runtime does not know the container, or its log cannot be opened.
    pub async fn open(
        &self,
        id: &ContainerId,
        options: LogOptions,
    ) -> Result<impl Stream<Item = Result<Bytes, LogError>> + Send + use<R>, LogError> {
        let unknown = |source| LogError::Unknown { id: id.clone(), source };
        let path = self.runtime.log_path(id).await.map_err(unknown)?;
        let (reader, watch) = self.open_file(id, &path, &options).await?;
        let follower = Follower {
            path,
            reader: Some(reader),
            watch,
            runtime: self.runtime.clone(),
            id: id.clone(),
            asking: None,
            asked_once: false,
            stop: None,
            is_final: false,
            unfinished_since: None,
            next_check: Instant::now(),
        };
        Ok(unfold(Some(follower), async |follower| {
            let mut follower = follower?;
            match follower.next().await {
                Some(Ok(output)) => Some((Ok(output), Some(follower))),
                Some(Err(error)) => Some((Err(error), None)),
                None => None,
            }
        }))
    }

    async fn open_file(
        &self,
        id: &ContainerId,
        path: &std::path::Path,
        options: &LogOptions,
    ) -> Result<(Reader, Option<LogWatch>), LogError> {
        let (tries, pause) = BETWEEN_FILES;
        let mut tried = 1;
        loop {
            let (root, log) = (self.root.clone(), path.to_owned());
            let directory = blocking(path, move || {
                LogDirectory::open(&root, &log)
                    .map_err(|source| LogError::Open { path: log, source })
            });
            let directory = directory.await?.ok_or_else(|| LogError::Outside {
                id: id.clone(),
                path: path.to_owned(),
                root: self.root.clone(),
            })?;
            // Before the file is opened: then no writer leaves it unseen.
            let watch = if options.follow { self.watch(&directory) } else { None };
            let options = options.clone();
            let is_last_try = tried == tries;
            let opened =
                blocking(path, move || Ok((Reader::open(directory, options, is_last_try)?, watch)));
            match opened.await {
                Err(LogError::Open { source, .. }) if source.is_not_found() && !is_last_try => {
                    tried += 1;
                    sleep(pause).await;
                }
                opened => return opened,
            }
        }
    }

    fn watch(&self, directory: &LogDirectory) -> Option<LogWatch> {
        let permit = self.watches.clone().try_acquire_owned().ok()?;
        match LogWatch::open(directory, permit) {
            Ok(watch) => Some(watch),
            Err(error) => {
                tracing::debug!(%error, path = %directory.path_of(directory.log()).display(),
                    "No watch of a log, looking each second instead");
                None
            }
        }
    }
}

/// Runs what blocks where that is allowed. `path` is for the error of an executor that goes down.
async fn blocking<T: Send + 'static>(
    path: &std::path::Path,
    work: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    let ended = |error| LogError::Read { path: path.to_owned(), source: io::Error::other(error) };
    spawn_blocking(work).await.map_err(ended)?
}

/// The container does not run any more.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    /// It did when it was asked for first, so that its last words may still be on their way.
    ran_before: bool,
}

type Asking = Pin<Box<dyn Future<Output = bool> + Send>>;

struct Follower<R> {
    path: PathBuf,
    /// Away while a thread works with it. None for ever if that thread died.
    reader: Option<Reader>,
    watch: Option<LogWatch>,
    runtime: R,
    id: ContainerId,
    /// A question whether the container runs that was not answered yet.
    asking: Option<Asking>,
    asked_once: bool,
    stop: Option<Stopped>,
    /// The writer of the file is known to be done with it: its next end is its end.
    is_final: bool,
    /// Since when it has given nothing while its writer was expected to be done.
    unfinished_since: Option<Instant>,
    next_check: Instant,
}

impl<R: LogRuntime> Follower<R> {
    async fn next(&mut self) -> Option<Result<Bytes, LogError>> {
        loop {
            // Before the reading: the end of what is read afterwards is then known to be the end.
            let was_final = self.is_final;
            match self.step().await? {
                Err(error) => return Some(Err(error)),
                Ok(Step::Done) => return None,
                Ok(Step::Output(output)) => {
                    if self.unfinished_since.is_some() {
                        self.unfinished_since = Some(Instant::now());
                    }
                    if !output.is_empty() {
                        return Some(Ok(Bytes::from(output)));
                    }
                }
                Ok(Step::AtEnd(Some(successor))) => {
                    if was_final {
                        if let Err(error) = self.advance(successor).await? {
                            return Some(Err(error));
                        }
                    } else if successor.is_settled || self.is_finished(successor.own_name) {
                        self.is_final = true;
                    } else {
                        self.wait().await;
                    }
                }
                Ok(Step::AtEnd(None)) => match self.stop {
                    Some(_) if was_final => return None,
                    Some(Stopped { ran_before: false }) => self.is_final = true,
                    Some(_) => {
                        let name = self.reader.as_ref()?.log_name();
                        if self.is_finished(Some(name)) {
                            self.is_final = true;
                        } else {
                            self.wait().await;
                        }
                    }
                    None => self.wait_while_it_runs().await,
                },
            }
        }
    }

    async fn step(&mut self) -> Option<Result<Step, LogError>> {
        let mut reader = self.reader.take()?;
        let stepped = blocking(&self.path, move || Ok((reader.step(), reader))).await;
        match stepped {
            Ok((step, reader)) => {
                self.reader = Some(reader);
                Some(step)
            }
            Err(error) => Some(Err(error)),
        }
    }

    async fn advance(&mut self, to: Successor) -> Option<Result<(), LogError>> {
        let mut reader = self.reader.take()?;
        let advanced = blocking(&self.path, move || {
            let advanced = reader.advance(&to);
            Ok((advanced, reader))
        });
        match advanced.await {
            Ok((advanced, reader)) => {
                self.reader = Some(reader);
                match advanced {
                    Ok(true) => {
                        self.is_final = false;
                        self.unfinished_since = None;
                        Some(Ok(()))
                    }
                    // Looked for again at once: it was there a moment ago.
                    Ok(false) => Some(Ok(())),
                    Err(error) => Some(Err(error)),
                }
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// The writer of the file that has this name is done with it, as the kernel told, or as it is
    /// believed after a while.
    fn is_finished(&mut self, name: Option<std::ffi::OsString>) -> bool {
        let is_closed = match (&mut self.watch, &name) {
            (Some(watch), Some(name)) => watch.take_closed(name),
            _ => false,
        };
        let since = *self.unfinished_since.get_or_insert_with(Instant::now);
        let silence = if self.watch.is_some() { SILENCE_WATCHED } else { SILENCE };
        is_closed || since.elapsed() >= silence
    }

    /// Waits until something may have changed.
    async fn wait(&mut self) {
        let changed = changed(&mut self.watch);
        tokio::select! {
            () = changed => {}
            () = sleep(FORCED_CHECK) => {}
        }
    }

    /// Waits until there may be more, or the container does not run.
    async fn wait_while_it_runs(&mut self) {
        let now = Instant::now();
        let name = self.reader.as_ref().map(Reader::log_name);
        // The runtime closes the log when the container has ended.
        let is_closed = match (&mut self.watch, &name) {
            (Some(watch), Some(name)) => watch.take_closed(name),
            _ => false,
        };
        let is_due = now >= self.next_check;
        if is_due {
            self.next_check = now + FORCED_CHECK;
        }
        if (is_due || is_closed) && self.asking.is_none() {
            let (runtime, id) = (self.runtime.clone(), self.id.clone());
            self.asking = Some(Box::pin(async move { runtime.is_running(&id).await }));
        }
        let next_check = self.next_check;
        let asking = async {
            match &mut self.asking {
                Some(asking) => asking.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            is_running = asking => {
                self.asking = None;
                if !is_running {
                    self.stop = Some(Stopped { ran_before: self.asked_once });
                }
                self.asked_once = true;
            }
            () = changed(&mut self.watch) => {}
            () = sleep_until(next_check) => {}
        }
    }
}

/// Waits for a hint; for ever without a watch.
async fn changed(watch: &mut Option<LogWatch>) {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
}
