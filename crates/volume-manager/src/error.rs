use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rubelet_types::{PodRef, UnsafePathElement, error_chain};
use rubelet_volume_plan::{ContentError, FailureStage, SubPathError, VolumeSpecError};

use crate::observe::ObserveError;

/// The reason of events about volumes that cannot be mounted.
pub(crate) const FAILED_MOUNT: &str = "FailedMount";

/// A volume could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// Its spec makes it impossible.
    #[error(transparent)]
    Spec(#[from] VolumeSpecError),
    /// Its files cannot be told.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// What is there could not be found out.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// Nothing of the pod's could be set up.
    #[error("{message}")]
    Preparation {
        /// Why.
        message: String,
    },
    /// At the path of a hostPath is something else.
    #[error("hostPath type check failed: {path} is not a {noun}")]
    HostPathType {
        /// The path.
        path: String,
        /// What should be there.
        noun: &'static str,
    },
    /// There is nothing where a local volume should be.
    #[error("path {path:?} does not exist")]
    NoSuchPath {
        /// The path.
        path: PathBuf,
    },
    /// The path of a local volume climbs.
    #[error("invalid path: {path} must not contain '..'")]
    LocalPathBacksteps {
        /// The path.
        path: PathBuf,
    },
    /// A local volume is neither a directory nor a device.
    #[error("only directory and block device are supported")]
    NoDirectory,
    /// What containers should get as a device is none.
    #[error("path {path:?} is not a block device")]
    NotBlockDevice {
        /// The path.
        path: PathBuf,
    },
    /// The device of a local volume could not be mounted.
    #[error(
        "local: failed to mount device {} at {} (fstype: {fs_type}), error",
        device.display(),
        place.display()
    )]
    Device {
        /// The device.
        device: PathBuf,
        /// Where to.
        place: PathBuf,
        /// With which file system.
        fs_type: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file system could not be mounted.
    #[error(transparent)]
    FileSystem(io::Error),
    /// `fsGroup` is no group id.
    #[error("fsGroup {fs_group} is no group id")]
    FsGroup {
        /// The value.
        fs_group: i64,
    },
    /// A huge page volume is mounted with pages of another size.
    #[error("mounted dir {path} pagesize '{found:?}' and requested medium size '{wanted}' differ")]
    PageSize {
        /// The volume's directory.
        path: PathBuf,
        /// Bytes, as mounted.
        found: Option<u64>,
        /// Bytes, as asked for.
        wanted: u64,
    },
    /// A file operation failed.
    #[error("{operation} {path}")]
    Io {
        /// What was tried, such as `create directory`.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// An operation on a volume, as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// What failed, such as `MountVolume.SetUp failed`.
    pub(crate) failure: &'static str,
    /// The reason of the event.
    pub(crate) reason: &'static str,
}

impl SetUpError {
    /// What was tried.
    pub(crate) fn operation(&self) -> Operation {
        let mount = |failure| Operation { failure, reason: FAILED_MOUNT };
        let map = Operation { failure: "MapVolume.MapPodDevice failed", reason: "FailedMapVolume" };
        match self {
            Self::Spec(error) => match error.stage() {
                FailureStage::NodeAffinity => mount("MountVolume.NodeAffinity check failed"),
                FailureStage::MountOptions => mount("MountVolume.MountOptionSupport check failed"),
                FailureStage::Map => map,
                FailureStage::Process | FailureStage::SetUp => mount("MountVolume.SetUp failed"),
            },
            Self::NoSuchPath { .. } | Self::NoDirectory => {
                mount("MountVolume.NewMounter initialization failed")
            }
            Self::NotBlockDevice { .. } => map,
            Self::Device { .. } => mount("MountVolume.MountDevice failed"),
            Self::Content(_)
            | Self::Observe(_)
            | Self::Preparation { .. }
            | Self::HostPathType { .. }
            | Self::LocalPathBacksteps { .. }
            | Self::FileSystem(_)
            | Self::FsGroup { .. }
            | Self::PageSize { .. }
            | Self::Io { .. } => mount("MountVolume.SetUp failed"),
        }
    }

    pub(crate) fn io(
        operation: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { operation, path, source }
    }
}

/// Why one volume of a pod is not ready.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeFailure {
    /// It is specified in a way that cannot be processed, or its claim leads to no volume.
    #[error("{message}")]
    NotProcessed {
        /// Why.
        message: String,
        /// When it is looked at again at the earliest, from now.
        retry_after: Duration,
    },
    /// Its set-up failed, just now or so recently that it is not tried again yet.
    #[error("{message}")]
    SetUpFailed {
        /// `MountVolume.SetUp failed for volume "x" : ...`.
        message: String,
        /// When it is tried again at the earliest, from now.
        retry_after: Duration,
        /// It waits for an object of the API.
        awaits_object: bool,
    },
    /// Its set-up, or an operation before it on the same pod, did not end in time and goes on.
    #[error("context deadline exceeded")]
    TimedOut,
}

/// Some volumes of a pod are not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsureVolumesError {
    /// The pod.
    pub pod: PodRef,
    /// Why, by volume.
    pub failures: BTreeMap<String, VolumeFailure>,
}

