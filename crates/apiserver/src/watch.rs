//! Following objects: list, watch from there, resume where it broke off, list again where that is
//! not possible.

mod back_off;
mod lines;

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use kube::core::Status;
use kube::core::params::WatchParams;
use rand::Rng;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::decode::{FullSet, Identity, ObjectKey, Undecodable, decode_object};
use crate::error::{ApiError, ApiErrorKind, Target, Verb};
use crate::objects::{ApiObject, Objects, Selector};
use crate::outage::is_outage;
use back_off::BackOff;
use lines::{Line, Lines};

/// The server ends a watch after a time from this range, in seconds, so that not all of them end
/// together.
const WATCH_LASTS: std::ops::Range<u32> = 300..600;
/// A watch that the server did not end this long after its time is dead.
const OVERDUE: Duration = Duration::from_secs(30);
/// A watch that was open this long was a success.
const SUCCESS_AFTER: Duration = Duration::from_secs(10);
/// A watch that ends in order, but earlier, is not opened again at once.
const DECENT_LENGTH: Duration = Duration::from_secs(1);
/// After so many refusals in a row, other than for haste, the version is not one that the server
/// will ever take: it has lost its history, or gone back.
const REFUSALS_UNTIL_LIST: u32 = 3;
/// Over so much time the watches of a node come back after an outage.
const RECOVERY_SPREAD: Duration = Duration::from_millis(500);
/// The longest pause that the server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// What has happened to the objects that are watched.
#[derive(Debug)]
pub enum Event<K> {
    /// All of them, as of one moment: what is not in it is gone. Always the first event, and again
    /// whenever changes may have been missed.
    Replaced(FullSet<K>),
    /// One is new or has changed; this is its present state.
    Applied(K),
    /// One is gone, or does not match any more.
    Deleted(ObjectKey),
    /// One is new or has changed, and cannot be understood. It is there nevertheless.
    Undecodable(Undecodable),
    /// The server cannot be followed at present. What is known may be out of date; it is tried
    /// again without end, and nothing will be missed.
    Interrupted(ApiError),
}

/// The changes of the objects that match a selector: a stream without an end.
///
/// It works while it is polled; not reading it holds the server back, and loses nothing.
pub struct Watch<K> {
    events: BoxStream<'static, Event<K>>,
}

impl<K: ApiObject> Watch<K> {
    pub(crate) fn new(objects: Objects<K>, selector: Selector) -> Self {
        let follower = Follower {
            generation: objects.api().generation(),
            recoveries: objects.api().recoveries(),
            target: objects.target(Verb::Watch, None, None),
            objects,
            selector,
            phase: Phase::List,
            back_off: BackOff::default(),
            pause: None,
            refusals: 0,
            was_outage: false,
        };
        let events = stream::unfold(follower, |mut follower| async move {
            Some((follower.next().await, follower))
        });
        Self { events: events.boxed() }
    }

    /// The next event. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Event<K> {
        match self.events.next().await {
            Some(event) => event,
            // The stream has no end.
            None => std::future::pending().await,
        }
    }
}

impl<K> Stream for Watch<K> {
    type Item = Event<K>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event<K>>> {
        self.events.poll_next_unpin(context)
    }
}

impl<K> fmt::Debug for Watch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch<{}>", std::any::type_name::<K>())
    }
}

struct Follower<K> {
    objects: Objects<K>,
    selector: Selector,
    target: Target,
    phase: Phase,
    back_off: BackOff,
    /// To be waited for before the next try.
    pause: Option<Pause>,
    /// In a row, by a server that was there.
    refusals: u32,
    /// The last failure was the server's own.
    was_outage: bool,
    generation: watch::Receiver<u64>,
    recoveries: watch::Receiver<u64>,
}

/// A wait before the next try.
#[derive(Clone, Copy, Debug)]
struct Pause {
    lasts: Duration,
    /// It is over when the server is known to serve requests again.
    ends_with_outage: bool,
}

