//! Pods that come and have to be let in, by a whole kubelet on a fake runtime, under paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bed;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bed::IMAGE;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet::KubeletView;
use rubelet_fake_cri::{OnStopSignal, Script, ScriptMatch, tokio_clock};
use rubelet_pod_sources::PodSourceHandle;
use rubelet_pod_sources::defaults::apply_defaults;
use rubelet_types::{EventObject, EventRecorder};
use rubelet_volume_manager::HostMounts;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A machine of four cores, and what runs on it. It outlives kubelets.
struct Machine {
    made_up: bed::Machine,
    events: Arc<Mutex<Vec<String>>>,
}

/// A kubelet on it.
struct Life {
    view: KubeletView,
    pods: PodSourceHandle,
    task: JoinHandle<()>,
}

impl Machine {
    fn new() -> Self {
        Self { made_up: bed::Machine::new(), events: Arc::default() }
    }

    fn has_cores(&self, cores: &str) {
        self.made_up.write("host/sys/devices/system/cpu/online", cores);
    }

    /// What the process of the container `name` does when it is asked to stop.
    fn stops(&self, name: &str, on_stop_signal: OnStopSignal) {
        let script = Script::run_forever().on_stop_signal(on_stop_signal);
        self.made_up.runtime.add_script(ScriptMatch::Container(name.to_owned()), script);
    }

    async fn start(&self) -> Life {
        let clock = tokio_clock(Timestamp::UNIX_EPOCH + Instant::now().elapsed());
        let told = Arc::clone(&self.events);
        let events = EventRecorder::new(move |event| {
            let EventObject::Pod(pod) = event.object else { return };
            let line = format!("{} {}: {}", pod.name, event.reason, event.message);
            told.lock().unwrap().push(line);
        });
        let mut handle = None;
        let alone = |pods, _| {
            handle = Some(pods);
            None
        };
        let kubelet = self.made_up.kubelet(clock, events, Arc::new(HostMounts), alone).await;
        let pods = handle.unwrap();
        let view = kubelet.view();
        let task = tokio::spawn(async move {
            kubelet.run(CancellationToken::new()).await.unwrap();
        });
        Life { view, pods, task }
    }

    fn is_running(&self, pod: &str) -> bool {
        self.made_up.runtime.inventory().running(pod).next().is_some()
    }

    fn events_of(&self, pod: &str) -> Vec<String> {
        let events = self.events.lock().unwrap();
        let lines = events.iter().filter_map(|line| line.strip_prefix(pod)?.strip_prefix(' '));
        lines.map(str::to_owned).collect()
    }
}

impl Life {
    fn status(&self, pod: &str) -> PodStatus {
        let pods = self.view.pods();
        let found = pods.into_iter().find(|other| other.metadata.name.as_deref() == Some(pod));
        found.and_then(|pod| pod.status).unwrap_or_default()
    }

    async fn die(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

fn pod(name: &str, cpu: &str, spec: Value) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"containers": [{
            "name": name, "image": IMAGE, "resources": {"requests": {"cpu": cpu}},
        }]},
    }))
    .unwrap();
    let mut whole = serde_json::to_value(&pod.spec).unwrap();
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod.spec = serde_json::from_value(whole).unwrap();
    apply_defaults(&mut pod);
    pod
}

