use std::time::Duration;

use jiff::Timestamp;
use rubelet_types::{
    ContainerId, ContainerKind, ContainerSnapshot, ProbeKind, SandboxId, SandboxSnapshot,
};
use serde::Serialize;

/// One step towards what the pod should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the pod's directories, its cgroup and its volumes.
    PreparePod,
    /// Create and start a sandbox.
    CreateSandbox {
        /// Its attempt number.
        attempt: u32,
    },
    /// Stop a sandbox, which frees its network.
    StopSandbox {
        /// Which.
        id: SandboxId,
    },
    /// Make sure of the image, create and start a container, run its postStart hook.
    StartContainer(ContainerStart),
    /// Run a container's preStop hook, for at most `budget`.
    RunPreStop {
        /// The instance.
        id: ContainerId,
        /// The container's name.
        name: String,
        /// The time it may take.
        budget: Duration,
        /// Why the container is stopped.
        reason: StopReason,
    },
    /// Stop a container.
    StopContainer(ContainerStop),
    /// Remove a dead container and its log.
    RemoveContainer {
        /// The instance.
        id: ContainerId,
        /// The container's name.
        name: String,
    },
    /// Remove a stopped sandbox that a newer one replaced.
    RemoveSandbox {
        /// Which.
        id: SandboxId,
    },
    /// Unmount the volumes, remove directories and cgroup of a pod that cannot run any more.
    ReleasePod,
    /// Remove all that the runtime still holds of a pod that nobody wants any more, and its logs.
    RemovePod,
}

/// What [`Action::StartContainer`] starts.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStart {
    /// The container's name.
    pub name: String,
    /// Its role.
    pub kind: ContainerKind,
    /// The sandbox it goes into.
    pub sandbox: SandboxId,
    /// The restart count of the new instance; `None` if no earlier instance is known to the
    /// runtime, so that the log directory has to tell.
    pub restart_count: Option<u32>,
    /// The instance that runs in the target's process namespace, for an ephemeral container.
    pub target: Option<ContainerId>,
}

/// What [`Action::StopContainer`] stops.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStop {
    /// The instance.
    pub id: ContainerId,
    /// The container's name.
    pub name: String,
    /// Time between the stop signal and the kill signal.
    pub timeout: Duration,
    /// Why.
    pub reason: StopReason,
    /// The preStop hook ran before, so the stop was announced already.
    pub announced: bool,
}

/// Why one container is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum StopReason {
    /// The pod is stopped.
    PodStopped,
    /// The container's definition changed.
    SpecChanged,
    /// A probe failed.
    ProbeFailed(ProbeKind),
    /// The runtime does not know the container's state.
    Unknown,
    /// The sandbox has to be made anew.
    SandboxChanged,
}

impl StopReason {
    /// The text of the `Killing` event.
    pub fn message(&self, container: &str) -> String {
        match self {
            Self::PodStopped | Self::SandboxChanged => format!("Stopping container {container}"),
            Self::SpecChanged => {
                format!("Container {container} definition changed, will be restarted")
            }
            Self::ProbeFailed(ProbeKind::Startup) => {
                format!("Container {container} failed startup probe, will be restarted")
            }
            Self::ProbeFailed(_) => {
                format!("Container {container} failed liveness probe, will be restarted")
            }
            Self::Unknown => {
                "Container is in \"unknown\" state, try killing it before restart".to_owned()
            }
        }
    }
}

/// At most one action of a key is in flight at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ActionKey {
    /// [`Action::PreparePod`].
    Prepare,
    /// [`Action::CreateSandbox`].
    CreateSandbox,
    /// [`Action::StopSandbox`].
    StopSandbox(SandboxId),
    /// [`Action::StartContainer`]: containers of a pod start one after the other.
    Start(String),
    /// [`Action::RunPreStop`].
    PreStop(ContainerId),
    /// [`Action::StopContainer`].
    Stop(ContainerId),
    /// [`Action::RemoveContainer`].
    Remove(ContainerId),
    /// [`Action::RemoveSandbox`].
    RemoveSandbox(SandboxId),
    /// [`Action::ReleasePod`].
    Release,
    /// [`Action::RemovePod`].
    RemovePod,
}

impl Action {
    /// The action's key.
    pub fn key(&self) -> ActionKey {
        match self {
            Self::PreparePod => ActionKey::Prepare,
            Self::CreateSandbox { .. } => ActionKey::CreateSandbox,
            Self::StopSandbox { id } => ActionKey::StopSandbox(id.clone()),
            Self::StartContainer(start) => ActionKey::Start(start.name.clone()),
            Self::RunPreStop { id, .. } => ActionKey::PreStop(id.clone()),
            Self::StopContainer(stop) => ActionKey::Stop(stop.id.clone()),
            Self::RemoveContainer { id, .. } => ActionKey::Remove(id.clone()),
            Self::RemoveSandbox { id } => ActionKey::RemoveSandbox(id.clone()),
            Self::ReleasePod => ActionKey::Release,
            Self::RemovePod => ActionKey::RemovePod,
        }
    }
}

/// Why an action failed.
#[derive(Clone, Debug, PartialEq)]
pub struct ActionFailure {
    /// The Kubernetes reason (`ErrImagePull`, ...); empty where there is none.
    pub reason: &'static str,
    /// The text that users read.
    pub message: String,
    /// When to try again; `None` leaves it to the brain.
    pub retry_at: Option<Timestamp>,
}

/// How an action ended.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionOutcome {
    /// It is done.
    Done,
    /// The sandbox is ready, and looks like this.
    SandboxCreated(SandboxSnapshot),
    /// The container was started, and looks like this.
    ContainerStarted(Box<ContainerSnapshot>),
    /// It failed; what it may have left is for the next snapshot to tell.
    Failed(ActionFailure),
    /// It was cancelled; what it may have left is for the next snapshot to tell.
    Cancelled,
}
