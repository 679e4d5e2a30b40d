//! Faults on purpose: which request is refused, delayed, or never answered.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rubelet_apiserver::Verb;

use crate::refusal::Refusal;
use crate::route::Route;

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum FaultAction {
    /// The request is refused with this code, and the reason that goes with it.
    Refuse {
        /// 403, 409, 410, 429, 500, 503, 504 or any other.
        code: u16,
        /// Seconds that the answer asks to wait.
        retry_after: Option<u32>,
    },
    /// The authoriser of nodes has not heard yet of the pod that relates the node to the object.
    Unrelated,
    /// The request takes longer.
    Delay(Duration),
    /// The request is never answered. It is not carried out if the fault strikes before.
    Hang,
    /// The connection breaks.
    Break,
}

/// A fault that waits for its request.
#[derive(Clone, Debug)]
pub struct Fault {
    verb: Option<Verb>,
    resource: Option<String>,
    name: Option<String>,
    action: FaultAction,
    is_after_effect: bool,
    remaining: Option<u32>,
    probability: f64,
}

impl Fault {
    /// Strikes every request, before it is carried out.
    pub fn on_every_request(action: FaultAction) -> Self {
        Self {
            verb: None,
            resource: None,
            name: None,
            action,
            is_after_effect: false,
            remaining: None,
            probability: 1.0,
        }
    }

    /// Strikes requests of this verb on this resource (`pods/status`), before they are carried out.
    pub fn on(verb: Verb, resource: impl Into<String>, action: FaultAction) -> Self {
        Self { verb: Some(verb), resource: Some(resource.into()), ..Self::on_every_request(action) }
    }

    /// Strikes only requests about the object of this name.
    pub fn about(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Strikes when everything is done, and only the answer is missing.
    pub fn after_effect(mut self) -> Self {
        self.is_after_effect = true;
        self
    }

    /// Strikes this often, and is gone then.
    pub fn times(mut self, times: u32) -> Self {
        self.remaining = Some(times);
        self
    }

    /// Strikes a matching request only with this probability, drawn from the server's seed.
    pub fn with_probability(mut self, probability: f64) -> Self {
        self.probability = probability.clamp(0.0, 1.0);
        self
    }

    fn matches(&self, route: &Route, is_after_effect: bool) -> bool {
        self.verb.is_none_or(|verb| verb == route.verb)
            && self.resource.as_ref().is_none_or(|resource| *resource == route.resource())
            && self.name.as_ref().is_none_or(|name| Some(name) == route.name.as_ref())
            && self.is_after_effect == is_after_effect
            && self.remaining != Some(0)
    }
}

/// What a fault means for a request that is not simply carried out.
pub(crate) enum Struck {
    Refused(Refusal),
    Broken,
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

    fn draw(&self, route: &Route, is_after_effect: bool) -> Vec<FaultAction> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { faults, random } = &mut *inner;
        let mut actions = Vec::new();
        for fault in faults.iter_mut() {
            if !fault.matches(route, is_after_effect) {
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

    /// Lets strike what waits for this request.
    pub(crate) async fn strike(&self, route: &Route, is_after_effect: bool) -> Result<(), Struck> {
        for action in self.draw(route, is_after_effect) {
            match action {
                FaultAction::Refuse { code, retry_after } => {
                    let reason = reason_of(code);
                    let message = format!("a fault on purpose: {code} {reason}");
                    let mut refusal = Refusal::new(code, reason, message);
                    refusal.retry_after = retry_after;
                    return Err(Struck::Refused(refusal));
                }
                FaultAction::Unrelated => {
                    let message = "forbidden: User \"system:node:n\" cannot do that: no relationship \
                                   found between node 'n' and this object";
                    return Err(Struck::Refused(Refusal::new(403, reason_of(403), message)));
                }
                FaultAction::Delay(duration) => tokio::time::sleep(duration).await,
                FaultAction::Hang => std::future::pending::<()>().await,
                FaultAction::Break => return Err(Struck::Broken),
            }
        }
        Ok(())
    }
}

fn reason_of(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}
