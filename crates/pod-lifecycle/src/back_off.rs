//! Crash-loop back-off of containers: 0, 10, 20, 40, 80, 160, 300, 300, ... seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::clock_set::moved;

/// How fast restarts slow down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BackOffSettings {
    /// The first delay.
    pub initial: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Default for BackOffSettings {
    fn default() -> Self {
        Self { initial: Duration::from_secs(10), max: Duration::from_secs(300) }
    }
}

impl BackOffSettings {
    /// Settings for `crashLoopBackOff.maxContainerRestartPeriod`: the first delay is never above
    /// the longest.
    pub fn with_max(max: Duration) -> Self {
        Self { initial: Duration::from_secs(10).min(max), max }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Entry {
    delay: Duration,
    last_update: Timestamp,
}

/// The back-off of the containers of one pod, by a key that names container, image and resources:
/// a changed definition starts afresh.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct BackOff {
    entries: BTreeMap<String, Entry>,
}

impl BackOff {
    /// When the container of `key`, whose last instance ended at `finished_at`, may start again,
    /// and the delay in force, if that moment lies after `now`.
    pub fn waiting_until(
        &self,
        key: &str,
        finished_at: Timestamp,
        now: Timestamp,
        settings: BackOffSettings,
    ) -> Option<(Timestamp, Duration)> {
        let entry = self.entries.get(key)?;
        if has_expired(finished_at, entry, settings) {
            return None;
        }
        let until = later(finished_at, entry.delay);
        (until > now).then_some((until, entry.delay))
    }

    /// Notes a start attempt after an instance that ended at `finished_at`: the next one waits
    /// twice as long, up to the maximum; from the beginning if the instance ran long enough.
    pub fn note_attempt(
        &mut self,
        key: &str,
        finished_at: Timestamp,
        now: Timestamp,
        settings: BackOffSettings,
    ) {
        let delay = match self.entries.get(key) {
            Some(entry) if !has_expired(finished_at, entry, settings) => {
                (entry.delay * 2).min(settings.max)
            }
            _ => settings.initial,
        };
        self.entries.insert(key.to_owned(), Entry { delay, last_update: now });
    }

    /// The wall clock was set, and shows `by` more than it did.
    pub(crate) fn clock_set(&mut self, by: SignedDuration) {
        for entry in self.entries.values_mut() {
            entry.last_update = moved(entry.last_update, by);
        }
    }

    /// Forgets all entries but those of `keys`.
    pub fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }
}

fn has_expired(finished_at: Timestamp, entry: &Entry, settings: BackOffSettings) -> bool {
    finished_at > later(entry.last_update, settings.max * 2)
}

/// `time + delay`, saturating at the end of time.
pub(crate) fn later(time: Timestamp, delay: Duration) -> Timestamp {
    time.checked_add(delay).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// Crashes `lifetime` seconds after each start and reports the wait before each restart.
    fn waits(settings: BackOffSettings, lifetimes: &[i64]) -> Vec<i64> {
        let mut back_off = BackOff::default();
        let mut now = 1_000;
        lifetimes
            .iter()
            .map(|lifetime| {
                let finished = now + lifetime;
                now = finished;
                let wait = back_off
                    .waiting_until("k", at(finished), at(now), settings)
                    .map_or(0, |(until, _)| until.as_second() - now);
                now += wait;
                assert_eq!(back_off.waiting_until("k", at(finished), at(now), settings), None);
                back_off.note_attempt("k", at(finished), at(now), settings);
                wait
            })
            .collect()
    }

    #[test]
    fn doubles_from_ten_seconds_to_five_minutes() {
        assert_eq!(
            waits(BackOffSettings::default(), &[1; 9]),
            [0, 10, 20, 40, 80, 160, 300, 300, 300]
        );
    }

    #[test]
    fn running_for_more_than_ten_minutes_resets_it() {
        assert_eq!(
            waits(BackOffSettings::default(), &[1, 1, 1, 600, 601, 1]),
            [0, 10, 20, 40, 0, 10]
        );
    }

    #[test]
    fn a_small_maximum_bounds_the_first_delay_too() {
        let settings = BackOffSettings::with_max(Duration::from_secs(4));
        assert_eq!(waits(settings, &[1; 4]), [0, 4, 4, 4]);
    }
}
