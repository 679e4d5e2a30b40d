//! Hints that something happened in a manifest directory.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use inotify::{EventMask, EventStream, Inotify, WatchMask};

/// Bytes that are read at once; one event takes at most 272.
const EVENT_BUFFER: usize = 4096;

/// What happened to a name in the watched directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// It is complete: a writer closed it, it was moved in, or its attributes changed.
    Complete(OsString),
    /// It is new: a link, which is complete, or a file that will be written at once.
    Created(OsString),
    /// It is being written; its content means nothing yet.
    Unfinished(OsString),
    /// It is gone; often something else takes its place at once.
    Gone(OsString),
    /// Events were lost, or the directory itself went away.
    Unknown {
        /// The watch shows nothing any more.
        watch_is_dead: bool,
    },
}

/// A watch of the directory that holds the manifests.
pub(super) struct DirectoryWatch {
    events: EventStream<Vec<u8>>,
    directory: PathBuf,
    identity: (u64, u64),
}

impl fmt::Debug for DirectoryWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryWatch").field("directory", &self.directory).finish()
    }
}

impl DirectoryWatch {
    /// Watches `root`, or the directory that holds it if it is a file: a file that is replaced
    /// would take its watch with it.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(root)?;
        let directory = if metadata.is_dir() {
            root
        } else {
            root.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
        };
        let inotify = Inotify::init()?;
        let mask = WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::CLOSE_WRITE
            | WatchMask::ATTRIB
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        inotify.watches().add(directory, mask)?;
        let metadata = std::fs::metadata(directory)?;
        Ok(Self {
            events: inotify.into_event_stream(vec![0; EVENT_BUFFER])?,
            directory: directory.to_owned(),
            identity: (metadata.dev(), metadata.ino()),
        })
    }

    /// Answers, when called, whether the path still leads to what is watched. A mount over it or a
    /// new directory in its place shows in no event.
    pub(super) fn currency_check(&self) -> impl FnOnce() -> bool + Send + 'static {
        let (directory, identity) = (self.directory.clone(), self.identity);
        move || {
            std::fs::metadata(directory)
                .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == identity)
        }
    }

    /// The directory that is watched.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The next hint. May be dropped at any time.
    pub(super) async fn next(&mut self) -> Hint {
        loop {
            let event = match self.events.next().await {
                Some(Ok(event)) => event,
                Some(Err(_)) | None => return Hint::Unknown { watch_is_dead: true },
            };
            if event.mask.intersects(
                EventMask::DELETE_SELF
                    | EventMask::MOVE_SELF
                    | EventMask::IGNORED
                    | EventMask::UNMOUNT,
            ) {
                return Hint::Unknown { watch_is_dead: true };
            }
            if event.mask.contains(EventMask::Q_OVERFLOW) {
                return Hint::Unknown { watch_is_dead: false };
            }
            let Some(name) = event.name else { continue };
            if event.mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
                return Hint::Gone(name);
            }
            if event.mask.contains(EventMask::CREATE) {
                return Hint::Created(name);
            }
            if event.mask.contains(EventMask::MODIFY) {
                return Hint::Unfinished(name);
            }
            return Hint::Complete(name);
        }
    }
}
