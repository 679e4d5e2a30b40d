//! Keeps the files of volumes as the API server has them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{Clock, Fetched, ObjectKind, PodRef, PodUid, ResourceAmounts, pod_ref};
use rubelet_volume_plan::{
    ClaimObjects, ContentError, ContentFacts, ContentFailure, ContentNeeds, ContentObjects,
    ContentVolume, DesiredVolume, Payload, TokenOutcome, VolumeSource, compute_payload,
    desired_volumes,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::error::SetUpError;
use crate::manager::{FailedVolume, Inner, SetUpResults, VolumeManager};
use crate::memory::Cause;
use crate::port::{ClaimPort, ContentPort};

/// An object that could not be read in this time is not waited for.
const READ_LIMIT: Duration = Duration::from_secs(10);
/// The shortest time after which files are compared with what they should be.
const LEAST_UPDATE_PERIOD: Duration = Duration::from_secs(1);

/// What volumes are made of beside the pods' own specs.
#[derive(Clone, Debug)]
pub struct VolumeContent {
    /// Reads objects and tokens; none if there is no API server.
    pub objects: Option<Arc<dyn ContentPort>>,
    /// Reads claims and the volumes behind them; none if there is no API server.
    pub claims: Option<Arc<dyn ClaimPort>>,
    /// What the node can give: the limit of a container that has none.
    pub allocatable: ResourceAmounts,
    /// The wall clock.
    pub clock: Clock,
}

/// What the files of some volumes should be, by volume.
pub(crate) type Payloads = BTreeMap<String, Result<Payload, ContentError>>;

impl VolumeManager {
    /// An object that the pod refers to has changed, appeared or gone. What waits for it is tried at
    /// once, and files that show it are written anew. Never blocks; without a pod of this uid
    /// nothing happens.
    pub fn object_changed(&self, pod: &PodUid) {
        self.inner.memory.object_changed(pod, Instant::now());
    }

    /// Takes in the pod as it is now, so that its volumes tell its present labels and annotations.
    /// Cheap if nothing has changed; never blocks.
    pub fn update_pod(&self, pod: &Arc<Pod>) {
        self.inner.memory.update_pod(&pod_ref(pod).uid, pod, Instant::now());
    }

    /// The pod is on its way out: its files stay as they are. Objects that go with it, or before it,
    /// cause no complaints.
    pub fn stop_updates(&self, pod: &PodUid) {
        self.inner.memory.stop_updates(pod);
    }

    /// Keeps the files of all volumes that were set up as the API server has them: at once when
    /// [`VolumeManager::object_changed`] says so, and at the latest after once to one and a half
    /// times `syncFrequency`.
    /// Containers go on running meanwhile, and read the old files if the new ones cannot be told.
    ///
    /// Never returns; to be run once.
    pub async fn keep_contents_fresh(&self) {
        let mut running = JoinSet::new();
        loop {
            let (due, next) = self.inner.memory.take_due(Instant::now());
            for (uid, pod) in due {
                let inner = self.inner.clone();
                running.spawn(async move {
                    let next = inner.update_contents(&pod).await;
                    inner.memory.updated(&uid, next);
                });
            }
            let idle = Instant::now() + self.inner.update_period();
            tokio::select! {
                () = self.inner.memory.due_changed() => {}
                () = sleep_until(next.unwrap_or(idle)) => {}
                Some(_) = running.join_next() => {}
            }
        }
    }
}

impl Inner {
    /// After which the files of a pod are compared with what they should be: one of its own each
    /// time, so that the pods of a node take turns.
    pub(crate) fn update_period(&self) -> Duration {
        let least = self.config.sync_frequency.max(LEAST_UPDATE_PERIOD);
        least.saturating_add(least.div_f64(2.0).mul_f64(rand::random()))
    }

    /// Compares the files of a pod's volumes with what they should be; returns when to do so again.
    async fn update_contents(self: &Arc<Self>, pod: &Arc<Pod>) -> Instant {
        let reference = pod_ref(pod);
        let waiting = self.memory.waiting(&reference.uid, Instant::now());
        // What is behind claims has no files that the kubelet keeps.
        let no_claims = ClaimObjects::default();
        let mut volumes = desired_volumes(pod, self.config.allocatable_memory, &no_claims).volumes;
        volumes.retain(|volume| {
            matches!(volume.source, VolumeSource::Content(_)) && !waiting.contains_key(&volume.name)
        });
        let mut soonest = waiting.into_values().map(|failure| failure.remaining).min();
        let SetUpResults { changes, by_volume } = self.set_up(pod, &reference, volumes).await;
        for (name, result) in by_volume {
            match result {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    // Such a volume is called alike in the pod and on disk.
                    let volume = FailedVolume { name: &name, spec_name: &name };
                    let (_, wait) = self.set_up_failed(&reference, volume, &error, changes);
                    soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
                }
                None => tracing::warn!(pod = %reference, volume = name,
                    "The files of a volume could not be brought up to date in time"),
            }
        }
        let now = Instant::now();
        let usual = self.update_period();
        now + soonest.map_or(usual, |soonest| soonest.min(usual))
    }

    /// Reads what the files of `volumes` should be.
    pub(crate) async fn payloads(
        &self,
        pod: &Pod,
        reference: &PodRef,
        volumes: &[DesiredVolume],
        fs_group: Option<u32>,
    ) -> Payloads {
        let contents: Vec<(&str, &ContentVolume)> = volumes
            .iter()
            .filter_map(|volume| match &volume.source {
                VolumeSource::Content(content) => Some((volume.name.as_str(), content)),
                _ => None,
            })
            .collect();
        let mut needs = ContentNeeds::default();
        for (_, content) in &contents {
            let ContentNeeds { objects, tokens, trust_bundles } = content.needs();
            needs.objects.extend(objects);
            needs.tokens.extend(tokens);
            needs.trust_bundles.extend(trust_bundles);
        }
        let objects = match &self.content.objects {
            Some(port) => Some(read(&**port, pod, reference, needs).await),
            None => None,
        };
        contents
            .into_iter()
            .map(|(name, content)| {
                let facts = ContentFacts {
                    pod,
                    volume: name,
                    objects: objects.as_ref(),
                    allocatable: &self.content.allocatable,
                    fs_group,
                };
                (name.to_owned(), compute_payload(content, &facts))
            })
            .collect()
    }
}

