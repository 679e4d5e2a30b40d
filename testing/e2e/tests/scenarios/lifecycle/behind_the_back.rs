//! Containers and sandboxes that end without the kubelet having asked for it.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rubelet_cri::v1;
use rubelet_e2e::manifest::{busybox, pod};
use rubelet_e2e::runner::Stage;
use rubelet_e2e::{
    Diary, KubeletProcess, RuntimeKind, find_container_processes, kill_container, wait_closely,
    wait_for,
};
use serde_json::json;

use super::{
    container, start_impatient_kubelet, status_of, wait_until_nothing_is_left, wait_until_stopped,
};
use crate::WAIT;
use crate::runtime::{wait_until_idle, with_cri};

const PODS: usize = 6;
/// Rounds that a noisy machine may spoil.
const ROUNDS: usize = 3;

pub(super) fn a_container_that_dies_is_seen_and_restarted_at_once(
    stage: &Stage,
) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let (typical, longest) = match stage.runtime().kind() {
        // With events the next look would be up to ten seconds away.
        RuntimeKind::Built => (Duration::from_millis(700), Duration::from_secs(3)),
        // Without events it is at most a second away.
        RuntimeKind::Debian => (Duration::from_millis(1500), Duration::from_secs(4)),
    };
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..PODS).map(|index| format!("r{round}-{index}")).collect();
        for name in &names {
            let spec = json!({ "containers": [busybox("app", "exec sleep 3600")] });
            kubelet.write_pod(&pod(name, spec))?;
        }
        for name in &names {
            kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
        }
        let mut seen = Vec::new();
        let mut restarted = Vec::new();
        for name in &names {
            let (saw, ran_again) = kill_and_watch(&kubelet, name)?;
            seen.push(saw);
            restarted.push(ran_again);
        }
        seen.sort_unstable();
        restarted.sort_unstable();
        rounds.push(format!("seen after {seen:.0?}, running again after {restarted:.0?}"));
        let (median, last) = (seen[PODS / 2], seen[PODS - 1]);
        if median <= typical && last <= longest {
            println!("{}: {}", stage.runtime().kind(), rounds.join("; "));
            return Ok(());
        }
        for name in &names {
            kubelet.remove_pod(name)?;
        }
        wait_until_idle(stage.runtime(), WAIT)?;
    }
    anyhow::bail!("not within {typical:?} typically and {longest:?} at most: {rounds:#?}")
}

