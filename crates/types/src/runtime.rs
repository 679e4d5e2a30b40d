//! What the runtime was seen to hold for one pod at one moment.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use crate::{ContainerId, PodRef, SandboxId};

/// Everything the runtime holds for one pod. Both lists are sorted newest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PodSnapshot {
    /// The pod, as the runtime's labels name it.
    pub pod: PodRef,
    /// The moment before which everything in the snapshot was read: an action that ended earlier
    /// is visible in it.
    pub taken_at: Timestamp,
    /// All sandboxes, newest first.
    pub sandboxes: Vec<SandboxSnapshot>,
    /// All instances of all containers, newest first.
    pub containers: Vec<ContainerSnapshot>,
}

/// State of a pod sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum SandboxState {
    /// It can take containers.
    Ready,
    /// It was stopped, or is broken.
    NotReady,
}

/// One pod sandbox.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SandboxSnapshot {
    /// The runtime's id.
    pub id: SandboxId,
    /// Its state.
    pub state: SandboxState,
    /// `metadata.attempt`.
    pub attempt: u32,
    /// When it was created.
    pub created_at: Timestamp,
    /// Pod IPs, the primary one first; empty for host network.
    pub ips: Vec<String>,
    /// It uses the node's network namespace.
    pub host_network: bool,
}

/// State of one container instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum ContainerState {
    /// Created and never started.
    Created,
    /// Its process runs.
    Running {
        /// Since when.
        started_at: Timestamp,
    },
    /// Its process ended.
    Exited {
        /// When it was started; none if it never was.
        started_at: Option<Timestamp>,
        /// When it ended.
        finished_at: Timestamp,
        /// The exit code.
        exit_code: i32,
        /// The runtime's reason (`Completed`, `Error`, `OOMKilled`, ...).
        reason: String,
        /// The termination message, or the runtime's own message.
        message: String,
    },
    /// The runtime does not know.
    Unknown,
}

/// The kubelet's own annotations on a container: what is needed to stop it properly when its pod's
/// spec is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContainerAnnotations {
    /// `io.kubernetes.container.terminationMessagePath`.
    pub termination_message_path: String,
    /// `io.kubernetes.container.terminationMessagePolicy`.
    pub termination_message_policy: String,
    /// `io.kubernetes.container.preStopHandler`, JSON.
    pub pre_stop_handler: Option<String>,
    /// `io.kubernetes.container.ports`, JSON.
    pub ports: Option<String>,
    /// `io.kubernetes.pod.terminationGracePeriod`, seconds.
    pub termination_grace_seconds: Option<i64>,
    /// `io.kubernetes.pod.deletionGracePeriod`, seconds.
    pub deletion_grace_seconds: Option<i64>,
}

/// Resources the runtime reports for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ContainerResources {
    /// CPU shares (cgroup v1 scale).
    pub cpu_shares: Option<i64>,
    /// CFS quota in microseconds.
    pub cpu_quota: Option<i64>,
    /// CFS period in microseconds.
    pub cpu_period: Option<i64>,
    /// Memory limit in bytes.
    pub memory_limit: Option<i64>,
}

/// The Linux user a container runs as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ContainerUser {
    /// User id.
    pub uid: i64,
    /// Primary group id.
    pub gid: i64,
    /// Supplemental group ids.
    pub supplemental_groups: Vec<i64>,
}

/// One instance of one container.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerSnapshot {
    /// The runtime's id.
    pub id: ContainerId,
    /// The container's name in the pod spec.
    pub name: String,
    /// The sandbox it lives in, where the runtime tells.
    pub sandbox_id: Option<SandboxId>,
    /// Its state.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: Timestamp,
    /// The image as the runtime names it for people.
    pub image: String,
    /// The image reference that identifies its content.
    pub image_ref: String,
    /// `io.kubernetes.container.hash` as found; empty if it has none.
    pub hash: String,
    /// Restart count of this instance.
    pub restart_count: u32,
    /// The kubelet's annotations on it.
    pub annotations: ContainerAnnotations,
    /// Resources in force, where the runtime reports them.
    pub resources: Option<ContainerResources>,
    /// The user it runs as, where the runtime reports it.
    pub user: Option<ContainerUser>,
    /// Host path of its log file.
    pub log_path: String,
    /// Mounts: container path to host path.
    pub mounts: BTreeMap<String, String>,
    /// The signal that stops it, where the runtime reports it.
    pub stop_signal: Option<String>,
}

impl ContainerSnapshot {
    /// Its process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. })
    }

    /// It may hold a process: running, or in a state the runtime does not know.
    pub fn may_run(&self) -> bool {
        matches!(self.state, ContainerState::Running { .. } | ContainerState::Unknown)
    }

    /// The exit code, if it ended.
    pub fn exit_code(&self) -> Option<i32> {
        match self.state {
            ContainerState::Exited { exit_code, .. } => Some(exit_code),
            _ => None,
        }
    }
}

impl PodSnapshot {
    /// A snapshot that shows nothing: the runtime knows no such pod.
    pub fn empty(pod: PodRef, taken_at: Timestamp) -> Self {
        Self { pod, taken_at, sandboxes: Vec::new(), containers: Vec::new() }
    }

    /// The runtime holds neither sandbox nor container of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// The newest instance of container `name`.
    pub fn newest(&self, name: &str) -> Option<&ContainerSnapshot> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// All instances of container `name`, newest first.
    pub fn instances<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = &'a ContainerSnapshot> + 'a {
        self.containers.iter().filter(move |container| container.name == name)
    }

    /// Some container may hold a process.
    pub fn any_may_run(&self) -> bool {
        self.containers.iter().any(ContainerSnapshot::may_run)
    }

    /// Some sandbox is ready.
    pub fn any_sandbox_ready(&self) -> bool {
        self.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::Ready)
    }

    /// IPs of the newest ready sandbox.
    pub fn ips(&self) -> &[String] {
        self.sandboxes
            .iter()
            .find(|sandbox| sandbox.state == SandboxState::Ready)
            .map_or(&[], |sandbox| sandbox.ips.as_slice())
    }
}
