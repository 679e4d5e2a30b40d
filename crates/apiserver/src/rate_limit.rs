use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How many requests a lane may send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Requests per second in the long run; above 0.
    pub qps: f64,
    /// Requests that may be sent at once after a quiet time; at least 1.
    pub burst: u32,
}

/// Hands out turns in the order in which they are asked for.
///
/// Whoever asks gets a turn at once, which may lie in the future: nobody overtakes, and the wait is
/// known beforehand. A turn that is given up while waiting goes back.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    limit: RateLimit,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Below zero: so many turns of the future are taken.
    tokens: f64,
    filled_at: Option<Instant>,
}

impl TokenBucket {
    pub(crate) fn new(limit: RateLimit) -> Self {
        let tokens = f64::from(limit.burst.max(1));
        Self { limit, state: Mutex::new(State { tokens, filled_at: None }) }
    }

    /// Waits for a turn.
    pub(crate) async fn turn(&self) {
        let wait = self.take(Instant::now());
        if wait.is_zero() {
            return;
        }
        let given_up = GiveBack(Some(self));
        sleep(wait).await;
        given_up.keep();
    }

    fn take(&self, now: Instant) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let capacity = f64::from(self.limit.burst.max(1));
        let passed = state.filled_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        state.filled_at = Some(now);
        state.tokens = (state.tokens + passed.as_secs_f64() * self.limit.qps).min(capacity) - 1.0;
        if state.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-state.tokens / self.limit.qps).unwrap_or(Duration::MAX)
    }

    fn give_back(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).tokens += 1.0;
    }
}

struct GiveBack<'a>(Option<&'a TokenBucket>);

impl GiveBack<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for GiveBack<'_> {
    fn drop(&mut self) {
        if let Some(bucket) = self.0 {
            bucket.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_then_the_rate_holds() {
        let bucket = TokenBucket::new(RateLimit { qps: 5.0, burst: 10 });
        let start = Instant::now();
        for _ in 0..10 {
            bucket.turn().await;
        }
        assert_eq!(Instant::now(), start);
        for _ in 0..5 {
            bucket.turn().await;
        }
        let took = Instant::now() - start;
        assert!((990..1010).contains(&took.as_millis()), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_is_given_up_goes_back() {
        let bucket = TokenBucket::new(RateLimit { qps: 1.0, burst: 1 });
        bucket.turn().await;
        for _ in 0..100 {
            assert!(bucket.turn().now_or_never().is_none());
        }
        let start = Instant::now();
        bucket.turn().await;
        assert!(Instant::now() - start <= Duration::from_millis(1010));
    }

    proptest! {
        #[test]
        fn no_more_than_burst_and_rate_ever_pass(
            gaps in prop::collection::vec(0_u64..400, 1..100),
            qps in 1_u32..20,
            burst in 1_u32..20,
        ) {
            let bucket = TokenBucket::new(RateLimit { qps: f64::from(qps), burst });
            let start = Instant::now();
            let (mut asked_at, mut turns) = (0, Vec::new());
            for gap in gaps {
                asked_at += gap;
                let now = start + Duration::from_millis(asked_at);
                turns.push(now + bucket.take(now));
            }
            prop_assert!(turns.is_sorted());
            for (earlier, from) in turns.iter().enumerate() {
                for (later, to) in turns.iter().enumerate().skip(earlier) {
                    let passed = (later - earlier + 1) as f64;
                    let allowed = f64::from(burst) + (*to - *from).as_secs_f64() * f64::from(qps);
                    prop_assert!(passed <= allowed + 1.001);
                }
            }
        }
    }
}
