//! What the runtime says about itself: ready, network ready, and what it can do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rubelet_cri::{CriClient, CriError, v1};
use rubelet_pod_lifecycle::NetworkState;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Period of asking once the runtime is ready.
const PERIOD: Duration = Duration::from_secs(5);
/// First and longest period of asking while it is not.
const FAST_PERIODS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// The runtime as it last described itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuntimeState {
    pub(crate) ready: Result<(), String>,
    pub(crate) network: NetworkState,
    /// None until it answered for the first time. One that is down for a while can do what it could.
    pub(crate) features: Option<RuntimeFeatures>,
}

/// What a runtime can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeFeatures {
    /// It keeps the policy of supplemental groups. Others give a container all groups of its user.
    pub(crate) supplemental_groups_policy: bool,
    /// What its handlers can do, by name; the default one has none. Empty if it does not tell.
    handlers: Arc<BTreeMap<String, HandlerFeatures>>,
}

/// What a handler of a runtime can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HandlerFeatures {
    /// It can make read-only mounts recursive.
    pub(crate) recursive_read_only_mounts: bool,
    /// It can give a pod users of its own.
    pub(crate) user_namespaces: bool,
}

impl RuntimeFeatures {
    /// What the handler can do, as far as the runtime tells.
    pub(crate) fn handler(&self, name: &str) -> HandlerFeatures {
        self.handlers.get(name).copied().unwrap_or_default()
    }

    /// Whether the handler can give a pod users of its own.
    ///
    /// # Errors
    /// It cannot; with the text that users read.
    pub(crate) fn check_user_namespaces(&self, handler: &str) -> Result<(), String> {
        let refused = if handler.is_empty() {
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces".to_owned()
        } else {
            format!(
                "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not \
                 support user namespaces"
            )
        };
        match self.handlers.get(handler) {
            Some(can) if can.user_namespaces => Ok(()),
            None if !self.handlers.is_empty() => {
                Err(format!("{refused}: the handler {handler:?} is not known"))
            }
            Some(_) | None => Err(refused),
        }
    }
}

impl Default for RuntimeState {
    fn default() -> Self {
        Self {
            ready: Err("container runtime status check may not have completed yet".to_owned()),
            network: NetworkState::NotReady(
                "container runtime network not ready: status check may not have completed yet"
                    .to_owned(),
            ),
            features: None,
        }
    }
}

impl RuntimeState {
    /// What it can do, as far as that is known.
    pub(crate) fn features(&self) -> RuntimeFeatures {
        self.features.clone().unwrap_or_default()
    }
}

/// Asks the runtime for its status until cancelled, and publishes what changed. `told` hears each
/// answer as it is.
pub(crate) async fn watch_runtime(
    cri: CriClient,
    state: watch::Sender<RuntimeState>,
    told: impl Fn(Result<&v1::StatusResponse, &CriError>),
    cancel: CancellationToken,
) {
    let mut fast_period = FAST_PERIODS.0;
    loop {
        let answer = cri.status(false).await;
        told(answer.as_ref());
        let mut now = read(answer);
        now.features = now.features.or_else(|| state.borrow().features.clone());
        let settled = now.ready.is_ok() && now.network == NetworkState::Ready;
        state.send_if_modified(|known| {
            let changed = *known != now;
            if changed {
                tracing::info!(runtime = ?now.ready, network = ?now.network,
                    "Container runtime status changed");
                *known = now;
            }
            changed
        });
        let period = if settled {
            fast_period = FAST_PERIODS.0;
            PERIOD
        } else {
            // A node may be without a network for long.
            let slower = fast_period.mul_f32(1.2).min(FAST_PERIODS.1);
            std::mem::replace(&mut fast_period, slower)
        };
        tokio::select! {
            () = cancel.cancelled() => return,
            () = tokio::time::sleep(period) => {}
        }
    }
}

fn handlers(told: Vec<v1::RuntimeHandler>) -> BTreeMap<String, HandlerFeatures> {
    told.into_iter()
        .map(|handler| {
            let features = handler.features.unwrap_or_default();
            let can = HandlerFeatures {
                recursive_read_only_mounts: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            };
            (handler.name, can)
        })
        .collect()
}

fn read(answer: Result<v1::StatusResponse, CriError>) -> RuntimeState {
    let (status, features) = match answer {
        Ok(answer) => {
            let features = RuntimeFeatures {
                handlers: Arc::new(handlers(answer.runtime_handlers)),
                supplemental_groups_policy: answer
                    .features
                    .is_some_and(|features| features.supplemental_groups_policy),
            };
            (answer.status.unwrap_or_default(), features)
        }
        Err(error) => {
            let message = format!("container runtime is down: {error}");
            return RuntimeState {
                ready: Err(message.clone()),
                network: NetworkState::NotReady(message),
                features: None,
            };
        }
    };
    let condition = |name: &str| {
        let found = status.conditions.iter().find(|condition| condition.r#type == name);
        match found {
            Some(condition) if condition.status => Ok(()),
            Some(condition) => Err(format!(
                "{name}={} reason:{} message:{}",
                condition.status, condition.reason, condition.message
            )),
            None => Err(format!("{name} is missing from the runtime's status")),
        }
    };
    RuntimeState {
        ready: condition("RuntimeReady")
            .map_err(|message| format!("container runtime not ready: {message}")),
        network: match condition("NetworkReady") {
            Ok(()) => NetworkState::Ready,
            Err(message) => {
                NetworkState::NotReady(format!("container runtime network not ready: {message}"))
            }
        },
        features: Some(features),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_handler_gives_users_is_told_in_words_users_know() {
        let handler = |name: &str, user_namespaces| v1::RuntimeHandler {
            name: name.to_owned(),
            features: Some(v1::RuntimeHandlerFeatures {
                user_namespaces,
                ..v1::RuntimeHandlerFeatures::default()
            }),
        };
        let told = vec![handler("", true), handler("kata", false)];
        let can = RuntimeFeatures { handlers: Arc::new(handlers(told)), ..Default::default() };
        let class = "can't set `spec.hostUsers: false`, RuntimeClass handler ";
        for (name, expected) in [
            ("", Ok(())),
            ("kata", Err(format!("{class}\"kata\" does not support user namespaces"))),
            (
                "gvisor",
                Err(format!(
                    "{class}\"gvisor\" does not support user namespaces: the handler \"gvisor\" \
                     is not known"
                )),
            ),
        ] {
            assert_eq!(can.check_user_namespaces(name), expected);
        }
        assert_eq!(
            RuntimeFeatures::default().check_user_namespaces(""),
            Err("can't set `spec.hostUsers: false`, runtime does not support user namespaces"
                .to_owned())
        );
    }
}