/// Reads everything at once: one object that is slow does not hold up the others.
async fn read(
    port: &dyn ContentPort,
    pod: &Pod,
    reference: &PodRef,
    needs: ContentNeeds,
) -> ContentObjects {
    let namespace = &*reference.namespace;
    let (config_maps, secrets): (Vec<_>, Vec<_>) =
        needs.objects.into_iter().partition(|(kind, _)| *kind == ObjectKind::ConfigMap);
    let config_maps = join_all(config_maps.into_iter().map(async |(kind, name)| {
        let read = timeout(READ_LIMIT, port.config_map(namespace, &name)).await;
        let found = read.unwrap_or_else(|_| Fetched::Failed(too_late(kind)));
        (name, found)
    }));
    let secrets = join_all(secrets.into_iter().map(async |(kind, name)| {
        let read = timeout(READ_LIMIT, port.secret(namespace, &name)).await;
        let found = read.unwrap_or_else(|_| Fetched::Failed(too_late(kind)));
        (name, found)
    }));
    let tokens = join_all(needs.tokens.into_iter().map(async |token| {
        let read = timeout(READ_LIMIT, port.token(pod, &token)).await;
        let too_late = || "failed to fetch token: context deadline exceeded".to_owned();
        let outcome = read.unwrap_or_else(|_| TokenOutcome::Failed(too_late()));
        (token, outcome)
    }));
    let trust_bundles = join_all(needs.trust_bundles.into_iter().map(async |bundle| {
        let read = timeout(READ_LIMIT, port.trust_bundles(&bundle)).await;
        let too_late = || Fetched::Failed("context deadline exceeded".to_owned());
        (bundle, read.unwrap_or_else(|_| too_late()))
    }));
    let (config_maps, secrets, tokens, trust_bundles) =
        tokio::join!(config_maps, secrets, tokens, trust_bundles);
    ContentObjects {
        trust_bundles: trust_bundles.into_iter().collect(),
        config_maps: config_maps.into_iter().collect(),
        secrets: secrets.into_iter().collect(),
        tokens: tokens.into_iter().collect(),
    }
}

fn too_late(kind: ObjectKind) -> String {
    format!("failed to sync {} cache: timed out waiting for the condition", kind.resource())
}

/// What kind of failure it is, for how long it is waited.
pub(crate) fn cause_of(error: &SetUpError, changes: u64) -> Cause {
    let has_server =
        |failure: &ContentFailure| !matches!(failure, ContentFailure::NoApiServer { .. });
    match error {
        SetUpError::Content(ContentError(failures)) if failures.iter().all(has_server) => {
            Cause::Object { changes }
        }
        _ => Cause::Other,
    }
}
