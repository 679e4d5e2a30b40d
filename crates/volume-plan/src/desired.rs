use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use rubelet_types::{NodePaths, UnsafePathElement, containers};

use crate::{ContentVolume, EmptyDirVolume, HostPathVolume, VolumePlugin};

/// One volume that the pod's containers need.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredVolume {
    /// Its name in the pod; safe as a path element.
    pub name: String,
    /// What it is made of.
    pub source: VolumeSource,
}

impl DesiredVolume {
    /// The plugin that sets it up.
    pub fn plugin(&self) -> VolumePlugin {
        match &self.source {
            VolumeSource::EmptyDir(_) => VolumePlugin::EmptyDir,
            VolumeSource::HostPath(_) => VolumePlugin::HostPath,
            VolumeSource::Content(content) => content.plugin,
        }
    }
}

/// What a volume is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum VolumeSource {
    /// A directory that lives and dies with its pod.
    EmptyDir(EmptyDirVolume),
    /// A path of the node.
    HostPath(HostPathVolume),
    /// Files that the kubelet writes.
    Content(ContentVolume),
}

/// When in a volume's life an error of its spec shows: it decides how users read about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureStage {
    /// The volume is not even tried ("failed to process volumes").
    Process,
    /// Its set-up fails ("MountVolume.SetUp failed").
    SetUp,
}

/// Why a volume cannot be set up, as far as its spec tells.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeSpecError {
    /// No plugin handles the kind.
    #[error(
        "failed to get Plugin from volumeSpec for volume {volume:?} err=no volume plugin matched: \
         {kind}"
    )]
    Kind {
        /// The volume.
        volume: String,
        /// The field of the volume's source that is set, such as `configMap`.
        kind: &'static str,
    },
    /// A container mounts a volume that the pod does not declare.
    #[error("volume {volume:?} is used by a container, but the pod does not declare it")]
    Undeclared {
        /// The volume.
        volume: String,
    },
    /// The volume's name cannot become part of a path.
    #[error("invalid volume name")]
    Name(#[source] UnsafePathElement),
    /// An emptyDir on an unknown medium.
    #[error("unknown storage medium {medium:?}")]
    Medium {
        /// The medium.
        medium: String,
    },
    /// A huge page medium whose size cannot be read.
    #[error("medium: {medium} names no huge page size")]
    HugePageSize {
        /// The medium.
        medium: String,
    },
    /// A huge page volume in a pod that asks for no such pages.
    #[error(
        "medium {medium}: hugePages storage requested, but there is no resource request for huge \
         pages"
    )]
    HugePagesNotRequested {
        /// The medium.
        medium: String,
    },
    /// `HugePages` leaves open which of several page sizes is meant.
    #[error("medium: {medium} can't be used if container requests multiple huge page sizes")]
    SeveralHugePageSizes {
        /// The medium.
        medium: String,
    },
    /// A hostPath that climbs.
    #[error("invalid HostPath `{path}`: must not contain '..'")]
    HostPathBacksteps {
        /// The path.
        path: String,
    },
    /// An unknown hostPath type.
    #[error("{path_type} is an invalid volume type")]
    HostPathType {
        /// The type.
        path_type: String,
    },
    /// A source of a projected volume behind a feature gate that is off.
    #[error("projected source {source_kind} needs the feature gate {gate}, which is off")]
    ProjectionGate {
        /// The source.
        source_kind: &'static str,
        /// The gate.
        gate: &'static str,
    },
    /// Another volume is mounted within this one, at a place that cannot be made.
    #[error("invalid container mount point {path}")]
    NestedMountPoint {
        /// The place, relative to the volume.
        path: String,
    },
}

impl VolumeSpecError {
    /// When it shows.
    pub fn stage(&self) -> FailureStage {
        match self {
            Self::Kind { .. } | Self::Undeclared { .. } | Self::Name(_) => FailureStage::Process,
            Self::Medium { .. }
            | Self::HugePageSize { .. }
            | Self::HugePagesNotRequested { .. }
            | Self::SeveralHugePageSizes { .. }
            | Self::HostPathBacksteps { .. }
            | Self::HostPathType { .. }
            | Self::ProjectionGate { .. }
            | Self::NestedMountPoint { .. } => FailureStage::SetUp,
        }
    }
}

/// A needed volume that cannot be set up as it is specified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedVolume {
    /// Its name in the pod.
    pub name: String,
    /// Why not.
    pub error: VolumeSpecError,
}

/// All volumes that a pod needs, each in exactly one of the lists; both are sorted by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredVolumes {
    /// Those that can be set up.
    pub volumes: Vec<DesiredVolume>,
    /// Those that cannot.
    pub rejected: Vec<RejectedVolume>,
}

