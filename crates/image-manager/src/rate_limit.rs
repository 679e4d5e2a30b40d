use std::time::Duration;

use tokio::time::Instant;

/// A bucket of tokens that starts full and is refilled at a steady rate.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    per_second: f64,
    capacity: f64,
    tokens: f64,
    filled_at: Instant,
}

impl TokenBucket {
    /// `per_second` tokens flow in, at most `burst` stay.
    pub(crate) fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let capacity = f64::from(burst);
        Self { per_second: f64::from(per_second), capacity, tokens: capacity, filled_at: now }
    }

    /// Takes a token if there is one; never waits.
    pub(crate) fn try_take(&mut self, now: Instant) -> bool {
        let passed = now.checked_duration_since(self.filled_at).unwrap_or(Duration::ZERO);
        self.filled_at = self.filled_at.max(now);
        let refilled = self.tokens + passed.as_secs_f64() * self.per_second;
        self.tokens = refilled.min(self.capacity);
        let take = self.tokens >= 1.0;
        if take {
            self.tokens -= 1.0;
        }
        take
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate_holds() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(5, 10, start);
        let burst = (0..30).filter(|_| bucket.try_take(start)).count();
        assert_eq!(burst, 10);
        assert!(!bucket.try_take(start + Duration::from_millis(100)));
        assert!(bucket.try_take(start + Duration::from_millis(250)));
        let later = start + Duration::from_secs(60);
        assert_eq!((0..30).filter(|_| bucket.try_take(later)).count(), 10);
    }

    proptest! {
        #[test]
        fn no_more_than_burst_and_rate_ever_pass(
            waits in prop::collection::vec(0_u64..400, 1..100),
            rate in 1_u32..20,
            burst in 1_u32..20,
        ) {
            let start = Instant::now();
            let mut bucket = TokenBucket::new(rate, burst, start);
            let (mut passed_millis, mut taken) = (0_u64, 0_u64);
            for wait in waits {
                passed_millis += wait;
                let now = start + Duration::from_millis(passed_millis);
                taken += u64::from(bucket.try_take(now));
                // One more than exact arithmetic allows, for the rounding of floats.
                let allowed = u64::from(burst) + passed_millis * u64::from(rate) / 1000 + 1;
                prop_assert!(taken <= allowed);
            }
        }
    }
}
