//! The Node object: what it says, and that nothing is written without a reason.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, probe_target, with};
use rubelet_e2e::wait_for;
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{COLOUR, Stage, TAINT, condition, each_second, pod, template};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_node_registers_and_says_what_it_is,
    at_rest_neither_node_nor_pods_are_written,
    what_somebody_changed_about_a_node_is_put_right,
    a_drained_node_gives_up_its_pods_and_takes_new_ones_when_it_may,
];

fn a_node_registers_and_says_what_it_is(stage: &mut Stage) -> anyhow::Result<()> {
    let node = stage.get("/api/v1/nodes/node-1")?;
    let labels = &node["metadata"]["labels"];
    for (label, value) in
        [("kubernetes.io/hostname", "node-1"), ("kubernetes.io/os", "linux"), (COLOUR, "blue")]
    {
        ensure!(labels[label] == value, "{label} in {labels}");
    }
    ensure!(labels["kubernetes.io/arch"].is_string(), "{labels}");
    let taint = json!({ "key": TAINT, "value": "yes", "effect": "PreferNoSchedule" });
    let taints = node["spec"]["taints"].as_array().context("no taints")?;
    ensure!(taints.contains(&taint), "{taints:?}");

    let status = &node["status"];
    let address = stage.kubelet().runtime().node_address().to_string();
    let addresses = status["addresses"].as_array().context("no addresses")?;
    for wanted in [
        json!({ "type": "InternalIP", "address": address }),
        json!({ "type": "Hostname", "address": "node-1" }),
    ] {
        ensure!(addresses.contains(&wanted), "{addresses:?}");
    }
    for (kind, value) in [
        ("Ready", "True"),
        ("MemoryPressure", "False"),
        ("DiskPressure", "False"),
        ("PIDPressure", "False"),
    ] {
        ensure!(condition(&node, kind)?["status"] == value, "{}", status["conditions"]);
    }
    // 64Mi are reserved, and pods are evicted at 10Mi.
    let bytes = |amounts: &Value| -> anyhow::Result<u64> {
        let memory = amounts["memory"].as_str().context("no memory")?;
        Ok(memory.strip_suffix("Ki").context("not in Ki")?.parse::<u64>()? * 1024)
    };
    let (capacity, allocatable) = (&status["capacity"], &status["allocatable"]);
    ensure!(bytes(capacity)? - bytes(allocatable)? == 74 << 20, "{capacity} {allocatable}");
    ensure!(capacity["cpu"] != allocatable["cpu"], "{capacity} {allocatable}");
    ensure!(allocatable["pods"] == "110", "{allocatable}");
    let info = &status["nodeInfo"];
    for (field, start) in
        [("kubeletVersion", "v1.36."), ("containerRuntimeVersion", "containerd://")]
    {
        let said = info[field].as_str().unwrap_or_default();
        ensure!(said.starts_with(start), "{field} in {info}");
    }
    ensure!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250, "{status}");
    wait_for("the node's images", WAIT, || {
        let node = stage.get("/api/v1/nodes/node-1").map_err(|error| format!("{error:#}"))?;
        let images = node["status"]["images"].to_string();
        if images.contains("busybox") { Ok(()) } else { Err(images) }
    })?;

    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1";
    let lease = stage.get(lease)?;
    ensure!(lease["spec"]["holderIdentity"] == "node-1", "{lease}");
    ensure!(lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"], "{lease}");
    stage.wait_for_renewals(2)
}

fn at_rest_neither_node_nor_pods_are_written(stage: &mut Stage) -> anyhow::Result<()> {
    let http = each_second(json!({ "httpGet": { "path": "/", "port": 8080 } }));
    let exec = each_second(json!({ "exec": { "command": ["true"] } }));
    let sleeper = || busybox("app", "exec sleep 3600");
    let probed = json!({ "readinessProbe": http, "livenessProbe": http, "startupProbe": http });
    for pod in [
        pod("plain", json!({ "containers": [sleeper()] })),
        pod("probed", json!({ "containers": [with(probe_target("app"), probed)] })),
        pod("exec", json!({ "containers": [with(sleeper(), json!({ "readinessProbe": exec }))] })),
        pod("ended", json!({ "restartPolicy": "Never", "containers": [busybox("app", "exit 3")] })),
    ] {
        stage.create_pod(&pod)?;
    }
    stage.wait_for_pods(4, "ready or failed", |pod| pod.ready || pod.phase == "Failed")?;
    let before = stage.wait_until_at_rest()?;
    // Longer than the time between two looks at the node's status.
    stage.wait_for_renewals(6)?;
    let after = stage.versions()?;
    ensure!(before == after, "written without a reason: {before:?} became {after:?}");
    Ok(())
}

