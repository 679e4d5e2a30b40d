//! Kubelets that are killed and come back.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::Rng;
use rubelet_e2e::manifest::{self, busybox, probe_target, with};
use rubelet_e2e::{Deadline, Diary, PodView, kill_container, wait_for};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, condition, each_second, id_of_app, pod, template};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_restart_is_not_seen_and_what_happened_meanwhile_is_made_up_for,
    what_was_deleted_while_no_kubelet_ran_goes,
    a_restart_beside_many_pods_writes_what_changed_and_nothing_else,
    a_rollout_survives_a_kubelet_that_is_killed_again_and_again,
];

/// For how long the trials' kubelet counts as alive without a word.
const LEASE: Duration = Duration::from_secs(8);

/// What must not change about a pod of which nothing changes.
fn fingerprint(pod: &PodView) -> anyhow::Result<(String, String, u64, Value)> {
    let version = pod.raw["metadata"]["resourceVersion"].to_string();
    let since = condition(&pod.raw, "Ready")?["lastTransitionTime"].clone();
    Ok((version, id_of_app(pod)?, pod.restarts(), since))
}

fn a_restart_is_not_seen_and_what_happened_meanwhile_is_made_up_for(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let http = each_second(json!({ "httpGet": { "path": "/", "port": 8080 } }));
    let probes = json!({ "readinessProbe": http, "livenessProbe": http, "startupProbe": http });
    let sleeper = || json!([busybox("app", "exec sleep 3600")]);
    let slow = json!({ "periodSeconds": 60, "exec": { "command": ["true"] } });
    let probed = || json!([with(probe_target("app"), probes.clone())]);
    let slowly = with(busybox("app", "exec sleep 3600"), json!({ "readinessProbe": slow }));
    let mut pods = vec![
        pod("slow", json!({ "containers": [slowly] })),
        pod("host", json!({ "hostNetwork": true, "containers": sleeper() })),
        pod("ended", json!({ "restartPolicy": "Never", "containers": sleeper() })),
        pod("crashed", json!({ "containers": sleeper() })),
        pod("deleted", json!({ "containers": sleeper() })),
        pod("forced", json!({ "containers": sleeper() })),
    ];
    pods.extend((1..=3).map(|n| pod(&format!("probed-{n}"), json!({ "containers": probed() }))));
    for pod in &pods {
        stage.create_pod(pod)?;
    }
    let mut fixed = manifest::pod("static", json!({ "containers": sleeper() }));
    fixed["metadata"]["namespace"] = stage.namespace().into();
    stage.kubelet().write_pod(&fixed)?;
    stage.wait_for_pods(pods.len() + 1, "ready", |pod| pod.ready)?;
    stage.wait_until_at_rest()?;
    let view = |stage: &Stage| -> anyhow::Result<BTreeMap<String, PodView>> {
        Ok(stage.pods()?.into_iter().map(|pod| (pod.name.clone(), pod)).collect())
    };
    let before = view(stage)?;

    stage.kubelet_mut(0).sigkill()?;
    let group = stage.kubelet().runtime().cgroup().to_owned();
    for name in ["ended", "crashed"] {
        let id = id_of_app(&before[name])?;
        ensure!(kill_container(&group, &id) > 0, "{name} has no process");
    }
    stage.kubectl(&["delete", "pod", "deleted", "--wait=false"])?;
    stage.kubectl(&["delete", "pod", "forced", "--grace-period=0", "--force"])?;
    stage.kubelet_mut(0).start_again()?;

    let ended = stage.wait_for_pod("ended", "failed", |pod| pod.phase == "Failed")?;
    let exit_code = ended.container("app").and_then(|app| app.exit_code);
    ensure!(exit_code == Some(137), "{}", ended.raw["status"]);
    let crashed = stage
        .wait_for_pod("crashed", "restarted and ready", |pod| pod.ready && pod.restarts() == 1)?;
    ensure!(id_of_app(&crashed)? != id_of_app(&before["crashed"])?);
    stage.wait_until_gone("deleted")?;
    let forced = id_of_app(&before["forced"])?;
    wait_for("the pod without an object to end", WAIT, || {
        match rubelet_e2e::find_container_processes(&group, &forced) {
            none if none.is_empty() => Ok(()),
            some => Err(format!("{some:?}")),
        }
    })?;
    stage.wait_until_at_rest()?;
    let after = view(stage)?;
    for name in ["slow", "host", "probed-1", "probed-2", "probed-3", "static-node-1"] {
        let now = after.get(name).with_context(|| format!("{name} is gone"))?;
        ensure!(now.uid == before[name].uid, "{name} is another one");
        let (before, now) = (fingerprint(&before[name])?, fingerprint(now)?);
        ensure!(before == now, "{name} was {before:?} and is {now:?}");
    }
    stage.kubelet().remove_manifest("static.yaml")?;
    stage.wait_until_gone("static-node-1")
}

