//! The checks. Each stands for something the kubelet builds on.

use std::time::Duration;

use futures_util::StreamExt;
use rubelet_cri::observe::{container_snapshot, relist, sandbox_snapshot};
use rubelet_cri::{ContainerEventKind, CriClient, CriErrorKind, v1};
use rubelet_types::{ContainerId, ContainerState, PodUid, SandboxId, SandboxState};
use tokio::time::{Instant, timeout};

use super::pod::{Pod, ensure, with_pod};
use super::{CheckFn, CheckFuture, CheckResult, ContractOptions};

use v1::ContainerState::{ContainerExited, ContainerRunning};

/// A process that ends with 7 when asked to.
const GRACEFUL: [&str; 3] =
    ["sh", "-c", "echo ready; trap 'exit 7' TERM; while true; do sleep 0.1; done"];
/// A process that has no handler for SIGTERM and so, being process 1, never gets it.
const DEAF: [&str; 2] = ["sleep", "3600"];
const SIGKILLED: i32 = 137;

macro_rules! checks {
    ($($name:literal => $check:ident,)*) => {
        pub(super) const ALL: &[(&str, CheckFn)] = &[$(($name, boxed::$check),)*];

        mod boxed {
            use super::{CheckFuture, ContractOptions, CriClient};
            $(pub(super) fn $check<'a>(
                client: &'a CriClient,
                options: &'a ContractOptions,
            ) -> CheckFuture<'a> {
                Box::pin(super::$check(client, options))
            })*
        }
    };
}

checks! {
    "it tells its version, status and cgroup driver" => tells_about_itself,
    "an image that is here is found, another is not" => finds_images,
    "a sandbox is ready once it runs, and gone once removed" => sandbox_lives_and_goes,
    "the name of a sandbox is taken as long as it is there" => sandbox_name_is_taken,
    "an unknown runtime handler is refused" => unknown_handler_is_refused,
    "a container is created, started, and ends with its exit code" => container_lives_and_ends,
    "a container is started only once" => container_starts_once,
    "the name and attempt of a container are taken as long as it is there" => container_name_is_taken,
    "an image that is not here makes no container" => absent_image_is_refused,
    "a command that is not there is reported when started" => absent_command_fails_to_start,
    "both streams of a container get into its log" => streams_are_logged,
    "a renamed log is let go of when told to reopen it" => log_is_reopened,
    "a process that listens ends by the stop signal" => graceful_stop,
    "a process that does not listen is killed when its time is up" => deaf_stop,
    "a second stop with less time ends a first one with more" => shorter_stop,
    "a stop that is given up kills nothing" => abandoned_stop,
    "an exec answers with output and exit code" => exec_answers,
    "an exec that takes too long is ended" => exec_times_out,
    "nothing is run in a container that has ended" => exec_needs_a_process,
    "a running container can be removed" => removes_running_container,
    "stopping a sandbox ends its containers" => stopping_sandbox_ends_containers,
    "what is gone is not found, and stopping or removing it is done" => gone_is_gone,
    "lists are filtered by id, state, label and sandbox" => lists_are_filtered,
    "a relist shows a pod with all it has" => relist_shows_the_pod,
    "resources of a running container are changed" => resources_are_updated,
    "a running container has statistics" => running_container_has_stats,
    "events tell of a container's life" => events_tell,
}

