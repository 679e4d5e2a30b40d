//! The full view of one pod: the status of every sandbox and container.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use futures_util::future::{join3, try_join};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use rubelet_types::{
    Clock, ContainerAnnotations, ContainerId, ContainerResources, ContainerSnapshot,
    ContainerState, ContainerUser, PodRef, PodSnapshot, SandboxId, SandboxSnapshot, SandboxState,
    labels,
};

use super::{RelistEntry, optional_timestamp, signal_name, timestamp};
use crate::{CriClient, CriError, Rpc, v1};

/// Status calls in flight at once for one pod.
const CONCURRENT_STATUS_CALLS: usize = 16;

/// Reads everything the runtime holds of `pod`: lists by uid, then reads each status. What vanishes
/// in between is left out. `taken_at` is the moment before the first call.
///
/// What is `known` to be there is asked for its status beside the lists, which saves a round trip.
///
/// # Errors
///
/// A call failed other than with NotFound, or left out the status it was asked for.
pub async fn pod_snapshot(
    client: &CriClient,
    pod: &PodRef,
    known: Option<&RelistEntry>,
    clock: &Clock,
) -> Result<PodSnapshot, CriError> {
    let taken_at = clock.now();
    let by_uid = BTreeMap::from([(labels::POD_UID.to_owned(), pod.uid.to_string())]);
    let sandbox_filter =
        v1::PodSandboxFilter { label_selector: by_uid.clone(), ..Default::default() };
    let container_filter = v1::ContainerFilter { label_selector: by_uid, ..Default::default() };
    let lists = try_join(
        client.list_pod_sandbox(Some(sandbox_filter)),
        client.list_containers(Some(container_filter)),
    );
    let (sandbox_ids, container_ids) = ids(known);
    let sandboxes = stream::iter(sandbox_ids)
        .map(|id| async move { (id.clone(), sandbox_status(client, &id).await) })
        .buffer_unordered(CONCURRENT_STATUS_CALLS)
        .collect::<HashMap<_, _>>();
    let containers = stream::iter(container_ids)
        .map(|id| async move { (id.clone(), container_status(client, &id).await) })
        .buffer_unordered(CONCURRENT_STATUS_CALLS)
        .collect::<HashMap<_, _>>();
    let (lists, mut sandboxes_ahead, mut containers_ahead) =
        join3(lists, sandboxes, containers).await;
    let (listed_sandboxes, listed_containers) = lists?;

    let sandboxes = stream::iter(listed_sandboxes)
        .map(|listed| {
            let id = SandboxId::new(listed.id);
            let ahead = sandboxes_ahead.remove(&id);
            async move {
                match ahead {
                    Some(answer) => answer,
                    None => sandbox_status(client, &id).await,
                }
            }
        })
        .buffer_unordered(CONCURRENT_STATUS_CALLS)
        .try_filter_map(|status| async move { Ok(status) })
        .map_ok(|status| sandbox_snapshot(&status))
        .try_collect::<Vec<_>>();
    let containers = stream::iter(listed_containers)
        .map(|listed| {
            let id = ContainerId::new(listed.id);
            let ahead = containers_ahead.remove(&id);
            let sandbox_id = Some(listed.pod_sandbox_id)
                .filter(|sandbox| !sandbox.is_empty())
                .map(SandboxId::new);
            async move {
                let status = match ahead {
                    Some(answer) => answer,
                    None => container_status(client, &id).await,
                };
                status.map(|status| status.map(|status| container_snapshot(&status, sandbox_id)))
            }
        })
        .buffer_unordered(CONCURRENT_STATUS_CALLS)
        .try_filter_map(|snapshot| async move { Ok(snapshot) })
        .try_collect::<Vec<_>>();
    let (mut sandboxes, mut containers) = try_join(sandboxes, containers).await?;
    // A snapshot is kept as long as its pod is, and most hold one of each, with room for four.
    sandboxes.shrink_to_fit();
    containers.shrink_to_fit();
    sandboxes.sort_by_key(|sandbox| Reverse((sandbox.created_at, sandbox.attempt)));
    containers.sort_by_key(|container| Reverse((container.created_at, container.restart_count)));
    Ok(PodSnapshot { pod: pod.clone(), taken_at, sandboxes, containers })
}

