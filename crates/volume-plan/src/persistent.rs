//! Kinds of volumes that outlive their pods.

use k8s_openapi::api::core::v1::{
    LocalVolumeSource, NFSVolumeSource, PersistentVolume, PersistentVolumeSpec,
};

use crate::claim::{mount_options, volume_mode};
use crate::{HostPathVolume, VolumePlugin, VolumeSource, VolumeSpecError};

/// The file system that a local device is given if its volume names none.
const DEFAULT_FS_TYPE: &str = "ext4";

/// A directory of the node, or a device of it with a file system, as a persistent volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalVolume {
    /// The directory or the device.
    pub path: String,
    /// What a device without a file system is formatted with.
    pub fs_type: String,
    /// Options of the mount.
    pub mount_options: Vec<String>,
}

/// A directory of an NFS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsVolume {
    /// `server:path`, as `mount` takes it.
    pub source: String,
    /// Options of the mount.
    pub mount_options: Vec<String>,
}

/// A device that containers see as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockVolume {
    /// The plugin that it belongs to.
    pub plugin: VolumePlugin,
    /// The device on the node.
    pub device: String,
}

impl NfsVolume {
    pub(crate) fn from_spec(source: &NFSVolumeSource, mount_options: Vec<String>) -> Self {
        let NFSVolumeSource { server, path, .. } = source;
        let is_ipv6 = server.contains(':') && !server.starts_with('[');
        let source =
            if is_ipv6 { format!("[{server}]:{path}") } else { format!("{server}:{path}") };
        Self { source, mount_options }
    }
}

impl LocalVolume {
    fn from_spec(source: &LocalVolumeSource, mount_options: Vec<String>) -> Self {
        let fs_type = source.fs_type.as_deref().unwrap_or(DEFAULT_FS_TYPE);
        Self { path: source.path.clone(), fs_type: fs_type.to_owned(), mount_options }
    }
}

/// What a persistent volume is made of, and whether it says itself that nobody may write to it.
pub(crate) fn source_of_persistent(
    volume: &PersistentVolume,
) -> Result<(VolumeSource, bool), VolumeSpecError> {
    let no_spec = PersistentVolumeSpec::default();
    let spec = volume.spec.as_ref().unwrap_or(&no_spec);
    if let Some(source) = &spec.csi {
        return Err(VolumeSpecError::CsiDriver { driver: source.driver.clone() });
    }
    if let Some(driver) = migrated_driver(spec) {
        return Err(VolumeSpecError::CsiDriver { driver: driver.to_owned() });
    }
    let is_block = volume_mode(volume) == "Block";
    let options = mount_options(volume);
    let no_block = |kind| Err(VolumeSpecError::NoBlockPlugin { kind });
    if let Some(source) = &spec.local {
        let source = if is_block {
            let plugin = VolumePlugin::Local;
            VolumeSource::Block(BlockVolume { plugin, device: source.path.clone() })
        } else {
            VolumeSource::Local(LocalVolume::from_spec(source, options))
        };
        return Ok((source, false));
    }
    if let Some(source) = &spec.host_path {
        if is_block {
            return no_block("hostPath");
        }
        if !options.is_empty() {
            return Err(VolumeSpecError::MountOptions);
        }
        return Ok((VolumeSource::HostPath(HostPathVolume::from_spec(source)?), false));
    }
    if let Some(source) = &spec.nfs {
        if is_block {
            return no_block("nfs");
        }
        let read_only = source.read_only == Some(true);
        return Ok((VolumeSource::Nfs(NfsVolume::from_spec(source, options)), read_only));
    }
    Err(VolumeSpecError::Kind {
        volume: volume.metadata.name.clone().unwrap_or_default(),
        kind: other_kind(spec),
    })
}

/// The CSI driver that took over a kind of volume which was once a part of the kubelet.
fn migrated_driver(spec: &PersistentVolumeSpec) -> Option<&'static str> {
    [
        (spec.aws_elastic_block_store.is_some(), "ebs.csi.aws.com"),
        (spec.azure_disk.is_some(), "disk.csi.azure.com"),
        (spec.azure_file.is_some(), "file.csi.azure.com"),
        (spec.cinder.is_some(), "cinder.csi.openstack.org"),
        (spec.gce_persistent_disk.is_some(), "pd.csi.storage.gke.io"),
        (spec.portworx_volume.is_some(), "pxd.portworx.com"),
        (spec.vsphere_volume.is_some(), "csi.vsphere.vmware.com"),
    ]
    .into_iter()
    .find_map(|(is_set, driver)| is_set.then_some(driver))
}

/// The field of the spec that is set, of those that nothing here sets up.
fn other_kind(spec: &PersistentVolumeSpec) -> &'static str {
    [
        (spec.cephfs.is_some(), "cephfs"),
        (spec.fc.is_some(), "fc"),
        (spec.flex_volume.is_some(), "flexVolume"),
        (spec.flocker.is_some(), "flocker"),
        (spec.glusterfs.is_some(), "glusterfs"),
        (spec.iscsi.is_some(), "iscsi"),
        (spec.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (spec.quobyte.is_some(), "quobyte"),
        (spec.rbd.is_some(), "rbd"),
        (spec.scale_io.is_some(), "scaleIO"),
        (spec.storageos.is_some(), "storageos"),
    ]
    .into_iter()
    .find_map(|(is_set, kind)| is_set.then_some(kind))
    .unwrap_or("no kind is set")
}
