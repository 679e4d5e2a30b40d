//! One life of the kubelet: from its start to its death, which may come at any moment.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kubelet::{ClusterParts, Effective, Node, Parts};
use rubelet_container_manager::CgroupDriver;
use rubelet_cri::CriOptions;
use rubelet_fake_apiserver::FakeApiServer;
use rubelet_fake_cri::FakeRuntime;
use rubelet_linux::Host;
use rubelet_pod_sources::{PodSource, PodSourceHandle};
use rubelet_types::{Clock, EventRecorder, NodePaths};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::ledger::Book;
use crate::mounts::LifeMounts;

/// What every kubelet of the node finds.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    pub(crate) effective: Arc<Effective>,
    pub(crate) paths: NodePaths,
    pub(crate) host: Host,
    pub(crate) clock: Clock,
    pub(crate) events: EventRecorder,
    pub(crate) runtime: FakeRuntime,
    pub(crate) book: Book,
    /// What each source wants, at any time; nothing for one that has not been reached.
    pub(crate) wanted: Vec<(PodSource, watch::Receiver<Option<Vec<Pod>>>)>,
    /// The API server, if the node has a cluster.
    pub(crate) server: Option<FakeApiServer>,
}

/// How many things a kubelet of a simulation works on at once.
const CONCURRENT_STARTS: usize = 8;

#[derive(Debug)]
pub(crate) struct Life {
    task: JoinHandle<()>,
    stop: CancellationToken,
    mounts: Arc<LifeMounts>,
    book: Book,
}

impl Life {
    pub(crate) fn start(environment: Environment, mounts: LifeMounts) -> Self {
        let stop = CancellationToken::new();
        let mounts = Arc::new(mounts);
        let book = environment.book.clone();
        let (of_task, stop_of_task, told) = (mounts.clone(), stop.clone(), book.clone());
        let task = tokio::spawn(async move {
            if let Err(error) = Box::pin(live(environment, of_task, stop_of_task)).await {
                told.violation(format!("the kubelet ended: {error:#}"));
            }
        });
        Self { task, stop, mounts, book }
    }

    /// Dies without a word.
    pub(crate) async fn kill(self) -> Result<(), &'static str> {
        self.task.abort();
        let _ = self.task.await;
        gone(&self.book, self.mounts).await
    }

    /// Ends in good order.
    pub(crate) async fn shut_down(self) -> Result<(), &'static str> {
        self.stop.cancel();
        let mut task = self.task;
        if tokio::time::timeout(Duration::from_secs(5), &mut task).await.is_err() {
            task.abort();
            let _ = task.await;
        }
        gone(&self.book, self.mounts).await
    }
}

/// Waits until nothing of the kubelet is left: every task and thread of it that could act on the
/// node holds its mounts.
async fn gone(book: &Book, mounts: Arc<LifeMounts>) -> Result<(), &'static str> {
    // Whoever looks at a kubelet keeps its managers in memory.
    drop(book.open().view.take());
    for _ in 0..1000 {
        if Arc::strong_count(&mounts) == 1 {
            return Ok(());
        }
        sleep(Duration::from_millis(1)).await;
    }
    Err("the kubelet is dead, and some task of it lives on")
}

async fn live(
    environment: Environment,
    mounts: Arc<LifeMounts>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let Environment { effective, paths, host, clock, events, runtime, book, wanted, server } =
        environment;
    let started = Instant::now();
    let node = Node { name: crate::pods::NODE.to_owned(), ips: vec![[10, 0, 0, 1].into()] };
    let cri = runtime.client(CriOptions {
        request_timeout: effective.config.runtime_request_timeout.as_duration(),
        ..CriOptions::default()
    });
    let version = loop {
        match cri.check_version().await {
            Ok(version) => break version,
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    };
    let (events, event_sender) = match server {
        None => (events, None),
        Some(_) => {
            let (to_server, sender) = kubelet::event_recorder(&effective, &node, clock.clone());
            let both = EventRecorder::new(move |event| {
                events.record(event.clone());
                to_server.record(event);
            });
            (both, Some(sender))
        }
    };
    let container_manager = kubelet::start_container_manager(
        &effective,
        CgroupDriver::Cgroupfs,
        host.clone(),
        events.clone(),
    )
    .await?;
    let mut sources = kubelet::pod_sources(&effective, &node, clock.clone(), events.clone())?;
    let feeds: Vec<_> = wanted
        .into_iter()
        .map(|(source, wanted)| feed(sources.0.register_source(source), wanted))
        .collect();
    let cluster = server.zip(event_sender).map(|(server, events)| ClusterParts {
        api: server.http2_client(),
        pods: sources.0.register_source(PodSource::Api),
        events,
        host,
    });
    let kubelet = kubelet::assemble(Parts {
        effective: &effective,
        node,
        paths,
        clock,
        events,
        cri,
        runtime_name: version.name,
        runtime_version: "1".to_owned(),
        container_manager,
        credential_providers: kubelet::credential_providers(&effective)?,
        mounts,
        sources,
        cluster,
        concurrent_starts: CONCURRENT_STARTS,
        started,
    });
    book.open().view = Some(kubelet.view());
    tokio::select! {
        biased;
        ended = kubelet.run(stop) => ended,
        _ = join_all(feeds) => std::future::pending().await,
    }
}

/// Hands over what a source wants, now and whenever it changes.
async fn feed(source: PodSourceHandle, mut wanted: watch::Receiver<Option<Vec<Pod>>>) {
    loop {
        let pods = wanted.borrow_and_update().clone();
        let is_heard = match pods {
            Some(pods) => source.set(pods).await,
            None => true,
        };
        if !is_heard || wanted.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
