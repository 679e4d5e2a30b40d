//! One run of one kubelet on a fresh runtime.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use rubelet_e2e::{
    Cache, KubeletOptions, KubeletProcess, Lifetime, PodView, Runtime, RuntimeOptions, Tools,
};
use serde_json::json;

use super::Options;
use super::outcome::Outcome;
use crate::interrupt::Interrupt;

const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A kubelet that starts one static pod every ten seconds still gets there.
const PATIENCE_PER_POD: Duration = Duration::from_secs(15);
/// Until what the start has stirred up has settled.
const SETTLE: Duration = Duration::from_secs(10);

pub(super) fn measure(
    tools: &Tools,
    cache: &Cache,
    binary: &Path,
    options: &Options,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcome> {
    let runtime = Arc::new(Runtime::start(
        tools.clone(),
        RuntimeOptions { name: "bench".to_owned(), run: cache.run(), lifetime: Lifetime::WithUs },
    )?);
    let mut kubelet_options = KubeletOptions::new(binary, "bench");
    kubelet_options.config = json!({ "maxPods": options.pods + 10 });
    let mut kubelet = KubeletProcess::start(&runtime, kubelet_options)?;
    let before = kubelet.usage()?;

    let started = Instant::now();
    for number in 0..options.pods {
        kubelet.write_manifest(&format!("pod-{number}.yaml"), &manifest(number))?;
    }
    let patience = Duration::from_secs(60)
        + PATIENCE_PER_POD * u32::try_from(options.pods).unwrap_or(u32::MAX);
    until_all_run(&kubelet, options.pods, patience, interrupt)?;
    let all_running = started.elapsed();
    let after_start = kubelet.usage()?;

    interrupt.sleep(SETTLE)?;
    let idle = Duration::from_secs(options.idle_seconds.max(1));
    let (idle_from, idle_before) = (Instant::now(), kubelet.usage()?);
    interrupt.sleep(idle)?;
    let (idle_for, idle_after) = (idle_from.elapsed(), kubelet.usage()?);

    let containers = container_ids(&kubelet.pods()?);
    kubelet.sigkill()?;
    let killed = Instant::now();
    kubelet.start_again()?;
    until_all_run(&kubelet, options.pods, patience, interrupt)?;
    let restarted = killed.elapsed();
    let same = containers == container_ids(&kubelet.pods()?);

    Ok(Outcome {
        all_running,
        start_cpu: after_start.cpu.saturating_sub(before.cpu),
        resident: idle_after.resident,
        resident_peak: idle_after.resident_peak,
        idle_cpu: idle_after.cpu.saturating_sub(idle_before.cpu).as_secs_f64()
            / idle_for.as_secs_f64(),
        threads: idle_after.threads,
        restarted,
        restart_disturbed: !same,
    })
}

fn until_all_run(
    kubelet: &KubeletProcess,
    count: usize,
    patience: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let pods = kubelet.pods().unwrap_or_default();
        let running = pods.iter().filter(|pod| pod.phase == "Running" && pod.ready).count();
        if running == count {
            return Ok(());
        }
        if started.elapsed() > patience {
            bail!(
                "only {running} of {count} pods run after {} s; the kubelet's log ends with:\n{}",
                patience.as_secs(),
                kubelet.log_tail(20)
            );
        }
        interrupt.sleep(LOOK_EVERY)?;
    }
}

fn container_ids(pods: &[PodView]) -> Vec<String> {
    let containers = pods.iter().flat_map(|pod| &pod.containers);
    let mut ids: Vec<String> = containers.map(|container| container.id.clone()).collect();
    ids.sort();
    ids
}

/// The smallest pod there is: one container that only waits.
fn manifest(number: usize) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": format!("pod-{number}") },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "pause",
                "image": "registry.k8s.io/pause:3.10",
                "imagePullPolicy": "Never",
                "resources": { "requests": { "cpu": "1m", "memory": "1Mi" } }
            }]
        }
    })
    .to_string()
}
