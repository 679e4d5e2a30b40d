use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume, VolumeDevice, VolumeMount};
use rubelet_types::{NodePaths, UnsafePathElement};

use crate::claim::{extra_group, resolve_claim};
use crate::persistent::source_of_persistent;
use crate::{
    BlockVolume, ClaimError, ClaimObjects, ContentVolume, EmptyDirVolume, HostPathVolume,
    ImageVolume, LocalVolume, NfsVolume, VolumePlugin,
};

/// One volume that the pod's containers need.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredVolume {
    /// Its name in the pod; safe as a path element.
    pub name: String,
    /// Its name on disk: that of the PersistentVolume behind a claim, otherwise as in the pod. Safe as
    /// a path element.
    pub spec_name: String,
    /// Nobody in the pod may write to it, whatever mounts say.
    pub read_only: bool,
    /// A group that all containers of the pod get because of it.
    pub extra_group: Option<i64>,
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
            VolumeSource::Local(_) => VolumePlugin::Local,
            VolumeSource::Nfs(_) => VolumePlugin::Nfs,
            VolumeSource::Image(_) => VolumePlugin::Image,
            VolumeSource::Block(block) => block.plugin,
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
    /// A directory or a formatted device of the node that outlives its pods.
    Local(LocalVolume),
    /// A directory of an NFS server.
    Nfs(NfsVolume),
    /// The files of an image, which the runtime mounts itself.
    Image(ImageVolume),
    /// A device, as it is.
    Block(BlockVolume),
}

/// When in a volume's life an error of its spec shows: it decides how users read about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureStage {
    /// The volume is not even tried ("failed to process volumes").
    Process,
    /// It is not for this node ("MountVolume.NodeAffinity check failed").
    NodeAffinity,
    /// The options of its mount are refused ("MountVolume.MountOptionSupport check failed").
    MountOptions,
    /// Its set-up fails ("MountVolume.SetUp failed").
    SetUp,
    /// Its device cannot be given to containers ("MapVolume.MapPodDevice failed").
    Map,
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
    /// Its claim leads to no volume.
    #[error("error processing PVC {namespace}/{claim}")]
    Claim {
        /// The claim's namespace.
        namespace: String,
        /// The claim.
        claim: String,
        /// Why not.
        #[source]
        source: ClaimError,
    },
    /// The claim that should have been made for the pod is somebody else's.
    #[error("PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)")]
    ClaimNotOfPod {
        /// The namespace of both.
        namespace: String,
        /// The claim.
        claim: String,
        /// The pod.
        pod: String,
    },
    /// A device is used as a file system, or the other way round.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {field}")]
    VolumeMode {
        /// The volume.
        volume: String,
        /// Its `volumeMode`.
        mode: String,
        /// The field of the container that uses it.
        field: &'static str,
    },
    /// A CSI driver would mount it, and none of that name has registered.
    #[error("driver name {driver} not found in the list of registered CSI drivers")]
    CsiDriver {
        /// The driver.
        driver: String,
    },
    /// The kind of volume has no devices to give.
    #[error("no block volume plugin matched: {kind}")]
    NoBlockPlugin {
        /// The field of the volume's source that is set.
        kind: &'static str,
    },
    /// The volume is for other nodes.
    #[error("no matching NodeSelectorTerms")]
    NodeAffinity,
    /// The kind of volume is not mounted with options.
    #[error("Mount options are not supported for this volume type")]
    MountOptions,
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
    /// A projection of certificates that does not say which.
    #[error("ClusterTrustBundle projection requires either name or signerName to be set")]
    NoTrustBundle,
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
            Self::Kind { .. }
            | Self::Undeclared { .. }
            | Self::Claim { .. }
            | Self::ClaimNotOfPod { .. }
            | Self::VolumeMode { .. }
            | Self::Name(_) => FailureStage::Process,
            Self::NodeAffinity => FailureStage::NodeAffinity,
            Self::MountOptions => FailureStage::MountOptions,
            Self::NoBlockPlugin { .. } => FailureStage::Map,
            Self::Medium { .. }
            | Self::HugePageSize { .. }
            | Self::HugePagesNotRequested { .. }
            | Self::SeveralHugePageSizes { .. }
            | Self::HostPathBacksteps { .. }
            | Self::HostPathType { .. }
            | Self::ProjectionGate { .. }
            | Self::NoTrustBundle
            | Self::CsiDriver { .. }
            | Self::NestedMountPoint { .. } => FailureStage::SetUp,
        }
    }
}

