//! What becomes of an event in the light of those before it.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event as ApiEvent, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use rubelet_types::fnv1a_128;
use serde_json::{Value, json};

use crate::api_event::{api_time, event_name};
use crate::lru::Lru;
use crate::token_bucket::TokenBucket;

/// So many events, groups of similar events, and objects are remembered.
const REMEMBERED: usize = 4096;
/// From this many different messages on, similar events are combined.
const SIMILAR_EVENTS: usize = 10;
/// Similar events further apart than this are not combined.
const SIMILAR_INTERVAL: SignedDuration = SignedDuration::from_secs(600);
/// So many events of an object are let through at once.
const SPAM_BURST: f64 = 25.0;
/// So many seconds it takes until one more is let through.
const SPAM_REFILL_SECONDS: f64 = 300.0;

/// What is to be done about an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Correlated {
    /// Nothing: its object has had too many.
    Skip,
    /// The object has to be made.
    Create(Box<ApiEvent>),
    /// The object was made for an earlier event, which happened again.
    Patch {
        /// The whole object as it is now, for the case that it is not there any more.
        event: Box<ApiEvent>,
        /// The difference, as a strategic merge patch.
        patch: Value,
    },
}

/// Identical events become one object that counts; similar ones (all the same but the message) are
/// combined into one object once there are ten different ones within ten minutes; and an object
/// about which there is no end of events is held to one in five minutes after the first 25
/// (upstream `EventCorrelator`). All events come from one source, so that is no part of any key.
#[derive(Debug)]
pub struct Correlator {
    groups: Lru<Key, Group>,
    objects: Lru<Key, Option<Known>>,
    spam: Lru<Key, TokenBucket>,
}

/// A hash instead of the texts themselves: there are thousands of them.
type Key = u128;

/// Events that differ only in their message.
#[derive(Debug)]
struct Group {
    /// Different messages, oldest first; one short of [`SIMILAR_EVENTS`] once they are combined.
    messages: VecDeque<Key>,
    last: Timestamp,
}

/// The object that stands for an event.
#[derive(Debug)]
struct Known {
    name: Option<String>,
    first_timestamp: Option<Time>,
    count: i32,
}

impl Default for Correlator {
    fn default() -> Self {
        Self::new()
    }
}

impl Correlator {
    /// One that has seen nothing.
    pub fn new() -> Self {
        Self {
            groups: Lru::new(REMEMBERED),
            objects: Lru::new(REMEMBERED),
            spam: Lru::new(REMEMBERED),
        }
    }

    /// Takes in an event at `now`.
    pub fn correlate(&mut self, event: ApiEvent, now: Timestamp) -> Correlated {
        let (event, key) = self.combine(event, now);
        let (event, is_new) = self.count(event, key);
        let spam_key = key_of(&[&kind_and_name(&event.involved_object), text(&event.type_)]);
        let seconds = now.as_duration().as_secs_f64();
        let bucket = self.spam.get_or_insert_with(spam_key, || {
            TokenBucket::full(SPAM_BURST, SPAM_REFILL_SECONDS.recip(), seconds)
        });
        if !bucket.try_take(seconds) {
            return Correlated::Skip;
        }
        let event = Box::new(event);
        if is_new {
            return Correlated::Create(event);
        }
        let patch = json!({
            "count": event.count,
            "lastTimestamp": event.last_timestamp,
            "message": event.message,
        });
        Correlated::Patch { event, patch }
    }

    /// The event itself or the one that stands for all that are similar, and what tells it from
    /// others.
    fn combine(&mut self, event: ApiEvent, now: Timestamp) -> (ApiEvent, Key) {
        let object = &event.involved_object;
        let of_object = kind_and_name(object);
        let (type_, reason) = (text(&event.type_), text(&event.reason));
        let group_key = key_of(&[&of_object, type_, reason]);
        let key =
            key_of(&[&of_object, text(&object.field_path), type_, reason, text(&event.message)]);
        let message = key_of(&[text(&event.message)]);

        let group = self
            .groups
            .get_or_insert_with(group_key, || Group { messages: VecDeque::new(), last: now });
        if now.duration_since(group.last) > SIMILAR_INTERVAL {
            group.messages.clear();
        }
        group.last = now;
        if !group.messages.contains(&message) {
            group.messages.push_back(message);
        }
        if group.messages.len() < SIMILAR_EVENTS {
            return (event, key);
        }
        group.messages.pop_front();
        let combined = ApiEvent {
            metadata: ObjectMeta {
                name: Some(event_name(text(&object.name), now)),
                namespace: event.metadata.namespace,
                ..ObjectMeta::default()
            },
            message: Some(format!("(combined from similar events): {}", text(&event.message))),
            first_timestamp: Some(api_time(now)),
            last_timestamp: Some(api_time(now)),
            ..event
        };
        (combined, group_key)
    }

    /// Counts the event. Answers whether it is the first of its kind.
    fn count(&mut self, mut event: ApiEvent, key: Key) -> (ApiEvent, bool) {
        let known = self.objects.get_or_insert_with(key, || None);
        let is_new = match known {
            Some(known) => {
                known.count = known.count.saturating_add(1);
                event.metadata.name.clone_from(&known.name);
                event.first_timestamp.clone_from(&known.first_timestamp);
                event.count = Some(known.count);
                false
            }
            None => {
                *known = Some(Known {
                    name: event.metadata.name.clone(),
                    first_timestamp: event.first_timestamp.clone(),
                    count: event.count.unwrap_or(1),
                });
                true
            }
        };
        (event, is_new)
    }
}

fn text(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

fn kind_and_name(object: &ObjectReference) -> String {
    [&object.kind, &object.namespace, &object.name, &object.uid, &object.api_version]
        .map(text)
        .join("/")
}

/// Parts that are divided otherwise make another key.
fn key_of(parts: &[&str]) -> Key {
    fnv1a_128(parts.join("\0").as_bytes())
}