async fn tells_about_itself(client: &CriClient, _: &ContractOptions) -> CheckResult {
    client.check_version().await?;
    let conditions = client.status(false).await?.status.unwrap_or_default().conditions;
    for condition in conditions {
        let required = ["RuntimeReady", "NetworkReady"].contains(&condition.r#type.as_str());
        ensure!(condition.status || !required, "{} is false", condition.r#type);
    }
    client.runtime_config().await?;
    Ok(true)
}

async fn finds_images(client: &CriClient, options: &ContractOptions) -> CheckResult {
    let spec = |name: &str| v1::ImageSpec { image: name.to_owned(), ..Default::default() };
    let absent = client.image_status(spec("localhost/rubelet/no-such-image:1")).await?;
    ensure!(absent.is_none(), "an image nobody has was found: {absent:?}");
    let Some(image) = client.image_status(spec(&options.image)).await? else {
        ensure!(false, "image {} is not there", options.image);
        return Ok(false);
    };
    let by_id = client.image_status(spec(&image.id)).await?;
    ensure!(by_id.is_some_and(|found| found.id == image.id), "not found by id {}", image.id);
    let all = client.list_images(None).await?;
    ensure!(all.iter().any(|listed| listed.id == image.id), "{} is not listed", image.id);
    ensure!(
        !client.image_fs_info().await?.image_filesystems.is_empty(),
        "there is no image file system"
    );
    Ok(true)
}

async fn sandbox_lives_and_goes(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let answer = client.pod_sandbox_status(&pod.sandbox, false).await?;
        let snapshot = sandbox_snapshot(&answer.status.unwrap_or_default());
        ensure!(snapshot.state == SandboxState::Ready, "it is not ready");
        ensure!(!snapshot.ips.is_empty(), "it has no address");
        ensure!(!snapshot.host_network, "it uses the host's network");
        client.stop_pod_sandbox(&pod.sandbox).await?;
        client.stop_pod_sandbox(&pod.sandbox).await?;
        let answer = client.pod_sandbox_status(&pod.sandbox, false).await?;
        let snapshot = sandbox_snapshot(&answer.status.unwrap_or_default());
        ensure!(snapshot.state == SandboxState::NotReady, "it is ready after a stop");
        client.remove_pod_sandbox(&pod.sandbox).await?;
        client.remove_pod_sandbox(&pod.sandbox).await?;
        let gone = client.pod_sandbox_status(&pod.sandbox, false).await;
        ensure!(gone.is_err_and(|error| error.is_not_found()), "it is there after its removal");
        Ok(true)
    })
    .await
}

async fn sandbox_name_is_taken(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let again = client.run_pod_sandbox(pod.config.clone(), "").await;
        ensure!(
            again.as_ref().is_err_and(|error| error.message.contains("is reserved for")),
            "a second one was answered with {again:?}"
        );
        let mut next = pod.config.clone();
        if let Some(metadata) = &mut next.metadata {
            metadata.attempt += 1;
        }
        client.stop_pod_sandbox(&pod.sandbox).await?;
        let next = client.run_pod_sandbox(next, "").await?;
        client.stop_pod_sandbox(&next).await?;
        client.remove_pod_sandbox(&next).await?;
        Ok(true)
    })
    .await
}

async fn unknown_handler_is_refused(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        client.stop_pod_sandbox(&pod.sandbox).await?;
        let mut config = pod.config.clone();
        if let Some(metadata) = &mut config.metadata {
            metadata.attempt += 1;
        }
        let refused = client.run_pod_sandbox(config, "no-such-handler").await;
        ensure!(refused.is_err(), "the sandbox was made");
        Ok(true)
    })
    .await
}

async fn container_lives_and_ends(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.create("main", &["sh", "-c", "sleep 0.2; exit 3"]).await?;
        let created = pod.status(&id).await?;
        ensure!(
            container_snapshot(&created, None).state == ContainerState::Created,
            "it is not created but {created:?}"
        );
        ensure!(created.created_at > 0 && created.started_at == 0, "its times are {created:?}");
        client.start_container(&id).await?;
        let running = pod.status(&id).await?;
        ensure!(running.started_at >= created.created_at, "it was started before it was created");
        let ended = pod.wait_for(&id, ContainerExited).await?;
        ensure!(ended.exit_code == 3, "its exit code is {}", ended.exit_code);
        ensure!(ended.reason == "Error", "its reason is {:?}", ended.reason);
        ensure!(ended.finished_at >= ended.started_at, "it ended before it was started");
        ensure!(!ended.image_ref.is_empty(), "it has no image reference");
        let id = pod.start("other", &["true"]).await?;
        let ended = pod.wait_for(&id, ContainerExited).await?;
        ensure!(
            (ended.exit_code, ended.reason.as_str()) == (0, "Completed"),
            "success is {} {:?}",
            ended.exit_code,
            ended.reason
        );
        Ok(true)
    })
    .await
}

