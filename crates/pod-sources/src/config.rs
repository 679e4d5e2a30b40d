//! The sources of this node, driven together.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{Clock, EventObject, EventRecorder, PodUid};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info};

use crate::source::{FileSource, HttpSource, InvalidManifestUrl};
use crate::{PodChange, PodConfigMux, PodSource, StaticPodPolicy};

/// Changes that may wait for the sync loop.
const CHANGE_CAPACITY: usize = 50;
/// What sources say may wait for the mux this long. A source that is ahead waits.
const UPDATE_CAPACITY: usize = 4;

/// Which sources a node has; values as in `KubeletConfiguration`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodSourceSettings {
    /// `staticPodPath`: a directory of manifests or one manifest.
    pub static_pod_path: Option<PathBuf>,
    /// `fileCheckFrequency`: how often the path is read even if nothing was noticed; default 20 s.
    pub file_check_frequency: Duration,
    /// `staticPodURL`.
    pub manifest_url: Option<String>,
    /// `staticPodURLHeader`: sent with each request; a name may stand more than once.
    pub manifest_url_headers: Vec<(String, String)>,
    /// `httpCheckFrequency`: how often the URL is read; default 20 s.
    pub http_check_frequency: Duration,
    /// The node's name.
    pub node_name: String,
    /// Feature gate `PreventStaticPodAPIReferences`; default true.
    pub prevent_api_references: bool,
}

/// What comes out of the sources.
#[derive(Debug)]
pub struct PodChanges {
    /// The changes, in order. It closes when [`PodConfig::run`] ends.
    pub changes: mpsc::Receiver<PodChange>,
    /// Every configured source has spoken and what it said was delivered. A consumer that acts on
    /// the absence of pods must also have processed a change of each source.
    pub ready: watch::Receiver<bool>,
}

/// What one source says.
#[derive(Debug)]
pub(crate) struct SourceUpdate {
    pub(crate) source: PodSource,
    pub(crate) wants: SourceWants,
}

/// Everything a source wants, or one change to it.
#[derive(Debug)]
pub(crate) enum SourceWants {
    /// Exactly these pods, and those that it cannot make out as they were.
    Set { pods: Vec<Pod>, unreadable: Vec<PodUid> },
    /// This pod, besides all others.
    Pod(Box<Pod>),
    /// This pod no more.
    Without(PodUid),
}

/// How a source hands over what it wants.
#[derive(Clone, Debug)]
pub struct PodSourceHandle {
    source: PodSource,
    updates: mpsc::Sender<SourceUpdate>,
}

impl PodSourceHandle {
    /// The source wants exactly `pods` from now on. Waits while the consumer is behind; false when
    /// nobody listens any more, which is only at shutdown.
    pub async fn set(&self, pods: Vec<Pod>) -> bool {
        self.set_keeping(pods, Vec::new()).await
    }

    /// As [`Self::set`], and the pods `unreadable`, which the source has in a version that cannot be
    /// made out, stay as they were.
    pub async fn set_keeping(&self, pods: Vec<Pod>, unreadable: Vec<PodUid>) -> bool {
        self.send(SourceWants::Set { pods, unreadable }).await
    }

    /// The source wants `pod` besides the others, or in this version. As [`Self::set`].
    pub async fn apply(&self, pod: Pod) -> bool {
        self.send(SourceWants::Pod(Box::new(pod))).await
    }

    /// The source does not want the pod `uid` any more. As [`Self::set`].
    pub async fn remove(&self, uid: PodUid) -> bool {
        self.send(SourceWants::Without(uid)).await
    }

    async fn send(&self, wants: SourceWants) -> bool {
        self.updates.send(SourceUpdate { source: self.source, wants }).await.is_ok()
    }
}

/// All sources of this node as one stream of changes.
#[derive(Debug)]
pub struct PodConfig {
    file: Option<FileSource>,
    http: Option<HttpSource>,
    sources: Vec<PodSource>,
    updates: (mpsc::Sender<SourceUpdate>, mpsc::Receiver<SourceUpdate>),
    changes: mpsc::Sender<PodChange>,
    ready: watch::Sender<bool>,
    clock: Clock,
    events: EventRecorder,
}

