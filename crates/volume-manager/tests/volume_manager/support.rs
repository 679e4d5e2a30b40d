//! What all tests of the volume manager share.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{Clock, EventObject, EventRecorder, NodePaths, PodRef, ResourceAmounts};
use rubelet_volume_manager::{MountPort, VolumeContent, VolumeManager, VolumeManagerConfig};
use serde_json::{Value, json};

use crate::fake_content::FakeContent;

/// A node with a root directory of its own.
pub(crate) struct Node {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) paths: NodePaths,
    pub(crate) mounts: Arc<dyn MountPort>,
    pub(crate) content: FakeContent,
    pub(crate) events: Arc<Mutex<Vec<String>>>,
    pub(crate) manager: VolumeManager,
}

pub(crate) const ALLOCATABLE: u64 = 1 << 30;
/// `syncFrequency`, other than by default.
pub(crate) const SYNC_FREQUENCY: Duration = Duration::from_secs(20);

impl Node {
    pub(crate) fn new(mounts: impl MountPort) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().join("kubelet");
        std::fs::create_dir_all(root.join("pods")).unwrap();
        Self::over(temp, &root, Arc::new(mounts))
    }

    pub(crate) fn over(temp: tempfile::TempDir, root: &Path, mounts: Arc<dyn MountPort>) -> Self {
        let paths = NodePaths::new(root, temp.path().join("logs"), temp.path().join("links"));
        let events = Arc::new(Mutex::new(Vec::new()));
        let content = FakeContent::default();
        let manager = start(&paths, &mounts, &content, &events);
        Self { temp, paths, mounts, content, events, manager }
    }

    /// The kubelet ends and starts again.
    pub(crate) fn restart(&mut self) {
        self.manager = start(&self.paths, &self.mounts, &self.content, &self.events);
    }

    pub(crate) fn take_events(&self) -> Vec<String> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }

    pub(crate) fn pod_dir(&self, pod: &PodRef) -> PathBuf {
        self.paths.pod_dir(&pod.uid)
    }

    pub(crate) fn empty_dir(&self, pod: &PodRef, name: &str) -> PathBuf {
        self.volume(pod, "kubernetes.io/empty-dir", name)
    }

    pub(crate) fn volume(&self, pod: &PodRef, plugin: &str, name: &str) -> PathBuf {
        self.paths.pod_volume_dir(&pod.uid, plugin, name)
    }

    pub(crate) fn mounts_of(&self, pod: &PodRef) -> Vec<PathBuf> {
        let pods = std::fs::canonicalize(self.paths.pods_dir()).unwrap();
        let found = self.mounts.mounts_beneath(&pods.join(pod.uid.as_str())).unwrap();
        found.into_iter().map(|mount| mount.path).collect()
    }
}

fn start(
    paths: &NodePaths,
    mounts: &Arc<dyn MountPort>,
    content: &FakeContent,
    events: &Arc<Mutex<Vec<String>>>,
) -> VolumeManager {
    let sink = events.clone();
    let recorder = EventRecorder::new(move |event| {
        let object = match &event.object {
            EventObject::Pod(pod) => pod.name.to_string(),
            EventObject::Node => "node".to_owned(),
            EventObject::Container { .. } => panic!("{event:?}"),
        };
        let line = format!("{object} {:?} {} {}", event.event_type, event.reason, event.message);
        sink.lock().unwrap().push(line);
    });
    let config = VolumeManagerConfig {
        paths: paths.clone(),
        allocatable_memory: Some(ALLOCATABLE),
        operations_at_once: 4,
        sync_frequency: SYNC_FREQUENCY,
    };
    let content = VolumeContent {
        objects: Some(Arc::new(content.clone())),
        claims: Some(Arc::new(content.clone())),
        allocatable: ResourceAmounts::default(),
        clock: Clock::system(),
    };
    VolumeManager::with_content(config, mounts.clone(), recorder, content)
}

/// A pod with these volumes, all of which its only container mounts.
pub(crate) fn pod_with(uid: &str, volumes: Value, extra: Value) -> (Arc<Pod>, PodRef) {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| json!({"name": volume["name"], "mountPath": "/m"}))
        .collect();
    let mut spec = json!({
        "volumes": volumes,
        "containers": [{"name": "app", "volumeMounts": mounts}],
    });
    spec.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"uid": uid, "namespace": "default", "name": format!("pod-{uid}")},
        "spec": spec,
    }))
    .unwrap();
    let reference = rubelet_types::pod_ref(&pod);
    (Arc::new(pod), reference)
}

pub(crate) fn pod(uid: &str, volumes: Value) -> (Arc<Pod>, PodRef) {
    pod_with(uid, volumes, json!({}))
}

/// Runs a test in a process of its own with a mount namespace of its own, so that whatever happens
/// no mount is left behind. `test` is the name of the calling test function.
pub(crate) fn in_private_mount_namespace<F: Future<Output = ()>>(
    test: &str,
    body: impl FnOnce() -> F,
) {
    const INSIDE: &str = "RUBELET_TEST_IN_MOUNT_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(body());
        return;
    }
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
}
