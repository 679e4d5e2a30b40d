//! Probes of all kinds, their thresholds and what follows from them.

use std::net::IpAddr;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, probe_target, with};
use rubelet_e2e::runner::Stage;
use rubelet_e2e::{
    Diary, KubeletProcess, PodView, find_container_processes, uptime, wait_closely, wait_for,
};
use serde_json::{Value, json};

use super::{container, ensure_within, start_impatient_kubelet, status_of};
use crate::WAIT;

/// Makes the probe target of a pod answer otherwise from now on, once it is up.
fn tell(kubelet: &KubeletProcess, pod: &PodView, path: &str) -> anyhow::Result<()> {
    let address: IpAddr = pod.ip.parse().context("the pod has no address")?;
    wait_for(&format!("{path} to be taken"), WAIT, || match kubelet.get_from(address, 8080, path) {
        Ok((200, _)) => Ok(()),
        Ok((status, _)) => Err(format!("it answered {status}")),
        Err(error) => Err(format!("{error:#}")),
    })
}

fn probed(name: &str, probes: Value) -> Value {
    pod(name, json!({ "containers": [with(probe_target("app"), probes)] }))
}

/// A readiness probe every second, which a busy machine may take its time for.
fn readiness(probe: Value) -> Value {
    json!({ "readinessProbe": with(json!({ "periodSeconds": 1, "timeoutSeconds": 10 }), probe) })
}

/// Waits until the pod is ready or not, and looks as often as it can.
fn wait_until_ready_is(kubelet: &KubeletProcess, name: &str, ready: bool) -> anyhow::Result<()> {
    wait_closely(&format!("{name} to be ready: {ready}"), WAIT, || match kubelet.pod(name) {
        Ok(Some(pod)) if pod.ready == ready => Ok(()),
        Ok(pod) => Err(format!("it is {:?}", pod.map(|pod| pod.raw["status"].to_string()))),
        Err(error) => Err(format!("{error:#}")),
    })
    .map(|_| ())
}

pub(super) fn readiness_needs_the_thresholds_of_its_probe(stage: &Stage) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let http = |path: &str| json!({ "httpGet": { "path": path, "port": 8080 } });
    let good = [
        ("http", http("/")),
        ("grpc", json!({ "grpc": { "port": 9090, "service": "web" } })),
        ("tcp", json!({ "tcpSocket": { "port": 7070 } })),
        ("exec", json!({ "exec": { "command": ["test", "-x", "/probe-target"] } })),
        ("redirected", http("/redirect/health")),
        ("named-port", json!({ "httpGet": { "path": "/", "port": "web" } })),
    ];
    let bad = [
        ("grpc-absent", json!({ "grpc": { "port": 9090, "service": "absent" } }), "failed"),
        ("tcp-closed", json!({ "tcpSocket": { "port": 7999 } }), "connection refused"),
        ("exec-fails", json!({ "exec": { "command": ["sh", "-c", "echo why; exit 2"] } }), "why"),
        ("slow", with(http("/delay/4"), json!({ "timeoutSeconds": 1 })), "failed"),
    ];
    // Writes down each of its answers.
    let answer = "if [ -e /diary/bad ]; then note bad; exit 1; fi; note good";
    let counts = json!({
        "exec": { "command": ["sh", "-c", Diary::script("counts", answer)] },
        "successThreshold": 2,
        "failureThreshold": 3,
    });
    let counts = with(Diary::container("app", "counts", "exec sleep 3600"), readiness(counts));
    kubelet.write_pod(&pod(
        "counts",
        json!({ "containers": [counts], "volumes": [diary.volume()] }),
    ))?;
    for (name, probe) in &good {
        let mut pod = probed(name, readiness(probe.clone()));
        pod["spec"]["containers"][0]["ports"] = json!([{ "name": "web", "containerPort": 8080 }]);
        kubelet.write_pod(&pod)?;
    }
    for (name, probe, _) in &bad {
        kubelet.write_pod(&probed(name, readiness(probe.clone())))?;
    }
    // Ready as soon as its file is there, and no longer than that.
    let file = with(
        Diary::container("app", "file", "exec sleep 3600"),
        readiness(
            json!({ "exec": { "command": ["test", "-e", "/diary/ready"] }, "failureThreshold": 1 }),
        ),
    );
    kubelet
        .write_pod(&pod("file", json!({ "containers": [file], "volumes": [diary.volume()] })))?;

    for (name, _) in &good {
        kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
    }
    for (name, _, why) in &bad {
        kubelet.wait_for_event(name, "Unhealthy", why, WAIT)?;
        let pod = kubelet.pod(name)?.context("it is there")?;
        ensure!(!pod.ready && pod.phase == "Running", "{name}: {}", pod.raw["status"]);
        assert_eq!(status_of(&pod, "app")["started"], true, "{name}: without a startup probe");
    }

    std::fs::write(diary.dir().join("ready"), "")?;
    kubelet.wait_for_pod("file", "ready", WAIT, |pod| pod.ready)?;
    std::fs::remove_file(diary.dir().join("ready"))?;
    kubelet.wait_for_pod("file", "no longer ready", WAIT, |pod| !pod.ready)?;

    // Two successes, three failures, and two successes again.
    let count = |what: &str| -> anyhow::Result<usize> { Ok(diary.times("counts", what)?.len()) };
    kubelet.wait_for_pod("counts", "ready", WAIT, |pod| pod.ready)?;
    ensure!(count("good")? >= 2, "it is ready too early: {:?}", diary.lines("counts")?);
    let started = uptime()?;
    std::fs::write(diary.dir().join("bad"), "")?;
    wait_until_ready_is(&kubelet, "counts", false)?;
    // With a probe of the default period they would be spread over 20 seconds.
    ensure_within("three failures", uptime()? - started, 0.0, 18.0)?;
    let (good, bad) = (count("good")?, count("bad")?);
    ensure!((3..8).contains(&bad), "it was no longer ready after {bad} failures, not 3");
    std::fs::remove_file(diary.dir().join("bad"))?;
    wait_until_ready_is(&kubelet, "counts", true)?;
    let good = count("good")? - good;
    ensure!((2..7).contains(&good), "it was ready after {good} successes, not 2");

    let pod = kubelet.pod("http")?.context("it is there")?;
    tell(&kubelet, &pod, "/set/http/503")?;
    kubelet.wait_for_event("http", "Unhealthy", "HTTP probe failed with statuscode: 503", WAIT)?;
    kubelet.wait_for_pod("http", "not ready", WAIT, |pod| !pod.ready)?;
    tell(&kubelet, &pod, "/set/http/399")?;
    kubelet.wait_for_pod("http", "ready", WAIT, |pod| pod.ready)?;
    let pod = kubelet.pod("grpc")?.context("it is there")?;
    tell(&kubelet, &pod, "/set/grpc/not-serving")?;
    kubelet.wait_for_pod("grpc", "not ready", WAIT, |pod| !pod.ready)?;
    for pod in kubelet.pods()? {
        assert_eq!(pod.restarts(), 0, "readiness restarts nothing: {}", pod.name);
    }
    Ok(())
}

