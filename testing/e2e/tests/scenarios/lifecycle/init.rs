//! Init containers and sidecars: who waits for whom.

use anyhow::ensure;
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::Stage;
use rubelet_e2e::{Diary, kill_container};
use serde_json::{Value, json};

use super::{condition, container, start_impatient_kubelet, status_of, wait_until_stopped};
use crate::WAIT;
use crate::runtime::wait_until_idle;

pub(super) fn init_containers_run_one_by_one_and_their_failures_count_by_policy(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    let step = |pod: &str, name: &str| {
        let script = "note start; sleep 0.5; note end";
        Diary::container(name, &format!("{pod}/{name}"), script)
    };
    let last = |pod: &str| Diary::container("app", &format!("{pod}/app"), "note start");
    let spec = |policy: &str, init: Vec<Value>, app: Value| {
        json!({
            "restartPolicy": policy,
            "initContainers": init,
            "containers": [app],
            "volumes": [diary.volume()],
        })
    };
    kubelet.write_pod(&pod(
        "order",
        spec("Never", vec![step("order", "a"), step("order", "b")], last("order")),
    ))?;
    // It waits until somebody makes a file, so that the state in between can be looked at.
    let gate =
        Diary::container("gate", "gated/gate", "until [ -e /diary/open ]; do sleep 0.1; done");
    let app = busybox("app", "exec sleep 3600");
    kubelet.write_pod(&pod("gated", spec("Always", vec![gate, step("gated", "b")], app)))?;
    kubelet.write_pod(&pod(
        "never",
        spec("Never", vec![busybox("a", "exit 4"), step("never", "b")], last("never")),
    ))?;
    // Fails twice, then lets the pod go on.
    let flaky = "note try; n=$(grep -c flaky/a /diary/log); [ $n -gt 2 ]";
    kubelet.write_pod(&pod(
        "flaky",
        spec("OnFailure", vec![Diary::container("a", "flaky/a", flaky)], last("flaky")),
    ))?;

    let order = kubelet.wait_for_pod("order", "done", WAIT, |pod| pod.phase == "Succeeded")?;
    assert_eq!(
        diary.lines("order/")?,
        ["order/a start", "order/a end", "order/b start", "order/b end", "order/app start"]
    );
    for name in ["a", "b"] {
        let init = container(&order, name)?;
        assert_eq!((init.is_init, init.exit_code, init.ready), (true, Some(0), true), "{name}");
    }

    let gated =
        kubelet.wait_for_pod("gated", "waiting for its first init container", WAIT, |pod| {
            pod.container("gate").is_some_and(|gate| gate.is_running())
        })?;
    assert_eq!(gated.phase, "Pending");
    for name in ["b", "app"] {
        let waiting = container(&gated, name)?;
        assert_eq!((&*waiting.state, &*waiting.reason), ("waiting", "PodInitializing"), "{name}");
    }
    let initialized = condition(&gated, "Initialized");
    assert_eq!(initialized["status"], "False");
    assert_eq!(initialized["reason"], "ContainersNotInitialized");
    assert_eq!(initialized["message"], "containers with incomplete status: [gate b]");
    assert_eq!(condition(&gated, "PodReadyToStartContainers")["status"], "True");
    std::fs::write(diary.dir().join("open"), "")?;
    let gated = kubelet.wait_for_pod("gated", "ready", WAIT, |pod| pod.ready)?;
    assert_eq!(condition(&gated, "Initialized")["status"], "True");
    assert_eq!((&*gated.phase, gated.restarts()), ("Running", 0));

    let never = kubelet.wait_for_pod("never", "failed", WAIT, |pod| pod.phase == "Failed")?;
    assert_eq!(container(&never, "a")?.exit_code, Some(4));
    assert_eq!(container(&never, "a")?.restarts, 0);
    ensure!(diary.lines("never/")?.is_empty(), "nothing of it may start: {:?}", diary.lines(""));

    let flaky = kubelet.wait_for_pod("flaky", "done", WAIT, |pod| pod.phase == "Succeeded")?;
    assert_eq!(container(&flaky, "a")?.restarts, 2);
    assert_eq!(
        diary.lines("flaky/")?,
        ["flaky/a try", "flaky/a try", "flaky/a try", "flaky/app start"]
    );
    Ok(())
}

/// Goes on for `linger` seconds after it was asked to end.
fn lingers(name: &str, pod: &str, linger: &str) -> Value {
    Diary::service(name, &format!("{pod}/{name}"), &format!("sleep {linger}"))
}

fn sidecar(container: Value) -> Value {
    with(container, json!({ "restartPolicy": "Always" }))
}

