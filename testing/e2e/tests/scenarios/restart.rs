//! The kubelet and containerd end and come back, and pods do not notice.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rubelet_cri::v1;
use rubelet_e2e::manifest::{busybox, pod, probe_target, with};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{
    Deadline, Diary, KubeletOptions, KubeletProcess, PodView, kill_container, wait_closely,
    wait_for,
};
use serde_json::{Value, json};

use crate::WAIT;
use crate::lifecycle::{condition, wait_until_nothing_is_left, wait_until_stopped};
use crate::runtime::with_cri;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::on_all(
        "a_restart_of_the_kubelet_changes_nothing_about_its_pods",
        a_restart_of_the_kubelet_changes_nothing_about_its_pods,
    ),
    Scenario::on_all(
        "what_happened_while_no_kubelet_ran_is_made_up_for",
        what_happened_while_no_kubelet_ran_is_made_up_for,
    ),
    Scenario::on_all(
        "a_kubelet_killed_half_way_through_a_start_or_a_stop_finishes_it_later",
        a_kubelet_killed_half_way_through_a_start_or_a_stop_finishes_it_later,
    ),
    Scenario::on_all(
        "a_restart_of_containerd_restarts_no_container",
        a_restart_of_containerd_restarts_no_container,
    ),
    Scenario::on_debian(
        "what_happened_while_containerd_was_away_is_made_up_for",
        what_happened_while_containerd_was_away_is_made_up_for,
    ),
    Scenario::on_debian(
        "a_kubelet_started_before_containerd_waits_for_it",
        a_kubelet_started_before_containerd_waits_for_it,
    ),
    Scenario::on_built(
        "the_lock_file_hands_the_node_over_from_one_kubelet_to_the_next",
        the_lock_file_hands_the_node_over_from_one_kubelet_to_the_next,
    ),
];

fn start(stage: &Stage) -> anyhow::Result<(KubeletProcess, Diary)> {
    let mut options = stage.kubelet_options();
    options.config = json!({ "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" } });
    let kubelet = stage.start_kubelet_with(options)?;
    let diary = Diary::create(&kubelet.manifests().with_file_name("diary"))?;
    Ok((kubelet, diary))
}

fn sleeper() -> Value {
    busybox("app", "exec sleep 3600")
}

/// A pod with one container that tells when it starts and ends, and exits with 0 when asked to end.
fn service(name: &str, diary: &Diary) -> Value {
    let containers = [Diary::service("app", name, ":")];
    let spec = json!({ "containers": containers, "volumes": [diary.volume()] });
    pod(name, with(spec, json!({ "terminationGracePeriodSeconds": 20 })))
}

fn id_of(pod: &PodView) -> Option<String> {
    pod.container("app").map(|app| app.id.clone())
}

/// Pods of many kinds, all of which come to rest.
fn pods_at_rest(diary: &Diary) -> Vec<Value> {
    // A busy machine may take its time for a probe.
    let every = |seconds: u32, probe: Value| {
        with(json!({ "periodSeconds": seconds, "timeoutSeconds": 10 }), probe)
    };
    let http = every(1, json!({ "httpGet": { "path": "/", "port": 8080 } }));
    let probed = with(
        probe_target("app"),
        json!({
            "startupProbe": with(http.clone(), json!({ "failureThreshold": 30 })),
            "readinessProbe": http,
            "livenessProbe": every(1, json!({ "tcpSocket": { "port": 7070 } })),
        }),
    );
    let exec = every(1, json!({ "exec": { "command": ["true"] } }));
    let slow = every(60, json!({ "exec": { "command": ["true"] } }));
    let sidecar = with(
        busybox("sidecar", "exec sleep 3600"),
        json!({ "restartPolicy": "Always", "startupProbe": exec }),
    );
    let scratch = json!([{ "name": "scratch", "emptyDir": { "medium": "Memory" } }]);
    let mounts = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    let flaky = "[ -e /diary/rest ] && exit 0; touch /diary/rest; exit 1";
    vec![
        pod("plain", json!({ "containers": [sleeper(), busybox("other", "exec sleep 3600")] })),
        pod("probed", json!({ "containers": [probed] })),
        pod("slow", json!({ "containers": [with(sleeper(), json!({ "readinessProbe": slow }))] })),
        pod(
            "sidecar",
            json!({ "initContainers": [busybox("init", "exit 0"), sidecar], "containers": [sleeper()] }),
        ),
        pod("host", json!({ "hostNetwork": true, "containers": [sleeper()] })),
        pod(
            "memory",
            json!({ "volumes": scratch, "containers": [with(sleeper(), json!({ "volumeMounts": mounts }))] }),
        ),
        pod(
            "succeeded",
            json!({
                "restartPolicy": "OnFailure",
                "containers": [Diary::container("app", "succeeded", flaky)],
                "volumes": [diary.volume()],
            }),
        ),
        pod(
            "failed",
            json!({ "restartPolicy": "Never", "containers": [busybox("app", "exit 3")] }),
        ),
        pod(
            "half",
            json!({
                "restartPolicy": "OnFailure",
                "containers": [sleeper(), busybox("done", "exit 0")],
            }),
        ),
        pod(
            "never-ready",
            json!({
                "containers": [with(sleeper(), json!({
                    "readinessProbe": { "tcpSocket": { "port": 1 }, "periodSeconds": 1 },
                }))],
            }),
        ),
    ]
}

