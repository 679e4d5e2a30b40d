//! Looking at the runtime from outside of its protocol.

use std::fmt;
use std::net::Ipv4Addr;

use rubelet_cri::v1;

use crate::state::{Container, Phase, Sandbox, State, pod_uid};

/// Something that must never be, and was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two instances of one container of one pod ran at once.
    TwoRunningContainers {
        /// The pod.
        pod_uid: String,
        /// The container's name.
        name: String,
        /// The ids, the older first.
        containers: [String; 2],
    },
    /// Two sandboxes of one pod were ready at once.
    TwoReadySandboxes {
        /// The pod.
        pod_uid: String,
        /// The ids, the older first.
        sandboxes: [String; 2],
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TwoRunningContainers { pod_uid, name, containers: [first, second] } => {
                write!(f, "containers {first} and {second} of {name} in pod {pod_uid} both run")
            }
            Self::TwoReadySandboxes { pod_uid, sandboxes: [first, second] } => {
                write!(f, "sandboxes {first} and {second} of pod {pod_uid} are both ready")
            }
        }
    }
}

/// A sandbox as it is.
#[derive(Clone, Debug)]
pub struct SandboxView {
    /// Its id.
    pub id: String,
    /// The uid of its pod; empty without the label.
    pub pod_uid: String,
    /// Ready or not.
    pub state: v1::PodSandboxState,
    /// Its address, while it has one.
    pub ip: Option<Ipv4Addr>,
    /// What it was made with.
    pub config: v1::PodSandboxConfig,
    /// The runtime handler it was made with.
    pub runtime_handler: String,
    /// Its resources, as last told.
    pub resources: Option<v1::LinuxContainerResources>,
    /// Its overhead, as last told.
    pub overhead: Option<v1::LinuxContainerResources>,
}

/// A container as it is.
#[derive(Clone, Debug)]
pub struct ContainerView {
    /// Its id.
    pub id: String,
    /// Its sandbox.
    pub sandbox_id: String,
    /// The uid of its pod; empty without the label.
    pub pod_uid: String,
    /// Its name in the pod.
    pub name: String,
    /// Its state.
    pub state: v1::ContainerState,
    /// Its exit code, once it ended.
    pub exit_code: Option<i32>,
    /// It was sent the stop signal.
    pub stop_signal_sent: bool,
    /// What it was made with.
    pub config: v1::ContainerConfig,
    /// Its resources, as last updated.
    pub resources: v1::LinuxContainerResources,
}

/// Everything the runtime holds at one moment; both lists are sorted oldest first.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// All sandboxes.
    pub sandboxes: Vec<SandboxView>,
    /// All containers.
    pub containers: Vec<ContainerView>,
}

impl Inventory {
    pub(crate) fn of(state: &State) -> Self {
        let mut sandboxes: Vec<_> = state.sandboxes.values().collect();
        sandboxes.sort_by_key(|sandbox| sandbox.created_at);
        let mut containers: Vec<_> = state.containers.values().collect();
        containers.sort_by_key(|container| container.created_at);
        Self {
            sandboxes: sandboxes.into_iter().map(sandbox_view).collect(),
            containers: containers.into_iter().map(container_view).collect(),
        }
    }

    /// The containers `name` of the pod `pod_uid`, oldest first.
    pub fn instances<'a>(
        &'a self,
        pod_uid: &'a str,
        name: &'a str,
    ) -> impl Iterator<Item = &'a ContainerView> {
        self.containers.iter().filter(move |c| c.pod_uid == pod_uid && c.name == name)
    }

    /// The running containers of the pod `pod_uid`, oldest first.
    pub fn running<'a>(&'a self, pod_uid: &'a str) -> impl Iterator<Item = &'a ContainerView> {
        self.containers.iter().filter(move |container| {
            container.pod_uid == pod_uid && container.state == v1::ContainerState::ContainerRunning
        })
    }

    /// Nothing of the pod `pod_uid` is left.
    pub fn is_gone(&self, pod_uid: &str) -> bool {
        !self.sandboxes.iter().any(|sandbox| sandbox.pod_uid == pod_uid)
            && !self.containers.iter().any(|container| container.pod_uid == pod_uid)
    }
}

fn sandbox_view(sandbox: &Sandbox) -> SandboxView {
    SandboxView {
        id: sandbox.id.clone(),
        pod_uid: pod_uid(&sandbox.config.labels).unwrap_or_default().to_owned(),
        state: sandbox.state(),
        ip: sandbox.ip,
        config: sandbox.config.clone(),
        runtime_handler: sandbox.runtime_handler.clone(),
        resources: sandbox.resources.clone(),
        overhead: sandbox.overhead.clone(),
    }
}

fn container_view(container: &Container) -> ContainerView {
    let (exit_code, stop_signal_sent) = match container.phase {
        Phase::Created => (None, false),
        Phase::Running { stop_signal_sent, .. } => (None, stop_signal_sent),
        Phase::Exited { exit_code, .. } => (Some(exit_code), false),
    };
    ContainerView {
        id: container.id.clone(),
        sandbox_id: container.sandbox_id.clone(),
        pod_uid: pod_uid(&container.config.labels).unwrap_or_default().to_owned(),
        name: container.name().to_owned(),
        state: container.state(),
        exit_code,
        stop_signal_sent,
        config: container.config.clone(),
        resources: container.resources.clone(),
    }
}