async fn container_starts_once(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        ensure!(client.start_container(&id).await.is_err(), "a running one was started again");
        client.stop_container(&id, 0).await?;
        pod.wait_for(&id, ContainerExited).await?;
        ensure!(client.start_container(&id).await.is_err(), "an ended one was started again");
        Ok(true)
    })
    .await
}

async fn container_name_is_taken(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.create("main", &DEAF).await?;
        let config = pod.container_config("main", 0, &DEAF);
        let sandbox_config = pod.config.clone();
        let again = client.create_container(&pod.sandbox, config, sandbox_config).await;
        ensure!(
            again.as_ref().is_err_and(|error| error.message.contains("is reserved for")),
            "a second one was answered with {again:?}"
        );
        pod.create_config(pod.container_config("main", 1, &DEAF)).await?;
        client.remove_container(&id).await?;
        pod.create("main", &DEAF).await?;
        Ok(true)
    })
    .await
}

async fn absent_image_is_refused(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let mut config = pod.container_config("main", 0, &DEAF);
        config.image = Some(v1::ImageSpec {
            image: "localhost/rubelet/no-such-image:1".to_owned(),
            ..Default::default()
        });
        let sandbox_config = pod.config.clone();
        let refused = client.create_container(&pod.sandbox, config, sandbox_config).await;
        ensure!(refused.is_err(), "the container was made");
        // The failure leaves no name behind.
        pod.create("main", &DEAF).await?;
        Ok(true)
    })
    .await
}

async fn absent_command_fails_to_start(
    client: &CriClient,
    options: &ContractOptions,
) -> CheckResult {
    // A simulated process has no file that could be missing: what commands a fake container knows
    // is its script's affair. Elsewhere the start fails and is remembered in the status.
    if client.version().await?.runtime_name == "fake" {
        return Ok(false);
    }
    with_pod(client, options, |pod| async move {
        let id = pod.create("main", &["/no/such/command"]).await?;
        ensure!(client.start_container(&id).await.is_err(), "it was started");
        let ended = pod.wait_for(&id, ContainerExited).await?;
        ensure!(ended.exit_code != 0, "its exit code is 0");
        Ok(true)
    })
    .await
}

async fn streams_are_logged(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &["sh", "-c", "echo to out; echo to err >&2"]).await?;
        pod.wait_for(&id, ContainerExited).await?;
        pod.wait_for_log(pod.log_path("main"), " stdout F to out").await?;
        pod.wait_for_log(pod.log_path("main"), " stderr F to err").await?;
        Ok(true)
    })
    .await
}

async fn log_is_reopened(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let script = "echo before; sleep 2; echo after; sleep 3600";
        let id = pod.start("main", &["sh", "-c", script]).await?;
        let path = pod.log_path("main");
        pod.wait_for_log(path.clone(), "before").await?;
        let rotated = path.with_extension("log.1");
        std::fs::rename(&path, &rotated)
            .map_err(|source| super::CheckError::Log { path: path.clone(), source })?;
        client.reopen_container_log(&id).await?;
        pod.wait_for_log(path.clone(), "after").await?;
        let old = std::fs::read_to_string(&rotated)
            .map_err(|source| super::CheckError::Log { path: rotated, source })?;
        ensure!(!old.contains("after"), "the old file was written to");
        client.stop_container(&id, 0).await?;
        ensure!(
            client.reopen_container_log(&id).await.is_err(),
            "the log of an ended container was reopened"
        );
        Ok(true)
    })
    .await
}

