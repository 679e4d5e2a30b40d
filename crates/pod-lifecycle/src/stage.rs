use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

/// Where a pod is in its life. Stages only go forward.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Stage {
    /// Known, and held back until it may start: another static pod of the same full name is not
    /// finished yet. Nothing of it exists in the runtime through this worker.
    Waiting,
    /// Its containers are kept as the spec wants them.
    Syncing,
    /// Its containers are being stopped. Nothing is created or started any more.
    Terminating {
        /// When termination began.
        since: Timestamp,
        /// Seconds from the moment the grace was last set; never below 1.
        grace_seconds: i64,
        /// When the containers must be dead at the latest, hooks included.
        deadline: Timestamp,
        /// Why.
        cause: StopCause,
    },
    /// No container runs and none can start. Volumes, cgroup and directories are being released.
    Terminated {
        /// Since when.
        since: Timestamp,
        /// Why it was stopped.
        cause: StopCause,
    },
    /// Everything is released.
    Finished {
        /// Why it was stopped.
        cause: StopCause,
    },
}

impl Stage {
    /// Position in life; only ever grows.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Waiting => 0,
            Self::Syncing => 1,
            Self::Terminating { .. } => 2,
            Self::Terminated { .. } => 3,
            Self::Finished { .. } => 4,
        }
    }

    /// The pod is being stopped or is stopped.
    pub fn is_stopping(&self) -> bool {
        self.rank() >= 2
    }
}

/// Why a pod is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum StopCause {
    /// It left its source, or is being deleted.
    Deleted,
    /// All its containers are done.
    Completed,
    /// `activeDeadlineSeconds` passed.
    DeadlineExceeded,
    /// The runtime held it and no source knows it.
    Orphaned,
    /// The node ends it, whatever its containers say: eviction, preemption, shutdown, or the refusal
    /// of a pod that runs already. The pod ends as Failed.
    Disrupted(Arc<Disruption>),
}

/// What the final status says of a pod that the node ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disruption {
    /// `status.reason`, such as `Evicted` or `Preempting`.
    pub reason: String,
    /// `status.message`.
    pub message: String,
    /// The message of the condition `DisruptionTarget`; none for a pod that gets no such condition.
    pub condition: Option<String>,
}
