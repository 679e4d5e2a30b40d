//! What kubectl shows of containers: their logs, and containers that it puts beside them.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::busybox;
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, pod};
use crate::{Ground, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    kubectl_shows_logs_as_it_is_asked_to,
    kubectl_debug_puts_a_container_beside_those_that_run,
];

fn kubectl_shows_logs_as_it_is_asked_to(stage: &mut Stage) -> anyhow::Result<()> {
    let script = "
        if ! [ -e /been/here ]; then touch /been/here; echo before; exit 3; fi
        i=1; while [ $i -le 20 ]; do echo line $i; i=$((i+1)); done
        while ! [ -e /been/enough ]; do sleep 0.1; done
        echo the end";
    let mut app = busybox("app", script);
    app["volumeMounts"] = json!([{ "name": "been", "mountPath": "/been" }]);
    let been = stage.kubelet().runtime().dir().join(format!("been-{}", stage.namespace()));
    std::fs::create_dir_all(&been)?;
    let spec = json!({
        "containers": [app],
        "initContainers": [busybox("setup", "echo prepared")],
        "volumes": [{ "name": "been", "hostPath": { "path": been } }],
        "restartPolicy": "OnFailure",
    });
    stage.create_pod(&pod("teller", spec))?;
    stage.wait_for_pod("teller", "on its second run", |pod| pod.restarts() == 1 && pod.ready)?;
    let logs = |args: &[&str]| stage.kubectl(&[&["logs", "teller"], args].concat());
    rubelet_e2e::wait_for("its lines", crate::WAIT, || match logs(&[]) {
        Ok(text) if text.lines().count() == 20 => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    ensure!(logs(&["--tail=2"])? == "line 19\nline 20\n");
    ensure!(logs(&["--limit-bytes=9"])? == "line 1\nli");
    ensure!(logs(&["--previous"])? == "before\n");
    ensure!(logs(&["--since=1h"])?.lines().count() == 20);
    ensure!(logs(&["--since-time=2099-01-01T00:00:00Z"])?.is_empty());
    ensure!(logs(&["--container=setup"])? == "prepared\n");
    let stamped = logs(&["--timestamps", "--tail=1"])?;
    let (time, text) = stamped.split_once(' ').context("no time")?;
    ensure!(text == "line 20\n" && time.contains('T') && time.contains('.'), "{stamped}");
    let all = logs(&["--all-containers", "--prefix"])?;
    ensure!(all.contains("[pod/teller/setup] prepared"), "{all}");
    ensure!(all.contains("[pod/teller/app] line 20"), "{all}");

    // The kubelet's own words reach the user.
    let refused = logs(&["--container=setup", "--previous"]).err().context("there is none")?;
    let text = "previous terminated container \"setup\" in pod \"teller\" not found";
    ensure!(format!("{refused:#}").contains(text), "{refused:#}");

    let followed = std::thread::scope(|scope| {
        let following = scope.spawn(|| logs(&["--follow", "--tail=1"]));
        std::fs::write(been.join("enough"), "")?;
        following.join().map_err(|_| anyhow::anyhow!("the follower panicked"))?
    })?;
    ensure!(followed == "line 20\nthe end\n" || followed == "the end\n", "{followed}");
    stage.wait_for_pod("teller", "at its end", |pod| pod.phase == "Succeeded")?;
    ensure!(logs(&["--follow", "--tail=1"])? == "the end\n", "an end is not waited for");
    Ok(())
}

fn kubectl_debug_puts_a_container_beside_those_that_run(stage: &mut Stage) -> anyhow::Result<()> {
    let spec = json!({
        "hostname": "debugged",
        "containers": [busybox("app", "exec sleep 3612"), busybox("other", "exec sleep 3613")],
    });
    stage.create_pod(&pod("subject", spec))?;
    let before = stage.wait_until_ready("subject")?;
    let debug = |name: &str, target: &[&str], script: &str| {
        let name = format!("--container={name}");
        let fixed = ["debug", "subject", "--image=busybox", "--image-pull-policy=Never", &name];
        stage.kubectl(&[&fixed, target, &["--", "sh", "-c", script]].concat())
    };
    let status = |pod: &rubelet_e2e::PodView, name: &str| -> Option<Value> {
        let statuses = pod.raw["status"]["ephemeralContainerStatuses"].as_array()?;
        statuses.iter().find(|status| status["name"] == name).cloned()
    };
    let has_ended = |pod: &rubelet_e2e::PodView, name: &str| {
        status(pod, name).is_some_and(|status| status["state"]["terminated"].is_object())
    };
    let look = "tr '\\0' ' ' < /proc/1/cmdline; echo; hostname; echo done; exit 4";
    debug("beside", &["--target=app"], look)?;
    let ended = stage.wait_for_pod("subject", "looked at", |pod| has_ended(pod, "beside"))?;
    let beside = status(&ended, "beside").context("no status")?;
    ensure!(beside["state"]["terminated"]["exitCode"] == 4, "{beside}");
    ensure!(beside["state"]["terminated"]["reason"] == "Error", "{beside}");
    ensure!(beside["restartCount"] == 0 && beside["ready"] == false, "{beside}");
    let seen = stage.kubectl(&["logs", "subject", "--container=beside"])?;
    ensure!(seen == "sleep 3612 \ndebugged\ndone\n", "it sees the target's processes: {seen}");

    // Without a target it has processes of its own, and it may go on.
    debug("alone", &[], "tr '\\0' ' ' < /proc/1/cmdline; echo; exec sleep 3614")?;
    let running = stage.wait_for_pod("subject", "joined", |pod| {
        status(pod, "alone").is_some_and(|status| status["state"]["running"].is_object())
    })?;
    rubelet_e2e::wait_for("what it sees", crate::WAIT, || {
        match stage.kubectl(&["logs", "subject", "--container=alone"]) {
            Ok(own) if own.starts_with("sh -c ") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    // One that cannot be is nobody's failure but its own.
    stage.kubectl(&[
        "debug",
        "subject",
        "--image=nothing.invalid/nothing",
        "--image-pull-policy=Never",
        "--container=impossible",
        "--",
        "true",
    ])?;
    let waiting = stage.wait_for_pod("subject", "tried in vain", |pod| {
        status(pod, "impossible")
            .is_some_and(|status| status["state"]["waiting"]["reason"] == "ErrImageNeverPull")
    })?;
    for pod in [&running, &waiting] {
        ensure!(pod.ready && pod.phase == "Running", "{}", pod.raw["status"]);
        ensure!(pod.restarts() == 0, "{}", pod.raw["status"]);
        for name in ["app", "other"] {
            let id = |pod: &rubelet_e2e::PodView| pod.container(name).map(|it| it.id.clone());
            ensure!(id(pod) == id(&before), "{name} was started again");
        }
    }
    stage.kubectl(&["delete", "pod", "subject", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()
}
