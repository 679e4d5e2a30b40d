//! Pods on a runtime that works, and on one that does not.

#![allow(clippy::unwrap_used)] // Functions that tests share are not seen as tests.

mod files;
mod remove;
mod start;
mod stop;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_container_http::ContainerClient;
use rubelet_cri::CriOptions;
use rubelet_fake_cri::{FakeOptions, FakeRuntime, tokio_clock};
use rubelet_node_resources::LinuxResources;
use rubelet_pod_runtime::{
    ContainerAllocation, ContainerToStart, DnsSettings, ImageUser, PodRuntime, PodRuntimeSettings,
    RuntimeFailure, SandboxToCreate,
};
use rubelet_types::{
    ContainerSnapshot, ContainerState, Event, EventObject, EventRecorder, EventType, NodePaths,
    PodRef, SandboxSnapshot, pod_ref,
};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "busybox:1";

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A node with a runtime, and what the kubelet keeps around its pods.
struct Node {
    root: tempfile::TempDir,
    paths: NodePaths,
    fake: FakeRuntime,
    runtime: Arc<PodRuntime>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Node {
    fn new() -> Self {
        Self::with(FakeOptions::default())
    }

    fn with(options: FakeOptions) -> Self {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
        std::fs::create_dir(root.path().join("links")).unwrap();
        let paths = NodePaths::new(
            root.path().join("kubelet"),
            root.path().join("pod-logs"),
            root.path().join("links"),
        );
        let fake = FakeRuntime::new(options);
        fake.add_image(IMAGE, 1 << 20);
        let events = Arc::new(Mutex::new(Vec::new()));
        let recorded = events.clone();
        let runtime = PodRuntime::new(
            fake.client(CriOptions::default()),
            ContainerClient::new("1.36"),
            paths.clone(),
            PodRuntimeSettings {
                cluster_domain: "cluster.local".to_owned(),
                dns: DnsSettings {
                    cluster_dns: vec!["10.96.0.10".parse().unwrap()],
                    cluster_domain: "cluster.local".to_owned(),
                    ..DnsSettings::default()
                },
                seccomp_default: false,
                concurrent_starts: 2,
            },
            Some(root.path().join("resolv.conf")),
            EventRecorder::new(move |event| recorded.lock().unwrap().push(event)),
            tokio_clock(Timestamp::UNIX_EPOCH),
        );
        Self { root, paths, fake, runtime: Arc::new(runtime), events }
    }

    /// Makes the pod's directory, as whoever prepares pods does, and its sandbox.
    async fn with_sandbox(&self, pod: &Pod) -> SandboxSnapshot {
        std::fs::create_dir_all(self.paths.pod_dir(&pod_ref(pod).uid)).unwrap();
        let sandbox = SandboxToCreate::default();
        self.runtime.create_sandbox(pod, sandbox, &CancellationToken::new()).await.unwrap()
    }

    /// What the container `c` of `pod` needs in `sandbox`.
    fn to_start(&self, sandbox: &SandboxSnapshot) -> ContainerToStart {
        ContainerToStart {
            name: "c".to_owned(),
            sandbox: SandboxToCreate::default(),
            sandbox_config: Box::default(),
            sandbox_id: sandbox.id.clone(),
            restart_count: Some(0),
            target: None,
            image_ref: IMAGE.to_owned(),
            image_user: ImageUser::Unset,
            mounts: Vec::new(),
            resources: LinuxResources::default(),
            pod_ips: sandbox.ips.clone(),
            environment: Vec::new(),
            allocation: ContainerAllocation::default(),
        }
    }

    async fn start(
        &self,
        pod: &Pod,
        to_start: ContainerToStart,
    ) -> Result<ContainerSnapshot, RuntimeFailure> {
        self.runtime.start_container(pod, to_start, &CancellationToken::new()).await
    }

    /// A running container `c` in a new sandbox.
    async fn run(&self, pod: &Pod) -> (SandboxSnapshot, ContainerSnapshot) {
        let sandbox = self.with_sandbox(pod).await;
        let container = self.start(pod, self.to_start(&sandbox)).await.unwrap();
        assert!(container.is_running());
        (sandbox, container)
    }

    /// The events since the last look.
    fn events(&self) -> Vec<String> {
        let text = |event: Event| {
            let kind = if event.event_type == EventType::Normal { "N" } else { "W" };
            let object = match event.object {
                EventObject::Node => "node".to_owned(),
                EventObject::Pod(pod) => pod.to_string(),
                EventObject::Container { field_path, .. } => field_path,
            };
            format!("{kind} {object} {}: {}", event.reason, event.message)
        };
        std::mem::take(&mut *self.events.lock().unwrap()).into_iter().map(text).collect()
    }

    fn log(&self, pod: &PodRef, name: &str) -> PathBuf {
        self.paths.container_log_dir(pod, "c").join(name)
    }

    fn link(&self, container: &ContainerSnapshot) -> PathBuf {
        self.paths.container_logs().join(format!("web_ns_c-{}.log", container.id))
    }
}

/// A pod `web` with a container `c`, changed as given.
fn pod(container: serde_json::Value) -> Pod {
    pod_with(container, serde_json::json!({}))
}

fn pod_with(container: serde_json::Value, spec: serde_json::Value) -> Pod {
    let mut all = serde_json::json!({"name": "c", "image": IMAGE,
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"});
    merge(&mut all, container);
    let mut whole = serde_json::json!({"containers": [all], "securityContext": {},
        "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst"});
    merge(&mut whole, spec);
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1"}, "spec": whole
    }))
    .unwrap()
}

fn merge(into: &mut serde_json::Value, from: serde_json::Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}
