//! Lets pods in: asks the admission handlers, makes room for critical pods, and hands what was let in
//! to the workers.
//!
//! Nothing here holds up the sync loop, but for the saving of a resize that is granted. A pod that
//! has to wait, for others to end or for the Node object to be read anew, waits in a task of its own;
//! what it asks for is kept for it meanwhile.

mod resize;

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use rubelet_pleg::PlegHandle;
use rubelet_pod_lifecycle::{Disruption, StopCause};
use rubelet_pod_status::rejected_status;
use rubelet_pod_workers::{Beginning, PodWorkers};
use rubelet_types::{EventObject, PodUid, error_chain, is_terminal_phase, pod_ref};
use tokio::sync::{Mutex, MutexGuard, watch};

use crate::admission::{AdmissionFacts, Rejection, Verdict, decide_admission};
use crate::executor::Executor;
use crate::pods::{DesiredPods, Standing};

/// The Node object is read anew at most this long before the pod is refused by the old one.
const NODE_READ_LIMIT: Duration = Duration::from_secs(10);
/// A pod that makes room is waited for this long at least, or one and a half times its grace period.
const LEAST_WAIT: Duration = Duration::from_secs(10);

/// Reason of a preempted pod's status and event.
const PREEMPTING: &str = "Preempting";
const PREEMPTED: &str = "Preempted in order to admit critical pod";

/// The Node object of this node.
pub(crate) trait NodeObject: Send + Sync {
    /// As it was last seen at the API server; as it would be created, while there is none.
    fn last_seen(&self) -> Arc<Node>;

    /// Reads it anew; `None` if that fails.
    fn read(&self) -> Pin<Box<dyn Future<Output = Option<Arc<Node>>> + Send + '_>>;
}

/// A node without an API server goes by the object that it would create.
#[derive(Debug)]
pub(crate) struct OwnNode(pub(crate) Arc<Node>);

impl NodeObject for OwnNode {
    fn last_seen(&self) -> Arc<Node> {
        Arc::clone(&self.0)
    }

    fn read(&self) -> Pin<Box<dyn Future<Output = Option<Arc<Node>>> + Send + '_>> {
        Box::pin(std::future::ready(None))
    }
}

/// Lets pods in. All changes of what is desired go through it, so that each decision is taken on
/// facts that no other one changes meanwhile.
pub(crate) struct PodAdmission {
    executor: Arc<Executor>,
    workers: PodWorkers<Executor>,
    desired: Arc<DesiredPods>,
    pleg: PlegHandle,
    node: Arc<dyn NodeObject>,
    allowed_unsafe_sysctls: Vec<String>,
    /// All sources have told their pods.
    sources_ready: watch::Receiver<bool>,
    /// Pods that are being stopped to make room. Held while something is decided, and while that is
    /// saved.
    leaving: Mutex<HashSet<PodUid>>,
}

/// A pod that has to end before another one starts.
struct Going {
    pod: Arc<Pod>,
    /// It was stopped for this one, and not for an earlier one.
    is_own: bool,
}

/// What is left to do for a pod that was not settled at once.
enum Next {
    Settled,
    /// The node's labels refuse it. They may be old.
    ReadNode,
    /// These have to end first.
    WaitFor(Vec<Going>),
}

impl std::fmt::Debug for PodAdmission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PodAdmission")
    }
}

impl PodAdmission {
    pub(crate) fn new(
        executor: Arc<Executor>,
        workers: PodWorkers<Executor>,
        desired: Arc<DesiredPods>,
        pleg: PlegHandle,
        node: Arc<dyn NodeObject>,
        allowed_unsafe_sysctls: Vec<String>,
        sources_ready: watch::Receiver<bool>,
    ) -> Self {
        let leaving = Mutex::default();
        Self {
            executor,
            workers,
            desired,
            pleg,
            node,
            allowed_unsafe_sysctls,
            sources_ready,
            leaving,
        }
    }

