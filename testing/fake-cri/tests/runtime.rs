//! What makes the fake runtime useful: that it goes wrong the way real ones do.

#![allow(clippy::unwrap_used)] // Functions that tests share are not seen as tests.

use std::time::Duration;

use rubelet_cri::{CriClient, CriErrorKind, CriOptions, Rpc, v1};
use rubelet_fake_cri::{
    FakeOptions, FakeRuntime, Fault, FaultAction, OnStopSignal, Pull, Script, ScriptMatch, Step,
    Violation,
};
use rubelet_types::{ContainerId, SandboxId, labels};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;
use v1::ContainerState::{ContainerCreated, ContainerExited, ContainerRunning};

const IMAGE: &str = "busybox:1";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn sandbox_config(uid: &str, attempt: u32) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt,
        }),
        labels: [(labels::POD_UID.to_owned(), uid.to_owned())].into(),
        ..Default::default()
    }
}

fn container_config(uid: &str, name: &str, attempt: u32) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt }),
        image: Some(v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() }),
        labels: [(labels::POD_UID, uid), (labels::CONTAINER_NAME, name)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Default::default()
    }
}

/// A runtime with an image, its client, and a sandbox of pod `a`.
async fn with_sandbox(options: FakeOptions) -> (FakeRuntime, CriClient, SandboxId) {
    let runtime = FakeRuntime::new(options);
    runtime.add_image(IMAGE, 1 << 20);
    let client = runtime.client(CriOptions::default());
    let sandbox = client.run_pod_sandbox(sandbox_config("a", 0), "").await.unwrap();
    (runtime, client, sandbox)
}

async fn create(client: &CriClient, sandbox: &SandboxId, name: &str, attempt: u32) -> ContainerId {
    let config = container_config("a", name, attempt);
    client.create_container(sandbox, config, sandbox_config("a", 0)).await.unwrap()
}

async fn start(client: &CriClient, sandbox: &SandboxId, name: &str) -> ContainerId {
    let id = create(client, sandbox, name, 0).await;
    client.start_container(&id).await.unwrap();
    id
}

#[tokio::test(start_paused = true)]
async fn a_create_that_timed_out_keeps_its_name_and_comes_about_later() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    let slow = FaultAction::Delay(seconds(180));
    runtime.inject(Fault::on(Rpc::CreateContainer, slow).about("main").times(1));
    let create = || {
        let config = container_config("a", "main", 0);
        client.create_container(&sandbox, config, sandbox_config("a", 0))
    };
    assert_eq!(create().await.unwrap_err().kind, CriErrorKind::DeadlineExceeded);
    let error = create().await.unwrap_err();
    assert!(error.message.contains("failed to reserve container name"), "{error}");
    assert!(runtime.inventory().containers.is_empty());
    sleep(seconds(61)).await;
    let orphan = &runtime.inventory().containers[0];
    assert_eq!((orphan.name.as_str(), orphan.state), ("main", ContainerCreated));
    let error = create().await.unwrap_err();
    assert!(error.message.contains(&format!("is reserved for {:?}", orphan.id)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_crash_loses_what_was_not_done_and_keeps_what_was() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    let crash = || FaultAction::Crash { back_after: Some(seconds(5)) };
    for (fault, left) in [
        (Fault::on(Rpc::CreateContainer, crash()), 0),
        (Fault::on(Rpc::CreateContainer, crash()).after_effect(), 1),
    ] {
        runtime.inject(fault.times(1));
        let config = container_config("a", "main", 0);
        let lost = client.create_container(&sandbox, config, sandbox_config("a", 0)).await;
        let error = lost.unwrap_err();
        assert_eq!(error.kind, CriErrorKind::Unavailable, "{error}");
        assert_eq!(client.version().await.unwrap_err().kind, CriErrorKind::Unavailable);
        sleep(seconds(6)).await;
        assert_eq!(client.list_containers(None).await.unwrap().len(), left);
    }
}

#[tokio::test(start_paused = true)]
async fn containers_outlive_a_crash_and_not_a_reboot() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    let id = start(&client, &sandbox, "main").await;
    runtime.crash();
    sleep(seconds(1)).await;
    runtime.restart().unwrap();
    let state = |runtime: &FakeRuntime| runtime.inventory().containers[0].state;
    assert_eq!(state(&runtime), ContainerRunning);

    runtime.reboot().unwrap();
    let inventory = runtime.inventory();
    assert_eq!(inventory.sandboxes[0].state, v1::PodSandboxState::SandboxNotready);
    assert_eq!(inventory.sandboxes[0].ip, None);
    assert_eq!(inventory.containers[0].exit_code, Some(255));
    sleep(seconds(1)).await;
    let status = client.container_status(&id, false).await.unwrap().status.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (255, "Unknown"));
}

