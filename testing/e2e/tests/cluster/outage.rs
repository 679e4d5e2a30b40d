//! A control plane that is away, and a node that is.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rubelet_control_plane::Component;
use rubelet_e2e::manifest::{busybox, probe_target, with};
use rubelet_e2e::{Diary, kill_container, wait_for};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, each_second, id_of_app, pod, template, wait_for_ticks};
use crate::{Ground, WAIT, on_one_node};

/// Statuses are right, and news are heard, so long after an outage.
const RIGHT_WITHIN: Duration = Duration::from_secs(15);

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    pods_live_on_while_the_api_server_is_away,
    pods_live_on_while_the_api_server_hangs,
];

/// Pods are rescheduled after the silence of a node.
pub(crate) const ON_TWO_NODES: &[Trial<Ground>] = &[Trial {
    name: "pods_of_a_silent_node_go_elsewhere_and_end_when_it_is_back",
    run: |ground| {
        ground.on_nodes(
            2,
            |options| options.node_monitor_grace = Some(Duration::from_secs(20)),
            pods_of_a_silent_node_go_elsewhere_and_end_when_it_is_back,
        )
    },
}];

fn pods_live_on_while_the_api_server_is_away(stage: &mut Stage) -> anyhow::Result<()> {
    live_on(
        stage,
        32,
        |stage| stage.cluster().control_plane().kill(Component::ApiServer),
        |stage| {
            let plane = stage.cluster().control_plane();
            stage.cluster().block_on(plane.start_again(Component::ApiServer))
        },
    )
}

fn pods_live_on_while_the_api_server_hangs(stage: &mut Stage) -> anyhow::Result<()> {
    live_on(
        stage,
        16,
        |stage| stage.cluster().control_plane().pause(Component::ApiServer),
        |stage| stage.cluster().control_plane().resume(Component::ApiServer),
    )
}

/// What happens to pods while nobody can be told, and that it is told afterwards.
fn live_on(
    stage: &mut Stage,
    seconds: usize,
    away: impl Fn(&Stage) -> anyhow::Result<()>,
    back: impl Fn(&Stage) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let diary = stage.diary()?;
    let volumes = json!([diary.volume()]);
    let with_diary = |who: &str, script: &str| {
        pod(
            who,
            json!({ "containers": [Diary::container("app", who, script)], "volumes": volumes }),
        )
    };
    let probe = each_second(json!({ "httpGet": { "path": "/", "port": 8080 } }));
    let probed = with(probe_target("app"), json!({ "readinessProbe": probe }));
    for pod in [
        with_diary("clock", "while :; do note tick; sleep 1; done"),
        with_diary("crashed", "note start; exec sleep 3600"),
        pod("probed", json!({ "containers": [probed] })),
        pod("deleted", json!({ "containers": [busybox("app", "exec sleep 3600")] })),
    ] {
        // The scheduler may still be waiting after an outage of the trial before.
        stage.create_pod(&on_node(pod))?;
    }
    let before = stage.wait_for_pods(4, "ready", |pod| pod.ready)?;
    let of = |name: &str| {
        let found = before.iter().find(|pod| pod.name == name);
        anyhow::Context::with_context(found, || format!("no {name}"))
    };
    diary.wait_for("crashed", "start", 1, WAIT)?;
    stage.wait_until_at_rest()?;

    away(stage)?;
    let kubelet = stage.kubelet();
    let group = kubelet.runtime().cgroup();
    ensure!(kill_container(group, &id_of_app(of("crashed")?)?) > 0, "it has no process");
    diary.wait_for("crashed", "start", 2, WAIT)?;
    let address = of("probed")?.ip.parse()?;
    kubelet.get_from(address, 8080, "/set/http/500")?;
    wait_for("the probe to be seen to fail", WAIT, || {
        let pods = kubelet.pods().map_err(|error| format!("{error:#}"))?;
        match pods.iter().find(|pod| pod.name == "probed") {
            Some(pod) if !pod.ready => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    wait_for_ticks(&diary, "clock", seconds)?;
    ensure!(kubelet.pods()?.iter().all(|pod| pod.name == "crashed" || pod.restarts() == 0));
    back(stage)?;
    let is_back = Instant::now();
    // It hears again, too. The scheduler may take longer to.
    let new = pod("new", json!({ "containers": [busybox("app", "exec sleep 3600")] }));
    stage.create_pod(&on_node(new))?;

    stage
        .wait_for_pod("crashed", "told to have crashed", |pod| pod.ready && pod.restarts() == 1)?;
    stage.wait_for_pod("probed", "told not to be ready", |pod| !pod.ready)?;
    let clock = stage.wait_until_ready("clock")?;
    ensure!(id_of_app(&clock)? == id_of_app(of("clock")?)?, "{}", clock.raw["status"]);
    ensure!(clock.restarts() == 0, "{}", clock.raw["status"]);
    stage.wait_until_ready("new")?;
    let took = is_back.elapsed();
    ensure!(took < RIGHT_WITHIN, "all was right {took:?} after the API server was back");
    stage.kubectl(&["delete", "pod", "deleted", "--timeout=120s"])?;
    stage.wait_until_node_is_ready(0)
}

/// A pod that needs no scheduler.
fn on_node(mut pod: Value) -> Value {
    pod["spec"]["nodeName"] = "node-1".into();
    pod
}

fn pods_of_a_silent_node_go_elsewhere_and_end_when_it_is_back(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let soon = |key: &str| json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1 });
    let spec = json!({
        "containers": [busybox("app", "exec sleep 3600")],
        "tolerations": [
            soon("node.kubernetes.io/unreachable"),
            // It is the other one's silence that this is about.
            { "key": "node.kubernetes.io/not-ready", "operator": "Exists" },
        ],
        "topologySpreadConstraints": [{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": { "app": "spread" } },
        }],
    });
    let deployment = json!({
        "metadata": { "name": "spread" },
        "spec": {
            "replicas": 4,
            "selector": { "matchLabels": { "app": "spread" } },
            "template": template("spread", spec),
        },
    });
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", stage.namespace());
    stage.create(&path, &deployment)?;
    let pods = stage.wait_for_pods(4, "ready", |pod| pod.ready)?;
    let on = |pod: &rubelet_e2e::PodView, node: &str| pod.raw["spec"]["nodeName"] == node;
    let lost: Vec<&str> =
        pods.iter().filter(|pod| on(pod, "node-2")).map(|pod| pod.name.as_str()).collect();
    ensure!(!lost.is_empty(), "all pods are on one node");

    stage.kubelet_mut(1).sigkill()?;
    wait_for("four pods to be ready on the node that is left", WAIT, || {
        let pods = stage.pods().map_err(|error| format!("{error:#}"))?;
        let here = pods.iter().filter(|pod| on(pod, "node-1") && pod.ready).count();
        let states = || pods.iter().map(|pod| format!("{} {}", pod.name, pod.state()));
        if here == 4 { Ok(()) } else { Err(states().collect::<Vec<_>>().join(", ")) }
    })?;
    // Nobody has told the node yet.
    let pods = stage.pods()?;
    ensure!(lost.iter().all(|name| pods.iter().any(|pod| pod.name == *name)), "{pods:#?}");
    stage.kubelet_mut(1).start_again()?;
    for name in lost {
        stage.wait_until_gone(name)?;
    }
    stage.wait_until_node_is_ready(1)?;
    stage.wait_for_pods(4, "ready", |pod| pod.ready && on(pod, "node-1")).map(drop)
}
