//! Liveness, readiness and startup probes of running containers.
//!
//! What: the schedule and the thresholds of every probe of every pod; the settled results, readable
//! at any time; an update whenever a probe changes one; the events that tell users why.
//!
//! Not here: what follows from a result. Whether a container is restarted, and what its pod's
//! status says, is decided by those who read [`ProbeManager::result`].
//!
//! # How it works
//!
//! A pod worker describes its pod at every sync ([`ProbeManager::set_pod`]). Each probe has a
//! [`ProbeState`], which decides everything and does nothing, and a schedule. A task runs only for
//! a probe that has something to do: while its container does not run, waits for its startup
//! probe, or has failed and waits to be replaced, a probe costs neither task nor timer.
//!
//! ```text
//!                 new container id
//!        +-------------------------------+
//!        v                               |
//!     Probing --liveness failed, ------> Held
//!        |      startup concluded        |
//!        +---------- stop ---------------+----> Stopped
//! ```

mod manager;
mod metrics;
mod probe_state;
mod prober;
mod schedule;
mod updates;

pub use manager::ProbeManager;
pub use metrics::{DurationHistogram, ProbeMetrics};
pub use probe_state::{
    CarriedOver, Next, ObservedInstance, ObservedRun, ProbeSettings, ProbeState,
};
pub use prober::{ExecError, ExecOutput, ExecPort, ProbeJob, ProbePort, Prober};
pub use updates::ProbeUpdates;
