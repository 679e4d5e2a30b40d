use std::time::Duration;

use rubelet_cri::{CriError, v1};

use crate::{RuntimeFacts, RuntimeHandlerFacts};

/// A runtime that was last heard to be ready longer ago than this is down.
pub(crate) const DOWN_AFTER: Duration = Duration::from_secs(30);

/// What the answers of the runtime to `Status` amount to.
///
/// An answer that fails changes nothing: the runtime is down only when it has not been ready for
/// [`DOWN_AFTER`]. What it can do is kept from the last time it was ready.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeHealth {
    /// When it was last ready.
    pub(crate) ready_at: Option<tokio::time::Instant>,
    not_ready: Option<String>,
    network: NetworkHealth,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum NetworkHealth {
    #[default]
    Unknown,
    Ready,
    NotReady(String),
}

impl RuntimeHealth {
    /// Takes an answer into account, and into `facts` what the runtime can do.
    pub(crate) fn observe(
        &mut self,
        answer: Result<&v1::StatusResponse, &CriError>,
        facts: &mut RuntimeFacts,
        now: tokio::time::Instant,
    ) {
        let Ok(answer) = answer else { return };
        let conditions = answer.status.as_ref().map_or(&[][..], |status| &status.conditions);
        self.network = match problem(conditions, "NetworkReady") {
            None => NetworkHealth::Ready,
            Some(text) => {
                NetworkHealth::NotReady(format!("container runtime network not ready: {text}"))
            }
        };
        self.not_ready = problem(conditions, "RuntimeReady")
            .map(|text| format!("container runtime not ready: {text}"));
        if self.not_ready.is_some() {
            return;
        }
        self.ready_at = Some(now);
        let handlers = answer.runtime_handlers.iter().map(|handler| {
            let features = handler.features.unwrap_or_default();
            RuntimeHandlerFacts {
                name: handler.name.clone(),
                recursive_read_only_mounts: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            }
        });
        facts.handlers = Some(handlers.collect());
        facts.supplemental_groups_policy =
            answer.features.map(|features| features.supplemental_groups_policy);
        facts.user_namespaces_host_network =
            answer.features.is_some_and(|features| features.user_namespaces_host_network);
    }

    /// Why the node is not ready as far as the runtime goes, at `now`; the results of health
    /// checks stand where upstream has them.
    pub(crate) fn errors(
        &self,
        now: tokio::time::Instant,
        failed_checks: impl IntoIterator<Item = String>,
    ) -> Vec<String> {
        let mut errors = Vec::new();
        match self.ready_at {
            None => {
                errors.push("container runtime status check may not have completed yet".to_owned())
            }
            Some(at) if now >= at + DOWN_AFTER => {
                errors.push("container runtime is down".to_owned());
            }
            Some(_) => {}
        }
        errors.extend(failed_checks);
        errors.extend(self.not_ready.clone());
        match &self.network {
            NetworkHealth::Unknown => errors.push("network state unknown".to_owned()),
            NetworkHealth::NotReady(text) => errors.push(text.clone()),
            NetworkHealth::Ready => {}
        }
        errors
    }

    /// Says the same as `other`, apart from when.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let is_down = |health: &Self| health.ready_at.is_none();
        self.not_ready == other.not_ready
            && self.network == other.network
            && is_down(self) == is_down(other)
    }
}

/// Why a condition is not true, in upstream's words.
fn problem(conditions: &[v1::RuntimeCondition], name: &str) -> Option<String> {
    match conditions.iter().find(|condition| condition.r#type == name) {
        Some(condition) if condition.status => None,
        Some(condition) => Some(format!(
            "{name}={} reason:{} message:{}",
            condition.status, condition.reason, condition.message
        )),
        None => Some("<nil>".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rubelet_cri::{CriErrorKind, Rpc};
    use tokio::time::Instant;

    use super::*;

    fn answer(runtime: bool, network: bool) -> v1::StatusResponse {
        let condition = |name: &str, status: bool| v1::RuntimeCondition {
            r#type: name.to_owned(),
            status,
            reason: if status { String::new() } else { "Broken".to_owned() },
            message: if status { String::new() } else { "for now".to_owned() },
        };
        v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", runtime),
                    condition("NetworkReady", network),
                ],
            }),
            ..v1::StatusResponse::default()
        }
    }

    #[test]
    fn a_failed_answer_is_forgiven_for_half_a_minute() {
        let (mut health, mut facts) = (RuntimeHealth::default(), RuntimeFacts::default());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(
            health.errors(start, ["PLEG is not healthy: pleg has yet to be successful".to_owned()]),
            [
                "container runtime status check may not have completed yet",
                "PLEG is not healthy: pleg has yet to be successful",
                "network state unknown",
            ]
        );
        health.observe(Ok(&answer(true, true)), &mut facts, at(0));
        assert_eq!(health.errors(at(0), []), [""; 0]);
        assert_eq!(facts.handlers, Some(Vec::new()));
        let error = CriError::new(Rpc::Status, CriErrorKind::Unavailable, "gone");
        health.observe(Err(&error), &mut facts, at(20));
        assert_eq!(health.errors(at(29), []), [""; 0]);
        assert_eq!(health.errors(at(30), []), ["container runtime is down"]);
        health.observe(Ok(&answer(true, false)), &mut facts, at(31));
        assert_eq!(
            health.errors(at(31), []),
            ["container runtime network not ready: NetworkReady=false reason:Broken \
              message:for now"]
        );
        // Not ready is said at once, and the time since it was ready counts on.
        health.observe(Ok(&answer(false, true)), &mut facts, at(40));
        assert_eq!(
            health.errors(at(62), []),
            [
                "container runtime is down",
                "container runtime not ready: RuntimeReady=false reason:Broken message:for now",
            ]
        );
    }
}