/// The status of each pod by its uid.
fn statuses(kubelet: &KubeletProcess) -> anyhow::Result<BTreeMap<String, Value>> {
    let pods = kubelet.pods()?;
    Ok(pods.into_iter().map(|pod| (pod.uid, pod.raw["status"].clone())).collect())
}

/// Waits until all pods are as they will stay.
fn wait_for_rest(kubelet: &KubeletProcess) -> anyhow::Result<BTreeMap<String, Value>> {
    for name in ["plain", "probed", "slow", "sidecar", "host", "memory"] {
        kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
    }
    for (name, phase) in [("succeeded", "Succeeded"), ("failed", "Failed")] {
        kubelet.wait_for_pod(name, "over, and its sandbox, too", WAIT, |pod| {
            pod.phase == phase && condition(pod, "PodReadyToStartContainers")["status"] == "False"
        })?;
    }
    kubelet.wait_for_pod("half", "half done", WAIT, |pod| {
        pod.container("app").is_some_and(|app| app.is_running())
            && pod.container("done").is_some_and(|done| done.state == "terminated")
    })?;
    kubelet.wait_for_pod("never-ready", "running", WAIT, |pod| pod.phase == "Running")?;
    statuses(kubelet)
}

/// Looks at the pods for as long as `deadline` allows: whatever is shown is as it was before.
fn ensure_nothing_changes(
    kubelet: &KubeletProcess,
    before: &BTreeMap<String, Value>,
    deadline: Deadline,
) -> anyhow::Result<()> {
    let mut shown = 0;
    wait_closely("the time to be over", WAIT, || {
        // It need not answer from the first moment on.
        let now = statuses(kubelet).unwrap_or_default();
        for (uid, status) in &now {
            if before.get(uid) != Some(status) {
                return Ok(Err((before.get(uid).cloned(), status.clone())));
            }
        }
        shown = shown.max(now.len());
        // They are shown as soon as the manifests are read.
        match deadline.is_over() && shown == before.len() {
            true => Ok(Ok(())),
            false => Err(format!("{} pods are shown of {}", now.len(), before.len())),
        }
    })?
    .0
    .map_err(|(was, is)| {
        anyhow::anyhow!("a status changed\nfrom {was:?}\nto   {is}\n{}", kubelet.log_tail(25))
    })
}

fn a_restart_of_the_kubelet_changes_nothing_about_its_pods(stage: &Stage) -> anyhow::Result<()> {
    let (mut kubelet, diary) = start(stage)?;
    for pod in pods_at_rest(&diary) {
        kubelet.write_pod(&pod)?;
    }
    let before = wait_for_rest(&kubelet)?;
    assert_eq!(before.len(), pods_at_rest(&diary).len());
    for round in 0..4 {
        if round % 2 == 0 {
            kubelet.stop()?;
        } else {
            kubelet.sigkill()?;
        }
        kubelet.start_again()?;
        ensure_nothing_changes(&kubelet, &before, Deadline::after(Duration::from_secs(4)))
            .with_context(|| format!("restart number {round}"))?;
    }
    // It still looks after them.
    let plain = kubelet.pod("plain")?.context("it is there")?;
    let id = id_of(&plain).context("it has an id")?;
    ensure!(kill_container(stage.runtime().cgroup(), &id) > 0, "no process of plain");
    let plain = kubelet.wait_for_pod("plain", "restarted", WAIT, |pod| {
        pod.ready && pod.container("app").is_some_and(|app| app.restarts == 1)
    })?;
    assert_eq!(plain.container("other").map(|other| other.restarts), Some(0));
    Ok(())
}

