//! Pods whose resources are changed while they run.

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, with};
use rubelet_e2e::{PodView, wait_for};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, condition, id_of_app, pod};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_pod_is_resized_while_it_runs_and_a_restart_changes_nothing,
    a_container_that_wants_it_starts_again_to_be_resized,
    a_resize_waits_for_room_and_is_not_forgotten,
    memory_in_use_is_not_taken_away,
    a_pod_is_resized_as_a_whole,
];

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

fn resources(cpu: [&str; 2], memory: [&str; 2]) -> Value {
    json!({
        "requests": { "cpu": cpu[0], "memory": memory[0] },
        "limits": { "cpu": cpu[1], "memory": memory[1] },
    })
}

fn sleeper(name: &str, resources: &Value) -> Value {
    with(busybox(name, "exec sleep 3600"), json!({ "resources": resources }))
}

/// What `kubectl patch POD --subresource resize` gives to containers.
fn resize(stage: &Stage, name: &str, containers: &[(&str, &Value)]) -> anyhow::Result<()> {
    let containers: Vec<Value> = containers
        .iter()
        .map(|(name, resources)| json!({ "name": name, "resources": resources }))
        .collect();
    let patch = json!({ "spec": { "containers": containers } }).to_string();
    stage.kubectl(&["patch", "pod", name, "--subresource", "resize", "--patch", &patch]).map(drop)
}

/// Nothing is asked for that the pod does not have.
fn is_settled(pod: &PodView) -> bool {
    let status = &pod.raw["status"];
    status["observedGeneration"] == pod.raw["metadata"]["generation"]
        && condition(&pod.raw, PENDING).is_err()
        && condition(&pod.raw, IN_PROGRESS).is_err()
}

fn status_of<'a>(pod: &'a PodView, container: &str) -> &'a Value {
    let statuses = pod.raw["status"]["containerStatuses"].as_array().map(Vec::as_slice);
    let mut statuses = statuses.unwrap_or_default().iter();
    statuses.find(|status| status["name"] == container).unwrap_or(&Value::Null)
}

/// Waits until the status of the pod tells these resources of a container, and nothing is due.
fn wait_for_resources(
    stage: &Stage,
    name: &str,
    container: &str,
    resources: &Value,
) -> anyhow::Result<PodView> {
    stage.wait_for_pod(name, &format!("resized to {resources}"), |pod| {
        let status = status_of(pod, container);
        is_settled(pod)
            && status["resources"] == *resources
            && status["allocatedResources"] == resources["requests"]
    })
}

/// Shares, quota and memory limit of a group, by the files of either version.
fn values(stage: &Stage, group: &str) -> anyhow::Result<[String; 3]> {
    let runtime = stage.kubelet().runtime();
    let read = |v1: &str, v2: &str| {
        runtime.read_cgroup(group, v1).or_else(|_| runtime.read_cgroup(group, v2))
    };
    Ok([
        read("cpu.shares", "cpu.weight")?,
        read("cpu.cfs_quota_us", "cpu.max")?,
        read("memory.limit_in_bytes", "memory.max")?,
    ])
}

/// What a group has whose CPU request and limit, and memory limit in MiB, are these.
fn expected(milli: u64, limit_milli: u64, memory: u64) -> [String; 3] {
    let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let shares = milli * 1024 / 1000;
    let memory = (memory << 20).to_string();
    if is_v2 {
        let weight = 1 + (shares - 2) * 9999 / 262_142;
        return [weight.to_string(), format!("{} 100000", limit_milli * 100), memory];
    }
    [shares.to_string(), (limit_milli * 100).to_string(), memory]
}

fn wait_for_values(stage: &Stage, group: &str, expected: &[String; 3]) -> anyhow::Result<()> {
    wait_for(&format!("{group} to have {expected:?}"), WAIT, || {
        let found = values(stage, group).map_err(|error| format!("{error:#}"))?;
        if found == *expected { Ok(()) } else { Err(format!("{found:?}")) }
    })
}

/// The lines of the node's metrics that begin so.
fn metrics(stage: &Stage, begin: &str) -> anyhow::Result<Vec<String>> {
    let text = stage.kubectl(&["get", "--raw", "/api/v1/nodes/node-1/proxy/metrics"])?;
    Ok(text.lines().filter(|line| line.starts_with(begin)).map(str::to_owned).collect())
}

