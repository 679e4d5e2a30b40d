//! The six handlers of the sync loop.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_cri::observe::RelistEntry;
use rubelet_pleg::PlegHandle;
use rubelet_pod_runtime::orphan_pod;
use rubelet_pod_sources::MirrorPods;
use rubelet_pod_status::decide_earlier_status;
use rubelet_pod_workers::{PodPort, PodWorkers};
use rubelet_sync_loop::{PodSync, SyncHandler};
use rubelet_types::{
    ContainerId, PodRef, PodUid, error_chain, is_mirror_pod, is_static_pod, pod_ref,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cluster::{EarlierMirrors, PodStatusSink};
use crate::executor::Executor;
use crate::pod_admission::PodAdmission;
use crate::pods::DesiredPods;
use crate::resize::Trigger;

/// Grace of pods that the runtime holds and no source knows.
const ORPHAN_GRACE_SECONDS: i64 = 1;
/// A look at an orphan that takes longer must not hold back the pods that are wanted.
const ORPHAN_LOOK: Duration = Duration::from_secs(5);
/// An orphan that the runtime still lists after it was stopped and removed is left alone for this
/// long, doubling up to [`ORPHAN_RETRY_LIMIT`]: a runtime may hold on to records that it cannot
/// remove.
const ORPHAN_RETRY: Duration = Duration::from_secs(4);
/// The longest an orphan is left alone.
const ORPHAN_RETRY_LIMIT: Duration = Duration::from_secs(300);
/// Period of looking for directories and cgroups that nobody owns.
const DEEP_CLEAN_PERIOD: Duration = Duration::from_secs(10);

/// What the handlers work on.
pub(crate) struct KubeletHandler {
    pub(crate) executor: Arc<Executor>,
    pub(crate) workers: PodWorkers<Executor>,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) mirrors: Arc<MirrorPods>,
    /// None for a kubelet that is alone.
    pub(crate) earlier_mirrors: Option<EarlierMirrors>,
    pub(crate) status_sink: Option<Arc<PodStatusSink>>,
    pub(crate) pleg: PlegHandle,
    pub(crate) admission: Arc<PodAdmission>,
    /// Pods that wait to be let in. They end with the handler.
    pub(crate) waiting: Mutex<JoinSet<()>>,
    pub(crate) last_deep_clean: Mutex<Option<Instant>>,
    pub(crate) orphans: Mutex<HashMap<PodUid, OrphanRetry>>,
}

/// When an orphan is stopped again, should the runtime still list it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrphanRetry {
    at: Instant,
    delay: Duration,
}

impl std::fmt::Debug for KubeletHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KubeletHandler")
    }
}

