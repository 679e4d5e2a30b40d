use serde_json::{Value, json};

use super::*;

fn defaulted(spec: Value) -> Value {
    let mut pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
    apply_defaults(&mut pod);
    let once = pod.clone();
    apply_defaults(&mut pod);
    assert_eq!(once, pod, "a second time changes nothing");
    serde_json::to_value(pod).unwrap()["spec"].take()
}

#[test]
fn a_bare_pod_gets_what_the_api_gives() {
    assert_eq!(
        defaulted(json!({"containers": [{"name": "c", "image": "nginx"}]})),
        json!({
            "containers": [{
                "name": "c",
                "image": "nginx",
                "imagePullPolicy": "Always",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }],
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": true,
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "terminationGracePeriodSeconds": 30,
        })
    );
}

#[test]
fn pull_policies_follow_the_tag() {
    for (image, expected) in [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("nginx:1.25", "IfNotPresent"),
        ("registry:5000/nginx", "Always"),
        ("registry:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:abc", "IfNotPresent"),
        ("nginx:latest@sha256:abc", "Always"),
        ("nginx:1@sha256:abc", "IfNotPresent"),
        ("", "IfNotPresent"),
    ] {
        assert_eq!(default_pull_policy(image), expected, "{image:?}");
    }
}

#[test]
fn every_kind_of_container_is_defaulted() {
    let container = |extra: Value| {
        let mut container = json!({"name": "c", "image": "i:1"});
        container.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        container
    };
    let spec = defaulted(json!({
        "hostNetwork": true,
        "initContainers": [container(json!({
            "ports": [{"containerPort": 1}],
            "livenessProbe": {"grpc": {"port": 5}, "periodSeconds": 7},
        }))],
        "containers": [container(json!({
            "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82, "protocol": "UDP"}],
            "readinessProbe": {"httpGet": {"port": 80}},
            "lifecycle": {"preStop": {"httpGet": {"port": 80, "path": "/x", "scheme": "HTTPS"}},
                "postStart": {"httpGet": {"port": 80}}},
            "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100m"}},
        }))],
        "ephemeralContainers": [container(json!({}))],
    }));
    for (pointer, expected) in [
        ("/initContainers/0/imagePullPolicy", json!("IfNotPresent")),
        (
            "/initContainers/0/ports",
            json!([{"containerPort": 1, "hostPort": 1, "protocol": "TCP"}]),
        ),
        (
            "/initContainers/0/livenessProbe",
            json!({"grpc": {"port": 5, "service": ""}, "periodSeconds": 7, "timeoutSeconds": 1,
                "successThreshold": 1, "failureThreshold": 3}),
        ),
        (
            "/containers/0/ports",
            json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"},
                {"containerPort": 81, "hostPort": 82, "protocol": "UDP"}]),
        ),
        (
            "/containers/0/readinessProbe/httpGet",
            json!({"path": "/", "port": 80, "scheme": "HTTP"}),
        ),
        (
            "/containers/0/lifecycle",
            json!({"preStop": {"httpGet": {"port": 80, "path": "/x", "scheme": "HTTPS"}},
                "postStart": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}}}),
        ),
        ("/containers/0/env/0/valueFrom/fieldRef/apiVersion", json!("v1")),
        ("/containers/0/resources/requests", json!({"cpu": "100m", "memory": "1Gi"})),
        ("/ephemeralContainers/0/terminationMessagePolicy", json!("File")),
    ] {
        assert_eq!(spec.pointer(pointer), Some(&expected), "{pointer}");
    }
}

#[test]
fn volumes() {
    for (source, expected) in [
        (json!({}), json!({"emptyDir": {}})),
        (json!({"hostPath": {"path": "/x"}}), json!({"hostPath": {"path": "/x", "type": ""}})),
        (
            json!({"secret": {"secretName": "s"}}),
            json!({"secret": {"secretName": "s", "defaultMode": 420}}),
        ),
        (
            json!({"configMap": {"name": "c", "defaultMode": 256}}),
            json!({"configMap": {"name": "c", "defaultMode": 256}}),
        ),
        (
            json!({"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "f"}}]}}),
            json!({"downwardAPI": {"defaultMode": 420,
                "items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "f"}}]}}),
        ),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            json!({"projected": {"defaultMode": 420,
                "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}}),
        ),
        (
            json!({"image": {"reference": "r:1"}}),
            json!({"image": {"reference": "r:1", "pullPolicy": "IfNotPresent"}}),
        ),
        (
            json!({"rbd": {"image": "i", "monitors": ["m"]}}),
            json!({"rbd": {"image": "i", "monitors": ["m"], "pool": "rbd", "user": "admin",
                "keyring": "/etc/ceph/keyring"}}),
        ),
    ] {
        let mut volume = source;
        volume["name"] = "v".into();
        let spec = defaulted(json!({"containers": [], "volumes": [volume]}));
        let mut expected = expected;
        expected["name"] = "v".into();
        assert_eq!(spec["volumes"][0], expected);
    }
}

#[test]
fn pod_level_resources_follow_their_containers() {
    let containers = json!([
        {"name": "a", "resources": {"requests": {"cpu": "100m"}, "limits": {"hugepages-2Mi": "4Mi"}}},
        {"name": "b", "resources": {"requests": {"cpu": "200m"}}},
    ]);
    for (resources, expected) in [
        (
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            json!({"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
                "requests": {"cpu": "300m", "memory": "1Gi", "hugepages-2Mi": "4Mi"}}),
        ),
        (
            json!({"requests": {"cpu": "2"}}),
            json!({"limits": {"hugepages-2Mi": "4Mi"},
                "requests": {"cpu": "2", "hugepages-2Mi": "4Mi"}}),
        ),
        (json!({}), json!({})),
    ] {
        let spec = defaulted(json!({"containers": containers, "resources": resources}));
        assert_eq!(spec["resources"], expected);
    }
}

#[test]
fn odds_and_ends() {
    let spec = defaulted(json!({
        "serviceAccount": "sa",
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "100u", "memory": "1"}}}],
        "overhead": {"cpu": "1n"},
    }));
    assert_eq!(spec["serviceAccountName"], "sa");
    assert_eq!(spec["containers"][0]["resources"]["requests"], json!({"cpu": "1m", "memory": "1"}));
    assert_eq!(spec["overhead"], json!({"cpu": "1m"}));
}
