//! Pods with users of their own.

use rubelet_e2e::RuntimeKind;
use rubelet_e2e::manifest::{busybox, pod};
use rubelet_e2e::runner::{Scenario, Stage};
use serde_json::json;

use crate::WAIT;
use crate::facts::start_kubelet;

/// What a runtime that has them is asked for is checked beside the kubelet (`tests/user_namespaces.rs`):
/// in this test bed's namespaces runc may not remount what such a pod needs.
pub(crate) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "a_pod_with_users_of_its_own_is_refused_where_the_runtime_has_none",
    runtimes: &[RuntimeKind::Debian],
    run: a_pod_with_users_of_its_own_is_refused_where_the_runtime_has_none,
}];

fn a_pod_with_users_of_its_own_is_refused_where_the_runtime_has_none(
    stage: &Stage,
) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let spec = json!({ "hostUsers": false, "containers": [busybox("app", "exec sleep 3600")] });
    kubelet.write_pod(&pod("alone", spec))?;
    let text = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    kubelet.wait_for_event("alone", "FailedCreatePodSandBox", text, WAIT).map(drop)
}
