//! What a usual pod gets from the API server, by a whole kubelet on a fake runtime and a fake API
//! server, under paused time.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod bed;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bed::{IMAGE, Machine};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret, Service, ServiceAccount};
use kubelet::ClusterParts;
use rubelet_apiserver::ApiObject;
use rubelet_cri::v1;
use rubelet_event_recorder::{EventRecorderSettings, event_recorder};
use rubelet_fake_apiserver::{FakeApiServer, FakeOptions};
use rubelet_fake_cri::tokio_clock;
use rubelet_pod_sources::defaults::apply_defaults;
use rubelet_types::{EventObject, EventRecorder};
use rubelet_volume_manager::{MountPoint, MountPort};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// A mount table over directories, so that a test leaves no mounts.
#[derive(Debug, Default)]
struct TableMounts(Mutex<Vec<MountPoint>>);

impl MountPort for TableMounts {
    fn mounts_beneath(&self, directory: &Path) -> io::Result<Vec<MountPoint>> {
        let mounts = self.0.lock().unwrap();
        Ok(mounts.iter().filter(|mount| mount.path.starts_with(directory)).cloned().collect())
    }

    fn mount_tmpfs(&self, target: &Path, _size_bytes: Option<u64>) -> io::Result<()> {
        let (path, fs_type) = (target.to_owned(), "tmpfs".to_owned());
        self.0.lock().unwrap().push(MountPoint {
            path,
            fs_type,
            page_size_bytes: None,
            read_only: false,
        });
        Ok(())
    }

