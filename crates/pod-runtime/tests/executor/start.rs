use rubelet_cri::Rpc;
use rubelet_fake_cri::{ExecAnswer, Fault, FaultAction, Script, ScriptMatch};
use rubelet_metrics::{Format, Registry};
use rubelet_types::ContainerState;
use tokio::time::{Instant, sleep};
use tonic::Code;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_container_is_created_started_and_told_of() {
    let node = Node::new();
    let pod = pod(serde_json::json!({"lifecycle": {"postStart": {"exec": {"command": ["true"]}}}}));
    let (sandbox, container) = node.run(&pod).await;
    assert_eq!(container.sandbox_id, Some(sandbox.id));
    assert_eq!(
        node.events(),
        [
            "N spec.containers{c} Created: Container created",
            "N spec.containers{c} Started: Container started",
        ]
    );
    assert_eq!(node.fake.calls(Rpc::ExecSync), 1);
    assert_eq!(node.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_fails_is_told_with_the_runtimes_words() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let cancel = CancellationToken::new();
    let create = || node.runtime.create_sandbox(&pod, SandboxToCreate::default(), &cancel);
    let broken = FaultAction::Error(Code::Unknown, "no network".to_owned());
    node.fake.inject(Fault::on(Rpc::RunPodSandbox, broken.clone()).times(1));
    let failure = create().await.unwrap_err();
    assert_eq!(failure.message, "rpc error: code = Unknown desc = no network");
    assert_eq!(
        node.events(),
        ["W web_ns(u1) FailedCreatePodSandBox: Failed to create pod sandbox: rpc error: code = \
          Unknown desc = no network"]
    );

    node.fake.inject(Fault::on(Rpc::PodSandboxStatus, broken).times(1));
    create().await.unwrap_err();
    assert_eq!(
        node.events(),
        [
            "W web_ns(u1) FailedPodSandBoxStatus: Unable to get pod sandbox status: rpc error: code = \
          Unknown desc = no network"
        ]
    );
    // It is there all the same, and the next look finds it.
    let snapshot = node.runtime.inspect(&pod_ref(&pod), None).await.unwrap();
    assert!(snapshot.any_sandbox_ready());
}

#[tokio::test(start_paused = true)]
async fn what_fails_because_the_pod_is_deleted_is_not_told() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let cancel = CancellationToken::new();
    let broken = FaultAction::Error(Code::Unknown, "no network".to_owned());
    node.fake.inject(Fault::on(Rpc::RunPodSandbox, FaultAction::Delay(seconds(5))));
    node.fake.inject(Fault::on(Rpc::RunPodSandbox, broken));
    let create = node.runtime.create_sandbox(&pod, SandboxToCreate::default(), &cancel);
    let (result, ()) = tokio::join!(create, async {
        sleep(seconds(1)).await;
        cancel.cancel();
    });
    result.unwrap_err();
    assert_eq!(node.events(), Vec::<String>::new());

    let result = node.runtime.create_sandbox(&pod, SandboxToCreate::default(), &cancel).await;
    assert!(result.unwrap_err().cancelled);
    assert_eq!(node.fake.calls(Rpc::RunPodSandbox), 1);
}

#[tokio::test(start_paused = true)]
async fn the_runtime_class_chooses_the_handler() {
    let options =
        FakeOptions { runtime_handlers: vec!["kata".to_owned()], ..FakeOptions::default() };
    let node = Node::with(options);
    let pod = pod(serde_json::json!({}));
    let sandbox =
        SandboxToCreate { runtime_handler: "kata".to_owned(), ..SandboxToCreate::default() };
    node.runtime.create_sandbox(&pod, sandbox, &CancellationToken::new()).await.unwrap();
    assert_eq!(node.fake.inventory().sandboxes[0].runtime_handler, "kata");
}