/// The kubelet dies without a word and comes back.
fn kill_kubelet(stage: &mut Stage) -> anyhow::Result<()> {
    stage.kubelet_mut(0).sigkill()?;
    stage.kubelet_mut(0).start_again()?;
    stage.wait_for_renewals(2)
}

fn saved(stage: &Stage, file: &str, uid: &str, container: &str) -> anyhow::Result<Value> {
    let path = stage.kubelet().root_dir().join(file);
    let envelope: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let data: Value = serde_json::from_str(envelope["data"].as_str().context("no data")?)?;
    Ok(data["entries"][uid]["ContainerResources"][container].clone())
}

fn a_pod_is_resized_while_it_runs_and_a_restart_changes_nothing(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let small = resources(["100m", "200m"], ["32Mi", "64Mi"]);
    let large = resources(["150m", "300m"], ["48Mi", "96Mi"]);
    let containers = json!([sleeper("app", &small), sleeper("other", &small)]);
    stage.create_pod(&pod("web", json!({ "containers": containers })))?;
    let before = stage.wait_until_ready("web")?;
    let group = format!("kubepods/burstable/pod{}", before.uid);
    let app = format!("{group}/{}", id_of_app(&before)?);
    wait_for_values(stage, &group, &expected(200, 400, 128))?;

    resize(stage, "web", &[("app", &large)])?;
    wait_for_resources(stage, "web", "app", &large)?;
    ensure!(values(stage, &group)? == expected(250, 500, 160), "{:?}", values(stage, &group)?);
    ensure!(values(stage, &app)? == expected(150, 300, 96), "{:?}", values(stage, &app)?);
    stage.wait_for_event("web", "ResizeStarted", "Pod resize started: {\"containers\":[{")?;
    stage.wait_for_event("web", "ResizeCompleted", "Pod resize completed: {\"containers\":[{")?;
    for file in ["allocated_pods_state", "actuated_pods_state"] {
        let saved = saved(stage, file, &before.uid, "app")?;
        ensure!(saved == large, "{file}: {saved}");
    }

    let tried = metrics(stage, "kubelet_pod_resize_duration_milliseconds_count{success=\"true\"}")?;
    ensure!(tried.len() == 1, "{tried:?}");

    // One gets what the other gives.
    resize(stage, "web", &[("app", &small), ("other", &large)])?;
    wait_for_resources(stage, "web", "app", &small)?;
    wait_for_resources(stage, "web", "other", &large)?;
    ensure!(values(stage, &app)? == expected(100, 200, 64), "{:?}", values(stage, &app)?);
    ensure!(values(stage, &group)? == expected(250, 500, 160), "{:?}", values(stage, &group)?);

    stage.wait_until_at_rest()?;
    let version = |pod: &PodView| pod.raw["metadata"]["resourceVersion"].clone();
    let at_rest = stage.wait_until_ready("web")?;
    kill_kubelet(stage)?;
    let after = stage.wait_until_ready("web")?;
    ensure!(version(&at_rest) == version(&after), "a restart wrote {}", after.raw["status"]);

    // And what is asked for while no kubelet runs.
    stage.kubelet_mut(0).sigkill()?;
    resize(stage, "web", &[("other", &small)])?;
    stage.kubelet_mut(0).start_again()?;
    let after = wait_for_resources(stage, "web", "other", &small)?;
    wait_for_values(stage, &group, &expected(200, 400, 128))?;
    ensure!(after.restarts() == 0, "{}", after.raw["status"]);
    ensure!(id_of_app(&after)? == id_of_app(&before)?);
    Ok(())
}

