//! The store of objects on a small API server in memory.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod cached;
mod fake_api;
mod over_the_api;
mod watched;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

/// A pod that mounts these ConfigMaps.
fn pod(uid: &str, config_maps: &[&str]) -> Pod {
    let volumes: Vec<_> =
        config_maps.iter().map(|name| json!({"name": name, "configMap": {"name": name}})).collect();
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "namespace": "ns", "name": uid},
        "spec": {"containers": [], "volumes": volumes},
    }))
    .unwrap()
}
