//! Hints that something happened in a directory of logs.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;

use futures_util::{FutureExt as _, StreamExt as _};
use inotify::{EventMask, EventStream, Inotify, WatchMask};
use tokio::sync::OwnedSemaphorePermit;

use crate::directory::LogDirectory;

/// Bytes that are read at once; one event takes at most 272.
const EVENT_BUFFER: usize = 4096;

/// As many names are remembered. Who misses one waits for the file to be quiet instead.
const MAX_CLOSED: usize = 16;

/// A watch of a directory of logs.
pub(crate) struct LogWatch {
    events: EventStream<Vec<u8>>,
    /// Files that a writer has closed since they were last asked for.
    closed: Vec<OsString>,
    is_dead: bool,
    /// The kernel has few such watches for each user.
    _permit: OwnedSemaphorePermit,
}

impl fmt::Debug for LogWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogWatch").field("closed", &self.closed).finish_non_exhaustive()
    }
}

impl LogWatch {
    pub(crate) fn open(directory: &LogDirectory, permit: OwnedSemaphorePermit) -> io::Result<Self> {
        let inotify = Inotify::init()?;
        let mask = WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::MOVED_TO
            | WatchMask::CLOSE_WRITE
            | WatchMask::ONLYDIR;
        inotify.watches().add(directory.magic_path(), mask)?;
        let events = inotify.into_event_stream(vec![0; EVENT_BUFFER])?;
        Ok(Self { events, closed: Vec::new(), is_dead: false, _permit: permit })
    }

    /// Waits until something happens, and takes in all that has. Never returns once the watch shows
    /// nothing any more.
    pub(crate) async fn changed(&mut self) {
        loop {
            if self.is_dead {
                std::future::pending::<()>().await;
            }
            let event = self.events.next().await;
            let mut happened = self.take_in(event);
            while let Some(event) = self.events.next().now_or_never() {
                happened |= self.take_in(event);
                if self.is_dead {
                    break;
                }
            }
            if happened {
                return;
            }
        }
    }

    /// Takes one event in. False if it says nothing.
    fn take_in(&mut self, event: Option<io::Result<inotify::Event<OsString>>>) -> bool {
        let Some(Ok(event)) = event else {
            self.is_dead = true;
            return false;
        };
        if event.mask.contains(EventMask::IGNORED) {
            self.is_dead = true;
        }
        if event.mask.contains(EventMask::CLOSE_WRITE)
            && let Some(name) = event.name
            && !self.closed.contains(&name)
        {
            if self.closed.len() == MAX_CLOSED {
                self.closed.remove(0);
            }
            self.closed.push(name);
        }
        true
    }

    /// A writer closed the file while it had this name. It is said once.
    pub(crate) fn take_closed(&mut self, name: &OsStr) -> bool {
        let before = self.closed.len();
        self.closed.retain(|closed| closed != name);
        self.closed.len() < before
    }
}