fn what_was_deleted_while_no_kubelet_ran_goes(stage: &mut Stage) -> anyhow::Result<()> {
    // Somebody else has the last word on when its object goes.
    let once = json!({ "restartPolicy": "Never", "containers": [busybox("app", "exit 0")] });
    let mut done = pod("done", once);
    done["metadata"]["finalizers"] = json!(["example.com/held"]);
    stage.create_pod(&done)?;
    stage.wait_for_pod("done", "over", |pod| pod.phase == "Succeeded")?;
    stage.wait_until_at_rest()?;

    stage.kubelet_mut(0).sigkill()?;
    let bound =
        |name: &str, app: Value| pod(name, json!({ "nodeName": "node-1", "containers": [app] }));
    let sleeper = || busybox("app", "exec sleep 3600");
    let much = json!({ "resources": { "requests": { "cpu": "1000" } } });
    stage.create_pod(&bound("late", sleeper()))?;
    stage.create_pod(&bound("greedy", with(sleeper(), much)))?;
    for name in ["done", "late", "greedy"] {
        stage.kubectl(&["delete", "pod", name, "--wait=false"])?;
    }
    stage.kubelet_mut(0).start_again()?;
    stage.wait_until_gone("late")?;
    stage.wait_until_gone("greedy")?;
    let done = stage.wait_for_pod("done", "given up by the node", |pod| {
        pod.raw["metadata"]["deletionGracePeriodSeconds"] == 0
    })?;
    ensure!(done.phase == "Succeeded", "{}", done.raw["status"]);
    stage.merge(&stage.path("pods/done"), &json!({ "metadata": { "finalizers": null } }))?;
    stage.wait_until_gone("done")
}

