//! One pod's way from kubectl to the node and back.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, with};
use rubelet_e2e::{Diary, find_container_processes, wait_for};
use rubelet_test_bed::trials::Trial;
use serde_json::json;

use crate::stage::{Stage, condition, each_second, id_of_app, pod};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_pod_runs_and_its_status_and_events_say_so,
    a_deleted_pod_ends_gracefully_and_then_its_object_goes,
    a_deletion_by_force_ends_the_pod_on_the_node_too,
    a_second_deletion_shortens_the_grace_of_the_first,
    an_eviction_ends_a_pod_unless_a_budget_forbids_it,
    a_pod_waits_for_its_readiness_gates,
    a_pod_is_ended_at_its_deadline,
    a_pod_waits_for_its_runtime_class,
];

fn a_pod_runs_and_its_status_and_events_say_so(stage: &mut Stage) -> anyhow::Result<()> {
    let overrides = json!({ "spec": {
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": 1,
    }});
    stage.kubectl(&[
        "run",
        "web",
        "--image=busybox",
        "--image-pull-policy=Never",
        &format!("--overrides={overrides}"),
        "--command",
        "--",
        "sleep",
        "3600",
    ])?;
    let web = stage.wait_until_ready("web")?;
    let status = &web.raw["status"];
    let node = stage.kubelet().runtime().node_address().to_string();
    ensure!(web.phase == "Running", "{status}");
    ensure!(web.ip.starts_with("10.244.1."), "{status}");
    ensure!(status["podIPs"] == json!([{ "ip": web.ip }]), "{status}");
    ensure!(status["hostIP"] == node.as_str(), "{status}");
    ensure!(status["hostIPs"] == json!([{ "ip": node }]), "{status}");
    ensure!(status["qosClass"] == "BestEffort", "{status}");
    ensure!(!web.start_time.is_empty(), "{status}");
    ensure!(status["observedGeneration"] == 1, "{status}");
    for kind in
        ["PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"]
    {
        let condition = condition(&web.raw, kind)?;
        ensure!(condition["status"] == "True", "{condition}");
        ensure!(condition["lastTransitionTime"].is_string(), "{condition}");
        ensure!(condition["observedGeneration"] == 1, "{condition}");
    }
    let container = &status["containerStatuses"][0];
    for (field, start) in
        [("containerID", "containerd://"), ("image", "docker.io/"), ("imageID", "")]
    {
        let said = container[field].as_str().with_context(|| format!("no {field}: {container}"))?;
        ensure!(said.starts_with(start), "{container}");
    }
    ensure!(container["started"] == true && container["restartCount"] == 0, "{container}");
    ensure!(container["state"]["running"]["startedAt"].is_string(), "{container}");
    for reason in ["Scheduled", "Pulled", "Created", "Started"] {
        stage.wait_for_event("web", reason, "")?;
    }
    let described = stage.kubectl(&["describe", "pod", "web"])?;
    for word in ["Scheduled", "Pulled", "Created", "Started", "kubelet"] {
        ensure!(described.contains(word), "no {word} in\n{described}");
    }
    Ok(())
}

fn a_deleted_pod_ends_gracefully_and_then_its_object_goes(stage: &mut Stage) -> anyhow::Result<()> {
    let diary = stage.diary()?;
    let probe = json!({ "readinessProbe": Diary::has_started() });
    let service = pod(
        "service",
        json!({
            "terminationGracePeriodSeconds": 300,
            "containers": [with(Diary::service("app", "service", ":"), probe)],
            "volumes": [diary.volume()],
        }),
    );
    stage.create_pod(&service)?;
    let running = stage.wait_until_ready("service")?;
    stage.kubectl(&["delete", "pod", "service", "--timeout=120s"])?;
    ensure!(diary.lines("service")? == ["service start", "service term", "service end"]);
    stage.wait_for_event("service", "Killing", "Stopping container app")?;
    let cgroup = stage.kubelet().runtime().cgroup();
    let processes = find_container_processes(cgroup, &id_of_app(&running)?);
    ensure!(processes.is_empty(), "{processes:?}");
    stage.wait_until_nothing_is_left()
}

