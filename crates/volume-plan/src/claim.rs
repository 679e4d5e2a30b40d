//! Volumes behind claims: from a pod's volume by way of its PersistentVolumeClaim to the
//! PersistentVolume that is bound to it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use rubelet_types::Fetched;

use crate::VolumeSpecError;
use crate::desired::{DeclaredVolumes, VolumeUses};

/// Keeps a claim that is being deleted until the last pod that uses it is gone.
const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// A group that every container of a pod gets which uses the volume.
const GROUP_ANNOTATION: &str = "pv.beta.kubernetes.io/gid";
/// What `mountOptions` was called before it was a field.
const MOUNT_OPTIONS_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";

/// What was read from the API server about the claims that a pod uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClaimObjects {
    /// Claims, by name.
    pub claims: BTreeMap<String, Fetched<Arc<PersistentVolumeClaim>>>,
    /// Volumes, by name.
    pub volumes: BTreeMap<String, Fetched<Arc<PersistentVolume>>>,
    /// Names of volumes that are not for this node (`nodeAffinity`).
    pub elsewhere: BTreeSet<String>,
}

impl ClaimObjects {
    /// Names of the volumes that claims are bound to, as far as claims can be used.
    pub fn bound_volumes(&self) -> BTreeSet<String> {
        self.claims
            .values()
            .filter_map(|claim| match claim {
                Fetched::Found(claim) => bound_volume(claim).ok().map(str::to_owned),
                Fetched::NotFound | Fetched::Failed(_) => None,
            })
            .collect()
    }
}

/// Why a claim leads to no volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// It could not be read.
    #[error("failed to fetch PVC from API server: {text}")]
    FetchClaim {
        /// Why not.
        text: String,
    },
    /// It is being deleted, and nothing keeps it.
    #[error("PVC is being deleted")]
    BeingDeleted,
    /// It waits for a volume.
    #[error("PVC is not bound")]
    NotBound,
    /// It says that it is bound, and not to what.
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName,
    /// Its volume could not be read.
    #[error("failed to fetch PV {volume} from API server: {text}")]
    FetchVolume {
        /// The volume.
        volume: String,
        /// Why not.
        text: String,
    },
    /// The volume does not know of the claim.
    #[error(
        "found PV object {volume} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound \
         to the claim"
    )]
    Unclaimed {
        /// The volume.
        volume: String,
    },
    /// The volume is bound to another claim, perhaps an earlier one of the same name.
    #[error(
        "found PV object {volume} but its pv.Spec.ClaimRef.UID {found} does not point to claim.UID \
         {claim_uid}"
    )]
    OtherClaim {
        /// The volume.
        volume: String,
        /// The claim that it is bound to.
        found: String,
        /// The claim that the pod uses.
        claim_uid: String,
    },
}

/// Names of the claims that have to be read to know the volumes which the pod's containers use.
pub fn used_claims(pod: &Pod) -> BTreeSet<String> {
    let declared = DeclaredVolumes::of(pod);
    VolumeUses::of(pod)
        .names()
        .filter_map(|name| declared.get(name))
        .filter_map(|volume| Some(claim_of(pod, volume)?.name))
        .collect()
}

/// How a volume refers to a claim.
#[derive(Debug)]
struct ClaimReference {
    name: String,
    read_only: bool,
    /// The claim was made for the pod.
    is_ephemeral: bool,
}

fn claim_of(pod: &Pod, volume: &Volume) -> Option<ClaimReference> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(ClaimReference {
            name: source.claim_name.clone(),
            read_only: source.read_only == Some(true),
            is_ephemeral: false,
        });
    }
    volume.ephemeral.as_ref().map(|_| ClaimReference {
        name: format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name),
        read_only: false,
        is_ephemeral: true,
    })
}

/// A volume behind a claim.
#[derive(Debug)]
pub(crate) struct ClaimedVolume<'a> {
    pub(crate) volume: &'a PersistentVolume,
    /// The pod may not write to it.
    pub(crate) read_only: bool,
    /// It is not for this node.
    pub(crate) is_elsewhere: bool,
}