fn what_happened_while_no_kubelet_ran_is_made_up_for(stage: &Stage) -> anyhow::Result<()> {
    let (mut kubelet, diary) = start(stage)?;
    let once = |name: &str| {
        let script = "note start; until [ -e /diary/finish ]; do sleep 0.1; done; note end";
        let containers = [Diary::container("app", name, script)];
        let spec = json!({ "restartPolicy": "Never", "containers": containers, "volumes": [diary.volume()] });
        pod(name, spec)
    };
    for name in ["stays", "changed", "removed", "died"] {
        kubelet.write_pod(&service(name, &diary))?;
    }
    kubelet.write_pod(&once("finished"))?;
    kubelet.write_pod(&once("long-finished"))?;
    let mut ids = BTreeMap::new();
    for name in ["stays", "changed", "removed", "died", "finished", "long-finished"] {
        diary.wait_for(name, "start", 1, WAIT)?;
        let pod = kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
        ids.insert(name, id_of(&pod));
    }
    kubelet.sigkill()?;

    let changed = with(
        service("changed", &diary),
        json!({
            "metadata": { "name": "changed", "labels": { "new": "yes" } },
        }),
    );
    kubelet.write_pod(&changed)?;
    kubelet.write_pod(&service("added", &diary))?;
    kubelet.remove_pod("removed")?;
    let died = ids["died"].clone().context("it has an id")?;
    ensure!(kill_container(stage.runtime().cgroup(), &died) > 0, "no process of died");
    std::fs::write(diary.dir().join("finish"), "")?;
    diary.wait_for("finished", "end", 1, WAIT)?;
    diary.wait_for("long-finished", "end", 1, WAIT)?;
    kubelet.start_again()?;

    let finished = kubelet.wait_for_pod("finished", "done", WAIT, |p| p.phase == "Succeeded")?;
    assert_eq!(id_of(&finished), ids["finished"]);
    kubelet.wait_for_pod("long-finished", "done", WAIT, |pod| pod.phase == "Succeeded")?;
    kubelet.wait_for_pod("added", "ready", WAIT, |pod| pod.ready)?;
    let died = kubelet.wait_for_pod("died", "restarted", WAIT, |p| p.ready && p.restarts() == 1)?;
    let last = &died.raw["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{last}");
    let changed = kubelet.wait_for_pod("changed", "the new one", WAIT, |pod| {
        pod.ready && pod.raw["metadata"]["labels"]["new"] == "yes"
    })?;
    assert_eq!(changed.restarts(), 0);
    diary.wait_for("changed", "start", 2, WAIT)?;
    diary.wait_for("removed", "end", 1, WAIT)?;
    assert_eq!(
        diary.lines("changed")?,
        ["changed start", "changed term", "changed end", "changed start"]
    );
    ensure!(kubelet.pod("removed")?.is_none(), "nobody wants it");
    let stays = kubelet.pod("stays")?.context("it is there")?;
    assert_eq!((id_of(&stays), stays.ready), (ids["stays"].clone(), true));
    for name in ["finished", "long-finished"] {
        assert_eq!(diary.times(name, "start")?.len(), 1, "{name} ran to its end once");
    }

    // What is over stays over, also after a second start, and goes with its manifest.
    kubelet.restart()?;
    kubelet.wait_for_pod("finished", "done", WAIT, |pod| pod.phase == "Succeeded")?;
    assert_eq!(diary.times("finished", "start")?.len(), 1);
    for name in ["stays", "changed", "died", "finished", "long-finished", "added"] {
        kubelet.remove_pod(name)?;
    }
    wait_until_nothing_is_left(&kubelet, WAIT)
}

fn sandboxes(stage: &Stage, name: &str) -> anyhow::Result<Vec<v1::PodSandbox>> {
    let prefix = format!("{name}-");
    with_cri(stage.runtime(), |cri| async move {
        let mut sandboxes = cri.list_pod_sandbox(None).await?;
        sandboxes.retain(|sandbox| {
            sandbox.metadata.as_ref().is_some_and(|data| data.name.starts_with(&prefix))
        });
        Ok(sandboxes)
    })
}

fn containers(stage: &Stage) -> anyhow::Result<usize> {
    with_cri(stage.runtime(), |cri| async move { Ok(cri.list_containers(None).await?.len()) })
}

