//! A person asks the kubelet why a pod is not running.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, wait_for};
use serde_json::{Value, json};

use crate::WAIT;
use crate::server::get;

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario::on_all(
    "a_kubelet_says_why_a_pod_is_not_running",
    a_kubelet_says_why_a_pod_is_not_running,
)];

/// What the kubelet says of the static pod `name`: the answer to "why", and everything.
fn why(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<(String, String)> {
    let pod = kubelet.pod(name)?.with_context(|| format!("there is no {name}"))?;
    let path = format!("/debug/pods/{}/{}?format=text", pod.namespace, pod.name);
    let (status, text) = get(kubelet, None, &path)?;
    ensure!(status == 200, "{path} is answered {status}: {text}");
    let answer = text.split("\n\n").find(|part| part.starts_with("Why:"));
    let answer = answer.with_context(|| text.clone())?.to_owned();
    Ok((answer, text))
}

fn a_kubelet_says_why_a_pod_is_not_running(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let sleeper = || busybox("app", "exec sleep 3600");
    let imageless = json!({ "imagePullPolicy": "Always", "image": "127.0.0.1:1/nothing" });
    let mount = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let nowhere = json!({ "path": "/nowhere/at/all", "type": "Directory" });
    let unready = json!({ "readinessProbe": {
        "exec": { "command": ["false"] }, "periodSeconds": 1, "failureThreshold": 1,
    }});
    for (name, spec) in [
        ("well", json!({ "containers": [sleeper()] })),
        ("imageless", json!({ "containers": [with(sleeper(), imageless)] })),
        (
            "volumeless",
            json!({
                "containers": [with(sleeper(), mount)],
                "volumes": [{ "name": "data", "hostPath": nowhere }],
            }),
        ),
        ("crashing", json!({ "containers": [busybox("app", "exit 3")] })),
        ("unready", json!({ "containers": [with(sleeper(), unready)] })),
    ] {
        kubelet.write_pod(&pod(name, spec))?;
    }
    for (name, answer, details) in [
        (
            "well",
            vec!["it is as it should be"],
            vec!["sandbox", "app: running, ready", "Decisions"],
        ),
        (
            "imageless",
            vec!["Container \"app\" waits: ", "ImagePull", "127.0.0.1:1/nothing"],
            vec!["last pull: ", "next pull at "],
        ),
        (
            "volumeless",
            vec![
                "Volume \"data\" is not ready",
                "/nowhere/at/all is not a directory",
                "next try at",
            ],
            vec!["mount volumes: ", "data: failed"],
        ),
        (
            "crashing",
            vec!["Container \"app\" waits: CrashLoopBackOff", "ended with exit code 3 (Error)"],
            vec!["wait with app: back-off", "exit code 3"],
        ),
        (
            "unready",
            vec!["Container \"app\" runs, but its readiness probe has not passed"],
            vec!["readiness probe: failure", "Ready is False"],
        ),
    ] {
        wait_for(&format!("the right answer about {name}"), WAIT, || match why(&kubelet, name) {
            Ok((said, text)) => {
                let missing = |words: &[&str], text: &str| {
                    let mut words = words.iter();
                    words.find(|word| !text.contains(**word)).map(|word| (*word).to_owned())
                };
                match missing(&answer, &said).or_else(|| missing(&details, &text)) {
                    None => Ok(()),
                    Some(word) => Err(format!("no {word:?} in\n{text}")),
                }
            }
            Err(error) => Err(format!("{error:#}")),
        })?;
    }

    let crashing = kubelet.pod("crashing")?.context("there is no crashing pod")?;
    let path = format!("/debug/pods/{}/{}", crashing.namespace, crashing.name);
    let (status, body) = get(&kubelet, None, &path)?;
    ensure!(status == 200, "{status} {body}");
    let document: Value = serde_json::from_str(&body)?;
    ensure!(document["pod"]["uid"] == crashing.uid.as_str(), "{document}");
    ensure!(document["why"].as_array().is_some_and(|why| !why.is_empty()), "{document}");
    ensure!(document["containers"][0]["name"] == "app", "{document}");
    let decisions = document["worker"]["decisions"].as_array().context("no decisions")?;
    ensure!(decisions.iter().all(|decision| decision["at"].is_string()), "{document}");
    ensure!(document["status"]["reachedApiServer"].is_null(), "{document}");
    assert_eq!(get(&kubelet, None, "/debug/pods/default/nobody")?.0, 404);
    Ok(())
}
