//! What the API server is told, and that it then holds what was meant.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use proptest::prelude::*;
use rubelet_pod_status::{
    IllegalTransition, check_transition, diff_status, merge_for_patch, rejected_status,
    status_patch, statuses_equal,
};
use serde_json::{Map, Value, json};

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

/// A strategic merge as far as a pod's status needs it, in the words of its specification: objects
/// are merged, null deletes, lists with a merge key are merged by it, other lists are replaced.
fn apply(target: &mut Map<String, Value>, patch: &Value) {
    let merge_key = |list: &str| match list {
        "conditions" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
    };
    let patch = patch.as_object().unwrap();
    for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with('$')) {
        match (merge_key(field), value) {
            (_, Value::Null) => {
                target.remove(field);
            }
            (Some(key), Value::Array(changes)) => {
                let list = target.entry(field.clone()).or_insert_with(|| json!([]));
                let list = list.as_array_mut().unwrap();
                for change in changes {
                    if change.get("$patch").is_some() {
                        list.retain(|item| item[key] != change[key]);
                        continue;
                    }
                    match list.iter_mut().find(|item| item[key] == change[key]) {
                        Some(item) => apply(item.as_object_mut().unwrap(), change),
                        None => list.push(change.clone()),
                    }
                }
            }
            (None, Value::Object(_)) => {
                let inner = target.entry(field.clone()).or_insert_with(|| json!({}));
                apply(inner.as_object_mut().unwrap(), value);
            }
            _ => {
                target.insert(field.clone(), value.clone());
            }
        }
    }
    for (directive, order) in patch {
        let Some(field) = directive.strip_prefix("$setElementOrder/") else { continue };
        let key = merge_key(field).unwrap();
        let order: Vec<&Value> = order.as_array().unwrap().iter().map(|item| &item[key]).collect();
        let list = target[field].as_array_mut().unwrap();
        list.sort_by_key(|item| order.iter().position(|name| **name == item[key]));
    }
}

fn patched(old: &PodStatus, patch: &Value) -> PodStatus {
    let Value::Object(mut target) = serde_json::to_value(old).unwrap() else { unreachable!() };
    apply(&mut target, patch);
    status(Value::Object(target))
}

#[test]
fn what_means_the_same_is_not_written() {
    let one = status(json!({
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "True", "lastProbeTime": null},
            {"type": "Initialized", "status": "True", "reason": ""},
        ],
        "containerStatuses": [
            {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
             "lastState": {}, "resources": {"limits": {"cpu": "1"}}},
            {"name": "b", "image": "", "imageID": "", "ready": true, "restartCount": 0,
             "resources": {}, "volumeMounts": [{"name": "v", "mountPath": "/", "readOnly": false}]},
        ],
        "message": "",
    }));
    let other = status(json!({
        "phase": "Running",
        "conditions": [
            {"type": "Initialized", "status": "True", "observedGeneration": 0},
            {"type": "Ready", "status": "True"},
        ],
        "containerStatuses": [
            {"name": "b", "image": "", "imageID": "", "ready": true, "restartCount": 0,
             "volumeMounts": [{"name": "v", "mountPath": "/"}]},
            {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
             "resources": {"limits": {"cpu": "1000m"}}},
        ],
    }));
    assert!(statuses_equal(&one, &other));
    assert_eq!(diff_status(&one, &other), None);
    assert_eq!(status_patch("uid", &one, &one), None);
}

#[test]
fn every_difference_counts() {
    let base = json!({
        "phase": "Running",
        "podIPs": [{"ip": "1"}, {"ip": "2"}],
        "conditions": [{"type": "Theirs", "status": "True"}],
        "containerStatuses": [
            {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0}],
    });
    for (pointer, value) in [
        ("/phase", json!("Pending")),
        ("/reason", json!("Odd")),
        ("/podIPs", json!([{"ip": "2"}, {"ip": "1"}])),
        ("/conditions/0/status", json!("False")),
        ("/containerStatuses/0/ready", json!(false)),
        ("/containerStatuses/0/started", json!(false)),
        ("/containerStatuses/0/restartCount", json!(1)),
        ("/qosClass", json!("Burstable")),
    ] {
        let mut changed = base.clone();
        match changed.pointer_mut(pointer) {
            Some(place) => *place = value,
            None => {
                let (parent, field) = pointer.rsplit_once('/').unwrap();
                changed.pointer_mut(parent).unwrap()[field] = value;
            }
        }
        let (old, new) = (status(base.clone()), status(changed));
        let patch = diff_status(&old, &new);
        assert!(patch.is_some(), "{pointer} went unnoticed");
        let result = patched(&old, &patch.unwrap());
        assert!(statuses_equal(&result, &new), "{pointer}: {result:?}");
    }
}