fn a_deletion_by_force_ends_the_pod_on_the_node_too(stage: &mut Stage) -> anyhow::Result<()> {
    let deaf = busybox("app", "trap '' TERM; while :; do sleep 1; done");
    let spec = json!({ "terminationGracePeriodSeconds": 3600, "containers": [deaf] });
    stage.create_pod(&pod("deaf", spec))?;
    let running = stage.wait_until_ready("deaf")?;
    stage.kubectl(&["delete", "pod", "deaf", "--grace-period=0", "--force", "--timeout=120s"])?;
    ensure!(stage.pod("deaf")?.is_none(), "the object is still there");
    let cgroup = stage.kubelet().runtime().cgroup();
    let id = id_of_app(&running)?;
    wait_for("its processes to end", WAIT, || match find_container_processes(cgroup, &id) {
        none if none.is_empty() => Ok(()),
        processes => Err(format!("{processes:?}")),
    })?;
    stage.wait_until_nothing_is_left()
}

fn a_second_deletion_shortens_the_grace_of_the_first(stage: &mut Stage) -> anyhow::Result<()> {
    let diary = stage.diary()?;
    let deaf = Diary::container("app", "deaf", "trap 'note term' TERM; while :; do sleep 1; done");
    let spec = json!({
        "terminationGracePeriodSeconds": 3600,
        "containers": [deaf],
        "volumes": [diary.volume()],
    });
    stage.create_pod(&pod("deaf", spec))?;
    stage.wait_until_ready("deaf")?;
    stage.kubectl(&["delete", "pod", "deaf", "--wait=false"])?;
    diary.wait_for("deaf", "term", 1, WAIT)?;
    ensure!(stage.pod("deaf")?.is_some_and(|pod| pod.phase == "Running"), "it is gone");
    stage.kubectl(&["delete", "pod", "deaf", "--grace-period=1", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()
}

fn an_eviction_ends_a_pod_unless_a_budget_forbids_it(stage: &mut Stage) -> anyhow::Result<()> {
    let diary = stage.diary()?;
    let service = |name: &str| {
        let container = with(
            Diary::service("app", name, "while [ ! -e /diary/go ]; do sleep 1; done"),
            json!({ "readinessProbe": Diary::has_started() }),
        );
        let mut pod = pod(
            name,
            json!({
                "terminationGracePeriodSeconds": 300,
                "containers": [container],
                "volumes": [diary.volume()],
            }),
        );
        pod["metadata"]["labels"] = json!({ "app": name });
        pod
    };
    for name in ["free", "kept"] {
        stage.create_pod(&service(name))?;
    }
    let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", stage.namespace());
    let budget = json!({
        "metadata": { "name": "kept" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "kept" } } },
    });
    stage.create(&budgets, &budget)?;
    stage.wait_for_pods(2, "ready", |pod| pod.ready)?;
    let counted = || -> anyhow::Result<bool> {
        Ok(stage.get(&format!("{budgets}/kept"))?["status"]["currentHealthy"] == 1)
    };
    wait_for("the budget to be counted", WAIT, || match counted() {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    let evict = |name: &str| {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": name },
        });
        stage.create(&stage.path(&format!("pods/{name}/eviction")), &eviction)
    };
    let Err(refusal) = evict("kept") else { anyhow::bail!("it was evicted") };
    let text = format!("{refusal:#}");
    ensure!(text.contains("429") && text.contains("disruption budget"), "{text}");

    evict("free")?;
    diary.wait_for("free", "term", 1, WAIT)?;
    let ending = stage.pod("free")?.context("it is gone before its end")?;
    let why = condition(&ending.raw, "DisruptionTarget")?;
    ensure!(why["status"] == "True" && why["reason"] == "EvictionByEvictionAPI", "{why}");
    std::fs::write(diary.dir().join("go"), "")?;
    stage.wait_until_gone("free")?;
    ensure!(diary.lines("free")? == ["free start", "free term", "free end"]);

    ensure!(diary.lines("kept")? == ["kept start"], "{:?}", diary.lines("kept")?);
    stage.delete(&format!("{budgets}/kept"))?;
    evict("kept")?;
    stage.wait_until_gone("kept")?;
    ensure!(diary.lines("kept")? == ["kept start", "kept term", "kept end"]);
    Ok(())
}

