//! How pods end, and how often their containers are tried again.

use std::path::Path;

use anyhow::ensure;
use rubelet_cri::v1;
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::Stage;
use rubelet_e2e::{Diary, KubeletProcess, wait_for};
use serde_json::{Value, json};

use super::{
    condition, container, ensure_within, start_impatient_kubelet, status_of,
    wait_until_nothing_is_left,
};
use crate::WAIT;
use crate::runtime::with_cri;

/// What is expected of a pod with one container `app` that came to its end.
struct End {
    name: &'static str,
    spec: Value,
    phase: &'static str,
    exit_code: i64,
    reason: &'static str,
    restarts: u64,
    message: String,
}

impl End {
    fn succeeded(name: &'static str, spec: Value) -> Self {
        let (phase, reason, message) = ("Succeeded", "Completed", String::new());
        Self { name, spec, phase, exit_code: 0, reason, restarts: 0, message }
    }

    fn failed(name: &'static str, spec: Value, exit_code: i64) -> Self {
        let (phase, reason, message) = ("Failed", "Error", String::new());
        Self { name, spec, phase, exit_code, reason, restarts: 0, message }
    }

    fn after_restarts(self, restarts: u64) -> Self {
        Self { restarts, ..self }
    }

    fn with_message(self, message: impl Into<String>) -> Self {
        Self { message: message.into(), ..self }
    }
}

fn one(policy: &str, app: Value) -> Value {
    json!({ "restartPolicy": policy, "containers": [app] })
}

fn app(script: &str) -> Value {
    busybox("app", script)
}

/// Exits with `code` the first time and with 0 after that.
fn fails_once(name: &str, diary: &Diary, code: u32) -> Value {
    let script = format!("[ -e /diary/{name} ] && exit 0; touch /diary/{name}; exit {code}");
    with(json!({ "volumes": [diary.volume()] }), one("", Diary::container("app", name, &script)))
}

pub(super) fn a_pod_ends_as_its_restart_policy_and_exit_codes_say(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let policy = |policy: &str| json!({ "restartPolicy": policy });
    let restart_on_42 = json!({
        "restartPolicy": "Never",
        "restartPolicyRules": [
            { "action": "Restart", "exitCodes": { "operator": "In", "values": [42] } }
        ],
    });
    let fallback = json!({ "terminationMessagePolicy": "FallbackToLogsOnError" });
    let mut ends = vec![
        End::succeeded("never-ok", one("Never", app("exit 0"))),
        End::failed("never-bad", one("Never", app("exit 3")), 3),
        End::succeeded("onfailure-ok", one("OnFailure", app("exit 0"))),
        End::succeeded(
            "onfailure-once",
            with(fails_once("onfailure-once", &diary, 7), policy("OnFailure")),
        )
        .after_restarts(1),
        // The container's own policy and rules go before the pod's.
        End::succeeded("rule-42", {
            let mut spec = with(fails_once("rule-42", &diary, 42), policy("Never"));
            spec["containers"][0] = with(spec["containers"][0].clone(), restart_on_42.clone());
            spec
        })
        .after_restarts(1),
        End::failed("rule-41", one("Never", with(app("exit 41"), restart_on_42)), 41),
        // Messages.
        End::failed(
            "message-file",
            one("Never", app("echo last words >/dev/termination-log; exit 1")),
            1,
        )
        .with_message("last words\n"),
        End::succeeded(
            "message-path",
            one(
                "Never",
                with(app("printf done >/tmp/why"), json!({ "terminationMessagePath": "/tmp/why" })),
            ),
        )
        .with_message("done"),
        End::failed(
            "message-log",
            one("Never", with(app("echo one; echo two; exit 1"), fallback.clone())),
            1,
        )
        .with_message("one\ntwo\n"),
        End::failed(
            "message-both",
            one(
                "Never",
                with(app("echo log; printf file >/dev/termination-log; exit 1"), fallback.clone()),
            ),
            1,
        )
        .with_message("file"),
        End::succeeded("message-ok", one("Never", with(app("echo all is well"), fallback))),
        End::failed(
            "message-long",
            one("Never", app("head -c 5000 /dev/zero | tr '\\0' x >/dev/termination-log; exit 1")),
            1,
        )
        .with_message("x".repeat(4096)),
    ];
    if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
        || Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
    {
        // The runtime begins to watch the memory of a container when it has started it.
        let hog = with(
            app("sleep 2; exec dd if=/dev/zero of=/dev/null bs=96M count=1"),
            json!({ "resources": { "limits": { "memory": "32Mi" } } }),
        );
        let oom = End { reason: "OOMKilled", ..End::failed("oom", one("Never", hog), 137) };
        ends.push(oom);
    }
    for end in &ends {
        kubelet.write_pod(&pod(end.name, end.spec.clone()))?;
    }
    kubelet.write_pod(&pod(
        "two",
        json!({
            "restartPolicy": "Never",
            "containers": [busybox("good", "exit 0"), busybox("bad", "exit 9")],
        }),
    ))?;
    kubelet.write_pod(&pod("always", one("Always", app("exit 0"))))?;
    kubelet.write_pod(&pod(
        "deadline",
        with(one("Always", app("exec sleep 3600")), json!({ "activeDeadlineSeconds": 10 })),
    ))?;

    for end in &ends {
        check_end(&kubelet, end)?;
    }
    let two = kubelet.wait_for_pod("two", "ended", WAIT, |pod| pod.phase == "Failed")?;
    assert_eq!(container(&two, "good")?.reason, "Completed");
    assert_eq!(container(&two, "bad")?.exit_code, Some(9));
    check_deadline(&kubelet)?;
    let always = kubelet.wait_for_pod("always", "restarted twice", WAIT, |p| p.restarts() >= 2)?;
    assert_eq!(always.phase, "Running", "what is restarted for ever never ends");
    assert_eq!(status_of(&always, "app")["lastState"]["terminated"]["exitCode"], 0);

    // Nobody starts them again, and the logs stay for as long as the manifest is there.
    check_end(&kubelet, &ends[0])?;
    let failed = kubelet.wait_for_pod("message-log", "there", WAIT, |_| true)?;
    assert_eq!(kubelet.container_log(&failed, "app")?, ["one", "two"]);
    wait_for("only what runs to have a sandbox that runs", WAIT, || {
        let ready = with_cri(stage.runtime(), |cri| async move {
            let sandboxes = cri.list_pod_sandbox(None).await?.into_iter();
            let ready = sandboxes.filter(|s| s.state() == v1::PodSandboxState::SandboxReady);
            let names = ready.filter_map(|sandbox| Some(sandbox.metadata?.name));
            Ok(names.collect::<Vec<String>>())
        });
        match ready.map_err(|error| format!("{error:#}"))? {
            ready if ready == [always.name.as_str()] => Ok(()),
            ready => Err(format!("{ready:?} have one")),
        }
    })?;

    for name in ends.iter().map(|end| end.name).chain(["two", "always", "deadline"]) {
        kubelet.remove_pod(name)?;
    }
    wait_until_nothing_is_left(&kubelet, WAIT)
}

