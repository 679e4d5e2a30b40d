//! What makes this kubelet a node of a cluster: its managers at the API server.
//!
//! A kubelet that is alone has nothing of this.

mod claims;
mod events;
mod node;
mod objects;
mod pods;
mod trust_bundles;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::node::v1::RuntimeClass;
use rubelet_apiserver::{ApiServer, Selector, Store};
use rubelet_config::{Effective, Gate};
use rubelet_container_manager::{ContainerManager, ContainerManagerError};
use rubelet_cri::CriClient;
use rubelet_event_recorder::EventSender;
use rubelet_linux::Host;
use rubelet_metrics::Collector;
use rubelet_node_status::{
    ApiServerNodes, FactsSource, MachineNetwork, NodeHandle, NodeInputs, NodeLease, NodeResources,
    NodeStatusManager, NodeStatusParts, NodeStatusTiming, keep_pod_cidr, keep_runtime_facts,
};
use rubelet_object_store::{ObjectStore, ObjectStoreSettings};
use rubelet_pleg::{PlegHandle, PlegHealth};
use rubelet_pod_sources::{MirrorPods, PodSourceHandle, keep_mirror_pods, watch_api_pods};
use rubelet_pod_workers::PodWorkers;
use rubelet_status_manager::{ApiStatusSink, StatusChanges, publish_statuses};
use rubelet_token_manager::TokenManager;
use rubelet_types::{Clock, EventRecorder, ResourceAmounts};
use rubelet_volume_manager::{ClaimPort, VolumeManager};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::executor::Executor;
use crate::pod_admission::NodeObject;
use crate::pods::DesiredPods;
use crate::settings;

use claims::ApiClaims;
use events::ApiEvents;
use node::ApiNode;
pub(crate) use objects::PodObjects;
pub(crate) use pods::EarlierMirrors;
use pods::{ApiMirrorPods, ApiPodStatuses};
use trust_bundles::TrustBundles;

/// What a kubelet of a cluster is given beside what every kubelet is given.
#[derive(Debug)]
pub struct ClusterParts {
    /// The API server.
    pub api: ApiServer,
    /// Where its pods go.
    pub pods: PodSourceHandle,
    /// Carries what is recorded as events.
    pub events: EventSender,
    /// The machine, whose facts the Node object shows.
    pub host: Host,
}

/// Writes the statuses of pods to the API server.
pub(crate) type PodStatusSink = ApiStatusSink<ApiPodStatuses>;

/// Something that goes on for as long as the kubelet lives.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Everything that lives on the API server.
pub(crate) struct Cluster {
    api: ApiServer,
    pods: PodSourceHandle,
    event_sender: EventSender,
    node_name: String,
    runtime_classes: Store<RuntimeClass>,
    pod_objects: Arc<PodObjects>,
    /// Keep the watches of the Node and of runtime classes.
    watches: Vec<Work>,
    node_status: NodeStatusManager<ApiServerNodes>,
    lease: NodeLease<ApiServerNodes>,
    inputs: NodeInputs,
    sink: Arc<PodStatusSink>,
    events: EventRecorder,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("node", &self.node_name).finish_non_exhaustive()
    }
}

/// What the managers of a cluster share with every kubelet's.
#[derive(Debug)]
pub(crate) struct ClusterSettings<'a> {
    pub(crate) effective: &'a Effective,
    pub(crate) node_name: &'a str,
    pub(crate) container_manager: &'a ContainerManager,
    pub(crate) clock: &'a Clock,
    pub(crate) events: &'a EventRecorder,
    pub(crate) desired: &'a Arc<DesiredPods>,
    pub(crate) mirrors: &'a Arc<MirrorPods>,
}

/// What the loops of a cluster need of the other managers.
#[derive(Debug)]
pub(crate) struct ClusterLoops {
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) mirrors: Arc<MirrorPods>,
    pub(crate) workers: PodWorkers<Executor>,
    pub(crate) volumes: VolumeManager,
    pub(crate) status_changes: StatusChanges,
    pub(crate) cri: CriClient,
    pub(crate) pleg: PlegHandle,
}

impl Cluster {
    /// Builds it. Nothing is spawned and nothing read.
    pub(crate) fn new(parts: ClusterParts, shared: ClusterSettings<'_>) -> Self {
        let ClusterParts { api, pods, events: event_sender, host } = parts;
        let node_name = shared.node_name.to_owned();
        let (node_api, watch_node) = ApiServerNodes::new(&api, &node_name);
        let (services, watch_services) = api.all_namespaces::<Service>().informer(&Selector::all());
        let pod_objects = Arc::new(PodObjects::new(
            api.clone(),
            ObjectStore::new(
                api.clone(),
                ObjectStoreSettings::from_configuration(&shared.effective.config),
            ),
            TokenManager::new(api.clone(), shared.clock.clone()),
            services,
            TrustBundles::new(
                api.clone(),
                shared.effective.gates.enabled(Gate::ClusterTrustBundleProjection),
            ),
        ));
        let (runtime_classes, watch_classes) =
            api.cluster::<RuntimeClass>().informer(&Selector::all());
        let node_api = Arc::new(node_api);
        let timing = NodeStatusTiming::new(shared.effective);
        let inputs = NodeInputs::new();
        let manager = shared.container_manager;
        let amounts = |found: Result<&ResourceAmounts, ContainerManagerError>| {
            found.cloned().unwrap_or_default()
        };
        let resources = NodeResources {
            capacity: amounts(manager.capacity()),
            reservation: amounts(manager.reservation()),
        };
        let network = Arc::new(MachineNetwork(host.clone()));
        let node_status = NodeStatusManager::new(NodeStatusParts {
            settings: settings::node_status(shared.effective, &node_name),
            timing,
            api: Some(Arc::clone(&node_api)),
            facts: FactsSource::new(host, network, resources, inputs.clone()),
            inputs: inputs.clone(),
            clock: shared.clock.clone(),
            events: shared.events.clone(),
        });
        let lease = NodeLease::new(node_api, node_name.as_str(), timing, shared.clock.clone());
        let sink = Arc::new(ApiStatusSink::new(ApiPodStatuses {
            api: api.clone(),
            desired: Arc::clone(shared.desired),
            mirrors: Arc::clone(shared.mirrors),
        }));
        Self {
            api,
            pods,
            event_sender,
            node_name,
            runtime_classes,
            pod_objects,
            watches: vec![Box::pin(watch_services), Box::pin(watch_node), Box::pin(watch_classes)],
            node_status,
            lease,
            inputs,
            sink,
            events: shared.events.clone(),
        }
    }

