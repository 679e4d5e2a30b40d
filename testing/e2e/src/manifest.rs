//! The manifests that scenarios write, as JSON, which is YAML, too: no quoting by hand.

use serde_json::{Value, json};

/// A pod with the given `spec`. What ends it is patient for a second only, unless the spec says
/// otherwise.
pub fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": { "terminationGracePeriodSeconds": 1 },
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}

/// A busybox container that runs a script.
pub fn busybox(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": "busybox",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
    })
}

/// A container whose answers to probes can be changed: HTTP on 8080, gRPC on 9090, TCP on 7070.
pub fn probe_target(name: &str) -> Value {
    json!({
        "name": name,
        "image": "localhost/rubelet/probe-target:1",
        "imagePullPolicy": "Never",
        "args": ["--http", "8080", "--grpc", "9090", "--tcp", "7070"],
    })
}

/// `value` with the fields of `more` laid over it.
pub fn with(mut value: Value, more: Value) -> Value {
    for (field, more) in more.as_object().into_iter().flatten() {
        value[field] = more.clone();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_beats_the_defaults() {
        let pod = pod("a", json!({ "terminationGracePeriodSeconds": 9, "containers": [] }));
        assert_eq!(pod["spec"], json!({ "terminationGracePeriodSeconds": 9, "containers": [] }));
        assert_eq!(with(json!({ "a": 1, "b": 2 }), json!({ "b": 3 })), json!({ "a": 1, "b": 3 }));
    }
}
