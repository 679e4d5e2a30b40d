//! How a control plane is started.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::component::Component;
use crate::machine::Machine;

/// Where a control plane runs, when that is not on this machine's loopback.
#[derive(Debug, Clone)]
pub struct Site {
    /// The machine. Its ports are taken to be free, and are the usual ones: 6443 for the API.
    pub machine: Arc<dyn Machine>,
    /// The address of the API server. Unless it is a loopback address, the endpoints of the
    /// `kubernetes` Service name it.
    pub address: IpAddr,
}

/// How a control plane is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory of all run directories ([`rubelet_test_bed::Cache::run`]).
    pub run: PathBuf,
    /// Where: None is this machine's loopback, with free ports.
    pub site: Option<Site>,
    /// Whether kube-controller-manager runs. Without it no namespace gets its service account and
    /// no pod can be made in there, no certificate request is signed, and nobody looks after nodes.
    pub controller_manager: bool,
    /// Whether kube-scheduler runs.
    pub scheduler: bool,
    /// Addresses of Services (`--service-cluster-ip-range`).
    pub service_cidr: String,
    /// Addresses of pods, of which each node gets a part as its `podCIDR` in the order of their
    /// registration. None: nodes get none.
    pub pod_cidr: Option<String>,
    /// After which silence a node counts as unreachable and is tainted. None is upstream's 50 s.
    ///
    /// It must be longer than the time between two renewals of a node's lease, which is a quarter
    /// of the kubelet's `nodeLeaseDurationSeconds`: 10 s by default.
    pub node_monitor_grace: Option<Duration>,
    /// More flags of kube-apiserver.
    pub api_server_args: Vec<String>,
    /// More flags of kube-controller-manager.
    pub controller_manager_args: Vec<String>,
    /// More flags of kube-scheduler.
    pub scheduler_args: Vec<String>,
}

impl Options {
    /// All components, on loopback, with kubeadm's addresses.
    pub fn new(run: PathBuf) -> Self {
        Self {
            run,
            site: None,
            controller_manager: true,
            scheduler: true,
            service_cidr: "10.96.0.0/16".to_owned(),
            pod_cidr: Some("10.244.0.0/16".to_owned()),
            node_monitor_grace: None,
            api_server_args: Vec::new(),
            controller_manager_args: Vec::new(),
            scheduler_args: Vec::new(),
        }
    }

    /// Only etcd and the API server, for tests that need nobody to act on what they write. Ready
    /// in half the time.
    pub fn api_only(run: PathBuf) -> Self {
        Self { controller_manager: false, scheduler: false, ..Self::new(run) }
    }

    /// The components that are started, in the order of their start.
    pub fn components(&self) -> impl Iterator<Item = Component> + use<> {
        let (controller_manager, scheduler) = (self.controller_manager, self.scheduler);
        [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler]
            .into_iter()
            .filter(move |component| match component {
                Component::Etcd | Component::ApiServer => true,
                Component::ControllerManager => controller_manager,
                Component::Scheduler => scheduler,
            })
    }

    /// The address of the API server.
    pub(crate) fn address(&self) -> IpAddr {
        self.site.as_ref().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |site| site.address)
    }
}