/// The volume behind `volume`; none if that refers to no claim.
pub(crate) fn resolve_claim<'a>(
    pod: &Pod,
    volume: &Volume,
    uses: &VolumeUses<'_>,
    objects: &'a ClaimObjects,
) -> Result<Option<ClaimedVolume<'a>>, VolumeSpecError> {
    let Some(reference) = claim_of(pod, volume) else { return Ok(None) };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let failed = |source| VolumeSpecError::Claim {
        namespace: namespace.to_owned(),
        claim: reference.name.clone(),
        source,
    };
    let claim = find_claim(&reference.name, objects).map_err(failed)?;
    if reference.is_ephemeral && !is_controlled_by(claim, pod) {
        return Err(VolumeSpecError::ClaimNotOfPod {
            namespace: namespace.to_owned(),
            claim: reference.name,
            pod: pod.metadata.name.clone().unwrap_or_default(),
        });
    }
    let found = find_volume(claim, objects).map_err(failed)?;
    let mode = volume_mode(found);
    for (is_used, expected, field) in [
        (uses.is_mounted(&volume.name), "Filesystem", "volumeMounts"),
        (uses.is_device(&volume.name), "Block", "volumeDevices"),
    ] {
        if is_used && mode != expected {
            return Err(VolumeSpecError::VolumeMode {
                volume: volume.name.clone(),
                mode: mode.to_owned(),
                field,
            });
        }
    }
    let is_elsewhere =
        found.metadata.name.as_ref().is_some_and(|name| objects.elsewhere.contains(name));
    Ok(Some(ClaimedVolume { volume: found, read_only: reference.read_only, is_elsewhere }))
}

fn find_claim<'a>(
    name: &str,
    objects: &'a ClaimObjects,
) -> Result<&'a PersistentVolumeClaim, ClaimError> {
    let claim = match objects.claims.get(name) {
        Some(Fetched::Found(claim)) => claim,
        Some(Fetched::Failed(text)) => {
            return Err(ClaimError::FetchClaim { text: text.clone() });
        }
        Some(Fetched::NotFound) | None => {
            let text = format!("persistentvolumeclaims {name:?} not found");
            return Err(ClaimError::FetchClaim { text });
        }
    };
    bound_volume(claim)?;
    Ok(claim)
}

/// The name of the volume that the claim is bound to.
fn bound_volume(claim: &PersistentVolumeClaim) -> Result<&str, ClaimError> {
    let is_kept = || {
        claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == CLAIM_PROTECTION)
    };
    if claim.metadata.deletion_timestamp.is_some() && !is_kept() {
        return Err(ClaimError::BeingDeleted);
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Err(ClaimError::NotBound);
    }
    claim
        .spec
        .as_ref()
        .and_then(|spec| spec.volume_name.as_deref())
        .filter(|name| !name.is_empty())
        .ok_or(ClaimError::NoVolumeName)
}

fn find_volume<'a>(
    claim: &PersistentVolumeClaim,
    objects: &'a ClaimObjects,
) -> Result<&'a PersistentVolume, ClaimError> {
    let name = bound_volume(claim)?;
    let fetch = |text: String| ClaimError::FetchVolume { volume: name.to_owned(), text };
    let volume = match objects.volumes.get(name) {
        Some(Fetched::Found(volume)) => volume,
        Some(Fetched::Failed(text)) => return Err(fetch(text.clone())),
        Some(Fetched::NotFound) | None => {
            return Err(fetch(format!("persistentvolumes {name:?} not found")));
        }
    };
    let Some(owner) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(ClaimError::Unclaimed { volume: name.to_owned() });
    };
    let claim_uid = claim.metadata.uid.as_deref().unwrap_or_default();
    let found = owner.uid.as_deref().unwrap_or_default();
    if found != claim_uid || claim_uid.is_empty() {
        return Err(ClaimError::OtherClaim {
            volume: name.to_owned(),
            found: found.to_owned(),
            claim_uid: claim_uid.to_owned(),
        });
    }
    Ok(volume)
}

fn is_controlled_by(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    claim.metadata.namespace == pod.metadata.namespace
        && controllers.next().is_some_and(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref())
}

pub(crate) fn volume_mode(volume: &PersistentVolume) -> &str {
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    mode.unwrap_or("Filesystem")
}

/// The options that the volume is to be mounted with.
pub(crate) fn mount_options(volume: &PersistentVolume) -> Vec<String> {
    let annotations = volume.metadata.annotations.as_ref();
    if let Some(written) = annotations.and_then(|all| all.get(MOUNT_OPTIONS_ANNOTATION)) {
        let options = written.split(',').map(str::trim).filter(|option| !option.is_empty());
        return options.map(str::to_owned).collect();
    }
    let spec = volume.spec.as_ref();
    spec.and_then(|spec| spec.mount_options.clone()).unwrap_or_default()
}

