use std::time::Duration;

/// Sums of fractions come out a little short of a whole.
const ROUNDING: f64 = 1e-6;

/// Lets through `burst` at once, and `per_second` in the long run.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    burst: f64,
    per_second: f64,
    tokens: f64,
    /// When `tokens` was right, in seconds of whatever clock the caller uses.
    at: f64,
}

impl TokenBucket {
    /// A full bucket at `now`, in seconds.
    pub(crate) fn full(burst: f64, per_second: f64, now: f64) -> Self {
        Self { burst, per_second, tokens: burst, at: now }
    }

    /// Takes a token if there is one.
    pub(crate) fn try_take(&mut self, now: f64) -> bool {
        self.refill(now);
        let has_token = self.tokens + ROUNDING >= 1.0;
        if has_token {
            self.tokens = (self.tokens - 1.0).max(0.0);
        }
        has_token
    }

    /// How long until there is a token to take.
    pub(crate) fn wait(&mut self, now: f64) -> Duration {
        self.refill(now);
        let missing = (1.0 - ROUNDING - self.tokens).max(0.0);
        Duration::try_from_secs_f64(missing / self.per_second).unwrap_or(Duration::MAX)
    }

    fn refill(&mut self, now: f64) {
        // A clock that was set back refills nothing, and is believed from here on.
        let passed = (now - self.at).max(0.0);
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst);
        self.at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_one_each_period() {
        let mut bucket = TokenBucket::full(2.0, 1.0 / 300.0, 1000.0);
        let taken: Vec<bool> =
            [1000.0, 1000.0, 1000.0, 1299.0, 1300.0, 1300.0, 1400.0, 1500.0, 1600.0]
                .into_iter()
                .map(|now| bucket.try_take(now))
                .collect();
        assert_eq!(taken, [true, true, false, false, true, false, false, false, true]);
    }

    #[test]
    fn it_never_holds_more_than_a_burst_and_survives_a_clock_that_is_set_back() {
        let mut bucket = TokenBucket::full(1.0, 1.0, 0.0);
        assert!(bucket.try_take(1e6));
        assert!(!bucket.try_take(1e6));
        assert!(!bucket.try_take(0.0));
        assert!(bucket.try_take(1.0));
        assert_eq!(bucket.wait(1.25).as_millis(), 749);
    }
}