enum Phase {
    /// Nothing is known.
    List,
    /// Everything up to this version has been told.
    Resume { version: String },
    /// The same, and the server sends what comes.
    Open { version: String, lines: Box<Lines>, since: Instant },
}

#[derive(Deserialize)]
struct RawEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// What a line of a watch means.
enum Heard<K> {
    Event(Event<K>, String),
    Bookmark(String),
    Refusal(ApiError),
    /// Nobody knows what it was: only a list can tell.
    Noise(String),
}

impl<K: ApiObject> Follower<K> {
    async fn next(&mut self) -> Event<K> {
        loop {
            self.wait().await;
            if !matches!(self.phase, Phase::Open { .. }) {
                // From here on the connection and credentials of this moment are tried.
                self.generation.mark_unchanged();
                self.recoveries.mark_unchanged();
            }
            match std::mem::replace(&mut self.phase, Phase::List) {
                Phase::List => match self.objects.list(&self.selector).await {
                    Ok(set) => {
                        self.refusals = 0;
                        self.phase = Phase::Resume { version: set.resource_version.clone() };
                        return Event::Replaced(set);
                    }
                    Err(error) => {
                        self.pause_after(&error);
                        return Event::Interrupted(error);
                    }
                },
                Phase::Resume { version } => match self.open(&version).await {
                    Ok(lines) => {
                        let since = Instant::now();
                        self.phase = Phase::Open { version, lines: Box::new(lines), since };
                    }
                    Err(error) => return self.go_on_after(version, error),
                },
                Phase::Open { version, lines, since } => {
                    if let Some(event) = self.read(version, lines, since).await {
                        return event;
                    }
                }
            }
        }
    }

    /// Pauses as long as was decided, or until there are credentials that were not tried yet, or
    /// shortly after an outage is over.
    async fn wait(&mut self) {
        let Some(Pause { lasts, ends_with_outage }) = self.pause else { return };
        let ends = Instant::now() + lasts;
        tokio::select! {
            () = sleep_until(ends) => {}
            Ok(()) = self.generation.changed() => {}
            Ok(()) = self.recoveries.changed(), if ends_with_outage => {
                self.back_off.reset();
                let apart = RECOVERY_SPREAD.mul_f64(rand::rng().random());
                sleep_until(ends.min(Instant::now() + apart)).await;
            }
        }
        self.pause = None;
    }

    /// Pauses after the server could not be followed, for reasons of its own.
    fn pause_by_outage(&mut self) {
        self.pause = Some(Pause { lasts: self.back_off.step(), ends_with_outage: true });
    }

    async fn open(&self, version: &str) -> Result<Lines, ApiError> {
        let seconds = rand::rng().random_range(WATCH_LASTS);
        let params = WatchParams {
            field_selector: self.selector.fields.clone(),
            label_selector: self.selector.labels.clone(),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: false,
        };
        let request = self
            .objects
            .to_request(&self.target, self.objects.request().watch(&params, version))?;
        let answer = self.objects.api().open(&self.target, &request).await?;
        let deadline = Instant::now() + Duration::from_secs(u64::from(seconds)) + OVERDUE;
        Ok(Lines::new(answer, deadline))
    }

