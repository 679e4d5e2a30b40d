//! Mounts and unmounts the volumes of pods.
//!
//! What: [`VolumeManager`] makes a pod's volumes ready before its containers start, keeps files that
//! show objects of the API as they should be, prepares `subPath` mounts, takes everything down after the last container is gone, and clears up behind
//! pods that nobody knows any more. What is due is decided in `rubelet-volume-plan`.
//! Not here: when any of this happens (the pod worker), and the system calls of mounting
//! (`rubelet-linux`, behind [`MountPort`]), and where objects come from
//! ([`ContentPort`]).
//!
//! Invariants: what is on disk and in the mount table is the only state that counts; nothing
//! beneath a mount point is ever deleted (I12); a file operation that hangs holds up its own pod
//! and no other (I13).

mod blocking;
mod claims;
mod content;
mod contents;
mod empty_dir;
mod error;
mod failures;
mod host_mounts;
mod host_path;
mod manager;
mod memory;
mod metrics;
mod mounted;
mod observe;
mod orphans;
mod ownership;
mod persistent;
mod port;
mod sub_path;
mod tear_down;

pub use contents::VolumeContent;
pub use error::{
    EnsureVolumesError, PrepareSubPathError, ReleaseVolumesError, SetUpError, TearDownError,
    VolumeFailure,
};
pub use failures::LastFailure;
pub use host_mounts::HostMounts;
pub use manager::{VolumeManager, VolumeManagerConfig};
pub use metrics::VolumeMetrics;
pub use mounted::{MappedDevice, MountedVolume, PodVolumes};
pub use observe::ObserveError;
pub use orphans::{LeftOrphan, OrphanReport};
pub use port::{ClaimPort, ContentPort, MountPoint, MountPort};
pub use sub_path::SubPathMount;
