//! The node on which kubelets take turns: one control plane, one containerd.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rubelet_control_plane::{Client, Options as ControlPlaneOptions};
use rubelet_e2e::{Cache, Cluster, ClusterOptions, KubeletProcess, ProcessUsage, Tools};
use serde_json::{Value, json};

use super::calls::Asked;
use super::watch::PodWatch;
use crate::interrupt::Interrupt;

pub(super) const NAMESPACE: &str = "bench";
const NODE_PORT: u16 = 10250;
const READY_WITHIN: Duration = Duration::from_secs(180);
/// A kubelet that starts a pod each second still gets there.
const PATIENCE: Duration = Duration::from_secs(300);
/// How closely the kubelet is asked while the time it takes is measured.
const CLOSELY: Duration = Duration::from_millis(10);

/// The first to go are the kubelets: they run on the cluster's runtime.
pub(super) struct Node<'a> {
    kubelet: Option<KubeletProcess>,
    pub(super) cluster: Cluster,
    pub(super) interrupt: &'a Interrupt,
}

impl<'a> Node<'a> {
    pub(super) fn start(
        tools: &Tools,
        control_plane: &rubelet_control_plane::Tools,
        cache: &Cache,
        interrupt: &'a Interrupt,
    ) -> anyhow::Result<Self> {
        let options = ClusterOptions {
            name: "bench".to_owned(),
            nodes: 1,
            control_plane: ControlPlaneOptions::new(cache.run()),
        };
        let cluster = Cluster::start(tools, control_plane, options)?;
        let node = Self { kubelet: None, cluster, interrupt };
        node.create("/api/v1/namespaces", &json!({ "metadata": { "name": NAMESPACE } }))?;
        Ok(node)
    }

    /// Gives the node to the kubelet `binary`, which starts anew, and waits until it is ready.
    pub(super) fn give_to(&mut self, binary: &Path, most_pods: usize) -> anyhow::Result<()> {
        if let Some(mut before) = self.kubelet.take() {
            before.stop()?;
        }
        let runtime = &self.cluster.runtimes()[0];
        let name = Cluster::node_name(0);
        let dir = runtime.dir().join(&name);
        let plane = self.cluster.control_plane();
        let address = runtime.node_address().to_string();
        let serving = plane.serving_certificate(&name, &[&name, &address])?;
        fs::create_dir_all(&dir)?;
        let (certificate, key) = (dir.join("serving.crt"), dir.join("serving.key"));
        fs::write(&certificate, serving.certificate)?;
        fs::write(&key, serving.key)?;
        let mut options = self.cluster.kubelet_options(0, binary);
        for (field, value) in [
            ("tlsCertFile", json!(certificate)),
            ("tlsPrivateKeyFile", json!(key)),
            ("rotateCertificates", json!(false)),
            ("maxPods", json!(most_pods + 20)),
            // What is read must not be rotated away.
            ("containerLogMaxSize", json!("1Gi")),
        ] {
            options.config[field] = value;
        }
        options.args = vec![
            format!("--kubeconfig={}", plane.node(&name)?.kubeconfig.display()),
            format!("--cert-dir={}", dir.join("pki").display()),
        ];
        let launched = Instant::now();
        self.kubelet = Some(KubeletProcess::start(runtime, options)?);
        while launched.elapsed() < READY_WITHIN {
            if self.cluster.readiness(0)?.is_some_and(|ready| {
                ready["status"] == "True"
                    && is_since(&ready["lastHeartbeatTime"], launched.elapsed())
            }) {
                return Ok(());
            }
            self.interrupt.sleep(Duration::from_millis(100))?;
        }
        bail!("the node is not ready; its log ends with:\n{}", self.kubelet()?.log_tail(25))
    }

    pub(super) fn kubelet(&self) -> anyhow::Result<&KubeletProcess> {
        self.kubelet.as_ref().context("the node has no kubelet")
    }

    pub(super) fn kubelet_mut(&mut self) -> anyhow::Result<&mut KubeletProcess> {
        self.kubelet.as_mut().context("the node has no kubelet")
    }

    pub(super) fn usage(&self) -> anyhow::Result<ProcessUsage> {
        self.kubelet()?.usage()
    }

    pub(super) fn api(&self) -> &Client {
        self.cluster.control_plane().admin()
    }

    /// A client of the kubelet itself.
    pub(super) fn node_api(&self) -> Client {
        let address = self.cluster.runtimes()[0].node_address();
        self.api().clone().at(SocketAddr::new(address, NODE_PORT))
    }

    /// What the kubelet has asked the runtime up to now, by its own word.
    pub(super) fn asked(&self) -> anyhow::Result<Asked> {
        let text = self.cluster.block_on(self.node_api().get("/metrics"))?;
        Ok(Asked::read(text.as_str().context("the metrics are no text")?))
    }

    pub(super) fn watch(&self) -> PodWatch {
        PodWatch::start(&self.cluster, self.api().clone(), NAMESPACE)
    }

    pub(super) fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        self.cluster.block_on(self.api().create(path, object))
    }

    /// Creates pods that need no scheduler.
    pub(super) fn create_pods(
        &self,
        names: impl Iterator<Item = String>,
        spec: &Value,
    ) -> anyhow::Result<()> {
        let mut spec = spec.clone();
        spec["nodeName"] = Cluster::node_name(0).into();
        spec["terminationGracePeriodSeconds"] = 1.into();
        self.cluster.block_on(async {
            for name in names {
                self.interrupt.check()?;
                let pod = json!({ "metadata": { "name": name }, "spec": spec });
                self.api().create(&collection(), &pod).await?;
            }
            anyhow::Ok(())
        })
    }

    /// Deletes all pods, and waits until they are gone. Says how long that took.
    pub(super) fn delete_pods(&self, watch: &PodWatch) -> anyhow::Result<Duration> {
        let began = Instant::now();
        self.cluster.block_on(self.api().delete(&collection()))?;
        watch.wait("the pods to be gone", PATIENCE, self.interrupt, |seen| {
            seen.pods.is_empty().then(|| began.elapsed())
        })
    }

    /// Waits until `count` pods are ready, and says when the last one was.
    pub(super) fn wait_until_ready(
        &self,
        watch: &PodWatch,
        count: usize,
    ) -> anyhow::Result<Instant> {
        watch
            .wait("the pods to be ready", PATIENCE, self.interrupt, |seen| {
                let ready: Vec<Instant> = seen.pods.values().filter_map(|one| one.ready).collect();
                ready.iter().max().copied().filter(|_| ready.len() == count)
            })
            .with_context(|| {
                let log = self.kubelet().map(|kubelet| kubelet.log_tail(15)).unwrap_or_default();
                format!("the kubelet's log ends with:\n{log}")
            })
    }

    /// Waits until the kubelet itself says that `count` pods are ready.
    pub(super) fn wait_until_told(&self, count: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let told = self.kubelet()?.pods().unwrap_or_default();
            if told.iter().filter(|pod| pod.ready).count() == count {
                return Ok(());
            }
            self.interrupt.sleep(CLOSELY)?;
        }
        bail!("the kubelet does not tell of {count} ready pods:\n{}", self.kubelet()?.log_tail(25))
    }
}

fn collection() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

/// Whether a time of the API server's, which has whole seconds, lies within the last `elapsed`.
fn is_since(time: &Value, elapsed: Duration) -> bool {
    let time = time.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let age = time.map(|time| jiff::Timestamp::now().duration_since(time).as_secs_f64());
    age.is_some_and(|age| age <= elapsed.as_secs_f64() + 1.0)
}
