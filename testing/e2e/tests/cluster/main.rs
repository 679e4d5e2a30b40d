//! What only a real control plane shows: a kubelet that is a node of a cluster.
//!
//! `cargo xtask test` runs it; `cargo test -p rubelet-e2e --test cluster NAME` runs some of it, once
//! `cargo xtask setup cluster built` has been run and the kubelet has been built.

mod bad_input;
mod certificates;
mod claims;
mod images;
mod logs;
mod metrics;
mod node;
mod outage;
mod pods;
mod rejected;
mod resize;
mod restart;
mod stage;
mod static_pods;
mod streaming;
mod swap;
mod volumes;
mod why;
mod workloads;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use rubelet_control_plane::{Component, Options};
use rubelet_e2e::runner::find_kubelet;
use rubelet_e2e::{Cache, Cluster, ClusterOptions, Owner, RuntimeKind, Tools, leftovers};
use rubelet_test_bed::trials::{self, Trial};

use stage::Shared;

/// Trials named after functions, on the cluster of one node that they share.
macro_rules! on_one_node {
    ($($name:ident),* $(,)?) => {
        &[$(Trial { name: stringify!($name), run: |ground| ground.on_one_node($name) }),*]
    };
}
pub(crate) use on_one_node;

const TRIALS: &[Trial<Ground>] = &[Trial {
    name: "nodes_reach_the_api_server_and_each_other_and_leave_nothing_behind",
    run: nodes_reach_the_api_server_and_each_other_and_leave_nothing_behind,
}];

/// How long a connection may take that takes no time where nothing else happens.
const SOON: Duration = Duration::from_secs(30);

/// What takes longer than this does not come, on however busy a machine.
const WAIT: Duration = Duration::from_secs(150);

struct Ground {
    cache: Cache,
    tools: Tools,
    control_plane: rubelet_control_plane::Tools,
    kubelet: PathBuf,
    shared: Shared,
}

impl Ground {
    fn find() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let cache = Cache::from_environment().map_err(|error| format!("{error:#}"))?;
        let tools =
            Tools::find(RuntimeKind::Built, &cache).map_err(|missing| missing.to_string())?;
        let control_plane =
            rubelet_control_plane::Tools::find(&cache).map_err(|missing| missing.to_string())?;
        let kubelet = find_kubelet().map_err(|error| format!("{error:#}"))?;
        Ok(Self { cache, tools, control_plane, kubelet, shared: Shared::default() })
    }
}

fn main() -> ExitCode {
    let sets = [
        node::TRIALS,
        pods::TRIALS,
        logs::TRIALS,
        metrics::TRIALS,
        why::TRIALS,
        workloads::TRIALS,
        static_pods::TRIALS,
        rejected::TRIALS,
        resize::TRIALS,
        restart::TRIALS,
        bad_input::TRIALS,
        certificates::TRIALS,
        swap::TRIALS,
        volumes::TRIALS,
        images::TRIALS,
        streaming::TRIALS,
        claims::TRIALS,
        outage::TRIALS,
        outage::ON_TWO_NODES,
        TRIALS,
    ];
    trials::run(&sets, Ground::find)
}

fn nodes_reach_the_api_server_and_each_other_and_leave_nothing_behind(
    ground: &Ground,
) -> anyhow::Result<()> {
    let cluster = Cluster::start(
        &ground.tools,
        &ground.control_plane,
        ClusterOptions {
            name: "trial".to_owned(),
            nodes: 2,
            control_plane: Options::new(ground.cache.run()),
        },
    )?;
    let owners: Vec<Owner> = cluster.runtimes().iter().map(|one| one.owner().clone()).collect();
    let dir = cluster.control_plane().dir().to_owned();
    let [first, second] = cluster.runtimes() else { anyhow::bail!("two nodes were asked for") };

    // From outside, with what kubectl is told to use.
    let kubeconfig = std::fs::read_to_string(cluster.kubeconfig())?;
    ensure!(kubeconfig.contains(&format!("server: https://{}", cluster.server())), "{kubeconfig}");
    std::net::TcpStream::connect_timeout(&cluster.server(), SOON).context("from outside")?;
    let outside = std::process::Command::new(&ground.control_plane.kubectl)
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig())
        .args(["get", "namespaces", "-o", "name"])
        .output()?;
    ensure!(outside.status.success(), "{}", String::from_utf8_lossy(&outside.stderr));

    let plane = cluster.control_plane();
    let api_server = SocketAddr::new(plane.address(), plane.port());
    for node in [first, second] {
        node.namespaces().connect(api_server, SOON).context("a node and the API server")?;
        // Where pods look for it.
        let service = SocketAddr::from(([10, 96, 0, 1], 443));
        node.namespaces().connect(service, SOON).context("a node and the Service")?;
    }
    ensure!(first.node_address() != second.node_address(), "both have one address");
    let port = SocketAddr::new(second.node_address(), 10250);
    let listener = second.namespaces().listen(port)?;
    first.namespaces().connect(port, SOON).context("from node to node")?;
    // As the API server reaches a kubelet.
    let plane_to_node = cluster.hub().namespaces().connect(port, SOON);
    plane_to_node.context("from the control plane to a node")?;
    drop(listener);
    // A pod of the second node: its addresses are found behind that node.
    let route = first.namespaces().run("ip", &["route", "get", "10.244.2.7"])?;
    let route = String::from_utf8_lossy(&route.stdout).into_owned();
    ensure!(route.contains(&format!("via {}", second.node_address())), "{route}");

    let processes = [Component::Etcd, Component::ApiServer].map(|component| plane.pid(component));
    ensure!(processes.iter().all(Option::is_some), "{processes:?}");
    drop(cluster);
    let left: Vec<String> = owners.iter().flat_map(leftovers).collect();
    ensure!(left.is_empty(), "{left:?}");
    ensure!(!dir.exists(), "{} is left", dir.display());
    for pid in processes.into_iter().flatten() {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        ensure!(!command.contains("rubelet"), "{command} is left");
    }
    Ok(())
}
