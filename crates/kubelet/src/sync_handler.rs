//! The six handlers of the sync loop.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_cri::observe::RelistEntry;
use rubelet_pleg::PlegHandle;
use rubelet_pod_runtime::orphan_pod;
use rubelet_pod_status::rejected_status;
use rubelet_pod_workers::{PodPort, PodWorkers};
use rubelet_sync_loop::{PodSync, SyncHandler};
use rubelet_types::{
    ContainerId, EventObject, PodRef, PodUid, is_mirror_pod, is_static_pod, is_terminal_phase,
    pod_ref,
};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::admission::{AdmissionFacts, Rejection, admit};
use crate::executor::{Executor, describe};
use crate::pods::DesiredPods;

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
    pub(crate) pleg: PlegHandle,
    pub(crate) allowed_unsafe_sysctls: Vec<String>,
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
                continue;
            }
            self.add(pod).await;
        }
    }

    async fn handle_pod_updates(&self, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            self.desired.set(&pod);
            self.workers.update(pod);
        }
    }

    async fn handle_pod_removes(&self, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            let uid = pod_ref(&pod).uid;
            self.desired.remove(&uid);
            self.workers.remove(&uid);
        }
    }

    async fn handle_pod_reconcile(&self, pods: Vec<Arc<Pod>>) {
        for pod in pods {
            self.workers.wake(&pod_ref(&pod).uid);
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
        let runtime_pods = self.pleg.pods();
        let mut orphans = self.orphans.lock().await;
        orphans.retain(|uid, _| runtime_pods.contains_key(uid));
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
            self.adopt_orphan(entry).await;
        }
        drop(orphans);
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
    async fn add(&self, pod: Arc<Pod>) {
        let reference = pod_ref(&pod);
        if self.workers.knows(&reference.uid) {
            self.desired.set(&pod);
            return self.workers.add(pod, None, false);
        }
        if is_static_pod(&pod) {
            self.adopt_namesakes(&reference).await;
        }
        let earlier = self.carry_over(&pod, &reference).await;
        // From here on it is shown, with what is known of it.
        self.desired.set(&pod);
        if let Err(rejection) = self.admit(&pod) {
            return self.reject(&pod, &reference, &rejection);
        }
        let is_terminal =
            is_terminal_phase(earlier.as_ref().and_then(|status| status.phase.as_deref()));
        let started_at =
            earlier.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
        self.workers.add(pod, started_at, is_terminal);
    }

    /// What an earlier run of the kubelet last said of the pod goes on: nothing about a running
    /// pod changes because its kubelet was started again.
    async fn carry_over(
        &self,
        pod: &Pod,
        reference: &PodRef,
    ) -> Option<k8s_openapi::api::core::v1::PodStatus> {
        let status = self.executor.status_store.load(&reference.uid).await?;
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

    fn admit(&self, pod: &Pod) -> Result<(), Rejection> {
        let uid = pod_ref(pod).uid;
        let allocatable = self.executor.container_manager.allocatable().map_err(|error| {
            Rejection { reason: "UnexpectedAdmissionError".to_owned(), message: describe(&error) }
        })?;
        let active: Vec<Arc<Pod>> = self
            .desired
            .all()
            .into_iter()
            .filter(|other| {
                let other_uid = pod_ref(other).uid;
                let known = self.executor.statuses.status(&other_uid);
                let phase = known.as_ref().and_then(|known| known.status.phase.as_deref());
                // A pod added in the same batch and not admitted yet holds nothing.
                other_uid != uid && !is_terminal_phase(phase) && self.workers.knows(&other_uid)
            })
            .collect();
        admit(
            pod,
            &AdmissionFacts {
                active: &active,
                allocatable,
                allowed_unsafe_sysctls: &self.allowed_unsafe_sysctls,
                apparmor_enabled: apparmor_enabled(),
                supplemental_groups_policy: self
                    .executor
                    .runtime_state
                    .borrow()
                    .features()
                    .supplemental_groups_policy,
            },
        )
    }

    fn reject(&self, pod: &Pod, reference: &PodRef, rejection: &Rejection) {
        tracing::info!(pod = %reference, reason = rejection.reason, message = rejection.message,
            "Pod rejected");
        let status =
            rejected_status(pod, &rejection.reason, &rejection.message, self.executor.clock.now());
        self.executor.statuses.set_status(pod, status);
        self.executor.events.warning(
            EventObject::Pod(reference.clone()),
            reason_name(&rejection.reason),
            rejection.message.clone(),
        );
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
            Ok(Ok(snapshot)) => orphan_pod(&snapshot),
            // Its hooks are unknown then, and it has to go all the same.
            Ok(Err(_)) | Err(_) => listed_pod(entry),
        };
        self.workers.add_orphan(Arc::new(pod), ORPHAN_GRACE_SECONDS);
    }

    async fn deep_clean(&self, keep: &HashSet<PodUid>) {
        self.executor.statuses.remove_orphans(|uid| keep.contains(uid));
        self.executor.probes.retain_pods(|uid| keep.contains(uid));
        self.executor.status_store.retain(|uid| keep.contains(uid)).await;
        if let Err(error) = self.executor.volumes.clean_orphans(keep).await {
            tracing::warn!(error = describe(&error), "Could not clean up orphaned pod directories");
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
                        tracing::warn!(uid = %uid, error = describe(&error),
                            "Could not remove orphaned pod cgroup");
                    }
                }
            }
            Err(error) => tracing::warn!(error = describe(&error), "Could not list pod cgroups"),
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

/// Whether the kernel enforces AppArmor profiles.
fn apparmor_enabled() -> bool {
    std::fs::read_to_string("/sys/module/apparmor/parameters/enabled")
        .is_ok_and(|value| value.starts_with('Y'))
}

/// Events carry static reasons; those of resources are made of the resource's name.
fn reason_name(reason: &str) -> &'static str {
    const KNOWN: [&str; 11] = [
        "AppArmor",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfpods",
        "NodePorts",
        "SysctlForbidden",
        "SupplementalGroupsPolicyNotSupported",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "PodOSNotSupported",
        "UnexpectedAdmissionError",
    ];
    KNOWN.into_iter().find(|known| *known == reason).unwrap_or("OutOfExtendedResources")
}
