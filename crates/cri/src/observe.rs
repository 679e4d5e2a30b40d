//! From the protocol's messages to the words of the kubelet: what the runtime holds, pod by pod.
//!
//! The conversions are pure and total: a runtime may leave out or invent what it likes. Objects
//! without the kubelet's labels belong to somebody else and are left alone.

mod relist;
mod signal;
mod snapshot;

use std::collections::BTreeMap;

use jiff::Timestamp;
use rubelet_types::{PodRef, labels};

use crate::v1;

pub use relist::{ListedContainer, ListedContainerState, ListedSandbox, RelistEntry, relist};
pub use relist::{RelistByPod, group_by_pod};
pub use signal::{signal_from_name, signal_name};
pub use snapshot::{container_snapshot, pod_snapshot, sandbox_snapshot};

/// A point in time of the protocol; 0 is the epoch.
pub fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A point in time of the protocol that may be absent, which is written 0.
pub fn optional_timestamp(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds != 0).then(|| timestamp(nanoseconds))
}

/// The pod that a sandbox's labels name; none if the kubelet did not make it. Name and namespace
/// fall back to the metadata.
pub fn pod_of_sandbox(
    sandbox_labels: &BTreeMap<String, String>,
    metadata: Option<&v1::PodSandboxMetadata>,
) -> Option<PodRef> {
    let uid = sandbox_labels.get(labels::POD_UID).filter(|uid| !uid.is_empty())?;
    let or_metadata = |key: &str, field: fn(&v1::PodSandboxMetadata) -> &String| {
        sandbox_labels.get(key).or(metadata.map(field)).map_or("", String::as_str)
    };
    Some(PodRef::new(
        uid.as_str(),
        or_metadata(labels::POD_NAMESPACE, |metadata| &metadata.namespace),
        or_metadata(labels::POD_NAME, |metadata| &metadata.name),
    ))
}

/// The pod that a container's labels name; none if the kubelet did not make it.
pub fn pod_of_container(container_labels: &BTreeMap<String, String>) -> Option<PodRef> {
    pod_of_sandbox(container_labels, None)
}