/// Starts a process that ends by the stop signal, and waits until it has said so.
async fn start_graceful(pod: &Pod<'_>) -> Result<ContainerId, super::CheckError> {
    let id = pod.start("main", &GRACEFUL).await?;
    pod.wait_for_log(pod.log_path("main"), "ready").await?;
    // The handler is set right after the text is out.
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(id)
}

async fn graceful_stop(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = start_graceful(&pod).await?;
        let started = Instant::now();
        client.stop_container(&id, 20).await?;
        ensure!(started.elapsed() < Duration::from_secs(10), "it took {:?}", started.elapsed());
        let status = pod.status(&id).await?;
        ensure!(status.state == i32::from(ContainerExited), "it is in state {}", status.state);
        ensure!(status.exit_code == 7, "its exit code is {}", status.exit_code);
        client.stop_container(&id, 20).await?;
        Ok(true)
    })
    .await
}

async fn deaf_stop(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let started = Instant::now();
        client.stop_container(&id, 2).await?;
        ensure!(started.elapsed() >= Duration::from_secs(2), "it took {:?}", started.elapsed());
        let status = pod.status(&id).await?;
        ensure!(status.exit_code == SIGKILLED, "its exit code is {}", status.exit_code);
        Ok(true)
    })
    .await
}

async fn shorter_stop(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let started = Instant::now();
        let second = async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            client.stop_container(&id, 1).await
        };
        let (first, second) = tokio::join!(client.stop_container(&id, 60), second);
        first?;
        second?;
        ensure!(started.elapsed() < Duration::from_secs(20), "it took {:?}", started.elapsed());
        ensure!(pod.status(&id).await?.exit_code == SIGKILLED, "it was not killed");
        Ok(true)
    })
    .await
}

async fn abandoned_stop(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let given_up =
            timeout(Duration::from_secs(1), client.stop_container(&id, 2)).await.is_err();
        ensure!(given_up, "a process that does not listen ended by the stop signal");
        tokio::time::sleep(Duration::from_secs(3)).await;
        let status = pod.status(&id).await?;
        ensure!(status.state == i32::from(ContainerRunning), "it was killed");
        client.stop_container(&id, 1).await?;
        ensure!(pod.status(&id).await?.exit_code == SIGKILLED, "it was not killed");
        Ok(true)
    })
    .await
}

fn command(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

async fn exec_answers(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let script = command(&["sh", "-c", "echo out; echo err >&2; exit 4"]);
        let answer = client.exec_sync(&id, script, Some(options.patience)).await?;
        ensure!(answer.stdout == b"out\n", "stdout is {:?}", answer.stdout);
        ensure!(answer.stderr == b"err\n", "stderr is {:?}", answer.stderr);
        ensure!(answer.exit_code == 4, "the exit code is {}", answer.exit_code);
        let answer = client.exec_sync(&id, command(&["true"]), None).await?;
        ensure!(answer.exit_code == 0, "the exit code is {}", answer.exit_code);
        let absent = command(&["/no/such/command"]);
        let absent = client.exec_sync(&id, absent, Some(options.patience)).await;
        ensure!(
            absent.as_ref().is_err_and(|error| error.kind == CriErrorKind::Other),
            "a command that is not there was answered with {absent:?}"
        );
        Ok(true)
    })
    .await
}

async fn exec_times_out(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let late =
            client.exec_sync(&id, command(&["sleep", "30"]), Some(Duration::from_secs(1))).await;
        ensure!(
            late.as_ref().is_err_and(|error| error.kind == CriErrorKind::DeadlineExceeded),
            "it was answered with {late:?}"
        );
        ensure!(pod.status(&id).await?.state == i32::from(ContainerRunning), "the container died");
        Ok(true)
    })
    .await
}

