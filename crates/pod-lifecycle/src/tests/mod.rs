//! Ring 1: decision tables in a small language. Ring 2: random histories in a model world.
//! `agreement`: the end of a pod is the same to the brain and to its status.

mod agreement;
mod cases;
mod language;
mod properties;
mod world;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::labels;

use crate::{BackOffSettings, Disruption, PodEvent, PodState, Stage, StopCause};

/// A stop because the node needs its resources.
fn evicted() -> StopCause {
    StopCause::Disrupted(Arc::new(Disruption {
        reason: "Evicted".to_owned(),
        message: "The node was low on resource: memory. ".to_owned(),
        condition: Some("The node was low on resource: memory. ".to_owned()),
    }))
}

#[test]
fn a_pod_whose_end_the_api_server_declares_is_stopped() {
    let pod = |source: &str, phase: &str| -> Arc<Pod> {
        let pod = serde_json::json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u",
                "annotations": {labels::CONFIG_SOURCE: source}},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": phase},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    };
    let now = Timestamp::UNIX_EPOCH;
    let after = |source: &str, phase: &str| {
        let mut state = PodState::new(pod(source, "Running"), BackOffSettings::default());
        state.apply(PodEvent::Admitted, now);
        state.apply(PodEvent::Updated(pod(source, phase)), now);
        matches!(state.stage(), Stage::Terminating { cause: StopCause::Completed, .. })
    };
    assert!(after("api", "Failed"));
    assert!(!after("api", "Running"));
    // A file says nothing about how its pod fares.
    assert!(!after("file", "Failed"));
}
