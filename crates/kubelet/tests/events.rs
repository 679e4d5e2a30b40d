//! What users are told of a pod by events, by a whole kubelet on a fake runtime, under paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bed;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bed::{IMAGE, Machine};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::Rpc;
use rubelet_fake_cri::{Fault, FaultAction, OnStopSignal, Script, ScriptMatch, tokio_clock};
use rubelet_pod_sources::PodSourceHandle;
use rubelet_pod_sources::defaults::apply_defaults;
use rubelet_types::{EventObject, EventRecorder};
use rubelet_volume_manager::HostMounts;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;

/// A kubelet without an API server.
struct Life {
    machine: Machine,
    pods: PodSourceHandle,
    told: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Life {
    async fn start(machine: Machine) -> Self {
        let script = Script::run_forever()
            .on_stop_signal(OnStopSignal::Exit { after: Duration::ZERO, code: 0 });
        machine.runtime.add_script(ScriptMatch::Container("app".to_owned()), script);
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let sink = told.clone();
        let events = EventRecorder::new(move |event| {
            let of = if event.object == EventObject::Node { "node" } else { "pod" };
            let kind = event.event_type.as_str();
            let line = format!("{of} {kind} {}: {}", event.reason, event.message);
            sink.lock().unwrap().push(line);
        });
        let mut handle = None;
        let alone = |pods, _| {
            handle = Some(pods);
            None
        };
        let clock = tokio_clock(Timestamp::UNIX_EPOCH);
        let kubelet = machine.kubelet(clock, events, Arc::new(HostMounts), alone).await;
        let pods = handle.unwrap();
        let task = tokio::spawn(async move {
            kubelet.run(CancellationToken::new()).await.unwrap();
        });
        Self { machine, pods, told, task }
    }

    async fn wants(&self, names: &[&str]) {
        let pods = names.iter().map(|name| {
            let mut pod: Pod = serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"containers": [{"name": "app", "image": IMAGE}]},
            }))
            .unwrap();
            apply_defaults(&mut pod);
            pod
        });
        assert!(self.pods.set(pods.collect()).await);
    }

    fn runs(&self, pod: &str) -> bool {
        self.machine.runtime.inventory().running(pod).next().is_some()
    }

    fn is_told(&self, beginning: &str) -> bool {
        self.told.lock().unwrap().iter().any(|line| line.starts_with(beginning))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn refuses() -> FaultAction {
    FaultAction::Error(Code::Internal, "it does not want to".to_owned())
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
async fn a_start_a_lost_sandbox_and_a_stop_that_fails_are_told() {
    let life = Life::start(Machine::new()).await;
    life.wants(&["web"]).await;
    until("it runs", || life.runs("web")).await;
    assert!(life.is_told("node Normal Starting: Starting kubelet."));

    let inventory = life.machine.runtime.inventory();
    assert!(life.machine.runtime.kill_sandbox(&inventory.sandboxes[0].id));
    let changed =
        "pod Normal SandboxChanged: Pod sandbox changed, it will be killed and re-created.";
    until("its end is told", || life.is_told(changed)).await;
    until("it runs again", || life.runs("web")).await;

    life.machine.runtime.inject(Fault::on(Rpc::StopContainer, refuses()).times(1));
    life.wants(&[]).await;
    until("the failure is told", || life.is_told("pod Warning FailedKillPod: error killing pod: "))
        .await;
    until("it goes all the same", || life.machine.runtime.inventory().sandboxes.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_its_network_is_told_of() {
    let machine = Machine::new();
    machine.runtime.set_network_ready(false);
    let life = Life::start(machine).await;
    life.wants(&["web"]).await;
    let waits = "pod Warning NetworkNotReady: network is not ready: ";
    until("it is told", || life.is_told(waits)).await;
    assert!(!life.runs("web"));
    life.machine.runtime.set_network_ready(true);
    until("it runs", || life.runs("web")).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_cgroup_cannot_be_made_is_told_of() {
    // No kernel stands behind these files: a new directory has none of them.
    let life = Life::start(Machine::new().with_cgroups()).await;
    life.wants(&["web"]).await;
    let told = "pod Warning FailedCreatePodContainer: unable to ensure pod container exists: ";
    until("it is told", || life.is_told(told)).await;
    assert!(!life.runs("web"));
}