    /// The Node as it is known.
    pub(crate) fn node(&self) -> NodeHandle {
        self.node_status.handle()
    }

    /// What is counted of the node's joining and of requests to the API server.
    pub(crate) fn metrics(&self) -> [Arc<dyn Collector>; 2] {
        [self.node_status.metrics(), self.api.metrics()]
    }

    /// The Node object for admission; `own` is the one that this kubelet would create.
    pub(crate) fn node_object(&self, own: Arc<Node>) -> Arc<dyn NodeObject> {
        Arc::new(ApiNode {
            api: self.api.clone(),
            name: self.node_name.clone(),
            node: self.node_status.handle(),
            own,
        })
    }

    /// Which handlers of the container runtime pods may ask for.
    pub(crate) fn runtime_classes(&self) -> Store<RuntimeClass> {
        self.runtime_classes.clone()
    }

    /// What pods get from the API server.
    pub(crate) fn pod_objects(&self) -> Arc<PodObjects> {
        Arc::clone(&self.pod_objects)
    }

    /// Where the volumes behind claims are found.
    pub(crate) fn claims(&self) -> Arc<dyn ClaimPort> {
        Arc::new(ApiClaims::new(self.api.clone(), self.node()))
    }

    /// Where others say what the Node's status depends on.
    pub(crate) fn inputs(&self) -> NodeInputs {
        self.inputs.clone()
    }

    /// What the mirrors of static pods said before.
    pub(crate) fn earlier_mirrors(&self) -> EarlierMirrors {
        EarlierMirrors::new(self.api.clone())
    }

    /// Where statuses of pods go.
    pub(crate) fn sink(&self) -> Arc<PodStatusSink> {
        Arc::clone(&self.sink)
    }

    /// Starts all its loops. They live until `stop`.
    pub(crate) fn spawn(
        self,
        loops: &mut JoinSet<()>,
        others: ClusterLoops,
        stop: &CancellationToken,
    ) {
        let node = self.node();
        let ClusterLoops { desired, mirrors, workers, volumes, status_changes, cri, pleg } = others;
        self.inputs.add_health_check("PLEG", move || match pleg.health() {
            PlegHealth::Healthy => Ok(()),
            PlegHealth::Unhealthy(problem) => Err(problem),
        });
        loops.spawn(self.event_sender.run(ApiEvents(self.api.events()), stop.clone()));
        loops.spawn(self.node_status.run(stop.clone()));
        loops.spawn(self.lease.run(stop.clone()));
        loops.spawn(keep_runtime_facts(cri.clone(), self.inputs, stop.clone()));
        loops.spawn(keep_pod_cidr(cri, node.clone(), stop.clone()));
        let mut until_stop = |work: Work| {
            let stop = stop.clone();
            loops.spawn(async move {
                stop.run_until_cancelled(work).await;
            });
        };
        self.watches.into_iter().for_each(&mut until_stop);
        until_stop(Box::pin(publish_statuses(status_changes, self.sink)));
        let credentials = self.api.clone();
        until_stop(Box::pin(async move { credentials.keep_credentials_fresh().await }));
        let (api, name, pods, events) = (self.api.clone(), self.node_name, self.pods, self.events);
        let of_api_server = node.clone();
        until_stop(Box::pin(async move {
            // Admission asks the Node for its labels and taints.
            of_api_server.from_api_server().await;
            watch_api_pods(&api, &name, pods, events).await;
        }));
        let objects = self.pod_objects;
        let changed_pods = objects.changed_pods();
        let (changed_volumes, changed_workers) = (volumes.clone(), workers.clone());
        until_stop(Box::pin(async move {
            loop {
                for pod in changed_pods.next().await {
                    changed_volumes.object_changed(&pod);
                    changed_workers.object_changed(&pod);
                }
            }
        }));
        until_stop(Box::pin(async move { volumes.keep_contents_fresh().await }));
        let idle = Arc::clone(&objects);
        until_stop(Box::pin(async move { idle.stop_idle_watches().await }));
        let port = ApiMirrorPods { api: self.api, desired, workers, node: node.clone() };
        let watched = Arc::clone(&mirrors);
        until_stop(Box::pin(async move { keep_mirror_pods(&mirrors, &port).await }));
        until_stop(Box::pin(async move {
            let mut node = node;
            loop {
                // Mirror pods are owned by the Node object.
                node.changed().await;
                if let Some(published) = node.current() {
                    objects.node_changed(&published.node);
                }
                watched.review();
            }
        }));
    }
}
