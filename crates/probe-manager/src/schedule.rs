use std::time::Duration;

use tokio::time::Instant;

/// The moments at which a probe is due: every period from an origin on.
///
/// A probe that takes longer than its period is followed at once by one more, and the ones it
/// missed beyond that are skipped; the moments themselves never shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    origin: Instant,
    period: Duration,
}

impl Schedule {
    /// Due at `origin` and every `period`, which is at least a millisecond, from there on.
    pub(crate) fn new(origin: Instant, period: Duration) -> Self {
        Self { origin, period: period.max(Duration::from_millis(1)) }
    }

    /// The first due moment not before `now`.
    pub(crate) fn at_or_after(&self, now: Instant) -> Instant {
        let elapsed = now.saturating_duration_since(self.origin);
        let late = self.since_due(elapsed);
        if late.is_zero() { self.origin.max(now) } else { now + (self.period - late) }
    }

    /// When to probe next, after the probe that was due at `due` ended at `now`.
    pub(crate) fn following(&self, due: Instant, now: Instant) -> Instant {
        if due + self.period > now {
            due + self.period
        } else {
            now - self.since_due(now.saturating_duration_since(self.origin))
        }
    }

    /// How long ago the latest due moment was, `elapsed` after the origin.
    fn since_due(&self, elapsed: Duration) -> Duration {
        let late = elapsed.as_nanos() % self.period.as_nanos();
        u64::try_from(late).map_or(Duration::ZERO, Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn due_moments_never_shift() {
        let origin = Instant::now() + Duration::from_secs(100);
        let at = |second: f64| origin + Duration::from_secs_f64(second);
        let schedule = Schedule::new(origin, Duration::from_secs(10));
        assert_eq!(schedule.at_or_after(origin - Duration::from_secs(5)), at(0.0));
        for (now, expected) in [(0.0, 0.0), (0.1, 10.0), (10.0, 10.0), (25.0, 30.0)] {
            assert_eq!(schedule.at_or_after(at(now)), at(expected), "{now}");
        }
        for (due, now, expected) in [
            (0.0, 0.5, 10.0),
            (0.0, 9.9, 10.0),
            (0.0, 10.0, 10.0),
            (10.0, 25.0, 20.0),
            (0.0, 35.0, 30.0),
        ] {
            assert_eq!(schedule.following(at(due), at(now)), at(expected), "{due} {now}");
        }
    }
}