fn check_end(kubelet: &KubeletProcess, end: &End) -> anyhow::Result<()> {
    let terminal = |phase: &str| matches!(phase, "Succeeded" | "Failed");
    let pod = kubelet.wait_for_pod(end.name, "ended", WAIT, |pod| terminal(&pod.phase))?;
    let app = container(&pod, "app")?;
    let found = (&*pod.phase, app.exit_code, &*app.reason, app.restarts, &*app.message);
    let expected = (end.phase, Some(end.exit_code), end.reason, end.restarts, end.message.as_str());
    assert_eq!(found, expected, "{}: {}", end.name, pod.raw["status"]);
    let ready = condition(&pod, "Ready");
    let why = if end.phase == "Succeeded" { "PodCompleted" } else { "PodFailed" };
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!(why)));
    let terminated = &status_of(&pod, "app")["state"]["terminated"];
    ensure!(
        terminated["startedAt"].is_string() && terminated["finishedAt"].is_string(),
        "{}: {terminated} has no times",
        end.name
    );
    if end.restarts > 0 {
        let last = &status_of(&pod, "app")["lastState"]["terminated"];
        ensure!(last["exitCode"] != 0, "{}: its last state is {last}", end.name);
    }
    Ok(())
}

fn check_deadline(kubelet: &KubeletProcess) -> anyhow::Result<()> {
    let pod = kubelet.wait_for_pod("deadline", "over", WAIT, |pod| pod.phase == "Failed")?;
    assert_eq!(pod.reason, "DeadlineExceeded");
    assert_eq!(pod.message, "Pod was active on the node longer than the specified deadline");
    let app = container(&pod, "app")?;
    assert_eq!((app.exit_code, app.restarts), (Some(137), 0), "sleep minds no SIGTERM as pid 1");
    let event = kubelet.wait_for_event("deadline", "DeadlineExceeded", "longer", WAIT)?;
    assert_eq!(event.event_type, "Normal");
    Ok(())
}

pub(super) fn a_crashing_container_is_restarted_after_0_10_and_20_seconds(
    stage: &Stage,
) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let diary = Diary::create(&kubelet.manifests().with_file_name("diary"))?;
    let crash = Diary::container("app", "crash", "note start; exit 5");
    let spec = json!({ "containers": [crash, busybox("calm", "exec sleep 3600")], "volumes": [diary.volume()] });
    kubelet.write_pod(&pod("crash", spec))?;

    for (restarts, back_off) in [(1, "10s"), (2, "20s"), (3, "40s")] {
        let pod = kubelet.wait_for_pod("crash", "in back-off", WAIT, |pod| {
            pod.restarts() == restarts
                && pod.container("app").is_some_and(|app| app.reason == "CrashLoopBackOff")
        })?;
        assert_eq!(
            container(&pod, "app")?.message,
            format!(
                "back-off {back_off} restarting failed container=app pod={}_default({})",
                pod.name, pod.uid
            )
        );
        let last = &status_of(&pod, "app")["lastState"]["terminated"];
        assert_eq!((&last["exitCode"], &last["reason"]), (&json!(5), &json!("Error")));
        assert_eq!((&*pod.phase, pod.ready), ("Running", false));
    }
    kubelet.wait_for_event("crash", "BackOff", "Back-off restarting failed container app", WAIT)?;
    let starts = diary.times("crash", "start")?;
    assert_eq!(starts.len(), 4, "restarts: {starts:?}");
    // A back-off counts from the end of the container, which comes right after its start. What is
    // above it is the time that a busy machine may take to start a container.
    for (start, (from, to)) in starts.windows(2).zip([(0.0, 8.0), (10.0, 18.0), (20.0, 28.0)]) {
        ensure_within("the time to the next start", start[1] - start[0], from, to)?;
    }
    let pod = kubelet.wait_for_pod("crash", "there", WAIT, |_| true)?;
    let calm = container(&pod, "calm")?;
    assert_eq!((calm.restarts, calm.is_running()), (0, true), "its neighbour is not disturbed");
    Ok(())
}
