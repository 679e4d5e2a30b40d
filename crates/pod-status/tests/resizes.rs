//! What is told of a pod whose resources are changed.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};
use rubelet_pod_status::{NodeFacts, StatusInput, compute_pod_status};
use rubelet_types::{
    ContainerAnnotations, ContainerSnapshot, ContainerState, PodSnapshot, pod_ref,
};
use serde_json::{Value, json};

fn pod(cpu: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": "u", "namespace": "n", "name": "p", "generation": 7},
        "spec": {"containers": [{"name": "c", "image": "i", "resources": {
            "requests": {"cpu": cpu}, "limits": {"cpu": cpu},
        }}]},
    }))
    .unwrap()
}

/// The status of a pod with one running container, of which the runtime tells no resources.
fn status(
    pod: &Pod,
    previous: &PodStatus,
    change: impl for<'a> FnOnce(&mut StatusInput<'a>),
) -> PodStatus {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut snapshot = PodSnapshot::empty(pod_ref(pod), at(9));
    snapshot.containers.push(ContainerSnapshot {
        id: "c1".into(),
        name: "c".to_owned(),
        sandbox_id: None,
        state: ContainerState::Running { started_at: at(1) },
        created_at: at(1),
        image: "i".to_owned(),
        image_ref: "i".to_owned(),
        hash: String::new(),
        restart_count: 0,
        annotations: ContainerAnnotations::default(),
        resources: None,
        user: None,
        log_path: String::new(),
        mounts: BTreeMap::new(),
        stop_signal: None,
    });
    let node = NodeFacts { runtime_name: "r".to_owned(), ..NodeFacts::default() };
    let mut input =
        StatusInput { snapshot: Some(&snapshot), ..StatusInput::new(pod, previous, &node, at(10)) };
    change(&mut input);
    compute_pod_status(&input)
}

fn told(status: &PodStatus) -> (Value, Value) {
    let container = &status.container_statuses.as_ref().unwrap()[0];
    let resources = serde_json::to_value(&container.resources).unwrap();
    let allocated = serde_json::to_value(&container.allocated_resources).unwrap();
    (resources["limits"]["cpu"].clone(), allocated["cpu"].clone())
}

#[test]
fn what_a_runtime_does_not_tell_changes_when_it_is_in_force() {
    let before = status(&pod("1"), &PodStatus::default(), |_| {});
    assert_eq!(told(&before), (json!("1"), json!("1")));
    let granted = status(&pod("2"), &before, |_| {});
    assert_eq!(told(&granted), (json!("1"), json!("2")));
    let done = status(&pod("2"), &granted, |input| input.granted_is_in_force = true);
    assert_eq!(told(&done), (json!("2"), json!("2")));
}

#[test]
fn conditions_of_a_resize_keep_their_generation_and_their_time() {
    let condition: PodCondition = serde_json::from_value(json!({
        "type": "PodResizePending", "status": "True", "reason": "Infeasible",
        "observedGeneration": 5, "lastTransitionTime": "1970-01-01T00:00:08Z",
    }))
    .unwrap();
    let mut deferred = condition.clone();
    deferred.reason = Some("Deferred".to_owned());
    deferred.last_transition_time = serde_json::from_value(json!("1970-01-01T00:00:03Z")).unwrap();
    let previous = PodStatus { conditions: Some(vec![deferred]), ..PodStatus::default() };
    let conditions = [condition.clone()];
    let find = |status: &PodStatus| {
        let conditions = status.conditions.iter().flatten();
        conditions.filter(|it| it.type_ == condition.type_).cloned().collect::<Vec<_>>()
    };
    let pending = compute(&previous, &conditions);
    assert_eq!(find(&pending), conditions);
    assert_eq!(find(&compute(&pending, &[])), []);
}

fn compute(previous: &PodStatus, conditions: &[PodCondition]) -> PodStatus {
    let (pod, node) = (pod("1"), NodeFacts::default());
    let now = Timestamp::from_second(10).unwrap();
    let mut input = StatusInput::new(&pod, previous, &node, now);
    input.resize_conditions = conditions;
    compute_pod_status(&input)
}
