use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use rubelet_types::{
    ContainerKind, RestartPolicy, container_restarts_after, containers, is_terminal_phase,
    pod_restart_policy,
};

use crate::conditions::can_restart_all;
use crate::containers::{Seen, seen};

/// A report that must not follow the one before: it would be a lie, now or then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalTransition {
    /// A phase left Succeeded or Failed.
    #[error("the phase of the pod attempted to go from {from} to {to}")]
    PhaseLeftTerminal {
        /// The phase before.
        from: String,
        /// The phase that was to follow.
        to: String,
    },
    /// A container came back although nothing restarts it.
    #[error(
        "terminated container {container} attempted illegal transition to non-terminated state"
    )]
    ContainerCameBack {
        /// The container's name.
        container: String,
    },
}

/// Checks that `new` may follow `old` for `pod`.
///
/// A container may leave its terminated state when its restart policy or rules, or a rule of
/// another container that restarts all, allow it. Init containers under `OnFailure` may also run
/// again after success: a new sandbox needs them.
///
/// # Errors
/// The first transition that is not allowed.
pub fn check_transition(
    pod: &Pod,
    old: &PodStatus,
    new: &PodStatus,
) -> Result<(), IllegalTransition> {
    if is_terminal_phase(old.phase.as_deref()) && old.phase != new.phase {
        return Err(IllegalTransition::PhaseLeftTerminal {
            from: old.phase.clone().unwrap_or_default(),
            to: new.phase.clone().unwrap_or_default(),
        });
    }
    let pod_policy = pod_restart_policy(pod);
    if pod_policy == RestartPolicy::Always || can_restart_all(pod) {
        return Ok(());
    }
    for spec in containers(pod) {
        let (before, after) = match spec.kind {
            ContainerKind::Init => (&old.init_container_statuses, &new.init_container_statuses),
            ContainerKind::Regular => (&old.container_statuses, &new.container_statuses),
            // Sidecars always restart, and ephemeral containers are never started again.
            ContainerKind::Sidecar | ContainerKind::Ephemeral => continue,
        };
        if spec.kind == ContainerKind::Init && pod_policy == RestartPolicy::OnFailure {
            continue;
        }
        let name = spec.container.name.as_str();
        let (Some(before), Some(after)) = (find(before, name), find(after, name)) else {
            continue;
        };
        if let (Seen::Terminated(end), Seen::Waiting | Seen::Running) = (seen(before), seen(after))
        {
            let allowed = container_restarts_after(
                pod_policy,
                spec.kind,
                &spec.container,
                end.exit_code,
                end.reason.as_deref(),
            );
            if !allowed {
                return Err(IllegalTransition::ContainerCameBack { container: name.to_owned() });
            }
        }
    }
    Ok(())
}

fn find<'a>(list: &'a Option<Vec<ContainerStatus>>, name: &str) -> Option<&'a ContainerStatus> {
    list.iter().flatten().find(|status| status.name == name)
}
