//! Watches: what has changed since, and what changes from now on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::kinds::Kind;
use crate::operations::{selection, with_type};
use crate::refusal::Refusal;
use crate::route::Route;
use crate::selector::Selection;
use crate::server::Inner;
use crate::storage::Change;

/// How often a watch that wants bookmarks gets one.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// One watch.
pub(crate) struct Watching {
    server: Arc<Inner>,
    kind: &'static Kind,
    namespace: Option<String>,
    selection: Selection,
    /// Everything up to here has been told.
    told: u64,
    lines: VecDeque<Bytes>,
    wants_bookmarks: bool,
    next_bookmark: Instant,
    ends_at: Option<Instant>,
    is_over: bool,
    changes: watch::Receiver<u64>,
    cuts: watch::Receiver<u64>,
    bookmarks: watch::Receiver<u64>,
    is_held: watch::Receiver<bool>,
}

impl Watching {
    pub(crate) fn begin(server: &Arc<Inner>, route: &Route) -> Result<Self, Refusal> {
        let selection = selection(route)?;
        let seconds = route.query("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
        let mut watching = Self {
            kind: route.kind,
            namespace: route.namespace.clone(),
            selection,
            told: 0,
            lines: VecDeque::new(),
            wants_bookmarks: route.query("allowWatchBookmarks") == Some("true"),
            next_bookmark: Instant::now() + BOOKMARK_PERIOD,
            ends_at: seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
            is_over: false,
            changes: server.knobs.changes.subscribe(),
            cuts: server.knobs.cuts.subscribe(),
            bookmarks: server.knobs.bookmarks.subscribe(),
            is_held: server.knobs.holds_watches.subscribe(),
            server: Arc::clone(server),
        };
        match route.query("resourceVersion") {
            None | Some("0") => watching.begin_with_all(),
            Some(version) => {
                watching.told = version.parse().map_err(|_| {
                    Refusal::bad_request(format!("invalid resource version {version:?}"))
                })?;
                let current = server.storage().revision();
                if watching.told > current {
                    return Err(Refusal::too_large_resource_version(watching.told, current));
                }
            }
        }
        server.watches.fetch_add(1, Ordering::AcqRel);
        Ok(watching)
    }

    /// Without a version, all there is comes first.
    fn begin_with_all(&mut self) {
        let (objects, revision) = {
            let storage = self.server.storage();
            (storage.list(self.kind, self.namespace.as_deref()), storage.revision())
        };
        for object in objects {
            if self.selection.matches(&object) {
                let object = with_type(self.kind, &object);
                self.push("ADDED", object);
            }
        }
        self.told = revision;
    }

    pub(crate) fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        unfold(
            self,
            |mut watching| async move { watching.next().await.map(|line| (line, watching)) },
        )
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.is_over {
                return None;
            }
            if !*self.is_held.borrow_and_update() {
                self.changes.mark_unchanged();
                self.collect();
                if !self.lines.is_empty() || self.is_over {
                    continue;
                }
            }
            self.wait().await;
        }
    }

    async fn wait(&mut self) {
        let ends_at = self.ends_at;
        let end = async {
            match ends_at {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.changes.changed() => {}
            _ = self.is_held.changed() => {}
            _ = self.cuts.changed() => self.is_over = true,
            () = end => {
                self.bookmark();
                self.is_over = true;
            }
            _ = self.bookmarks.changed() => self.bookmark(),
            () = sleep_until(self.next_bookmark), if self.wants_bookmarks => self.bookmark(),
        }
    }

    fn bookmark(&mut self) {
        self.next_bookmark = Instant::now() + BOOKMARK_PERIOD;
        if self.wants_bookmarks {
            let bookmark = json!({"metadata": {"resourceVersion": self.told.to_string()}});
            let bookmark = with_type(self.kind, &bookmark);
            self.push("BOOKMARK", bookmark);
        }
    }

    /// Turns what has changed into lines.
    fn collect(&mut self) {
        let (changes, revision) = {
            let storage = self.server.storage();
            (storage.changes_after(self.told), storage.revision())
        };
        let Some(changes) = changes else {
            let message = format!("too old resource version: {} ({revision})", self.told);
            let status = Refusal::expired(message).to_status();
            self.push("ERROR", status);
            self.is_over = true;
            return;
        };
        for change in changes {
            self.tell(&change);
        }
        self.told = revision;
    }

    fn tell(&mut self, change: &Change) {
        let is_elsewhere = change.plural != self.kind.plural
            || self.namespace.as_ref().is_some_and(|namespace| *namespace != change.namespace);
        if is_elsewhere {
            return;
        }
        let matching = |object: &Option<Arc<Value>>| {
            object.clone().filter(|object| self.selection.matches(object))
        };
        let (kind, object) = match (matching(&change.before), matching(&change.after)) {
            (None, None) => return,
            (None, Some(after)) => ("ADDED", after),
            (Some(_), Some(after)) => ("MODIFIED", after),
            (Some(before), None) => ("DELETED", before),
        };
        let mut object = with_type(self.kind, &object);
        // Also what is gone tells when it went.
        object["metadata"]["resourceVersion"] = json!(change.revision.to_string());
        self.push(kind, object);
    }

    fn push(&mut self, kind: &str, object: Value) {
        let mut line = json!({"type": kind, "object": object}).to_string();
        line.push('\n');
        self.lines.push_back(Bytes::from(line));
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.server.watches.fetch_sub(1, Ordering::AcqRel);
    }
}
