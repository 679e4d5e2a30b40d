//! Full sets per source in, typed changes out.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{PodFullName, PodRef, PodUid, labels, pod_ref};

/// Where pods come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodSource {
    /// `staticPodPath`.
    File,
    /// `staticPodURL`.
    Http,
    /// The API server.
    Api,
}

impl PodSource {
    /// `file`, `http` or `api`, as the annotation `kubernetes.io/config.source` carries it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }
}

impl fmt::Display for PodSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened to the pods of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodOperation {
    /// The source no longer has them.
    Remove,
    /// They are new. An empty one says that the source has spoken for the first time.
    Add,
    /// Their spec, labels or annotations changed.
    Update,
    /// They are to be stopped gracefully: a deletion timestamp was set or changed.
    Delete,
    /// Only their status at the source changed.
    Reconcile,
}

impl fmt::Display for PodOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Remove => "REMOVE",
            Self::Add => "ADD",
            Self::Update => "UPDATE",
            Self::Delete => "DELETE",
            Self::Reconcile => "RECONCILE",
        })
    }
}

/// One kind of change to some pods of one source.
#[derive(Clone, Debug, PartialEq)]
pub struct PodChange {
    /// What happened.
    pub op: PodOperation,
    /// To whom; empty only for the first `Add` of a source.
    pub pods: Vec<Arc<Pod>>,
    /// Whose pods they are.
    pub source: PodSource,
}

/// A pod of a set that was left out because another one of the same set has its name or uid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuplicatePod {
    /// The pod left out.
    pub pod: PodRef,
    /// For an event of reason `FailedValidation`.
    pub message: String,
}

/// What a set led to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MuxOutcome {
    /// To be delivered in this order: remove, add, update, delete, reconcile.
    pub changes: Vec<PodChange>,
    /// Pods that were left out.
    pub duplicates: Vec<DuplicatePod>,
}

impl From<Option<PodChange>> for MuxOutcome {
    fn from(change: Option<PodChange>) -> Self {
        Self { changes: change.into_iter().collect(), duplicates: Vec::new() }
    }
}

/// What each source wants at present. Uids of different sources are separate worlds.
#[derive(Clone, Debug, Default)]
pub struct PodConfigMux {
    sources: BTreeMap<PodSource, SourcePods>,
}

#[derive(Clone, Debug, Default)]
struct SourcePods {
    has_spoken: bool,
    pods: BTreeMap<PodUid, Arc<Pod>>,
}

/// Annotations that the kubelet itself writes, and that make no difference between two pods.
const LOCAL_ANNOTATIONS: [&str; 3] =
    [labels::CONFIG_SOURCE, labels::CONFIG_MIRROR, labels::CONFIG_SEEN];

impl PodConfigMux {
    /// A mux that waits for each of `sources` before it calls itself ready.
    pub fn new(sources: impl IntoIterator<Item = PodSource>) -> Self {
        Self {
            sources: sources.into_iter().map(|source| (source, SourcePods::default())).collect(),
        }
    }

    /// Every configured source has handed over a set.
    pub fn sources_ready(&self) -> bool {
        self.sources.values().all(|source| source.has_spoken)
    }

    /// The configured sources.
    pub fn sources(&self) -> impl Iterator<Item = PodSource> {
        self.sources.keys().copied()
    }

    /// What `source` wants at present, in the order of uids.
    pub fn pods(&self, source: PodSource) -> impl Iterator<Item = &Arc<Pod>> {
        self.sources.get(&source).into_iter().flat_map(|source| source.pods.values())
    }

    /// `source` wants exactly `pods` from now on. Pods are marked with their source and with the
    /// time when they were first seen (`now` for new ones).
    pub fn apply_set(&mut self, source: PodSource, pods: Vec<Pod>, now: Timestamp) -> MuxOutcome {
        self.apply_set_keeping(source, pods, &[], now)
    }

    /// As [`Self::apply_set`]; besides, the source still has the pods `unreadable` in a version that
    /// it could not make out: what is known of them goes on.
    pub fn apply_set_keeping(
        &mut self,
        source: PodSource,
        pods: Vec<Pod>,
        unreadable: &[PodUid],
        now: Timestamp,
    ) -> MuxOutcome {
        let state = self.sources.entry(source).or_default();
        let first = !std::mem::replace(&mut state.has_spoken, true);
        let mut before = std::mem::take(&mut state.pods);
        let mut duplicates = Vec::new();
        let mut changed: BTreeMap<PodOperation, Vec<Arc<Pod>>> = BTreeMap::new();

        for pod in without_duplicates(pods, source, &mut duplicates) {
            let existing = before.remove(&pod_ref(&pod).uid);
            let (pod, operation) = take_in(source, existing, pod, now);
            if let Some(operation) = operation {
                changed.entry(operation).or_default().push(Arc::clone(&pod));
            }
            state.pods.insert(pod_ref(&pod).uid, pod);
        }
        for uid in unreadable {
            state.pods.extend(before.remove_entry(uid));
        }
        if !before.is_empty() {
            changed.insert(PodOperation::Remove, before.into_values().collect());
        }
        if first && !changed.contains_key(&PodOperation::Add) {
            changed.insert(PodOperation::Add, Vec::new());
        }
        let changes =
            changed.into_iter().map(|(op, pods)| PodChange { op, pods, source }).collect();
        MuxOutcome { changes, duplicates }
    }

