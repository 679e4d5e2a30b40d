//! What is special about pods: defaults, their beginning, and their slow end.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Sets `object[field]` if it is absent or null.
fn default(object: &mut Value, field: &str, value: Value) {
    if object[field].is_null() {
        object[field] = value;
    }
}

/// The defaults that a node agent looks at.
pub(crate) fn apply_defaults(pod: &mut Value) {
    if !pod["spec"].is_object() {
        pod["spec"] = json!({});
    }
    let spec = &mut pod["spec"];
    default(spec, "restartPolicy", json!("Always"));
    default(spec, "dnsPolicy", json!("ClusterFirst"));
    default(spec, "serviceAccountName", json!("default"));
    default(spec, "schedulerName", json!("default-scheduler"));
    default(spec, "securityContext", json!({}));
    default(spec, "terminationGracePeriodSeconds", json!(30));
    default(spec, "enableServiceLinks", json!(true));
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            apply_container_defaults(container);
        }
    }
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        for source in ["secret", "configMap", "downwardAPI", "projected"] {
            if volume[source].is_object() {
                default(&mut volume[source], "defaultMode", json!(0o644));
            }
        }
    }
}

fn apply_container_defaults(container: &mut Value) {
    let image = container["image"].as_str().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !image.contains('@') && (!last.contains(':') || last.ends_with(":latest"));
    let pull_policy = if is_latest { "Always" } else { "IfNotPresent" };
    default(container, "imagePullPolicy", json!(pull_policy));
    default(container, "terminationMessagePath", json!("/dev/termination-log"));
    default(container, "terminationMessagePolicy", json!("File"));
    default(container, "resources", json!({}));
    for port in container["ports"].as_array_mut().into_iter().flatten() {
        default(port, "protocol", json!("TCP"));
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &mut container[probe];
        if probe.is_object() {
            default(probe, "timeoutSeconds", json!(1));
            default(probe, "periodSeconds", json!(10));
            default(probe, "successThreshold", json!(1));
            default(probe, "failureThreshold", json!(3));
            if probe["httpGet"].is_object() {
                default(&mut probe["httpGet"], "path", json!("/"));
                default(&mut probe["httpGet"], "scheme", json!("HTTP"));
            }
        }
    }
    for variable in container["env"].as_array_mut().into_iter().flatten() {
        let reference = &mut variable["valueFrom"]["fieldRef"];
        if reference.is_object() {
            default(reference, "apiVersion", json!("v1"));
        } else if variable["valueFrom"].is_null() {
            // Looking has made it.
            if let Some(variable) = variable.as_object_mut() {
                variable.remove("valueFrom");
            }
        }
    }
}

/// The status of a new pod.
pub(crate) fn first_status(pod: &Value) -> Value {
    let mut status = json!({"phase": "Pending"});
    if let Ok(pod) = serde_json::from_value::<Pod>(pod.clone()) {
        let class = format!("{:?}", rubelet_types::pod_qos_class(&pod));
        status["qosClass"] = json!(class);
    }
    status
}

/// Of the two ways to tell a pod's address, the older one wins where they differ.
pub(crate) fn settle_addresses(status: &mut Value) {
    let address = status["podIP"].as_str().unwrap_or_default().to_owned();
    let first = status["podIPs"][0]["ip"].as_str().unwrap_or_default().to_owned();
    if !address.is_empty() && address != first {
        status["podIPs"] = json!([{"ip": address}]);
    } else if !first.is_empty() {
        status["podIP"] = json!(first);
    }
    // Looking has made them.
    if let Some(status) = status.as_object_mut() {
        status.retain(|_, value| !value.is_null());
    }
}

/// How a deletion goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// The object goes at once.
    Now,
    /// It stays so many seconds from its deletion on.
    Graceful { seconds: i64 },
    /// It is on its way already, and faster.
    Unchanged,
}

