//! Which volume operation is due for a pod.
//!
//! What: pure functions from a pod's spec and from what is found on disk and in the mount table to
//! a plan, and the rules that go with it (which volumes are needed at all, how large a memory
//! volume may grow, how long a failed volume waits, which files a volume of the API has).
//! Not here: any file, mount or clock; those belong to `volume-manager`, which applies the plan.
//!
//! Invariant: a plan never takes down anything while a container of the pod may run (I8), and
//! it never names a path outside the pod's own directory for removal.

mod back_off;
mod claim;
mod content;
mod desired;
mod empty_dir;
mod host_path;
mod image;
mod persistent;
mod plan;
mod plugin;
mod sub_path;

pub use back_off::{VOLUME_RETRY_INITIAL, VOLUME_RETRY_MAX, compute_next_retry_delay};
pub use claim::{ClaimError, ClaimObjects, used_claims};
pub use content::{
    ContentError, ContentFacts, ContentFailure, ContentNeeds, ContentObjects, ContentSource,
    ContentVolume, PathError, Payload, PayloadFile, TokenOutcome, TokenSpec, TrustBundleSpec,
    compute_payload,
};
pub use desired::{
    DesiredVolume, DesiredVolumes, FailureStage, RejectedVolume, VolumeSource, VolumeSpecError,
    desired_volumes,
};
pub use empty_dir::{EmptyDirMedium, EmptyDirVolume};
pub use host_path::{HostPathType, HostPathVolume};
pub use image::ImageVolume;
pub use persistent::{BlockVolume, LocalVolume, NfsVolume};
pub use plan::{
    BlockedVolume, ContainerPresence, MountedFilesystem, ObservedDevice, ObservedPodVolumes,
    ObservedSubPath, ObservedVolume, VolumeAction, VolumePlan, plan_volumes,
};
pub use plugin::VolumePlugin;
pub use sub_path::{SubPathError, check_sub_path};