impl SyncHandler for KubeletHandler {
    async fn handle_pod_additions(&self, mut pods: Vec<Arc<Pod>>) {
        pods.sort_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|time| time.0));
        for pod in pods {
            if is_mirror_pod(&pod) {
                self.mirror_changed(&pod);
            } else {
                self.observe_start(&pod);
                self.add(pod).await;
            }
        }
        if !self.desired.resizes().is_empty() {
            self.executor.resize_triggers.pull(Trigger::PodsAdded);
        }
        self.mirrors.review();
    }

    async fn handle_pod_updates(&self, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            if is_mirror_pod(&pod) {
                self.mirror_changed(&pod);
            } else {
                self.observe_start(&pod);
                self.admission.updated(&pod).await;
            }
        }
    }

    async fn handle_pod_removes(&self, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            let reference = pod_ref(&pod);
            if is_mirror_pod(&pod) {
                self.mirrors.remove(&reference);
            } else {
                self.executor.metrics.startup.forget(&reference.uid);
                self.admission.removed(&reference.uid).await;
                self.executor.resize_triggers.pull(Trigger::PodsRemoved);
            }
        }
        self.mirrors.review();
    }

    async fn handle_pod_reconcile(&self, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            if is_mirror_pod(&pod) {
                self.mirror_changed(&pod);
            } else {
                self.observe_start(&pod);
                // Readiness gates look at conditions that others write.
                self.admission.updated(&pod).await;
            }
        }
    }

    async fn handle_pod_syncs(&self, reason: PodSync) {
        match reason {
            PodSync::Observed(snapshot) => {
                // A pod that nobody knows is for the clean-up, once all sources have spoken.
                self.workers.observed(*snapshot);
            }
            PodSync::Probe(update) => self.workers.wake(&update.pod),
            PodSync::ContainerManager(uid) => self.workers.wake(&uid),
            PodSync::Tick => self.workers.wake_all(),
        }
    }

    async fn handle_pod_cleanups(&self) {
        self.mirrors.all_sources_heard();
        let runtime_pods = self.pleg.pods();
        let mut orphans = self.orphans.lock().await;
        orphans.retain(|uid, _| runtime_pods.contains_key(uid));
        let mut found = Vec::new();
        for entry in runtime_pods.values() {
            let uid = &entry.pod.uid;
            if self.workers.knows(uid) || self.desired.contains(uid) {
                continue;
            }
            let now = Instant::now();
            let delay = match orphans.get(uid) {
                Some(retry) if retry.at > now => continue,
                Some(retry) => (retry.delay * 2).min(ORPHAN_RETRY_LIMIT),
                None => ORPHAN_RETRY,
            };
            orphans.insert(uid.clone(), OrphanRetry { at: now + delay, delay });
            tracing::info!(pod = %entry.pod, "Orphaned pod found in the runtime, stopping it");
            found.push(self.adopt_orphan(entry));
        }
        drop(orphans);
        // At once: looks that hang must not add up.
        join_all(found).await;
        let mut last = self.last_deep_clean.lock().await;
        if last.is_none_or(|last| last.elapsed() >= DEEP_CLEAN_PERIOD) {
            *last = Some(Instant::now());
            let mut keep: HashSet<PodUid> = runtime_pods.keys().cloned().collect();
            keep.extend(self.workers.summaries().into_iter().map(|summary| summary.pod.uid));
            keep.extend(self.desired.all().iter().map(|pod| pod_ref(pod).uid));
            self.deep_clean(&keep).await;
        }
    }
}

impl KubeletHandler {
    /// Users wait for what the API server shows.
    fn observe_start(&self, pod: &Pod) {
        if !is_static_pod(pod) {
            let now = self.executor.clock.now();
            self.executor.metrics.startup.observed_on_watch(pod, now);
        }
    }

    /// The API server's picture of a static pod is new, or somebody changed it: the pod's status is
    /// told to it again, as far as it differs.
    fn mirror_changed(&self, mirror: &Arc<Pod>) {
        let name = pod_ref(mirror).full_name();
        let is_new = self.mirrors.get(&name).is_none_or(|known| pod_ref(&known) != pod_ref(mirror));
        self.mirrors.set(mirror);
        if is_new && let Some(uid) = self.desired.static_pod(&name) {
            self.executor.statuses.resend(&uid);
        }
    }

    async fn add(&self, mut pod: Arc<Pod>) {
        let reference = pod_ref(&pod);
        let mut started_at = None;
        if !self.workers.knows(&reference.uid) {
            if is_static_pod(&pod) {
                self.adopt_namesakes(&reference).await;
            }
            if let Some(earlier) = self.carry_over(&pod, &reference).await {
                started_at = earlier.start_time.as_ref().map(|time| time.0);
                if is_static_pod(&pod) {
                    // Of them, too, it is known what ran and how it ended.
                    Arc::make_mut(&mut pod).status = Some(earlier);
                }
            }
        }
        if let Some(rest) = self.admission.added(&pod, started_at).await {
            let mut waiting = self.waiting.lock().await;
            // What has ended is forgotten.
            while waiting.try_join_next().is_some() {}
            waiting.spawn(rest);
        }
    }

    /// What an earlier run of the kubelet last said of the pod goes on: nothing about a running
    /// pod changes because its kubelet was started again. The API server knows it of its pods, and
    /// of static pods it was kept, or, if another kubelet had the node since, is in their mirrors.
    async fn carry_over(
        &self,
        pod: &Pod,
        reference: &PodRef,
    ) -> Option<k8s_openapi::api::core::v1::PodStatus> {
        let status = if is_static_pod(pod) {
            let kept = self.executor.status_store.load(&reference.uid).await;
            let mirrored = match &self.earlier_mirrors {
                Some(mirrors) if self.pleg.pods().contains_key(&reference.uid) => {
                    mirrors.status(reference).await
                }
                _ => None,
            };
            match (kept, mirrored) {
                (Some(kept), Some(mirrored)) => decide_earlier_status(kept, mirrored),
                (kept, mirrored) => kept.or(mirrored)?,
            }
        } else {
            pod.status.clone()?
        };
        let all = [
            &status.init_container_statuses,
            &status.container_statuses,
            &status.ephemeral_container_statuses,
        ];
        for container in all.into_iter().flatten().flatten() {
            let Some((_, id)) =
                container.container_id.as_deref().and_then(|id| id.split_once("://"))
            else {
                continue;
            };
            self.executor.probes.carry_over(
                &reference.uid,
                &container.name,
                &ContainerId::new(id),
                container.ready,
                container.started.unwrap_or(false),
            );
        }
        self.executor.statuses.set_status(pod, status.clone());
        Some(status)
    }

