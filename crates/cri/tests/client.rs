//! The client against a working runtime: deadlines, connections, errors, and what it makes of a
//! runtime that lacks something.

#![allow(clippy::unwrap_used)] // Functions that tests share are not seen as tests.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use rubelet_cri::observe::{RelistEntry, pod_snapshot, relist};
use rubelet_cri::v1::runtime_service_server::RuntimeServiceServer;
use rubelet_cri::{CriClient, CriError, CriErrorKind, CriOptions, Rpc, v1};
use rubelet_fake_cri::{FakeOptions, FakeRuntime, Fault, FaultAction, Pull, tokio_clock};
use rubelet_metrics::{Format, Registry};
use rubelet_types::{Clock, ContainerId, PodRef, SandboxId, labels};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

const IMAGE: &str = "registry.k8s.io/e2e-test-images/busybox:1.36.1-1";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn runtime() -> FakeRuntime {
    let runtime = FakeRuntime::new(FakeOptions::default());
    runtime.add_image(IMAGE, 1 << 20);
    runtime
}

fn runtime_without_extras() -> FakeRuntime {
    FakeRuntime::new(FakeOptions {
        container_events: false,
        list_streaming: false,
        cgroup_driver: None,
        ..FakeOptions::default()
    })
}

fn sandbox_config(uid: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: "web".to_owned(),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: [
            (labels::POD_UID, uid),
            (labels::POD_NAME, "web"),
            (labels::POD_NAMESPACE, "default"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
        ..Default::default()
    }
}

fn container_config(uid: &str, name: &str, attempt: u32) -> v1::ContainerConfig {
    let mut container_labels = sandbox_config(uid).labels;
    container_labels.insert(labels::CONTAINER_NAME.to_owned(), name.to_owned());
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt }),
        image: Some(v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() }),
        labels: container_labels,
        ..Default::default()
    }
}

async fn start(
    client: &CriClient,
    sandbox: &SandboxId,
    uid: &str,
    name: &str,
    attempt: u32,
) -> ContainerId {
    let config = container_config(uid, name, attempt);
    let id = client.create_container(sandbox, config, sandbox_config(uid)).await.unwrap();
    client.start_container(&id).await.unwrap();
    id
}