fn critical(name: &str, cpu: &str) -> Pod {
    pod(name, cpu, json!({"priority": 2_000_000_000}))
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(Duration::from_secs(600), wait).await.is_ok(), "never: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_starts_when_those_that_made_room_have_ended_and_holds_up_nobody() {
    let machine = Machine::new();
    machine.stops("web", OnStopSignal::Exit { after: Duration::from_secs(20), code: 0 });
    let life = machine.start().await;
    let web = pod("web", "3", json!({"priority": 0}));
    let idle = pod("idle", "0", json!({"priority": 0}));
    assert!(life.pods.set(vec![web.clone(), idle.clone()]).await);
    until("both run", || machine.is_running("web") && machine.is_running("idle")).await;

    let dns = critical("dns", "2");
    assert!(life.pods.set(vec![web.clone(), idle.clone(), dns.clone()]).await);
    let told = "Preempting: Preempted in order to admit critical pod";
    until("web is preempted", || machine.events_of("web").iter().any(|line| line == told)).await;
    let asked_at = Instant::now();

    // Others come meanwhile: one for whom there is room now, one for whom there will be beside dns,
    // and one who wants what is kept for them.
    let others = [("now", "0"), ("then", "1"), ("large", "2")];
    let others = others.map(|(name, cpu)| pod(name, cpu, json!({})));
    assert!(life.pods.set([web, idle, dns].into_iter().chain(others).collect()).await);
    until("it runs at once", || machine.is_running("now")).await;
    until("large is refused", || life.status("large").phase.as_deref() == Some("Failed")).await;
    assert_eq!(
        life.status("large").message.as_deref(),
        Some(
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 2000, used: 3000, \
             capacity: 4000"
        )
    );
    assert!(asked_at.elapsed() < Duration::from_secs(10), "{:?}", asked_at.elapsed());
    assert!(machine.is_running("web"));
    assert!(!machine.is_running("dns") && !machine.is_running("then"));
    // While a container runs, the pod has not failed.
    assert_eq!(life.status("web").phase.as_deref(), Some("Running"));

    until("dns runs", || machine.is_running("dns")).await;
    assert!(asked_at.elapsed() >= Duration::from_secs(19), "{:?}", asked_at.elapsed());
    until("then runs", || machine.is_running("then")).await;
    assert!(!machine.is_running("web") && machine.is_running("idle"));
    until("web has failed", || life.status("web").phase.as_deref() == Some("Failed")).await;
    let status = life.status("web");
    assert_eq!(status.reason.as_deref(), Some("Preempting"));
    assert_eq!(status.message.as_deref(), Some("Preempted in order to admit critical pod"));
    let conditions = status.conditions.unwrap();
    let condition = conditions.iter().find(|found| found.type_ == "DisruptionTarget").unwrap();
    assert_eq!(condition.status, "True");
    assert_eq!(condition.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(
        condition.message.as_deref(),
        Some("Pod was preempted by Kubelet to accommodate a critical pod.")
    );
    life.die().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_cannot_be_killed_does_not_keep_a_critical_pod_out() {
    let machine = Machine::new();
    let undying = Script::run_forever().survives_kill();
    machine.made_up.runtime.add_script(ScriptMatch::Container("web".to_owned()), undying);
    let life = machine.start().await;
    let web = pod("web", "3", json!({"terminationGracePeriodSeconds": 40}));
    assert!(life.pods.set(vec![web.clone()]).await);
    until("web runs", || machine.is_running("web")).await;
    let asked_at = Instant::now();
    assert!(life.pods.set(vec![web, critical("dns", "2")]).await);
    until("dns runs", || machine.is_running("dns")).await;
    assert!(asked_at.elapsed() >= Duration::from_secs(60), "{:?}", asked_at.elapsed());
    let told = "ExceededGracePeriod: Container runtime did not kill the pod within specified grace \
                period.";
    assert!(machine.events_of("web").iter().any(|line| line == told));
    assert_eq!(life.status("web").phase.as_deref(), Some("Running"));
    life.die().await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_that_is_not_wanted_any_more_never_starts() {
    let machine = Machine::new();
    machine.stops("web", OnStopSignal::Exit { after: Duration::from_secs(20), code: 0 });
    let life = machine.start().await;
    let web = pod("web", "3", json!({}));
    assert!(life.pods.set(vec![web.clone()]).await);
    until("web runs", || machine.is_running("web")).await;
    assert!(life.pods.set(vec![web.clone(), critical("dns", "2")]).await);
    until("web is preempted", || {
        !machine.events_of("web").is_empty()
            && machine.events_of("web").iter().any(|line| line.starts_with("Preempting"))
    })
    .await;
    assert!(life.pods.set(vec![web]).await);
    until("web has failed", || life.status("web").phase.as_deref() == Some("Failed")).await;
    sleep(Duration::from_secs(120)).await;
    assert!(machine.made_up.runtime.inventory().is_gone("dns"));
    life.die().await;
}

#[tokio::test(start_paused = true)]
async fn what_runs_of_a_pod_that_is_refused_after_a_restart_is_ended() {
    let machine = Machine::new();
    machine.stops("web", OnStopSignal::Exit { after: Duration::from_secs(5), code: 0 });
    let life = machine.start().await;
    let web = pod("web", "3", json!({}));
    assert!(life.pods.set(vec![web.clone()]).await);
    until("web runs", || machine.is_running("web")).await;
    life.die().await;

    // The machine has lost half of its cores.
    machine.has_cores("0-1");
    let life = machine.start().await;
    assert!(life.pods.set(vec![web]).await);
    until("web has failed", || life.status("web").phase.as_deref() == Some("Failed")).await;
    assert!(!machine.is_running("web"));
    let status = life.status("web");
    assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
    assert_eq!(
        status.message.as_deref(),
        Some(
            "Pod was rejected: Node didn't have enough resource: cpu, requested: 3000, used: 0, \
             capacity: 2000"
        )
    );
    assert!(status.container_statuses.unwrap()[0].state.as_ref().unwrap().terminated.is_some());
    life.die().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_refused_before_a_restart_is_left_as_it_is() {
    let machine = Machine::new();
    let life = machine.start().await;
    let large = pod("large", "9", json!({}));
    assert!(life.pods.set(vec![large.clone()]).await);
    until("large is refused", || life.status("large").phase.as_deref() == Some("Failed")).await;
    let refused = life.status("large");
    life.die().await;

    // The machine would have room for it now; the API server says that it has failed.
    machine.has_cores("0-15");
    let life = machine.start().await;
    let large = Pod { status: Some(refused.clone()), ..large };
    assert!(life.pods.set(vec![large, pod("small", "1", json!({}))]).await);
    until("small runs", || machine.is_running("small")).await;
    sleep(Duration::from_secs(120)).await;
    assert_eq!(life.status("large"), refused);
    assert!(machine.made_up.runtime.inventory().is_gone("large"));
    life.die().await;
}
