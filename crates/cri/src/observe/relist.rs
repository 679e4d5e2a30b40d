//! The cheap view of everything: what two list calls tell, grouped by pod.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::future::try_join;
use jiff::Timestamp;
use rubelet_types::{ContainerId, PodRef, PodUid, SandboxId, SandboxState, labels};

use super::snapshot::sandbox_state;
use super::{pod_of_container, pod_of_sandbox, timestamp};
use crate::{CriClient, CriError, v1};

/// A sandbox as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSandbox {
    /// The runtime's id.
    pub id: SandboxId,
    /// Its state.
    pub state: SandboxState,
    /// When it was created.
    pub created_at: Timestamp,
    /// `metadata.attempt`.
    pub attempt: u32,
}

/// State of a container as a list shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListedContainerState {
    /// Created and never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process ended.
    Exited,
    /// The runtime does not know.
    Unknown,
}

/// A container as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedContainer {
    /// The runtime's id.
    pub id: ContainerId,
    /// The container's name in the pod spec.
    pub name: String,
    /// The sandbox it lives in.
    pub sandbox_id: SandboxId,
    /// Its state.
    pub state: ListedContainerState,
    /// When it was created.
    pub created_at: Timestamp,
    /// `metadata.attempt`, the restart count.
    pub attempt: u32,
}

/// Everything a list shows of one pod. Both lists are sorted newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelistEntry {
    /// The pod, as the labels name it.
    pub pod: PodRef,
    /// All sandboxes.
    pub sandboxes: Vec<ListedSandbox>,
    /// All instances of all containers.
    pub containers: Vec<ListedContainer>,
}

/// All pods the runtime holds something of.
pub type RelistByPod = BTreeMap<PodUid, RelistEntry>;

/// Lists everything the runtime holds of the kubelet's pods, in all states.
///
/// # Errors
///
/// Either list call failed.
pub async fn relist(client: &CriClient) -> Result<RelistByPod, CriError> {
    let (sandboxes, containers) =
        try_join(client.list_pod_sandbox(None), client.list_containers(None)).await?;
    Ok(group_by_pod(&sandboxes, &containers))
}