pub(super) fn startup_and_liveness_probes_decide_when_a_container_is_restarted(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let every_second = json!({ "periodSeconds": 1, "timeoutSeconds": 10 });
    let http = with(every_second.clone(), json!({ "httpGet": { "path": "/", "port": 8080 } }));
    let exec = |script: &str| {
        with(every_second.clone(), json!({ "exec": { "command": ["sh", "-c", script] } }))
    };
    let diaried = |name: &str, container: Value| {
        pod(name, json!({ "containers": [container], "volumes": [diary.volume()] }))
    };

    // Not up for five seconds: the startup probe keeps the liveness probe waiting.
    let mut slow = probe_target("app");
    slow["args"] = json!(["--http", "8080", "--ready-after", "5"]);
    slow["startupProbe"] = with(http.clone(), json!({ "failureThreshold": 30 }));
    slow["livenessProbe"] = with(http.clone(), json!({ "failureThreshold": 1 }));
    kubelet.write_pod(&pod("slow", json!({ "containers": [slow] })))?;
    // Never up.
    let never_up = with(exec("exit 1"), json!({ "failureThreshold": 2 }));
    let dead = with(busybox("app", "exec sleep 3600"), json!({ "startupProbe": never_up }));
    kubelet.write_pod(&pod("dead", json!({ "containers": [dead] })))?;
    // Alive until it is told otherwise.
    let alive = json!({ "livenessProbe": with(http, json!({ "failureThreshold": 3 })) });
    kubelet.write_pod(&probed("alive", alive))?;
    // The probe's grace period goes before the pod's, which would take a minute.
    let stubborn = "trap '' TERM; note start; while :; do sleep 1; done";
    let mut hurried = Diary::container("app", "hurried", stubborn);
    hurried["livenessProbe"] =
        with(exec("exit 1"), json!({ "terminationGracePeriodSeconds": 1, "failureThreshold": 1 }));
    let mut pod_of_hurried = diaried("hurried", hurried);
    pod_of_hurried["spec"]["terminationGracePeriodSeconds"] = json!(60);
    kubelet.write_pod(&pod_of_hurried)?;
    // Left alone for the initial delay.
    let mut delayed = Diary::container("app", "delayed", "note start; exec sleep 3600");
    delayed["livenessProbe"] =
        with(exec("exit 1"), json!({ "initialDelaySeconds": 4, "failureThreshold": 1 }));
    kubelet.write_pod(&diaried("delayed", delayed))?;
    // Killed, and not started again.
    let mut once = Diary::container("app", "once", "note start; exec sleep 3600");
    once["livenessProbe"] = with(exec("exit 1"), json!({ "failureThreshold": 1 }));
    let mut once = diaried("once", once);
    once["spec"]["restartPolicy"] = json!("Never");
    kubelet.write_pod(&once)?;

    let slow = kubelet.wait_for_pod("slow", "running", WAIT, |pod| pod.phase == "Running")?;
    assert_eq!((&status_of(&slow, "app")["started"], slow.ready), (&json!(false), false));
    let slow = kubelet.wait_for_pod("slow", "ready", WAIT, |pod| pod.ready)?;
    assert_eq!((&status_of(&slow, "app")["started"], slow.restarts()), (&json!(true), 0));

    kubelet.wait_for_pod("dead", "restarted", WAIT, |pod| pod.restarts() > 0)?;
    let message = "Container app failed startup probe, will be restarted";
    kubelet.wait_for_event("dead", "Killing", message, WAIT)?;
    kubelet.wait_for_event("dead", "Unhealthy", "Startup probe failed", WAIT)?;

    let alive = kubelet.wait_for_pod("alive", "ready", WAIT, |pod| pod.ready)?;
    let first = container(&alive, "app")?.id.clone();
    tell(&kubelet, &alive, "/set/http/500")?;
    let told = uptime()?;
    let (_, took) = wait_closely("the container to be killed", WAIT, || {
        match find_container_processes(stage.runtime().cgroup(), &first).len() {
            0 => Ok(()),
            left => Err(format!("{left} processes are left")),
        }
    })?;
    ensure_within("three failures and the stop", took.as_secs_f64(), 1.5, 20.0)?;
    let alive = kubelet
        .wait_for_pod("alive", "ready again", WAIT, |pod| pod.ready && pod.restarts() == 1)?;
    ensure_within("the restart", uptime()? - told, 1.5, 40.0)?;
    assert_ne!(container(&alive, "app")?.id, first);
    let message = "Container app failed liveness probe, will be restarted";
    kubelet.wait_for_event("alive", "Killing", message, WAIT)?;
    kubelet.wait_for_event("alive", "Unhealthy", "Liveness probe failed: HTTP probe", WAIT)?;

    let starts = diary.wait_for("hurried", "start", 2, WAIT)?;
    ensure_within("the restart within the probe's grace", starts[1] - starts[0], 0.9, 40.0)?;
    let hurried = kubelet.wait_for_pod("hurried", "restarted", WAIT, |p| p.restarts() > 0)?;
    assert_eq!(status_of(&hurried, "app")["lastState"]["terminated"]["exitCode"], 137);

    let starts = diary.wait_for("delayed", "start", 2, WAIT)?;
    ensure_within("the initial delay and the restart", starts[1] - starts[0], 4.0, 40.0)?;

    let once = kubelet.wait_for_pod("once", "failed", WAIT, |pod| pod.phase == "Failed")?;
    assert_eq!((once.restarts(), diary.times("once", "start")?.len()), (0, 1));
    Ok(())
}

