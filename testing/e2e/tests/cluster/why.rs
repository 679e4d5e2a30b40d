//! A person asks, by way of the API server, why a pod is not running.

use anyhow::ensure;
use rubelet_e2e::manifest::busybox;
use rubelet_e2e::wait_for;
use rubelet_test_bed::trials::Trial;
use serde_json::json;

use crate::stage::{Stage, pod};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] =
    on_one_node![a_pod_without_its_config_map_is_explained_through_the_api_server];

fn a_pod_without_its_config_map_is_explained_through_the_api_server(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let mut app = busybox("app", "exec sleep 3600");
    app["volumeMounts"] = json!([{ "name": "settings", "mountPath": "/settings" }]);
    let spec = json!({
        "containers": [app],
        "volumes": [{ "name": "settings", "configMap": { "name": "settings" } }],
    });
    stage.create_pod(&pod("waiting", spec))?;
    let path =
        format!("/api/v1/nodes/node-1/proxy/debug/pods/{}/waiting?format=text", stage.namespace());
    let wait_until_said = |words: &[&str]| {
        wait_for(&format!("{words:?}"), WAIT, || match stage.kubectl(&["get", "--raw", &path]) {
            Ok(text) if words.iter().all(|word| text.contains(word)) => Ok(()),
            Ok(text) => Err(text),
            Err(error) => Err(format!("{error:#}")),
        })
    };
    wait_until_said(&[
        "Volume \"settings\" is not ready",
        "configmap \"settings\" not found",
        "known to the API server",
    ])?;
    let settings = json!({ "metadata": { "name": "settings" }, "data": { "key": "value" } });
    stage.create(&stage.path("configmaps"), &settings)?;
    stage.wait_until_ready("waiting")?;
    wait_until_said(&["it is as it should be", "settings: ready"])?;
    let of_nobody = path.replace("waiting", "nobody");
    ensure!(stage.kubectl(&["get", "--raw", &of_nobody]).is_err(), "nobody was explained");
    Ok(())
}
