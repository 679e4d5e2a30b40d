//! A node whose status is kept, and everything around it.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use rubelet_config::{Effective, Invocation};
use rubelet_cri::v1;
use rubelet_fake_cri::tokio_clock;
use rubelet_linux::{DefaultRoute, Host, HostError, InterfaceAddress};
use rubelet_node_status::{
    FactsSource, NodeApi, NodeHandle, NodeInputs, NodeNetwork, NodeResources, NodeSettings,
    NodeStatusManager, NodeStatusParts, NodeStatusTiming,
};
use rubelet_types::{Clock, EventRecorder, ResourceAmounts};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::fake_api::FakeApi;

/// When the world begins.
pub(crate) const EPOCH: i64 = 1_750_000_000;

pub(crate) struct Bed {
    pub(crate) api: Arc<FakeApi>,
    pub(crate) settings: NodeSettings,
    pub(crate) timing: NodeStatusTiming,
    pub(crate) inputs: NodeInputs,
    pub(crate) clock: Clock,
    pub(crate) events: Arc<Mutex<Vec<String>>>,
    pub(crate) stop: CancellationToken,
    machine: TempDir,
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The configuration that flags and files give without anything said.
pub(crate) fn effective(flags: &[&str]) -> Effective {
    match rubelet_config::load(flags.iter().map(|flag| flag.into())).unwrap() {
        Invocation::Run(effective) => *effective,
        _ => panic!("no configuration"),
    }
}

/// What a runtime answers to `Status`.
pub(crate) fn runtime_status(runtime: bool, network: bool) -> v1::StatusResponse {
    let condition = |name: &str, status: bool| v1::RuntimeCondition {
        r#type: name.to_owned(),
        status,
        ..v1::RuntimeCondition::default()
    };
    v1::StatusResponse {
        status: Some(v1::RuntimeStatus {
            conditions: vec![
                condition("RuntimeReady", runtime),
                condition("NetworkReady", network),
            ],
        }),
        ..v1::StatusResponse::default()
    }
}

impl Bed {
    pub(crate) fn new(watches: bool) -> Self {
        let machine = tempfile::tempdir().unwrap();
        let files = [("proc/sys/kernel/random/boot_id", "boot-1\n"), ("etc/machine-id", "m1\n")];
        for (path, content) in files {
            let path = machine.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let mut settings = NodeSettings::new(&effective(&[]), "n1", "v1.36.2");
        settings.node_ips = vec!["10.0.0.1".parse().unwrap()];
        Self {
            api: FakeApi::new(watches),
            settings,
            timing: NodeStatusTiming::default(),
            inputs: NodeInputs::new(),
            clock: tokio_clock(Timestamp::from_second(EPOCH).unwrap()),
            events: Arc::default(),
            stop: CancellationToken::new(),
            machine,
        }
    }

    fn facts(&self) -> FactsSource {
        let mut capacity = ResourceAmounts::default();
        for (name, amount) in
            [("cpu", "4"), ("memory", "8Gi"), ("pods", "110"), ("ephemeral-storage", "100Gi")]
        {
            capacity.set(name, amount.parse().unwrap());
        }
        FactsSource::new(
            Host::at(self.machine.path()),
            Arc::new(FixedNetwork),
            NodeResources { capacity, reservation: ResourceAmounts::default() },
            self.inputs.clone(),
        )
    }

    /// Starts a kubelet's node status.
    pub(crate) fn start(&self) -> NodeHandle {
        self.start_with(Some(self.api.clone()))
    }

    /// Starts it without an API server.
    pub(crate) fn start_alone(&self) -> NodeHandle {
        self.start_with::<FakeApi>(None)
    }

    /// Starts it with another API server than the bed's.
    pub(crate) fn start_over<A: NodeApi>(&self, api: Arc<A>) -> NodeHandle {
        self.start_with(Some(api))
    }

    fn start_with<A: NodeApi>(&self, api: Option<Arc<A>>) -> NodeHandle {
        let events = self.events.clone();
        let manager = NodeStatusManager::new(NodeStatusParts {
            settings: self.settings.clone(),
            timing: self.timing,
            api,
            facts: self.facts(),
            inputs: self.inputs.clone(),
            clock: self.clock.clone(),
            events: EventRecorder::new(move |event| {
                events.lock().unwrap().push(event.reason.to_string());
            }),
        });
        let handle = manager.handle();
        tokio::spawn(manager.run(self.stop.clone()));
        handle
    }

    /// Ends the kubelet; its inputs are those of a new one from here.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.stop = CancellationToken::new();
        self.inputs = NodeInputs::new();
    }

    /// The runtime answers that all is well, now and every 5 s until stopped.
    pub(crate) fn keep_runtime_ready(&self) -> CancellationToken {
        let (inputs, stop) = (self.inputs.clone(), self.stop.child_token());
        let keep = stop.clone();
        tokio::spawn(keep.run_until_cancelled_owned(async move {
            loop {
                inputs.observe_runtime_status(Ok(&runtime_status(true, true)));
                tokio::time::sleep(seconds(5)).await;
            }
        }));
        stop
    }

    /// The events so far, which are forgotten.
    pub(crate) fn take_events(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// Status and message of `Ready` in the API server.
    pub(crate) fn ready(&self) -> (String, String) {
        self.api.node().map(|node| ready_of(&node)).unwrap_or_default()
    }
}

pub(crate) fn ready_of(node: &Node) -> (String, String) {
    let status = node.status.clone().unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    let found = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    found.map(|it| (it.status, it.message.unwrap_or_default())).unwrap_or_default()
}

#[derive(Debug)]
struct FixedNetwork;

impl NodeNetwork for FixedNetwork {
    fn interfaces(&self) -> io::Result<Vec<InterfaceAddress>> {
        Ok(vec![InterfaceAddress {
            interface: "eth0".to_owned(),
            address: IpAddr::from([10, 0, 0, 1]),
            is_up: true,
            is_loopback: false,
            is_point_to_point: false,
        }])
    }

    fn default_routes(&self) -> Result<Option<Vec<DefaultRoute>>, HostError> {
        Ok(Some(Vec::new()))
    }

    fn look_up<'a>(
        &'a self,
        _name: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
