//! What a scraper reads: after a pod ran, was probed, was restarted and went.

use std::net::IpAddr;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{pod, probe_target};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, RuntimeKind, wait_for};
use serde_json::json;

use crate::WAIT;
use crate::server;

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "metrics_tell_of_a_pods_life_and_forget_it",
    runtimes: &RuntimeKind::ALL,
    run: metrics_tell_of_a_pods_life_and_forget_it,
}];

/// The series of a text in Prometheus' format.
struct Scrape(Vec<Series>);

#[derive(Debug)]
struct Series {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Scrape {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| Series::parse(line).with_context(|| format!("no series: {line}")))
            .collect::<anyhow::Result<_>>()
            .map(Self)
    }

    /// All series of that name whose labels are among others these, together; none if there is none.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |series: &Series, (name, value): &(&str, &str)| {
            series.labels.iter().any(|(known, is)| known == name && is == value)
        };
        let fitting = self
            .0
            .iter()
            .filter(|series| series.name == name && labels.iter().all(|label| has(series, label)));
        fitting.map(|series| series.value).reduce(|sum, value| sum + value)
    }

    fn expect(&self, name: &str, labels: &[(&str, &str)], expected: f64) -> anyhow::Result<()> {
        let found = self.sum(name, labels);
        ensure!(found == Some(expected), "{name}{labels:?} is {found:?}, not {expected}");
        Ok(())
    }

    fn expect_at_least(
        &self,
        name: &str,
        labels: &[(&str, &str)],
        least: f64,
    ) -> anyhow::Result<()> {
        let found = self.sum(name, labels);
        ensure!(found >= Some(least), "{name}{labels:?} is {found:?}, below {least}");
        Ok(())
    }
}

impl Series {
    /// `name{label="value",...} number`; no value of ours needs escaping.
    fn parse(line: &str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (series, ""),
        };
        let pairs = labels.split("\",").filter(|pair| !pair.is_empty());
        let labels = pairs.map(|pair| {
            let (label, value) = pair.split_once("=\"")?;
            Some((label.to_owned(), value.trim_end_matches('"').to_owned()))
        });
        let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok()? };
        Some(Self { name: name.to_owned(), labels: labels.collect::<Option<_>>()?, value })
    }
}

fn scrape(kubelet: &KubeletProcess, path: &str) -> anyhow::Result<Scrape> {
    let (status, body) = kubelet.get(10255, path)?;
    let text = String::from_utf8(body)?;
    ensure!(status == 200, "{path} answered {status}: {text}");
    Scrape::parse(&text)
}