    fn mount_huge_pages(&self, _target: &Path, _page_size_bytes: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bind(&self, _source: &Path, _target: &Path, _read_only: bool) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn mount_file_system(&self, _: &str, _: &Path, _: &str, _: &[String]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn format_and_mount(&self, _: &Path, _: &Path, _: &str, _: &[String]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn detach_loop_devices(&self, _backing: &Path) -> io::Result<()> {
        Ok(())
    }

    fn other_mounts_of(&self, _path: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn prepare_sub_path(&self, _: &Path, _: &Path, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        self.0.lock().unwrap().retain(|mount| mount.path != target);
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        rubelet_linux::path::remove_tree_one_filesystem(path).map_err(io::Error::other)
    }

    fn remove_empty_tree(&self, path: &Path) -> io::Result<()> {
        // Files of a memory volume go with its mount, which was none here.
        self.remove_tree(path)
    }
}

/// A node of a cluster, with its kubelet.
struct Cluster {
    machine: Machine,
    server: FakeApiServer,
    events: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Cluster {
    async fn start() -> Self {
        let machine = Machine::new();
        let clock = tokio_clock(Timestamp::UNIX_EPOCH);
        let server = FakeApiServer::new(FakeOptions { clock: clock.clone(), seed: 1 });
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let (_, event_sender) = event_recorder(
            EventRecorderSettings { node_name: "n1".to_owned(), events_per_second: 50, burst: 100 },
            clock.clone(),
        );
        let sink = Arc::clone(&told);
        let events = EventRecorder::new(move |event| {
            let EventObject::Pod(_) = event.object else { return };
            sink.lock().unwrap().push(format!("{}: {}", event.reason, event.message));
        });
        let api = server.client();
        let joined = |pods, host| Some(ClusterParts { api, pods, events: event_sender, host });
        let mounts = Arc::new(TableMounts::default());
        let kubelet = machine.kubelet(clock, events, mounts, joined).await;
        let task = tokio::spawn(async move {
            kubelet.run(CancellationToken::new()).await.unwrap();
        });
        Self { machine, server, events: told, task }
    }

    fn put<K: ApiObject>(&self, object: Value) {
        self.server.put(&serde_json::from_value::<K>(object).unwrap());
    }

    fn config_map(&self, name: &str, data: Value) {
        self.put::<ConfigMap>(json!({"metadata": {"name": name}, "data": data}));
    }

    fn container(&self) -> Option<v1::ContainerConfig> {
        let inventory = self.machine.runtime.inventory();
        inventory.running("u1").next().map(|container| container.config.clone())
    }

    fn has_event(&self, text: &str) -> bool {
        self.events.lock().unwrap().iter().any(|event| event == text)
    }

    fn volume(&self, path: &str) -> PathBuf {
        self.machine.path("kubelet/pods/u1/volumes").join(path)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let wait = async {
        while !is_so() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(Duration::from_secs(600), wait).await.is_ok(), "never: {what}");
}

/// A pod as a Deployment makes it, after admission has added the usual volume.
fn usual_pod() -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u1",
            "labels": {"app": "web"}},
        "spec": {
            "nodeName": "n1",
            "serviceAccountName": "default",
            "enableServiceLinks": true,
            "containers": [{
                "name": "app", "image": IMAGE,
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}],
                "env": [
                    {"name": "PASSWORD", "valueFrom":
                        {"secretKeyRef": {"name": "keys", "key": "password"}}},
                    {"name": "HOST", "value": "$(KUBERNETES_SERVICE_HOST)"},
                ],
                "volumeMounts": [
                    {"name": "kube-api-access", "readOnly": true,
                     "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                    {"name": "settings", "mountPath": "/etc/settings"},
                ],
            }],
            "volumes": [
                {"name": "kube-api-access", "projected": {"defaultMode": 0o644, "sources": [
                    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                    {"configMap": {"name": "kube-root-ca.crt",
                        "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                    {"downwardAPI": {"items": [{"path": "namespace",
                        "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
                ]}},
                {"name": "settings", "configMap": {"name": "settings"}},
            ],
        },
    }))
    .unwrap();
    apply_defaults(&mut pod);
    pod
}

#[tokio::test(start_paused = true)]
async fn a_usual_pod_gets_its_volumes_and_environment() {
    let cluster = Cluster::start().await;
    cluster.put::<ServiceAccount>(json!({"metadata": {"name": "default"}}));
    cluster.config_map("kube-root-ca.crt", json!({"ca.crt": "CA"}));
    // "s3cret" in base64.
    cluster.put::<Secret>(json!({"metadata": {"name": "keys"}, "data": {"password": "czNjcmV0"}}));
    cluster.put::<Service>(json!({"metadata": {"name": "kubernetes"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]}}));
    cluster.server.put(&usual_pod());

    // It waits for what is missing, and says so.
    let missing = "FailedMount: MountVolume.SetUp failed for volume \"settings\" : configmap \
                   \"settings\" not found";
    until("the missing object is told", || cluster.has_event(missing)).await;
    sleep(Duration::from_secs(300)).await;
    assert!(cluster.container().is_none());
    let asked_at = Instant::now();
    cluster.config_map("settings", json!({"MODE": "a"}));
    until("it runs", || cluster.container().is_some()).await;
    assert!(asked_at.elapsed() < Duration::from_secs(3), "{:?}", asked_at.elapsed());

    let config = cluster.container().unwrap();
    let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
    let environment: BTreeMap<String, String> =
        config.envs.iter().map(|env| (env.key.clone(), text(&env.value))).collect();
    for (name, value) in [
        ("P_MODE", "a"),
        ("PASSWORD", "s3cret"),
        ("HOST", "10.96.0.1"),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
    ] {
        assert_eq!(environment.get(name).map(String::as_str), Some(value), "{name}");
    }
    let access = cluster.volume("kubernetes.io~projected/kube-api-access");
    let mounted = config.mounts.iter().find(|mount| mount.host_path == access.to_str().unwrap());
    assert!(mounted.unwrap().readonly);
    assert_eq!(read(&access.join("ca.crt")), "CA");
    assert_eq!(read(&access.join("namespace")), "default");
    let token = read(&access.join("token"));
    assert_eq!(token.split('.').count(), 3, "{token}");

    // What changes reaches it while it runs.
    let settings = cluster.volume("kubernetes.io~configmap/settings/MODE");
    assert_eq!(read(&settings), "a");
    cluster.config_map("settings", json!({"MODE": "b"}));
    let changed_at = Instant::now();
    until("the change is there", || read(&settings) == "b").await;
    assert!(changed_at.elapsed() < Duration::from_secs(3), "{:?}", changed_at.elapsed());
    // After four fifths of its hour there is another token.
    sleep(Duration::from_secs(2400)).await;
    assert_eq!(read(&access.join("token")), token);
    until("the token is renewed", || read(&access.join("token")) != token).await;
    assert_eq!(cluster.machine.runtime.inventory().instances("u1", "app").count(), 1, "no restart");

    // Nothing is left of it.
    cluster.server.change::<Pod>("default", "web", |pod| {
        pod.metadata.deletion_timestamp =
            serde_json::from_value(json!("1970-01-01T02:00:00Z")).ok();
        pod.metadata.deletion_grace_period_seconds = Some(1);
    });
    until("it is gone", || !cluster.machine.path("kubelet/pods/u1").exists()).await;
}
