use k8s_openapi::api::core::v1::{Container, ContainerRestartRule};

use crate::{ContainerKind, RestartPolicy, reasons};

/// Whether a container that ended with `exit_code` and `reason` may start again within its pod's
/// life. In this order decide: its role (sidecars always, ephemeral containers never), whether
/// one of its `restartPolicyRules` matches, its own `restartPolicy` (KEP-5307), and the pod's. An init
/// container that succeeded is done under every policy of the pod.
pub fn container_restarts_after(
    pod_policy: RestartPolicy,
    kind: ContainerKind,
    container: &Container,
    exit_code: i32,
    reason: Option<&str>,
) -> bool {
    match kind {
        ContainerKind::Sidecar => return true,
        ContainerKind::Ephemeral => return false,
        ContainerKind::Init | ContainerKind::Regular => {}
    }
    if rule_restarts(container, exit_code) {
        return true;
    }
    let failed =
        exit_code != 0 || (kind == ContainerKind::Init && reason == Some(reasons::OOM_KILLED));
    let policy = container
        .restart_policy
        .as_deref()
        .map_or(pod_policy, |own| RestartPolicy::parse(Some(own)));
    match policy {
        RestartPolicy::Always => failed || kind != ContainerKind::Init,
        RestartPolicy::OnFailure => failed,
        RestartPolicy::Never => false,
    }
}

fn rule_restarts(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code)
        .is_some_and(|rule| matches!(rule.action.as_str(), "Restart" | "RestartAllContainers"))
}

/// Whether a container that ended with `exit_code` makes all containers of its pod start again: the
/// first of its `restartPolicyRules` that matches says `RestartAllContainers` (KEP-5532).
pub fn exit_restarts_all_containers(container: &Container, exit_code: i32) -> bool {
    matching_rule(container, exit_code).is_some_and(|rule| rule.action == "RestartAllContainers")
}

fn matching_rule(container: &Container, exit_code: i32) -> Option<&ContainerRestartRule> {
    container.restart_policy_rules.iter().flatten().find(|rule| {
        let Some(codes) = rule.exit_codes.as_ref() else {
            return false;
        };
        let listed = codes.values.as_ref().is_some_and(|values| values.contains(&exit_code));
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_come_before_the_containers_policy_and_that_before_the_pods() {
        use ContainerKind::{Ephemeral, Init, Regular, Sidecar};
        use RestartPolicy::{Always, Never, OnFailure};
        let plain = serde_json::json!({"name": "c"});
        let own_never = serde_json::json!({"name": "c", "restartPolicy": "Never"});
        let rule = |action: &str, operator: &str| {
            serde_json::json!({"name": "c", "restartPolicy": "Never", "restartPolicyRules": [
                {"action": action, "exitCodes": {"operator": operator, "values": [42]}}]})
        };
        for (policy, kind, container, exit_code, expected) in [
            (Always, Regular, &plain, 0, true),
            (OnFailure, Regular, &plain, 0, false),
            (OnFailure, Regular, &plain, 1, true),
            (Never, Regular, &plain, 1, false),
            (Always, Init, &plain, 0, false),
            (Always, Init, &plain, 1, true),
            (Never, Init, &plain, 1, false),
            (Never, Sidecar, &plain, 0, true),
            (Always, Ephemeral, &plain, 1, false),
            (Always, Regular, &own_never, 1, false),
            (Never, Regular, &rule("Restart", "In"), 42, true),
            (Never, Regular, &rule("Restart", "In"), 1, false),
            (Never, Regular, &rule("Restart", "NotIn"), 1, true),
            (Never, Regular, &rule("RestartAllContainers", "In"), 42, true),
            (Never, Regular, &rule("Unheard", "In"), 42, false),
        ] {
            let container: Container = serde_json::from_value(container.clone()).unwrap();
            assert_eq!(
                container_restarts_after(policy, kind, &container, exit_code, None),
                expected,
                "{policy:?} {kind:?} {exit_code} {container:?}"
            );
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides_whether_all_containers_restart() {
        let container: Container = serde_json::from_value(serde_json::json!({
            "name": "c",
            "restartPolicyRules": [
                {"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 2]}},
                {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [2, 3]}},
            ],
        }))
        .unwrap();
        for (exit_code, expected) in [(0, false), (1, false), (2, false), (3, true)] {
            assert_eq!(
                exit_restarts_all_containers(&container, exit_code),
                expected,
                "{exit_code}"
            );
        }
    }

    #[test]
    fn an_init_container_killed_for_memory_failed_whatever_its_exit_code() {
        let container = Container { name: "c".to_owned(), ..Container::default() };
        let restarts = |kind| {
            container_restarts_after(
                RestartPolicy::OnFailure,
                kind,
                &container,
                0,
                Some(reasons::OOM_KILLED),
            )
        };
        assert!(restarts(ContainerKind::Init));
        assert!(!restarts(ContainerKind::Regular));
    }
}
