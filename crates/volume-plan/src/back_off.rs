use std::time::Duration;

/// How long a volume waits after its first failure.
pub const VOLUME_RETRY_INITIAL: Duration = Duration::from_millis(500);
/// The longest a failing volume waits.
pub const VOLUME_RETRY_MAX: Duration = Duration::from_secs(122);

/// How long a volume waits after a failure when it waited `previous` before: 500 ms, doubled by
/// every further failure up to 2 m 2 s.
pub fn compute_next_retry_delay(previous: Option<Duration>) -> Duration {
    previous.map_or(VOLUME_RETRY_INITIAL, |delay| delay.saturating_mul(2).min(VOLUME_RETRY_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit() {
        let mut delay = None;
        let mut seen = Vec::new();
        for _ in 0..10 {
            delay = Some(compute_next_retry_delay(delay));
            seen.extend(delay.map(|delay| delay.as_millis()));
        }
        assert_eq!(seen, [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000]);
    }
}
