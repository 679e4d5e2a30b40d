use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Probe;
use rubelet_types::{ContainerId, ContainerSnapshot, ContainerState, ProbeKind, ProbeResult};

/// The numbers of a probe, with the API's defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSettings {
    /// No probe earlier than this after the container's start.
    pub initial_delay: Duration,
    /// From one probe to the next.
    pub period: Duration,
    /// How long one attempt may take.
    pub timeout: Duration,
    /// Successes in a row that settle on success.
    pub success_threshold: u32,
    /// Failures in a row that settle on failure.
    pub failure_threshold: u32,
}

impl ProbeSettings {
    /// Reads `probe`. What is absent, or below its minimum, is the API's default: no delay, period
    /// 10 s, time-out 1 s, success 1, failure 3.
    pub fn new(probe: &Probe) -> Self {
        let positive = |value: Option<i32>, default: u32| {
            value
                .and_then(|value| u32::try_from(value).ok())
                .filter(|it| *it > 0)
                .unwrap_or(default)
        };
        let seconds = |value, default| Duration::from_secs(positive(value, default).into());
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: positive(probe.success_threshold, 1),
            failure_threshold: positive(probe.failure_threshold, 3),
        }
    }
}

/// Whether the newest instance of a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservedRun {
    /// Created and not yet started.
    NotStarted,
    /// Its process runs.
    Running {
        /// Since when.
        started_at: Timestamp,
    },
    /// Its process ended, or the runtime does not know.
    Ended,
}

/// The newest instance of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedInstance {
    /// Its id.
    pub id: ContainerId,
    /// Whether it runs.
    pub run: ObservedRun,
}

impl From<&ContainerSnapshot> for ObservedInstance {
    fn from(container: &ContainerSnapshot) -> Self {
        let run = match container.state {
            ContainerState::Created => ObservedRun::NotStarted,
            ContainerState::Running { started_at } => ObservedRun::Running { started_at },
            ContainerState::Exited { .. } | ContainerState::Unknown => ObservedRun::Ended,
        };
        Self { id: container.id.clone(), run }
    }
}

/// What the status of an earlier run of the kubelet said of a container instance. It holds until a
/// probe settles on something else, so that a restart of the kubelet moves nobody's readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedOver {
    /// The instance it was said of.
    pub id: ContainerId,
    /// It was ready.
    pub ready: bool,
    /// Its startup probe had succeeded, or it had none.
    pub started: bool,
}

/// What a probe has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, until something is observed.
    Idle,
    /// Nothing yet: the initial delay is not over.
    Wait,
    /// Probe this instance when the schedule says so.
    Probe(ContainerId),
}

/// Whether a probe runs at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It does.
    Probing,
    /// Nothing more is to be learned of this instance: liveness failed, or startup concluded. Ends
    /// with a new instance.
    Held,
    /// The pod terminates. Ends never.
    Stopped,
}

/// One probe of one container: thresholds, initial results, and when to hold. Pure: it learns of
/// containers by [`Self::observe`], of attempts by [`Self::record`], of time by argument.
#[derive(Clone, Debug)]
pub struct ProbeState {
    kind: ProbeKind,
    settings: ProbeSettings,
    stage: Stage,
    instance: Option<ObservedInstance>,
    /// The result of `instance`.
    result: Option<ProbeResult>,
    /// `result` is more than an initial value.
    settled: bool,
    /// How many of the latest attempts ended alike, and whether in success.
    streak: (bool, u32),
}

impl ProbeState {
    /// A probe that knows of no container.
    pub fn new(kind: ProbeKind, settings: ProbeSettings) -> Self {
        Self {
            kind,
            settings,
            stage: Stage::Probing,
            instance: None,
            result: None,
            settled: false,
            streak: (false, 0),
        }
    }

    /// The settings.
    pub fn settings(&self) -> ProbeSettings {
        self.settings
    }

    /// Replaces the settings; results stay.
    pub fn set_settings(&mut self, settings: ProbeSettings) {
        self.settings = settings;
    }

    /// The settled or initial result of instance `id`; none if that is not the one being probed.
    pub fn result(&self, id: &ContainerId) -> Option<ProbeResult> {
        self.instance.as_ref().filter(|instance| instance.id == *id).and(self.result)
    }

    /// The result of the instance being probed.
    pub fn current_result(&self) -> Option<ProbeResult> {
        self.result
    }

