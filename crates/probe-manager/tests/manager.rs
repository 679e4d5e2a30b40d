//! The probe manager with a fake container behind it, in paused time.

#![allow(clippy::unwrap_used)] // Clippy takes helpers outside of test functions for production code.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use rubelet_container_http::{ErroredAs, ProbeOutcome};
use rubelet_metrics::{Format, Registry};
use rubelet_probe_manager::{ProbeJob, ProbeManager, ProbePort, ProbeUpdates};
use rubelet_types::ProbeKind::{Liveness, Readiness, Startup};
use rubelet_types::{
    Clock, ContainerAnnotations, ContainerSnapshot, ContainerState, EventRecorder, PodRef,
    PodSnapshot, PodUid, ProbeKind, ProbeResult, ProbeUpdate, pod_ref,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

/// How a container answers one of its probes.
#[derive(Clone, Debug)]
struct Health {
    answers: ProbeOutcome,
    after: Duration,
}

fn well() -> ProbeOutcome {
    ProbeOutcome::Success(String::new())
}

fn ill() -> ProbeOutcome {
    ProbeOutcome::Failure("no answer".to_owned())
}

/// Containers of all pods: how they answer, and who asked when.
#[derive(Clone, Debug, Default)]
struct Containers(Arc<Mutex<World>>);

#[derive(Debug, Default)]
struct World {
    health: HashMap<(String, ProbeKind), Health>,
    asked: Vec<(String, ProbeKind, String, Instant)>,
}

impl Containers {
    /// Of pod `pod`, the probe `kind` answers so from now on.
    fn set(&self, pod: &str, kind: ProbeKind, answers: ProbeOutcome, after: Duration) {
        let health = Health { answers, after };
        self.0.lock().unwrap().health.insert((pod.to_owned(), kind), health);
    }

    fn set_at_once(&self, pod: &str, kind: ProbeKind, answers: ProbeOutcome) {
        self.set(pod, kind, answers, Duration::ZERO);
    }
}

impl ProbePort for Containers {
    async fn attempt(&self, job: &ProbeJob) -> ProbeOutcome {
        let pod = pod_ref(&job.pod).uid.as_str().to_owned();
        let health = {
            let mut world = self.0.lock().unwrap();
            let id = job.container_id.as_str().to_owned();
            world.asked.push((pod.clone(), job.kind, id, Instant::now()));
            world.health.get(&(pod, job.kind)).cloned()
        };
        let Some(health) = health else { return well() };
        sleep(health.after).await;
        health.answers
    }
}

struct Bed {
    manager: ProbeManager<Containers>,
    updates: ProbeUpdates,
    containers: Containers,
    events: Arc<Mutex<Vec<String>>>,
    clock: Clock,
    started: Instant,
}

impl Bed {
    /// A kubelet that has been up for an hour.
    async fn new() -> Self {
        let bed = Self::just_started();
        sleep(Duration::from_secs(3600)).await;
        Self { started: Instant::now(), ..bed }
    }

    fn just_started() -> Self {
        let started = Instant::now();
        let clock = Clock::from_fn(move || {
            Timestamp::from_second(1_700_000_000).unwrap()
                + SignedDuration::try_from(started.elapsed()).unwrap()
        });
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = events.clone();
        let recorder = EventRecorder::new(move |event| {
            sink.lock().unwrap().push(format!("{event:?}"));
        });
        let containers = Containers::default();
        let (manager, updates) =
            ProbeManager::new(containers.clone(), clock.clone(), recorder, started);
        Self { manager, updates, containers, events, clock, started }
    }

    /// A running container `c` of a pod whose uid is its name.
    fn set(&self, pod: &Arc<Pod>, id: &str, state: ContainerState) {
        let snapshot = PodSnapshot {
            containers: vec![container(id, state)],
            ..PodSnapshot::empty(pod_ref(pod), self.clock.now())
        };
        self.manager.set_pod(pod, &snapshot, &["10.0.0.1".to_owned()]);
    }

    fn run(&self, pod: &Arc<Pod>, id: &str) {
        self.set(pod, id, ContainerState::Running { started_at: self.clock.now() });
    }

    fn result(&self, pod: &str, id: &str, kind: ProbeKind) -> Option<ProbeResult> {
        self.manager.result(&pod.into(), "c", &id.into(), kind)
    }

    /// Seconds since the bed was made at which the probe was asked.
    fn asked(&self, pod: &str, kind: ProbeKind) -> Vec<f64> {
        let world = self.containers.0.lock().unwrap();
        let asked = world.asked.iter().filter(|(uid, of, ..)| uid == pod && *of == kind);
        asked.map(|(.., at)| (*at - self.started).as_secs_f64()).collect()
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    async fn expect_update(&mut self, id: &str, kind: ProbeKind, result: ProbeResult) {
        let update = timeout(Duration::from_secs(3600), self.updates.recv()).await.unwrap();
        let expected = ProbeUpdate {
            pod: update.pod.clone(),
            container: "c".to_owned(),
            container_id: id.into(),
            kind,
            result,
        };
        assert_eq!(update, expected);
    }

    fn elapsed(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

fn container(id: &str, state: ContainerState) -> ContainerSnapshot {
    ContainerSnapshot {
        id: id.into(),
        name: "c".to_owned(),
        sandbox_id: None,
        state,
        created_at: Timestamp::UNIX_EPOCH,
        image: String::new(),
        image_ref: String::new(),
        hash: String::new(),
        restart_count: 0,
        annotations: ContainerAnnotations::default(),
        resources: None,
        user: None,
        log_path: String::new(),
        mounts: std::collections::BTreeMap::new(),
        stop_signal: None,
    }
}

fn exited() -> ContainerState {
    ContainerState::Exited {
        started_at: None,
        finished_at: Timestamp::UNIX_EPOCH,
        exit_code: 1,
        reason: "Error".to_owned(),
        message: String::new(),
    }
}

/// A pod named `name` with the probes given, each of them a TCP probe unless it says otherwise.
fn pod(name: &str, probes: &[(ProbeKind, Value)]) -> Arc<Pod> {
    let mut container = json!({"name": "c"});
    for (kind, probe) in probes {
        let mut probe = probe.clone();
        if probe.get("exec").is_none() {
            probe["tcpSocket"] = json!({"port": 80});
        }
        let field = match kind {
            Liveness => "livenessProbe",
            Readiness => "readinessProbe",
            Startup => "startupProbe",
        };
        container[field] = probe;
    }
    let pod = json!({
        "metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"containers": [container]},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn every(seconds: u32) -> Value {
    json!({"periodSeconds": seconds})
}

#[tokio::test(start_paused = true)]
async fn liveness_fails_at_its_threshold_and_holds_until_the_container_is_replaced() {
    let mut bed = Bed::new().await;
    let pod = pod("p", &[(Liveness, every(10))]);
    bed.containers.set_at_once("p", Liveness, ill());
    bed.run(&pod, "a");
    assert_eq!(bed.result("p", "a", Liveness), Some(ProbeResult::Success));
    bed.expect_update("a", Liveness, ProbeResult::Failure).await;
    assert_eq!(bed.elapsed(), 20.0);
    assert_eq!(bed.asked("p", Liveness), [0.0, 10.0, 20.0]);
    assert_eq!(bed.result("p", "a", Liveness), Some(ProbeResult::Failure));

    sleep(Duration::from_secs(15)).await;
    assert_eq!(bed.manager.active_probes(), 0);
    bed.set(&pod, "a", exited());
    bed.containers.set_at_once("p", Liveness, well());
    bed.run(&pod, "b");
    assert_eq!(bed.result("p", "a", Liveness), None);
    assert_eq!(bed.result("p", "b", Liveness), Some(ProbeResult::Success));
    sleep(Duration::from_secs(16)).await;
    // The schedule is the one of before, whenever the container came.
    assert_eq!(bed.asked("p", Liveness)[3..], [40.0, 50.0]);
    assert_eq!(bed.updates.try_recv(), None);
}

#[tokio::test(start_paused = true)]
async fn nothing_but_startup_is_probed_until_the_container_has_started() {
    let mut bed = Bed::new().await;
    let pod = pod("p", &[(Startup, every(3)), (Liveness, every(10)), (Readiness, every(10))]);
    bed.containers.set_at_once("p", Startup, ill());
    bed.run(&pod, "a");
    sleep(Duration::from_secs(5)).await;
    assert_eq!(bed.result("p", "a", Startup), Some(ProbeResult::Unknown));
    assert_eq!(bed.manager.active_probes(), 1);
    bed.containers.set_at_once("p", Startup, well());
    bed.expect_update("a", Startup, ProbeResult::Success).await;
    bed.expect_update("a", Readiness, ProbeResult::Success).await;
    sleep(Duration::from_millis(30_500)).await;
    assert_eq!(bed.asked("p", Startup), [0.0, 3.0, 6.0]);
    // Readiness at once, and every period from there; liveness on its schedule.
    assert_eq!(bed.asked("p", Readiness), [6.0, 16.0, 26.0, 36.0]);
    assert_eq!(bed.asked("p", Liveness), [10.0, 20.0, 30.0]);
}

#[tokio::test(start_paused = true)]
async fn a_startup_probe_that_never_succeeds_fails_the_container() {
    let mut bed = Bed::new().await;
    let pod = pod("p", &[(Startup, json!({"periodSeconds": 1, "failureThreshold": 30}))]);
    bed.containers.set_at_once("p", Startup, ill());
    bed.run(&pod, "a");
    bed.expect_update("a", Startup, ProbeResult::Failure).await;
    assert_eq!(bed.elapsed(), 29.0);
    assert_eq!(bed.manager.active_probes(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_initial_delay_counts_from_the_start_of_the_container() {
    let bed = Bed::new().await;
    let delayed = json!({"periodSeconds": 2, "initialDelaySeconds": 5});
    let pod = pod("p", &[(Readiness, delayed.clone()), (Liveness, delayed)]);
    let empty = PodSnapshot::empty(pod_ref(&pod), bed.clock.now());
    bed.manager.set_pod(&pod, &empty, &[]);
    sleep(Duration::from_secs(1)).await;
    bed.run(&pod, "a");
    bed.manager.trigger_readiness(&"p".into());
    assert_eq!(bed.result("p", "a", Readiness), Some(ProbeResult::Failure));
    sleep(Duration::from_secs(8)).await;
    assert_eq!(bed.asked("p", Liveness), [6.0, 8.0]);
    assert_eq!(bed.asked("p", Readiness), [6.0, 8.0]);
}

#[tokio::test(start_paused = true)]
async fn a_new_container_is_made_ready_as_soon_as_it_is() {
    let mut bed = Bed::new().await;
    let pod = pod("p", &[(Readiness, every(10))]);
    let empty = PodSnapshot::empty(pod_ref(&pod), bed.clock.now());
    bed.manager.set_pod(&pod, &empty, &[]);
    sleep(Duration::from_secs(3)).await;
    bed.containers.set_at_once("p", Readiness, ill());
    bed.run(&pod, "a");
    sleep(Duration::from_secs(4)).await;
    bed.containers.set_at_once("p", Readiness, well());
    bed.manager.trigger_readiness(&"p".into());
    bed.expect_update("a", Readiness, ProbeResult::Success).await;
    assert_eq!(bed.elapsed(), 7.0);
    // Who is ready already is left alone.
    bed.manager.trigger_readiness(&"p".into());
    sleep(Duration::from_secs(21)).await;
    assert_eq!(bed.asked("p", Readiness), [3.0, 7.0, 17.0, 27.0]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_kubelet_moves_nobodys_readiness() {
    let mut bed = Bed::just_started();
    let probes = [(Startup, every(10)), (Readiness, every(10)), (Liveness, every(10))];
    let pods: Vec<_> = (0..200).map(|number| pod(&format!("p{number}"), &probes)).collect();
    sleep(Duration::from_secs(1)).await;
    for (number, pod) in pods.iter().enumerate() {
        let uid = PodUid::new(format!("p{number}"));
        if number % 2 == 0 {
            bed.manager.carry_over(&uid, "c", &"a".into(), true, true);
            bed.run(pod, "a");
        } else {
            bed.run(pod, "a");
            bed.manager.carry_over(&uid, "c", &"a".into(), true, true);
        }
        assert_eq!(bed.result(uid.as_str(), "a", Startup), Some(ProbeResult::Success));
        assert_eq!(bed.result(uid.as_str(), "a", Readiness), Some(ProbeResult::Success));
        assert_eq!(bed.result(uid.as_str(), "a", Liveness), Some(ProbeResult::Success));
    }
    bed.containers.set_at_once("p7", Readiness, ill());
    bed.expect_update("a", Readiness, ProbeResult::Failure).await;
    assert_eq!(bed.updates.try_recv(), None);
    let mut first: Vec<f64> = Vec::new();
    for pod in &pods {
        let uid = pod_ref(pod).uid;
        assert_eq!(bed.asked(uid.as_str(), Startup), [0.0; 0], "startup is not run again");
        first.push(bed.asked(uid.as_str(), Liveness)[0]);
    }
    // All came in the same second; their probes are spread over the period.
    for tenth in 1..11 {
        let start = f64::from(tenth);
        let share = first.iter().filter(|at| (start..start + 1.0).contains(*at)).count();
        assert!((2..60).contains(&share), "{share} of 200 within one tenth of the period");
    }
}

#[tokio::test(start_paused = true)]
async fn users_are_told_why() {
    let bed = Bed::new().await;
    let pod = pod("p", &[(Liveness, json!({"periodSeconds": 10, "failureThreshold": 9}))]);
    bed.run(&pod, "a");
    let erring = ProbeOutcome::Error {
        state: ErroredAs::Unknown,
        message: "rpc error: code = Unknown desc = x".to_owned(),
    };
    for (answers, attempts, expected) in [
        (well(), 1, None),
        (ill(), 1, Some("Unhealthy\", message: \"Liveness probe failed: no answer\"")),
        (
            ProbeOutcome::Warning("odd".to_owned()),
            1,
            Some("ProbeWarning\", message: \"Liveness probe warning: odd\""),
        ),
        (
            erring,
            3,
            Some(
                "Unhealthy\", message: \"Liveness probe errored and resulted in unknown state: rpc \
                 error: code = Unknown desc = x\"",
            ),
        ),
    ] {
        sleep(Duration::from_secs(1)).await;
        bed.containers.set_at_once("p", Liveness, answers);
        let before = bed.asked("p", Liveness).len();
        bed.events();
        sleep(Duration::from_secs(9)).await;
        sleep(Duration::from_millis(1)).await;
        assert_eq!(bed.asked("p", Liveness).len() - before, attempts);
        let expected: Vec<String> = expected
            .iter()
            .map(|rest| {
                format!(
                    "Event {{ object: Container {{ pod: PodRef(p_n(p)), field_path: \
                     \"spec.containers{{c}}\" }}, event_type: Warning, reason: \"{rest}, annotations: {{}} }}"
                )
            })
            .collect();
        assert_eq!(bed.events(), expected);
    }
    let metrics = bed.manager.metrics();
    assert_eq!(metrics.len(), 1);
    // The first probe of all, the one that was well, and the warning; errors count nowhere.
    assert_eq!((metrics[0].successful, metrics[0].failed), (3, 1));
    assert_eq!(metrics[0].durations.counts[0], 3);
    assert_eq!(metrics[0].pod, PodRef::new("p", "n", "p"));
    let registry = Registry::new().with(Arc::new(bed.manager.clone()));
    let text = registry.expose(Format::Prometheus);
    let labels = "container=\"c\",namespace=\"n\",pod=\"p\"";
    for line in [
        format!(
            "prober_probe_total{{{labels},pod_uid=\"p\",probe_type=\"Liveness\",result=\"successful\"}} 3"
        ),
        format!(
            "prober_probe_total{{{labels},pod_uid=\"p\",probe_type=\"Liveness\",result=\"failed\"}} 1"
        ),
        format!(
            "prober_probe_duration_seconds_bucket{{{labels},probe_type=\"Liveness\",le=\"0.005\"}} 3"
        ),
        format!("prober_probe_duration_seconds_count{{{labels},probe_type=\"Liveness\"}} 3"),
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    bed.manager.remove_pod(&"p".into());
    assert_eq!(registry.expose(Format::Prometheus), "");
}

#[tokio::test(start_paused = true)]
async fn errors_change_no_result() {
    let mut bed = Bed::new().await;
    let pod = pod("p", &[(Readiness, json!({"periodSeconds": 1, "failureThreshold": 1}))]);
    bed.run(&pod, "a");
    bed.expect_update("a", Readiness, ProbeResult::Success).await;
    let answers = ProbeOutcome::Error { state: ErroredAs::Failure, message: String::new() };
    bed.containers.set_at_once("p", Readiness, answers);
    sleep(Duration::from_millis(59_500)).await;
    assert_eq!(bed.updates.try_recv(), None);
    assert_eq!(bed.result("p", "a", Readiness), Some(ProbeResult::Success));
    assert_eq!(bed.asked("p", Readiness).len(), 1 + 3 * 59);
}

#[tokio::test(start_paused = true)]
async fn a_terminating_pod_is_not_restarted_and_may_become_unready() {
    for by_deletion_timestamp in [false, true] {
        let mut bed = Bed::new().await;
        let probes = [(Startup, every(1)), (Liveness, every(1)), (Readiness, every(1))];
        let pod = pod("p", &probes);
        bed.run(&pod, "a");
        bed.expect_update("a", Startup, ProbeResult::Success).await;
        bed.expect_update("a", Readiness, ProbeResult::Success).await;
        for kind in [Startup, Liveness, Readiness] {
            bed.containers.set_at_once("p", kind, ill());
        }
        sleep(Duration::from_millis(1500)).await;
        if by_deletion_timestamp {
            let mut deleted = (*pod).clone();
            deleted.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
            bed.run(&Arc::new(deleted), "a");
        } else {
            bed.manager.stop_liveness_and_startup(&"p".into());
        }
        let asked = bed.asked("p", Liveness).len();
        bed.expect_update("a", Readiness, ProbeResult::Failure).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(bed.asked("p", Liveness).len(), asked);
        assert_eq!(bed.result("p", "a", Liveness), Some(ProbeResult::Success));
        assert_eq!(bed.result("p", "a", Startup), Some(ProbeResult::Success));
        assert_eq!(bed.manager.active_probes(), 1);

        bed.manager.remove_pod(&"p".into());
        let asked = bed.asked("p", Readiness).len();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(bed.asked("p", Readiness).len(), asked);
        assert_eq!(bed.result("p", "a", Readiness), None);
        assert_eq!(bed.manager.metrics(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn probes_in_flight_end_with_their_pod() {
    let bed = Bed::new().await;
    let pod = pod("p", &[(Liveness, every(1))]);
    bed.containers.set("p", Liveness, ill(), Duration::from_secs(600));
    bed.run(&pod, "a");
    sleep(Duration::from_secs(1)).await;
    bed.manager.remove_pod(&"p".into());
    sleep(Duration::from_secs(700)).await;
    assert_eq!(bed.events(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_probe_without_anything_to_do_costs_no_task() {
    let bed = Bed::new().await;
    let pod = pod("p", &[(Startup, every(1)), (Liveness, every(1)), (Readiness, every(1))]);
    bed.manager.set_pod(&pod, &PodSnapshot::empty(pod_ref(&pod), bed.clock.now()), &[]);
    assert_eq!(bed.manager.active_probes(), 0);
    bed.set(&pod, "a", ContainerState::Created);
    assert_eq!(bed.manager.active_probes(), 0);
    bed.run(&pod, "a");
    assert_eq!(bed.manager.active_probes(), 1);
    sleep(Duration::from_secs(2)).await;
    assert_eq!(bed.manager.active_probes(), 2);
    bed.set(&pod, "a", exited());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(bed.manager.active_probes(), 0);
    for kind in [Liveness, Readiness] {
        assert_eq!(bed.result("p", "a", kind), Some(ProbeResult::Failure));
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_is_asked_at_no_address() {
    let bed = Bed::new().await;
    let pod = pod("p", &[(Liveness, every(1))]);
    let started_at = bed.clock.now();
    let snapshot = PodSnapshot {
        containers: vec![container("a", ContainerState::Running { started_at })],
        ..PodSnapshot::empty(pod_ref(&pod), started_at)
    };
    bed.manager.set_pod(&pod, &snapshot, &[]);
    sleep(Duration::from_millis(2500)).await;
    assert_eq!(bed.asked("p", Liveness), [0.0; 0]);
    bed.manager.set_pod(&pod, &snapshot, &["10.0.0.1".to_owned()]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bed.asked("p", Liveness), [3.0]);
}

#[tokio::test(start_paused = true)]
async fn six_hundred_probes_a_second_keep_their_schedule() {
    let bed = Bed::new().await;
    let probes = [(Liveness, every(1)), (Readiness, every(1))];
    for number in 0..300 {
        let name = format!("p{number}");
        let pod = pod(&name, &probes);
        bed.containers.set(&name, Liveness, well(), Duration::from_millis(20));
        bed.containers.set(&name, Readiness, well(), Duration::from_millis(20));
        bed.run(&pod, "a");
    }
    sleep(Duration::from_millis(30_500)).await;
    for number in 0..300 {
        for kind in [Liveness, Readiness] {
            let asked = bed.asked(&format!("p{number}"), kind);
            assert_eq!(asked.len(), 31);
            for (second, at) in (0..31).zip(asked) {
                let late = at - f64::from(second);
                assert!((0.0..0.1).contains(&late), "{late} s late");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn commands_that_hang_delay_nobody_else() {
    let bed = Bed::new().await;
    let exec = json!({"periodSeconds": 1, "exec": {"command": ["x"]}});
    for number in 0..63 {
        let name = format!("hung{number}");
        bed.containers.set(&name, Liveness, ill(), Duration::from_secs(3600));
        bed.run(&pod(&name, &[(Liveness, exec.clone())]), "a");
    }
    bed.run(&pod("command", &[(Liveness, exec)]), "a");
    bed.run(&pod("network", &[(Liveness, every(1))]), "a");
    sleep(Duration::from_millis(5500)).await;
    for name in ["command", "network"] {
        assert_eq!(bed.asked(name, Liveness), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_probe_is_followed_at_once_by_one_more() {
    let bed = Bed::new().await;
    bed.containers.set("p", Liveness, well(), Duration::from_millis(2500));
    bed.run(&pod("p", &[(Liveness, every(1))]), "a");
    sleep(Duration::from_secs(8)).await;
    assert_eq!(bed.asked("p", Liveness), [0.0, 2.5, 5.0, 7.5]);
}

#[tokio::test(start_paused = true)]
async fn everything_stops_with_the_last_handle() {
    let bed = Bed::new().await;
    bed.run(&pod("p", &[(Liveness, every(1))]), "a");
    sleep(Duration::from_millis(500)).await;
    let Bed { manager, containers, .. } = bed;
    drop(manager);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(containers.0.lock().unwrap().asked.len(), 1);
}