    /// Pods of the same full name and another uid that the runtime still holds are stopped first:
    /// a static pod whose manifest changed while no kubelet ran.
    async fn adopt_namesakes(&self, pod: &PodRef) {
        let namesakes: Vec<RelistEntry> = self
            .pleg
            .pods()
            .values()
            .filter(|entry| {
                entry.pod.uid != pod.uid
                    && entry.pod.full_name() == pod.full_name()
                    && !self.workers.knows(&entry.pod.uid)
                    && !self.desired.contains(&entry.pod.uid)
            })
            .cloned()
            .collect();
        for entry in namesakes {
            tracing::info!(pod = %entry.pod, successor = %pod.uid,
                "An earlier version of the static pod is still there, stopping it");
            self.adopt_orphan(&entry).await;
        }
    }

    async fn adopt_orphan(&self, entry: &RelistEntry) {
        let look = tokio::time::timeout(ORPHAN_LOOK, self.executor.look(&entry.pod)).await;
        let pod = match look {
            // What was listed is gone meanwhile.
            Ok(Ok(snapshot)) if snapshot.is_empty() => return,
            Ok(Ok(snapshot)) => orphan_pod(&snapshot),
            // Its hooks are unknown then, and it has to go all the same.
            Ok(Err(_)) | Err(_) => listed_pod(entry),
        };
        self.workers.add_orphan(Arc::new(pod), ORPHAN_GRACE_SECONDS);
    }

    async fn deep_clean(&self, keep: &HashSet<PodUid>) {
        self.executor.statuses.remove_orphans(|uid| keep.contains(uid));
        if let Some(sink) = &self.status_sink {
            sink.retain(|uid| keep.contains(uid));
        }
        self.executor.allocations.retain(keep);
        self.executor.probes.retain_pods(|uid| keep.contains(uid));
        self.executor.status_store.retain(|uid| keep.contains(uid)).await;
        if let Err(error) = self.executor.volumes.clean_orphans(keep).await {
            tracing::warn!(
                error = error_chain(&error),
                "Could not clean up orphaned pod directories"
            );
        }
        let known = keep.clone();
        if let Err(failure) =
            self.executor.runtime.remove_orphaned_logs(move |uid| known.contains(uid)).await
        {
            tracing::warn!(error = failure.message, "Could not remove orphaned pod logs");
        }
        match self.executor.container_manager.list_pod_cgroups().await {
            Ok(cgroups) => {
                for uid in cgroups.iter().filter(|uid| !keep.contains(*uid)) {
                    tracing::info!(uid = %uid, "Removing orphaned pod cgroup");
                    if let Err(error) =
                        self.executor.container_manager.destroy_pod_cgroup(uid).await
                    {
                        tracing::warn!(uid = %uid, error = error_chain(&error),
                            "Could not remove orphaned pod cgroup");
                    }
                }
            }
            Err(error) => tracing::warn!(error = error_chain(&error), "Could not list pod cgroups"),
        }
    }
}

/// The least that can be told of a pod: what a list shows.
fn listed_pod(entry: &RelistEntry) -> Pod {
    let mut names: Vec<&str> = entry.containers.iter().map(|c| c.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Pod {
        metadata: ObjectMeta {
            name: Some(entry.pod.name.to_string()),
            namespace: Some(entry.pod.namespace.to_string()),
            uid: Some(entry.pod.uid.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: names
                .into_iter()
                .map(|name| Container { name: name.to_owned(), ..Container::default() })
                .collect(),
            ..PodSpec::default()
        }),
        status: None,
    }
}
