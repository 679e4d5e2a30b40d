//! Why is my pod not running? Gathers what every part of the kubelet knows of one pod, and says what
//! it comes to.

mod causes;
mod text;
mod view;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use rubelet_pleg::{PlegHandle, PlegHealth};
use rubelet_pod_lifecycle::NetworkState;
use rubelet_pod_workers::{PodPort as _, PodWorkers};
use rubelet_server::{PodExplanation, PodExplanations};
use rubelet_types::{
    ContainerKind, ContainerSpec, PodRef, PodSnapshot, ProbeKind, ProbeResult, config_source,
    containers, pod_ref,
};

use crate::executor::Executor;
use crate::pods::DesiredPods;
use view::{Container, ImagePull, Observed, PodView, Probe, Runtime, Status, Volume, Worker};

/// How long the runtime may take to tell what it holds. Whoever asks often asks because it hangs.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Knows whom to ask.
#[derive(Debug)]
pub(crate) struct PodExplainer {
    pub(crate) executor: Arc<Executor>,
    pub(crate) workers: PodWorkers<Executor>,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) pleg: PlegHandle,
}

impl PodExplanations for PodExplainer {
    fn explain(&self, namespace: String, name: String) -> BoxFuture<'_, Option<PodExplanation>> {
        async move {
            let view = self.view(&namespace, &name).await?;
            let text = text::Text(&view).to_string();
            // It has nothing in it that JSON could not say.
            let document = serde_json::to_value(&view).unwrap_or_default();
            Some(PodExplanation { document, text })
        }
        .boxed()
    }
}

impl PodExplainer {
    /// None if nobody knows such a pod.
    async fn view(&self, namespace: &str, name: &str) -> Option<PodView> {
        let wanted = self.desired.by_name(namespace, name);
        let reference = match &wanted {
            Some(pod) => pod_ref(pod),
            // One that its source has dropped, or that only the runtime knows.
            None => {
                let mut workers = self.workers.summaries().into_iter().map(|worker| worker.pod);
                workers.find(|pod| *pod.namespace == *namespace && *pod.name == *name)?
            }
        };
        let standing = self.desired.get(&reference.uid).map(|(_, standing)| standing);
        let observed = self.look(&reference).await;
        let now = self.executor.clock.now();
        let status = self.executor.statuses.status(&reference.uid);
        let unknown = Pod::default();
        let pod = wanted.as_deref().unwrap_or(&unknown);
        let of_containers = status.as_ref().map(|known| &known.status);
        let mut view = PodView {
            asked_at: now,
            why: Vec::new(),
            source: wanted.as_deref().map(|pod| config_source(pod).unwrap_or("api").to_owned()),
            admission: standing,
            worker: self.worker(&reference),
            runtime: self.runtime(),
            volumes: self.volumes(pod, &reference, now),
            containers: containers(pod)
                .map(|spec| {
                    let seen = match &observed {
                        Observed::Snapshot(snapshot) => Some(&**snapshot),
                        Observed::Error(_) => None,
                    };
                    self.container(&reference, &spec, of_containers, seen, now)
                })
                .collect(),
            observed,
            status: status.as_ref().map(|known| Status {
                reached_api_server: self.executor.statuses.reached_sink(&reference.uid),
                version: known.version,
                ..told(&known.status)
            }),
            pod: reference,
        };
        view.why = causes::explain(&view);
        Some(view)
    }

    async fn look(&self, pod: &PodRef) -> Observed {
        match tokio::time::timeout(LOOK_LIMIT, self.executor.look(pod)).await {
            Ok(Ok(snapshot)) => Observed::Snapshot(Box::new(snapshot)),
            Ok(Err(error)) => Observed::Error(error),
            Err(_) => Observed::Error(format!("no answer within {} s", LOOK_LIMIT.as_secs())),
        }
    }

    fn worker(&self, pod: &PodRef) -> Option<Worker> {
        let summary =
            self.workers.summaries().into_iter().find(|summary| summary.pod.uid == pod.uid)?;
        let activity = self.workers.activity(&pod.uid)?;
        Some(Worker {
            stage: summary.stage,
            is_removed: summary.is_removed,
            is_orphan: summary.is_orphan,
            actions: activity.actions,
            wakes_at: activity.wakes_at,
            decisions: self.workers.decisions(&pod.uid),
        })
    }

    fn runtime(&self) -> Runtime {
        let state = self.executor.runtime_state.borrow();
        Runtime {
            not_ready: state.ready.clone().err(),
            network_not_ready: match &state.network {
                NetworkState::Ready => None,
                NetworkState::NotReady(message) => Some(message.clone()),
            },
            not_listed: match self.pleg.health() {
                PlegHealth::Healthy => None,
                PlegHealth::Unhealthy(message) => Some(message),
            },
        }
    }