/// The group that containers get which use the volume.
pub(crate) fn extra_group(volume: &PersistentVolume) -> Option<i64> {
    volume.metadata.annotations.as_ref()?.get(GROUP_ANNOTATION)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{DesiredVolumes, VolumeSource, desired_volumes};

    fn pod(volume: Value, used_as: &str) -> Pod {
        let path = if used_as == "volumeMounts" { "mountPath" } else { "devicePath" };
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid"},
            "spec": {
                "volumes": [volume],
                "containers": [{"name": "c", used_as: [{"name": "data", path: "/data"}]}],
            },
        }))
        .unwrap()
    }

    fn with_claim(used_as: &str) -> Pod {
        pod(json!({"name": "data", "persistentVolumeClaim": {"claimName": "c1"}}), used_as)
    }

    fn claim(extra: Value) -> Value {
        let mut claim = json!({
            "metadata": {"name": "c1", "namespace": "ns", "uid": "claim-uid"},
            "spec": {"volumeName": "pv1"},
            "status": {"phase": "Bound"},
        });
        merge(&mut claim, &extra);
        claim
    }

    fn volume(extra: Value) -> Value {
        let mut volume = json!({
            "metadata": {"name": "pv1"},
            "spec": {"claimRef": {"uid": "claim-uid"}, "local": {"path": "/disk"}},
        });
        merge(&mut volume, &extra);
        volume
    }

    /// As a merge patch does: null takes away.
    fn merge(into: &mut Value, from: &Value) {
        for (key, value) in from.as_object().unwrap() {
            if value.is_null() {
                into.as_object_mut().unwrap().remove(key);
            } else if value.is_object() && into[key].is_object() {
                merge(&mut into[key], value);
            } else {
                into[key] = value.clone();
            }
        }
    }

    fn objects(claim: Value, volume: Value) -> ClaimObjects {
        let (claim, volume): (PersistentVolumeClaim, PersistentVolume) =
            (serde_json::from_value(claim).unwrap(), serde_json::from_value(volume).unwrap());
        ClaimObjects {
            claims: BTreeMap::from([("c1".to_owned(), Fetched::Found(Arc::new(claim)))]),
            volumes: BTreeMap::from([("pv1".to_owned(), Fetched::Found(Arc::new(volume)))]),
            elsewhere: BTreeSet::new(),
        }
    }

    fn refusal(desired: &DesiredVolumes) -> String {
        let [rejected] = desired.rejected.as_slice() else { panic!("{desired:?}") };
        rubelet_types::error_chain(&rejected.error)
    }

    #[test]
    fn what_is_wrong_with_a_claim_is_told_in_words_users_know() {
        let deleted = "2026-01-01T00:00:00Z";
        for (change_claim, change_volume, expected) in [
            (
                json!({"metadata": {"deletionTimestamp": deleted}}),
                json!({}),
                "error processing PVC ns/c1: PVC is being deleted",
            ),
            (
                json!({"status": {"phase": "Pending"}}),
                json!({}),
                "error processing PVC ns/c1: PVC is not bound",
            ),
            (
                json!({"spec": {"volumeName": null}}),
                json!({}),
                "error processing PVC ns/c1: PVC has empty pvc.Spec.VolumeName",
            ),
            (
                json!({"spec": {"volumeName": "pv2"}}),
                json!({}),
                "error processing PVC ns/c1: failed to fetch PV pv2 from API server: \
                 persistentvolumes \"pv2\" not found",
            ),
            (
                json!({}),
                json!({"spec": {"claimRef": null}}),
                "error processing PVC ns/c1: found PV object pv1 but it has a nil pv.Spec.ClaimRef \
                 indicating it is not yet bound to the claim",
            ),
            (
                json!({}),
                json!({"spec": {"claimRef": {"uid": "other"}}}),
                "error processing PVC ns/c1: found PV object pv1 but its pv.Spec.ClaimRef.UID other \
                 does not point to claim.UID claim-uid",
            ),
            (
                json!({}),
                json!({"spec": {"volumeMode": "Block"}}),
                "volume data has volumeMode Block, but is specified in volumeMounts",
            ),
        ] {
            let objects = objects(claim(change_claim), volume(change_volume));
            let desired = desired_volumes(&with_claim("volumeMounts"), None, &objects);
            assert_eq!(refusal(&desired), expected);
        }
        let found = objects(claim(json!({})), volume(json!({})));
        assert_eq!(
            refusal(&desired_volumes(&with_claim("volumeDevices"), None, &found)),
            "volume data has volumeMode Filesystem, but is specified in volumeDevices"
        );
        assert_eq!(
            refusal(&desired_volumes(&with_claim("volumeMounts"), None, &ClaimObjects::default())),
            "error processing PVC ns/c1: failed to fetch PVC from API server: \
             persistentvolumeclaims \"c1\" not found"
        );
    }

    #[test]
    fn a_claim_that_is_kept_for_its_pods_can_be_used_while_it_is_being_deleted() {
        let protected = json!({"metadata": {
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [CLAIM_PROTECTION]}});
        let objects = objects(claim(protected), volume(json!({})));
        let desired = desired_volumes(&with_claim("volumeMounts"), None, &objects);
        assert_eq!(desired.rejected, []);
        assert_eq!(desired.volumes[0].spec_name, "pv1");
    }

    #[test]
    fn a_volume_of_another_node_is_not_taken_for_one_of_this() {
        let mut objects = objects(claim(json!({})), volume(json!({})));
        objects.elsewhere.insert("pv1".to_owned());
        let desired = desired_volumes(&with_claim("volumeMounts"), None, &objects);
        assert_eq!(refusal(&desired), "no matching NodeSelectorTerms");
        assert_eq!(desired.rejected[0].error.stage(), crate::FailureStage::NodeAffinity);
    }

    #[test]
    fn an_ephemeral_claim_belongs_to_its_pod() {
        let pod = pod(json!({"name": "data", "ephemeral": {}}), "volumeMounts");
        assert_eq!(used_claims(&pod).into_iter().collect::<Vec<_>>(), ["p-data"]);
        let owned = |uid: &str| {
            let mut all = objects(
                claim(json!({"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod",
                    "name": "p", "uid": uid, "controller": true}]}})),
                volume(json!({})),
            );
            let claim = all.claims.remove("c1").unwrap();
            all.claims.insert("p-data".to_owned(), claim);
            desired_volumes(&pod, None, &all)
        };
        assert_eq!(owned("pod-uid").rejected, []);
        assert_eq!(
            refusal(&owned("earlier-pod")),
            "PVC ns/p-data was not created for pod ns/p (pod is not owner)"
        );
    }

    #[test]
    fn kinds_of_volumes_become_what_sets_them_up() {
        let kind = |kind: Value, used_as: &str| {
            let mut change = json!({"spec": {"local": null}});
            merge(&mut change, &json!({ "spec": kind }));
            let objects = objects(claim(json!({})), volume(change));
            let mut desired = desired_volumes(&with_claim(used_as), None, &objects);
            match desired.volumes.pop() {
                Some(volume) => format!("{:?}", volume.source),
                None => refusal(&desired),
            }
        };
        for (source, used_as, expected) in [
            (
                json!({"hostPath": {"path": "/srv"}}),
                "volumeMounts",
                "HostPath(HostPathVolume { path: \"/srv\", path_type: Unset })",
            ),
            (
                json!({"local": {"path": "/disk"}, "mountOptions": ["noatime"]}),
                "volumeMounts",
                "Local(LocalVolume { path: \"/disk\", fs_type: \"ext4\", mount_options: \
                 [\"noatime\"] })",
            ),
            (
                json!({"local": {"path": "/dev/sdx"}, "volumeMode": "Block"}),
                "volumeDevices",
                "Block(BlockVolume { plugin: Local, device: \"/dev/sdx\" })",
            ),
            (
                json!({"nfs": {"server": "fd00::1", "path": "/export"}}),
                "volumeMounts",
                "Nfs(NfsVolume { source: \"[fd00::1]:/export\", mount_options: [] })",
            ),
            (
                json!({"hostPath": {"path": "/srv"}, "mountOptions": ["noatime"]}),
                "volumeMounts",
                "Mount options are not supported for this volume type",
            ),
            (
                json!({"csi": {"driver": "disks.example.com", "volumeHandle": "h"}}),
                "volumeMounts",
                "driver name disks.example.com not found in the list of registered CSI drivers",
            ),
            (
                json!({"awsElasticBlockStore": {"volumeID": "v"}}),
                "volumeMounts",
                "driver name ebs.csi.aws.com not found in the list of registered CSI drivers",
            ),
            (
                json!({"glusterfs": {"endpoints": "e", "path": "p"}}),
                "volumeMounts",
                "failed to get Plugin from volumeSpec for volume \"pv1\" err=no volume plugin \
                 matched: glusterfs",
            ),
            (
                json!({"nfs": {"server": "a", "path": "/b"}, "volumeMode": "Block"}),
                "volumeDevices",
                "no block volume plugin matched: nfs",
            ),
        ] {
            assert_eq!(kind(source, used_as), expected);
        }
    }

    #[test]
    fn what_the_claim_says_beside_the_kind() {
        let read_only = pod(
            json!({"name": "data", "persistentVolumeClaim": {"claimName": "c1", "readOnly": true}}),
            "volumeMounts",
        );
        let annotations = json!({"metadata": {"annotations": {
            GROUP_ANNOTATION: "4711", MOUNT_OPTIONS_ANNOTATION: "hard, nolock"}}});
        let objects = objects(claim(json!({})), volume(annotations));
        let desired = desired_volumes(&read_only, None, &objects);
        let [volume] = desired.volumes.as_slice() else { panic!("{desired:?}") };
        assert_eq!((volume.read_only, volume.extra_group), (true, Some(4711)));
        let VolumeSource::Local(local) = &volume.source else { panic!("{volume:?}") };
        assert_eq!(local.mount_options, ["hard", "nolock"]);
    }
}
