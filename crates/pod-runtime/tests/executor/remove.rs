use rubelet_cri::Rpc;
use rubelet_fake_cri::{Fault, FaultAction};
use tonic::Code;

use super::*;

/// Starts another instance of `c` after killing the one before.
async fn restart(
    node: &Node,
    pod: &Pod,
    sandbox: &SandboxSnapshot,
    old: &ContainerSnapshot,
) -> ContainerSnapshot {
    node.runtime.stop_container(&old.id, seconds(0)).await.unwrap();
    let to_start =
        ContainerToStart { restart_count: Some(old.restart_count + 1), ..node.to_start(sandbox) };
    node.start(pod, to_start).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn only_the_removed_instance_loses_its_files() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let (sandbox, first) = node.run(&pod).await;
    let second = restart(&node, &pod, &sandbox, &first).await;
    let pod = pod_ref(&pod);
    std::fs::write(node.log(&pod, "0.log.20260101-000000.gz"), "").unwrap();
    let message =
        |container: &ContainerSnapshot| PathBuf::from(&container.mounts["/dev/termination-log"]);
    let snapshot = node.runtime.inspect(&pod, None).await.unwrap();
    node.runtime.remove_container(&pod, &snapshot, &first.id, false).await.unwrap();

    for gone in [
        node.log(&pod, "0.log"),
        node.log(&pod, "0.log.20260101-000000.gz"),
        node.link(&first),
        message(&first),
    ] {
        assert!(!gone.exists() && !gone.is_symlink(), "{gone:?}");
    }
    for kept in [node.log(&pod, "1.log"), node.link(&second), message(&second)] {
        assert!(kept.exists(), "{kept:?}");
    }
    let left = node.fake.inventory().containers;
    assert_eq!(left.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), [second.id.as_str()]);
    // Again, and for one that nobody knows.
    node.runtime.remove_container(&pod, &snapshot, &first.id, false).await.unwrap();
    node.runtime.remove_container(&pod, &snapshot, &"nobody".into(), false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn logs_that_are_to_be_kept_outlive_their_container() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let (_, first) = node.run(&pod).await;
    let pod = pod_ref(&pod);
    let snapshot = node.runtime.inspect(&pod, None).await.unwrap();
    node.runtime.remove_container(&pod, &snapshot, &first.id, true).await.unwrap();
    assert!(node.log(&pod, "0.log").exists());
    assert!(node.fake.inventory().containers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_created_instance_that_was_started_meanwhile_is_not_removed() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    let broken = FaultAction::Error(Code::Unavailable, "not now".to_owned());
    node.fake.inject(Fault::on(Rpc::StartContainer, broken).times(1));
    node.start(&pod, node.to_start(&sandbox)).await.unwrap_err();
    let pod = pod_ref(&pod);
    let created = node.runtime.inspect(&pod, None).await.unwrap();
    let id = created.containers[0].id.clone();
    assert_eq!(created.containers[0].state, ContainerState::Created);

    // Whoever asked for the start is gone, and it succeeds, and ends, all the same.
    let cri = node.fake.client(CriOptions::default());
    cri.start_container(&id).await.unwrap();
    for _ in 0..2 {
        let refused = node.runtime.remove_container(&pod, &created, &id, false).await.unwrap_err();
        assert_eq!(refused.message, format!("container {id} was started meanwhile"));
        assert_eq!(node.fake.inventory().containers.len(), 1);
        assert!(node.log(&pod, "0.log").exists());
        node.runtime.stop_container(&id, seconds(0)).await.unwrap();
    }
    // Who knows that it ran may remove it.
    let ended = node.runtime.inspect(&pod, None).await.unwrap();
    node.runtime.remove_container(&pod, &ended, &id, false).await.unwrap();
    assert!(node.fake.inventory().containers.is_empty() && !node.log(&pod, "0.log").exists());
}

#[tokio::test(start_paused = true)]
async fn a_created_instance_that_nobody_started_is_removed() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    let broken = FaultAction::Error(Code::Unavailable, "not now".to_owned());
    node.fake.inject(Fault::on(Rpc::StartContainer, broken).times(1));
    node.start(&pod, node.to_start(&sandbox)).await.unwrap_err();
    let pod = pod_ref(&pod);
    let created = node.runtime.inspect(&pod, None).await.unwrap();
    let id = &created.containers[0].id;
    node.runtime.remove_container(&pod, &created, id, false).await.unwrap();
    assert!(node.fake.inventory().containers.is_empty());
    // Nor is one that is gone already looked for.
    node.runtime.remove_container(&pod, &created, id, false).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nobody_wants_goes_with_its_logs_and_links() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let (sandbox, first) = node.run(&pod).await;
    let second = restart(&node, &pod, &sandbox, &first).await;
    let pod = pod_ref(&pod);
    // A name that begins alike, and a link that leads elsewhere, are somebody else's.
    let foreign = node.paths.container_logs().join("web_ns_c-foreign.log");
    let elsewhere = node.root.path().join("elsewhere.log");
    std::fs::write(&elsewhere, "").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &foreign).unwrap();

    node.runtime.remove_pod(&pod).await.unwrap();
    assert!(node.fake.inventory().is_gone("u1"));
    assert!(!node.paths.pod_log_dir(&pod).exists());
    for container in [&first, &second] {
        assert!(!node.link(container).is_symlink());
    }
    assert!(foreign.exists());
    node.runtime.remove_pod(&pod).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_removed_keeps_nothing_else_and_its_logs() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let (sandbox, first) = node.run(&pod).await;
    let second = restart(&node, &pod, &sandbox, &first).await;
    let pod = pod_ref(&pod);
    let broken = FaultAction::Error(Code::Unknown, "device busy".to_owned());
    node.fake.inject(Fault::on(Rpc::RemoveContainer, broken).about(first.id.as_str()).times(1));
    let failure = node.runtime.remove_pod(&pod).await.unwrap_err();
    assert_eq!(failure.message, "rpc error: code = Unknown desc = device busy");
    assert!(node.log(&pod, "0.log").exists());
    assert!(node.fake.inventory().containers.iter().all(|c| c.id != second.id.as_str()));
    node.runtime.remove_pod(&pod).await.unwrap();
    assert!(!node.paths.pod_log_dir(&pod).exists());
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_is_stopped_before_it_is_removed() {
    let node = Node::new();
    let sandbox = node.with_sandbox(&pod(serde_json::json!({}))).await;
    node.runtime.remove_sandbox(&sandbox.id).await.unwrap();
    assert!(node.fake.inventory().sandboxes.is_empty());
    assert_eq!(node.fake.calls(Rpc::StopPodSandbox), 1);
    node.runtime.remove_sandbox(&sandbox.id).await.unwrap();
}