/// What a request to delete this pod comes to.
pub(crate) fn plan_deletion(pod: &Value, asked_for: Option<i64>) -> Deletion {
    let asked_for = asked_for.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if pod["metadata"]["deletionTimestamp"].is_string() {
        return match (pod["metadata"]["deletionGracePeriodSeconds"].as_i64(), asked_for) {
            (None | Some(0), _) | (_, Some(0)) => Deletion::Now,
            (Some(present), Some(seconds)) if seconds < present => Deletion::Graceful { seconds },
            _ => Deletion::Unchanged,
        };
    }
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let is_over = matches!(phase, "Succeeded" | "Failed");
    let is_unassigned = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let of_spec = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
    match asked_for.unwrap_or(of_spec) {
        0 => Deletion::Now,
        _ if is_over || is_unassigned => Deletion::Now,
        seconds => Deletion::Graceful { seconds: seconds.max(1) },
    }
}

/// Marks the pod as one that ends in `seconds` from when its deletion began, though not in the
/// past.
pub(crate) fn mark_deleted(pod: &mut Value, seconds: i64, now: Timestamp) {
    let metadata = &mut pod["metadata"];
    let began = match (
        metadata["deletionTimestamp"].as_str().and_then(|at| at.parse::<Timestamp>().ok()),
        metadata["deletionGracePeriodSeconds"].as_i64(),
    ) {
        (Some(end), Some(grace)) => end - SignedDuration::from_secs(grace),
        _ => now,
    };
    let end = began + SignedDuration::from_secs(seconds);
    let (end, seconds) = if end < now { (now, 1) } else { (end, seconds) };
    metadata["deletionTimestamp"] = timestamp(end);
    metadata["deletionGracePeriodSeconds"] = json!(seconds);
}

/// As the API writes it: whole seconds.
pub(crate) fn timestamp(at: Timestamp) -> Value {
    let seconds = Timestamp::from_second(at.as_second()).unwrap_or(at);
    json!(seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_ends_slowly_if_somebody_may_still_run_it() {
        let pod = |phase: &str, node: &str, deleted: Option<i64>| {
            let mut pod = json!({"metadata": {}, "spec": {"nodeName": node, "terminationGracePeriodSeconds": 20}, "status": {"phase": phase}});
            if let Some(grace) = deleted {
                mark_deleted(&mut pod, grace, Timestamp::UNIX_EPOCH);
            }
            pod
        };
        for (phase, node, deleted, asked_for, expected) in [
            ("Running", "a", None, None, Deletion::Graceful { seconds: 20 }),
            ("Running", "a", None, Some(5), Deletion::Graceful { seconds: 5 }),
            ("Running", "a", None, Some(0), Deletion::Now),
            ("Running", "a", None, Some(-7), Deletion::Graceful { seconds: 1 }),
            ("Pending", "", None, None, Deletion::Now),
            ("Failed", "a", None, None, Deletion::Now),
            ("Running", "a", Some(20), Some(30), Deletion::Unchanged),
            ("Running", "a", Some(20), Some(10), Deletion::Graceful { seconds: 10 }),
            ("Running", "a", Some(20), Some(0), Deletion::Now),
            ("Failed", "a", Some(20), None, Deletion::Unchanged),
        ] {
            assert_eq!(plan_deletion(&pod(phase, node, deleted), asked_for), expected);
        }
    }

    #[test]
    fn a_shorter_grace_period_counts_from_the_first_deletion() {
        let mut pod = json!({"metadata": {}});
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        mark_deleted(&mut pod, 30, at(100));
        assert_eq!(pod["metadata"]["deletionTimestamp"], "1970-01-01T00:02:10Z");
        mark_deleted(&mut pod, 10, at(105));
        assert_eq!(pod["metadata"]["deletionTimestamp"], "1970-01-01T00:01:50Z");
        mark_deleted(&mut pod, 5, at(108));
        assert_eq!(pod["metadata"]["deletionTimestamp"], "1970-01-01T00:01:48Z");
        assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 1);
    }
}
