use k8s_openapi::api::core::v1::HostPathVolumeSource;

use crate::VolumeSpecError;
use crate::sub_path::has_backsteps;

/// What must be at the path of a hostPath volume before the pod starts (upstream documentation
/// "Volumes", `hostPath` volume types).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostPathType {
    /// Nothing is checked.
    Unset,
    /// A directory; made with mode 0755 if nothing is there.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A regular file; made empty with mode 0644 if nothing is there.
    FileOrCreate,
    /// A regular file.
    File,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl HostPathType {
    fn parse(value: &str) -> Option<Self> {
        Some(match value {
            "" => Self::Unset,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            _ => return None,
        })
    }

    /// How messages name what must be there.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Unset => "path",
            Self::DirectoryOrCreate | Self::Directory => "directory",
            Self::FileOrCreate | Self::File => "file",
            Self::Socket => "socket file",
            Self::CharDevice => "character device",
            Self::BlockDevice => "block device",
        }
    }
}

/// A hostPath volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPathVolume {
    /// The path on the node.
    pub path: String,
    /// What must be there.
    pub path_type: HostPathType,
}

impl HostPathVolume {
    pub(crate) fn from_spec(source: &HostPathVolumeSource) -> Result<Self, VolumeSpecError> {
        if has_backsteps(&source.path) {
            return Err(VolumeSpecError::HostPathBacksteps { path: source.path.clone() });
        }
        let written = source.type_.as_deref().unwrap_or_default();
        let path_type = HostPathType::parse(written)
            .ok_or_else(|| VolumeSpecError::HostPathType { path_type: written.to_owned() })?;
        Ok(Self { path: source.path.clone(), path_type })
    }
}