/// Holds the kubelet still as soon as the runtime works on its first sandbox, kills it when the
/// sandbox is there, and so catches it before it has made a container.
fn kill_between_sandbox_and_container(
    stage: &Stage,
    kubelet: &mut KubeletProcess,
) -> anyhow::Result<()> {
    for attempt in 0..10 {
        let name = format!("caught-{attempt}");
        // The first sign of a sandbox is its directory in the runtime's state.
        let state = stage.runtime().state_dir().join("io.containerd.runtime.v2.task");
        let count = || {
            let entries = std::fs::read_dir(state.join("k8s.io")).into_iter().flatten();
            entries.flatten().count()
        };
        let before = count();
        kubelet.write_pod(&pod(&name, json!({ "containers": [sleeper()] })))?;
        wait_closely("a sandbox in the making", WAIT, || match count() {
            now if now > before => Ok(()),
            now => Err(format!("{now} tasks")),
        })?;
        kubelet.freeze();
        let ready = wait_for("the sandbox to be ready", Duration::from_secs(40), || {
            let sandboxes = sandboxes(stage, &name).map_err(|error| format!("{error:#}"))?;
            match sandboxes.first().map(v1::PodSandbox::state) {
                Some(v1::PodSandboxState::SandboxReady) => Ok(()),
                state => Err(format!("it is {state:?}")),
            }
        });
        let caught = ready.is_ok() && containers(stage)? == 0;
        kubelet.sigkill()?;
        if caught {
            return Ok(());
        }
        kubelet.remove_pod(&name)?;
        kubelet.start_again()?;
        wait_until_nothing_is_left(kubelet, WAIT)?;
    }
    bail!("it was always too fast")
}

fn a_kubelet_killed_half_way_through_a_start_or_a_stop_finishes_it_later(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (mut kubelet, diary) = start(stage)?;
    kill_between_sandbox_and_container(stage, &mut kubelet)?;
    let caught = sandboxes(stage, "caught")?;
    kubelet.start_again()?;
    let names: Vec<String> =
        caught.iter().filter_map(|sandbox| Some(sandbox.metadata.as_ref()?.name.clone())).collect();
    let pod_is_there = || -> Result<PodView, String> {
        let pods = kubelet.pods().map_err(|error| format!("{error:#}"))?;
        let caught = pods.into_iter().find(|pod| names.contains(&pod.name) && pod.ready);
        caught.ok_or_else(|| kubelet.log_tail(20))
    };
    let pod = wait_for("the pod to run after all", WAIT, pod_is_there)?;
    ensure!(pod.ip.starts_with("10.244."), "its address is {:?}", pod.ip);
    assert_eq!(pod.restarts(), 0);
    let after: Vec<String> =
        sandboxes(stage, "caught")?.into_iter().map(|sandbox| sandbox.id).collect();
    assert_eq!(after, caught.into_iter().map(|sandbox| sandbox.id).collect::<Vec<_>>());
    assert_eq!(containers(stage)?, 1, "the sandbox is used, and its container made once");
    std::fs::remove_dir_all(kubelet.manifests())?;
    std::fs::create_dir(kubelet.manifests())?;

    // Killed while an init container runs, and while a preStop hook does.
    let init = "note start; until [ -e /diary/go ]; do sleep 0.1; done; note end";
    let starting = json!({
        "initContainers": [
            Diary::container("one", "starting/one", "note ran"),
            Diary::container("two", "starting/two", init),
        ],
        "containers": [Diary::service("app", "starting/app", ":")],
        "volumes": [diary.volume()],
    });
    kubelet.write_pod(&rubelet_e2e::manifest::pod("starting", starting))?;
    let hook = Diary::script("stopping", "note hook; sleep 3600");
    let mut stopping = service("stopping", &diary);
    stopping["spec"]["containers"][0]["lifecycle"] =
        json!({ "preStop": { "exec": { "command": ["sh", "-c", hook] } } });
    kubelet.write_pod(&stopping)?;
    diary.wait_for("starting/two", "start", 1, WAIT)?;
    kubelet.wait_for_pod("stopping", "ready", WAIT, |pod| pod.ready)?;
    diary.wait_for("stopping", "start", 1, WAIT)?;
    kubelet.remove_pod("stopping")?;
    diary.wait_for("stopping", "hook", 1, WAIT)?;
    kubelet.sigkill()?;
    kubelet.start_again()?;
    diary.wait_for("stopping", "end", 1, WAIT)?;
    wait_until_stopped(&kubelet, "stopping")?;
    kubelet.wait_for_pod("starting", "known again", WAIT, |pod| {
        pod.container("two").is_some_and(|two| two.is_running())
    })?;
    std::fs::write(diary.dir().join("go"), "")?;
    let starting = kubelet.wait_for_pod("starting", "ready", WAIT, |pod| pod.ready)?;
    assert_eq!(starting.restarts(), 0);
    diary.wait_for("starting/app", "start", 1, WAIT)?;
    assert_eq!(
        diary.lines("starting/")?,
        ["starting/one ran", "starting/two start", "starting/two end", "starting/app start"],
        "what had run did not run again"
    );
    kubelet.remove_pod("starting")?;
    wait_until_nothing_is_left(&kubelet, WAIT)
}