/// A sidecar that counts as started when it has written that it has.
fn sidecar_that_lingers(name: &str, pod: &str) -> Value {
    let probed = json!({ "startupProbe": Diary::has_started() });
    sidecar(with(lingers(name, pod, "0.2"), probed))
}

pub(super) fn sidecars_start_before_and_stop_after_the_regular_containers(
    stage: &Stage,
) -> anyhow::Result<()> {
    let (kubelet, diary) = start_impatient_kubelet(stage)?;
    // The first counts as started when its startup probe says so, two seconds after its start.
    let slow = with(
        lingers("first", "svc", "0.2"),
        json!({
            "startupProbe": {
                "exec": { "command": ["sh", "-c", Diary::script("svc/first", "[ -e /tmp/up ] || { sleep 1; touch /tmp/up; exit 1; }; note up")] },
                "periodSeconds": 1,
                "timeoutSeconds": 5,
                "failureThreshold": 30,
            },
        }),
    );
    let service = json!({
        "terminationGracePeriodSeconds": 30,
        "initContainers": [
            sidecar(slow),
            Diary::container("setup", "svc/setup", "note start; note end"),
            sidecar_that_lingers("second", "svc"),
        ],
        "containers": [lingers("app", "svc", "3"), lingers("other", "svc", "3")],
        "volumes": [diary.volume()],
    });
    kubelet.write_pod(&pod("svc", service))?;
    // A job: over when its regular container is, whatever the sidecar does.
    let job = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 30,
        "initContainers": [sidecar_that_lingers("helper", "job")],
        "containers": [Diary::container("app", "job/app", "note start; sleep 1; note end")],
        "volumes": [diary.volume()],
    });
    kubelet.write_pod(&pod("job", job))?;
    // A sidecar is restarted even where nothing else is.
    let helped = json!({
        "restartPolicy": "Never",
        "initContainers": [sidecar(busybox("helper", "exec sleep 3600"))],
        "containers": [busybox("app", "exec sleep 3600")],
    });
    kubelet.write_pod(&pod("helped", helped))?;

    kubelet.wait_for_pod("svc", "ready", WAIT, |pod| pod.ready)?;
    for who in ["svc/app", "svc/other"] {
        diary.wait_for(who, "start", 1, WAIT)?;
    }
    let lines = diary.lines("svc/")?;
    let at = |line: &str| lines.iter().position(|other| other == line);
    ensure!(
        at("svc/first start") < at("svc/first up")
            && at("svc/first up") < at("svc/setup start")
            && at("svc/setup end") < at("svc/second start")
            && at("svc/second start") < at("svc/app start").min(at("svc/other start")),
        "they started as {lines:?}"
    );

    let helped = kubelet.wait_for_pod("helped", "ready", WAIT, |pod| pod.ready)?;
    let helper = container(&helped, "helper")?.id.clone();
    ensure!(kill_container(stage.runtime().cgroup(), &helper) > 0, "the helper has no process");
    let helped = kubelet.wait_for_pod("helped", "helped again", WAIT, |pod| {
        pod.ready && pod.container("helper").is_some_and(|helper| helper.restarts == 1)
    })?;
    assert_eq!(container(&helped, "app")?.restarts, 0);
    assert_eq!(status_of(&helped, "helper")["lastState"]["terminated"]["exitCode"], 137);

    let job = kubelet.wait_for_pod("job", "done", WAIT, |pod| pod.phase == "Succeeded")?;
    assert_eq!(container(&job, "app")?.exit_code, Some(0));
    assert_eq!(container(&job, "helper")?.state, "terminated");
    assert_eq!(
        diary.lines("job/")?,
        ["job/helper start", "job/app start", "job/app end", "job/helper term", "job/helper end"]
    );

    kubelet.remove_pod("svc")?;
    wait_until_stopped(&kubelet, "svc")?;
    let stopping = diary.lines("svc/")?.split_off(lines.len());
    let at = |line: &str| stopping.iter().position(|other| other == line);
    ensure!(
        at("svc/app end").max(at("svc/other end")) < at("svc/second term")
            && at("svc/second end") < at("svc/first term")
            && at("svc/first end").is_some(),
        "they stopped as {stopping:?}"
    );
    ensure!(
        at("svc/app term").max(at("svc/other term")) < at("svc/app end").min(at("svc/other end")),
        "the regular ones are told to end at the same time, not one after the other: {stopping:?}"
    );
    kubelet.remove_pod("helped")?;
    kubelet.remove_pod("job")?;
    wait_until_idle(stage.runtime(), WAIT)
}