/// Names of the volumes that some container mounts or maps as a device. A declared volume that
/// nobody uses is never set up.
pub fn used_volume_names(pod: &Pod) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for spec in containers(pod) {
        let mounts = spec.container.volume_mounts.iter().flatten().map(|mount| &mount.name);
        let devices = spec.container.volume_devices.iter().flatten().map(|device| &device.name);
        names.extend(mounts.chain(devices).cloned());
    }
    names
}

/// The volumes that the containers of `pod` need. `allocatable_memory` is the node's allocatable
/// memory in bytes; none if it is not known.
pub fn desired_volumes(pod: &Pod, allocatable_memory: Option<u64>) -> DesiredVolumes {
    let declared: BTreeMap<&str, &Volume> = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
        .map(|volume| (volume.name.as_str(), volume))
        .collect();
    let mut desired = DesiredVolumes::default();
    for name in used_volume_names(pod) {
        let source = match declared.get(name.as_str()) {
            Some(volume) => source_of(volume, pod, allocatable_memory),
            None => Err(VolumeSpecError::Undeclared { volume: name.clone() }),
        };
        match source {
            Ok(source) => desired.volumes.push(DesiredVolume { name, source }),
            Err(error) => desired.rejected.push(RejectedVolume { name, error }),
        }
    }
    desired
}

fn source_of(
    volume: &Volume,
    pod: &Pod,
    allocatable_memory: Option<u64>,
) -> Result<VolumeSource, VolumeSpecError> {
    NodePaths::check_element(&volume.name).map_err(VolumeSpecError::Name)?;
    if let Some(source) = &volume.host_path {
        return HostPathVolume::from_spec(source).map(VolumeSource::HostPath);
    }
    if let Some(source) = &volume.empty_dir {
        return EmptyDirVolume::from_spec(source, pod, allocatable_memory)
            .map(VolumeSource::EmptyDir);
    }
    if let Some(content) = content_of(volume, pod, allocatable_memory)? {
        return content.in_pod(pod, &volume.name).map(VolumeSource::Content);
    }
    match other_kind(volume) {
        Some(kind) => Err(VolumeSpecError::Kind { volume: volume.name.clone(), kind }),
        // API defaulting turns a volume without a source into an emptyDir.
        None => {
            EmptyDirVolume::from_spec(&EmptyDirVolumeSource::default(), pod, allocatable_memory)
                .map(VolumeSource::EmptyDir)
        }
    }
}

fn content_of(
    volume: &Volume,
    pod: &Pod,
    allocatable_memory: Option<u64>,
) -> Result<Option<ContentVolume>, VolumeSpecError> {
    let memory = || EmptyDirVolume::in_memory(pod, allocatable_memory);
    Ok(Some(if let Some(source) = &volume.config_map {
        ContentVolume::config_map(source)
    } else if let Some(source) = &volume.secret {
        ContentVolume::secret(source, memory())
    } else if let Some(source) = &volume.downward_api {
        ContentVolume::downward_api(source, memory())
    } else if let Some(source) = &volume.projected {
        ContentVolume::projected(source, memory())?
    } else {
        return Ok(None);
    }))
}