    async fn deciding(&self) -> MutexGuard<'_, HashSet<PodUid>> {
        self.leaving.lock().await
    }

    /// A source lists the pod for the first time. Answers what is left to do, to be run as a task.
    /// `started_at` is the start time of an earlier status.
    pub(crate) async fn added(
        self: &Arc<Self>,
        pod: &Arc<Pod>,
        started_at: Option<Timestamp>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let uid = pod_ref(pod).uid;
        let mut leaving = self.deciding().await;
        self.desired.set(pod);
        if self.workers.knows(&uid) {
            self.desired.set_standing(&uid, Standing::Admitted);
            self.workers.update(self.as_granted(&uid, pod));
            return None;
        }
        let granted = self.executor.allocations.claim(pod);
        let wants_others = granted.is_some();
        if let Some(granted) = granted {
            self.desired.set_granted(&uid, granted);
        }
        if self.was_refused(pod) {
            self.desired.set_standing(&uid, Standing::Refused);
            if pod.metadata.deletion_timestamp.is_some() {
                // It was deleted while no kubelet ran.
                self.executor.statuses.finish(pod);
            }
            return None;
        }
        if let Some(cause) = self.end_of(pod) {
            self.start(pod, started_at, Some(cause));
            return None;
        }
        self.executor.resizes.take_over(&uid, pod);
        if !wants_others {
            // It wants again what it has, since a kubelet last looked.
            self.executor.resizes.clear_pending(&uid);
        }
        let node = self.node.last_seen();
        match self.decide(&mut leaving, &uid, &node, started_at, true) {
            Next::Settled => None,
            next => Some(self.clone().settle(uid, started_at, next)),
        }
    }

    /// The source of a known pod has a new version of it.
    pub(crate) async fn updated(&self, pod: &Arc<Pod>) {
        let uid = pod_ref(pod).uid;
        let mut leaving = self.deciding().await;
        let before = self.desired.get(&uid).map(|(before, _)| before);
        self.desired.set(pod);
        if self.workers.knows(&uid) {
            if let Some(before) = before {
                self.note_resize(&mut leaving, &before, pod).await;
            }
            self.workers.update(self.as_granted(&uid, pod));
            return;
        }
        let standing = self.desired.get(&uid).map(|(_, standing)| standing);
        match (standing, self.end_of(pod)) {
            (Some(Standing::Refused), Some(_)) if pod.metadata.deletion_timestamp.is_some() => {
                // Nothing of it is on the node, and so nothing stands in the way of its deletion.
                self.executor.statuses.finish(pod);
            }
            (Some(Standing::Undecided | Standing::Expected), Some(cause)) => {
                self.start(pod, None, Some(cause));
            }
            _ => {}
        }
    }

    /// No source lists the pod any more.
    pub(crate) async fn removed(&self, uid: &PodUid) {
        let _deciding = self.deciding().await;
        self.desired.remove(uid);
        self.workers.remove(uid);
    }

    /// Whether an earlier run of the kubelet refused the pod: it failed before anything was said of a
    /// container, and the runtime holds nothing of it. There is nothing to end and nothing to add to
    /// its status.
    fn was_refused(&self, pod: &Pod) -> bool {
        let Some(status) = &pod.status else { return false };
        let containers = [
            &status.init_container_statuses,
            &status.container_statuses,
            &status.ephemeral_container_statuses,
        ];
        status.phase.as_deref() == Some("Failed")
            && containers.into_iter().flatten().all(Vec::is_empty)
            && !self.pleg.pods().contains_key(&pod_ref(pod).uid)
    }

    /// Why a pod never starts anything, if so: it has ended before, or is being deleted. Such a pod
    /// is not asked whether it fits.
    fn end_of(&self, pod: &Pod) -> Option<StopCause> {
        let known = self.executor.statuses.status(&pod_ref(pod).uid);
        let phase_known = known.as_ref().and_then(|known| known.status.phase.as_deref());
        let phase_told = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if is_terminal_phase(phase_known) || is_terminal_phase(phase_told) {
            return Some(StopCause::Completed);
        }
        pod.metadata.deletion_timestamp.is_some().then_some(StopCause::Deleted)
    }

    /// The pod as its worker is to have it.
    fn as_granted(&self, uid: &PodUid, pod: &Arc<Pod>) -> Arc<Pod> {
        self.desired.granted(uid).unwrap_or_else(|| pod.clone())
    }

    fn start(&self, pod: &Arc<Pod>, started_at: Option<Timestamp>, end: Option<StopCause>) {
        let uid = pod_ref(pod).uid;
        self.desired.set_standing(&uid, Standing::Admitted);
        self.executor.allocations.let_in(&uid);
        let granted = self.as_granted(&uid, pod);
        // Nobody but this kubelet starts anything of a pod, and no worker of it has done so.
        let holds_nothing = !self.pleg.pods().contains_key(&uid);
        self.workers.add(granted, Beginning { started_at, end, holds_nothing });
    }

    fn decide(
        &self,
        leaving: &mut HashSet<PodUid>,
        uid: &PodUid,
        node: &Node,
        started_at: Option<Timestamp>,
        may_read_node: bool,
    ) -> Next {
        // It may have left, or ended, while it waited.
        let Some((_, Standing::Undecided)) = self.desired.get(uid) else { return Next::Settled };
        // What an earlier kubelet granted it holds, whatever it wants since.
        let Some(pod) = self.desired.granted(uid) else { return Next::Settled };
        let verdict = self.verdict(leaving, &pod, node).unwrap_or_else(Verdict::Rejected);
        match verdict {
            Verdict::Admitted => self.start(&pod, started_at, None),
            Verdict::Rejected(rejection) if may_read_node && rejection.is_by_node_labels() => {
                return Next::ReadNode;
            }
            Verdict::Rejected(rejection) => self.reject(&pod, started_at, &rejection),
            Verdict::AfterOthers { victims, lacking } => {
                self.desired.set_standing(uid, Standing::Expected);
                for _ in &victims {
                    self.executor.metrics.preempted(&lacking);
                }
                return Next::WaitFor(self.preempt(leaving, &pod, victims));
            }
        }
        Next::Settled
    }

    fn verdict(
        &self,
        leaving: &HashSet<PodUid>,
        pod: &Pod,
        node: &Node,
    ) -> Result<Verdict, Rejection> {
        self.with_facts(leaving, pod, node, |facts| decide_admission(pod, facts))
    }

    /// Decides with the facts of this moment.
    fn with_facts<T>(
        &self,
        leaving: &HashSet<PodUid>,
        pod: &Pod,
        node: &Node,
        decide: impl FnOnce(&AdmissionFacts<'_>) -> T,
    ) -> Result<T, Rejection> {
        let manager = &self.executor.container_manager;
        let allocatable =
            manager.allocatable().map_err(|error| Rejection::unexpected(error_chain(&error)))?;
        let uid = pod_ref(pod).uid;
        let (mut active, mut expected) = (Vec::new(), HashSet::new());
        for (other, standing) in self.executor.active_pods_and_standing() {
            let other_uid = pod_ref(&other).uid;
            if other_uid == uid {
                continue;
            }
            if standing == Standing::Expected {
                expected.insert(other_uid);
            }
            active.push(other);
        }
        let can = self.executor.runtime_state.borrow().features();
        Ok(decide(&AdmissionFacts {
            active: &active,
            leaving,
            expected: &expected,
            node,
            allocatable,
            allowed_unsafe_sysctls: &self.allowed_unsafe_sysctls,
            apparmor_enabled: apparmor_enabled(),
            supplemental_groups_policy: can.supplemental_groups_policy,
        }))
    }

    /// Refuses a pod. What the runtime holds of it, because it was let in once, ends with it.
    fn reject(&self, pod: &Arc<Pod>, started_at: Option<Timestamp>, rejection: &Rejection) {
        let reference = pod_ref(pod);
        let Rejection { reason, message } = rejection;
        tracing::info!(pod = %reference, reason, message, "Pod rejected");
        self.desired.set_standing(&reference.uid, Standing::Refused);
        self.executor.forget_resize(&reference.uid);
        self.executor.metrics.rejected(reason);
        self.executor.events.warning(
            EventObject::Pod(reference.clone()),
            reason.clone(),
            message.clone(),
        );
        if self.pleg.pods().contains_key(&reference.uid) {
            let end = StopCause::Disrupted(Arc::new(Disruption {
                reason: reason.clone(),
                message: format!("Pod was rejected: {message}"),
                condition: None,
            }));
            let beginning = Beginning { started_at, end: Some(end), holds_nothing: false };
            self.workers.add(pod.clone(), beginning);
            return;
        }
        let status = rejected_status(pod, reason, message, self.executor.clock.now());
        self.executor.statuses.set_status(pod, status);
    }

    /// Stops the pods that make room for `pod`. Answers everybody who has to be gone before it starts.
    fn preempt(
        &self,
        leaving: &mut HashSet<PodUid>,
        pod: &Pod,
        victims: Vec<Arc<Pod>>,
    ) -> Vec<Going> {
        let mut going: Vec<Going> = leaving
            .iter()
            .filter_map(|uid| self.desired.get(uid))
            .map(|(pod, _)| Going { pod, is_own: false })
            .collect();
        for victim in victims {
            let reference = pod_ref(&victim);
            tracing::info!(pod = %reference, requestingPod = %pod_ref(pod),
                "Preempting pod to free up resources");
            self.executor.events.warning(
                EventObject::Pod(reference.clone()),
                PREEMPTING,
                PREEMPTED,
            );
            let cause = StopCause::Disrupted(Arc::new(Disruption {
                reason: PREEMPTING.to_owned(),
                message: PREEMPTED.to_owned(),
                condition: Some(
                    "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned(),
                ),
            }));
            self.workers.stop(&reference.uid, cause, None);
            leaving.insert(reference.uid);
            going.push(Going { pod: victim, is_own: true });
        }
        going
    }

    /// Does what is left to do until the pod is let in, refused, or not wanted any more.
    async fn settle(self: Arc<Self>, uid: PodUid, started_at: Option<Timestamp>, next: Next) {
        let next = match next {
            Next::ReadNode => {
                let read = tokio::time::timeout(NODE_READ_LIMIT, self.node.read()).await;
                let node = read.ok().flatten().unwrap_or_else(|| self.node.last_seen());
                let mut leaving = self.deciding().await;
                self.decide(&mut leaving, &uid, &node, started_at, false)
            }
            next => next,
        };
        let Next::WaitFor(going) = next else { return };
        let gone = join_all(going.iter().map(|going| self.wait_for(going))).await;
        if gone.contains(&false) {
            // The kubelet ends. The next one decides again.
            return;
        }
        let _deciding = self.deciding().await;
        if let Some((pod, Standing::Expected)) = self.desired.get(&uid) {
            self.start(&pod, started_at, None);
        }
    }

    /// Waits for a pod that makes room, as long as it is right to. Answers false if the kubelet ends
    /// meanwhile.
    async fn wait_for(&self, Going { pod, is_own }: &Going) -> bool {
        let reference = pod_ref(pod);
        let ended = tokio::time::timeout(wait_limit(pod), self.workers.terminated(&reference.uid));
        match ended.await {
            Ok(is_ended) => {
                if is_ended {
                    self.deciding().await.remove(&reference.uid);
                }
                is_ended
            }
            Err(_) => {
                // A runtime that does not kill must not keep the critical pod out.
                tracing::warn!(pod = %reference, "Preempted pod did not end in time");
                if *is_own {
                    self.executor.events.warning(
                        EventObject::Pod(reference.clone()),
                        "ExceededGracePeriod",
                        "Container runtime did not kill the pod within specified grace period.",
                    );
                }
                self.deciding().await.remove(&reference.uid);
                true
            }
        }
    }
}

fn wait_limit(pod: &Pod) -> Duration {
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    let seconds = grace.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(0);
    Duration::from_secs(seconds.saturating_add(seconds / 2)).max(LEAST_WAIT)
}

/// Whether the kernel enforces AppArmor profiles.
fn apparmor_enabled() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|value| value.starts_with('Y'))
}
