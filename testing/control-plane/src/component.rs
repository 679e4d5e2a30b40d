//! The parts of a control plane.

use std::fmt;

/// A process of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store.
    Etcd,
    /// The Kubernetes API.
    ApiServer,
    /// The controllers: nodes' life, service accounts, certificate requests, garbage collection,
    /// the workload kinds.
    ControllerManager,
    /// Gives pods their nodes.
    Scheduler,
}

impl Component {
    /// The name of its executable, and of its log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