    /// Learns of the newest instance of the container. A new instance begins with the initial
    /// result of its kind, or with what was carried over for it; one that has ended has failed.
    ///
    /// True if an instance was seen running for the first time.
    pub fn observe(
        &mut self,
        instance: Option<ObservedInstance>,
        carried: Option<&CarriedOver>,
    ) -> bool {
        // An instance that is gone has ended. Without one nothing is created yet.
        let gone = |known: &ObservedInstance| ObservedInstance {
            id: known.id.clone(),
            run: ObservedRun::Ended,
        };
        let Some(instance) = instance.or_else(|| self.instance.as_ref().map(gone)) else {
            return false;
        };
        if self.stage == Stage::Stopped {
            return false;
        }
        let known = self.instance.as_ref().filter(|known| known.id == instance.id);
        let ran = known.is_some_and(|known| matches!(known.run, ObservedRun::Running { .. }));
        let runs = matches!(instance.run, ObservedRun::Running { .. });
        let ended = instance.run == ObservedRun::Ended;
        if known.is_none() {
            self.stage = Stage::Probing;
            self.streak = (false, 0);
            self.settled = false;
            self.result = Some(match self.kind {
                ProbeKind::Readiness => ProbeResult::Failure,
                ProbeKind::Liveness => ProbeResult::Success,
                ProbeKind::Startup => ProbeResult::Unknown,
            });
        }
        self.instance = Some(instance);
        if let Some(carried) = carried {
            self.carry_over(carried);
        }
        if ended && self.stage == Stage::Probing {
            self.result = Some(ProbeResult::Failure);
            self.settled = true;
        }
        runs && !ran
    }

    /// Takes over what an earlier run of the kubelet knew, unless a probe has settled since.
    pub fn carry_over(&mut self, carried: &CarriedOver) {
        let same = self.instance.as_ref().is_some_and(|instance| instance.id == carried.id);
        if !same || self.settled || self.stage != Stage::Probing {
            return;
        }
        match self.kind {
            ProbeKind::Liveness => {}
            ProbeKind::Readiness if carried.ready => self.result = Some(ProbeResult::Success),
            ProbeKind::Readiness => self.result = Some(ProbeResult::Failure),
            ProbeKind::Startup if carried.started => {
                self.result = Some(ProbeResult::Success);
                self.settled = true;
                self.stage = Stage::Held;
            }
            ProbeKind::Startup => {}
        }
    }

    /// What to do at `now`. `started` says of a liveness or readiness probe that the container has
    /// no startup probe, or that this one has succeeded.
    pub fn next(&self, started: bool, now: Timestamp) -> Next {
        let Some(ObservedInstance { id, run: ObservedRun::Running { started_at } }) =
            &self.instance
        else {
            return Next::Idle;
        };
        if self.stage != Stage::Probing || (self.kind != ProbeKind::Startup && !started) {
            return Next::Idle;
        }
        let delay = i64::try_from(self.settings.initial_delay.as_secs()).unwrap_or(i64::MAX);
        if now.duration_since(*started_at).as_secs() < delay {
            Next::Wait
        } else {
            Next::Probe(id.clone())
        }
    }

    /// Learns how an attempt on instance `id` ended. The new result, if that changes it.
    pub fn record(&mut self, id: &ContainerId, success: bool) -> Option<ProbeResult> {
        let running = self.instance.as_ref().is_some_and(|instance| {
            instance.id == *id && matches!(instance.run, ObservedRun::Running { .. })
        });
        if !running || self.stage != Stage::Probing {
            return None;
        }
        self.streak = match self.streak {
            (same, count) if same == success => (success, count.saturating_add(1)),
            _ => (success, 1),
        };
        let (threshold, result) = if success {
            (self.settings.success_threshold, ProbeResult::Success)
        } else {
            (self.settings.failure_threshold, ProbeResult::Failure)
        };
        if self.streak.1 < threshold {
            return None;
        }
        let concluded = match self.kind {
            ProbeKind::Startup => true,
            ProbeKind::Liveness => !success,
            ProbeKind::Readiness => false,
        };
        if concluded {
            self.stage = Stage::Held;
        }
        self.settled = true;
        self.result.replace(result).is_none_or(|before| before != result).then_some(result)
    }

