//! Pods that the node ends, and who waits for that.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_pod_lifecycle::{
    Action, ActionOutcome, BackOffSettings, Disruption, NetworkState, ResizeDue, Stage, StopCause,
};
use rubelet_pod_workers::{ActionOrder, Beginning, PodPort, PodReport, PodWorkers};
use rubelet_types::{
    Clock, ContainerAnnotations, ContainerId, ContainerSnapshot, ContainerState, PodRef,
    PodSnapshot, PodUid, ProbeKind, ProbeResult, SandboxId, SandboxSnapshot, SandboxState,
    container_hash, pod_ref,
};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A runtime that does what it is asked, except that a container may take its time to stop.
struct Runtime {
    clock: Clock,
    stop_takes: Duration,
    start_takes: Duration,
    snapshot: Mutex<PodSnapshot>,
    stages: Mutex<Vec<String>>,
    /// How often it was looked at before the pod's directories were made.
    looks: Mutex<u32>,
    looks_before: Mutex<Option<u32>>,
}

impl Runtime {
    fn change(&self, change: impl FnOnce(&mut PodSnapshot, Timestamp)) {
        change(&mut self.snapshot.lock().unwrap(), self.clock.now());
    }
}

struct Port(Arc<Runtime>);

impl PodPort for Port {
    async fn run(&self, order: ActionOrder, _cancel: CancellationToken) -> ActionOutcome {
        match order.action {
            Action::CreateSandbox { attempt } => {
                let sandbox = SandboxSnapshot {
                    id: SandboxId::new("s"),
                    state: SandboxState::Ready,
                    attempt,
                    created_at: self.0.clock.now(),
                    ips: vec!["10.0.0.1".to_owned()],
                    host_network: false,
                };
                self.0.change(|snapshot, _| snapshot.sandboxes.insert(0, sandbox.clone()));
                ActionOutcome::SandboxCreated(sandbox)
            }
            Action::StartContainer(start) => {
                sleep(self.0.start_takes).await;
                let container = ContainerSnapshot {
                    id: ContainerId::new("c1"),
                    name: start.name.clone(),
                    sandbox_id: Some(start.sandbox),
                    state: ContainerState::Running { started_at: self.0.clock.now() },
                    restart_count: 0,
                    created_at: self.0.clock.now(),
                    image: "image".to_owned(),
                    image_ref: String::new(),
                    hash: container_hash(&start.name, "image"),
                    annotations: ContainerAnnotations::default(),
                    resources: None,
                    user: None,
                    mounts: BTreeMap::new(),
                    log_path: String::new(),
                    stop_signal: None,
                };
                self.0.change(|snapshot, _| snapshot.containers.insert(0, container.clone()));
                ActionOutcome::ContainerStarted(Box::new(container))
            }
            Action::StopContainer(_) => {
                sleep(self.0.stop_takes).await;
                self.0.change(|snapshot, now| {
                    for container in &mut snapshot.containers {
                        container.state = ContainerState::Exited {
                            started_at: None,
                            finished_at: now,
                            exit_code: 137,
                            reason: "Error".to_owned(),
                            message: String::new(),
                        };
                    }
                });
                ActionOutcome::Done
            }
            Action::StopSandbox { .. } => {
                self.0.change(|snapshot, _| {
                    for sandbox in &mut snapshot.sandboxes {
                        sandbox.state = SandboxState::NotReady;
                    }
                });
                ActionOutcome::Done
            }
            Action::PreparePod => {
                let looks = *self.0.looks.lock().unwrap();
                self.0.looks_before.lock().unwrap().get_or_insert(looks);
                ActionOutcome::Done
            }
            _ => ActionOutcome::Done,
        }
    }

    async fn look(&self, _pod: &PodRef) -> Result<PodSnapshot, String> {
        *self.0.looks.lock().unwrap() += 1;
        let mut snapshot = self.0.snapshot.lock().unwrap().clone();
        snapshot.taken_at = self.0.clock.now();
        Ok(snapshot)
    }

    fn network(&self) -> NetworkState {
        NetworkState::Ready
    }

    fn probe_result(
        &self,
        _pod: &PodUid,
        _container: &str,
        _id: &ContainerId,
        _kind: ProbeKind,
    ) -> Option<ProbeResult> {
        None
    }

    fn resize_due(&self, _pod: &Arc<Pod>) -> Option<ResizeDue> {
        None
    }

    fn report(&self, report: &PodReport<'_>) {
        let line = match report.stage {
            Stage::Waiting => "waiting".to_owned(),
            Stage::Syncing => "syncing".to_owned(),
            Stage::Terminating { cause, grace_seconds, .. } => {
                format!("terminating in {grace_seconds}s, {}", name(cause))
            }
            Stage::Terminated { cause, .. } => format!("terminated, {}", name(cause)),
            Stage::Finished { cause } => format!("finished, {}", name(cause)),
        };
        let mut stages = self.0.stages.lock().unwrap();
        if stages.last() != Some(&line) {
            stages.push(line);
        }
    }

    fn forget(&self, _pod: &PodRef) {}
}

fn name(cause: &StopCause) -> String {
    match cause {
        StopCause::Disrupted(disruption) => {
            format!("{}: {}", disruption.reason, disruption.message)
        }
        other => format!("{other:?}"),
    }
}

fn preempting() -> StopCause {
    StopCause::Disrupted(Arc::new(Disruption {
        reason: "Preempting".to_owned(),
        message: "make room".to_owned(),
        condition: None,
    }))
}

