use std::time::Duration;

use rand::Rng;

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(30);

/// Growing pauses: each step doubles, up to half a minute, and a part of it is chance, so that the
/// nodes of a cluster do not come back together.
#[derive(Debug, Default)]
pub(super) struct BackOff {
    failures: u32,
}

impl BackOff {
    /// The pause after another failure.
    pub(super) fn step(&mut self) -> Duration {
        let full = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        full.mul_f64(rand::rng().random_range(0.5..1.0))
    }

    /// The next pause is the first one again.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_half_a_minute_and_start_over() {
        let mut back_off = BackOff::default();
        let mut full = FIRST;
        for _ in 0..100 {
            let pause = back_off.step();
            assert!(pause >= full / 2 && pause <= full, "{pause:?} of {full:?}");
            full = (full * 2).min(LONGEST);
        }
        back_off.reset();
        assert!(back_off.step() <= FIRST);
    }
}