impl EnsureVolumesError {
    /// How soon another attempt makes sense; none when the caller's usual period holds.
    pub fn retry_after(&self) -> Option<Duration> {
        self.failures
            .values()
            .filter_map(|failure| match failure {
                VolumeFailure::SetUpFailed { retry_after, .. }
                | VolumeFailure::NotProcessed { retry_after, .. } => Some(*retry_after),
                VolumeFailure::TimedOut => None,
            })
            .min()
    }
}

impl EnsureVolumesError {
    /// Some volume waits for an object of the API, which may appear at any time.
    pub fn awaits_object(&self) -> bool {
        self.failures.values().any(|failure| {
            matches!(failure, VolumeFailure::SetUpFailed { awaits_object: true, .. })
        })
    }
}

impl fmt::Display for EnsureVolumesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |wanted: fn(&VolumeFailure) -> bool| {
            let names = self.failures.iter().filter(|(_, failure)| wanted(failure));
            names.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" ")
        };
        let mut reasons: Vec<String> = self.failures.values().map(ToString::to_string).collect();
        reasons.dedup();
        write!(
            f,
            "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], \
             failed to process volumes=[{}]: {}",
            names(|_| true),
            names(|failure| matches!(failure, VolumeFailure::NotProcessed { .. })),
            reasons.join("; "),
        )
    }
}

impl std::error::Error for EnsureVolumesError {}

/// A step of taking a pod's volumes down failed. What was done before stays done; nothing that
/// depends on the step was tried.
#[derive(Debug, thiserror::Error)]
pub enum TearDownError {
    /// What is there could not be found out.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// A mount is in use, or cannot be taken away for another reason.
    #[error("unmount {path}")]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A loop device is in use, or cannot be taken away for another reason.
    #[error("detach loop devices of {path}")]
    Detach {
        /// What they show.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A sub-path of the volume is still there.
    #[error("volume {volume:?} still has sub-paths mounted")]
    SubPathsRemain {
        /// The volume.
        volume: String,
    },
    /// Something is mounted where contents would have to be deleted.
    #[error("{mount} is mounted beneath {path}: not deleting anything there")]
    MountRemains {
        /// What was to be deleted.
        path: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// Mounts are left of a pod whose `volumes` directory is gone, so nothing tells what they are.
    #[error("{mount} is mounted, but {volumes} is missing: not touching the pod's directory")]
    VolumesMissing {
        /// The directory that is missing.
        volumes: PathBuf,
        /// One of the mounts.
        mount: PathBuf,
    },
    /// A mounted volume of a plugin that is not known here.
    #[error("volume {volume:?} is mounted by {plugin_directory}, which is not known")]
    UnknownPlugin {
        /// Name of the plugin's directory.
        plugin_directory: String,
        /// The volume.
        volume: String,
    },
    /// Something could not be deleted.
    #[error("remove {path}")]
    Remove {
        /// What.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// An earlier operation on the pod's volumes goes on and on.
    #[error("an operation on the pod's volumes is still in progress")]
    InProgress,
}

/// The volumes of a pod are not all down. Trying again goes on where it stopped.
#[derive(Debug, thiserror::Error)]
#[error("volumes of pod {pod} are not down yet: {}", .failures.iter().map(|failure| error_chain(failure)).collect::<Vec<_>>().join("; "))]
pub struct ReleaseVolumesError {
    /// The pod.
    pub pod: PodRef,
    /// Every step that failed; never empty.
    pub failures: Vec<TearDownError>,
    /// How soon another attempt makes sense.
    pub retry_after: Duration,
}

/// A `subPath` could not be made ready for a container.
///
/// The text goes to the pod's owner and so tells nothing about the node's files; the cause, which
/// does, is for the log.
#[derive(Debug, thiserror::Error)]
pub enum PrepareSubPathError {
    /// The path is refused as it is written.
    #[error(transparent)]
    Refused(#[from] SubPathError),
    /// A name from the pod cannot be part of a path.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    Name {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
        /// Which name.
        #[source]
        source: UnsafePathElement,
    },
    /// It leads out of the volume, is missing and cannot be made, or cannot be bound.
    #[error("failed to prepare subPath for volumeMount {volume:?} of container {container:?}")]
    Bind {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_the_one_that_tools_look_for() {
        let failures = BTreeMap::from([
            (
                "b".to_owned(),
                VolumeFailure::NotProcessed {
                    message: "no plugin".to_owned(),
                    retry_after: Duration::from_secs(2),
                },
            ),
            (
                "a".to_owned(),
                VolumeFailure::SetUpFailed {
                    message: "MountVolume.SetUp failed for volume \"a\" : x".to_owned(),
                    retry_after: Duration::from_secs(1),
                    awaits_object: false,
                },
            ),
            ("c".to_owned(), VolumeFailure::TimedOut),
        ]);
        let error = EnsureVolumesError { pod: PodRef::new("u", "ns", "p"), failures };
        assert_eq!(
            error.to_string(),
            "Unable to attach or mount volumes: unmounted volumes=[a b c], unattached volumes=[], \
             failed to process volumes=[b]: MountVolume.SetUp failed for volume \"a\" : x; no \
             plugin; context deadline exceeded"
        );
        assert_eq!(error.retry_after(), Some(Duration::from_secs(1)));
    }
}
