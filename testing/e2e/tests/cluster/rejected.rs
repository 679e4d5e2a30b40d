//! Pods that were bound to the node although it cannot take them.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, with};
use rubelet_test_bed::trials::Trial;
use serde_json::json;

use crate::stage::{Stage, condition, pod};
use crate::{Ground, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_pod_that_does_not_fit_is_rejected_and_stays_until_it_is_deleted,
    a_critical_pod_has_others_make_room_for_it,
];

fn a_pod_that_does_not_fit_is_rejected_and_stays_until_it_is_deleted(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let sleeper = || busybox("app", "exec sleep 3600");
    let bound = |name: &str, spec| pod(name, with(json!({ "nodeName": "node-1" }), spec));
    let port = json!({ "ports": [{ "containerPort": 80, "hostPort": 18080 }] });
    let with_port = || json!({ "containers": [with(sleeper(), port.clone())] });
    stage.create_pod(&bound("first", with_port()))?;
    stage.wait_until_ready("first")?;
    let much = with(sleeper(), json!({ "resources": { "requests": { "cpu": "1000" } } }));
    let rejected = [
        ("greedy", json!({ "containers": [much] }), "OutOfcpu", "Node didn't have enough resource"),
        (
            "elsewhere",
            json!({ "nodeSelector": { "example.com/no": "such" }, "containers": [sleeper()] }),
            "NodeAffinity",
            "Predicate NodeAffinity failed",
        ),
        ("second", with_port(), "NodePorts", "Predicate NodePorts failed"),
    ];
    for (name, spec, reason, text) in &rejected {
        stage.create_pod(&bound(name, spec.clone()))?;
        let pod = stage.wait_for_pod(name, "rejected", |pod| pod.phase == "Failed")?;
        let status = &pod.raw["status"];
        ensure!(pod.reason == *reason && pod.message.contains(text), "{status}");
        ensure!(!pod.start_time.is_empty(), "{status}");
        ensure!(status["qosClass"].is_string(), "{status}");
        stage.wait_for_event(name, reason, text)?;
    }
    let before = stage.versions()?;
    stage.kubelet_mut(0).sigkill()?;
    stage.kubelet_mut(0).start_again()?;
    stage.wait_for_renewals(3)?;
    let pods = stage.pods()?;
    for (name, _, reason, _) in &rejected {
        let pod = pods.iter().find(|pod| pod.name == *name);
        ensure!(pod.is_some_and(|pod| pod.phase == "Failed" && pod.reason == *reason), "{pod:#?}");
        let version = |pod: &rubelet_e2e::PodView| {
            pod.raw["metadata"]["resourceVersion"].as_str().map(str::to_owned)
        };
        ensure!(pod.and_then(version).as_ref() == before.get(*name), "{name} was written again");
    }
    for (name, ..) in &rejected {
        stage.kubectl(&["delete", "pod", name, "--timeout=120s"])?;
    }
    let first = stage.wait_until_ready("first")?;
    ensure!(first.restarts() == 0, "{}", first.raw["status"]);
    Ok(())
}

fn a_critical_pod_has_others_make_room_for_it(stage: &mut Stage) -> anyhow::Result<()> {
    let node = stage.get("/api/v1/nodes/node-1")?;
    let cpu = node["status"]["allocatable"]["cpu"].as_str().context("no cpu")?;
    let milli: u64 = match cpu.strip_suffix('m') {
        Some(milli) => milli.parse()?,
        None => cpu.parse::<u64>()? * 1000,
    };
    // Two of them do not fit.
    let much = json!({ "requests": { "cpu": format!("{}m", milli * 6 / 10) } });
    let sleeper = |more| with(busybox("app", "exec sleep 3600"), more);
    let large = json!({ "containers": [sleeper(json!({ "resources": much.clone() }))] });
    stage.create_pod(&pod("large", with(large.clone(), json!({ "nodeName": "node-1" }))))?;
    let small = json!({ "nodeName": "node-1", "containers": [sleeper(json!({}))] });
    stage.create_pod(&pod("small", small))?;
    stage.wait_for_pods(2, "ready", |pod| pod.ready)?;

    // Static pods are critical.
    let mut critical = pod("critical", large);
    critical["metadata"]["namespace"] = stage.namespace().into();
    stage.kubelet().write_pod(&critical)?;
    let text = "Preempted in order to admit critical pod";
    stage.wait_for_event("large", "Preempting", text)?;
    let gone = stage.wait_for_pod("large", "over", |pod| pod.phase == "Failed")?;
    ensure!(gone.reason == "Preempting" && gone.message == text, "{}", gone.raw["status"]);
    let why = condition(&gone.raw, "DisruptionTarget")?;
    ensure!(why["status"] == "True" && why["reason"] == "TerminationByKubelet", "{why}");
    stage.wait_until_ready("critical-node-1")?;
    let small = stage.wait_until_ready("small")?;
    ensure!(small.restarts() == 0, "{}", small.raw["status"]);
    stage.kubelet().remove_manifest("critical.yaml")?;
    stage.wait_until_gone("critical-node-1")
}
