use std::fmt;

use serde::Serialize;

use crate::{ContainerId, PodUid};

/// The three kinds of probes of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ProbeKind {
    /// Failure restarts the container.
    Liveness,
    /// Failure takes the pod out of its services.
    Readiness,
    /// Until it succeeds the other two do not run; failure restarts the container.
    Startup,
}

impl fmt::Display for ProbeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        })
    }
}

/// The settled result of a probe, after thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ProbeResult {
    /// Nothing is known yet.
    Unknown,
    /// The container passed.
    Success,
    /// The container failed.
    Failure,
}

/// A settled probe result of one container instance, published when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeUpdate {
    /// The pod.
    pub pod: PodUid,
    /// The container's name.
    pub container: String,
    /// The instance that was probed.
    pub container_id: ContainerId,
    /// Which probe.
    pub kind: ProbeKind,
    /// Its result.
    pub result: ProbeResult,
}
