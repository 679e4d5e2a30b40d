use std::future::Future;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_pod_lifecycle::{Action, ActionOutcome, NetworkState, ResizeDue, Stage};
use rubelet_types::{ContainerId, PodRef, PodSnapshot, PodUid, ProbeKind, ProbeResult};
use tokio_util::sync::CancellationToken;

/// An action with what is needed to carry it out.
#[derive(Clone, Debug)]
pub struct ActionOrder {
    /// Names the pod.
    pub pod_ref: PodRef,
    /// The pod as its source last gave it, with the resources that it was granted.
    pub pod: Arc<Pod>,
    /// What the runtime was last seen to hold of it.
    pub snapshot: Arc<PodSnapshot>,
    /// What to do.
    pub action: Action,
}

/// What a worker tells about its pod after each decision.
#[derive(Debug)]
pub struct PodReport<'a> {
    /// Names the pod.
    pub pod_ref: &'a PodRef,
    /// The pod as its source last gave it, with the resources that it was granted.
    pub pod: &'a Arc<Pod>,
    /// Where it is in its life.
    pub stage: &'a Stage,
    /// What the runtime holds of it; `None` while that is not known for certain.
    pub snapshot: Option<&'a PodSnapshot>,
    /// Containers whose start is under way.
    pub starting: Vec<&'a str>,
    /// Containers that were up and that the runtime has forgotten since.
    pub vanished: Vec<&'a str>,
    /// Containers that wait or failed to start: name, reason, message.
    pub failures: Vec<(&'a str, &'static str, &'a str)>,
    /// Containers that began to wait for their back-off with this decision.
    pub new_back_offs: Vec<&'a str>,
    /// What newly keeps the whole pod from going on: reason and message of the event.
    pub new_problem: Option<(&'static str, &'a str)>,
    /// A restart rule is taking down all containers of the pod.
    pub restarting_all: bool,
    /// The pod is known from the runtime alone: there is no status to report.
    pub is_orphan: bool,
}

/// What pod workers need from the rest of the kubelet.
pub trait PodPort: Send + Sync + 'static {
    /// Carries out an action. Once `cancel` fires it has to begin nothing new and return soon.
    fn run(
        &self,
        order: ActionOrder,
        cancel: CancellationToken,
    ) -> impl Future<Output = ActionOutcome> + Send;

    /// Looks at what the runtime holds of a pod. `Err` carries the text of the failure.
    fn look(&self, pod: &PodRef) -> impl Future<Output = Result<PodSnapshot, String>> + Send;

    /// Whether pods can be connected to the network.
    fn network(&self) -> NetworkState;

    /// The settled result of a probe, if there is one.
    fn probe_result(
        &self,
        pod: &PodUid,
        container: &str,
        id: &ContainerId,
        kind: ProbeKind,
    ) -> Option<ProbeResult>;

    /// What of the resources in force is not as `pod` was granted them; none if nothing.
    fn resize_due(&self, pod: &Arc<Pod>) -> Option<ResizeDue>;

    /// Takes in the state of a pod after a decision. Must not block.
    fn report(&self, report: &PodReport<'_>);

    /// Nothing is left of the pod, and its worker is gone. Must not block.
    fn forget(&self, pod: &PodRef);
}
