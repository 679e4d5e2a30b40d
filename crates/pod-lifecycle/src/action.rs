use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use rubelet_types::{
    ContainerId, ContainerKind, ContainerSnapshot, ProbeKind, SandboxId, SandboxSnapshot,
};
use serde::Serialize;

/// One step towards what the pod should be.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Make the pod's directories and its cgroup.
    PreparePod,
    /// Make its volumes ready.
    MountVolumes,
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
    /// Bring the pod's cgroup and its running containers to the resources that it was granted.
    ResizePod,
    /// Remove a dead container.
    RemoveContainer {
        /// The instance.
        id: ContainerId,
        /// The container's name.
        name: String,
        /// Its log stays: the container starts again and its log goes on to be readable.
        keep_log: bool,
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
    /// The restart count of the new instance; `None` if no earlier instance is known, so that the
    /// log directory has to tell.
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
    /// A hook or a stop of this instance was begun before, so the stop was announced already.
    pub announced: bool,
}

/// Why one container is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum StopReason {
    /// The pod is stopped.
    PodStopped,
    /// The container's definition changed.
    SpecChanged,
    /// A probe failed, and the container is started again.
    ProbeFailed(ProbeKind),
    /// A probe failed, and the restart policy is `Never`.
    ProbeFailedForGood(ProbeKind),
    /// Its postStart hook failed, and whoever ran the hook could not kill it.
    PostStartHookFailed,
    /// The runtime does not know the container's state.
    Unknown,
    /// A newer instance of the same container exists.
    Superseded,
    /// The sandbox has to be made anew.
    SandboxChanged,
    /// A restart rule starts all containers of the pod again.
    RestartingAll,
    /// It is started again with other resources, as its resize policy wants it.
    Resized,
}

impl StopReason {
    /// The text of the `Killing` event.
    pub fn message(&self, container: &str) -> String {
        match self {
            Self::PodStopped | Self::Superseded | Self::SandboxChanged | Self::RestartingAll => {
                format!("Stopping container {container}")
            }
            Self::SpecChanged => {
                format!("Container {container} definition changed, will be restarted")
            }
            Self::ProbeFailed(kind) => {
                format!("Container {container} failed {} probe, will be restarted", lower(*kind))
            }
            Self::ProbeFailedForGood(kind) => {
                format!("Container {container} failed {} probe", lower(*kind))
            }
            Self::PostStartHookFailed => "FailedPostStartHook".to_owned(),
            Self::Resized => format!("Container {container} resize requires restart"),
            Self::Unknown => {
                "Container is in \"unknown\" state, try killing it before restart".to_owned()
            }
        }
    }

    /// The container is stopped in order to start again, whatever its exit code will say to its
    /// restart policy.
    pub(crate) fn owes_restart(&self) -> bool {
        match self {
            Self::SpecChanged | Self::ProbeFailed(_) | Self::Unknown | Self::Resized => true,
            Self::PodStopped
            | Self::ProbeFailedForGood(_)
            | Self::PostStartHookFailed
            | Self::Superseded
            | Self::SandboxChanged
            | Self::RestartingAll => false,
        }
    }
}

fn lower(kind: ProbeKind) -> String {
    kind.to_string().to_lowercase()
}

/// At most one action of a key is in flight at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ActionKey {
    /// [`Action::PreparePod`].
    Prepare,
    /// [`Action::MountVolumes`].
    MountVolumes,
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
    /// [`Action::ResizePod`].
    Resize,
    /// [`Action::RemoveContainer`].
    Remove(ContainerId),
    /// [`Action::RemoveSandbox`].
    RemoveSandbox(SandboxId),
    /// [`Action::ReleasePod`].
    Release,
    /// [`Action::RemovePod`].
    RemovePod,
}

impl fmt::Display for ActionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prepare => f.write_str("prepare"),
            Self::MountVolumes => f.write_str("mount volumes"),
            Self::CreateSandbox => f.write_str("create sandbox"),
            Self::StopSandbox(id) => write!(f, "stop sandbox {id}"),
            Self::Start(name) => write!(f, "start {name}"),
            Self::PreStop(id) => write!(f, "preStop hook of {id}"),
            Self::Stop(id) => write!(f, "stop {id}"),
            Self::Resize => f.write_str("resize"),
            Self::Remove(id) => write!(f, "remove {id}"),
            Self::RemoveSandbox(id) => write!(f, "remove sandbox {id}"),
            Self::Release => f.write_str("release"),
            Self::RemovePod => f.write_str("remove pod"),
        }
    }
}

impl Action {
    /// The action's key.
    pub fn key(&self) -> ActionKey {
        match self {
            Self::PreparePod => ActionKey::Prepare,
            Self::MountVolumes => ActionKey::MountVolumes,
            Self::CreateSandbox { .. } => ActionKey::CreateSandbox,
            Self::StopSandbox { id } => ActionKey::StopSandbox(id.clone()),
            Self::StartContainer(start) => ActionKey::Start(start.name.clone()),
            Self::RunPreStop { id, .. } => ActionKey::PreStop(id.clone()),
            Self::StopContainer(stop) => ActionKey::Stop(stop.id.clone()),
            Self::ResizePod => ActionKey::Resize,
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
