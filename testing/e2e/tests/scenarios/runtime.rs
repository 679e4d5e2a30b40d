//! The test bed itself: its containerd answers, its images are there, and it can be emptied.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use anyhow::Context;
use rubelet_cri::{CriClient, CriOptions, v1};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{Runtime, RuntimeKind, wait_for};
use rubelet_types::SandboxId;

use crate::WAIT;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "the_runtime_has_its_images",
        runtimes: &RuntimeKind::ALL,
        run: the_runtime_has_its_images,
    },
    Scenario {
        name: "a_killed_containerd_comes_back",
        runtimes: &RuntimeKind::ALL,
        run: a_killed_containerd_comes_back,
    },
];

/// Asks the runtime over the CRI, past the kubelet.
pub(crate) fn with_cri<T, F: Future<Output = anyhow::Result<T>>>(
    runtime: &Runtime,
    ask: impl FnOnce(CriClient) -> F,
) -> anyhow::Result<T> {
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start an executor")?;
    executor.block_on(async {
        let options =
            CriOptions { request_timeout: Duration::from_secs(20), ..CriOptions::default() };
        let endpoint = format!("unix://{}", runtime.socket().display());
        ask(CriClient::connect_lazy(&endpoint, None, options)?).await
    })
}

/// Removes every sandbox, and with them the containers.
pub(crate) fn reset(runtime: &Runtime) -> anyhow::Result<()> {
    with_cri(runtime, |cri| async move {
        for sandbox in cri.list_pod_sandbox(None).await? {
            let id = SandboxId::new(sandbox.id);
            cri.stop_pod_sandbox(&id).await?;
            cri.remove_pod_sandbox(&id).await?;
        }
        Ok(())
    })
}

/// Waits until nothing runs any more: neither a container nor a sandbox.
pub(crate) fn wait_until_idle(runtime: &Runtime, timeout: Duration) -> anyhow::Result<()> {
    wait_for("the runtime to be idle", timeout, || {
        let running = with_cri(runtime, |cri| async move {
            let containers = cri.list_containers(None).await?;
            let sandboxes = cri.list_pod_sandbox(None).await?;
            let running = containers
                .iter()
                .filter(|container| container.state() == v1::ContainerState::ContainerRunning);
            let ready = sandboxes
                .iter()
                .filter(|sandbox| sandbox.state() == v1::PodSandboxState::SandboxReady);
            Ok((running.count(), ready.count()))
        });
        match running {
            Ok((0, 0)) => Ok(()),
            Ok((containers, sandboxes)) => {
                Err(format!("{containers} containers and {sandboxes} sandboxes run"))
            }
            Err(error) => Err(format!("{error:#}")),
        }
    })
}

fn the_runtime_has_its_images(stage: &Stage) -> anyhow::Result<()> {
    let expected = BTreeSet::from(
        [
            "registry.k8s.io/pause:3.10",
            "docker.io/library/busybox:latest",
            "localhost/rubelet/nonroot:1",
            "localhost/rubelet/probe-target:1",
        ]
        .map(str::to_owned),
    );
    // The CRI hears of an import by an event.
    wait_for("the images to be listed", WAIT, || {
        let images = with_cri(stage.runtime(), |cri| async move {
            let version = cri.check_version().await?;
            anyhow::ensure!(version.name == "containerd", "it is {version:?}");
            Ok(cri.list_images(None).await?)
        });
        let images = images.map_err(|error| format!("{error:#}"))?.into_iter();
        let names: BTreeSet<String> = images.flat_map(|image| image.repo_tags).collect();
        if names == expected { Ok(()) } else { Err(format!("there are {names:?}")) }
    })
}

fn a_killed_containerd_comes_back(stage: &Stage) -> anyhow::Result<()> {
    let runtime = stage.runtime();
    let version = |cri: CriClient| async move { Ok(cri.check_version().await?) };
    runtime.kill_containerd()?;
    anyhow::ensure!(with_cri(runtime, version).is_err(), "it answers although it was killed");
    runtime.start_containerd()?;
    with_cri(runtime, version).map(|_| ())
}