fn what_somebody_changed_about_a_node_is_put_right(stage: &mut Stage) -> anyhow::Result<()> {
    let path = "/api/v1/nodes/node-1";
    let before = stage.get(path)?;
    let (hostname, os) = ("kubernetes.io/hostname", "kubernetes.io/os");
    let labels = json!({ hostname: null, os: "plan9", COLOUR: null });
    let change = json!({ "metadata": { "labels": labels }, "spec": { "taints": null } });
    stage.merge(path, &change)?;
    let nothing = json!({ "status": { "addresses": null, "capacity": null } });
    stage.merge(&format!("{path}/status"), &nothing)?;

    // The status and the operating system at its next look, which nobody has to ask for.
    let right = |node: &Value, label: &str| {
        node["metadata"]["labels"][label] == before["metadata"]["labels"][label]
    };
    let node = wait_for("the node to say again what it is", WAIT, || {
        let node = stage.get(path).map_err(|error| format!("{error:#}"))?;
        let same = |field: &str| node["status"][field] == before["status"][field];
        if right(&node, os) && same("addresses") && same("capacity") {
            Ok(node)
        } else {
            Err(format!("{} {}", node["metadata"]["labels"], node["status"]))
        }
    })?;
    // What else it was given when it registered is an administrator's to change.
    let labels = &node["metadata"]["labels"];
    ensure!(labels[COLOUR].is_null() && labels[hostname].is_null(), "{labels}");
    ensure!(node["spec"]["taints"].is_null(), "{}", node["spec"]);
    // Its own name it corrects when it starts.
    stage.kubelet_mut(0).restart()?;
    wait_for("the hostname", WAIT, || {
        let node = stage.get(path).map_err(|error| format!("{error:#}"))?;
        if right(&node, hostname) { Ok(()) } else { Err(node["metadata"].to_string()) }
    })?;
    let node = stage.get(path)?;
    ensure!(node["metadata"]["labels"][COLOUR].is_null(), "{}", node["metadata"]);
    ensure!(node["metadata"]["uid"] == before["metadata"]["uid"], "it is another one");
    let back = json!({
        "metadata": { "labels": { COLOUR: before["metadata"]["labels"][COLOUR] } },
        "spec": { "taints": before["spec"]["taints"] },
    });
    stage.merge(path, &back)?;
    stage.wait_until_node_is_ready(0)
}

fn a_drained_node_gives_up_its_pods_and_takes_new_ones_when_it_may(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let apps = format!("/apis/apps/v1/namespaces/{}", stage.namespace());
    let spec = json!({ "containers": [busybox("app", "exec sleep 3600")] });
    let controller = |name: &str, replicas: Option<u32>| {
        let mut spec = json!({
            "selector": { "matchLabels": { "app": name } },
            "template": template(name, spec.clone()),
        });
        if let Some(replicas) = replicas {
            spec["replicas"] = replicas.into();
        }
        json!({ "metadata": { "name": name }, "spec": spec })
    };
    stage.create(&format!("{apps}/deployments"), &controller("moved", Some(2)))?;
    stage.create(&format!("{apps}/daemonsets"), &controller("stays", None))?;
    let before = stage.wait_for_pods(3, "ready", |pod| pod.ready)?;
    let uid_of = |name: &str| {
        before.iter().find(|pod| pod.name.starts_with(name)).map(|pod| pod.uid.clone())
    };
    let (moved, stays) = (uid_of("moved"), uid_of("stays"));

    stage.kubectl(&["drain", "node-1", "--ignore-daemonsets", "--timeout=120s"])?;
    let pods = stage.wait_for_pods(3, "moved away or ready", |pod| {
        pod.ready == pod.name.starts_with("stays")
    })?;
    ensure!(pods.iter().any(|pod| Some(&pod.uid) == stays.as_ref()), "{pods:#?}");
    ensure!(pods.iter().all(|pod| Some(&pod.uid) != moved.as_ref()), "{pods:#?}");
    stage.wait_until_node_is_ready(0)?;
    stage.kubectl(&["uncordon", "node-1"])?;
    stage.wait_for_pods(3, "ready again", |pod| pod.ready).map(drop)
}