/// Groups listed objects by pod uid; those without the kubelet's labels are skipped.
pub fn group_by_pod(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> RelistByPod {
    let mut pods = RelistByPod::new();
    let mut entry = |pod: PodRef, add: &mut dyn FnMut(&mut RelistEntry)| {
        add(pods.entry(pod.uid.clone()).or_insert_with(|| RelistEntry {
            pod,
            sandboxes: Vec::new(),
            containers: Vec::new(),
        }));
    };
    for sandbox in sandboxes {
        let Some(pod) = pod_of_sandbox(&sandbox.labels, sandbox.metadata.as_ref()) else {
            continue;
        };
        entry(pod, &mut |pod| pod.sandboxes.push(listed_sandbox(sandbox)));
    }
    for container in containers {
        let (Some(pod), Some(name)) =
            (pod_of_container(&container.labels), container.labels.get(labels::CONTAINER_NAME))
        else {
            continue;
        };
        entry(pod, &mut |pod| pod.containers.push(listed_container(container, name)));
    }
    for pod in pods.values_mut() {
        pod.sandboxes.sort_by_key(|sandbox| Reverse((sandbox.created_at, sandbox.attempt)));
        pod.containers.sort_by_key(|container| Reverse((container.created_at, container.attempt)));
    }
    pods
}

fn listed_sandbox(sandbox: &v1::PodSandbox) -> ListedSandbox {
    ListedSandbox {
        id: SandboxId::new(&sandbox.id),
        state: sandbox_state(sandbox.state),
        created_at: timestamp(sandbox.created_at),
        attempt: sandbox.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
    }
}

fn listed_container(container: &v1::Container, name: &str) -> ListedContainer {
    ListedContainer {
        id: ContainerId::new(&container.id),
        name: name.to_owned(),
        sandbox_id: SandboxId::new(&container.pod_sandbox_id),
        state: match v1::ContainerState::try_from(container.state) {
            Ok(v1::ContainerState::ContainerCreated) => ListedContainerState::Created,
            Ok(v1::ContainerState::ContainerRunning) => ListedContainerState::Running,
            Ok(v1::ContainerState::ContainerExited) => ListedContainerState::Exited,
            Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ListedContainerState::Unknown,
        },
        created_at: timestamp(container.created_at),
        attempt: container.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod_labels(uid: &str) -> BTreeMap<String, String> {
        BTreeMap::from([
            (labels::POD_UID.to_owned(), uid.to_owned()),
            (labels::POD_NAME.to_owned(), format!("pod-{uid}")),
            (labels::POD_NAMESPACE.to_owned(), "default".to_owned()),
        ])
    }

    fn sandbox(uid: &str, id: &str, attempt: u32, created_at: i64, state: i32) -> v1::PodSandbox {
        v1::PodSandbox {
            id: id.to_owned(),
            metadata: Some(v1::PodSandboxMetadata { attempt, ..Default::default() }),
            state,
            created_at,
            labels: pod_labels(uid),
            ..Default::default()
        }
    }

    fn container(uid: &str, id: &str, created_at: i64, state: i32) -> v1::Container {
        let mut labels = pod_labels(uid);
        labels.insert(labels::CONTAINER_NAME.to_owned(), "main".to_owned());
        v1::Container { id: id.to_owned(), created_at, state, labels, ..Default::default() }
    }

    #[test]
    fn objects_are_grouped_by_pod_newest_first() {
        let pods = group_by_pod(
            &[
                sandbox("a", "s1", 0, 1, 1),
                sandbox("b", "s3", 0, 3, 0),
                sandbox("a", "s2", 1, 2, 0),
            ],
            &[container("a", "c1", 1, 2), container("a", "c2", 4, 1), container("c", "c3", 1, 0)],
        );
        assert_eq!(pods.keys().map(PodUid::as_str).collect::<Vec<_>>(), ["a", "b", "c"]);
        let pod = &pods[&PodUid::new("a")];
        assert_eq!(pod.pod, PodRef::new("a", "default", "pod-a"));
        assert_eq!(
            pod.sandboxes.iter().map(|s| (s.id.as_str(), s.state)).collect::<Vec<_>>(),
            [("s2", SandboxState::Ready), ("s1", SandboxState::NotReady)]
        );
        assert_eq!(
            pod.containers.iter().map(|c| (c.id.as_str(), c.state)).collect::<Vec<_>>(),
            [("c2", ListedContainerState::Running), ("c1", ListedContainerState::Exited)]
        );
        assert!(
            pods[&PodUid::new("c")].sandboxes.is_empty(),
            "a container may outlive its sandbox"
        );
    }

    #[test]
    fn things_of_others_are_skipped() {
        let mut foreign_sandbox = sandbox("a", "s1", 0, 1, 0);
        foreign_sandbox.labels.clear();
        foreign_sandbox.metadata =
            Some(v1::PodSandboxMetadata { uid: "a".to_owned(), ..Default::default() });
        let mut nameless = container("a", "c1", 1, 1);
        nameless.labels.remove(labels::CONTAINER_NAME);
        let mut foreign_container = container("", "c2", 1, 1);
        foreign_container.labels.insert(labels::POD_UID.to_owned(), String::new());
        assert!(group_by_pod(&[foreign_sandbox], &[nameless, foreign_container]).is_empty());
    }

    #[test]
    fn states_from_the_future_are_unknown() {
        let pods = group_by_pod(&[sandbox("a", "s1", 0, 1, 99)], &[container("a", "c1", 1, -7)]);
        let pod = &pods[&PodUid::new("a")];
        assert_eq!(pod.sandboxes[0].state, SandboxState::NotReady);
        assert_eq!(pod.containers[0].state, ListedContainerState::Unknown);
    }
}