fn metrics_tell_of_a_pods_life_and_forget_it(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let mut container = probe_target("server");
    container["args"] = json!(["--http", "8080"]);
    container["livenessProbe"] = json!({
        "httpGet": { "path": "/health", "port": 8080 },
        "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 2,
    });
    container["volumeMounts"] = json!([{ "name": "scratch", "mountPath": "/scratch" }]);
    let spec = json!({
        "containers": [container],
        "volumes": [{ "name": "scratch", "emptyDir": {} }],
        "terminationGracePeriodSeconds": 1,
    });
    kubelet.write_pod(&pod("counted", spec))?;
    let running = kubelet.wait_for_pod("counted", "ready", WAIT, |pod| pod.ready)?;
    let address: IpAddr = running.ip.parse().context("the pod has no address")?;
    wait_for("the server to fail from now on", WAIT, || {
        match kubelet.get_from(address, 8080, "/set/http/503") {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    kubelet.wait_for_pod("counted", "restarted", WAIT, |pod| pod.ready && pod.restarts() == 1)?;
    // What the second run of the container says of itself is counted from its first probe on, and
    // what runs as of the next relist, which is far off while the runtime sends events.
    wait_for("probes of both kinds, and a relist", WAIT, || {
        let read = |path| scrape(&kubelet, path).map_err(|error| format!("{error:#}"));
        let (probes, metrics) = (read("/metrics/probes")?, read("/metrics")?);
        let of = |result| [("pod", running.name.as_str()), ("result", result)];
        let failed = probes.sum("prober_probe_total", &of("failed"));
        let successful = probes.sum("prober_probe_total", &of("successful"));
        let running = [("container_state", "running")];
        let runs = metrics.sum("kubelet_running_containers", &running);
        if failed >= Some(2.0) && successful >= Some(1.0) && runs == Some(1.0) {
            return Ok(());
        }
        Err(format!("{failed:?} failed, {successful:?} succeeded, {runs:?} containers run"))
    })?;

    let metrics = scrape(&kubelet, "/metrics")?;
    let of = |operation| [("operation_type", operation)];
    metrics.expect("kubelet_started_pods_total", &[], 1.0)?;
    metrics.expect("kubelet_started_pods_errors_total", &[], 0.0)?;
    metrics.expect("kubelet_started_containers_total", &[("container_type", "container")], 2.0)?;
    metrics.expect(
        "kubelet_terminated_containers_total",
        &[("container_type", "container")],
        1.0,
    )?;
    metrics.expect("kubelet_desired_pods", &[("static", "true")], 1.0)?;
    metrics.expect("kubelet_active_pods", &[("static", "true")], 1.0)?;
    metrics.expect("kubelet_working_pods", &[("config", "desired"), ("lifecycle", "sync")], 1.0)?;
    metrics.expect("kubelet_working_pods", &[], 1.0)?;
    metrics.expect("kubelet_running_pods", &[], 1.0)?;
    metrics.expect("kubelet_running_containers", &[("container_state", "running")], 1.0)?;
    metrics.expect("kubelet_pod_start_duration_seconds_count", &[], 1.0)?;
    metrics.expect("kubelet_pod_worker_start_duration_seconds_count", &[], 1.0)?;
    metrics.expect("kubelet_pod_worker_duration_seconds_count", &of("create"), 1.0)?;
    metrics.expect("kubelet_containers_per_pod_count_sum", &[], 1.0)?;
    let node = stage.kubelet_options().node_name;
    metrics.expect("kubelet_node_name", &[("node", node.as_str())], 1.0)?;
    metrics.expect("kubelet_runtime_operations_total", &of("run_podsandbox"), 1.0)?;
    metrics.expect("kubelet_runtime_operations_total", &of("start_container"), 2.0)?;
    metrics.expect("kubelet_run_podsandbox_duration_seconds_count", &[], 1.0)?;
    metrics.expect_at_least("kubelet_pleg_relist_duration_seconds_count", &[], 1.0)?;
    metrics.expect_at_least("kubelet_pleg_last_seen_seconds", &[], 1.7e9)?;
    let pulled =
        [("pull_policy", "never"), ("present_locally", "true"), ("pull_required", "false")];
    metrics.expect("kubelet_image_manager_ensure_image_requests_total", &pulled, 2.0)?;
    let empty_dir = ("volume_plugin", "kubernetes.io/empty-dir");
    let mounts = [empty_dir, ("operation_name", "volume_mount"), ("status", "success")];
    metrics.expect("storage_operation_duration_seconds_count", &mounts, 1.0)?;
    for state in ["desired_state_of_world", "actual_state_of_world"] {
        let volumes = [("plugin_name", "kubernetes.io/empty-dir"), ("state", state)];
        metrics.expect("volume_manager_total_volumes", &volumes, 1.0)?;
    }
    metrics.expect_at_least("kubelet_cgroup_manager_duration_seconds_count", &of("create"), 1.0)?;
    metrics.expect("kubernetes_build_info", &[("major", "1"), ("minor", "36")], 1.0)?;
    let gate = [("name", "SidecarContainers"), ("stage", "")];
    metrics.expect("kubernetes_feature_enabled", &gate, 1.0)?;
    metrics.expect_at_least("process_resident_memory_bytes", &[], 1e6)?;
    metrics.expect_at_least("process_open_fds", &[], 5.0)?;
    let scrapes = [("path", "metrics/probes"), ("server_type", "readonly")];
    metrics.expect_at_least("kubelet_http_requests_total", &scrapes, 1.0)?;

    let probes = scrape(&kubelet, "/metrics/probes")?;
    let labels =
        [("probe_type", "Liveness"), ("container", "server"), ("pod_uid", running.uid.as_str())];
    probes.expect_at_least("prober_probe_total", &labels, 2.0)?;
    probes.expect_at_least("prober_probe_duration_seconds_count", &labels[..2], 1.0)?;

    // Reading what health checks came to begins anew.
    scrape(&kubelet, "/metrics/slis")?;
    kubelet.get(10255, "/healthz")?;
    let checks = scrape(&kubelet, "/metrics/slis")?;
    checks.expect("kubernetes_healthcheck", &[("name", "syncloop"), ("type", "healthz")], 1.0)?;
    let passed = [("name", "syncloop"), ("status", "success")];
    checks.expect("kubernetes_healthchecks_total", &passed, 1.0)?;

    let (status, text) = server::get(&kubelet, None, "/metrics")?;
    ensure!(status == 200, "10250 answered {status}: {text}");
    Scrape::parse(&text)?.expect("kubelet_running_pods", &[], 1.0)?;

    kubelet.remove_pod("counted")?;
    kubelet.wait_until_gone("counted", WAIT)?;
    wait_for("its series to go", WAIT, || {
        let read = |path| scrape(&kubelet, path).map_err(|error| format!("{error:#}"));
        let probes = read("/metrics/probes")?;
        if let Some(left) = probes.0.first() {
            return Err(format!("{left:?} is left"));
        }
        let metrics = read("/metrics")?;
        for name in ["kubelet_desired_pods", "kubelet_working_pods", "kubelet_running_pods"] {
            if metrics.sum(name, &[]) != Some(0.0) {
                return Err(format!("{name} is {:?}", metrics.sum(name, &[])));
            }
        }
        match metrics.sum("volume_manager_total_volumes", &[]) {
            None => Ok(()),
            Some(volumes) => Err(format!("{volumes} volumes are left")),
        }
    })?;
    let metrics = scrape(&kubelet, "/metrics")?;
    let unmounts = [empty_dir, ("operation_name", "volume_unmount"), ("status", "success")];
    metrics.expect("storage_operation_duration_seconds_count", &unmounts, 1.0)?;
    metrics.expect_at_least("kubelet_pod_worker_duration_seconds_count", &of("kill"), 1.0)?;
    metrics.expect_at_least(
        "kubelet_cgroup_manager_duration_seconds_count",
        &of("destroy"),
        1.0,
    )?;
    metrics.expect("kubelet_terminated_containers_total", &[("container_type", "container")], 2.0)
}
