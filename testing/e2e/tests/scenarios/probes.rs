//! Probes against a server whose answers change.

use std::net::IpAddr;

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, PodView, RuntimeKind, wait_for};

use crate::WAIT;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "readiness_follows_the_http_probe",
        runtimes: &RuntimeKind::ALL,
        run: readiness_follows_the_http_probe,
    },
    Scenario {
        name: "a_failed_grpc_liveness_probe_restarts_the_container",
        runtimes: &RuntimeKind::ALL,
        run: a_failed_grpc_liveness_probe_restarts_the_container,
    },
    Scenario {
        name: "tcp_and_exec_probes_make_a_pod_ready",
        runtimes: &RuntimeKind::ALL,
        run: tcp_and_exec_probes_make_a_pod_ready,
    },
];

fn readiness_follows_the_http_probe(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let probes = "readinessProbe: {httpGet: {path: /health, port: 8080}, periodSeconds: 1, \
                  timeoutSeconds: 10}";
    write_target(&kubelet, probes)?;
    let pod = kubelet.wait_for_pod("target", "ready", WAIT, |pod| pod.ready)?;
    tell(&kubelet, &pod, "/set/http/503")?;
    kubelet.wait_for_pod("target", "not ready", WAIT, |pod| !pod.ready)?;
    tell(&kubelet, &pod, "/set/http/204")?;
    let pod = kubelet.wait_for_pod("target", "ready again", WAIT, |pod| pod.ready)?;
    assert_eq!(pod.restarts(), 0, "readiness restarts nothing");
    Ok(())
}

fn a_failed_grpc_liveness_probe_restarts_the_container(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let probes = "livenessProbe: {grpc: {port: 9090, service: web}, periodSeconds: 1, \
                  timeoutSeconds: 10, failureThreshold: 2}";
    write_target(&kubelet, probes)?;
    let pod = kubelet.wait_for_pod("target", "ready", WAIT, |pod| pod.ready)?;
    tell(&kubelet, &pod, "/set/grpc/not-serving")?;
    let pod = kubelet
        .wait_for_pod("target", "restarted", WAIT, |pod| pod.ready && pod.restarts() == 1)?;
    let last = &pod.raw["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert!(last["exitCode"].is_number(), "its last state is {last}");
    Ok(())
}

fn tcp_and_exec_probes_make_a_pod_ready(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let probes = "startupProbe: {tcpSocket: {port: 7070}, periodSeconds: 1, failureThreshold: 60}\n    \
                  readinessProbe: {exec: {command: [test, -x, /probe-target]}, \
                  periodSeconds: 1, timeoutSeconds: 10}";
    write_target(&kubelet, probes)?;
    let pod = kubelet.wait_for_pod("target", "ready", WAIT, |pod| pod.ready)?;
    assert_eq!(pod.raw["status"]["containerStatuses"][0]["started"], true);
    Ok(())
}

fn write_target(kubelet: &KubeletProcess, probes: &str) -> anyhow::Result<()> {
    let manifest = format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: target}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: localhost/rubelet/probe-target:1
    imagePullPolicy: Never
    args: [--http, "8080", --grpc, "9090", --tcp, "7070"]
    {probes}
"#
    );
    kubelet.write_manifest("target.yaml", &manifest)
}

/// Makes the server answer otherwise from now on, once it is up.
fn tell(kubelet: &KubeletProcess, pod: &PodView, path: &str) -> anyhow::Result<()> {
    let address: IpAddr = pod.ip.parse().context("the pod has no address")?;
    wait_for(&format!("{path} to be taken"), WAIT, || match kubelet.get_from(address, 8080, path) {
        Ok((200, _)) => Ok(()),
        Ok((status, _)) => Err(format!("it answered {status}")),
        Err(error) => Err(format!("{error:#}")),
    })
}
