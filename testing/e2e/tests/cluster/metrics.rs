//! A scraper reads a node's metrics by way of the API server.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::busybox;
use rubelet_e2e::wait_for;
use rubelet_test_bed::trials::Trial;
use serde_json::json;

use crate::stage::{Stage, pod};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![the_api_server_hands_on_metrics];

/// The value of a series, written as it is read.
fn value(text: &str, series: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
}

fn the_api_server_hands_on_metrics(stage: &mut Stage) -> anyhow::Result<()> {
    // Only a Node that its kubelet made tells how long that took.
    stage.delete("/api/v1/nodes/node-1")?;
    stage.kubelet_mut(0).restart()?;
    stage.wait_until_node_is_ready(0)?;
    let read =
        |stage: &Stage| stage.kubectl(&["get", "--raw", "/api/v1/nodes/node-1/proxy/metrics"]);
    let starts = "kubelet_pod_start_sli_duration_seconds_count";
    let before = value(&read(stage)?, starts).context("no start is measured")?;
    let mut app = busybox("app", "exec sleep 3600");
    app["readinessProbe"] = json!({ "exec": { "command": ["true"] }, "periodSeconds": 1 });
    stage.create_pod(&pod("measured", json!({ "containers": [app] })))?;
    stage.wait_until_ready("measured")?;
    // Other trials start pods on other nodes. What runs is told as of the last relist.
    let running = "kubelet_running_pods";
    let text = wait_for("its start to be measured", WAIT, || match read(stage) {
        Ok(text) if value(&text, starts) > Some(before) && value(&text, running) >= Some(1.0) => {
            Ok(text)
        }
        Ok(text) => Err(format!(
            "{starts} is {:?}, {running} {:?}",
            value(&text, starts),
            value(&text, running)
        )),
        Err(error) => Err(format!("{error:#}")),
    })?;
    for series in [
        "kubelet_node_name{node=\"node-1\"}",
        "kubelet_desired_pods{static=\"\"}",
        "kubelet_pod_start_total_duration_seconds_count",
        "kubelet_pod_status_sync_duration_seconds_count",
    ] {
        ensure!(value(&text, series) >= Some(1.0), "{series} is {:?}", value(&text, series));
    }
    for metric in ["pre_registration", "registration", "post_registration"] {
        let series = format!("kubelet_node_startup_{metric}_duration_seconds");
        ensure!(value(&text, &series) > Some(0.0), "{series} is {:?}", value(&text, &series));
    }
    ensure!(text.contains("\nrest_client_requests_total{code=\"201\",host="), "{text}");
    let probes = stage.kubectl(&["get", "--raw", "/api/v1/nodes/node-1/proxy/metrics/probes"])?;
    ensure!(probes.contains("pod=\"measured\""), "{probes}");
    Ok(())
}
