//! What a step of the wall clock does to a pod: nothing.
//!
//! Everything that was to happen after a while happens after that while, whichever time the clock
//! shows: a grace period is neither cut short nor drawn out, and a snapshot that was fresh is.

use jiff::{SignedDuration, Timestamp};

use crate::stage::Stage;
use crate::state::{Failure, PodState, Preparation};

pub(crate) fn moved(time: Timestamp, by: SignedDuration) -> Timestamp {
    // Beyond the ends of time is a clock that was never right.
    time.saturating_add(by).unwrap_or(time)
}

impl PodState {
    /// The wall clock was set, and shows `by` more than it did. What the runtime and the pod's
    /// status say keeps the time that they name: `activeDeadlineSeconds` and back-off count from it.
    pub(crate) fn clock_set(&mut self, by: SignedDuration, now: Timestamp) {
        let shift = |time: &mut Timestamp| *time = moved(*time, by);
        match &mut self.stage {
            Stage::Waiting | Stage::Syncing | Stage::Finished { .. } => {}
            Stage::Terminating { since, deadline, .. } => {
                shift(since);
                shift(deadline);
            }
            Stage::Terminated { since, .. } => shift(since),
        }
        if let Some(snapshot) = &mut self.snapshot {
            shift(&mut snapshot.taken_at);
        }
        shift(&mut self.fresh_after);
        for preparation in [&mut self.preparation, &mut self.volumes] {
            if let Preparation::Failed(Failure { retry_at, .. }) = preparation {
                shift(retry_at);
            }
        }
        let failures = self.sandbox_failure.iter_mut().chain(self.start_failures.values_mut());
        failures.for_each(|failure| shift(&mut failure.retry_at));
        self.retries.values_mut().for_each(|retry| shift(&mut retry.at));
        self.back_off.clock_set(by);
        self.kills.values_mut().for_each(|kill| shift(&mut kill.deadline));
        self.replacement_deadline.iter_mut().for_each(shift);
        let limits = self.in_flight.values_mut().filter_map(|in_flight| in_flight.until.as_mut());
        limits.for_each(shift);
        self.clock_set_at = Some(now);
    }

    /// When something ended that is said to have ended at `time`. What the clock shows at the
    /// earliest from now on ended before it was set back, so no later than then.
    pub(crate) fn ended_at(&self, time: Timestamp, now: Timestamp) -> Timestamp {
        match self.clock_set_at {
            Some(set_at) if time > now => set_at.min(now),
            _ => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use rubelet_types::PodSnapshot;

    use super::*;
    use crate::{
        BackOffSettings, NetworkState, Observed, PodEvent, ProbeLookup, StopCause, decide,
    };

    struct NoProbes;

    impl ProbeLookup for NoProbes {
        fn result(
            &self,
            _: &str,
            _: &rubelet_types::ContainerId,
            _: rubelet_types::ProbeKind,
        ) -> Option<rubelet_types::ProbeResult> {
            None
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod() -> Arc<Pod> {
        let pod = serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": 30},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn needs_snapshot(state: &PodState, now: Timestamp) -> bool {
        let observed = Observed { probes: &NoProbes, network: &NetworkState::Ready, resize: None };
        decide(state, &observed, now).needs_snapshot
    }

    #[test]
    fn a_grace_period_lasts_as_long_as_it_was_said() {
        for by in [-3600, 3600] {
            let mut state = PodState::new(pod(), BackOffSettings::default());
            state.apply(PodEvent::Admitted, at(1_000_000));
            let stop = PodEvent::Stop { cause: StopCause::Deleted, grace_seconds: None };
            state.apply(stop, at(1_000_010));
            let now = at(1_000_020 + by);
            state.apply(PodEvent::ClockSet(SignedDuration::from_secs(by)), now);
            let Stage::Terminating { deadline, .. } = state.stage() else { panic!("{state:?}") };
            assert_eq!(deadline.duration_since(now).as_secs(), 20);
        }
    }

    #[test]
    fn a_grace_period_begins_when_containers_can_be_asked_to_stop() {
        let mut state = PodState::new(pod(), BackOffSettings::default());
        state.apply(PodEvent::Admitted, at(1_000_000));
        let stop = PodEvent::Stop { cause: StopCause::Deleted, grace_seconds: None };
        state.apply(stop, at(1_000_010));
        // The runtime did not answer for a minute.
        for (second, deadline) in [(1_000_070, 1_000_100), (1_000_080, 1_000_100)] {
            let snapshot = PodSnapshot::empty(rubelet_types::pod_ref(&pod()), at(second));
            state.apply(PodEvent::Observed(Box::new(snapshot)), at(second));
            let Stage::Terminating { deadline: found, .. } = state.stage() else { panic!() };
            assert_eq!(*found, at(deadline));
        }
    }

    #[test]
    fn the_runtime_is_believed_after_the_clock_was_set_back() {
        let mut state = PodState::new(pod(), BackOffSettings::default());
        state.apply(PodEvent::Admitted, at(1_000_000));
        let look = |second| {
            let snapshot = PodSnapshot::empty(rubelet_types::pod_ref(&pod()), at(second));
            PodEvent::Observed(Box::new(snapshot))
        };
        state.apply(look(1_000_001), at(1_000_001));
        assert!(!needs_snapshot(&state, at(1_000_002)));
        state.apply(PodEvent::ClockSet(SignedDuration::from_secs(-3600)), at(996_402));
        assert!(!needs_snapshot(&state, at(996_402)));
        state.apply(look(996_403), at(996_403));
        assert_eq!(state.snapshot().unwrap().taken_at, at(996_403));

        // One that was taken before the clock was set and arrives after it tells nothing of order.
        state.apply(look(999_999), at(996_404));
        assert!(needs_snapshot(&state, at(996_404)));
        state.apply(look(996_405), at(996_405));
        assert!(!needs_snapshot(&state, at(996_405)));
    }
}
