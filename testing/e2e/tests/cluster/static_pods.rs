//! Static pods and their mirrors.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod};
use rubelet_e2e::wait_for;
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, id_of_app};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_static_pod_has_a_mirror_that_follows_its_manifest,
    a_refused_static_pod_is_asked_anew_by_the_next_kubelet,
    what_another_kubelet_said_of_a_static_pod_meanwhile_goes_on,
];

/// The annotation with the identity of the static pod that a mirror stands for.
const MIRROR: &str = "kubernetes.io/config.mirror";

fn a_static_pod_has_a_mirror_that_follows_its_manifest(stage: &mut Stage) -> anyhow::Result<()> {
    let namespace = stage.namespace().to_owned();
    let manifest = |seconds: u32| -> Value {
        let app = busybox("app", &format!("exec sleep {seconds}"));
        let mut pod = pod("static", json!({ "containers": [app] }));
        pod["metadata"]["namespace"] = namespace.as_str().into();
        pod
    };
    stage.kubelet().write_pod(&manifest(3600))?;
    let name = "static-node-1";
    let mirror = stage.wait_until_ready(name)?;
    let id = id_of_app(&mirror)?;
    let node = stage.get("/api/v1/nodes/node-1")?;
    let metadata = &mirror.raw["metadata"];
    let owner = metadata["ownerReferences"][0].as_object().context("no owner")?;
    ensure!(owner["kind"] == "Node" && owner["name"] == "node-1", "{owner:?}");
    ensure!(owner["uid"] == node["metadata"]["uid"] && owner["controller"] == true, "{owner:?}");
    let hash = metadata["annotations"][MIRROR].clone();
    ensure!(hash.is_string(), "{metadata}");
    ensure!(mirror.ip.starts_with("10.244.1."), "{}", mirror.raw["status"]);

    // A deleted mirror comes back, and the pod does not notice.
    for how in [&["--wait=false"][..], &["--grace-period=0", "--force", "--wait=false"][..]] {
        let uid = stage.pod(name)?.context("no mirror")?.uid;
        stage.kubectl(&[&["delete", "pod", name], how].concat())?;
        let is_new = |pod: &rubelet_e2e::PodView| pod.ready && pod.uid != uid;
        let again = stage.wait_for_pod(name, "made anew and ready", is_new)?;
        ensure!(id_of_app(&again)? == id && again.restarts() == 0, "{}", again.raw["status"]);
        ensure!(again.raw["metadata"]["annotations"][MIRROR] == hash, "{}", again.raw["metadata"]);
        ensure!(again.start_time == mirror.start_time, "{}", again.raw["status"]);
    }

    // Another manifest is another pod.
    stage.kubelet().write_pod(&manifest(3601))?;
    let changed = stage.wait_for_pod(name, "replaced and ready", |pod| {
        pod.ready && pod.raw["metadata"]["annotations"][MIRROR] != hash
    })?;
    ensure!(id_of_app(&changed)? != id, "{}", changed.raw["status"]);
    ensure!(changed.raw["spec"]["containers"][0]["command"][2] == "exec sleep 3601");

    stage.kubelet().remove_manifest("static.yaml")?;
    stage.wait_until_gone(name)?;
    stage.wait_until_nothing_is_left()
}

fn a_refused_static_pod_is_asked_anew_by_the_next_kubelet(stage: &mut Stage) -> anyhow::Result<()> {
    let label = "example.com/later";
    let spec = json!({
        "nodeSelector": { label: "yes" },
        "containers": [busybox("app", "exec sleep 3600")],
    });
    let mut choosy = pod("choosy", spec);
    choosy["metadata"]["namespace"] = stage.namespace().into();
    stage.kubelet().write_pod(&choosy)?;
    let name = "choosy-node-1";
    let refused = stage.wait_for_pod(name, "refused", |pod| pod.phase == "Failed")?;
    ensure!(refused.reason == "NodeAffinity", "{}", refused.raw["status"]);
    let path = "/api/v1/nodes/node-1";
    stage.merge(path, &json!({ "metadata": { "labels": { label: "yes" } } }))?;
    stage.kubelet_mut(0).restart()?;
    let ready = stage.wait_for_pod(name, "let in", |pod| pod.ready && pod.phase == "Running")?;
    ensure!(ready.uid == refused.uid && ready.reason.is_empty(), "{}", ready.raw["status"]);
    stage.kubelet().remove_manifest("choosy.yaml")?;
    stage.wait_until_gone(name)?;
    stage.merge(path, &json!({ "metadata": { "labels": { label: null } } })).map(drop)
}

fn what_another_kubelet_said_of_a_static_pod_meanwhile_goes_on(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let mut lasting = pod("lasting", json!({ "containers": [busybox("app", "exec sleep 3600")] }));
    lasting["metadata"]["namespace"] = stage.namespace().into();
    stage.kubelet().write_pod(&lasting)?;
    let name = "lasting-node-1";
    let before = stage.wait_until_ready(name)?;
    stage.kubelet_mut(0).stop()?;
    // As the Go kubelet leaves it: begun anew when that one started, and told to the mirror alone.
    let told = before.raw["status"].to_string();
    // The API server's clock, once it shows another second than those that were told of.
    let now = wait_for("another second", WAIT, || {
        let made = json!({ "metadata": { "generateName": "now-" } });
        let made = stage.create(&stage.path("configmaps"), &made);
        let now = made.map_err(|error| format!("{error:#}"))?;
        let now = now["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
        if told.contains(&now) { Err(now) } else { Ok(now) }
    })?;
    let path = stage.path(&format!("pods/{name}/status"));
    stage.merge(&path, &json!({ "status": { "startTime": now } }))?;
    stage.kubelet_mut(0).start_again()?;
    stage.wait_until_at_rest()?;
    let after = stage.wait_until_ready(name)?;
    ensure!(after.raw["status"]["startTime"] == json!(now), "{}", after.raw["status"]);
    ensure!(id_of_app(&after)? == id_of_app(&before)? && after.restarts() == 0, "{after:?}");
    stage.kubelet().remove_manifest("lasting.yaml")?;
    stage.wait_until_gone(name)
}
