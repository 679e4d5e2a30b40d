//! What of a status can be told a moment later.

use k8s_openapi::api::core::v1::PodStatus;

use crate::canonical::statuses_equal;
use crate::conditions::POD_READY_TO_START_CONTAINERS;

/// Two statuses of one pod say different things at most of its addresses, of its sandbox and of
/// which generation of it they know. Nobody acts on these for their own sake: what they come with, a
/// pod that is ready or over, is told at once, and they with it.
pub fn differ_in_details(a: &PodStatus, b: &PodStatus) -> bool {
    statuses_equal(&without_details(a), &without_details(b))
}

fn without_details(status: &PodStatus) -> PodStatus {
    let mut rest = PodStatus {
        pod_ip: None,
        pod_ips: None,
        host_ip: None,
        host_ips: None,
        observed_generation: None,
        ..status.clone()
    };
    for conditions in rest.conditions.iter_mut() {
        conditions.retain(|condition| condition.type_ != POD_READY_TO_START_CONTAINERS);
        conditions.iter_mut().for_each(|condition| condition.observed_generation = None);
    }
    rest
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(change: Value) -> PodStatus {
        let mut status = json!({
            "phase": "Pending",
            "observedGeneration": 1,
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": "Ready", "status": "False", "observedGeneration": 1},
                {"type": "PodReadyToStartContainers", "status": "False"},
            ],
            "containerStatuses": [{
                "name": "app", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}},
            }],
        });
        let Value::Object(fields) = change else { panic!("{change}") };
        for (name, value) in fields {
            status[name] = value;
        }
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn addresses_sandboxes_and_generations_are_details() {
        let ready = |sandbox: &str, generation: i64, ready: &str| {
            json!({ "conditions": [
                {"type": "Ready", "status": ready, "observedGeneration": generation},
                {"type": "PodReadyToStartContainers", "status": sandbox},
            ]})
        };
        let waits = |reason: &str| {
            json!({ "containerStatuses": [{
                "name": "app", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": reason}},
            }]})
        };
        for (change, is_detail) in [
            (json!({}), true),
            (json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}]}), true),
            (json!({"hostIP": "10.0.0.3", "observedGeneration": 2}), true),
            (ready("True", 2, "False"), true),
            (json!({"conditions": [{"type": "Ready", "status": "False"}]}), true),
            (ready("True", 2, "True"), false),
            (json!({"phase": "Running"}), false),
            (json!({"reason": "Evicted"}), false),
            (json!({"startTime": "2026-01-01T00:00:00Z"}), false),
            (waits("ImagePullBackOff"), false),
        ] {
            let told = differ_in_details(&status(json!({})), &status(change.clone()));
            assert_eq!(told, is_detail, "{change}");
        }
    }
}
