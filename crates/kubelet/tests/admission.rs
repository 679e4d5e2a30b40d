//! Pods that come and have to be let in, by a whole kubelet on a fake runtime, under paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet::{Invocation, KubeletView, Node, Parts};
use rubelet_container_manager::CgroupDriver;
use rubelet_cri::CriOptions;
use rubelet_fake_cri::{FakeOptions, FakeRuntime, OnStopSignal, Script, ScriptMatch, tokio_clock};
use rubelet_linux::Host;
use rubelet_pod_sources::defaults::apply_defaults;
use rubelet_pod_sources::{PodSource, PodSourceHandle};
use rubelet_types::{EventObject, EventRecorder, NodePaths};
use rubelet_volume_manager::HostMounts;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "registry.example/app:1";

/// A machine of four cores, and what runs on it. It outlives kubelets.
struct Machine {
    files: tempfile::TempDir,
    runtime: FakeRuntime,
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
        let files = tempfile::tempdir().unwrap();
        let machine = Self {
            files,
            runtime: FakeRuntime::new(FakeOptions {
                clock: tokio_clock(Timestamp::UNIX_EPOCH),
                ..FakeOptions::default()
            }),
            events: Arc::default(),
        };
        machine.runtime.add_image(IMAGE, 1 << 20);
        for (path, content) in [
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", "30 23 0:26 / /cgroup rw - cgroup2 cgroup2 rw\n"),
            ("cgroup/cgroup.controllers", "cpuset cpu memory pids\n"),
            ("cgroup/memory.current", "0\n"),
            ("proc/meminfo", "MemTotal: 16777216 kB\nSwapTotal: 0 kB\n"),
            ("proc/swaps", "Filename Type Size Used Priority\n"),
            ("proc/sys/kernel/pid_max", "32768\n"),
            ("proc/sys/kernel/threads-max", "100000\n"),
            ("proc/sys/vm/overcommit_memory", "1"),
            ("proc/sys/vm/panic_on_oom", "0"),
            ("proc/sys/kernel/panic", "10"),
            ("proc/sys/kernel/panic_on_oops", "1"),
            ("proc/sys/kernel/keys/root_maxkeys", "1000000"),
            ("proc/sys/kernel/keys/root_maxbytes", "25000000"),
        ] {
            write(&machine.files.path().join("host").join(path), content);
        }
        machine.has_cores("0-3");
        write(&machine.files.path().join("resolv.conf"), "nameserver 10.0.0.10\n");
        machine
    }

    fn has_cores(&self, cores: &str) {
        write(&self.files.path().join("host/sys/devices/system/cpu/online"), cores);
    }

    /// What the process of the container `name` does when it is asked to stop.
    fn stops(&self, name: &str, on_stop_signal: OnStopSignal) {
        let script = Script::run_forever().on_stop_signal(on_stop_signal);
        self.runtime.add_script(ScriptMatch::Container(name.to_owned()), script);
    }

    async fn start(&self) -> Life {
        let path = |name: &str| self.files.path().join(name);
        let arguments = [
            "--cgroups-per-qos=false".to_owned(),
            "--enforce-node-allocatable=".to_owned(),
            "--fail-cgroupv1=false".to_owned(),
            format!("--root-dir={}", path("kubelet").display()),
            format!("--resolv-conf={}", path("resolv.conf").display()),
        ];
        let invocation = rubelet_config::load(arguments.map(Into::into)).unwrap();
        let Invocation::Run(effective) = invocation else { panic!("no kubelet to run") };
        let paths = NodePaths::new(path("kubelet"), path("pod-logs"), path("container-logs"));
        for dir in [paths.pods_dir().as_path(), paths.pod_logs(), paths.container_logs()] {
            fs::create_dir_all(dir).unwrap();
        }
        let clock = tokio_clock(Timestamp::UNIX_EPOCH + Instant::now().elapsed());
        let told = Arc::clone(&self.events);
        let events = EventRecorder::new(move |event| {
            let EventObject::Pod(pod) = event.object else { return };
            let line = format!("{} {}: {}", pod.name, event.reason, event.message);
            told.lock().unwrap().push(line);
        });
        let host = Host::at(path("host"));
        let manager = kubelet::start_container_manager(
            &effective,
            CgroupDriver::Cgroupfs,
            host,
            events.clone(),
        );
        let container_manager = manager.await.unwrap();
        let node = Node { name: "n1".to_owned(), ips: vec![[10, 0, 0, 1].into()] };
        let mut sources =
            kubelet::pod_sources(&effective, &node, clock.clone(), events.clone()).unwrap();
        let pods = sources.0.register_source(PodSource::Api);
        let kubelet = kubelet::assemble(Parts {
            effective: &effective,
            node,
            paths,
            clock,
            events,
            cri: self.runtime.client(CriOptions::default()),
            runtime_name: "fake".to_owned(),
            container_manager,
            mounts: Arc::new(HostMounts),
            sources,
            cluster: None,
            concurrent_starts: 8,
            started: Instant::now(),
        });
        let view = kubelet.view();
        let task = tokio::spawn(async move {
            kubelet.run(CancellationToken::new()).await.unwrap();
        });
        Life { view, pods, task }
    }

    fn is_running(&self, pod: &str) -> bool {
        self.runtime.inventory().running(pod).next().is_some()
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

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
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
    machine.runtime.add_script(ScriptMatch::Container("web".to_owned()), undying);
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
    assert!(machine.runtime.inventory().is_gone("dns"));
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
    assert!(machine.runtime.inventory().is_gone("large"));
    life.die().await;
}
