//! What the runtime says about itself: ready, network ready, and what it can do.

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuntimeFeatures {
    /// Its default handler can make read-only mounts recursive.
    pub(crate) recursive_read_only_mounts: bool,
    /// It keeps the policy of supplemental groups. Others give a container all groups of its user.
    pub(crate) supplemental_groups_policy: bool,
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
        self.features.unwrap_or_default()
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
        now.features = now.features.or_else(|| state.borrow().features);
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

fn read(answer: Result<v1::StatusResponse, CriError>) -> RuntimeState {
    let (status, features) = match answer {
        Ok(answer) => {
            let features = RuntimeFeatures {
                recursive_read_only_mounts: answer
                    .runtime_handlers
                    .iter()
                    .find(|handler| handler.name.is_empty())
                    .and_then(|handler| handler.features.as_ref())
                    .is_some_and(|features| features.recursive_read_only_mounts),
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