async fn exec_needs_a_process(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &["true"]).await?;
        pod.wait_for(&id, ContainerExited).await?;
        let refused = client.exec_sync(&id, command(&["true"]), Some(options.patience)).await;
        ensure!(refused.is_err(), "it was answered with {refused:?}");
        Ok(true)
    })
    .await
}

async fn removes_running_container(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        client.remove_container(&id).await?;
        let gone = client.container_status(&id, false).await;
        ensure!(gone.is_err_and(|error| error.is_not_found()), "it is still there");
        Ok(true)
    })
    .await
}

async fn stopping_sandbox_ends_containers(
    client: &CriClient,
    options: &ContractOptions,
) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let first = pod.start("first", &DEAF).await?;
        let second = pod.start("second", &DEAF).await?;
        client.stop_pod_sandbox(&pod.sandbox).await?;
        for id in [&first, &second] {
            let status = pod.wait_for(id, ContainerExited).await?;
            ensure!(status.exit_code == SIGKILLED, "the exit code is {}", status.exit_code);
        }
        let config = pod.container_config("third", 0, &DEAF);
        let sandbox_config = pod.config.clone();
        let in_stopped = match client.create_container(&pod.sandbox, config, sandbox_config).await {
            Ok(id) => client.start_container(&id).await,
            Err(error) => Err(error),
        };
        ensure!(in_stopped.is_err(), "a container was started in a stopped sandbox");
        client.remove_pod_sandbox(&pod.sandbox).await?;
        let gone = client.container_status(&first, false).await;
        ensure!(gone.is_err_and(|error| error.is_not_found()), "a container outlived its sandbox");
        Ok(true)
    })
    .await
}

async fn gone_is_gone(client: &CriClient, _: &ContractOptions) -> CheckResult {
    let nobody = "0123456789abcdef".repeat(4);
    let (container, sandbox) = (ContainerId::new(&nobody), SandboxId::new(&nobody));
    client.stop_container(&container, 1).await?;
    client.remove_container(&container).await?;
    client.stop_pod_sandbox(&sandbox).await?;
    client.remove_pod_sandbox(&sandbox).await?;
    let image = v1::ImageSpec {
        image: "localhost/rubelet/no-such-image:1".to_owned(),
        ..Default::default()
    };
    client.remove_image(image).await?;
    let status = client.container_status(&container, false).await;
    ensure!(status.is_err_and(|error| error.is_not_found()), "the container is found");
    let status = client.pod_sandbox_status(&sandbox, false).await;
    ensure!(status.is_err_and(|error| error.is_not_found()), "the sandbox is found");
    Ok(true)
}

async fn lists_are_filtered(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let running = pod.start("running", &DEAF).await?;
        let ended = pod.start("ended", &["true"]).await?;
        pod.wait_for(&ended, ContainerExited).await?;
        let by_state = |state: v1::ContainerState| v1::ContainerFilter {
            state: Some(v1::ContainerStateValue { state: state.into() }),
            label_selector: pod.by_uid(),
            ..Default::default()
        };
        let by_sandbox = |sandbox: &str| v1::ContainerFilter {
            pod_sandbox_id: sandbox.to_owned(),
            ..Default::default()
        };
        let by_id = v1::ContainerFilter { id: running.to_string(), ..Default::default() };
        for (filter, expected) in [
            (by_state(ContainerRunning), vec![&running]),
            (by_state(ContainerExited), vec![&ended]),
            (by_id, vec![&running]),
            (by_sandbox(pod.sandbox.as_str()), vec![&running, &ended]),
        ] {
            let mut found: Vec<_> = client
                .list_containers(Some(filter.clone()))
                .await?
                .into_iter()
                .map(|c| c.id)
                .collect();
            let mut expected: Vec<_> = expected.into_iter().map(ToString::to_string).collect();
            found.sort();
            expected.sort();
            ensure!(found == expected, "{filter:?} finds {found:?}, not {expected:?}");
        }
        for (state, count) in
            [(v1::PodSandboxState::SandboxReady, 1), (v1::PodSandboxState::SandboxNotready, 0)]
        {
            let filter = v1::PodSandboxFilter {
                state: Some(v1::PodSandboxStateValue { state: state.into() }),
                label_selector: pod.by_uid(),
                ..Default::default()
            };
            let found = client.list_pod_sandbox(Some(filter)).await?.len();
            ensure!(found == count, "{found} sandboxes are {}", state.as_str_name());
        }
        Ok(true)
    })
    .await
}