    /// `source` wants `pod` as it is here, whatever it wants besides. For a source that is told of
    /// single changes after a first full set; it vouches for names and uids being its own.
    pub fn apply_pod(&mut self, source: PodSource, pod: Pod, now: Timestamp) -> Option<PodChange> {
        let state = self.sources.entry(source).or_default();
        let uid = pod_ref(&pod).uid;
        let (pod, operation) = take_in(source, state.pods.remove(&uid), pod, now);
        state.pods.insert(uid, Arc::clone(&pod));
        operation.map(|op| PodChange { op, pods: vec![pod], source })
    }

    /// `source` does not want the pod `uid` any more.
    pub fn remove_pod(&mut self, source: PodSource, uid: &PodUid) -> Option<PodChange> {
        let pod = self.sources.get_mut(&source)?.pods.remove(uid)?;
        Some(PodChange { op: PodOperation::Remove, pods: vec![pod], source })
    }
}

/// The pod as it is kept, and what its difference to the `existing` one asks for.
fn take_in(
    source: PodSource,
    existing: Option<Arc<Pod>>,
    mut pod: Pod,
    now: Timestamp,
) -> (Arc<Pod>, Option<PodOperation>) {
    give_up_spare_room(&mut pod);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(labels::CONFIG_SOURCE.to_owned(), source.as_str().to_owned());
    let Some(existing) = existing else {
        annotations.insert(labels::CONFIG_SEEN.to_owned(), now.to_string());
        return (Arc::new(pod), Some(PodOperation::Add));
    };
    keep_local_annotations(&existing, &mut pod);
    match diff_pod(&existing, &pod) {
        // What nobody acts on is kept all the same: the object's version is the base of patches.
        None if existing.metadata.resource_version == pod.metadata.resource_version => {
            (existing, None)
        }
        operation => (Arc::new(pod), operation),
    }
}

/// A pod is kept as long as it runs, and most of its lists have one entry and, from being decoded,
/// room for four: that is a third of a small pod.
fn give_up_spare_room(pod: &mut Pod) {
    fn shrink<T>(list: &mut Option<Vec<T>>) {
        if let Some(list) = list {
            list.shrink_to_fit();
        }
    }
    if let Some(spec) = &mut pod.spec {
        spec.containers.shrink_to_fit();
        shrink(&mut spec.init_containers);
        shrink(&mut spec.volumes);
        shrink(&mut spec.tolerations);
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten())
        {
            shrink(&mut container.env);
            shrink(&mut container.ports);
            shrink(&mut container.volume_mounts);
        }
        for volume in spec.volumes.iter_mut().flatten() {
            if let Some(projected) = &mut volume.projected {
                shrink(&mut projected.sources);
            }
        }
    }
    if let Some(status) = &mut pod.status {
        shrink(&mut status.conditions);
        shrink(&mut status.container_statuses);
        shrink(&mut status.init_container_statuses);
        shrink(&mut status.pod_ips);
        shrink(&mut status.host_ips);
    }
}

fn without_duplicates(
    pods: Vec<Pod>,
    source: PodSource,
    duplicates: &mut Vec<DuplicatePod>,
) -> Vec<Pod> {
    let mut names: HashSet<PodFullName> = HashSet::new();
    let mut uids: BTreeSet<PodUid> = BTreeSet::new();
    let mut kept = Vec::with_capacity(pods.len());
    for pod in pods {
        let reference = pod_ref(&pod);
        let twice = if names.contains(&reference.full_name()) {
            Some(("name", reference.name.to_string()))
        } else if uids.contains(&reference.uid) {
            // Two manifests with one fixed uid would share directories and cgroups.
            Some(("uid", reference.uid.to_string()))
        } else {
            None
        };
        if let Some((what, value)) = twice {
            let message = format!(
                "Error validating pod {reference} from {source} due to duplicate pod {what} \
                 {value:?}, ignoring"
            );
            duplicates.push(DuplicatePod { pod: reference, message });
            continue;
        }
        names.insert(reference.full_name());
        uids.insert(reference.uid);
        kept.push(pod);
    }
    kept
}

fn keep_local_annotations(existing: &Pod, pod: &mut Pod) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    for key in LOCAL_ANNOTATIONS {
        if let Some(value) = existing.metadata.annotations.as_ref().and_then(|all| all.get(key)) {
            annotations.insert(key.to_owned(), value.clone());
        }
    }
}

/// What the difference between two versions of a pod asks for; local annotations agree already.
fn diff_pod(existing: &Pod, pod: &Pod) -> Option<PodOperation> {
    let (old, new) = (&existing.metadata, &pod.metadata);
    let empty = BTreeMap::new();
    let same = existing.spec == pod.spec
        && old.labels.as_ref().unwrap_or(&empty) == new.labels.as_ref().unwrap_or(&empty)
        && old.annotations == new.annotations
        && old.deletion_timestamp == new.deletion_timestamp
        && old.deletion_grace_period_seconds == new.deletion_grace_period_seconds;
    if same {
        (existing.status != pod.status).then_some(PodOperation::Reconcile)
    } else if new.deletion_timestamp.is_some() {
        Some(PodOperation::Delete)
    } else {
        Some(PodOperation::Update)
    }
}

#[cfg(test)]
mod tests;
