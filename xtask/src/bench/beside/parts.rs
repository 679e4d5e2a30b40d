//! What is measured of one kubelet in one turn.

use std::time::{Duration, Instant};

use anyhow::Context;
use rubelet_e2e::kill_container;
use serde_json::{Value, json};

use super::Options;
use super::calls::Mark;
use super::cpu::CpuTime;
use super::ends::Ends;
use super::node::{NAMESPACE, Node};
use super::samples::{Measure, Samples};

/// Until what the last work has stirred up has settled, such as events that are told bit by bit.
const SETTLE: Duration = Duration::from_secs(20);
/// Until what a kubelet has to write after its start is written.
const AFTER_START: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(120);
/// The size of the log that is read, and how often it is.
const LOG_BYTES: u64 = 64 << 20;
const LOG_READS: usize = 3;
/// Until what is left of a pod whose container has ended is out of the way.
const AFTER_END: Duration = Duration::from_secs(1);
/// How long commands are run in a container.
const EXEC_FOR: Duration = Duration::from_secs(3);

/// The smallest container there is: it only waits.
fn pause() -> Value {
    json!({ "containers": [{
        "name": "app",
        "image": "registry.k8s.io/pause:3.10",
        "imagePullPolicy": "Never",
        "resources": { "requests": { "cpu": "1m", "memory": "1Mi" } },
    }] })
}

fn busybox(script: &str) -> Value {
    json!({
        "restartPolicy": "Never",
        "containers": [{
            "name": "app",
            "image": "busybox",
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
        }],
    })
}

/// Everything, of a kubelet that has just been started on an empty node.
pub(super) fn measure(node: &mut Node<'_>, options: &Options) -> anyhow::Result<Samples> {
    let mut samples = Samples::default();
    rest(node, options, 0, &mut samples)?;
    for count in &options.sizes {
        at_once(node, options, *count, &mut samples)?;
    }
    if options.singles > 0 {
        // The runtime still removes what is left of those that were many.
        node.interrupt.sleep(SETTLE)?;
        one_by_one(node, options.singles, &mut samples)?;
        exits(node, options.singles, &mut samples)?;
    }
    execs(node, &mut samples)?;
    logs(node, &mut samples)?;
    Ok(samples)
}

/// Memory and CPU of a node with `pods` on which nothing happens.
fn rest(
    node: &Node<'_>,
    options: &Options,
    pods: usize,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    node.interrupt.sleep(SETTLE)?;
    let (from, before) = (Instant::now(), node.usage()?);
    node.interrupt.sleep(options.idle)?;
    let (length, after) = (from.elapsed(), node.usage()?);
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64() / length.as_secs_f64();
    samples.add(Measure::Resident(pods), after.resident as f64 / (1024.0 * 1024.0));
    samples.add(Measure::IdleCpu(pods), cpu * 100.0);
    samples.add(Measure::Threads(pods), after.threads as f64);
    Ok(())
}

/// Many pods at once; what they cost at rest, if they are the most; a restart; and their end.
fn at_once(
    node: &mut Node<'_>,
    options: &Options,
    count: usize,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let watch = node.watch();
    let mark = Mark::now(node.cluster.runtimes()[0].dir())?;
    let (began, before) = (Instant::now(), CpuTime::now(node)?);
    node.create_pods((0..count).map(|number| format!("pod-{number}")), &pause())?;
    let ready = node.wait_until_ready(&watch, count)?;
    let writes = watch.look(|seen| seen.writes);
    let cpu = CpuTime::now(node)?.since(before);
    let calls = mark.calls()?;
    samples.add(Measure::AtOnce(count), (ready - began).as_secs_f64());
    samples.add(Measure::AtOnceCalls(count), calls.busy().as_secs_f64());
    samples.add(Measure::AtOnceInFlight(count), in_flight(calls.sum(), calls.busy()));
    samples.add(Measure::AtOnceCpu(count), cpu.kubelet.as_secs_f64());
    samples.add(Measure::AtOnceCpuOfPlane(count), cpu.control_plane.as_secs_f64());
    samples.add(Measure::AtOnceCpuOfRuntime(count), cpu.runtime().as_secs_f64());
    samples.add(Measure::AtOnceWrites(count), writes as f64 / count as f64);
    if count >= options.rest_from() {
        rest(node, options, count, samples)?;
    }
    if options.sizes.last() == Some(&count) {
        restart(node, &watch, count, samples)?;
    }
    let gone = node.delete_pods(&watch)?;
    samples.add(Measure::Gone(count), gone.as_secs_f64());
    Ok(())
}

fn in_flight(sum: Duration, busy: Duration) -> f64 {
    if busy.is_zero() { 0.0 } else { sum.as_secs_f64() / busy.as_secs_f64() }
}