/// A needed volume that cannot be set up as it is specified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RejectedVolume {
    /// Its name in the pod.
    pub name: String,
    /// As [`DesiredVolume::spec_name`].
    pub spec_name: String,
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

/// How the containers of a pod use its volumes.
#[derive(Debug, Default)]
pub(crate) struct VolumeUses<'a> {
    mounted: BTreeSet<&'a str>,
    devices: BTreeSet<&'a str>,
}

impl<'a> VolumeUses<'a> {
    pub(crate) fn of(pod: &'a Pod) -> Self {
        let mut uses = Self::default();
        let spec = pod.spec.iter();
        let init = spec.clone().flat_map(|spec| spec.init_containers.iter().flatten());
        for container in init.chain(spec.clone().flat_map(|spec| &spec.containers)) {
            uses.add(container.volume_mounts.as_ref(), container.volume_devices.as_ref());
        }
        for container in spec.flat_map(|spec| spec.ephemeral_containers.iter().flatten()) {
            uses.add(container.volume_mounts.as_ref(), container.volume_devices.as_ref());
        }
        uses
    }

    fn add(
        &mut self,
        mounts: Option<&'a Vec<VolumeMount>>,
        devices: Option<&'a Vec<VolumeDevice>>,
    ) {
        self.mounted.extend(mounts.into_iter().flatten().map(|mount| mount.name.as_str()));
        self.devices.extend(devices.into_iter().flatten().map(|device| device.name.as_str()));
    }

    /// Of all volumes in use, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.mounted.union(&self.devices).copied()
    }

    pub(crate) fn is_mounted(&self, volume: &str) -> bool {
        self.mounted.contains(volume)
    }

    pub(crate) fn is_device(&self, volume: &str) -> bool {
        self.devices.contains(volume)
    }
}

/// The volumes that a pod declares, by name.
#[derive(Debug)]
pub(crate) struct DeclaredVolumes<'a>(BTreeMap<&'a str, &'a Volume>);

impl<'a> DeclaredVolumes<'a> {
    pub(crate) fn of(pod: &'a Pod) -> Self {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        Self(volumes.map(|volume| (volume.name.as_str(), volume)).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Volume> {
        self.0.get(name).copied()
    }
}

/// The volumes that the containers of `pod` need: those that some container mounts or maps as a
/// device. A declared volume that nobody uses is never set up. `allocatable_memory` is the node's
/// allocatable memory in bytes; none if it is not known. `claims` is what was read of
/// [`crate::used_claims`] and of the volumes behind them.
pub fn desired_volumes(
    pod: &Pod,
    allocatable_memory: Option<u64>,
    claims: &ClaimObjects,
) -> DesiredVolumes {
    let declared = DeclaredVolumes::of(pod);
    let uses = VolumeUses::of(pod);
    let mut desired = DesiredVolumes::default();
    for name in uses.names() {
        let rejected = |spec_name: &str, error| RejectedVolume {
            name: name.to_owned(),
            spec_name: spec_name.to_owned(),
            error,
        };
        let Some(volume) = declared.get(name) else {
            let error = VolumeSpecError::Undeclared { volume: name.to_owned() };
            desired.rejected.push(rejected(name, error));
            continue;
        };
        let claimed = match resolve_claim(pod, volume, &uses, claims) {
            Ok(claimed) => claimed,
            Err(error) => {
                desired.rejected.push(rejected(name, error));
                continue;
            }
        };
        let spec_name = match &claimed {
            Some(claimed) => claimed.volume.metadata.name.as_deref().unwrap_or_default(),
            None => name,
        };
        let source = check_names(name, spec_name).and_then(|()| match &claimed {
            Some(claimed) if claimed.is_elsewhere => Err(VolumeSpecError::NodeAffinity),
            Some(claimed) => source_of_persistent(claimed.volume),
            None => source_of(volume, pod, allocatable_memory),
        });
        match source {
            Ok((source, read_only)) => desired.volumes.push(DesiredVolume {
                name: name.to_owned(),
                spec_name: spec_name.to_owned(),
                read_only: read_only || claimed.as_ref().is_some_and(|claimed| claimed.read_only),
                extra_group: claimed.and_then(|claimed| extra_group(claimed.volume)),
                source,
            }),
            Err(error) => desired.rejected.push(rejected(spec_name, error)),
        }
    }
    desired
}

