use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus, ResourceStatus};
use rubelet_types::{ContainerId, ContainerResources, PodSnapshot, ProbeResult, is_static_pod};

/// Everything that decides what is reported for one pod.
///
/// Start from [`StatusInput::new`] and set what is known; what is left out means "nothing of that".
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    /// The pod with its allocated resources. Its `status` is what the API server holds.
    pub pod: &'a Pod,
    /// The status this kubelet published last; the pod's own status if it published none yet.
    pub previous: &'a PodStatus,
    /// What the runtime holds. `None`: not known yet, so containers are reported as before.
    pub snapshot: Option<&'a PodSnapshot>,
    /// Settled results of readiness and startup probes.
    pub probes: &'a dyn ProbeLookup,
    /// The last failed start of each container by name (upstream's reason cache), back-off and
    /// failed pulls among them.
    pub start_failures: &'a BTreeMap<String, StartFailure>,
    /// Containers whose start (create, start, postStart hook) is in flight: they count as waiting,
    /// even when the runtime already runs them.
    pub starting: &'a BTreeSet<String>,
    /// Containers that were up and that the runtime has forgotten since. One whose start was in
    /// flight all that time was never reported to run.
    pub vanished: &'a BTreeSet<String>,
    /// Where the pod's worker is.
    pub stage: Stage,
    /// Its source wants the pod no more. A static pod that comes back begins anew, and until then
    /// keeps its phase.
    pub is_leaving: bool,
    /// What somebody else decided about the pod's end: eviction, deadline, shutdown.
    pub outcome_override: Option<&'a StatusOverride>,
    /// A restart rule is taking down all containers of the pod.
    pub restarting_all: bool,
    /// `PodResizePending` and `PodResizeInProgress` as the resize decision has them now; a type
    /// that is missing is removed from the status.
    pub resize_conditions: &'a [PodCondition],
    /// Everything that the pod was granted is in force: of a container whose resources the runtime
    /// does not tell, too.
    pub granted_is_in_force: bool,
    /// Health of the devices of each container by name, as plugins report it.
    pub resource_health: &'a BTreeMap<String, Vec<ResourceStatus>>,
    /// Values in force in the pod's own cgroup, where they could be read.
    pub pod_cgroup: Option<&'a ContainerResources>,
    /// Facts about the node.
    pub node: &'a NodeFacts,
    /// The present time.
    pub now: Timestamp,
    /// Feature gates that change what is reported.
    pub gates: Gates,
}

impl<'a> StatusInput<'a> {
    /// A pod in setup of which the runtime is not known yet.
    pub fn new(pod: &'a Pod, previous: &'a PodStatus, node: &'a NodeFacts, now: Timestamp) -> Self {
        static NO_FAILURES: BTreeMap<String, StartFailure> = BTreeMap::new();
        static NO_NAMES: BTreeSet<String> = BTreeSet::new();
        static NO_HEALTH: BTreeMap<String, Vec<ResourceStatus>> = BTreeMap::new();
        Self {
            pod,
            previous,
            snapshot: None,
            probes: &NoProbes,
            start_failures: &NO_FAILURES,
            starting: &NO_NAMES,
            vanished: &NO_NAMES,
            stage: Stage::Setup,
            is_leaving: false,
            outcome_override: None,
            restarting_all: false,
            resize_conditions: &[],
            granted_is_in_force: false,
            resource_health: &NO_HEALTH,
            pod_cgroup: None,
            node,
            now,
            gates: Gates::default(),
        }
    }

    /// Some container may hold a process, now or in a moment. Once the worker has reached
    /// [`Stage::Terminated`] only a snapshot that shows one says so.
    pub(crate) fn any_may_run(&self) -> bool {
        match (self.stage, self.snapshot) {
            (Stage::Terminated, snapshot) => snapshot.is_some_and(PodSnapshot::any_may_run),
            (_, None) => true,
            (_, Some(snapshot)) => !self.starting.is_empty() || snapshot.any_may_run(),
        }
    }

