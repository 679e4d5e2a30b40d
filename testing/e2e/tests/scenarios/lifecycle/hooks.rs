//! What is run right after a container's start and right before its end.

use std::net::IpAddr;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, probe_target, with};
use rubelet_e2e::runner::Stage;
use rubelet_e2e::{Diary, KubeletProcess, PodView, uptime};
use serde_json::{Value, json};

use super::stopping::{Watched, time_of_death};
use super::{ensure_within, start_impatient_kubelet, status_of, wait_until_stopped};
use crate::WAIT;
use crate::runtime::wait_until_idle;

fn exec_hook(who: &str, script: &str) -> Value {
    json!({ "exec": { "command": ["sh", "-c", Diary::script(who, script)] } })
}

fn hooked(container: Value, event: &str, hook: Value) -> Value {
    with(container, json!({ "lifecycle": { event: hook } }))
}

/// A pod that writes into its log what hooks ask of it.
fn start_listener(kubelet: &KubeletProcess) -> anyhow::Result<(PodView, IpAddr)> {
    kubelet.write_pod(&pod("listener", json!({ "containers": [probe_target("app")] })))?;
    let listener = kubelet.wait_for_pod("listener", "ready", WAIT, |pod| pod.ready)?;
    kubelet.wait_for_log(&listener, "app", "http on", WAIT)?;
    let address = listener.ip.parse().context("the listener has no address")?;
    Ok((listener, address))
}

pub(super) fn a_post_start_hook_holds_back_the_next_container_and_its_failure_kills(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let (listener, address) = start_listener(&kubelet)?;
    let two = |name: &str, hook: Value| {
        let first =
            Diary::container("a-first", &format!("{name}/first"), "note start; exec sleep 3600");
        let second =
            Diary::container("b-second", &format!("{name}/second"), "note start; exec sleep 3600");
        let containers = [hooked(first, "postStart", hook), second];
        let spec = json!({ "containers": containers, "volumes": [diary.volume()] });
        // A hook may sleep for as long as the pod may take to end.
        pod(name, with(spec, json!({ "terminationGracePeriodSeconds": 3 })))
    };
    let script = "note hook; sleep 2; note hooked";
    kubelet.write_pod(&two("exec", exec_hook("exec/first", script)))?;
    kubelet.write_pod(&two("sleep", json!({ "sleep": { "seconds": 2 } })))?;
    let http = json!({ "httpGet": { "host": address, "port": 8080, "path": "/set/http/418" } });
    kubelet.write_pod(&two("http", http))?;
    // Fails the first time: the container is killed, and what follows waits for its next start.
    let flaky = "[ -e /diary/tried ] || { touch /diary/tried; echo no luck; exit 1; }; note hooked";
    kubelet.write_pod(&two("flaky", exec_hook("flaky/first", flaky)))?;

    for name in ["exec", "sleep", "http"] {
        let pod = kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
        assert_eq!(pod.restarts(), 0, "{name}");
        diary.wait_for(&format!("{name}/second"), "start", 1, WAIT)?;
    }
    // The hook runs beside the container's own process, and may be faster.
    let mut exec = diary.lines("exec/")?;
    exec[..2].sort();
    assert_eq!(
        exec,
        ["exec/first hook", "exec/first start", "exec/first hooked", "exec/second start"]
    );
    let [first, second] = ["sleep/first", "sleep/second"].map(|who| diary.times(who, "start"));
    ensure_within("the hook that sleeps", second?[0] - first?[0], 1.9, 20.0)?;
    kubelet.wait_for_log(&listener, "app", "http answers 418 from now on", WAIT)?;

    let flaky =
        kubelet.wait_for_pod("flaky", "ready", WAIT, |pod| pod.ready && pod.restarts() == 1)?;
    let last = &status_of(&flaky, "a-first")["lastState"]["terminated"];
    ensure!(last["exitCode"] == 137, "it was not killed: {last}");
    // It ran, so it is the first restart of a crash, which waits for nothing but its end.
    let starts = diary.times("flaky/first", "start")?;
    ensure_within("the first restart", starts[1] - starts[0], 0.0, 20.0)?;
    let event = kubelet.wait_for_event("flaky", "FailedPostStartHook", "", WAIT)?;
    assert_eq!(event.message, "PostStartHook failed");
    Ok(())
}

