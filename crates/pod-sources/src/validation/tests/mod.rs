mod containers;
mod pods;
mod volumes;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::defaults::apply_defaults;

/// RFC 7386: objects are merged, everything else is replaced, null removes.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn check(patch: &Value) -> Vec<String> {
    let mut value = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "1"},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    });
    merge(&mut value, patch);
    let mut pod: Pod = serde_json::from_value(value).unwrap();
    apply_defaults(&mut pod);
    match validate_pod_create(&pod) {
        Ok(()) => Vec::new(),
        Err(errors) => errors.errors().iter().map(ToString::to_string).collect(),
    }
}

/// Each patch must give exactly these faults. A fault that ends with `...` may go on.
fn table(rows: &[(Value, &[&str])]) {
    for (patch, expected) in rows {
        let faults = check(patch);
        let fits = faults.len() == expected.len()
            && faults.iter().zip(*expected).all(|(fault, expected)| {
                match expected.strip_suffix("...") {
                    Some(start) => fault.starts_with(start),
                    None => fault == expected,
                }
            });
        assert!(fits, "{patch}\n  gives {faults:#?}\n  not {expected:#?}");
    }
}

fn container(extra: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i:1"});
    merge(&mut container, &extra);
    json!({"spec": {"containers": [container]}})
}

fn spec(patch: Value) -> Value {
    json!({"spec": patch})
}

#[test]
fn metadata() {
    table(&[
        (json!({}), &[]),
        (json!({"metadata": {"name": "a.b-c.0"}}), &[]),
        (
            json!({"metadata": {"name": null, "namespace": null}}),
            &[
                "metadata.name: Required value: name or generateName is required",
                "metadata.namespace: Required value",
            ],
        ),
        (
            json!({"metadata": {"name": "Web"}}),
            &[
                "metadata.name: Invalid value: \"Web\": a lowercase RFC 1123 subdomain must consist \
               of lower case alphanumeric characters, '-' or '.', and must start and end with an \
               alphanumeric character (e.g. 'example.com', regex used for validation is \
               '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ],
        ),
        (
            json!({"metadata": {"name": "a".repeat(254)}}),
            &["metadata.name: Invalid value: \"aaaa..."],
        ),
        (
            json!({"metadata": {"namespace": "a.b"}}),
            &["metadata.namespace: Invalid value: \"a.b\": must not contain dots"],
        ),
        (
            json!({"metadata": {"uid": "../x"}}),
            &["metadata.uid: Invalid value: \"../x\": may not contain '/'"],
        ),
        (
            json!({"metadata": {"labels": {"a/b/c": "x", "ok": "-", "/x": "y"}}}),
            &[
                "metadata.labels: Invalid value: \"/x\": prefix part must be non-empty",
                "metadata.labels: Invalid value: \"a/b/c\": a valid label key must consist...",
                "metadata.labels[ok]: Invalid value: \"-\": a valid label must be an empty...",
            ],
        ),
        (
            json!({"metadata": {"labels": {"x": "v".repeat(64)}}}),
            &["metadata.labels[x]: Invalid value: \"vvv..."],
        ),
        (
            json!({"metadata": {"annotations": {"Example.COM/a": "x", "b c": "y"}}}),
            &["metadata.annotations: Invalid value: \"b c\": name part must consist of..."],
        ),
        (
            json!({"metadata": {"annotations": {"big": "x".repeat(256 * 1024)}}}),
            &["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        (
            json!({"metadata": {"ownerReferences": [
                {"apiVersion": "", "kind": "K", "name": "n", "uid": "u"}]}}),
            &["metadata.ownerReferences[0].apiVersion: Required value: must not be empty"],
        ),
        (
            json!({"metadata": {"finalizers": ["mine", "example.com/f"]}}),
            &["metadata.finalizers[0]: Invalid value: \"mine\": name is neither a standard \
               finalizer name nor is it fully qualified"],
        ),
        (
            json!({"metadata": {"annotations":
                {"container.apparmor.security.beta.kubernetes.io/x": "bad"}}}),
            &[
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid \
                 value: \"x\": container not found",
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/x]: Invalid \
                 value: \"bad\": invalid AppArmor profile name: \"bad\"",
            ],
        ),
    ]);
}

/// The shape that kubeadm gives the control plane: the most important static pods there are.
#[test]
fn a_control_plane_pod_is_fine() {
    table(&[(
        json!({
            "metadata": {"name": "kube-apiserver", "namespace": "kube-system",
                "annotations": {"kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint":
                    "10.0.0.1:6443"},
                "labels": {"component": "kube-apiserver", "tier": "control-plane"}},
            "spec": {
                "containers": [{
                    "name": "kube-apiserver",
                    "image": "registry.k8s.io/kube-apiserver:v1.36.0",
                    "command": ["kube-apiserver", "--secure-port=6443"],
                    "livenessProbe": {"failureThreshold": 8, "httpGet": {"host": "10.0.0.1",
                        "path": "/livez", "port": "probe-port", "scheme": "HTTPS"},
                        "initialDelaySeconds": 10, "periodSeconds": 10, "timeoutSeconds": 15},
                    "ports": [{"containerPort": 6443, "name": "probe-port", "protocol": "TCP"}],
                    "resources": {"requests": {"cpu": "250m"}},
                    "volumeMounts": [{"mountPath": "/etc/ssl/certs", "name": "ca-certs",
                        "readOnly": true}],
                }],
                "hostNetwork": true,
                "priority": 2_000_001_000,
                "priorityClassName": "system-node-critical",
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "volumes": [{"name": "ca-certs",
                    "hostPath": {"path": "/etc/ssl/certs", "type": "DirectoryOrCreate"}}],
            },
        }),
        &[],
    )]);
}

#[test]
fn many_faults_are_rendered_in_part() {
    let many: Vec<Value> = (0..60).map(|_| json!({"name": "", "image": "i"})).collect();
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "a", "namespace": "b"}, "spec": {"containers": many}}))
    .unwrap();
    apply_defaults(&mut pod);
    let errors = validate_pod_create(&pod).unwrap_err();
    assert_eq!(errors.errors().len(), 60);
    assert!(errors.to_string().ends_with(", and 10 more]"));
}

proptest! {
    /// What passes can be used as an element of a path.
    #[test]
    fn names_that_pass_are_safe_on_disk(text in "[-./a-zA-Z0-9_\\\\\u{0}\n ]{0,12}") {
        let faults = check(&json!({
            "metadata": {"name": text, "namespace": text, "uid": text},
            "spec": {"containers": [{"name": text, "image": "i"}],
                "volumes": [{"name": text}]},
        }));
        let passes = |field: &str| !faults.iter().any(|fault| fault.starts_with(field));
        if passes("metadata.uid") {
            prop_assert!(text != ".." && text != "." && !text.contains(['/', '\0', '\n']));
        }
        for field in ["metadata.name:", "metadata.namespace:", "spec.containers[0].name:",
            "spec.volumes[0].name:"] {
            if passes(field) {
                prop_assert!(!text.is_empty() && !text.starts_with('.') && !text.contains("..")
                    && !text.contains(['/', '\0', '\n', '\\', ' ']), "{field} {text:?}");
            }
        }
    }
}
