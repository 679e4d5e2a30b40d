use std::io;
use std::path::PathBuf;

use rubelet_types::NodePaths;
use rubelet_volume_plan::{ObservedSubPath, check_sub_path};

use crate::error::PrepareSubPathError;

/// One `subPath` of one container: a part of a volume, bound to a place of its own where the
/// container's owner cannot swap it for a link to something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPathMount {
    /// The volume's name.
    pub volume: String,
    /// Where the volume is on the node ([`crate::MountedVolume::host_path`]).
    pub volume_path: PathBuf,
    /// The container's name.
    pub container: String,
    /// Index of the mount in the container's `volumeMounts`.
    pub index: usize,
    /// `subPath`, or `subPathExpr` with its variables expanded.
    pub sub_path: String,
}

impl SubPathMount {
    pub(crate) fn check(&self) -> Result<(), PrepareSubPathError> {
        for name in [&self.volume, &self.container] {
            NodePaths::check_element(name).map_err(|source| PrepareSubPathError::Name {
                volume: self.volume.clone(),
                container: self.container.clone(),
                source,
            })?;
        }
        Ok(check_sub_path(&self.sub_path)?)
    }

    /// Its place beneath the pod's directory of sub-paths.
    pub(crate) fn place(&self) -> ObservedSubPath {
        ObservedSubPath {
            volume: self.volume.clone(),
            container: self.container.clone(),
            index: self.index.to_string(),
        }
    }

    pub(crate) fn error(&self, source: io::Error) -> PrepareSubPathError {
        PrepareSubPathError::Bind {
            volume: self.volume.clone(),
            container: self.container.clone(),
            source,
        }
    }
}
