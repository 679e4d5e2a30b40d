//! What is known of a pod, put side by side for whoever asks.

use jiff::Timestamp;
use rubelet_pod_lifecycle::Stage;
use rubelet_pod_workers::{RecordedDecision, RunningAction};
use rubelet_types::{PodRef, PodSnapshot};
use serde::Serialize;

use crate::pods::Standing;

/// Everything that the kubelet knows of one pod, from every part of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodView {
    /// The pod.
    pub(super) pod: PodRef,
    /// When all this was so.
    pub(super) asked_at: Timestamp,
    /// Why it is not running, or not ready, the most telling first; see [`super::causes`].
    pub(super) why: Vec<String>,
    /// `file`, `http` or `api`; none for a pod that only the runtime knows.
    pub(super) source: Option<String>,
    /// How it was admitted; none if no source wants it any more.
    pub(super) admission: Option<Standing>,
    /// What its worker does; none if it has none.
    pub(super) worker: Option<Worker>,
    /// What all pods depend on.
    pub(super) runtime: Runtime,
    /// What the runtime holds of it at this moment, or why it does not tell.
    pub(super) observed: Observed,
    /// Its volumes.
    pub(super) volumes: Vec<Volume>,
    /// Its containers of all kinds, in the order of the spec.
    pub(super) containers: Vec<Container>,
    /// What is reported of it.
    pub(super) status: Option<Status>,
}

/// A pod's worker.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Worker {
    pub(super) stage: Stage,
    pub(super) is_removed: bool,
    pub(super) is_orphan: bool,
    /// What is being done now.
    pub(super) actions: Vec<RunningAction>,
    /// When it looks again, if nothing happens before.
    pub(super) wakes_at: Option<Timestamp>,
    /// Oldest first.
    pub(super) decisions: Vec<RecordedDecision>,
}

/// The container runtime, as far as it is in the way. Empty texts say that all is well.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Runtime {
    pub(super) not_ready: Option<String>,
    pub(super) network_not_ready: Option<String>,
    /// It is not listed regularly.
    pub(super) not_listed: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Observed {
    Snapshot(Box<PodSnapshot>),
    Error(String),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Volume {
    pub(super) name: String,
    /// All volumes of the pod are ready: its containers may start.
    pub(super) is_ready: bool,
    /// Where it is on the node.
    pub(super) host_path: Option<String>,
    pub(super) last_error: Option<String>,
    /// When it is tried again.
    pub(super) retry_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    /// `init`, `sidecar`, `regular` or `ephemeral`.
    pub(super) kind: &'static str,
    /// `waiting`, `running` or `terminated`; empty before anything is known.
    pub(super) state: &'static str,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) exit_code: Option<i32>,
    pub(super) restart_count: i32,
    pub(super) ready: bool,
    /// How the instance before ended, in words.
    pub(super) last_end: Option<String>,
    /// The newest instance.
    pub(super) id: Option<String>,
    pub(super) image_pull: Option<ImagePull>,
    pub(super) probes: Vec<Probe>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImagePull {
    /// A pull of the image is under way, or waits for its turn.
    pub(super) in_flight: bool,
    pub(super) last_error: Option<String>,
    /// When it is tried again.
    pub(super) retry_at: Option<Timestamp>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Probe {
    /// `startup`, `readiness` or `liveness`.
    pub(super) kind: &'static str,
    /// `unknown`, `success` or `failure`.
    pub(super) result: &'static str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) phase: String,
    pub(super) reason: String,
    pub(super) message: String,
    /// Conditions that are not true, in words.
    pub(super) unmet_conditions: Vec<String>,
    pub(super) is_ready: bool,
    /// Grows with each change.
    pub(super) version: u64,
    /// Whether the API server has it; none without an API server.
    pub(super) reached_api_server: Option<bool>,
}