#[tokio::test(start_paused = true)]
async fn two_running_instances_are_noticed_when_they_happen() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    let first = start(&client, &sandbox, "main").await;
    start(&client, &sandbox, "sidecar").await;
    assert_eq!(runtime.violations(), []);
    let second = create(&client, &sandbox, "main", 1).await;
    client.start_container(&second).await.unwrap();
    client.remove_container(&first).await.unwrap();
    client.remove_container(&second).await.unwrap();
    assert_eq!(
        runtime.violations(),
        [Violation::TwoRunningContainers {
            pod_uid: "a".to_owned(),
            name: "main".to_owned(),
            containers: [first.to_string(), second.to_string()],
        }]
    );
}

#[tokio::test(start_paused = true)]
async fn two_ready_sandboxes_of_a_pod_are_noticed() {
    let (runtime, client, first) = with_sandbox(FakeOptions::default()).await;
    let second = client.run_pod_sandbox(sandbox_config("a", 1), "").await.unwrap();
    assert_eq!(
        runtime.violations(),
        [Violation::TwoReadySandboxes {
            pod_uid: "a".to_owned(),
            sandboxes: [first.to_string(), second.to_string()],
        }]
    );
}

#[tokio::test(start_paused = true)]
async fn addresses_are_few_and_come_back_when_a_sandbox_stops() {
    let options = FakeOptions { pod_ips: 2, ..FakeOptions::default() };
    let (runtime, client, first) = with_sandbox(options).await;
    client.run_pod_sandbox(sandbox_config("b", 0), "").await.unwrap();
    let error = client.run_pod_sandbox(sandbox_config("c", 0), "").await.unwrap_err();
    assert!(error.message.contains("no IP addresses available"), "{error}");
    let ip = runtime.inventory().sandboxes[0].ip;
    client.stop_pod_sandbox(&first).await.unwrap();
    // The failure above has left no name behind.
    client.run_pod_sandbox(sandbox_config("c", 0), "").await.unwrap();
    assert_eq!(runtime.inventory().sandboxes.last().unwrap().ip, ip);
}

