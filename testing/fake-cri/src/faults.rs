//! Faults on purpose: which call of which object fails, hangs, or takes the runtime down.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rubelet_cri::Rpc;
use tonic::{Code, Status};

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum FaultAction {
    /// The call is answered with an error.
    Error(Code, String),
    /// The call takes longer.
    Delay(Duration),
    /// The call never ends. What it was to do never comes about if the fault strikes before it.
    Hang,
    /// The runtime dies, and is back after a while, or when told so.
    Crash {
        /// When it comes back by itself.
        back_after: Option<Duration>,
    },
}

/// Which side of the call's effect the fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before anything has changed. Calls that create something have reserved its name by then.
    BeforeEffect,
    /// When everything is done, and only the answer is missing.
    AfterEffect,
}

/// A fault that waits for its call.
#[derive(Clone, Debug)]
pub struct Fault {
    rpc: Option<Rpc>,
    action: FaultAction,
    moment: Moment,
    subject: Option<String>,
    remaining: Option<u32>,
    probability: f64,
}

impl Fault {
    /// Strikes every call of `rpc`, before its effect.
    pub fn on(rpc: Rpc, action: FaultAction) -> Self {
        Self { rpc: Some(rpc), ..Self::on_every_call(action) }
    }

    /// Strikes every call there is, before its effect.
    pub fn on_every_call(action: FaultAction) -> Self {
        Self {
            rpc: None,
            action,
            moment: Moment::BeforeEffect,
            subject: None,
            remaining: None,
            probability: 1.0,
        }
    }

    /// Strikes after the effect.
    pub fn after_effect(mut self) -> Self {
        self.moment = Moment::AfterEffect;
        self
    }

    /// Strikes only calls about `subject`: a pod's uid or name, a container's name, an id, an image,
    /// or a word of the command that is run in a container.
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Strikes this often, and is gone then.
    pub fn times(mut self, times: u32) -> Self {
        self.remaining = Some(times);
        self
    }

    /// Strikes a matching call only with this probability, drawn from the runtime's seed.
    pub fn with_probability(mut self, probability: f64) -> Self {
        self.probability = probability.clamp(0.0, 1.0);
        self
    }

    fn matches(&self, rpc: Rpc, moment: Moment, subjects: &[String]) -> bool {
        self.rpc.is_none_or(|of| of == rpc)
            && self.moment == moment
            && self.remaining != Some(0)
            && self.subject.as_ref().is_none_or(|subject| subjects.contains(subject))
    }
}

/// All faults that wait.
#[derive(Debug)]
pub(crate) struct Faults(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    faults: Vec<Fault>,
    random: StdRng,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(Inner { faults: Vec::new(), random: StdRng::seed_from_u64(seed) }))
    }

    pub(crate) fn inject(&self, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).faults.push(fault);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).faults.clear();
    }

    /// How long half a call takes: no time for half of them, a part of `longest` for the others.
    pub(crate) fn draw_latency(&self, longest: Duration) -> Duration {
        if longest.is_zero() {
            return Duration::ZERO;
        }
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.random.random_bool(0.5) {
            return Duration::ZERO;
        }
        // Short ones are the most frequent.
        longest.mul_f64(inner.random.random_range(0.0..1.0f64).powi(4))
    }

    /// Everything that strikes this call at this moment, in the order of injection.
    fn draw(&self, rpc: Rpc, moment: Moment, subjects: &[String]) -> Vec<FaultAction> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { faults, random } = &mut *inner;
        let mut actions = Vec::new();
        for fault in faults.iter_mut() {
            if !fault.matches(rpc, moment, subjects) {
                continue;
            }
            // Certain faults draw nothing, so that adding one changes no other's luck.
            if fault.probability < 1.0 && !random.random_bool(fault.probability) {
                continue;
            }
            if let Some(remaining) = &mut fault.remaining {
                *remaining -= 1;
            }
            actions.push(fault.action.clone());
        }
        faults.retain(|fault| fault.remaining != Some(0));
        actions
    }

    /// Lets strike what waits for this call. `tell` hears of it, `crash` takes the runtime down.
    pub(crate) async fn strike(
        &self,
        rpc: Rpc,
        moment: Moment,
        subjects: &[String],
        tell: impl Fn(&FaultAction),
        crash: impl Fn(Option<Duration>),
    ) -> Result<(), Status> {
        for action in self.draw(rpc, moment, subjects) {
            tell(&action);
            match action {
                FaultAction::Error(code, message) => return Err(Status::new(code, message)),
                FaultAction::Delay(duration) => tokio::time::sleep(duration).await,
                FaultAction::Hang => std::future::pending::<()>().await,
                FaultAction::Crash { back_after } => {
                    crash(back_after);
                    // Nobody gets an answer from a dead runtime.
                    std::future::pending::<()>().await;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> FaultAction {
        FaultAction::Error(Code::Internal, text.to_owned())
    }

    async fn strikes(faults: &Faults, rpc: Rpc, moment: Moment, subject: &str) -> bool {
        faults.strike(rpc, moment, &[subject.to_owned()], |_| {}, |_| {}).await.is_err()
    }

    #[tokio::test]
    async fn a_fault_strikes_its_call_its_subject_and_its_moment_only() {
        let faults = Faults::new(1);
        faults.inject(Fault::on(Rpc::StartContainer, error("x")).about("web").after_effect());
        use Moment::{AfterEffect, BeforeEffect};
        assert!(!strikes(&faults, Rpc::StartContainer, BeforeEffect, "web").await);
        assert!(!strikes(&faults, Rpc::StartContainer, AfterEffect, "db").await);
        assert!(!strikes(&faults, Rpc::StopContainer, AfterEffect, "web").await);
        assert!(strikes(&faults, Rpc::StartContainer, AfterEffect, "web").await);
    }

    #[tokio::test]
    async fn a_counted_fault_is_gone_after_its_last_time() {
        let faults = Faults::new(1);
        faults.inject(Fault::on_every_call(error("x")).times(2));
        let mut struck = 0;
        for _ in 0..5 {
            struck += u32::from(strikes(&faults, Rpc::Version, Moment::BeforeEffect, "").await);
        }
        assert_eq!(struck, 2);
    }

    #[tokio::test]
    async fn chance_comes_from_the_seed() {
        let mut histories = Vec::new();
        for seed in [7, 7, 8] {
            let faults = Faults::new(seed);
            faults.inject(Fault::on_every_call(error("x")).with_probability(0.5));
            let mut history = Vec::new();
            for _ in 0..64 {
                history.push(strikes(&faults, Rpc::Version, Moment::BeforeEffect, "").await);
            }
            histories.push(history);
        }
        assert_eq!(histories[0], histories[1]);
        assert_ne!(histories[0], histories[2]);
        assert!(histories[0].contains(&true) && histories[0].contains(&false));
    }
}
