//! Files, URLs and the API server become one stream of typed pod changes.
//!
//! A *source* ([`PodSource`]) hands over full sets: everything it wants to run, each time. The
//! [`PodConfigMux`] compares each set with the one before and says what changed ([`PodChange`]);
//! [`PodConfig`] wires the sources that read manifests to the mux and drives them; the API server's
//! ([`watch_api_pods`]) joins through [`PodConfig::register_source`].
//!
//! ```text
//! bytes -> decode -> defaults -> static_pod -> validation -> SET -> mux -> ADD UPDATE REMOVE ...
//!          \---------------- pure, no I/O, no clock -----/         pure
//! ```
//!
//! What holds here:
//! - A source that is still silent is not an empty source: the node is ready only when every
//!   configured source has handed over a set.
//! - A manifest that cannot be used never touches any other pod, and never stops the pod its own
//!   last good version asked for; only removing the file or a good new version does.
//! - Nothing from outside is trusted: alias bombs, deep nesting, FIFOs and devices in the manifest
//!   directory, and endless bodies cost bounded time and memory.
//!
//! Absent by intent: what a pod's status is, admission.

mod api_references;
mod config;
pub mod decode;
pub mod defaults;
mod mirror;
mod mux;
mod source;
mod static_pod;
mod static_pod_uid;
pub mod validation;

pub use api_references::find_api_reference;
pub use config::{PodChanges, PodConfig, PodSourceHandle, PodSourceSettings};
pub use mirror::{
    MirrorAction, MirrorOwner, MirrorPlan, MirrorPods, MirrorPort, WithoutPod, keep_mirror_pods,
    plan_mirror_pods,
};
pub use mux::{DuplicatePod, MuxOutcome, PodChange, PodConfigMux, PodOperation, PodSource};
pub use source::{InvalidManifestUrl, watch_api_pods};
pub use static_pod::{ManifestError, ManifestOrigin, StaticPodPolicy, prepare_static_pod};
pub use static_pod_uid::static_pod_uid;