    /// Reads from an open watch until there is something to tell, or it is not open any more.
    async fn read(
        &mut self,
        mut version: String,
        mut lines: Box<Lines>,
        since: Instant,
    ) -> Option<Event<K>> {
        loop {
            let line = lines.next().await;
            if since.elapsed() >= SUCCESS_AFTER {
                self.succeed();
            }
            let line = match line {
                Line::Text(line) => line,
                Line::End => {
                    (*lines).finish();
                    if since.elapsed() < DECENT_LENGTH {
                        self.pause_by_outage();
                    }
                    self.phase = Phase::Resume { version };
                    return None;
                }
                Line::Broken(error) => {
                    // Not if it was us who closed it.
                    if !self.generation.has_changed().unwrap_or(false) {
                        self.pause_by_outage();
                    }
                    tracing::debug!(target = %self.target, %error, "a watch broke off");
                    self.phase = Phase::Resume { version };
                    return None;
                }
                Line::TooLong => return self.list_again("an event is too long"),
            };
            match self.understand(&line) {
                Heard::Bookmark(newer) => {
                    self.succeed();
                    version = newer;
                }
                Heard::Event(event, newer) => {
                    self.succeed();
                    if !newer.is_empty() {
                        version = newer;
                    }
                    self.phase = Phase::Open { version, lines, since };
                    return Some(event);
                }
                Heard::Refusal(error) => return Some(self.go_on_after(version, error)),
                Heard::Noise(problem) => return self.list_again(&problem),
            }
        }
    }

    fn understand(&self, line: &[u8]) -> Heard<K> {
        let event = match serde_json::from_slice::<RawEvent<'_>>(line) {
            Ok(event) => event,
            Err(error) => return Heard::Noise(format!("an event is no JSON: {error}")),
        };
        let identity = || Identity::of(event.object);
        match event.kind {
            "ADDED" | "MODIFIED" => match decode_object::<K>(event.object.get().as_bytes()) {
                Ok(object) => {
                    let version = object.meta().resource_version.clone().unwrap_or_default();
                    Heard::Event(Event::Applied(object), version)
                }
                Err(error) => {
                    let identity = identity();
                    let version = identity.resource_version().to_owned();
                    let event = Undecodable { key: identity.key(), error: error.to_string() };
                    Heard::Event(Event::Undecodable(event), version)
                }
            },
            "DELETED" => {
                let identity = identity();
                let version = identity.resource_version().to_owned();
                let key = identity.key();
                if key.name.is_empty() {
                    return Heard::Noise("an object without a name is gone".to_owned());
                }
                Heard::Event(Event::Deleted(key), version)
            }
            "BOOKMARK" => {
                let identity = identity();
                match identity.resource_version() {
                    "" => Heard::Noise("a bookmark without a version".to_owned()),
                    version => Heard::Bookmark(version.to_owned()),
                }
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(event.object.get()).unwrap_or_default();
                Heard::Refusal(ApiError::from_status(self.target.clone(), status, 500))
            }
            kind => Heard::Noise(format!("an event of unknown type {kind:?}")),
        }
    }

    /// All is well: the next failure is the first one again.
    fn succeed(&mut self) {
        self.back_off.reset();
        self.refusals = 0;
    }

    fn list_again(&mut self, because: &str) -> Option<Event<K>> {
        tracing::warn!(target = %self.target, because, "listing again");
        self.pause = Some(Pause { lasts: self.back_off.step(), ends_with_outage: false });
        self.phase = Phase::List;
        None
    }

    /// The watch was refused, or could not be opened.
    fn go_on_after(&mut self, version: String, error: ApiError) -> Event<K> {
        self.pause_after(&error);
        let is_the_versions_fault = match error.kind {
            ApiErrorKind::Expired => true,
            ApiErrorKind::Connection
            | ApiErrorKind::Credentials
            | ApiErrorKind::TooManyRequests => false,
            _ => {
                self.refusals += 1;
                self.refusals >= REFUSALS_UNTIL_LIST
            }
        };
        self.phase = if is_the_versions_fault { Phase::List } else { Phase::Resume { version } };
        Event::Interrupted(error)
    }

    fn pause_after(&mut self, error: &ApiError) {
        let is_outage = is_outage(error);
        if self.was_outage && !is_outage {
            // It is back, and may not know yet who may do what: that takes it moments.
            self.back_off.reset();
        }
        self.was_outage = is_outage;
        let asked_for = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
        self.pause = Some(Pause {
            lasts: self.back_off.step().max(asked_for),
            ends_with_outage: asked_for.is_zero() && is_outage,
        });
    }
}
