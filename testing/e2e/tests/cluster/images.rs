//! Images that not everybody may have.

use std::fs;

use anyhow::ensure;
use rubelet_e2e::Registry;
use rubelet_e2e::manifest::with;
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, pod};
use crate::{Ground, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![a_pod_pulls_with_the_secret_that_it_names];

/// A Secret with credentials for the registry.
fn secret(name: &str, password: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": Registry::docker_config(password).to_string() },
    })
}

/// A pod that runs an image of the registry.
fn user_of(name: &str, image: &str, more: Value) -> Value {
    let container = json!({
        "name": "app",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
    });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [container] });
    pod(name, with(more, spec))
}

/// The message of a container that waits for that reason.
fn wait_for_refusal(stage: &Stage, name: &str, reason: &str) -> anyhow::Result<String> {
    let refused = stage.wait_for_pod(name, reason, |pod| {
        pod.container("app").is_some_and(|app| app.state == "waiting" && app.reason == reason)
    })?;
    Ok(refused.container("app").map(|app| app.message.clone()).unwrap_or_default())
}

fn a_pod_pulls_with_the_secret_that_it_names(stage: &mut Stage) -> anyhow::Result<()> {
    let registry = Registry::start_protected(stage.kubelet().runtime(), stage.namespace())?;
    registry.push("private:1")?;
    let image = Registry::name("private:1");
    let secrets = stage.path("secrets");
    stage.create(&secrets, &secret("right", Registry::PASSWORD))?;
    stage.create(&secrets, &secret("wrong", "wr0ngpass"))?;
    let account =
        json!({ "metadata": { "name": "puller" }, "imagePullSecrets": [{ "name": "right" }] });
    stage.create(&stage.path("serviceaccounts"), &account)?;

    let names = |secret: &str| json!({ "imagePullSecrets": [{ "name": secret }] });
    stage.create_pod(&user_of("wrong", &image, names("wrong")))?;
    stage.create_pod(&user_of("missing", &image, names("nothing")))?;
    stage.wait_for_event("wrong", "Failed", "401 Unauthorized")?;
    let message = wait_for_refusal(stage, "wrong", "ImagePullBackOff")?;
    let start = format!("Back-off pulling image {image:?}: ErrImagePull: ");
    ensure!(message.starts_with(&start), "{message}");
    stage.wait_for_event(
        "missing",
        "FailedToRetrieveImagePullSecret",
        "Unable to retrieve some image pull secrets (nothing); attempting to pull the image may \
         not succeed.",
    )?;
    stage.wait_for_event("missing", "Failed", &format!("Failed to pull image {image:?}: "))?;
    stage.wait_for_event("missing", "Failed", "Error: ErrImagePull")?;

    // The right one, by the pod itself and by way of its service account.
    stage.create_pod(&user_of("right", &image, names("right")))?;
    stage.wait_until_ready("right")?;
    stage.wait_for_event("right", "Pulled", &format!("Successfully pulled image {image:?} in "))?;
    let account = json!({ "serviceAccountName": "puller" });
    stage.create_pod(&user_of("account", &image, account))?;
    stage.wait_until_ready("account")?;

    let log = fs::read_to_string(stage.kubelet().log_file())?;
    for secret in ["wr0ngpass", Registry::PASSWORD] {
        ensure!(!log.contains(secret), "the log shows {secret}");
    }
    Ok(())
}
