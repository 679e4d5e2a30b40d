//! What containers say of themselves, and how they are asked.

use std::collections::BTreeMap;
use std::ops::Index;
use std::time::Duration;

use anyhow::Context;
use rubelet_e2e::runner::Stage;
use rubelet_e2e::{KubeletProcess, PodView, Runtime};
use rubelet_types::ContainerId;
use serde_json::{Value, json};

use crate::WAIT;
use crate::runtime::with_cri;

/// The last line of a container that is done with saying what there is to say.
const END: &str = "that is all";

/// The lines `name=value` that a container wrote.
#[derive(Debug)]
pub(crate) struct Facts {
    container: String,
    values: BTreeMap<String, String>,
}

impl Facts {
    /// What follows the name, if there is such a line.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

impl Index<&str> for Facts {
    type Output = str;

    fn index(&self, name: &str) -> &str {
        self.get(name)
            .unwrap_or_else(|| panic!("{} says nothing of {name}: {self:?}", self.container))
    }
}

/// A shell script that runs `script` and then waits to be ended.
pub(crate) fn telling(script: &str) -> String {
    format!("{script}\necho {END}\nexec sleep 3600\n")
}

/// A command for a manifest, as a flow sequence: a shell that runs `script` and then waits.
pub(crate) fn tell(script: &str) -> String {
    json!(["sh", "-c", telling(script)]).to_string()
}

/// Waits until a container that was given [`telling`] has said everything.
pub(crate) fn read_facts(
    kubelet: &KubeletProcess,
    pod: &PodView,
    container: &str,
) -> anyhow::Result<Facts> {
    let lines = kubelet.wait_for_log(pod, container, END, WAIT)?;
    let values = lines
        .iter()
        .filter_map(|line| line.trim_end().split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Ok(Facts { container: format!("{}/{container}", pod.name), values })
}

/// A kubelet whose log has its events, whichever kubelet it is, with `config` laid over the test
/// bed's.
pub(crate) fn start_kubelet(stage: &Stage, config: Value) -> anyhow::Result<KubeletProcess> {
    let mut options = stage.kubelet_options();
    options.config = config;
    options.config["logging"] = json!({ "verbosity": 3 });
    stage.start_kubelet_with(options)
}

/// Writes a manifest and waits until its pod is ready.
pub(crate) fn run_pod(
    kubelet: &KubeletProcess,
    name: &str,
    manifest: &str,
) -> anyhow::Result<PodView> {
    kubelet.write_manifest(&format!("{name}.yaml"), manifest)?;
    wait_until_ready(kubelet, name)
}

/// Waits until the pod is ready.
pub(crate) fn wait_until_ready(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<PodView> {
    kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)
}

/// Waits until a container waits for the given reason, and returns the message beside it.
pub(crate) fn wait_for_refusal(
    kubelet: &KubeletProcess,
    pod: &str,
    container: &str,
    reason: &str,
) -> anyhow::Result<String> {
    let refused = |pod: &PodView| {
        pod.container(container)
            .is_some_and(|status| status.state == "waiting" && status.reason == reason)
    };
    let view = kubelet.wait_for_pod(pod, &format!("{container}: {reason}"), WAIT, refused)?;
    Ok(view.container(container).map(|status| status.message.clone()).unwrap_or_default())
}

/// Runs a command in a running container and returns what it wrote to either stream.
pub(crate) fn exec(
    runtime: &Runtime,
    pod: &PodView,
    container: &str,
    script: &str,
) -> anyhow::Result<String> {
    let status = pod.container(container).with_context(|| format!("no container {container}"))?;
    let id = ContainerId::new(status.id.clone());
    // One stream, so that what was written stays in order.
    let command = vec!["sh".to_owned(), "-c".to_owned(), format!("exec 2>&1\n{script}")];
    let answer = with_cri(runtime, |cri| async move {
        Ok(cri.exec_sync(&id, command, Some(Duration::from_secs(20))).await?)
    })
    .with_context(|| format!("cannot run {script:?} in {}/{container}", pod.name))?;
    Ok(String::from_utf8_lossy(&answer.stdout).trim_end().to_owned())
}

/// Runs a script on the node: where the runtime and the kubelet see their files and mounts.
pub(crate) fn on_node(runtime: &Runtime, script: &str) -> anyhow::Result<String> {
    let output = runtime.namespaces().run("sh", &["-c", script])?;
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