/// How long `call` takes to report that its deadline passed.
async fn time_to_deadline<T: std::fmt::Debug>(
    call: impl Future<Output = Result<T, CriError>>,
) -> Duration {
    let started = Instant::now();
    let error = call.await.unwrap_err();
    assert_eq!(error.kind, CriErrorKind::DeadlineExceeded, "{error}");
    assert!(error.to_string().starts_with("rpc error: code = DeadlineExceeded desc = "), "{error}");
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_hanging_runtime_holds_each_call_for_its_own_deadline() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    client.version().await.unwrap();
    runtime.inject(Fault::on_every_call(FaultAction::Hang));
    let (sandbox, container) = (SandboxId::new("s"), ContainerId::new("c"));
    let config = || sandbox_config("uid");
    let short = seconds(10);
    let image = || v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() };

    let one = seconds(120);
    for (name, took, expected) in [
        ("status", time_to_deadline(client.status(false)).await, one),
        ("run", time_to_deadline(client.run_pod_sandbox(config(), "")).await, 2 * one),
        ("stop sandbox", time_to_deadline(client.stop_pod_sandbox(&sandbox)).await, one),
        ("remove sandbox", time_to_deadline(client.remove_pod_sandbox(&sandbox)).await, one),
        ("list", time_to_deadline(client.list_containers(None)).await, one),
        ("start", time_to_deadline(client.start_container(&container)).await, one),
        ("stop", time_to_deadline(client.stop_container(&container, 30)).await, one + seconds(30)),
        ("stop now", time_to_deadline(client.stop_container(&container, -1)).await, one),
        ("remove", time_to_deadline(client.remove_container(&container)).await, one),
        (
            "exec",
            time_to_deadline(client.exec_sync(&container, vec![], Some(short))).await,
            one + short,
        ),
        ("image", time_to_deadline(client.image_status(image())).await, one),
        ("stats", time_to_deadline(client.list_pod_sandbox_stats(None)).await, one),
    ] {
        let late =
            took.checked_sub(expected).unwrap_or_else(|| panic!("{name} took only {took:?}"));
        assert!(late < seconds(1), "{name} took {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_and_an_exec_without_a_limit_wait_for_ever() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    runtime.inject(Fault::on_every_call(FaultAction::Hang));
    let image = v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() };
    assert!(timeout(DAY, client.pull_image(image, None, None)).await.is_err());
    let container = ContainerId::new("c");
    let exec = client.exec_sync(&container, vec!["true".to_owned()], None);
    assert!(timeout(DAY, exec).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_grace_period_beyond_reason_is_no_trouble() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    client.stop_container(&ContainerId::new("gone"), i64::MAX).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_told_the_deadline() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = seen.clone();
    let service =
        RuntimeServiceServer::with_interceptor(runtime(), move |request: tonic::Request<()>| {
            let deadline = request.metadata().get("grpc-timeout").cloned();
            record.lock().unwrap().push(deadline.map(|value| value.to_str().unwrap().to_owned()));
            Ok(request)
        });
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cri.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let connection = listener.accept().await.map(|(connection, _)| connection);
        Some((connection, listener))
    });
    let server = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(Box::pin(incoming));
    let server = tokio::spawn(server);
    let client =
        CriClient::connect_lazy(socket.to_str().unwrap(), None, CriOptions::default()).unwrap();
    client.status(false).await.unwrap();
    client.exec_sync(&ContainerId::new("c"), vec![], None).await.unwrap_err();
    client.stop_container(&ContainerId::new("c"), 30).await.unwrap();
    server.abort();
    let seen = seen.lock().unwrap().clone();
    assert_eq!(
        seen,
        [Some("120000m".to_owned()), None, Some("150000m".to_owned())],
        "deadlines of Status, ExecSync without a limit, StopContainer"
    );
}

#[tokio::test(start_paused = true)]
async fn one_hanging_call_delays_no_other() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    runtime.inject(Fault::on(Rpc::StopContainer, FaultAction::Hang));
    let started = Instant::now();
    let (container, sandbox) = (ContainerId::new("wedged"), SandboxId::new("s"));
    let hanging = client.stop_container(&container, 5);
    let others = async {
        for _ in 0..50 {
            client.list_containers(None).await.unwrap();
            client.stop_pod_sandbox(&sandbox).await.unwrap();
        }
        started.elapsed()
    };
    let (hung, others) = tokio::join!(hanging, others);
    assert_eq!(hung.unwrap_err().kind, CriErrorKind::DeadlineExceeded);
    assert!(others < seconds(1), "the others took {others:?}");
}

#[tokio::test(start_paused = true)]
async fn the_connection_comes_back_after_the_runtime_does() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cri.sock");
    let endpoint = format!("unix://{}", socket.display());
    let runtime = runtime();
    let client = CriClient::connect_lazy(&endpoint, None, CriOptions::default()).unwrap();

    let error = client.version().await.unwrap_err();
    assert_eq!(error.kind, CriErrorKind::Unavailable, "{error}");
    assert!(error.message.contains(&format!("dial unix {}", socket.display())), "{error}");

    runtime.serve(&socket).unwrap();
    sleep(seconds(3)).await;
    client.version().await.unwrap();

    runtime.crash();
    for _ in 0..20 {
        let error = client.version().await.unwrap_err();
        assert_eq!(error.kind, CriErrorKind::Unavailable, "{error}");
        sleep(Duration::from_millis(500)).await;
    }
    runtime.restart().unwrap();
    let restarted = Instant::now();
    while client.version().await.is_err() {
        assert!(restarted.elapsed() < seconds(4), "not connected again in time");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_in_flight_fails_when_the_runtime_dies() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("cri.sock");
    let runtime = runtime();
    runtime.serve(&socket).unwrap();
    let client =
        CriClient::connect_lazy(socket.to_str().unwrap(), None, CriOptions::default()).unwrap();
    runtime.inject(Fault::on(Rpc::Status, FaultAction::Crash { back_after: None }));
    let started = Instant::now();
    let error = client.status(false).await.unwrap_err();
    assert_eq!(error.kind, CriErrorKind::Unavailable, "{error}");
    assert!(error.message.starts_with("error reading from server: "), "{error}");
    assert!(started.elapsed() < seconds(1));
}

