use std::time::Duration;

/// When a status that has not changed is written all the same. Times are those of any clock that
/// never goes back, counted from any origin.
///
/// After a change the next report comes up to half a period earlier or later, so that nodes that
/// changed together do not go on reporting together; from then on it comes regularly.
#[derive(Clone, Debug)]
pub struct ReportSchedule {
    frequency: Duration,
    due: Option<Duration>,
}

impl ReportSchedule {
    /// Nothing was reported yet: a report is due.
    pub fn new(frequency: Duration) -> Self {
        Self { frequency, due: None }
    }

    /// A report is due at `now`.
    pub fn is_due(&self, now: Duration) -> bool {
        self.due.is_none_or(|due| now >= due)
    }

    /// A status was written at `now`. `changed`: because it had changed, or for the first time.
    /// `random` is in 0.0..1.0.
    pub fn written(&mut self, now: Duration, changed: bool, random: f64) {
        let is_first = self.due.is_none();
        let spread = if changed || is_first { 0.5 + random.clamp(0.0, 1.0) } else { 1.0 };
        self.due = Some(now + self.frequency.mul_f64(spread));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_spread_after_a_change_and_then_come_regularly() {
        let at = Duration::from_secs;
        let mut schedule = ReportSchedule::new(at(300));
        assert!(schedule.is_due(at(0)));
        schedule.written(at(0), false, 0.0);
        assert!(!schedule.is_due(at(149)));
        assert!(schedule.is_due(at(150)));
        schedule.written(at(150), false, 0.9);
        assert!(!schedule.is_due(at(449)));
        assert!(schedule.is_due(at(450)));
        schedule.written(at(450), true, 0.9);
        assert!(!schedule.is_due(at(450 + 419)));
        assert!(schedule.is_due(at(450 + 420)));
    }
}