fn ids(known: Option<&RelistEntry>) -> (Vec<SandboxId>, Vec<ContainerId>) {
    let Some(known) = known else { return (Vec::new(), Vec::new()) };
    let sandboxes = known.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
    (sandboxes, known.containers.iter().map(|container| container.id.clone()).collect())
}

/// None if it has vanished.
async fn sandbox_status(
    client: &CriClient,
    id: &SandboxId,
) -> Result<Option<v1::PodSandboxStatus>, CriError> {
    unless_vanished(client.pod_sandbox_status(id, false).await)?
        .map(|answer| answer.status.ok_or_else(|| no_status(Rpc::PodSandboxStatus, id)))
        .transpose()
}

/// None if it has vanished.
async fn container_status(
    client: &CriClient,
    id: &ContainerId,
) -> Result<Option<v1::ContainerStatus>, CriError> {
    unless_vanished(client.container_status(id, false).await)?
        .map(|answer| answer.status.ok_or_else(|| no_status(Rpc::ContainerStatus, id)))
        .transpose()
}

fn unless_vanished<T>(answer: Result<T, CriError>) -> Result<Option<T>, CriError> {
    match answer {
        Ok(status) => Ok(Some(status)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn no_status(rpc: Rpc, id: &dyn std::fmt::Display) -> CriError {
    CriError::incomplete_answer(rpc, format!("the runtime returned no status of {id}"))
}

pub(super) fn sandbox_state(state: i32) -> SandboxState {
    match v1::PodSandboxState::try_from(state) {
        Ok(v1::PodSandboxState::SandboxReady) => SandboxState::Ready,
        Ok(v1::PodSandboxState::SandboxNotready) | Err(_) => SandboxState::NotReady,
    }
}

/// A sandbox from its status. Addresses that are none are dropped.
pub fn sandbox_snapshot(status: &v1::PodSandboxStatus) -> SandboxSnapshot {
    let namespaces = status
        .linux
        .as_ref()
        .and_then(|linux| linux.namespaces.as_ref())
        .and_then(|namespaces| namespaces.options.as_ref());
    let host_network =
        namespaces.is_some_and(|options| options.network == i32::from(v1::NamespaceMode::Node));
    let ips = if host_network {
        Vec::new()
    } else {
        status
            .network
            .iter()
            .flat_map(|network| {
                let additional = network.additional_ips.iter().map(|additional| &additional.ip);
                std::iter::once(&network.ip).chain(additional)
            })
            .filter(|ip| ip.parse::<IpAddr>().is_ok())
            .cloned()
            .collect()
    };
    SandboxSnapshot {
        id: SandboxId::new(&status.id),
        state: sandbox_state(status.state),
        attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        created_at: timestamp(status.created_at),
        ips,
        host_network,
    }
}

/// A container from its status; `sandbox_id` comes from the list, which alone tells it.
///
/// A running container without a start time counts as started when created; an exited one without
/// an end as ended when it was last heard of.
pub fn container_snapshot(
    status: &v1::ContainerStatus,
    sandbox_id: Option<SandboxId>,
) -> ContainerSnapshot {
    let label = |key: &str| status.labels.get(key).filter(|value| !value.is_empty()).cloned();
    let annotation = |key: &str| status.annotations.get(key).cloned();
    let number = |key: &str| status.annotations.get(key).and_then(|value| value.parse().ok());
    let metadata = status.metadata.as_ref();
    let created_at = timestamp(status.created_at);
    let started_at = optional_timestamp(status.started_at);
    let state = match v1::ContainerState::try_from(status.state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => {
            ContainerState::Running { started_at: started_at.unwrap_or(created_at) }
        }
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited {
            started_at,
            finished_at: optional_timestamp(status.finished_at)
                .or(started_at)
                .unwrap_or(created_at),
            exit_code: status.exit_code,
            reason: status.reason.clone(),
            message: status.message.clone(),
        },
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    };
    ContainerSnapshot {
        id: ContainerId::new(&status.id),
        name: label(labels::CONTAINER_NAME)
            .or(metadata.map(|metadata| metadata.name.clone()))
            .unwrap_or_default(),
        sandbox_id,
        state,
        created_at,
        image: status.image.as_ref().map(|image| image.image.clone()).unwrap_or_default(),
        image_ref: status.image_ref.clone(),
        hash: annotation(labels::CONTAINER_HASH).unwrap_or_default(),
        restart_count: status
            .annotations
            .get(labels::CONTAINER_RESTART_COUNT)
            .and_then(|count| count.parse().ok())
            .or(metadata.map(|metadata| metadata.attempt))
            .unwrap_or(0),
        annotations: ContainerAnnotations {
            termination_message_path: annotation(labels::CONTAINER_TERMINATION_MESSAGE_PATH)
                .unwrap_or_default(),
            termination_message_policy: annotation(labels::CONTAINER_TERMINATION_MESSAGE_POLICY)
                .unwrap_or_default(),
            pre_stop_handler: annotation(labels::CONTAINER_PRE_STOP_HANDLER),
            ports: annotation(labels::CONTAINER_PORTS),
            termination_grace_seconds: number(labels::POD_TERMINATION_GRACE_PERIOD),
            deletion_grace_seconds: number(labels::POD_DELETION_GRACE_PERIOD),
        },
        resources: status
            .resources
            .as_ref()
            .and_then(|resources| resources.linux.as_ref())
            .map(container_resources),
        user: status.user.as_ref().and_then(|user| user.linux.as_ref()).map(|user| ContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: user.supplemental_groups.clone(),
        }),
        log_path: status.log_path.clone(),
        mounts: status
            .mounts
            .iter()
            .map(|mount| (mount.container_path.clone(), mount.host_path.clone()))
            .collect(),
        stop_signal: signal_name(status.stop_signal),
    }
}

fn container_resources(linux: &v1::LinuxContainerResources) -> ContainerResources {
    let unless_unset = |value: i64| (value != 0).then_some(value);
    ContainerResources {
        cpu_shares: unless_unset(linux.cpu_shares),
        cpu_quota: unless_unset(linux.cpu_quota),
        cpu_period: unless_unset(linux.cpu_period),
        memory_limit: unless_unset(linux.memory_limit_in_bytes),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_sandbox_shows_its_addresses_primary_first() {
        let status = v1::PodSandboxStatus {
            id: "s".to_owned(),
            metadata: Some(v1::PodSandboxMetadata { attempt: 3, ..Default::default() }),
            created_at: 1_500_000_000,
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.0.0.7".to_owned(),
                additional_ips: ["fd00::7", "nonsense", ""]
                    .map(|ip| v1::PodIp { ip: ip.to_owned() })
                    .to_vec(),
            }),
            ..Default::default()
        };
        assert_eq!(
            sandbox_snapshot(&status),
            SandboxSnapshot {
                id: SandboxId::new("s"),
                state: SandboxState::Ready,
                attempt: 3,
                created_at: "1970-01-01T00:00:01.5Z".parse().unwrap(),
                ips: vec!["10.0.0.7".to_owned(), "fd00::7".to_owned()],
                host_network: false,
            }
        );
    }

    #[test]
    fn a_sandbox_of_the_host_network_has_no_address_of_its_own() {
        let options =
            v1::NamespaceOption { network: v1::NamespaceMode::Node.into(), ..Default::default() };
        let status = v1::PodSandboxStatus {
            state: v1::PodSandboxState::SandboxNotready.into(),
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "192.168.1.1".to_owned(),
                ..Default::default()
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace { options: Some(options) }),
            }),
            ..Default::default()
        };
        let snapshot = sandbox_snapshot(&status);
        assert!(snapshot.host_network);
        assert!(snapshot.ips.is_empty());
        assert_eq!(snapshot.state, SandboxState::NotReady);
    }

    #[test]
    fn a_container_keeps_what_the_kubelet_noted_on_it() {
        let status = v1::ContainerStatus {
            id: "c".to_owned(),
            metadata: Some(v1::ContainerMetadata { name: "other".to_owned(), attempt: 9 }),
            state: v1::ContainerState::ContainerExited.into(),
            created_at: 1,
            started_at: 2,
            finished_at: 3,
            exit_code: 137,
            image: Some(v1::ImageSpec { image: "busybox:1".to_owned(), ..Default::default() }),
            image_ref: "sha256:abc".to_owned(),
            reason: "OOMKilled".to_owned(),
            message: "m".to_owned(),
            labels: map(&[(labels::CONTAINER_NAME, "main")]),
            annotations: map(&[
                (labels::CONTAINER_HASH, "1f2e"),
                (labels::CONTAINER_RESTART_COUNT, "4"),
                (labels::CONTAINER_TERMINATION_MESSAGE_PATH, "/dev/termination-log"),
                (labels::CONTAINER_TERMINATION_MESSAGE_POLICY, "File"),
                (labels::CONTAINER_PRE_STOP_HANDLER, "{}"),
                (labels::POD_TERMINATION_GRACE_PERIOD, "30"),
                (labels::POD_DELETION_GRACE_PERIOD, "soon"),
            ]),
            mounts: vec![v1::Mount {
                container_path: "/data".to_owned(),
                host_path: "/var/data".to_owned(),
                ..Default::default()
            }],
            log_path: "/var/log/pods/x/main/4.log".to_owned(),
            resources: Some(v1::ContainerResources {
                linux: Some(v1::LinuxContainerResources {
                    cpu_shares: 512,
                    cpu_quota: -1,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            user: Some(v1::ContainerUser {
                linux: Some(v1::LinuxContainerUser {
                    uid: 1000,
                    gid: 0,
                    supplemental_groups: vec![5],
                }),
            }),
            stop_signal: v1::Signal::Sigusr1.into(),
            ..Default::default()
        };
        let snapshot = container_snapshot(&status, Some(SandboxId::new("s")));
        assert_eq!(
            snapshot,
            ContainerSnapshot {
                id: ContainerId::new("c"),
                name: "main".to_owned(),
                sandbox_id: Some(SandboxId::new("s")),
                state: ContainerState::Exited {
                    started_at: Some(timestamp(2)),
                    finished_at: timestamp(3),
                    exit_code: 137,
                    reason: "OOMKilled".to_owned(),
                    message: "m".to_owned(),
                },
                created_at: timestamp(1),
                image: "busybox:1".to_owned(),
                image_ref: "sha256:abc".to_owned(),
                hash: "1f2e".to_owned(),
                restart_count: 4,
                annotations: ContainerAnnotations {
                    termination_message_path: "/dev/termination-log".to_owned(),
                    termination_message_policy: "File".to_owned(),
                    pre_stop_handler: Some("{}".to_owned()),
                    ports: None,
                    termination_grace_seconds: Some(30),
                    deletion_grace_seconds: None,
                },
                resources: Some(ContainerResources {
                    cpu_shares: Some(512),
                    cpu_quota: Some(-1),
                    cpu_period: None,
                    memory_limit: None,
                }),
                user: Some(ContainerUser { uid: 1000, gid: 0, supplemental_groups: vec![5] }),
                log_path: "/var/log/pods/x/main/4.log".to_owned(),
                mounts: map(&[("/data", "/var/data")]),
                stop_signal: Some("SIGUSR1".to_owned()),
            }
        );
    }

    #[test]
    fn missing_times_and_counts_fall_back_to_what_is_there() {
        let mut status = v1::ContainerStatus {
            metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt: 2 }),
            state: v1::ContainerState::ContainerRunning.into(),
            created_at: 10,
            ..Default::default()
        };
        let snapshot = container_snapshot(&status, None);
        assert_eq!(snapshot.state, ContainerState::Running { started_at: timestamp(10) });
        assert_eq!((snapshot.name.as_str(), snapshot.restart_count), ("main", 2));

        status.state = v1::ContainerState::ContainerExited.into();
        let ContainerState::Exited { started_at, finished_at, .. } =
            container_snapshot(&status, None).state
        else {
            panic!("not exited");
        };
        assert_eq!((started_at, finished_at), (None, timestamp(10)));

        status.state = 42;
        assert_eq!(container_snapshot(&status, None).state, ContainerState::Unknown);
    }

    proptest! {
        #[test]
        fn no_bytes_from_the_runtime_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            if let Ok(status) = v1::ContainerStatus::decode(bytes.as_slice()) {
                container_snapshot(&status, None);
            }
            if let Ok(status) = v1::PodSandboxStatus::decode(bytes.as_slice()) {
                sandbox_snapshot(&status);
            }
        }

        #[test]
        fn no_times_panic(
            state in -1i32..5,
            created_at in any::<i64>(),
            started_at in any::<i64>(),
            finished_at in any::<i64>(),
        ) {
            let status = v1::ContainerStatus {
                state, created_at, started_at, finished_at, ..Default::default()
            };
            container_snapshot(&status, None);
        }
    }
}
