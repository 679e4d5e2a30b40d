use std::collections::HashMap;
use std::time::Duration;

use rubelet_types::PodUid;
use tokio::time::Instant;

/// When a failed pull may be tried again, by pod and image.
///
/// The delay doubles with every failure up to the longest one. An image that did not fail for twice
/// the longest delay starts anew; a success in between does not, as a registry that fails every
/// other time is still to be spared.
#[derive(Debug)]
pub(crate) struct PullBackOff {
    initial: Duration,
    max: Duration,
    entries: HashMap<PodUid, HashMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    delay: Duration,
    failed_at: Instant,
    error: String,
}

/// A pull that has to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    /// How long still.
    pub(crate) remaining: Duration,
    /// How the last attempt failed: reason and message.
    pub(crate) last_error: String,
}

impl PullBackOff {
    pub(crate) fn new(initial: Duration, max: Duration) -> Self {
        Self { initial: initial.min(max), max, entries: HashMap::new() }
    }

    /// The pull of `image` for `pod` has to wait; none if it may go ahead.
    pub(crate) fn waiting(&self, pod: &PodUid, image: &str, now: Instant) -> Option<Waiting> {
        let entry = self.entries.get(pod)?.get(image)?;
        let remaining = entry.delay.checked_sub(now.saturating_duration_since(entry.failed_at))?;
        (!remaining.is_zero()).then(|| Waiting { remaining, last_error: entry.error.clone() })
    }

    /// A pull failed with `error`.
    pub(crate) fn record_failure(
        &mut self,
        pod: &PodUid,
        image: &str,
        error: String,
        now: Instant,
    ) {
        self.forget_old(now);
        let entries = self.entries.entry(pod.clone()).or_default();
        let delay = entries
            .get(image)
            .map_or(self.initial, |entry| entry.delay.saturating_mul(2).min(self.max));
        entries.insert(image.to_owned(), Entry { delay, failed_at: now, error });
    }

    /// Drops what is as good as never failed, so that the list does not grow with every pod.
    fn forget_old(&mut self, now: Instant) {
        let keep_for = self.max.saturating_mul(2);
        self.entries.retain(|_, entries| {
            entries.retain(|_, entry| now.saturating_duration_since(entry.failed_at) <= keep_for);
            !entries.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "u1";

    fn back_off() -> PullBackOff {
        PullBackOff::new(Duration::from_secs(10), Duration::from_secs(300))
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let mut back_off = back_off();
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for attempt in 0..8 {
            back_off.record_failure(&POD.into(), "a", format!("error {attempt}"), now);
            let waiting = back_off.waiting(&POD.into(), "a", now).unwrap();
            assert_eq!(waiting.last_error, format!("error {attempt}"));
            delays.push(waiting.remaining.as_secs());
            now += waiting.remaining;
            assert_eq!(back_off.waiting(&POD.into(), "a", now), None);
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300, 300]);
    }

    #[test]
    fn pods_and_images_wait_on_their_own() {
        let mut back_off = back_off();
        let now = Instant::now();
        back_off.record_failure(&POD.into(), "a", String::new(), now);
        assert!(back_off.waiting(&POD.into(), "a", now).is_some());
        assert!(back_off.waiting(&POD.into(), "b", now).is_none());
        assert!(back_off.waiting(&"u2".into(), "a", now).is_none());
    }

    #[test]
    fn a_long_quiet_time_starts_anew_and_frees_memory() {
        let mut back_off = back_off();
        let start = Instant::now();
        back_off.record_failure(&POD.into(), "a", String::new(), start);
        back_off.record_failure(&"u2".into(), "a", String::new(), start);
        let within = start + Duration::from_secs(600);
        back_off.record_failure(&POD.into(), "a", String::new(), within);
        let waiting = back_off.waiting(&POD.into(), "a", within).unwrap();
        assert_eq!(waiting.remaining.as_secs(), 20);
        let beyond = within + Duration::from_secs(601);
        back_off.record_failure(&POD.into(), "a", String::new(), beyond);
        let waiting = back_off.waiting(&POD.into(), "a", beyond).unwrap();
        assert_eq!(waiting.remaining.as_secs(), 10);
        assert_eq!(back_off.entries.len(), 1);
    }

    #[test]
    fn an_initial_delay_above_the_longest_is_cut() {
        let mut back_off = PullBackOff::new(Duration::from_secs(10), Duration::from_secs(3));
        let now = Instant::now();
        back_off.record_failure(&POD.into(), "a", String::new(), now);
        assert_eq!(back_off.waiting(&POD.into(), "a", now).unwrap().remaining.as_secs(), 3);
    }
}
