//! Pods with users of their own: what the runtime is asked for, by a whole kubelet on a fake runtime,
//! under paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bed;

use std::sync::Arc;
use std::time::Duration;

use bed::{IMAGE, Machine};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1;
use rubelet_fake_cri::tokio_clock;
use rubelet_pod_sources::PodSourceHandle;
use rubelet_pod_sources::defaults::apply_defaults;
use rubelet_types::EventRecorder;
use rubelet_volume_manager::HostMounts;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

async fn start(machine: &Machine) -> (PodSourceHandle, JoinHandle<()>) {
    let clock = tokio_clock(Timestamp::UNIX_EPOCH + Instant::now().elapsed());
    let mut handle = None;
    let alone = |pods, _| {
        handle = Some(pods);
        None
    };
    let events = EventRecorder::new(|_| {});
    let kubelet = machine.kubelet(clock, events, Arc::new(HostMounts), alone).await;
    let task = tokio::spawn(async move {
        kubelet.run(CancellationToken::new()).await.unwrap();
    });
    (handle.unwrap(), task)
}

fn pod(name: &str, host_users: Option<bool>) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {
            "hostUsers": host_users,
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [{"name": name, "image": IMAGE,
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
        },
    }))
    .unwrap();
    apply_defaults(&mut pod);
    pod
}

/// What the runtime was asked for: the users of the pod's sandbox, of its container, and how each of
/// the container's mounts maps them.
async fn asked(machine: &Machine, pod: &str) -> (v1::UserNamespace, Vec<v1::Mount>) {
    let running = async {
        while machine.runtime.inventory().running(pod).next().is_none() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(120), running).await.expect("it runs");
    let inventory = machine.runtime.inventory();
    let users = |options: &Option<v1::NamespaceOption>| {
        options.as_ref().unwrap().userns_options.clone().unwrap()
    };
    let container = inventory.running(pod).next().unwrap();
    let linux = container.config.linux.as_ref().unwrap();
    let of_container = users(&linux.security_context.as_ref().unwrap().namespace_options);
    let sandbox = inventory.sandboxes.iter().find(|sandbox| sandbox.pod_uid == pod).unwrap();
    let linux = sandbox.config.linux.as_ref().unwrap();
    let of_sandbox = users(&linux.security_context.as_ref().unwrap().namespace_options);
    assert_eq!(of_sandbox, of_container);
    (of_sandbox, container.config.mounts.clone())
}

#[tokio::test(start_paused = true)]
async fn each_pod_has_a_range_of_ids_that_outlives_the_kubelet() {
    let machine = Machine::new();
    let (pods, task) = start(&machine).await;
    let all = || vec![pod("a", Some(false)), pod("b", Some(false)), pod("c", None)];
    assert!(pods.set(all()).await);
    let (a, mounts) = asked(&machine, "a").await;
    let (b, _) = asked(&machine, "b").await;
    let (c, unmapped) = asked(&machine, "c").await;
    assert_eq!(c.mode(), v1::NamespaceMode::Node);
    assert!(unmapped.iter().all(|mount| mount.uid_mappings.is_empty()));
    for users in [&a, &b] {
        assert_eq!(users.mode(), v1::NamespaceMode::Pod);
        let [range] = users.uids.as_slice() else { panic!("{users:?}") };
        assert_eq!((range.container_id, range.length), (0, 65_536));
        assert_eq!(range.host_id % 65_536, 0);
        assert_ne!(range.host_id, 0);
        assert_eq!(users.gids, users.uids);
    }
    assert_ne!(a.uids, b.uids);
    // Files keep the pod's own ids, wherever they are on the node.
    assert!(!mounts.is_empty());
    for mount in mounts {
        assert_eq!((mount.uid_mappings, mount.gid_mappings), (a.uids.clone(), a.gids.clone()));
    }

    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let (pods, task) = start(&machine).await;
    assert!(pods.set(all()).await);
    let before = machine.runtime.inventory().running("a").next().unwrap().id.clone();
    assert!(machine.runtime.kill_process(&before, 1));
    let anew = async {
        while machine.runtime.inventory().running("a").next().is_none_or(|now| now.id == before) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(120), anew).await.expect("it runs again");
    assert_eq!(asked(&machine, "a").await.0, a);
    task.abort();
}