/// The field that is set in a volume's source, apart from those that are set up here. The pattern is
/// exhaustive so that a kind which appears in the API cannot pass for an emptyDir.
fn other_kind(volume: &Volume) -> Option<&'static str> {
    let Volume {
        name: _,
        empty_dir: _,
        host_path: _,
        aws_elastic_block_store,
        azure_disk,
        azure_file,
        cephfs,
        cinder,
        config_map: _,
        csi,
        downward_api: _,
        ephemeral,
        fc,
        flex_volume,
        flocker,
        gce_persistent_disk,
        git_repo,
        glusterfs,
        image,
        iscsi,
        nfs,
        persistent_volume_claim,
        photon_persistent_disk,
        portworx_volume,
        projected: _,
        quobyte,
        rbd,
        scale_io,
        secret: _,
        storageos,
        vsphere_volume,
    } = volume;
    [
        (aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (azure_disk.is_some(), "azureDisk"),
        (azure_file.is_some(), "azureFile"),
        (cephfs.is_some(), "cephfs"),
        (cinder.is_some(), "cinder"),
        (csi.is_some(), "csi"),
        (ephemeral.is_some(), "ephemeral"),
        (fc.is_some(), "fc"),
        (flex_volume.is_some(), "flexVolume"),
        (flocker.is_some(), "flocker"),
        (gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (git_repo.is_some(), "gitRepo"),
        (glusterfs.is_some(), "glusterfs"),
        (image.is_some(), "image"),
        (iscsi.is_some(), "iscsi"),
        (nfs.is_some(), "nfs"),
        (persistent_volume_claim.is_some(), "persistentVolumeClaim"),
        (photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (portworx_volume.is_some(), "portworxVolume"),
        (quobyte.is_some(), "quobyte"),
        (rbd.is_some(), "rbd"),
        (scale_io.is_some(), "scaleIO"),
        (storageos.is_some(), "storageos"),
        (vsphere_volume.is_some(), "vsphereVolume"),
    ]
    .into_iter()
    .find_map(|(set, kind)| set.then_some(kind))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{EmptyDirMedium, HostPathType};

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    #[test]
    fn only_used_volumes_are_desired() {
        let pod = pod(json!({
            "volumes": [
                {"name": "init"}, {"name": "main", "emptyDir": {}}, {"name": "debug"},
                {"name": "device"}, {"name": "unused"},
            ],
            "initContainers": [{"name": "i", "volumeMounts": [{"name": "init", "mountPath": "/a"}]}],
            "containers": [{
                "name": "c",
                "volumeMounts": [{"name": "main", "mountPath": "/a"}],
                "volumeDevices": [{"name": "device", "devicePath": "/dev/x"}],
            }],
            "ephemeralContainers": [
                {"name": "e", "volumeMounts": [{"name": "debug", "mountPath": "/a"}]},
            ],
        }));
        let desired = desired_volumes(&pod, None);
        let names: Vec<_> = desired.volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["debug", "device", "init", "main"]);
        assert_eq!(desired.rejected, []);
        assert!(desired.volumes.iter().all(|volume| matches!(
            volume.source,
            VolumeSource::EmptyDir(EmptyDirVolume { medium: EmptyDirMedium::Disk, .. })
        )));
    }

    #[test]
    fn what_cannot_be_set_up_is_rejected_in_words_users_know() {
        for (volume, stage, message) in [
            (
                json!({"name": "v", "glusterfs": {"endpoints": "e", "path": "p"}}),
                FailureStage::Process,
                "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin \
                 matched: glusterfs",
            ),
            (
                json!({"name": "other"}),
                FailureStage::Process,
                "volume \"v\" is used by a container, but the pod does not declare it",
            ),
            (
                json!({"name": "v", "hostPath": {"path": "/a/../b"}}),
                FailureStage::SetUp,
                "invalid HostPath `/a/../b`: must not contain '..'",
            ),
            (
                json!({"name": "v", "hostPath": {"path": "/a", "type": "Pipe"}}),
                FailureStage::SetUp,
                "Pipe is an invalid volume type",
            ),
            (
                json!({"name": "v", "projected": {"sources": [
                    {"clusterTrustBundle": {"path": "ca.pem"}}]}}),
                FailureStage::SetUp,
                "projected source clusterTrustBundle needs the feature gate \
                 ClusterTrustBundleProjection, which is off",
            ),
            (
                json!({"name": "v", "emptyDir": {"medium": "Tape"}}),
                FailureStage::SetUp,
                "unknown storage medium \"Tape\"",
            ),
        ] {
            let pod = pod(json!({
                "volumes": [volume],
                "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/a"}]}],
            }));
            let desired = desired_volumes(&pod, None);
            assert_eq!(desired.volumes, []);
            let [rejected] = desired.rejected.as_slice() else { panic!("{desired:?}") };
            assert_eq!(
                (rejected.error.stage(), rejected.error.to_string().as_str()),
                (stage, message)
            );
        }
    }

    #[test]
    fn a_name_that_leaves_its_directory_is_rejected() {
        let pod = pod(json!({
            "volumes": [{"name": ".."}],
            "containers": [{"name": "c", "volumeMounts": [{"name": "..", "mountPath": "/a"}]}],
        }));
        let desired = desired_volumes(&pod, None);
        assert!(matches!(desired.rejected[0].error, VolumeSpecError::Name(_)));
    }

    #[test]
    fn host_path_types_are_read() {
        for (written, expected) in [
            (None, HostPathType::Unset),
            (Some(""), HostPathType::Unset),
            (Some("DirectoryOrCreate"), HostPathType::DirectoryOrCreate),
            (Some("Directory"), HostPathType::Directory),
            (Some("FileOrCreate"), HostPathType::FileOrCreate),
            (Some("File"), HostPathType::File),
            (Some("Socket"), HostPathType::Socket),
            (Some("CharDevice"), HostPathType::CharDevice),
            (Some("BlockDevice"), HostPathType::BlockDevice),
        ] {
            let pod = pod(json!({
                "volumes": [{"name": "v", "hostPath": {"path": "/p", "type": written}}],
                "containers": [{"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/a"}]}],
            }));
            let desired = desired_volumes(&pod, None);
            let VolumeSource::HostPath(volume) = &desired.volumes[0].source else { panic!() };
            assert_eq!((volume.path.as_str(), volume.path_type), ("/p", expected));
        }
    }
}