fn a_container_that_wants_it_starts_again_to_be_resized(stage: &mut Stage) -> anyhow::Result<()> {
    let small = resources(["100m", "100m"], ["32Mi", "32Mi"]);
    let more_cpu = resources(["200m", "200m"], ["32Mi", "32Mi"]);
    let large = resources(["200m", "200m"], ["64Mi", "64Mi"]);
    let policy = json!({ "resizePolicy": [
        { "resourceName": "cpu", "restartPolicy": "NotRequired" },
        { "resourceName": "memory", "restartPolicy": "RestartContainer" },
    ] });
    let containers = json!([with(sleeper("app", &small), policy), sleeper("other", &small)]);
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": containers });
    stage.create_pod(&pod("web", spec))?;
    let before = stage.wait_until_ready("web")?;
    resize(stage, "web", &[("app", &more_cpu)])?;
    let after = wait_for_resources(stage, "web", "app", &more_cpu)?;
    ensure!(after.restarts() == 0, "{}", after.raw["status"]);

    resize(stage, "web", &[("app", &large)])?;
    wait_for_resources(stage, "web", "app", &large)?;
    stage.wait_for_event("web", "Killing", "Container app resize requires restart")?;
    let after = stage.wait_until_ready("web")?;
    ensure!(after.restarts() == 1, "{}", after.raw["status"]);
    let other = |pod: &PodView| status_of(pod, "other")["containerID"].clone();
    ensure!(other(&before) == other(&after), "the other started again");
    let group = format!("kubepods/pod{}", before.uid);
    ensure!(values(stage, &group)? == expected(300, 300, 96), "{:?}", values(stage, &group)?);
    let app = format!("{group}/{}", id_of_app(&after)?);
    ensure!(values(stage, &app)? == expected(200, 200, 64), "{:?}", values(stage, &app)?);

    // Whoever comes next knows what it was started with.
    kill_kubelet(stage)?;
    let again = stage.wait_until_ready("web")?;
    ensure!(id_of_app(&again)? == id_of_app(&after)?, "{}", again.raw["status"]);
    Ok(())
}

fn a_resize_waits_for_room_and_is_not_forgotten(stage: &mut Stage) -> anyhow::Result<()> {
    let node = stage.get("/api/v1/nodes/node-1")?;
    let cpu = node["status"]["allocatable"]["cpu"].as_str().context("no cpu")?;
    let milli: u64 = match cpu.strip_suffix('m') {
        Some(milli) => milli.parse()?,
        None => cpu.parse::<u64>()? * 1000,
    };
    let most = format!("{}m", milli * 6 / 10);
    let asking = |cpu: &str| json!({ "requests": { "cpu": cpu } });
    let spec = |cpu: &str| json!({ "containers": [sleeper("app", &asking(cpu))] });
    stage.create_pod(&pod("large", spec(&most)))?;
    stage.create_pod(&pod("small", spec("100m")))?;
    let pods = stage.wait_for_pods(2, "ready", |pod| pod.ready)?;
    let small = pods.iter().find(|pod| pod.name == "small").context("no small")?.clone();

    let too_much = resize(stage, "small", &[("app", &asking("1000"))]);
    ensure!(too_much.is_err(), "more than the node has was let through");
    resize(stage, "small", &[("app", &asking(&most))])?;
    let is_deferred = |pod: &PodView| {
        condition(&pod.raw, PENDING).is_ok_and(|pending| {
            pending["reason"] == "Deferred"
                && pending["observedGeneration"] == pod.raw["metadata"]["generation"]
                && pending["message"]
                    .as_str()
                    .is_some_and(|text| text.starts_with("Node didn't have enough resource: cpu"))
        })
    };
    let deferred = stage.wait_for_pod("small", "deferred", is_deferred)?;
    stage.wait_for_event("small", "ResizeDeferred", "Pod resize OutOfcpu: {\"containers\":[{")?;
    let allocated =
        |pod: &PodView| status_of(pod, "app")["allocatedResources"]["cpu"] == json!("100m");
    ensure!(allocated(&deferred), "{}", deferred.raw["status"]);

    kill_kubelet(stage)?;
    let pending = metrics(stage, "kubelet_pod_pending_resizes{reason=\"deferred\"}")?;
    ensure!(pending.len() == 1 && pending[0].ends_with(" 1"), "{pending:?}");
    let still = stage.wait_until_ready("small")?;
    ensure!(is_deferred(&still) && allocated(&still), "{}", still.raw["status"]);
    let since = |pod: &PodView| -> anyhow::Result<Value> {
        Ok(condition(&pod.raw, PENDING)?["lastTransitionTime"].clone())
    };
    ensure!(since(&still)? == since(&deferred)?, "{}", still.raw["status"]);

    stage.kubectl(&["delete", "pod", "large", "--grace-period=1"])?;
    let after = wait_for_resources(stage, "small", "app", &asking(&most))?;
    ensure!(after.restarts() == 0 && id_of_app(&after)? == id_of_app(&small)?);
    let accepted = metrics(stage, "kubelet_pod_deferred_accepted_resizes_total{")?;
    ensure!(accepted.len() == 1 && accepted[0].ends_with(" 1"), "{accepted:?}");
    let app = format!("kubepods/burstable/pod{}/{}", small.uid, id_of_app(&small)?);
    let [shares, ..] = expected(milli * 6 / 10, 0, 0);
    ensure!(values(stage, &app)?[0] == shares, "{:?}", values(stage, &app)?);

    // It asks for more, and then for what it has.
    resize(stage, "small", &[("app", &asking(&format!("{}m", milli - 1)))])?;
    resize(stage, "small", &[("app", &asking(&most))])?;
    wait_for_resources(stage, "small", "app", &asking(&most)).map(drop)
}