/// Kills the only container of a pod; how long it took until the status knew, and until a new one
/// ran.
fn kill_and_watch(kubelet: &KubeletProcess, name: &str) -> anyhow::Result<(Duration, Duration)> {
    let pod = kubelet.pod(name)?.context("the pod is there")?;
    let old = container(&pod, "app")?.id.clone();
    let started = Instant::now();
    ensure!(kill_container(kubelet.runtime().cgroup(), &old) > 0, "{name} has no process");
    let look = |is_so: &dyn Fn(&rubelet_e2e::ContainerView) -> bool| {
        let pod = kubelet.pod(name).map_err(|error| format!("{error:#}"))?;
        let pod = pod.ok_or("it is gone")?;
        let app = pod.container("app").ok_or("it has no container")?;
        if is_so(app) { Ok(pod.clone()) } else { Err(pod.raw["status"].to_string()) }
    };
    wait_closely(&format!("{name}'s end to be seen"), WAIT, || {
        look(&|app| app.id != old || !app.is_running())
    })?;
    let seen = started.elapsed();
    let (pod, _) = wait_closely(&format!("{name} to run again"), WAIT, || {
        look(&|app| app.id != old && app.is_running())
    })?;
    let restarted = started.elapsed();
    assert_eq!(container(&pod, "app")?.restarts, 1, "{name}");
    let last = &status_of(&pod, "app")["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137, "{name}: {last}");
    ensure!(last["containerID"].as_str().is_some_and(|id| id.ends_with(&old)), "{name}: {last}");
    Ok((seen, restarted))
}

pub(super) fn a_container_deleted_by_ctr_while_it_terminates_does_not_hold_up_its_pod(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    // It would go on for a minute after it was asked to end.
    let stubborn = |name: &str| {
        let script = "trap 'note term' TERM; note start; while :; do sleep 1000 & wait $!; done";
        let spec = json!({
            "terminationGracePeriodSeconds": 60,
            "containers": [Diary::container("app", name, script)],
            "volumes": [diary.volume()],
        });
        pod(name, spec)
    };
    // One vanishes while its end is awaited, the other while it runs.
    kubelet.write_pod(&stubborn("terminating"))?;
    kubelet.write_pod(&stubborn("running"))?;
    let mut ids = Vec::new();
    for name in ["terminating", "running"] {
        diary.wait_for(name, "start", 1, WAIT)?;
        let pod = kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
        ids.push(container(&pod, "app")?.id.clone());
    }
    kubelet.remove_pod("terminating")?;
    diary.wait_for("terminating", "term", 1, WAIT)?;
    let started = Instant::now();
    for id in &ids {
        delete_behind_the_back(stage, id)?;
    }
    wait_until_stopped(&kubelet, "terminating")?;
    let took = started.elapsed();
    ensure!(took < Duration::from_secs(45), "the pod was held up for {took:?}");

    // What vanished from a pod that is wanted comes back, and counts.
    let pod = kubelet.wait_for_pod("running", "running again", WAIT, |pod| {
        pod.container("app").is_some_and(|app| app.is_running() && app.id != ids[1])
    })?;
    assert_eq!(container(&pod, "app")?.restarts, 1);
    let id = container(&pod, "app")?.id.clone();
    diary.wait_for("running", "start", 2, WAIT)?;
    kubelet.remove_pod("running")?;
    diary.wait_for("running", "term", 1, WAIT)?;
    kill_container(stage.runtime().cgroup(), &id);
    wait_until_nothing_is_left(&kubelet, WAIT)
}

/// Ends and deletes a container and its task with containerd's own tool, past the CRI.
fn delete_behind_the_back(stage: &Stage, id: &str) -> anyhow::Result<()> {
    let runtime = stage.runtime();
    ensure!(kill_container(runtime.cgroup(), id) > 0, "{id} has no process");
    wait_for(
        &format!("the processes of {id} to be gone"),
        WAIT,
        || match find_container_processes(runtime.cgroup(), id).len() {
            0 => Ok(()),
            left => Err(format!("{left} are left")),
        },
    )?;
    // The kubelet or the runtime may be faster; what counts is that it is gone.
    let _ = runtime.ctr(&["-n", "k8s.io", "tasks", "delete", "--force", id]);
    let _ = runtime.ctr(&["-n", "k8s.io", "containers", "delete", id]);
    let left = runtime.ctr(&["-n", "k8s.io", "containers", "list", "-q"])?;
    ensure!(!left.lines().any(|line| line == id), "{id} is still there");
    Ok(())
}

pub(super) fn a_killed_sandbox_is_replaced_and_the_pod_starts_anew(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let runs = |name: &str, who: &str| Diary::service(name, who, ":");
    let done = |name: &str, who: &str| Diary::container(name, who, "note done");
    let mut sidecar = runs("sidecar", "web/sidecar");
    sidecar["restartPolicy"] = json!("Always");
    sidecar["startupProbe"] = Diary::has_started();
    let web = json!({
        "initContainers": [done("one", "web/one"), sidecar, done("two", "web/two")],
        "containers": [runs("app", "web/app"), runs("other", "web/other")],
        "volumes": [diary.volume()],
    });
    let never = json!({
        "restartPolicy": "Never",
        "containers": [runs("app", "never/app")],
        "volumes": [diary.volume()],
    });
    kubelet.write_pod(&pod("web", web))?;
    kubelet.write_pod(&pod("never", never))?;
    let before = kubelet.wait_for_pod("web", "ready", WAIT, |pod| pod.ready)?;
    kubelet.wait_for_pod("never", "ready", WAIT, |pod| pod.ready)?;
    for who in ["web/app", "web/other", "web/sidecar", "never/app"] {
        diary.wait_for(who, "start", 1, WAIT)?;
    }
    let first_life = diary.lines("web/")?;
    for name in ["web", "never"] {
        kill_pause(stage, name)?;
    }

    let after = kubelet.wait_for_pod("web", "ready again", WAIT, |pod| {
        pod.ready && pod.restarts() > 0 && pod.container("app").is_some_and(|app| app.restarts > 0)
    })?;
    for name in ["sidecar", "app", "other"] {
        let (before, after) = (container(&before, name)?, container(&after, name)?);
        assert_eq!(after.restarts, 1, "{name}");
        assert_ne!(after.id, before.id, "{name}");
    }
    ensure!(after.ip.starts_with("10.244."), "its address is {:?}", after.ip);
    let sandboxes = sandboxes_of(stage, "web")?;
    let ready: Vec<u32> = sandboxes
        .iter()
        .filter(|sandbox| sandbox.state() == v1::PodSandboxState::SandboxReady)
        .filter_map(|sandbox| Some(sandbox.metadata.as_ref()?.attempt))
        .collect();
    assert_eq!(ready, [1], "one new sandbox");
    kubelet.wait_for_event("web", "SandboxChanged", "Pod sandbox changed", WAIT)?;

    // The second life has the order of the first, and nothing of the first overlaps with it.
    for who in ["web/app", "web/other"] {
        diary.wait_for(who, "start", 2, WAIT)?;
    }
    let lines = diary.lines("web/")?;
    let starts = |lines: &[String]| -> Vec<String> {
        let mut starts: Vec<String> = lines
            .iter()
            .filter(|line| line.ends_with(" start") || line.ends_with(" done"))
            .cloned()
            .collect();
        // The two regular containers start in any order.
        let regular = starts.len().saturating_sub(2);
        starts[regular..].sort();
        starts
    };
    let expected =
        ["web/one done", "web/sidecar start", "web/two done", "web/app start", "web/other start"];
    assert_eq!(starts(&first_life), expected);
    let second = lines[first_life.len()..].to_vec();
    assert_eq!(starts(&second), expected, "all of the second life: {second:?}");
    let restarted = second.iter().position(|line| line == "web/one done");
    let last_end = second.iter().rposition(|line| line.ends_with(" end"));
    ensure!(last_end < restarted, "the first life must be over before the second: {second:?}");

    // A pod that is never restarted is not started again, whatever it ended with.
    let never = kubelet.wait_for_pod("never", "ended", WAIT, |pod| {
        pod.phase == "Failed" || pod.phase == "Succeeded"
    })?;
    assert_eq!(never.restarts(), 0);
    assert_eq!(diary.times("never/app", "start")?.len(), 1);
    Ok(())
}

fn sandboxes_of(stage: &Stage, name: &str) -> anyhow::Result<Vec<v1::PodSandbox>> {
    let prefix = format!("{name}-");
    with_cri(stage.runtime(), |cri| async move {
        let mut sandboxes = cri.list_pod_sandbox(None).await?;
        sandboxes.retain(|sandbox| {
            sandbox.metadata.as_ref().is_some_and(|data| data.name.starts_with(&prefix))
        });
        Ok(sandboxes)
    })
}

/// Kills the first process of a pod's sandbox.
fn kill_pause(stage: &Stage, name: &str) -> anyhow::Result<()> {
    let sandboxes = sandboxes_of(stage, name)?;
    ensure!(sandboxes.len() == 1, "{name} has {} sandboxes", sandboxes.len());
    let killed = kill_container(stage.runtime().cgroup(), &sandboxes[0].id);
    ensure!(killed > 0, "the sandbox of {name} has no process");
    Ok(())
}