fn a_restart_of_containerd_restarts_no_container(stage: &Stage) -> anyhow::Result<()> {
    let (kubelet, diary) = start(stage)?;
    for pod in pods_at_rest(&diary) {
        kubelet.write_pod(&pod)?;
    }
    let before = wait_for_rest(&kubelet)?;
    for _ in 0..2 {
        stage.runtime().kill_containerd()?;
        stage.runtime().start_containerd()?;
        ensure_nothing_changes(&kubelet, &before, Deadline::after(Duration::from_secs(3)))?;
        assert_eq!(kubelet.get(10248, "/healthz")?.0, 200);
    }
    kubelet.write_pod(&pod("new", json!({ "containers": [sleeper()] })))?;
    let new = kubelet.wait_for_pod("new", "ready", WAIT, |pod| pod.ready)?;
    // Events come again, too: an end is seen.
    let id = id_of(&new).context("it has an id")?;
    ensure!(kill_container(stage.runtime().cgroup(), &id) > 0, "no process of new");
    kubelet.wait_for_pod("new", "restarted", WAIT, |pod| pod.ready && pod.restarts() == 1)?;
    Ok(())
}

fn what_happened_while_containerd_was_away_is_made_up_for(stage: &Stage) -> anyhow::Result<()> {
    let (kubelet, diary) = start(stage)?;
    for name in ["stays", "changed", "removed", "died"] {
        kubelet.write_pod(&service(name, &diary))?;
    }
    let every_second = json!({ "periodSeconds": 1, "timeoutSeconds": 10 });
    let exec = json!({ "exec": { "command": ["true"] } });
    let http = json!({ "httpGet": { "path": "/", "port": 8080 } });
    let probed = with(
        probe_target("app"),
        json!({
            "readinessProbe": with(every_second.clone(), exec),
            "livenessProbe": with(every_second, http),
        }),
    );
    kubelet.write_pod(&pod("probed", json!({ "containers": [probed] })))?;
    let mut ids = BTreeMap::new();
    let mut quiet = BTreeMap::new();
    for name in ["stays", "changed", "removed", "died", "probed"] {
        let pod = kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
        ids.insert(name, id_of(&pod).context("it has an id")?);
        if matches!(name, "stays" | "probed") {
            quiet.insert(pod.uid.clone(), pod.raw["status"].clone());
        }
    }
    for name in ["stays", "changed", "removed", "died"] {
        diary.wait_for(name, "start", 1, WAIT)?;
    }

    stage.runtime().kill_containerd()?;
    let away = Deadline::after(Duration::from_secs(10));
    let killed = kill_container(stage.runtime().cgroup(), &ids["died"]);
    ensure!(killed > 0, "no process of died");
    kubelet.remove_pod("removed")?;
    kubelet.write_pod(&service("added", &diary))?;
    let labels = json!({ "metadata": { "name": "changed", "labels": { "new": "yes" } } });
    kubelet.write_pod(&with(service("changed", &diary), labels))?;
    // An exec probe that cannot be run says nothing about its container.
    wait_for("ten seconds without containerd", WAIT, || {
        let now = statuses(&kubelet).map_err(|error| format!("{error:#}"))?;
        let disturbed = quiet.iter().find(|(uid, status)| now.get(*uid) != Some(status));
        match disturbed {
            Some((uid, status)) => Ok(Err(format!("from {status}\nto {:?}", now.get(uid)))),
            None if away.is_over() => Ok(Ok(())),
            None => Err("it is not over".to_owned()),
        }
    })?
    .map_err(|changed| anyhow::anyhow!("a status changed without containerd: {changed}"))?;
    assert_eq!(kubelet.get(10248, "/healthz")?.0, 200);
    stage.runtime().start_containerd()?;

    kubelet.wait_for_pod("added", "ready", WAIT, |pod| pod.ready)?;
    wait_until_stopped(&kubelet, "removed")?;
    let died =
        kubelet.wait_for_pod("died", "restarted", WAIT, |pod| pod.ready && pod.restarts() > 0)?;
    assert_eq!(died.restarts(), 1);
    kubelet.wait_for_pod("changed", "the new one", WAIT, |pod| {
        pod.ready && pod.raw["metadata"]["labels"]["new"] == "yes"
    })?;
    diary.wait_for("changed", "start", 2, WAIT)?;
    assert_eq!(
        diary.lines("changed")?,
        ["changed start", "changed term", "changed end", "changed start"]
    );
    assert_eq!(diary.lines("removed")?, ["removed start", "removed term", "removed end"]);
    let now = statuses(&kubelet)?;
    for (uid, status) in &quiet {
        assert_eq!(now.get(uid), Some(status), "it was not concerned");
    }
    Ok(())
}

