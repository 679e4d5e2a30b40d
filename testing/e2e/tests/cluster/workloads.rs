//! What controllers make of a node.

use anyhow::ensure;
use rubelet_e2e::Diary;
use rubelet_e2e::manifest::{busybox, probe_target, with};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, each_second, template};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_deployment_is_rolled_out_and_back,
    a_job_completes_in_spite_of_a_failure,
    a_daemon_set_replaces_its_pod,
    a_stateful_set_reuses_a_name_and_never_runs_it_twice,
];

fn apps(stage: &Stage, collection: &str) -> String {
    format!("/apis/apps/v1/namespaces/{}/{collection}", stage.namespace())
}

fn a_deployment_is_rolled_out_and_back(stage: &mut Stage) -> anyhow::Result<()> {
    let probe = each_second(json!({ "httpGet": { "path": "/", "port": 8080 } }));
    let target = with(
        probe_target("app"),
        json!({ "readinessProbe": probe, "env": [{ "name": "REVISION", "value": "1" }] }),
    );
    let deployment = json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 3,
            "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 1 } },
            "template": template("web", json!({ "containers": [target] })),
        },
    });
    stage.create(&apps(stage, "deployments"), &deployment)?;
    let rolled_out = || stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]);
    let revision = |value: &str| -> anyhow::Result<()> {
        let is_so = |pod: &rubelet_e2e::PodView| {
            pod.ready && pod.raw["spec"]["containers"][0]["env"][0]["value"] == value
        };
        let pods = stage.wait_for_pods(3, "ready with that revision", is_so)?;
        ensure!(pods.iter().all(|pod| pod.restarts() == 0), "{pods:#?}");
        Ok(())
    };
    rolled_out()?;
    revision("1")?;
    stage.kubectl(&["set", "env", "deployment/web", "REVISION=2"])?;
    rolled_out()?;
    revision("2")?;
    stage.kubectl(&["rollout", "undo", "deployment/web"])?;
    rolled_out()?;
    revision("1")
}

fn a_job_completes_in_spite_of_a_failure(stage: &mut Stage) -> anyhow::Result<()> {
    let diary = stage.diary()?;
    let script = "mkdir /diary/first 2>/dev/null && exit 1; note done";
    let spec = json!({
        "restartPolicy": "Never",
        "containers": [Diary::container("app", "job", script)],
        "volumes": [diary.volume()],
    });
    let job = json!({
        "metadata": { "name": "sums" },
        "spec": { "completions": 3, "parallelism": 2, "template": template("sums", spec) },
    });
    stage.create(&format!("/apis/batch/v1/namespaces/{}/jobs", stage.namespace()), &job)?;
    stage.kubectl(&["wait", "--for=condition=complete", "job/sums", "--timeout=180s"])?;
    ensure!(diary.times("job", "done")?.len() == 3, "{:?}", diary.lines("")?);
    let pods =
        stage.wait_for_pods(4, "ended", |pod| pod.phase == "Succeeded" || pod.phase == "Failed")?;
    let failed: Vec<_> = pods.iter().filter(|pod| pod.phase == "Failed").collect();
    ensure!(failed.len() == 1, "{failed:#?}");
    let exit_code = failed[0].container("app").and_then(|app| app.exit_code);
    ensure!(exit_code == Some(1), "{failed:#?}");
    Ok(())
}

fn a_daemon_set_replaces_its_pod(stage: &mut Stage) -> anyhow::Result<()> {
    let spec = json!({ "hostNetwork": true, "containers": [busybox("app", "exec sleep 3600")] });
    let set = json!({
        "metadata": { "name": "agent" },
        "spec": {
            "selector": { "matchLabels": { "app": "agent" } },
            "template": template("agent", spec),
        },
    });
    stage.create(&apps(stage, "daemonsets"), &set)?;
    let first = stage.wait_for_pods(1, "ready", |pod| pod.ready)?;
    let node = stage.kubelet().runtime().node_address().to_string();
    ensure!(first[0].ip == node, "{}", first[0].raw["status"]);
    stage.kubectl(&["delete", "pod", &first[0].name, "--timeout=120s"])?;
    let uid = first[0].uid.clone();
    stage.wait_for_pods(1, "another and ready", |pod| pod.ready && pod.uid != uid).map(drop)
}

fn a_stateful_set_reuses_a_name_and_never_runs_it_twice(stage: &mut Stage) -> anyhow::Result<()> {
    let diary = stage.diary()?;
    let mut service = Diary::service("app", "db-0", ":");
    service["readinessProbe"] = Diary::has_started();
    let spec = json!({
        "terminationGracePeriodSeconds": 60,
        "containers": [service],
        "volumes": [diary.volume()],
    });
    let set: Value = json!({
        "metadata": { "name": "db" },
        "spec": {
            "serviceName": "db",
            "replicas": 1,
            "selector": { "matchLabels": { "app": "db" } },
            "template": template("db", spec),
        },
    });
    stage.create(&apps(stage, "statefulsets"), &set)?;
    let mut uid = String::new();
    for round in 1..=3 {
        let is_new = |pod: &rubelet_e2e::PodView| pod.ready && pod.uid != uid;
        let pod = stage.wait_for_pod("db-0", "new and ready", is_new)?;
        diary.wait_for("db-0", "start", round, WAIT)?;
        uid = pod.uid;
        // The last one as a person does who does not want to wait: the next may not start before
        // this one has ended on the node.
        let how: &[&str] = if round == 2 { &["--grace-period=0", "--force"] } else { &[] };
        stage.kubectl(&[&["delete", "pod", "db-0", "--timeout=120s"], how].concat())?;
    }
    stage.wait_for_pod("db-0", "new and ready", |pod| pod.ready && pod.uid != uid)?;
    let lines = diary.lines("db-0")?;
    ensure!(!lines.iter().any(|line| line.ends_with("overlap")), "{lines:?}");
    Ok(())
}