#[test]
fn a_patch_carries_only_what_changed() {
    let api = status(json!({
        "phase": "Running", "reason": "Odd", "qosClass": "Burstable",
        "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
        "conditions": [
            {"type": "Theirs", "status": "True"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "a"},
            {"type": "PodScheduled", "status": "True"},
        ],
    }));
    let computed = status(json!({
        "phase": "Running", "qosClass": "Burstable",
        "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}],
        "conditions": [
            {"type": "Ready", "status": "True"},
            {"type": "PodScheduled", "status": "True"},
        ],
    }));
    assert_eq!(
        status_patch("uid", &api, &computed),
        Some(json!({
            "metadata": {"uid": "uid"},
            "status": {
                "reason": null,
                "podIP": "10.0.0.2",
                "$setElementOrder/podIPs": [{"ip": "10.0.0.2"}],
                "podIPs": [{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}],
                "$setElementOrder/conditions": [
                    {"type": "PodScheduled"}, {"type": "Ready"}, {"type": "Theirs"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
            },
        }))
    );
}

#[test]
fn what_others_wrote_stays() {
    let api = status(json!({
        "phase": "Running",
        "nominatedNodeName": "node",
        "resourceClaimStatuses": [{"name": "claim", "resourceClaimName": "generated"}],
        "conditions": [
            {"type": "Theirs", "status": "False"},
            {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
        ],
    }));
    let computed = status(json!({
        "phase": "Running",
        "conditions": [
            {"type": "Theirs", "status": "True"},
            {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"},
            {"type": "Ready", "status": "True"},
        ],
    }));
    let merged = merge_for_patch(&api, &computed);
    let conditions = merged.conditions.as_ref().unwrap();
    assert_eq!(conditions[0].status, "False", "ours is older than theirs");
    assert_eq!(conditions[1].reason.as_deref(), Some("PreemptionByScheduler"));
    assert_eq!(conditions[2].type_, "Ready");
    assert_eq!(merged.nominated_node_name.as_deref(), Some("node"));
    assert_eq!(merged.resource_claim_statuses, api.resource_claim_statuses);

    let ends = PodStatus { phase: Some("Failed".to_owned()), ..computed };
    let merged = merge_for_patch(&api, &ends);
    let conditions = merged.conditions.as_ref().unwrap();
    assert_eq!(conditions[1].reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(
        (conditions[2].status.as_str(), conditions[2].reason.as_deref()),
        ("False", Some("PodFailed"))
    );
}

#[test]
fn a_terminal_phase_at_the_api_is_not_left() {
    let api = status(json!({"phase": "Succeeded", "reason": "Done"}));
    let computed = status(json!({
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
    }));
    let merged = merge_for_patch(&api, &computed);
    assert_eq!(merged.phase.as_deref(), Some("Succeeded"));
    assert_eq!(merged.reason.as_deref(), Some("Done"));
    assert_eq!(merged.conditions.unwrap()[0].reason.as_deref(), Some("PodCompleted"));
}

#[test]
fn a_rejected_pod_says_why() {
    let now = Timestamp::from_second(77).unwrap();
    let refused = pod(json!({
        "metadata": {"generation": 2},
        "spec": {"containers": [{"name": "a"}]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True"},
            {"type": "Theirs", "status": "True"},
        ]},
    }));
    let rejected =
        rejected_status(&refused, "OutOfcpu", "Node didn't have enough resource: cpu", now);
    assert_eq!(
        serde_json::to_value(&rejected).unwrap(),
        json!({
            "phase": "Failed",
            "reason": "OutOfcpu",
            "message": "Pod was rejected: Node didn't have enough resource: cpu",
            "qosClass": "BestEffort",
            "startTime": "1970-01-01T00:01:17Z",
            "observedGeneration": 2,
            "conditions": [
                {"type": "Theirs", "status": "True"},
                {"type": "PodScheduled", "status": "True", "observedGeneration": 2},
            ],
        })
    );
    let done = pod(json!({"status": {"phase": "Succeeded"}}));
    assert_eq!(rejected_status(&done, "OutOfcpu", "", now).phase.as_deref(), Some("Succeeded"));
}

#[test]
fn who_may_come_back() {
    let ended = |code: i32| {
        json!({"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
               "state": {"terminated": {"exitCode": code}}})
    };
    let running = json!({"name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                         "state": {"running": {}}});
    for (policy, list, own, code, allowed) in [
        ("Always", "container", json!({}), 0, true),
        ("OnFailure", "container", json!({}), 1, true),
        ("OnFailure", "container", json!({}), 0, false),
        ("Never", "container", json!({}), 1, false),
        ("Never", "container", json!({"restartPolicy": "OnFailure"}), 1, true),
        ("Never", "initContainer", json!({}), 1, false),
        ("Never", "initContainer", json!({"restartPolicy": "Always"}), 1, true),
        ("OnFailure", "initContainer", json!({}), 0, true),
        (
            "Never",
            "container",
            json!({"restartPolicyRules": [{
            "action": "RestartAllContainers",
            "exitCodes": {"operator": "In", "values": [9]}}]}),
            1,
            true,
        ),
    ] {
        let mut container = own;
        container["name"] = "a".into();
        let mut spec = json!({"restartPolicy": policy, "containers": []});
        spec[format!("{list}s")] = json!([container]);
        let pod = pod(json!({"spec": spec}));
        let field = format!("{list}Statuses");
        let old = status(json!({ &field: [ended(code)] }));
        let new = status(json!({ &field: [running.clone()] }));
        assert_eq!(
            check_transition(&pod, &old, &new).is_ok(),
            allowed,
            "{policy} {list} {code} {container}"
        );
    }
}

#[test]
fn no_phase_follows_a_terminal_one() {
    let phase = |phase: &str| status(json!({ "phase": phase }));
    for (old, new, allowed) in [
        ("Running", "Failed", true),
        ("Failed", "Failed", true),
        ("Failed", "Succeeded", false),
        ("Succeeded", "Running", false),
        ("Running", "Pending", true),
    ] {
        let result = check_transition(&Pod::default(), &phase(old), &phase(new));
        assert_eq!(result.is_ok(), allowed, "{old} {new}");
        assert!(
            allowed || matches!(result, Err(IllegalTransition::PhaseLeftTerminal { .. })),
            "{result:?}"
        );
    }
}

fn any_status() -> impl Strategy<Value = PodStatus> {
    let text = prop::option::of(prop_oneof![Just(""), Just("x"), Just("y")]);
    let condition = (prop_oneof![Just("True"), Just("False")], text.clone(), text.clone());
    let types = prop::sample::subsequence(vec!["Ready", "Initialized", "Theirs", "Mine"], 0..=4);
    let conditions = (types.prop_shuffle(), prop::collection::vec(condition, 4));
    let ips = prop::sample::subsequence(vec!["1", "2", "3"], 0..=3).prop_shuffle();
    let containers = prop::sample::subsequence(vec!["a", "b"], 0..=2);
    (text.clone(), text, conditions, ips, containers, any::<bool>()).prop_map(
        |(phase, reason, (types, conditions), ips, containers, ready)| {
            let conditions: Vec<Value> = types
                .iter()
                .zip(conditions)
                .map(|(type_, (status, reason, message))| {
                    json!({"type": type_, "status": status, "reason": reason, "message": message})
                })
                .collect();
            let ips: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
            let containers: Vec<Value> = containers
                .iter()
                .map(|name| {
                    json!({"name": name, "image": "", "imageID": "", "ready": ready,
                           "restartCount": 0})
                })
                .collect();
            status(json!({
                "phase": phase, "reason": reason, "conditions": conditions, "podIPs": ips,
                "containerStatuses": containers,
            }))
        },
    )
}

proptest! {
    #[test]
    fn a_patch_leads_from_the_old_to_the_new(old in any_status(), new in any_status()) {
        match diff_status(&old, &new) {
            None => prop_assert!(statuses_equal(&old, &new)),
            Some(patch) => {
                prop_assert!(!statuses_equal(&old, &new));
                let result = patched(&old, &patch);
                prop_assert!(statuses_equal(&result, &new), "{patch}\n{result:?}\n{new:?}");
            }
        }
    }

    #[test]
    fn what_was_merged_and_written_is_not_written_again(api in any_status(), ours in any_status()) {
        let merged = merge_for_patch(&api, &ours);
        prop_assert_eq!(status_patch("uid", &merged, &ours), None);
    }
}