fn pod() -> Arc<Pod> {
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {
            "terminationGracePeriodSeconds": 20,
            "containers": [{"name": "c", "image": "image"}],
        },
    }));
    Arc::new(pod.unwrap())
}

fn bed(stop_takes: Duration) -> (PodWorkers<Port>, Arc<Runtime>) {
    slow_bed(Duration::ZERO, stop_takes)
}

fn slow_bed(start_takes: Duration, stop_takes: Duration) -> (PodWorkers<Port>, Arc<Runtime>) {
    let start = Instant::now();
    let clock = Clock::from_fn(move || Timestamp::UNIX_EPOCH + start.elapsed());
    let runtime = Arc::new(Runtime {
        clock: clock.clone(),
        stop_takes,
        start_takes,
        snapshot: Mutex::new(PodSnapshot::empty(pod_ref(&pod()), clock.now())),
        stages: Mutex::default(),
        looks: Mutex::default(),
        looks_before: Mutex::default(),
    });
    let back_off = BackOffSettings::default();
    (PodWorkers::new(Arc::new(Port(runtime.clone())), clock, back_off), runtime)
}

async fn until(runtime: &Runtime, stage: &str) {
    let reached = async {
        while !runtime.stages.lock().unwrap().iter().any(|line| line.starts_with(stage)) {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(600), reached).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_the_end_of_a_pod_is_told_when_nothing_of_it_can_run() {
    let (workers, runtime) = bed(Duration::from_secs(7));
    let uid = PodUid::new("u");
    assert!(workers.terminated(&uid).await, "nobody works on it");
    workers.add(pod(), Beginning::default());
    until(&runtime, "syncing").await;
    sleep(Duration::from_secs(5)).await;
    let waits = tokio::spawn(workers.terminated(&uid));
    sleep(Duration::from_secs(60)).await;
    assert!(!waits.is_finished());

    assert!(workers.activity(&uid).unwrap().actions.is_empty());

    workers.stop(&uid, preempting(), None);
    let stopped_at = Instant::now();
    sleep(Duration::from_secs(3)).await;
    let activity = workers.activity(&uid).unwrap();
    let [action] = &*activity.actions else { panic!("{activity:?}") };
    assert!(action.action.starts_with("Stop"), "{action:?}");
    assert!(runtime.clock.now().duration_since(action.since).as_secs() >= 2, "{action:?}");
    assert!(waits.await.unwrap());
    assert!(stopped_at.elapsed() >= Duration::from_secs(7));
    assert!(!runtime.snapshot.lock().unwrap().any_may_run());
    until(&runtime, "finished").await;
    assert_eq!(
        *runtime.stages.lock().unwrap(),
        [
            "syncing",
            "terminating in 20s, Preempting: make room",
            "terminated, Preempting: make room",
            "finished, Preempting: make room",
        ]
    );
    assert!(workers.terminated(&uid).await, "it is over already");
    assert_eq!(workers.activity(&PodUid::new("unknown")), None);
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_asked_first_unless_it_is_known_to_hold_nothing() {
    for holds_nothing in [false, true] {
        let (workers, runtime) = bed(Duration::ZERO);
        workers.add(pod(), Beginning { holds_nothing, ..Beginning::default() });
        until(&runtime, "syncing").await;
        sleep(Duration::from_secs(5)).await;
        let looks = *runtime.looks_before.lock().unwrap();
        assert_eq!(looks, Some(u32::from(!holds_nothing)));
        assert!(runtime.snapshot.lock().unwrap().newest("c").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_added_with_an_end_starts_nothing() {
    let (workers, runtime) = bed(Duration::ZERO);
    workers.add(pod(), Beginning { end: Some(preempting()), ..Beginning::default() });
    until(&runtime, "finished").await;
    assert!(runtime.snapshot.lock().unwrap().containers.is_empty());
    let stages = runtime.stages.lock().unwrap();
    assert!(!stages.iter().any(|stage| stage == "syncing"), "{stages:?}");
}

#[tokio::test(start_paused = true)]
async fn workers_that_are_shut_down_do_not_call_a_pod_ended() {
    let (workers, runtime) = bed(Duration::ZERO);
    let uid = PodUid::new("u");
    workers.add(pod(), Beginning::default());
    until(&runtime, "syncing").await;
    let waits = tokio::spawn(workers.terminated(&uid));
    workers.shut_down().await;
    drop(workers);
    assert!(!waits.await.unwrap());
}

/// The runtime gives a start up when nobody waits for it.
#[tokio::test(start_paused = true)]
async fn a_start_in_flight_is_waited_for_and_a_stop_is_not() {
    let (workers, runtime) = slow_bed(Duration::from_secs(2), Duration::from_secs(600));
    workers.add(pod(), Beginning::default());
    until(&runtime, "syncing").await;
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    workers.shut_down().await;
    assert_eq!(runtime.snapshot.lock().unwrap().containers.len(), 1);
    assert!((500..2000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());

    let (workers, runtime) = slow_bed(Duration::ZERO, Duration::from_secs(600));
    workers.add(pod(), Beginning::default());
    until(&runtime, "syncing").await;
    sleep(Duration::from_secs(1)).await;
    workers.stop(&PodUid::new("u"), preempting(), None);
    sleep(Duration::from_secs(1)).await;
    let begun = Instant::now();
    workers.shut_down().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(runtime.snapshot.lock().unwrap().any_may_run());
}