pub(super) fn a_timed_out_exec_probe_counts_as_failed_and_leaves_no_process(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let hangs = json!({
        "exec": { "command": ["sleep", "10000"] },
        "periodSeconds": 1,
        "timeoutSeconds": 1,
        "failureThreshold": 2,
    });
    let waiting = with(busybox("app", "exec sleep 3600"), json!({ "readinessProbe": hangs }));
    kubelet.write_pod(&pod("waiting", json!({ "containers": [waiting] })))?;
    let mut killed = Diary::container("app", "killed", "note start; exec sleep 3600");
    killed["livenessProbe"] = hangs;
    let killed = json!({ "containers": [killed], "volumes": [diary.volume()] });
    kubelet.write_pod(&pod("killed", killed))?;

    let pod = kubelet.wait_for_pod("waiting", "running", WAIT, |pod| pod.phase == "Running")?;
    let id = container(&pod, "app")?.id.clone();
    kubelet.wait_for_event("waiting", "Unhealthy", "Readiness probe failed", WAIT)?;
    // Each start of the other container stands for two probes that timed out.
    let starts = diary.wait_for("killed", "start", 3, WAIT)?;
    ensure_within("two timed out probes and a restart", starts[1] - starts[0], 2.9, 40.0)?;
    kubelet.wait_for_event("killed", "Killing", "failed liveness probe", WAIT)?;

    let pod = kubelet.pod("waiting")?.context("it is there")?;
    assert_eq!((pod.ready, pod.restarts(), &container(&pod, "app")?.id), (false, 0, &id));
    wait_for("one process and at most one probe to run", WAIT, || match find_container_processes(
        stage.runtime().cgroup(),
        &id,
    )
    .len()
    {
        processes @ 1..=2 => Ok(processes),
        processes => Err(format!("{processes} processes run")),
    })?;
    kubelet.remove_pod("waiting")?;
    kubelet.remove_pod("killed")?;
    kubelet.wait_until_gone("waiting", WAIT)?;
    kubelet.wait_until_gone("killed", WAIT)
}
