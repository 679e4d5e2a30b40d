//! What a kubelet makes of itself and of its node, as its configuration says.

use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::ensure;
use rubelet_e2e::manifest::{busybox, pod};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, RuntimeKind, wait_for};
use serde_json::json;

use crate::WAIT;
use crate::facts::{on_node, wait_for_refusal};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::on_debian(
        "a_kubelet_makes_of_itself_what_its_configuration_says",
        a_kubelet_makes_of_itself_what_its_configuration_says,
    ),
    Scenario {
        name: "images_come_from_the_service_that_is_named_for_them",
        runtimes: &RuntimeKind::ALL,
        run: images_come_from_the_service_that_is_named_for_them,
    },
];

/// The chain by which others find out which flavour of iptables the node uses.
const HINT: &str = "KUBE-IPTABLES-HINT";

fn chains(stage: &Stage) -> anyhow::Result<String> {
    on_node(stage.runtime(), "iptables -t mangle -S; iptables -S")
}

fn wait_until_answered(kubelet: &KubeletProcess, to: SocketAddr) -> anyhow::Result<()> {
    wait_for(&format!("an answer at {to}"), WAIT, || {
        match kubelet.get_from(to.ip(), to.port(), "/healthz") {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}; its log ends with:\n{}", kubelet.log_tail(12))),
        }
    })
}

fn a_kubelet_makes_of_itself_what_its_configuration_says(stage: &Stage) -> anyhow::Result<()> {
    let runtime = stage.runtime();
    // What earlier kubelets of this node made.
    on_node(
        runtime,
        &format!("iptables -t mangle -F {HINT} && iptables -t mangle -X {HINT} || :"),
    )?;
    let address = runtime.node_address();
    let cgroup = format!("{}/kubelet", runtime.cgroup());
    let mut options = stage.kubelet_options();
    // From a lower limit than the machine may allow at most.
    let wrapped = runtime.dir().join("kubelet-with-few-files");
    let script = format!("#!/bin/sh\nulimit -Sn 1024\nexec {} \"$@\"\n", options.binary.display());
    fs::write(&wrapped, script)?;
    fs::set_permissions(&wrapped, Permissions::from_mode(0o755))?;
    options.binary = wrapped;
    options.config = json!({
        "oomScoreAdj": 321,
        "maxOpenFiles": 12_345,
        "kubeletCgroups": format!("/{cgroup}"),
        "healthzBindAddress": address,
        "healthzPort": 11_248,
        "address": address,
        "port": 11_250,
        "readOnlyPort": 11_255,
        "makeIPTablesUtilChains": false,
    });
    let mut kubelet = KubeletProcess::launch(runtime, options)?;
    for port in [11_248, 11_255] {
        wait_until_answered(&kubelet, SocketAddr::new(address, port))?;
    }
    let namespaces = runtime.namespaces();
    let is_open =
        |ip, port| namespaces.connect(SocketAddr::new(ip, port), Duration::from_secs(10)).is_ok();
    ensure!(is_open(address, 11_250), "its API is not where it should be");
    for port in [11_248, 11_250, 11_255] {
        ensure!(!is_open(Ipv4Addr::LOCALHOST.into(), port), "{port} is open on loopback too");
    }
    for port in [10_248, 10_250, 10_255] {
        ensure!(!is_open(address, port), "the usual port {port} is open");
    }

    let of_process = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", kubelet.pid()));
    ensure!(of_process("oom_score_adj")?.trim() == "321", "{}", of_process("oom_score_adj")?);
    let limits = of_process("limits")?;
    let files = limits.lines().find(|line| line.starts_with("Max open files"));
    ensure!(files.is_some_and(|line| line.contains(" 12345 ")), "{limits}");
    let cgroups = of_process("cgroup")?;
    ensure!(cgroups.lines().any(|line| line.ends_with(&format!("/{cgroup}"))), "{cgroups}");
    ensure!(!chains(stage)?.contains(HINT), "{}", chains(stage)?);

    kubelet.options_mut().config = json!({ "healthzPort": 0 });
    kubelet.stop()?;
    kubelet.launch_again()?;
    let open = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10_255);
    wait_until_answered(&kubelet, open)?;
    ensure!(!is_open(open.ip(), 10_248), "its health is told although it should not be");
    wait_for("the chain", WAIT, || match chains(stage) {
        Ok(chains) if chains.contains(HINT) => Ok(()),
        other => Err(format!("{other:?}")),
    })
}

fn images_come_from_the_service_that_is_named_for_them(stage: &Stage) -> anyhow::Result<()> {
    let nowhere = stage.runtime().dir().join("nobody.sock");
    let mut options = stage.kubelet_options();
    options.config = json!({
        "imageServiceEndpoint": format!("unix://{}", nowhere.display()),
        "logging": { "verbosity": 3 },
        // A runtime that tells who makes cgroups is believed.
        "cgroupDriver": match stage.runtime().kind() {
            RuntimeKind::Debian => "cgroupfs",
            RuntimeKind::Built => "systemd",
        },
    });
    let mut kubelet = stage.start_kubelet_with(options)?;
    let app = busybox("app", "exec sleep 3600");
    kubelet.write_pod(&pod("asks", json!({ "containers": [app] })))?;
    let message = wait_for_refusal(&kubelet, "asks", "app", "ImageInspectError")?;
    ensure!(message.contains("busybox"), "{message}");
    let endpoint = format!("unix://{}", stage.runtime().socket().display());
    kubelet.options_mut().config["imageServiceEndpoint"] = json!(endpoint);
    kubelet.restart()?;
    kubelet.wait_for_pod("asks", "ready", WAIT, |pod| pod.ready)?;
    Ok(())
}