fn check_names(name: &str, spec_name: &str) -> Result<(), VolumeSpecError> {
    [name, spec_name]
        .into_iter()
        .try_for_each(|name| NodePaths::check_element(name).map_err(VolumeSpecError::Name))
}

/// What a volume is made of that is no claim, and whether it says itself that nobody may write to it.
fn source_of(
    volume: &Volume,
    pod: &Pod,
    allocatable_memory: Option<u64>,
) -> Result<(VolumeSource, bool), VolumeSpecError> {
    let writable = |source: VolumeSource| (source, false);
    if let Some(source) = &volume.host_path {
        return HostPathVolume::from_spec(source).map(VolumeSource::HostPath).map(writable);
    }
    if let Some(source) = &volume.empty_dir {
        return EmptyDirVolume::from_spec(source, pod, allocatable_memory)
            .map(VolumeSource::EmptyDir)
            .map(writable);
    }
    if let Some(content) = content_of(volume, pod, allocatable_memory)? {
        // Files that the kubelet keeps as they should be are nobody else's to write (CVE-2017-1002102).
        let content = content.in_pod(pod, &volume.name)?;
        return Ok((VolumeSource::Content(content), true));
    }
    if let Some(source) = &volume.nfs {
        let read_only = source.read_only == Some(true);
        return Ok((VolumeSource::Nfs(NfsVolume::from_spec(source, Vec::new())), read_only));
    }
    if let Some(source) = &volume.image {
        return Ok((VolumeSource::Image(ImageVolume::from_spec(source)), true));
    }
    if let Some(source) = &volume.csi {
        return Err(VolumeSpecError::CsiDriver { driver: source.driver.clone() });
    }
    match other_kind(volume) {
        Some(kind) => Err(VolumeSpecError::Kind { volume: volume.name.clone(), kind }),
        // API defaulting turns a volume without a source into an emptyDir.
        None => {
            EmptyDirVolume::from_spec(&EmptyDirVolumeSource::default(), pod, allocatable_memory)
                .map(VolumeSource::EmptyDir)
                .map(writable)
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
        csi: _,
        downward_api: _,
        ephemeral: _,
        fc,
        flex_volume,
        flocker,
        gce_persistent_disk,
        git_repo,
        glusterfs,
        image: _,
        iscsi,
        nfs: _,
        persistent_volume_claim: _,
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
        (fc.is_some(), "fc"),
        (flex_volume.is_some(), "flexVolume"),
        (flocker.is_some(), "flocker"),
        (gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (git_repo.is_some(), "gitRepo"),
        (glusterfs.is_some(), "glusterfs"),
        (iscsi.is_some(), "iscsi"),
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
        let desired = desired_volumes(&pod, None, &ClaimObjects::default());
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
                json!({"name": "v", "csi": {"driver": "d.example.com"}}),
                FailureStage::SetUp,
                "driver name d.example.com not found in the list of registered CSI drivers",
            ),
            (
                json!({"name": "v", "projected": {"sources": [
                    {"clusterTrustBundle": {"path": "ca.pem"}}]}}),
                FailureStage::SetUp,
                "ClusterTrustBundle projection requires either name or signerName to be set",
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
            let desired = desired_volumes(&pod, None, &ClaimObjects::default());
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
        let desired = desired_volumes(&pod, None, &ClaimObjects::default());
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
            let desired = desired_volumes(&pod, None, &ClaimObjects::default());
            let VolumeSource::HostPath(volume) = &desired.volumes[0].source else { panic!() };
            assert_eq!((volume.path.as_str(), volume.path_type), ("/p", expected));
        }
    }
}
