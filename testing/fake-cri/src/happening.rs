//! What happens in the runtime, told at the moment when it does.

use std::fmt;
use std::sync::Arc;

use rubelet_cri::Rpc;

use crate::FaultAction;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Happening {
    /// A call came in.
    Call {
        /// Which.
        rpc: Rpc,
        /// What it is about, as for [`crate::Fault::about`].
        about: Vec<String>,
    },
    /// A fault struck a call.
    Fault {
        /// The call.
        rpc: Rpc,
        /// What it is about.
        about: Vec<String>,
        /// What went wrong.
        action: FaultAction,
    },
    /// A sandbox changed.
    Sandbox {
        /// Which.
        id: String,
        /// The uid of its pod; empty without the label.
        pod_uid: String,
        /// How.
        change: SandboxChange,
    },
    /// A container changed.
    Container {
        /// Which.
        id: String,
        /// The uid of its pod; empty without the label.
        pod_uid: String,
        /// Its name in the pod.
        name: String,
        /// How.
        change: ContainerChange,
    },
    /// A command that ran in a container ended.
    Exec {
        /// The container.
        id: String,
        /// The command.
        command: Vec<String>,
        /// How it ended; none if it ran into its time limit or could not be run.
        exit_code: Option<i32>,
    },
}

/// What became of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxChange {
    /// It is ready.
    Ready,
    /// It is not ready any more.
    NotReady,
    /// It is gone.
    Removed,
}

/// What became of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerChange {
    /// It exists.
    Created,
    /// It runs.
    Started,
    /// It was sent the stop signal.
    StopSignal,
    /// It was sent SIGKILL.
    KillSignal,
    /// It ended, with this exit code.
    Exited(i32),
    /// It is gone.
    Removed,
}

/// Is told everything that happens. It must not block, and no lock of the runtime is held.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(&Happening) + Send + Sync>);

impl Observer {
    /// Has `observe` told.
    pub fn new(observe: impl Fn(&Happening) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn tell(&self, happening: &Happening) {
        (self.0)(happening);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