/// The size of a trial, if the environment says something else than `usual`.
fn size(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn a_restart_beside_many_pods_writes_what_changed_and_nothing_else(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let pods = size("RUBELET_E2E_RESTART_PODS", 30);
    let probe = json!({ "periodSeconds": 5, "timeoutSeconds": 10, "tcpSocket": { "port": 7070 } });
    let probed = with(probe_target("app"), json!({ "readinessProbe": probe }));
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", stage.namespace());
    let sets = [
        ("plain", pods / 2, busybox("app", "exec sleep 3600")),
        ("probed", pods - pods / 2, probed),
    ];
    for (name, replicas, container) in sets {
        let deployment = json!({
            "metadata": { "name": name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": { "app": name } },
                "template": template(name, json!({ "containers": [container] })),
            },
        });
        stage.create(&path, &deployment)?;
    }
    // One of its two containers will end, and the pod go on.
    let two = json!([busybox("app", "exec sleep 3600"), busybox("other", "exec sleep 3600")]);
    let spec = json!({ "restartPolicy": "Never", "containers": two });
    stage.create_pod(&pod("changed", spec))?;
    stage.wait_for_pods(pods + 1, "ready", |pod| pod.ready)?;
    let before = stage.wait_until_at_rest()?;
    let node = stage.get("/api/v1/nodes/node-1")?;
    let since = condition(&node, "Ready")?["lastTransitionTime"].clone();

    let changed = id_of_app(&stage.pod("changed")?.context("no such pod")?)?;
    let group = stage.kubelet().runtime().cgroup().to_owned();
    let writes = Writes::watch(stage, pods + 1)?;
    stage.wait_for_renewals(1)?;
    let renewed = Instant::now();
    stage.kubelet_mut(0).sigkill()?;
    ensure!(kill_container(&group, &changed) > 0, "it has no process");
    stage.kubelet_mut(0).launch_again()?;
    stage.wait_for_renewals(1)?;
    let silent = renewed.elapsed();
    ensure!(silent < LEASE, "the lease was not renewed for {silent:?}");
    stage.wait_for_pod("changed", "not ready", |pod| !pod.ready && pod.phase == "Running")?;
    // Longer than the probes' period.
    stage.wait_for_renewals(4)?;
    let written = writes.end()?;
    ensure!(written == ["changed"], "{written:?}");
    let after = stage.versions()?;
    let rest = |versions: &BTreeMap<String, String>| {
        let mut versions = versions.clone();
        versions.retain(|name, _| name != "changed" && name != "node-1");
        versions
    };
    ensure!(rest(&before) == rest(&after), "{before:?} became {after:?}");
    // Nobody took the node for lost meanwhile.
    let node = stage.get("/api/v1/nodes/node-1")?;
    let ready = condition(&node, "Ready")?;
    ensure!(ready["status"] == "True" && ready["lastTransitionTime"] == since, "{ready}");
    Ok(())
}

/// Everything that is written of the trial's pods.
struct Writes {
    kubectl: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Writes {
    /// Looks on from now, when there are `count` pods.
    fn watch(stage: &Stage, count: usize) -> anyhow::Result<Self> {
        let mut command = stage.kubectl_command(&[
            "get",
            "pods",
            "--watch",
            "--output-watch-events",
            "--no-headers",
            "--output=custom-columns=TYPE:.type,NAME:.object.metadata.name",
        ]);
        let mut kubectl = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(kubectl.stdout.take().context("no stdout")?);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let writes = Self { kubectl, lines: Arc::clone(&lines) };
        // It ends with kubectl.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        wait_for("all pods to be watched", WAIT, || match writes.seen().len() {
            seen if seen >= count => Ok(()),
            seen => Err(format!("{seen} of {count}")),
        })?;
        writes.lines.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(writes)
    }

    fn seen(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The names of the pods that were written since, as often as they were.
    fn end(self) -> anyhow::Result<Vec<String>> {
        let name = |line: &String| line.split_whitespace().nth(1).map(str::to_owned);
        self.seen().iter().map(|line| name(line).with_context(|| line.clone())).collect()
    }
}

impl Drop for Writes {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

/// How many pods are rolled out, and how often the kubelet is killed meanwhile.
fn churn() -> (usize, usize) {
    (size("RUBELET_E2E_CHURN_PODS", 6), size("RUBELET_E2E_CHURN_KILLS", 5))
}

fn a_rollout_survives_a_kubelet_that_is_killed_again_and_again(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let (replicas, kills) = churn();
    let diary = stage.diary()?;
    // The containers' names of themselves: the runtime sets it to the pod's.
    let who = "$HOSTNAME";
    let mut service = Diary::service("app", who, ":");
    service["readinessProbe"] = Diary::has_started();
    service["env"] = json!([{ "name": "REVISION", "value": "0" }]);
    let spec = json!({
        "terminationGracePeriodSeconds": 60,
        "containers": [service],
        "volumes": [diary.volume()],
    });
    let deployment = json!({
        "metadata": { "name": "web" },
        "spec": {
            "replicas": replicas,
            "selector": { "matchLabels": { "app": "web" } },
            "strategy": { "rollingUpdate": { "maxSurge": "50%", "maxUnavailable": "50%" } },
            "template": template("web", spec),
        },
    });
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", stage.namespace());
    stage.create(&path, &deployment)?;
    let log = stage.kubelet().log_file();
    let size = || std::fs::metadata(&log).map_or(0, |file| file.len());
    let mut random = rand::rng();
    for round in 1..=kills {
        // Every few times there is something new to do.
        if round % 3 == 0 {
            stage.kubectl(&["set", "env", "deployment/web", &format!("REVISION={round}")])?;
        }
        // Any moment between its first line and a while later.
        let until = size() + random.random_range(500..40_000);
        let patience = Deadline::after(Duration::from_secs(5));
        let moment = wait_for("something to happen", WAIT, || {
            if size() >= until || patience.is_over() { Ok(()) } else { Err(String::new()) }
        });
        moment?;
        stage.kubelet_mut(0).sigkill()?;
        stage.kubelet_mut(0).launch_again()?;
    }
    stage.kubelet_mut(0).wait_until_healthy()?;
    stage.kubectl(&["rollout", "status", "deployment/web", "--timeout=240s"])?;
    let pods = stage.wait_for_pods(replicas, "ready", |pod| pod.ready)?;
    let lines = diary.lines("")?;
    ensure!(!lines.iter().any(|line| line.ends_with("overlap")), "{lines:#?}");
    let on_node = stage.kubelet().pods()?;
    for pod in &pods {
        // The runtime gives up the start of a container when the kubelet that asked for it is gone;
        // that is the only reason for another one.
        let app = &pod.raw["status"]["containerStatuses"][0];
        let starts = diary.times(&pod.name, "start")?.len() as u64;
        let before = &app["lastState"]["terminated"];
        // Of one that was given up before it was started there is no end to tell.
        let was_given_up =
            if before.is_null() { starts == 1 } else { before["reason"] == "StartError" };
        ensure!(pod.restarts() == 0 || was_given_up, "{starts} starts: {app}");
        ensure!((1..=pod.restarts() + 1).contains(&starts), "{starts} starts: {app}\n{lines:#?}");
        // No status was lost.
        let told = on_node.iter().find(|told| told.uid == pod.uid);
        let told = told.with_context(|| format!("the kubelet has no {}", pod.name))?;
        let same = told.ready == pod.ready
            && told.restarts() == pod.restarts()
            && id_of_app(told)? == id_of_app(pod)?;
        ensure!(same, "{} {app}", told.raw["status"]);
    }
    stage.delete(&format!("{path}/web"))?;
    stage.wait_until_nothing_is_left()
}
