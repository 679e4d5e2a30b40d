/// The volume plugins that can be set up and taken down. Their directories on disk are contract:
/// another kubelet on the same node must find its way in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumePlugin {
    /// A directory (on disk, in memory or on huge pages) that lives and dies with its pod.
    EmptyDir,
    /// A path of the node. It has no directory of its own, and nothing of it is ever changed.
    HostPath,
    /// Files of a ConfigMap, on disk.
    ConfigMap,
    /// Files of a Secret, in memory.
    Secret,
    /// Files that tell a pod about itself, in memory.
    DownwardApi,
    /// Files from several sources, in memory.
    Projected,
    /// A directory or a device of the node that outlives its pods.
    Local,
    /// A directory of an NFS server.
    Nfs,
    /// The files of an image. It has no directory of its own: the runtime mounts it.
    Image,
}

impl VolumePlugin {
    const ALL: [Self; 9] = [
        Self::EmptyDir,
        Self::HostPath,
        Self::ConfigMap,
        Self::Secret,
        Self::DownwardApi,
        Self::Projected,
        Self::Local,
        Self::Nfs,
        Self::Image,
    ];

    /// The plugin's name, such as `kubernetes.io/empty-dir`.
    pub fn name(self) -> &'static str {
        match self {
            Self::EmptyDir => "kubernetes.io/empty-dir",
            Self::HostPath => "kubernetes.io/host-path",
            Self::ConfigMap => "kubernetes.io/configmap",
            Self::Secret => "kubernetes.io/secret",
            Self::DownwardApi => "kubernetes.io/downward-api",
            Self::Projected => "kubernetes.io/projected",
            Self::Local => "kubernetes.io/local-volume",
            Self::Nfs => "kubernetes.io/nfs",
            Self::Image => "kubernetes.io/image",
        }
    }

    /// The name of the plugin's directory beneath a pod's `volumes` and `plugins` directories.
    pub fn directory_name(self) -> &'static str {
        match self {
            Self::EmptyDir => "kubernetes.io~empty-dir",
            Self::HostPath => "kubernetes.io~host-path",
            Self::ConfigMap => "kubernetes.io~configmap",
            Self::Secret => "kubernetes.io~secret",
            Self::DownwardApi => "kubernetes.io~downward-api",
            Self::Projected => "kubernetes.io~projected",
            Self::Local => "kubernetes.io~local-volume",
            Self::Nfs => "kubernetes.io~nfs",
            Self::Image => "kubernetes.io~image",
        }
    }

    /// The plugin whose directory has this name; none for a plugin that is not known here.
    pub fn from_directory_name(directory_name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plugin| plugin.directory_name() == directory_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_are_names_with_tildes() {
        for plugin in VolumePlugin::ALL {
            assert_eq!(plugin.directory_name(), plugin.name().replace('/', "~"));
            assert_eq!(VolumePlugin::from_directory_name(plugin.directory_name()), Some(plugin));
        }
        assert_eq!(VolumePlugin::from_directory_name("kubernetes.io~csi"), None);
    }
}
