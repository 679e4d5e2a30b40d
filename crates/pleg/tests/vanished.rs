//! A container that is gone before any list held it.

#![allow(clippy::unwrap_used)] // Functions that tests share are not seen as tests.

use std::sync::Arc;

use rubelet_cri::observe::{self, RelistEntry};
use rubelet_cri::{CriClient, CriOptions, v1};
use rubelet_fake_cri::{FakeOptions, FakeRuntime};
use rubelet_pleg::{
    ContainerChange, Pleg, PlegSettings, PodInspector, PodLifecycleEvent, Unlisted,
};
use rubelet_types::{Clock, ContainerId, PodRef, PodSnapshot, SandboxId, labels};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "busybox:1";

struct Inspector(CriClient);

impl PodInspector for Inspector {
    async fn inspect(
        &self,
        pod: &PodRef,
        known: Option<&RelistEntry>,
    ) -> Result<PodSnapshot, String> {
        let snapshot = observe::pod_snapshot(&self.0, pod, known, &Clock::system()).await;
        snapshot.map_err(|error| error.to_string())
    }
}

struct Bed {
    runtime: FakeRuntime,
    client: CriClient,
    pod: PodRef,
    unlisted: Arc<Unlisted>,
    events: mpsc::Receiver<PodLifecycleEvent>,
    stop: CancellationToken,
}

impl Bed {
    /// A generator that has listed a runtime in which nothing is, and hears no event.
    async fn start() -> Self {
        let runtime = FakeRuntime::new(FakeOptions::default());
        runtime.add_image(IMAGE, 1 << 20);
        runtime.set_events_lost(true);
        let client = runtime.client(CriOptions::default());
        let unlisted = Arc::<Unlisted>::default();
        let (output, events) = mpsc::channel(16);
        let pleg = Pleg::new(
            client.clone(),
            Arc::new(Inspector(client.clone())),
            PlegSettings::default(),
            unlisted.clone(),
            output,
        );
        let (handle, stop) = (pleg.handle(), CancellationToken::new());
        tokio::spawn(pleg.run(stop.clone()));
        handle.relisted_once().await;
        Self { runtime, client, pod: PodRef::new("a", "default", "pod"), unlisted, events, stop }
    }

    fn labels(&self, container: Option<&str>) -> std::collections::BTreeMap<String, String> {
        let pod = [
            (labels::POD_UID, self.pod.uid.as_str()),
            (labels::POD_NAME, &self.pod.name),
            (labels::POD_NAMESPACE, &self.pod.namespace),
        ];
        let container = container.map(|name| (labels::CONTAINER_NAME, name));
        pod.into_iter()
            .chain(container)
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    async fn run_pod(&self) -> (SandboxId, ContainerId) {
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: self.pod.name.to_string(),
                uid: self.pod.uid.to_string(),
                namespace: self.pod.namespace.to_string(),
                attempt: 0,
            }),
            labels: self.labels(None),
            ..Default::default()
        };
        let sandbox = self.client.run_pod_sandbox(config.clone(), "").await.unwrap();
        let container = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "app".to_owned(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: IMAGE.to_owned(), ..Default::default() }),
            labels: self.labels(Some("app")),
            ..Default::default()
        };
        let id = self.client.create_container(&sandbox, container, config).await.unwrap();
        self.client.start_container(&id).await.unwrap();
        (sandbox, id)
    }

    /// What is told within two periods of lists.
    async fn told(&mut self) -> Option<PodLifecycleEvent> {
        timeout(PlegSettings::default().relist_period * 20, self.events.recv()).await.ok().flatten()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_before_it_was_ever_listed_is_missed() {
    let mut bed = Bed::start().await;
    let (sandbox, container) = bed.run_pod().await;
    bed.unlisted.sandbox_made(&bed.pod, &sandbox);
    bed.unlisted.container_made(&bed.pod, &container);
    assert!(bed.runtime.lose_container(container.as_str()));

    let event = bed.told().await.expect("the pod is looked at");
    assert_eq!(event.snapshot.pod, bed.pod);
    assert_eq!(event.snapshot.sandboxes.len(), 1);
    assert!(event.snapshot.containers.is_empty());
    assert!(event.changes.contains(&ContainerChange::Removed), "{:?}", event.changes);
}

#[tokio::test(start_paused = true)]
async fn a_whole_pod_that_vanishes_before_it_was_ever_listed_is_missed() {
    let mut bed = Bed::start().await;
    let (sandbox, container) = bed.run_pod().await;
    bed.unlisted.sandbox_made(&bed.pod, &sandbox);
    bed.unlisted.container_made(&bed.pod, &container);
    bed.client.remove_pod_sandbox(&sandbox).await.unwrap();

    let event = bed.told().await.expect("the pod is looked at");
    assert!(event.snapshot.is_empty(), "{:?}", event.snapshot);
    assert_eq!(event.changes, [ContainerChange::Died, ContainerChange::Removed]);
    assert_eq!(bed.told().await, None, "it is looked at again");
}

#[tokio::test(start_paused = true)]
async fn what_a_list_shows_is_not_missed() {
    let mut bed = Bed::start().await;
    let (sandbox, container) = bed.run_pod().await;
    bed.unlisted.sandbox_made(&bed.pod, &sandbox);
    bed.unlisted.container_made(&bed.pod, &container);

    let event = bed.told().await.expect("the list shows something new");
    assert_eq!(event.changes, [ContainerChange::Started]);
    assert_eq!(event.snapshot.containers.len(), 1);
    assert_eq!(bed.told().await, None);
}