pub(super) fn a_pre_stop_hook_runs_inside_the_grace_period(stage: &Stage) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let (listener, address) = start_listener(&kubelet)?;
    let with_grace = |name: &str, grace: u32, containers: Vec<Value>| {
        let spec = json!({
            "terminationGracePeriodSeconds": grace,
            "containers": containers,
            "volumes": [diary.volume()],
        });
        pod(name, spec)
    };
    let obedient =
        |name: &str, hook: Value| hooked(Diary::service("app", name, ":"), "preStop", hook);
    // A first process that minds no SIGTERM does not get it.
    let hung = Diary::container("app", "hung", "note start; exec sleep 3600");
    // Slow enough for two of them to run side by side on a busy machine.
    let slow_hook = |who: &str| exec_hook(who, "note hook; sleep 3; note hooked");
    let both = ["one", "two"].map(|name| {
        let who = format!("both/{name}");
        hooked(Diary::service(name, &who, ":"), "preStop", slow_hook(&who))
    });
    let over = hooked(busybox("app", "exit 0"), "preStop", exec_hook("over", "note hook"));
    let http = json!({ "httpGet": { "host": address, "port": 8080, "path": "/set/grpc/off" } });
    for pod in [
        with_grace("exec", 20, vec![obedient("exec", slow_hook("exec"))]),
        with_grace("sleep", 20, vec![obedient("sleep", json!({ "sleep": { "seconds": 2 } }))]),
        with_grace("http", 20, vec![obedient("http", http)]),
        with_grace("fails", 20, vec![obedient("fails", exec_hook("fails", "note hook; exit 3"))]),
        with_grace(
            "hung",
            6,
            vec![hooked(hung, "preStop", exec_hook("hung", "note hook; sleep 86400"))],
        ),
        with_grace("both", 20, both.to_vec()),
    ] {
        kubelet.write_pod(&pod)?;
    }
    let mut ended =
        with_grace("over", 20, vec![with(over, json!({ "volumeMounts": [Diary::mount()] }))]);
    ended["spec"]["restartPolicy"] = json!("Never");
    kubelet.write_pod(&ended)?;
    for who in ["exec", "sleep", "http", "fails", "hung", "both/one", "both/two"] {
        diary.wait_for(who, "start", 1, WAIT)?;
    }
    kubelet.wait_for_pod("over", "over", WAIT, |pod| pod.phase == "Succeeded")?;
    let hung = Watched::find(&kubelet, "hung")?;
    let before = diary.lines("")?.len();

    let removed = uptime()?;
    for name in ["exec", "sleep", "http", "fails", "hung", "both", "over"] {
        kubelet.remove_pod(name)?;
    }
    let killed = time_of_death(stage, &hung)? - removed;
    // The hook is given up when the grace period is over; SIGTERM is left two seconds then.
    ensure_within("the end of a hung hook", killed, 6.0, 16.0)?;
    for name in ["exec", "sleep", "http", "fails", "hung", "both", "over"] {
        wait_until_stopped(&kubelet, name)?;
    }

    assert_eq!(diary.lines("exec")?[1..], ["exec hook", "exec hooked", "exec term", "exec end"]);
    ensure_within("sleeping", diary.times("sleep", "term")?[0] - removed, 1.9, 12.0)?;
    assert_eq!(diary.lines("fails")?[1..], ["fails hook", "fails term", "fails end"]);
    ensure_within("a failed hook", diary.times("fails", "term")?[0] - removed, 0.0, 12.0)?;
    kubelet.wait_for_event("fails", "FailedPreStopHook", "PreStopHook failed", WAIT)?;
    kubelet.wait_for_log(&listener, "app", "grpc is off from now on", WAIT)?;
    assert_eq!(diary.times("http", "term")?.len(), 1);
    let ended = diary.times("both/one", "hooked")?[0].min(diary.times("both/two", "hooked")?[0]);
    let began = diary.times("both/one", "hook")?[0].max(diary.times("both/two", "hook")?[0]);
    ensure!(began < ended, "the hooks of two containers run side by side: {:?}", diary.entries()?);
    ensure!(diary.lines("over")?.is_empty(), "what is over needs no hook");
    ensure!(diary.lines("")?.len() > before, "the diary went on");
    kubelet.remove_pod("listener")?;
    wait_until_idle(stage.runtime(), WAIT)
}