#[tokio::test(start_paused = true)]
async fn without_the_nodes_resolver_file_there_is_no_sandbox() {
    let node = Node::new();
    let file = node.root.path().join("resolv.conf");
    node.runtime.check_node_resolv_conf().await;
    assert_eq!(node.events(), Vec::<String>::new());
    std::fs::remove_file(&file).unwrap();
    let pod = pod(serde_json::json!({}));
    let cancel = CancellationToken::new();
    let result = node.runtime.create_sandbox(&pod, SandboxToCreate::default(), &cancel).await;
    let cause = format!("open {}: no such file or directory", file.display());
    assert_eq!(result.unwrap_err().message, cause);
    node.runtime.check_node_resolv_conf().await;
    assert_eq!(
        node.events(),
        [
            format!("W web_ns(u1) FailedCreatePodSandBox: Failed to create pod sandbox: {cause}"),
            format!("W node CheckLimitsForResolvConf: {cause}"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_creation_shows_the_runtimes_message_alone() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    let broken = FaultAction::Error(Code::Unknown, "no space left on device".to_owned());
    node.fake.inject(Fault::on(Rpc::CreateContainer, broken));
    let failure = node.start(&pod, node.to_start(&sandbox)).await.unwrap_err();
    assert_eq!(
        (failure.reason, failure.message.as_str(), failure.cancelled),
        ("CreateContainerError", "no space left on device", false)
    );
    assert_eq!(node.events(), ["W spec.containers{c} Failed: Error: no space left on device"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_start_is_told_without_the_containers_id() {
    let pod = pod(serde_json::json!({}));
    // Equal seeds give equal ids, so the message can name the container before it is there.
    let learned = Node::new();
    let id = learned.run(&pod).await.1.id;
    let node = Node::new();
    let sandbox = node.with_sandbox(&pod).await;
    let message = format!("failed to create task {id}: exec format error");
    let broken = FaultAction::Error(Code::Unknown, message.clone());
    node.fake.inject(Fault::on(Rpc::StartContainer, broken));
    let failure = node.start(&pod, node.to_start(&sandbox)).await.unwrap_err();
    assert_eq!((failure.reason, failure.message), ("RunContainerError", message));
    assert_eq!(
        node.events(),
        [
            "N spec.containers{c} Created: Container created",
            "W spec.containers{c} Failed: Error: failed to create task c: exec format error",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_spec_asks_in_vain_is_a_configuration_error() {
    for (container, message) in [
        (
            serde_json::json!({"securityContext": {"runAsNonRoot": true}}),
            "container has runAsNonRoot and image will run as root (pod: \"web_ns(u1)\", \
             container: c)",
        ),
        (
            serde_json::json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}),
            "localhostProfile must be set if seccompProfile type is Localhost.",
        ),
    ] {
        let node = Node::new();
        let sandbox = node.with_sandbox(&pod(serde_json::json!({}))).await;
        let failure = node.start(&pod(container), node.to_start(&sandbox)).await.unwrap_err();
        assert_eq!(
            (failure.reason, failure.message.as_str()),
            ("CreateContainerConfigError", message)
        );
        assert_eq!(node.events(), [format!("W spec.containers{{c}} Failed: Error: {message}")]);
        assert_eq!(node.fake.calls(Rpc::CreateContainer), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_users_of_its_own_has_no_sandbox_without_their_ids() {
    let node = Node::new();
    let pod = pod_with(serde_json::json!({}), serde_json::json!({"hostUsers": false}));
    let cancel = CancellationToken::new();
    let created = node.runtime.create_sandbox(&pod, SandboxToCreate::default(), &cancel);
    assert_eq!(
        created.await.unwrap_err().message,
        "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    );
    assert_eq!(node.fake.calls(Rpc::RunPodSandbox), 0);
}

#[tokio::test(start_paused = true)]
async fn names_that_lead_elsewhere_make_no_files() {
    let node = Node::new();
    let good = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&good).await;
    for name in ["../../escaped", "..", "a/b", ""] {
        let bad = pod(serde_json::json!({"name": name}));
        let to_start = ContainerToStart { name: name.to_owned(), ..node.to_start(&sandbox) };
        let failure = node.start(&bad, to_start).await.unwrap_err();
        assert_eq!(
            failure.message,
            format!("invalid container name: {name:?} cannot be used as a path element")
        );
        let mut bad = good.clone();
        bad.metadata.uid = Some(name.to_owned());
        let cancel = CancellationToken::new();
        let created = node.runtime.create_sandbox(&bad, SandboxToCreate::default(), &cancel).await;
        assert!(created.unwrap_err().message.starts_with("invalid name of a pod"));
        node.runtime.remove_pod(&pod_ref(&bad)).await.unwrap();
    }
    assert!(!node.root.path().join("escaped").exists());
    assert!(node.root.path().join("pod-logs/ns_web_u1").exists());
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_container_needs_its_target() {
    let node = Node::new();
    let spec = serde_json::json!({"ephemeralContainers": [
        {"name": "debug", "image": IMAGE, "targetContainerName": "c"}]});
    let pod = pod_with(serde_json::json!({}), spec);
    let (sandbox, container) = node.run(&pod).await;
    node.events();
    let to_start = ContainerToStart { name: "debug".to_owned(), ..node.to_start(&sandbox) };
    let failure = node.start(&pod, to_start.clone()).await.unwrap_err();
    assert_eq!(failure.reason, "CreateContainerConfigError");
    assert_eq!(
        node.events(),
        ["W spec.ephemeralContainers{debug} Failed: Error: unable to find target container c"]
    );
    let to_start = ContainerToStart { target: Some(container.id.clone()), ..to_start };
    node.start(&pod, to_start).await.unwrap();
    let inventory = node.fake.inventory();
    let security = inventory.containers[1].config.linux.clone().unwrap().security_context.unwrap();
    assert_eq!(security.namespace_options.unwrap().target_id, container.id.as_str());
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_hook_kills_the_container_in_its_grace() {
    let node = Node::new();
    let script = Script::run_forever()
        .exec(
            &["setup", "now"],
            ExecAnswer {
                stdout: "out".to_owned(),
                stderr: "no such table".to_owned(),
                exit_code: 3,
                after: seconds(5),
            },
        )
        .exec(&["drain"], ExecAnswer { after: seconds(9), ..ExecAnswer::default() });
    node.fake.add_script(ScriptMatch::Container("c".to_owned()), script);
    let pod = pod(serde_json::json!({"lifecycle": {
        "postStart": {"exec": {"command": ["setup", "now"]}},
        "preStop": {"exec": {"command": ["drain"]}}}}));
    let sandbox = node.with_sandbox(&pod).await;
    let begun = Instant::now();
    let failure = node.start(&pod, node.to_start(&sandbox)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_secs(), 14);
    assert_eq!(failure.reason, "PostStartHookError");
    assert_eq!(
        failure.message,
        "Exec lifecycle hook ([setup now]) for Container \"c\" in Pod \"web_ns(u1)\" failed - \
         error: command 'setup now' exited with 3: no such table, message: \"outno such table\""
    );
    assert_eq!(
        node.events(),
        [
            "N spec.containers{c} Created: Container created",
            "N spec.containers{c} Started: Container started",
            "W spec.containers{c} FailedPostStartHook: PostStartHook failed",
            "N spec.containers{c} Killing: FailedPostStartHook",
        ]
    );
    assert_eq!(node.fake.inventory().running("u1").count(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_pod_interrupts_a_post_start_hook_and_the_kill_after_it() {
    for (post_start, when) in [("sleep", 3), ("fail", 3)] {
        let node = Node::new();
        let script = Script::run_forever()
            .exec(&["sleep"], ExecAnswer { after: seconds(1000), ..ExecAnswer::default() })
            .exec(&["fail"], ExecAnswer { exit_code: 1, ..ExecAnswer::default() });
        node.fake.add_script(ScriptMatch::Container("c".to_owned()), script);
        let pod = pod(serde_json::json!({"lifecycle": {
            "postStart": {"exec": {"command": [post_start]}},
            "preStop": {"exec": {"command": ["sleep"]}}}}));
        let sandbox = node.with_sandbox(&pod).await;
        let cancel = CancellationToken::new();
        let begun = Instant::now();
        let start = node.runtime.start_container(&pod, node.to_start(&sandbox), &cancel);
        let (result, ()) = tokio::join!(start, async {
            sleep(seconds(when)).await;
            cancel.cancel();
        });
        assert!(result.unwrap_err().cancelled, "{post_start}");
        assert_eq!(begun.elapsed().as_secs(), when, "{post_start}");
        // Whoever ends the pod stops it.
        assert_eq!(node.fake.inventory().running("u1").count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_hook_that_is_cut_short_is_counted() {
    let node = Node::new();
    let pod = pod(serde_json::json!({"lifecycle": {"postStart": {"sleep": {"seconds": 60}}}}));
    let sandbox = node.with_sandbox(&pod).await;
    let cancel = CancellationToken::new();
    let start = node.runtime.start_container(&pod, node.to_start(&sandbox), &cancel);
    let (result, ()) = tokio::join!(start, async {
        sleep(seconds(3)).await;
        cancel.cancel();
    });
    assert!(result.unwrap_err().cancelled);
    let text = Registry::new().with(node.runtime.hook_metrics()).expose(Format::Prometheus);
    assert!(text.contains("\nkubelet_sleep_action_terminated_early_total 1\n"), "{text}");
    assert!(text.contains("\nkubelet_lifecycle_handler_http_fallbacks_total 0\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_container_created_too_late_is_never_started() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    node.fake.inject(Fault::on(Rpc::CreateContainer, FaultAction::Delay(seconds(10))));
    let cancel = CancellationToken::new();
    let start = node.runtime.start_container(&pod, node.to_start(&sandbox), &cancel);
    let (result, ()) = tokio::join!(start, async {
        sleep(seconds(1)).await;
        cancel.cancel();
    });
    assert!(result.unwrap_err().cancelled);
    assert!(node.fake.inventory().containers.is_empty());
    assert_eq!(node.fake.calls(Rpc::StartContainer), 0);
    assert_eq!(node.events(), ["N spec.containers{c} Created: Container created"]);

    let start = node.runtime.start_container(&pod, node.to_start(&sandbox), &cancel);
    assert!(start.await.unwrap_err().cancelled);
    assert_eq!(node.fake.calls(Rpc::CreateContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_timed_out_creation_left_does_not_block_the_name_for_ever() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    let slow = FaultAction::Delay(seconds(180));
    node.fake.inject(Fault::on(Rpc::CreateContainer, slow).times(1));
    let start = || node.start(&pod, node.to_start(&sandbox));
    let failure = start().await.unwrap_err();
    assert_eq!(failure.reason, "CreateContainerError");
    assert!(failure.message.starts_with("context deadline exceeded"), "{}", failure.message);
    // The runtime is still at it.
    let failure = start().await.unwrap_err();
    assert!(failure.message.contains("is reserved for"), "{}", failure.message);
    sleep(seconds(61)).await;
    assert_eq!(node.fake.inventory().containers.len(), 1);
    // Now it is done: the next try meets it and clears the way for the one after.
    start().await.unwrap_err();
    start().await.unwrap();
    let inventory = node.fake.inventory();
    assert_eq!((inventory.containers.len(), inventory.running("u1").count()), (1, 1));
    assert_eq!(node.fake.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_hung_creation_delays_only_itself() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    let mut other = pod.clone();
    other.metadata.name = Some("other".to_owned());
    other.metadata.uid = Some("u2".to_owned());
    node.fake.inject(Fault::on(Rpc::CreateContainer, FaultAction::Hang).about("u1"));
    let begun = Instant::now();
    let hung = node.start(&pod, node.to_start(&sandbox));
    let fast = async {
        node.run(&other).await;
        begun.elapsed()
    };
    let (hung, elapsed) = tokio::join!(hung, fast);
    assert_eq!(hung.unwrap_err().reason, "CreateContainerError");
    assert_eq!(elapsed.as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_container_that_runs_is_no_failure_even_if_its_status_cannot_be_read() {
    let node = Node::new();
    let pod = pod(serde_json::json!({}));
    let sandbox = node.with_sandbox(&pod).await;
    let broken = FaultAction::Error(Code::Unavailable, "busy".to_owned());
    node.fake.inject(Fault::on(Rpc::ContainerStatus, broken).times(1));
    let failure = node.start(&pod, node.to_start(&sandbox)).await.unwrap_err();
    assert_eq!(failure.reason, "");
    assert_eq!(
        node.events(),
        [
            "N spec.containers{c} Created: Container created",
            "N spec.containers{c} Started: Container started",
        ]
    );
    let snapshot = node.runtime.inspect(&pod_ref(&pod), None).await.unwrap();
    assert!(matches!(snapshot.containers[0].state, ContainerState::Running { .. }));
}