fn a_kubelet_started_before_containerd_waits_for_it(stage: &Stage) -> anyhow::Result<()> {
    stage.runtime().kill_containerd()?;
    let (kubelet, diary) = start(stage)?;
    kubelet.write_pod(&service("patient", &diary))?;
    assert_eq!(kubelet.get(10248, "/healthz")?.0, 200, "it is healthy while it waits");
    wait_for("a word about the runtime", WAIT, || {
        let log = kubelet.log_tail(50);
        if log.contains("runtime does not answer") { Ok(()) } else { Err(log) }
    })?;
    stage.runtime().start_containerd()?;
    let patient = kubelet.wait_for_pod("patient", "ready", WAIT, |pod| pod.ready)?;
    assert_eq!(patient.restarts(), 0);
    kubelet.remove_pod("patient")?;
    wait_until_nothing_is_left(&kubelet, WAIT)
}

fn the_lock_file_hands_the_node_over_from_one_kubelet_to_the_next(
    stage: &Stage,
) -> anyhow::Result<()> {
    let mut options = stage.kubelet_options();
    let lock = format!("--lock-file={}", stage.runtime().dir().join("kubelet.lock").display());
    let waiting = KubeletOptions { args: vec![lock.clone()], ..options.clone() };
    options.args = vec![lock, "--exit-on-lock-contention".to_owned()];
    let mut first = stage.start_kubelet_with(options.clone())?;
    let diary = Diary::create(&first.manifests().with_file_name("diary"))?;
    first.write_pod(&service("stays", &diary))?;
    diary.wait_for("stays", "start", 1, WAIT)?;
    let stays = first.wait_for_pod("stays", "ready", WAIT, |pod| pod.ready)?;

    // It gives way to whoever wants the lock, and its pods do not notice.
    let mut second = KubeletProcess::launch(stage.runtime(), options)?;
    let ended = first.wait_for_end(WAIT)?;
    ensure!(ended.success(), "it ended with {ended}");
    second.wait_until_healthy()?;
    let ensure_it_stayed = |kubelet: &KubeletProcess| -> anyhow::Result<()> {
        let now = kubelet.wait_for_pod("stays", "known", WAIT, |pod| pod.ready)?;
        assert_eq!((id_of(&now), now.restarts()), (id_of(&stays), 0));
        Ok(())
    };
    ensure_it_stayed(&second)?;
    second.write_pod(&pod("new", json!({ "containers": [sleeper()] })))?;
    second.wait_for_pod("new", "ready", WAIT, |pod| pod.ready)?;

    // Without the other flag it keeps the lock, and the next one waits for its end.
    second.options_mut().args.clone_from(&waiting.args);
    second.restart()?;
    let log = second.log_file();
    let asked = || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        log.matches("Acquiring file lock").count()
    };
    let before = asked();
    let mut third = KubeletProcess::launch(stage.runtime(), waiting)?;
    wait_for("the third to ask for the lock", WAIT, || match asked() {
        count if count > before => Ok(()),
        count => Err(format!("the lock was asked for {count} times")),
    })?;
    assert_eq!(second.get(10248, "/healthz")?.0, 200, "the second goes on");
    ensure_it_stayed(&second)?;
    second.stop()?;
    third.wait_until_healthy()?;
    ensure_it_stayed(&third)?;
    assert_eq!(diary.lines("stays")?, ["stays start"]);
    third.remove_pod("stays")?;
    third.remove_pod("new")?;
    wait_until_nothing_is_left(&third, WAIT)
}