/// The kubelet is killed, and a new one takes over.
fn restart(
    node: &mut Node<'_>,
    watch: &super::watch::PodWatch,
    count: usize,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let (writes, flips, containers) =
        watch.look(|seen| (seen.writes, seen.flips, seen.containers()));
    node.kubelet_mut()?.sigkill()?;
    let killed = Instant::now();
    node.kubelet_mut()?.launch_again()?;
    node.wait_until_told(count)?;
    samples.add(Measure::Restart, killed.elapsed().as_secs_f64());
    node.kubelet_mut()?.wait_until_healthy()?;
    node.interrupt.sleep(AFTER_START)?;
    watch.look(|seen| {
        let now = seen.containers();
        let replaced = now.iter().filter(|id| !containers.contains(id)).count();
        samples.add(Measure::RestartReplaced, replaced as f64);
        samples.add(Measure::RestartFlips, (seen.flips - flips) as f64);
        samples.add(Measure::RestartWrites, (seen.writes - writes) as f64);
    });
    Ok(())
}

/// Pods that come and go alone.
fn one_by_one(node: &Node<'_>, count: usize, samples: &mut Samples) -> anyhow::Result<()> {
    for number in 0..count {
        let watch = node.watch();
        let mark = Mark::now(node.cluster.runtimes()[0].dir())?;
        let asked = node.asked()?;
        let name = format!("single-{number}");
        node.create_pods(std::iter::once(name.clone()), &pause())?;
        let ready = node.wait_until_ready(&watch, 1)?;
        let (seen_at, uid) = watch.look(|seen| {
            let one = &seen.pods[&name];
            (one.added, one.pod.uid.clone())
        });
        let (total, of_runtime) =
            (ready.saturating_duration_since(seen_at), mark.calls()?.of_pod(&uid));
        let questions = node.asked()?.since(&asked);
        let added = total.saturating_sub(of_runtime).saturating_sub(questions);
        samples.add(Measure::Single, milliseconds(total));
        samples.add(Measure::SingleCalls, milliseconds(of_runtime));
        samples.add(Measure::SingleQuestions, milliseconds(questions));
        samples.add(Measure::SingleAdded, milliseconds(added));
        node.delete_pods(&watch)?;
    }
    Ok(())
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Containers that end by themselves, one after the other.
fn exits(node: &Node<'_>, count: usize, samples: &mut Samples) -> anyhow::Result<()> {
    let watch = node.watch();
    let names: Vec<String> = (0..count).map(|number| format!("exit-{number}")).collect();
    node.create_pods(names.iter().cloned(), &busybox("exec sleep 3600"))?;
    node.wait_until_ready(&watch, count)?;
    let group = node.cluster.runtimes()[0].cgroup().to_owned();
    let ends = Ends::watch(node)?;
    for name in &names {
        let id = watch.look(|seen| seen.containers_of(name));
        let id = id.first().with_context(|| format!("{name} has no container"))?;
        node.interrupt.sleep(AFTER_END)?;
        anyhow::ensure!(kill_container(&group, id) > 0, "{name} has no process");
        let killed = Instant::now();
        let over = watch.wait("the end of a pod", PATIENCE, node.interrupt, |seen| {
            seen.pods.get(name).and_then(|one| one.over)
        })?;
        let of_runtime = ends.of(id)?.saturating_duration_since(killed);
        samples.add(Measure::Exit, milliseconds(over.saturating_duration_since(killed)));
        samples.add(Measure::ExitOfRuntime, milliseconds(of_runtime));
    }
    node.delete_pods(&watch).map(drop)
}

/// Commands in a container, one after the other, each with a connection of its own.
fn execs(node: &Node<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let watch = node.watch();
    node.create_pods(std::iter::once("exec".to_owned()), &busybox("exec sleep 3600"))?;
    node.wait_until_ready(&watch, 1)?;
    let client = node.node_api();
    let path = format!("/exec/{NAMESPACE}/exec/app?command=true&output=1&error=1");
    let began = Instant::now();
    let mut count = 0_u32;
    while began.elapsed() < EXEC_FOR {
        node.interrupt.check()?;
        node.cluster.block_on(client.exec(&path))?;
        count += 1;
    }
    samples.add(Measure::Execs, f64::from(count) / began.elapsed().as_secs_f64());
    node.delete_pods(&watch).map(drop)
}

/// A long log, read from its beginning to its end.
fn logs(node: &Node<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let watch = node.watch();
    let line = "x".repeat(99);
    let script = format!("yes {line} | head -c {LOG_BYTES}");
    node.create_pods(std::iter::once("log".to_owned()), &busybox(&script))?;
    watch.wait("the log to be written", PATIENCE, node.interrupt, |seen| {
        seen.pods.get("log").and_then(|one| one.over)
    })?;
    let client = node.node_api();
    let path = format!("/containerLogs/{NAMESPACE}/log/app");
    for _ in 0..LOG_READS {
        node.interrupt.check()?;
        let began = Instant::now();
        let bytes = node.cluster.block_on(client.download(&path))?;
        let elapsed = began.elapsed().as_secs_f64();
        anyhow::ensure!(bytes == LOG_BYTES, "the log has {bytes} bytes and not {LOG_BYTES}");
        samples.add(Measure::Logs, bytes as f64 / elapsed / 1e6);
    }
    node.delete_pods(&watch).map(drop)
}