    /// The pod terminates: no probe any more. Liveness and startup count as passed from here on, so
    /// that nobody restarts what is about to end; readiness keeps its result.
    pub fn stop(&mut self) {
        self.stage = Stage::Stopped;
        if self.kind != ProbeKind::Readiness && self.result.is_some() {
            self.result = Some(ProbeResult::Success);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rubelet_types::ProbeResult::{Failure, Success, Unknown};

    use super::*;

    fn settings(success_threshold: u32, failure_threshold: u32) -> ProbeSettings {
        ProbeSettings {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            success_threshold,
            failure_threshold,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn instance(id: &str, run: ObservedRun) -> Option<ObservedInstance> {
        Some(ObservedInstance { id: id.into(), run })
    }

    fn running(id: &str) -> Option<ObservedInstance> {
        instance(id, ObservedRun::Running { started_at: at(0) })
    }

    /// Reads a history such as `run a, fail, fail, exit, run b, ok, stop` and writes the result
    /// after each step, with `*` where an attempt changed it.
    fn history(kind: ProbeKind, settings: ProbeSettings, steps: &str) -> String {
        let mut state = ProbeState::new(kind, settings);
        let mut id = "";
        let mut seen = Vec::new();
        for step in steps.split(", ") {
            let mut changed = None;
            match step.split_once(' ').unwrap_or((step, "")) {
                ("run", new) => {
                    id = new;
                    state.observe(running(id), None);
                }
                ("create", new) => {
                    id = new;
                    state.observe(instance(id, ObservedRun::NotStarted), None);
                }
                ("exit", _) => {
                    state.observe(instance(id, ObservedRun::Ended), None);
                }
                ("ok", _) => changed = state.record(&id.into(), true),
                ("fail", _) => changed = state.record(&id.into(), false),
                ("old", _) => changed = state.record(&"old".into(), false),
                ("stop", _) => state.stop(),
                other => panic!("{other:?}"),
            }
            let result = match state.result(&id.into()) {
                None => "none",
                Some(Unknown) => "unknown",
                Some(Success) => "success",
                Some(Failure) => "failure",
            };
            let mark = if changed.is_some() { "*" } else { "" };
            let idle = match state.next(true, at(100)) {
                Next::Idle => "-",
                Next::Wait => "?",
                Next::Probe(_) => "",
            };
            seen.push(format!("{idle}{result}{mark}"));
        }
        seen.join(", ")
    }

    #[test]
    fn a_container_that_vanished_is_not_probed_any_more() {
        for kind in [ProbeKind::Readiness, ProbeKind::Liveness] {
            let mut state = ProbeState::new(kind, settings(1, 1));
            assert!(!state.observe(None, None));
            state.observe(running("a"), None);
            assert_eq!(state.next(true, at(1)), Next::Probe("a".into()));
            state.observe(None, None);
            assert_eq!(state.next(true, at(2)), Next::Idle);
            assert_eq!(state.result(&"a".into()), Some(Failure));
            assert!(state.observe(running("b"), None));
            assert_eq!(state.next(true, at(3)), Next::Probe("b".into()));
        }
    }

    #[test]
    fn histories() {
        use ProbeKind::{Liveness, Readiness, Startup};
        // `-` before a result: nothing more is probed.
        for (kind, success, failure, steps, expected) in [
            (Liveness, 1, 1, "run a", "success"),
            (Readiness, 1, 1, "run a", "failure"),
            (Startup, 1, 1, "run a", "unknown"),
            (Readiness, 1, 1, "create a, run a, ok", "-failure, failure, success*"),
            (
                Liveness,
                1,
                3,
                "run a, fail, fail, ok, fail, fail, fail",
                "success, success, success, success, success, success, -failure*",
            ),
            (
                Readiness,
                2,
                2,
                "run a, ok, ok, ok, fail, ok, fail, fail, fail, ok, ok",
                "failure, failure, success*, success, success, success, success, failure*, \
                 failure, failure, success*",
            ),
            (Startup, 1, 2, "run a, fail, ok", "unknown, unknown, -success*"),
            (Startup, 1, 2, "run a, fail, fail", "unknown, unknown, -failure*"),
            // A failed container is left alone until it is replaced, and counts from nothing then.
            (
                Liveness,
                1,
                2,
                "run a, fail, fail, ok, exit, run b, fail, fail",
                "success, success, -failure*, -failure, -failure, success, success, -failure*",
            ),
            (
                Liveness,
                1,
                3,
                "run a, fail, fail, exit, run b, fail",
                "success, success, success, -failure, success, success",
            ),
            // What ends has failed, except where startup was through.
            (Readiness, 1, 1, "run a, ok, exit", "failure, success*, -failure"),
            (Startup, 1, 1, "run a, ok, exit", "unknown, -success*, -success"),
            (Startup, 1, 1, "run a, exit, run b", "unknown, -failure, unknown"),
            // A late answer of an instance that is gone counts for nothing.
            (Liveness, 1, 1, "run a, old, exit, fail", "success, success, -failure, -failure"),
            // Termination.
            (Liveness, 1, 2, "run a, fail, stop, fail", "success, success, -success, -success"),
            (Liveness, 1, 1, "run a, fail, stop, run a", "success, -failure*, -success, -success"),
            (Startup, 1, 1, "run a, stop", "unknown, -success"),
            (Readiness, 1, 1, "run a, ok, stop, fail", "failure, success*, -success, -success"),
        ] {
            assert_eq!(history(kind, settings(success, failure), steps), expected, "{steps}");
        }
    }

    #[test]
    fn the_initial_delay_counts_whole_seconds_from_the_start_of_the_container() {
        let mut settings = settings(1, 3);
        settings.initial_delay = Duration::from_secs(5);
        let mut state = ProbeState::new(ProbeKind::Liveness, settings);
        let started_at = Timestamp::from_millisecond(10_500).unwrap();
        state.observe(instance("a", ObservedRun::Running { started_at }), None);
        for (millisecond, expected) in [
            (9_000, Next::Wait),
            (10_500, Next::Wait),
            (15_499, Next::Wait),
            (15_500, Next::Probe("a".into())),
        ] {
            let now = Timestamp::from_millisecond(millisecond).unwrap();
            assert_eq!(state.next(true, now), expected, "{millisecond}");
        }
    }

    #[test]
    fn liveness_and_readiness_wait_for_startup() {
        for (kind, expected) in [
            (ProbeKind::Liveness, Next::Idle),
            (ProbeKind::Readiness, Next::Idle),
            (ProbeKind::Startup, Next::Probe("a".into())),
        ] {
            let mut state = ProbeState::new(kind, settings(1, 3));
            state.observe(running("a"), None);
            assert_eq!(state.next(false, at(100)), expected, "{kind}");
        }
    }

    #[test]
    fn what_was_carried_over_holds_until_a_probe_settles() {
        let carried = |ready, started| CarriedOver { id: "a".into(), ready, started };
        for (kind, carried, expected) in [
            (ProbeKind::Liveness, carried(false, false), Success),
            (ProbeKind::Readiness, carried(true, true), Success),
            (ProbeKind::Readiness, carried(false, true), Failure),
            (ProbeKind::Startup, carried(true, true), Success),
            (ProbeKind::Startup, carried(false, false), Unknown),
        ] {
            let mut state = ProbeState::new(kind, settings(1, 2));
            state.observe(running("a"), Some(&carried));
            assert_eq!(state.result(&"a".into()), Some(expected), "{kind} {carried:?}");
            let mut late = ProbeState::new(kind, settings(1, 2));
            late.observe(running("a"), None);
            late.carry_over(&carried);
            assert_eq!(late.result(&"a".into()), Some(expected), "{kind} {carried:?}");
            state.observe(running("b"), Some(&carried));
            let mut initial = ProbeState::new(kind, settings(1, 2));
            initial.observe(running("b"), None);
            assert_eq!(state.result(&"b".into()), initial.result(&"b".into()), "{kind}");
        }
        let mut state = ProbeState::new(ProbeKind::Readiness, settings(1, 2));
        state.observe(running("a"), Some(&carried(true, true)));
        assert_eq!(state.record(&"a".into(), false), None);
        assert_eq!(state.result(&"a".into()), Some(Success));
        assert_eq!(state.record(&"a".into(), false), Some(Failure));
        state.observe(running("a"), Some(&carried(true, true)));
        assert_eq!(state.result(&"a".into()), Some(Failure));
        let mut startup = ProbeState::new(ProbeKind::Startup, settings(1, 2));
        startup.observe(running("a"), Some(&carried(true, true)));
        assert_eq!(startup.next(false, at(100)), Next::Idle, "it is not run again");
    }

    #[test]
    fn absent_numbers_are_the_apis_defaults() {
        let expected = ProbeSettings {
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            success_threshold: 1,
            failure_threshold: 3,
        };
        assert_eq!(ProbeSettings::new(&Probe::default()), expected);
        let nonsense = Probe {
            period_seconds: Some(0),
            timeout_seconds: Some(-1),
            initial_delay_seconds: Some(-5),
            ..Default::default()
        };
        assert_eq!(ProbeSettings::new(&nonsense), expected);
    }

    proptest! {
        /// A result only ever changes by a full streak.
        #[test]
        fn a_change_needs_a_full_streak(
            success in 1u32..4,
            failure in 1u32..4,
            attempts in prop::collection::vec(any::<bool>(), 0..40),
        ) {
            let mut state = ProbeState::new(ProbeKind::Readiness, settings(success, failure));
            state.observe(running("a"), None);
            for (index, attempt) in attempts.iter().enumerate() {
                let streak = attempts[..=index].iter().rev().take_while(|it| *it == attempt).count();
                let threshold = if *attempt { success } else { failure };
                let full = streak >= usize::try_from(threshold).unwrap();
                let before = state.current_result();
                let expected = if *attempt { Success } else { Failure };
                let changed = state.record(&"a".into(), *attempt);
                prop_assert_eq!(changed.is_some(), full && before != Some(expected));
                if full {
                    prop_assert_eq!(state.current_result(), Some(expected));
                } else {
                    prop_assert_eq!(state.current_result(), before);
                }
            }
        }
    }
}