fn memory_in_use_is_not_taken_away(stage: &mut Stage) -> anyhow::Result<()> {
    let script = "dd if=/dev/zero of=/dev/shm/ballast bs=1M count=40; exec sleep 3600";
    let limited = |memory: &str| json!({ "limits": { "memory": memory } });
    let container = with(busybox("app", script), json!({ "resources": limited("100Mi") }));
    let probe = json!({ "periodSeconds": 1, "timeoutSeconds": 10, "exec": {
        "command": ["sh", "-c", "test $(stat -c %s /dev/shm/ballast) -ge 41943040"],
    } });
    let container = with(container, json!({ "readinessProbe": probe }));
    stage.create_pod(&pod("full", json!({ "containers": [container] })))?;
    let before = stage.wait_until_ready("full")?;
    let whole = |memory: &str| {
        json!({
            "requests": { "memory": memory }, "limits": { "memory": memory },
        })
    };
    resize(stage, "full", &[("app", &whole("24Mi"))])?;
    let failed = stage.wait_for_pod("full", "refused what it cannot give", |pod| {
        condition(&pod.raw, IN_PROGRESS).is_ok_and(|it| it["reason"] == "Error")
    })?;
    let message = condition(&failed.raw, IN_PROGRESS)?["message"].to_string();
    let text =
        "cannot decrease memory limits: [attempting to set pod memory limit (25165824) below";
    ensure!(message.contains(text), "{message}");
    let told = &failed.raw["status"]["resources"]["limits"]["memory"];
    ensure!(told == "100Mi", "what is not in force is told: {told}");
    stage.wait_for_event("full", "ResizeError", "below current usage")?;
    let app = format!("kubepods/burstable/pod{}/{}", before.uid, id_of_app(&before)?);
    let limit = |values: [String; 3]| values[2].clone();
    ensure!(limit(values(stage, &app)?) == (100u64 << 20).to_string());

    resize(stage, "full", &[("app", &whole("64Mi"))])?;
    let after = wait_for_resources(stage, "full", "app", &whole("64Mi"))?;
    ensure!(limit(values(stage, &app)?) == (64u64 << 20).to_string());
    ensure!(after.restarts() == 0, "{}", after.raw["status"]);
    Ok(())
}

fn a_pod_is_resized_as_a_whole(stage: &mut Stage) -> anyhow::Result<()> {
    let small = resources(["100m", "200m"], ["64Mi", "64Mi"]);
    let large = resources(["200m", "400m"], ["128Mi", "128Mi"]);
    let containers = json!([busybox("app", "exec sleep 3600")]);
    stage.create_pod(&pod("web", json!({ "resources": small, "containers": containers })))?;
    let before = stage.wait_until_ready("web")?;
    let group = format!("kubepods/burstable/pod{}", before.uid);
    wait_for_values(stage, &group, &expected(100, 200, 64))?;
    let patch = json!({ "spec": { "resources": large } }).to_string();
    stage.kubectl(&["patch", "pod", "web", "--subresource", "resize", "--patch", &patch])?;
    let after = stage.wait_for_pod("web", "resized", is_settled)?;
    wait_for_values(stage, &group, &expected(200, 400, 128))?;
    let app = format!("{group}/{}", id_of_app(&before)?);
    let [_, quota, memory] = expected(200, 400, 128);
    let found = values(stage, &app)?;
    ensure!(found[1] == quota && found[2] == memory, "{found:?}");
    ensure!(after.restarts() == 0, "{}", after.raw["status"]);
    Ok(())
}