fn a_pod_waits_for_its_readiness_gates(stage: &mut Stage) -> anyhow::Result<()> {
    let gate = "example.com/gate";
    let probe = each_second(json!({ "exec": { "command": ["true"] } }));
    let mut app = busybox("app", "exec sleep 3600");
    app["readinessProbe"] = probe;
    let spec = json!({ "readinessGates": [{ "conditionType": gate }], "containers": [app] });
    stage.create_pod(&pod("gated", spec))?;
    let is = |pod: &rubelet_e2e::PodView, kind: &str, value: &str| {
        condition(&pod.raw, kind).is_ok_and(|condition| condition["status"] == value)
    };
    let closed = stage.wait_for_pod("gated", "ready but for its gate", |pod| {
        is(pod, "ContainersReady", "True") && is(pod, "Ready", "False")
    })?;
    let ready = condition(&closed.raw, "Ready")?;
    ensure!(ready["reason"] == "ReadinessGatesNotReady", "{ready}");
    for value in ["True", "False", "True"] {
        let patch = json!({ "status": { "conditions": [{ "type": gate, "status": value }] } });
        stage.kubectl(&[
            "patch",
            "pod",
            "gated",
            "--subresource=status",
            &format!("--patch={patch}"),
        ])?;
        let what = format!("as ready as its gate is {value}");
        let gated = stage.wait_for_pod("gated", &what, |pod| is(pod, "Ready", value))?;
        ensure!(is(&gated, gate, value), "{}", gated.raw["status"]);
    }
    Ok(())
}

fn a_pod_is_ended_at_its_deadline(stage: &mut Stage) -> anyhow::Result<()> {
    let sleeper = || json!([busybox("app", "exec sleep 3600")]);
    stage.create_pod(&pod(
        "brief",
        json!({ "activeDeadlineSeconds": 2, "containers": sleeper() }),
    ))?;
    stage.create_pod(&pod("shortened", json!({ "containers": sleeper() })))?;
    stage.wait_until_ready("shortened")?;
    stage
        .merge(&stage.path("pods/shortened"), &json!({ "spec": { "activeDeadlineSeconds": 1 } }))?;
    for name in ["brief", "shortened"] {
        let ended = stage.wait_for_pod(name, "failed", |pod| pod.phase == "Failed")?;
        ensure!(ended.reason == "DeadlineExceeded", "{}", ended.raw["status"]);
        let message = "Pod was active on the node longer than the specified deadline";
        ensure!(ended.message == message, "{}", ended.raw["status"]);
        ensure!(!ended.ready, "{}", ended.raw["status"]);
        stage.wait_for_event(name, "DeadlineExceeded", message)?;
    }
    Ok(())
}

fn a_pod_waits_for_its_runtime_class(stage: &mut Stage) -> anyhow::Result<()> {
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let class = json!({ "metadata": { "name": "special" }, "handler": "runc" });
    // Pods of a class that is not there are not let in; this one's class goes before it is bound.
    stage.create(classes, &class)?;
    let spec = json!({
        "runtimeClassName": "special",
        "schedulingGates": [{ "name": "example.com/later" }],
        "containers": [busybox("app", "exec sleep 3600")],
    });
    stage.create_pod(&pod("classy", spec))?;
    stage.delete(&format!("{classes}/special"))?;
    stage.merge(&stage.path("pods/classy"), &json!({ "spec": { "schedulingGates": null } }))?;
    stage.wait_for_event("classy", "FailedCreatePodSandBox", "special")?;
    stage.create(classes, &class)?;
    stage.wait_until_ready("classy")?;
    stage.delete(&format!("{classes}/special"))
}