    /// It ends in no terminal phase.
    pub(crate) fn may_come_back(&self) -> bool {
        self.is_leaving && is_static_pod(self.pod)
    }

    /// All containers are being restarted by a rule. A pod that is being stopped restarts nothing.
    pub(crate) fn restarts_all(&self) -> bool {
        self.restarting_all && self.stage == Stage::Setup
    }
}

/// Where the worker of a pod is (upstream: SyncPod, SyncTerminatingPod, SyncTerminatedPod).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Containers are kept as the spec wants them.
    Setup,
    /// Containers are being stopped; none is started any more.
    Terminating,
    /// No container runs and none will: what is missing now has ended unseen.
    Terminated,
}

/// Why the last start of a container failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// The reason users know, such as `ErrImagePull` or `CrashLoopBackOff`.
    pub reason: String,
    /// The text that goes with it.
    pub message: String,
}

/// A phase that a pod never leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TerminalPhase {
    /// All containers ended well.
    Succeeded,
    /// Some container failed, or the pod was ended by the node.
    Failed,
}

impl TerminalPhase {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

impl fmt::Display for TerminalPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An end that was decided outside of the pod. It shows in phase, reason, message and conditions
/// in one step, as soon as no container may run.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusOverride {
    /// The phase the pod ends in.
    pub phase: TerminalPhase,
    /// `status.reason`, such as `Evicted` or `DeadlineExceeded`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// Conditions that appear together with the phase, such as `DisruptionTarget`.
    pub conditions: Vec<PodCondition>,
}

/// What a status says about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Addresses of the node, the primary one first, at most one of each family. While they are not
    /// known, what was reported before stays.
    pub host_ips: Vec<String>,
    /// The runtime's name as it stands before `://` in container ids.
    pub runtime_name: String,
    /// The runtime handler of the pod can make read-only mounts recursive.
    pub recursive_read_only_mounts: bool,
}

/// Settled probe results of one container instance. `None` where there is no probe or nothing is
/// settled yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerProbes {
    /// Readiness.
    pub readiness: Option<ProbeResult>,
    /// Startup.
    pub startup: Option<ProbeResult>,
}

/// Finds probe results. Every `Fn(&str, &ContainerId) -> ContainerProbes` does.
pub trait ProbeLookup {
    /// Results for the instance `id` of the container named `container`.
    fn probes(&self, container: &str, id: &ContainerId) -> ContainerProbes;
}

impl<F: Fn(&str, &ContainerId) -> ContainerProbes> ProbeLookup for F {
    fn probes(&self, container: &str, id: &ContainerId) -> ContainerProbes {
        self(container, id)
    }
}

impl fmt::Debug for dyn ProbeLookup + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProbeLookup")
    }
}

struct NoProbes;

impl ProbeLookup for NoProbes {
    fn probes(&self, _container: &str, _id: &ContainerId) -> ContainerProbes {
        ContainerProbes::default()
    }
}

/// Feature gates that change what is reported, with the defaults of 1.36.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// `ChangeContainerStatusOnKubeletRestart`: forget ready and started at a kubelet restart.
    pub change_container_status_on_kubelet_restart: bool,
    /// `ContainerStopSignals`: report the stop signal.
    pub container_stop_signals: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`: report resources of the pod as a whole.
    pub in_place_pod_level_resources_vertical_scaling: bool,
    /// `PodReadyToStartContainersCondition`.
    pub pod_ready_to_start_containers_condition: bool,
    /// `ResourceHealthStatus`: report device health.
    pub resource_health_status: bool,
    /// `RestartAllContainersOnContainerExits`: report `AllContainersRestarting`.
    pub restart_all_containers_on_container_exits: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Self {
            change_container_status_on_kubelet_restart: false,
            container_stop_signals: false,
            in_place_pod_level_resources_vertical_scaling: true,
            pod_ready_to_start_containers_condition: true,
            resource_health_status: true,
            restart_all_containers_on_container_exits: true,
        }
    }
}