    fn volumes(&self, pod: &Pod, reference: &PodRef, now: Timestamp) -> Vec<Volume> {
        let ready = self.executor.ready_volumes(&reference.uid);
        let mut failures = self.executor.volumes.failures(&reference.uid);
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        volumes
            .map(|volume| {
                let path = ready.as_ref().and_then(|ready| ready.by_name.get(&volume.name));
                let failure = failures.remove(&volume.name);
                Volume {
                    name: volume.name.clone(),
                    is_ready: ready.is_some(),
                    host_path: path.map(|mounted| mounted.host_path.display().to_string()),
                    retry_at: failure.as_ref().map(|failure| after(now, failure.retry_in)),
                    last_error: failure.map(|failure| failure.message),
                }
            })
            .collect()
    }

    fn container(
        &self,
        pod: &PodRef,
        spec: &ContainerSpec<'_>,
        status: Option<&PodStatus>,
        seen: Option<&PodSnapshot>,
        now: Timestamp,
    ) -> Container {
        let name = &spec.container.name;
        let image = spec.container.image.clone().unwrap_or_default();
        let known = status.and_then(|status| container_status(status, name));
        let (state, reason, message, exit_code) = known.map(state_of).unwrap_or_default();
        let newest = seen.and_then(|seen| seen.newest(name));
        let probe = |kind, word| {
            let result = self.executor.probes.result(&pod.uid, name, &newest?.id, kind)?;
            let result = match result {
                ProbeResult::Unknown => "unknown",
                ProbeResult::Success => "success",
                ProbeResult::Failure => "failure",
            };
            Some(Probe { kind: word, result })
        };
        let probes = [
            (ProbeKind::Startup, "startup"),
            (ProbeKind::Readiness, "readiness"),
            (ProbeKind::Liveness, "liveness"),
        ];
        let pull = self.executor.images.pull_state(&pod.uid, &image);
        let last = known.and_then(|known| known.last_state.as_ref()?.terminated.as_ref());
        Container {
            name: name.clone(),
            kind: match spec.kind {
                ContainerKind::Init => "init",
                ContainerKind::Sidecar => "sidecar",
                ContainerKind::Regular => "regular",
                ContainerKind::Ephemeral => "ephemeral",
            },
            state,
            reason,
            message,
            exit_code,
            restart_count: known.map_or(0, |known| known.restart_count),
            ready: known.is_some_and(|known| known.ready),
            last_end: last.map(end_in_words),
            id: newest.map(|newest| newest.id.to_string()),
            image_pull: pull.map(|pull| ImagePull {
                in_flight: pull.in_flight,
                retry_at: pull.retry_in.map(|wait| after(now, wait)),
                last_error: pull.last_error,
            }),
            probes: probes.into_iter().filter_map(|(kind, word)| probe(kind, word)).collect(),
            image,
        }
    }
}

fn after(now: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    now.saturating_add(wait).unwrap_or(Timestamp::MAX)
}

fn container_status<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let lists = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.into_iter().flatten().flatten().find(|status| status.name == name)
}

fn state_of(status: &ContainerStatus) -> (&'static str, String, String, Option<i32>) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let Some(state) = &status.state else { return Default::default() };
    if let Some(waiting) = &state.waiting {
        return ("waiting", text(&waiting.reason), text(&waiting.message), None);
    }
    if let Some(ended) = &state.terminated {
        let code = Some(ended.exit_code);
        return ("terminated", text(&ended.reason), text(&ended.message), code);
    }
    let state = if state.running.is_some() { "running" } else { "" };
    (state, String::new(), String::new(), None)
}

fn end_in_words(end: &ContainerStateTerminated) -> String {
    let mut words = format!("ended with exit code {}", end.exit_code);
    if let Some(reason) = &end.reason {
        words += &format!(" ({reason})");
    }
    if let Some(message) = end.message.as_ref().filter(|message| !message.is_empty()) {
        words += &format!(": {}", message.trim_end());
    }
    words
}

/// What a status says; its version and who knows it are for the caller to add.
fn told(status: &PodStatus) -> Status {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let unmet = conditions.iter().filter(|condition| condition.status != "True");
    Status {
        phase: text(&status.phase),
        reason: text(&status.reason),
        message: text(&status.message),
        unmet_conditions: unmet
            .map(|condition| {
                let mut words = format!("{} is {}", condition.type_, condition.status);
                for more in [&condition.reason, &condition.message].into_iter().flatten() {
                    words += &format!(", {more}");
                }
                words
            })
            .collect(),
        is_ready: conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        version: 0,
        reached_api_server: None,
    }
}