#[tokio::test(start_paused = true)]
async fn without_a_network_only_pods_of_the_host_run() {
    let (runtime, client, _) = with_sandbox(FakeOptions::default()).await;
    runtime.set_network_ready(false);
    let status = client.status(false).await.unwrap().status.unwrap();
    assert!(!status.conditions.iter().find(|c| c.r#type == "NetworkReady").unwrap().status);
    client.run_pod_sandbox(sandbox_config("b", 0), "").await.unwrap_err();
    let mut on_host = sandbox_config("b", 0);
    on_host.linux = Some(v1::LinuxPodSandboxConfig {
        security_context: Some(v1::LinuxSandboxSecurityContext {
            namespace_options: Some(v1::NamespaceOption {
                network: v1::NamespaceMode::Node.into(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    });
    client.run_pod_sandbox(on_host, "").await.unwrap();
    assert_eq!(runtime.inventory().sandboxes.last().unwrap().ip, None);
}

#[tokio::test(start_paused = true)]
async fn pulls_take_their_time_fail_and_ask_for_credentials() {
    let runtime = FakeRuntime::new(FakeOptions::default());
    let client = runtime.client(CriOptions::default());
    let spec = |image: &str| v1::ImageSpec { image: image.to_owned(), ..Default::default() };
    runtime.offer_image("slow:1", Pull::brings("slow:1", 7).after(seconds(30)));
    runtime.offer_image("broken:1", Pull::fails(Code::Unknown, "RegistryUnavailable: later"));
    runtime.offer_image("private:1", Pull::brings("private:1", 7).with_password("secret"));

    let started = Instant::now();
    let id = client.pull_image(spec("slow:1"), None, None).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 30);
    assert_eq!(client.image_status(spec("slow:1")).await.unwrap().unwrap().id, id);
    let error = client.pull_image(spec("broken:1"), None, None).await.unwrap_err();
    assert_eq!(error.to_string(), "RegistryUnavailable: later");
    let error = client.pull_image(spec("nobody:1"), None, None).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    for (password, pulled) in [("wrong", false), ("secret", true)] {
        let auth = v1::AuthConfig { password: password.to_owned(), ..Default::default() };
        let answer = client.pull_image(spec("private:1"), Some(auth), None).await;
        assert_eq!(answer.is_ok(), pulled, "{password}");
    }
    client.remove_image(spec("slow:1")).await.unwrap();
    assert_eq!(client.image_status(spec("slow:1")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn processes_do_what_their_scripts_say() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    let scripts = [
        ("job", Script::exit(seconds(3), 4)),
        ("hog", Script::of([Step::Sleep(seconds(1)), Step::OutOfMemory])),
        ("deaf", Script::run_forever().on_stop_signal(OnStopSignal::Ignore)),
        ("broken", Script::run_forever().fails_to_start("no such file or directory")),
    ];
    for (name, script) in scripts {
        runtime.add_script(ScriptMatch::Container(name.to_owned()), script);
    }
    let (job, hog, deaf) = (
        start(&client, &sandbox, "job").await,
        start(&client, &sandbox, "hog").await,
        start(&client, &sandbox, "deaf").await,
    );
    let broken = create(&client, &sandbox, "broken", 0).await;
    let error = client.start_container(&broken).await.unwrap_err();
    assert!(error.message.contains("no such file or directory"), "{error}");
    let done = runtime.wait_for(seconds(10), |inventory| {
        inventory.containers.iter().filter(|c| c.state == ContainerExited).count() == 3
    });
    done.await.unwrap();
    for (id, exit_code, reason) in
        [(job, 4, "Error"), (hog, 137, "OOMKilled"), (broken, 128, "StartError")]
    {
        let status = client.container_status(&id, false).await.unwrap().status.unwrap();
        assert_eq!((status.exit_code, status.reason.as_str()), (exit_code, reason));
    }
    let started = Instant::now();
    client.stop_container(&deaf, 7).await.unwrap();
    assert_eq!(started.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_process_stuck_in_the_kernel_holds_its_stop_up() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    let stuck = Script::run_forever().survives_kill();
    runtime.add_script(ScriptMatch::Container("stuck".to_owned()), stuck);
    let id = start(&client, &sandbox, "stuck").await;
    let error = client.stop_container(&id, 1).await.unwrap_err();
    assert_eq!(error.kind, CriErrorKind::DeadlineExceeded);
    assert_eq!(runtime.inventory().containers[0].state, ContainerRunning);
    assert!(runtime.kill_process(id.as_str(), 1));
    client.stop_container(&id, 1).await.unwrap();
    assert_eq!(runtime.inventory().containers[0].exit_code, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_log_needs_its_directory_and_a_message_its_mount() {
    let directory = tempfile::tempdir().unwrap();
    let (runtime, client, _) = with_sandbox(FakeOptions::default()).await;
    let message = directory.path().join("message");
    let script = Script::of([Step::Print("hello".to_owned())]).termination_message("goodbye");
    runtime.add_script(ScriptMatch::Image(IMAGE.to_owned()), script);
    let pod = v1::PodSandboxConfig {
        log_directory: directory.path().join("logs").display().to_string(),
        ..sandbox_config("b", 0)
    };
    let sandbox = client.run_pod_sandbox(pod.clone(), "").await.unwrap();
    let mut config = container_config("b", "main", 0);
    config.log_path = "main.log".to_owned();
    config.annotations.insert(
        labels::CONTAINER_TERMINATION_MESSAGE_PATH.to_owned(),
        "/dev/termination-log".to_owned(),
    );
    config.mounts = vec![v1::Mount {
        container_path: "/dev/termination-log".to_owned(),
        host_path: message.display().to_string(),
        ..Default::default()
    }];
    let id = client.create_container(&sandbox, config.clone(), pod.clone()).await.unwrap();
    let error = client.start_container(&id).await.unwrap_err();
    assert!(error.message.contains("failed to open log file"), "{error}");
    client.remove_container(&id).await.unwrap();

    std::fs::create_dir(&pod.log_directory).unwrap();
    let id = client.create_container(&sandbox, config, pod.clone()).await.unwrap();
    client.start_container(&id).await.unwrap();
    runtime.wait_for(seconds(1), |inventory| inventory.running("b").count() == 0).await.unwrap();
    let log = std::fs::read_to_string(format!("{}/main.log", pod.log_directory)).unwrap();
    let (time, rest) = log.split_once(' ').unwrap();
    time.parse::<jiff::Timestamp>().unwrap();
    assert_eq!(rest, "stdout F hello\n");
    assert_eq!(std::fs::read_to_string(message).unwrap(), "goodbye");
}

#[tokio::test(start_paused = true)]
async fn cpu_time_grows_only_while_a_process_runs() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    let script = Script::exit(seconds(10), 0).uses(500, 1 << 20);
    runtime.add_script(ScriptMatch::Image(IMAGE.to_owned()), script);
    let id = start(&client, &sandbox, "main").await;
    let used = async || {
        let stats = client.container_stats(&id).await.unwrap().unwrap();
        stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value.div_ceil(1_000_000_000)
    };
    sleep(seconds(4)).await;
    assert_eq!(used().await, 2);
    assert_eq!(client.list_pod_sandbox_stats(None).await.unwrap().len(), 1);
    assert_eq!(client.list_pod_sandbox_metrics().await.unwrap()[0].container_metrics.len(), 1);
    sleep(seconds(60)).await;
    assert_eq!(used().await, 5);
    assert!(client.list_container_stats(None).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_what_does_not_come_ends_with_what_there_is() {
    let (runtime, _, sandbox) = with_sandbox(FakeOptions::default()).await;
    let there = runtime.wait_for(seconds(5), |inventory| inventory.is_gone("a")).await.unwrap_err();
    assert_eq!(there.sandboxes[0].id, sandbox.as_str());
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_gives_up_on_a_removal_does_not_stop_it() {
    let (runtime, client, sandbox) = with_sandbox(FakeOptions::default()).await;
    start(&client, &sandbox, "main").await;
    let slow = FaultAction::Delay(seconds(30));
    runtime.inject(Fault::on(Rpc::RemovePodSandbox, slow).about("pod-a"));
    assert!(timeout(seconds(1), client.remove_pod_sandbox(&sandbox)).await.is_err());
    runtime.wait_for(seconds(60), |inventory| inventory.is_gone("a")).await.unwrap();
}
