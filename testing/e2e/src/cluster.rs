//! A cluster on this machine: a control plane and nodes that reach each other.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use rubelet_control_plane::{ControlPlane, Options, Site, Tools as ControlPlaneTools};
use serde_json::{Value, json};

use crate::cache::Tools;
use crate::forward::Forwarder;
use crate::kubelet::KubeletOptions;
use crate::namespaces::Lifetime;
use crate::network::{Hub, NodeNetwork};
use crate::runtime::{Runtime, RuntimeOptions};

/// The port of this machine's loopback on which the API server is, if nobody else is there.
const API_PORT: u16 = 6443;
/// The Service of the cluster's DNS, as kubeadm has it.
const CLUSTER_DNS: &str = "10.96.0.10";
/// The address of the `kubernetes` Service.
const KUBERNETES_SERVICE: &str = "10.96.0.1";

/// How a cluster is started.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// A word for the nodes' directories and cgroups.
    pub name: String,
    /// How many nodes.
    pub nodes: u8,
    /// The control plane. Its place is chosen by the cluster.
    pub control_plane: Options,
}

/// A control plane, and nodes with a containerd each. Kubelets are for the caller to start, with
/// [`Cluster::kubelet_options`].
///
/// The control plane runs in the network namespace of a [`Hub`] to which each node is plugged in;
/// pods of all nodes, nodes and API server reach each other, and nothing else. Dropping it ends all
/// of it and leaves nothing behind; kubelets have to be dropped before.
#[derive(Debug)]
pub struct Cluster {
    forwarder: Forwarder,
    nodes: Vec<Arc<Runtime>>,
    control_plane: ControlPlane,
    hub: Arc<Hub>,
    kubeconfig: PathBuf,
    /// The last to go: it carries the forwarder.
    executor: tokio::runtime::Runtime,
}

impl Cluster {
    /// Starts the control plane and the nodes' runtimes, side by side.
    ///
    /// # Errors
    /// When something that is needed is missing or does not come up; nothing is left running then.
    pub fn start(
        tools: &Tools,
        control_plane_tools: &ControlPlaneTools,
        options: ClusterOptions,
    ) -> anyhow::Result<Self> {
        let executor = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("no executor")?;
        let hub = Arc::new(Hub::create(options.nodes)?);
        let run = options.control_plane.run.clone();
        let mut control_plane = options.control_plane;
        let machine = Arc::clone(&hub);
        control_plane.site = Some(Site { machine, address: hub.address().into() });
        // Each node's pods have the addresses that its CNI configuration says.
        control_plane.pod_cidr = None;

        let start_node = |number: u8| {
            let network = NodeNetwork::of_hub(&hub, number);
            let name = format!("{}-{number}", options.name);
            let options = RuntimeOptions { name, run: run.clone(), lifetime: Lifetime::WithUs };
            let runtime = Runtime::start_on(network, tools.clone(), options)
                .with_context(|| format!("cannot start node {number}"))?;
            redirect_service(&runtime, SocketAddr::new(hub.address().into(), API_PORT))?;
            Ok(Arc::new(runtime))
        };
        let (control_plane, nodes) = std::thread::scope(|scope| {
            let nodes: Vec<_> = (1..=options.nodes)
                .map(|number| {
                    let start_node = &start_node;
                    scope.spawn(move || start_node(number))
                })
                .collect();
            let control_plane =
                executor.block_on(ControlPlane::start(control_plane_tools, control_plane));
            let nodes: anyhow::Result<Vec<Arc<Runtime>>> = nodes
                .into_iter()
                .map(|node| {
                    node.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a node's start panicked")))
                })
                .collect();
            (control_plane, nodes)
        });
        let (control_plane, nodes) = (control_plane?, nodes?);

        let api_server = SocketAddr::new(control_plane.address(), control_plane.port());
        let forwarder =
            executor.block_on(Forwarder::start(Arc::clone(&hub), api_server, API_PORT))?;
        let kubeconfig = control_plane.dir().join("host.kubeconfig");
        let server = format!("https://{}", forwarder.address());
        std::fs::write(&kubeconfig, control_plane.admin_kubeconfig_for(&server))
            .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
        Ok(Self { forwarder, nodes, control_plane, hub, kubeconfig, executor })
    }

    /// The control plane.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// What joins control plane and nodes.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Runs something asynchronous to its end, such as a question to the API server.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.executor.block_on(work)
    }

    /// Has something asynchronous go on beside, as long as the cluster lives at most.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.executor.spawn(work);
    }

    /// A kubeconfig for somebody who may do anything, with which kubectl works on this machine,
    /// outside of the cluster's network.
    pub fn kubeconfig(&self) -> &PathBuf {
        &self.kubeconfig
    }

    /// Where the API server is for that.
    pub fn server(&self) -> SocketAddr {
        self.forwarder.address()
    }

    /// The runtimes of the nodes.
    pub fn runtimes(&self) -> &[Arc<Runtime>] {
        &self.nodes
    }

    /// The name of a node, of which the first has 0.
    pub fn node_name(index: usize) -> String {
        format!("node-{}", index + 1)
    }

    /// The options of a kubelet for a node, of which the first has 0: it joins with the token, and
    /// asks the API server whom it may answer.
    pub fn kubelet_options(&self, index: usize, binary: impl Into<PathBuf>) -> KubeletOptions {
        let mut options = KubeletOptions::new(binary, &Self::node_name(index));
        let dir = self.nodes[index].dir().join(&options.node_name);
        options.config = json!({
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.control_plane.authority_file() }
            },
            "authorization": { "mode": "Webhook" },
            "clusterDNS": [CLUSTER_DNS],
            "clusterDomain": "cluster.local",
            "rotateCertificates": true
        });
        options.args = vec![
            format!("--kubeconfig={}", dir.join("kubeconfig").display()),
            format!(
                "--bootstrap-kubeconfig={}",
                self.control_plane.bootstrap_kubeconfig().display()
            ),
            format!("--cert-dir={}", dir.join("pki").display()),
        ];
        options
    }

    /// What a node says of itself, of which the first has 0: its `Ready` condition, or None while
    /// it has not joined or says nothing.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub fn readiness(&self, index: usize) -> anyhow::Result<Option<Value>> {
        let nodes = self.block_on(self.control_plane.admin().get("/api/v1/nodes"))?;
        let name = Self::node_name(index);
        let node = nodes["items"]
            .as_array()
            .and_then(|nodes| nodes.iter().find(|node| node["metadata"]["name"] == name.as_str()));
        let conditions = node.and_then(|node| node["status"]["conditions"].as_array());
        Ok(conditions.and_then(|all| all.iter().find(|one| one["type"] == "Ready").cloned()))
    }
}

/// Pods find the API server by its Service without anybody who looks after Services.
fn redirect_service(node: &Runtime, api_server: SocketAddr) -> anyhow::Result<()> {
    for chain in ["PREROUTING", "OUTPUT"] {
        let to = api_server.to_string();
        let service = ["-d", KUBERNETES_SERVICE, "-p", "tcp", "--dport", "443"];
        let args = [&["-t", "nat", "-A", chain], &service[..], &["-j", "DNAT", "--to", &to]];
        node.namespaces().run("iptables", &args.concat())?;
    }
    Ok(())
}