#[tokio::test(start_paused = true)]
async fn a_list_beyond_the_message_limit_fails_unless_it_is_streamed() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    let streaming = runtime.client(CriOptions { list_streaming: true, ..CriOptions::default() });
    for number in 0..17 {
        let mut config = sandbox_config(&format!("uid-{number}"));
        config.annotations.insert("large".to_owned(), "x".repeat(1 << 20));
        client.run_pod_sandbox(config, "").await.unwrap();
    }
    let error = client.list_pod_sandbox(None).await.unwrap_err();
    assert_eq!(error.kind, CriErrorKind::ResourceExhausted, "{error}");
    // The parts of the fake runtime hold at most 16 items, and so stay just below the limit here.
    client.remove_pod_sandbox(&first_sandbox(&runtime)).await.unwrap();
    let error = client.list_pod_sandbox(None).await.unwrap_err();
    assert_eq!(error.kind, CriErrorKind::ResourceExhausted, "{error}");
    client.remove_pod_sandbox(&first_sandbox(&runtime)).await.unwrap();
    assert_eq!(client.list_pod_sandbox(None).await.unwrap().len(), 15);
    assert_eq!(streaming.list_pod_sandbox(None).await.unwrap().len(), 15);
}

fn first_sandbox(runtime: &FakeRuntime) -> SandboxId {
    SandboxId::new(&runtime.inventory().sandboxes[0].id)
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_streams_no_lists_is_asked_for_whole_ones_from_then_on() {
    let runtime = runtime_without_extras();
    let client = runtime.client(CriOptions { list_streaming: true, ..CriOptions::default() });
    client.list_containers(None).await.unwrap();
    client.list_containers(None).await.unwrap();
    client.list_images(None).await.unwrap();
    assert_eq!(runtime.calls(Rpc::StreamContainers), 1);
    assert_eq!(runtime.calls(Rpc::StreamImages), 0);
    assert_eq!(runtime.calls(Rpc::ListContainers), 2);
}

#[tokio::test(start_paused = true)]
async fn what_an_old_runtime_lacks_is_told_apart_from_failure() {
    let runtime = runtime_without_extras();
    let client = runtime.client(CriOptions::default());
    assert_eq!(client.runtime_config().await.unwrap(), None);
    let error = client.container_events().next().await.unwrap().unwrap_err();
    assert!(error.is_unimplemented(), "{error}");

    let unimplemented = FaultAction::Error(Code::Unimplemented, "unknown method".to_owned());
    runtime.inject(Fault::on(Rpc::UpdatePodSandboxResources, unimplemented));
    client.update_pod_sandbox_resources(&SandboxId::new("s"), None, None).await.unwrap();
    runtime.clear_faults();
    client.update_pod_sandbox_resources(&SandboxId::new("s"), None, None).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_stopped_and_removed() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    runtime.inject(Fault::on_every_call(FaultAction::Error(Code::NotFound, "gone".to_owned())));
    let (sandbox, container) = (SandboxId::new("s"), ContainerId::new("c"));
    client.stop_pod_sandbox(&sandbox).await.unwrap();
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    client.stop_container(&container, 1).await.unwrap();
    client.remove_container(&container).await.unwrap();
    client.remove_image(v1::ImageSpec::default()).await.unwrap();
    assert!(client.start_container(&container).await.unwrap_err().is_not_found());
}

#[tokio::test(start_paused = true)]
async fn only_cri_v1_will_do() {
    for (api_version, accepted) in [("v1", true), ("v1alpha2", false), ("v2", false), ("", false)] {
        let runtime = FakeRuntime::new(FakeOptions {
            api_version: api_version.to_owned(),
            version: "9.8".to_owned(),
            ..FakeOptions::default()
        });
        let checked = runtime.client(CriOptions::default()).check_version().await;
        assert_eq!(checked.is_ok(), accepted, "{api_version:?}");
        match checked {
            Ok(version) => {
                assert_eq!((version.name.as_str(), version.version.as_str()), ("fake", "9.8"))
            }
            Err(error) => assert!(error.message.contains("9.8"), "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_pull_cancels_it() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    runtime.offer_image("slow:1", Pull::brings("slow:1", 7).after(seconds(60)));
    let pull = || {
        let image = v1::ImageSpec { image: "slow:1".to_owned(), ..Default::default() };
        client.pull_image(image, None, None)
    };
    assert!(timeout(seconds(1), pull()).await.is_err());
    sleep(seconds(120)).await;
    assert_eq!(runtime.images().len(), 1, "the pull went on");
    let id = pull().await.unwrap();
    assert!(runtime.images().iter().any(|image| image.id == id));
}

#[tokio::test(start_paused = true)]
async fn images_come_from_their_own_endpoint_if_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let [runtime_socket, image_socket] =
        ["runtime.sock", "image.sock"].map(|name| directory.path().join(name));
    let (runtime, images) = (runtime_without_extras(), runtime());
    runtime.serve(&runtime_socket).unwrap();
    images.serve(&image_socket).unwrap();
    let client = CriClient::connect_lazy(
        runtime_socket.to_str().unwrap(),
        image_socket.to_str(),
        CriOptions::default(),
    )
    .unwrap();
    assert_eq!(client.list_images(None).await.unwrap().len(), 1);
    client.version().await.unwrap();
    assert_eq!((runtime.calls(Rpc::Version), images.calls(Rpc::Version)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn every_call_is_counted_by_its_operation_also_through_clones() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    client.version().await.unwrap();
    client.clone().version().await.unwrap();
    client.start_container(&ContainerId::new("c")).await.unwrap_err();
    client.run_pod_sandbox(sandbox_config("a"), "").await.unwrap();
    client.run_pod_sandbox(sandbox_config("a"), "no-such-handler").await.unwrap_err();
    let text = Registry::new().with(client.metrics().clone()).expose(Format::Prometheus);
    for line in [
        "kubelet_runtime_operations_total{operation_type=\"version\"} 2",
        "kubelet_runtime_operations_total{operation_type=\"start_container\"} 1",
        "kubelet_runtime_operations_errors_total{operation_type=\"start_container\"} 1",
        "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"version\",le=\"298.0232238769531\"} 2",
        "kubelet_runtime_operations_duration_seconds_count{operation_type=\"version\"} 2",
        "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"\"} 1",
        "kubelet_run_podsandbox_duration_seconds_count{runtime_handler=\"no-such-handler\"} 1",
        "kubelet_run_podsandbox_errors_total{runtime_handler=\"no-such-handler\"} 1",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    let failed = "kubelet_runtime_operations_errors_total{operation_type=\"version\"}";
    assert!(!text.contains(failed), "{text}");
}

fn clock() -> Clock {
    tokio_clock("2026-01-01T00:00:00Z".parse().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_all_of_one_pod_newest_first() {
    let clock = clock();
    let runtime = FakeRuntime::new(FakeOptions { clock: clock.clone(), ..FakeOptions::default() });
    runtime.add_image(IMAGE, 1 << 20);
    let client = runtime.client(CriOptions::default());
    let sandbox = client.run_pod_sandbox(sandbox_config("a"), "").await.unwrap();
    client.run_pod_sandbox(sandbox_config("b"), "").await.unwrap();
    let first = start(&client, &sandbox, "a", "main", 0).await;
    client.stop_container(&first, 1).await.unwrap();
    sleep(seconds(10)).await;
    let second = start(&client, &sandbox, "a", "main", 1).await;

    let pod = PodRef::new("a", "default", "web");
    let snapshot = pod_snapshot(&client, &pod, None, &clock).await.unwrap();
    assert_eq!(snapshot.pod, pod);
    assert!(snapshot.taken_at <= clock.now());
    assert_eq!(snapshot.sandboxes.len(), 1);
    assert_eq!(snapshot.ips(), [runtime.inventory().sandboxes[0].ip.unwrap().to_string()]);
    let ids: Vec<_> = snapshot.containers.iter().map(|container| &container.id).collect();
    assert_eq!(ids, [&second, &first]);
    assert_eq!(snapshot.containers[0].restart_count, 1);
    assert_eq!(snapshot.containers[0].sandbox_id, Some(sandbox));
    assert_eq!(snapshot.containers[1].exit_code(), Some(143));

    let nobody = PodRef::new("nobody", "default", "web");
    assert!(pod_snapshot(&client, &nobody, None, &clock).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_vanishes_while_a_snapshot_is_taken_is_left_out() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    let sandbox = client.run_pod_sandbox(sandbox_config("a"), "").await.unwrap();
    let stays = start(&client, &sandbox, "a", "stays", 0).await;
    let goes = start(&client, &sandbox, "a", "goes", 0).await;
    runtime.inject(Fault::on(Rpc::ContainerStatus, FaultAction::Delay(seconds(2))).about("goes"));
    let (clock, pod) = (clock(), PodRef::new("a", "default", "web"));
    let vanish = async {
        sleep(seconds(1)).await;
        assert!(runtime.lose_container(goes.as_str()));
    };
    let (snapshot, ()) = tokio::join!(pod_snapshot(&client, &pod, None, &clock), vanish);
    let ids: Vec<_> =
        snapshot.unwrap().containers.into_iter().map(|container| container.id).collect();
    assert_eq!(ids, [stays]);

    let broken = FaultAction::Error(Code::Unknown, "broken".to_owned());
    runtime.inject(Fault::on(Rpc::ContainerStatus, broken));
    pod_snapshot(&client, &pod, None, &clock).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_pod_is_read_beside_the_lists_and_believed_no_more_than_they() {
    let runtime = runtime();
    let client = runtime.client(CriOptions::default());
    let sandbox = client.run_pod_sandbox(sandbox_config("a"), "").await.unwrap();
    let stays = start(&client, &sandbox, "a", "stays", 0).await;
    let goes = start(&client, &sandbox, "a", "goes", 0).await;
    let (clock, pod) = (clock(), PodRef::new("a", "default", "web"));
    let known = known_now(&client, &pod).await;
    assert!(runtime.lose_container(goes.as_str()));
    let comes = start(&client, &sandbox, "a", "comes", 0).await;

    // Each call takes a second.
    runtime.inject(Fault::on_every_call(FaultAction::Delay(seconds(1))));
    let took = async |known: Option<&RelistEntry>| {
        let begun = Instant::now();
        let snapshot = pod_snapshot(&client, &pod, known, &clock).await.unwrap();
        let ids: BTreeSet<_> = snapshot.containers.into_iter().map(|it| it.id).collect();
        assert_eq!(ids, BTreeSet::from([stays.clone(), comes.clone()]));
        assert_eq!(snapshot.sandboxes.len(), 1);
        begun.elapsed().as_secs()
    };
    assert_eq!(took(None).await, 2);
    assert_eq!(took(Some(&known)).await, 2, "one came that was not known");
    let known = known_now(&client, &pod).await;
    assert_eq!(took(Some(&known)).await, 1);
}

async fn known_now(client: &CriClient, pod: &PodRef) -> RelistEntry {
    relist(client).await.unwrap().remove(&pod.uid).unwrap()
}