async fn relist_shows_the_pod(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let pods = relist(client).await?;
        let Some(entry) = pods.get(&PodUid::new(&pod.uid)) else {
            ensure!(false, "the pod is not listed");
            return Ok(false);
        };
        ensure!(
            entry.sandboxes.iter().map(|sandbox| &sandbox.id).eq([&pod.sandbox]),
            "its sandboxes are {:?}",
            entry.sandboxes
        );
        ensure!(
            entry.containers.iter().map(|container| &container.id).eq([&id]),
            "its containers are {:?}",
            entry.containers
        );
        ensure!(entry.containers[0].sandbox_id == pod.sandbox, "it is in another sandbox");
        Ok(true)
    })
    .await
}

async fn resources_are_updated(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let update = v1::LinuxContainerResources { cpu_shares: 204, ..Default::default() };
        client.update_container_resources(&id, update).await?;
        let snapshot = container_snapshot(&pod.status(&id).await?, None);
        let Some(resources) = snapshot.resources else { return Ok(false) };
        ensure!(resources.cpu_shares == Some(204), "its resources are {resources:?}");
        Ok(true)
    })
    .await
}

async fn running_container_has_stats(client: &CriClient, options: &ContractOptions) -> CheckResult {
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &DEAF).await?;
        let Some(stats) = client.container_stats(&id).await? else {
            ensure!(false, "there are none");
            return Ok(false);
        };
        ensure!(
            stats.attributes.is_some_and(|attributes| attributes.id == id.as_str()),
            "they are those of another container"
        );
        ensure!(stats.cpu.is_some() && stats.memory.is_some(), "CPU or memory is missing");
        let filter =
            v1::ContainerStatsFilter { label_selector: pod.by_uid(), ..Default::default() };
        let listed = client.list_container_stats(Some(filter)).await?.len();
        ensure!(listed == 1, "{listed} containers are listed");
        Ok(true)
    })
    .await
}

async fn events_tell(client: &CriClient, options: &ContractOptions) -> CheckResult {
    let mut events = client.container_events();
    // Events before the subscription reaches the runtime are lost: give it a head start.
    match timeout(Duration::from_secs(1), events.next()).await {
        Ok(Some(Err(error))) if error.is_unimplemented() => return Ok(false),
        Ok(Some(Err(error))) => return Err(error.into()),
        Ok(None) => {
            ensure!(false, "the stream ended");
        }
        // Events of pods before.
        Ok(Some(Ok(_))) | Err(_) => {}
    }
    with_pod(client, options, |pod| async move {
        let id = pod.start("main", &["true"]).await?;
        pod.wait_for(&id, ContainerExited).await?;
        client.remove_container(&id).await?;
        let mut missing = vec![
            ContainerEventKind::Created,
            ContainerEventKind::Started,
            ContainerEventKind::Stopped,
            ContainerEventKind::Deleted,
        ];
        while !missing.is_empty() {
            match timeout(options.patience, events.next()).await {
                Ok(Some(event)) => {
                    let event = event?;
                    if event.id == id.as_str() {
                        missing.retain(|kind| *kind != event.kind);
                    }
                }
                Ok(None) => {
                    ensure!(false, "the stream ended before {missing:?}");
                }
                Err(_) => {
                    ensure!(false, "nothing tells of {missing:?}");
                }
            }
        }
        Ok(true)
    })
    .await
}
