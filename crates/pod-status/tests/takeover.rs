//! A pod that another kubelet of the same minor runs and reports is taken over without a write.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use rubelet_pod_status::{Gates, NodeFacts, StatusInput, compute_pod_status, status_patch};
use rubelet_types::{
    ContainerAnnotations, ContainerId, ContainerResources, ContainerSnapshot, ContainerState,
    ContainerUser, PodSnapshot, SandboxId, SandboxSnapshot, SandboxState, pod_ref,
};
use serde_json::json;

fn at(time: &str) -> Timestamp {
    time.parse().unwrap()
}

/// In the API's form, as the Go kubelet leaves it.
fn reported_pod() -> Pod {
    let condition = |type_: &str, since: &str| {
        json!({"type": type_, "status": "True", "observedGeneration": 1,
               "lastProbeTime": null, "lastTransitionTime": since})
    };
    let mounts = json!([{"name": "token", "readOnly": true, "mountPath": "/var/run/secrets"}]);
    let mount_statuses = json!([{"name": "token", "readOnly": true, "mountPath": "/var/run/secrets",
                                 "recursiveReadOnly": "Disabled"}]);
    serde_json::from_value(json!({
        "metadata": {"uid": "uid", "namespace": "ns", "name": "web", "generation": 1,
                     "annotations": {"kubernetes.io/config.source": "api"}},
        "spec": {
            "restartPolicy": "Always",
            "initContainers": [{"name": "setup", "image": "busybox:1.37", "resources": {}}],
            "containers": [
                {"name": "web", "image": "nginx:1.29", "volumeMounts": mounts,
                 "resources": {"requests": {"cpu": "100m", "memory": "64Mi"},
                               "limits": {"memory": "128Mi"}},
                 "readinessProbe": {"httpGet": {"port": 80}},
                 "startupProbe": {"httpGet": {"port": 80}}},
                {"name": "log", "image": "busybox:1.37", "resources": {}},
            ],
        },
        "status": {
            "phase": "Running", "qosClass": "Burstable", "observedGeneration": 1,
            "startTime": "2026-01-01T00:00:00Z",
            "hostIP": "192.168.0.1", "hostIPs": [{"ip": "192.168.0.1"}],
            "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
            "allocatedResources": {"cpu": "100m", "memory": "64Mi"},
            "conditions": [
                condition("PodReadyToStartContainers", "2026-01-01T00:00:01Z"),
                condition("Initialized", "2026-01-01T00:00:02Z"),
                condition("Ready", "2026-01-01T00:00:09Z"),
                condition("ContainersReady", "2026-01-01T00:00:09Z"),
                condition("PodScheduled", "2026-01-01T00:00:00Z"),
            ],
            "initContainerStatuses": [{
                "name": "setup", "image": "docker.io/library/busybox:1.37", "imageID": "busybox@sha256:b",
                "containerID": "containerd://setup1", "ready": true, "started": false,
                "restartCount": 0, "lastState": {}, "resources": {},
                "state": {"terminated": {
                    "containerID": "containerd://setup1", "exitCode": 0, "reason": "Completed",
                    "startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:02Z"}},
                "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0, 10]}},
            }],
            "containerStatuses": [
                {"name": "log", "image": "docker.io/library/busybox:1.37",
                 "imageID": "busybox@sha256:b", "containerID": "containerd://log1", "ready": true,
                 "started": true, "restartCount": 0, "lastState": {}, "resources": {},
                 "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}},
                 "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0, 10]}}},
                {"name": "web", "image": "docker.io/library/nginx:1.29",
                 "imageID": "nginx@sha256:n", "containerID": "containerd://web2", "ready": true,
                 "started": true, "restartCount": 1,
                 "allocatedResources": {"cpu": "100m", "memory": "64Mi"},
                 "resources": {"requests": {"cpu": "100m", "memory": "64Mi"},
                               "limits": {"memory": "128Mi"}},
                 "lastState": {"terminated": {
                    "containerID": "containerd://web1", "exitCode": 1, "reason": "Error",
                    "startedAt": "2026-01-01T00:00:03Z", "finishedAt": "2026-01-01T00:00:04Z"}},
                 "state": {"running": {"startedAt": "2026-01-01T00:00:05Z"}},
                 "volumeMounts": mount_statuses,
                 "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0, 10]}}},
            ],
        },
    }))
    .unwrap()
}

fn instance(name: &str, id: &str, state: ContainerState) -> ContainerSnapshot {
    let (image, image_ref) = match name {
        "web" => ("docker.io/library/nginx:1.29", "nginx@sha256:n"),
        _ => ("docker.io/library/busybox:1.37", "busybox@sha256:b"),
    };
    ContainerSnapshot {
        id: ContainerId::new(id),
        name: name.to_owned(),
        sandbox_id: Some(SandboxId::new("sandbox")),
        state,
        created_at: at("2026-01-01T00:00:01Z"),
        image: image.to_owned(),
        image_ref: image_ref.to_owned(),
        hash: String::new(),
        restart_count: u32::from(id == "web2"),
        annotations: ContainerAnnotations::default(),
        resources: Some(ContainerResources {
            cpu_shares: Some(if name == "web" { 102 } else { 2 }),
            cpu_quota: None,
            cpu_period: Some(100_000),
            memory_limit: (name == "web").then_some(128 << 20),
        }),
        user: Some(ContainerUser { uid: 0, gid: 0, supplemental_groups: vec![0, 10] }),
        log_path: String::new(),
        mounts: BTreeMap::new(),
        stop_signal: None,
    }
}

/// The runtime's times have fractions, and its lists are newest first.
fn snapshot(pod: &Pod) -> PodSnapshot {
    let running = |since: &str| ContainerState::Running { started_at: at(since) };
    let exited = |exit_code: i32, reason: &str, from: &str, to: &str| ContainerState::Exited {
        started_at: Some(at(from)),
        finished_at: at(to),
        exit_code,
        reason: reason.to_owned(),
        message: String::new(),
    };
    PodSnapshot {
        pod: pod_ref(pod),
        taken_at: at("2026-01-02T00:00:00Z"),
        sandboxes: vec![SandboxSnapshot {
            id: SandboxId::new("sandbox"),
            state: SandboxState::Ready,
            attempt: 0,
            created_at: at("2026-01-01T00:00:00.5Z"),
            ips: vec!["10.0.0.7".to_owned()],
            host_network: false,
        }],
        containers: vec![
            instance("web", "web2", running("2026-01-01T00:00:05.123Z")),
            instance("log", "log1", running("2026-01-01T00:00:03.9Z")),
            instance(
                "web",
                "web1",
                exited(1, "Error", "2026-01-01T00:00:03.2Z", "2026-01-01T00:00:04.999Z"),
            ),
            instance(
                "setup",
                "setup1",
                exited(0, "Completed", "2026-01-01T00:00:01.7Z", "2026-01-01T00:00:02.1Z"),
            ),
        ],
    }
}

#[test]
fn the_first_report_after_a_takeover_says_what_was_said_before() {
    let pod = reported_pod();
    let reported = pod.status.as_ref().unwrap();
    let snapshot = snapshot(&pod);
    let node = NodeFacts {
        host_ips: vec!["192.168.0.1".to_owned()],
        runtime_name: "containerd".to_owned(),
        recursive_read_only_mounts: true,
    };
    let pod_cgroup = ContainerResources { cpu_shares: Some(102), ..Default::default() };
    let input = StatusInput {
        pod_cgroup: Some(&pod_cgroup),
        ..StatusInput::new(&pod, reported, &node, at("2026-01-02T00:00:00.7Z"))
    };

    let before_the_first_look = compute_pod_status(&input);
    assert_eq!(status_patch("uid", reported, &before_the_first_look), None);

    let after_it = compute_pod_status(&StatusInput { snapshot: Some(&snapshot), ..input });
    assert_eq!(status_patch("uid", reported, &after_it), None);
}

#[test]
fn readiness_of_the_sandbox_is_reported_where_its_gate_is_on() {
    let mut pod = reported_pod();
    pod.status = None;
    let snapshot = snapshot(&pod);
    let node = NodeFacts::default();
    let (previous, now) = (PodStatus::default(), at("2026-01-02T00:00:00Z"));
    for is_on in [true, false] {
        let gates = Gates { pod_ready_to_start_containers_condition: is_on, ..Gates::default() };
        let input = StatusInput {
            gates,
            snapshot: Some(&snapshot),
            ..StatusInput::new(&pod, &previous, &node, now)
        };
        let conditions = compute_pod_status(&input).conditions.unwrap();
        let is_said = conditions.iter().any(|one| one.type_ == "PodReadyToStartContainers");
        assert_eq!(is_said, is_on);
    }
}