impl PodConfig {
    /// Prepares the configured sources; nothing is read before [`Self::run`].
    ///
    /// # Errors
    ///
    /// A URL or header that cannot be one.
    pub fn new(
        settings: PodSourceSettings,
        clock: Clock,
        events: EventRecorder,
    ) -> Result<(Self, PodChanges), InvalidManifestUrl> {
        let (change_sender, changes) = mpsc::channel(CHANGE_CAPACITY);
        let (ready_sender, ready) = watch::channel(false);
        let policy = StaticPodPolicy {
            node_name: settings.node_name,
            prevent_api_references: settings.prevent_api_references,
        };
        let mut config = Self {
            file: None,
            http: None,
            sources: Vec::new(),
            updates: mpsc::channel(UPDATE_CAPACITY),
            changes: change_sender,
            ready: ready_sender,
            clock,
            events,
        };
        if let Some(path) = settings.static_pod_path {
            let handle = config.register_source(PodSource::File);
            let (policy, clock) = (policy.clone(), config.clock.clone());
            let period = settings.file_check_frequency;
            config.file = Some(FileSource::new(path, period, policy, clock, handle));
        }
        if let Some(url) = settings.manifest_url {
            let handle = config.register_source(PodSource::Http);
            let headers = &settings.manifest_url_headers;
            let period = settings.http_check_frequency;
            config.http = Some(HttpSource::new(&url, headers, period, policy, handle)?);
        }
        Ok((config, PodChanges { changes, ready }))
    }

    /// Adds a source that lives outside of this crate. The node is not ready before it has handed
    /// over its first set.
    pub fn register_source(&mut self, source: PodSource) -> PodSourceHandle {
        if !self.sources.contains(&source) {
            self.sources.push(source);
        }
        PodSourceHandle { source, updates: self.updates.0.clone() }
    }

    /// The configured sources.
    pub fn sources(&self) -> &[PodSource] {
        &self.sources
    }

    /// Drives all sources until `cancel`.
    pub async fn run(self, cancel: CancellationToken) {
        let Self {
            file,
            http,
            sources,
            updates: (sender, mut updates),
            changes,
            ready,
            clock,
            events,
        } = self;
        // Only those who were registered may send; the channel ends with the last of them.
        drop(sender);
        info!(?sources, "Waiting for the pods of all sources");
        let mux = async {
            let mut mux = PodConfigMux::new(sources);
            ready.send_if_modified(|ready| set_if_new(ready, mux.sources_ready()));
            while let Some(SourceUpdate { source, wants }) = updates.recv().await {
                let outcome = match wants {
                    SourceWants::Set { pods, unreadable } => {
                        mux.apply_set_keeping(source, pods, &unreadable, clock.now())
                    }
                    SourceWants::Pod(pod) => mux.apply_pod(source, *pod, clock.now()).into(),
                    SourceWants::Without(uid) => mux.remove_pod(source, &uid).into(),
                };
                for duplicate in outcome.duplicates {
                    events.warning(
                        EventObject::Pod(duplicate.pod),
                        "FailedValidation",
                        duplicate.message,
                    );
                }
                for change in outcome.changes {
                    debug!(op = %change.op, source = %change.source, pods = change.pods.len(),
                        "Pods changed");
                    if changes.send(change).await.is_err() {
                        return;
                    }
                }
                ready.send_if_modified(|ready| set_if_new(ready, mux.sources_ready()));
            }
            // A node without sources is ready and has nothing to do.
            changes.closed().await;
        };
        let file = async {
            if let Some(file) = file {
                file.run().await;
            }
        };
        let http = async {
            if let Some(http) = http {
                http.run().await;
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            _ = async { tokio::join!(mux, file, http) } => {}
        }
    }
}

fn set_if_new(current: &mut bool, new: bool) -> bool {
    let changed = *current != new;
    *current = new;
    changed
}

#[cfg(test)]
mod tests;
