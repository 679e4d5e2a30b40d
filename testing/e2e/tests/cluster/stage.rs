//! A cluster with its kubelets, which trials share one after the other, and the words in which they
//! talk of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use rubelet_control_plane::Options;
use rubelet_e2e::runner::{LOGS, keep_logs};
use rubelet_e2e::{
    Cluster, ClusterOptions, Diary, KubeletOptions, KubeletProcess, PodView, manifest,
    pod_leftovers, wait_for,
};
use serde_json::{Value, json};

use crate::{Ground, WAIT};

/// The label that the first node's kubelet is given.
pub(crate) const COLOUR: &str = "example.com/colour";
/// The taint that it registers with, one that keeps no pod away.
pub(crate) const TAINT: &str = "example.com/tainted";

/// The cluster that trials share, between two trials.
#[derive(Default)]
pub(crate) struct Shared(RefCell<Option<Stage>>);

/// A control plane, nodes, their kubelets, and a namespace for the trial that runs.
pub(crate) struct Stage {
    /// The first to go: they run on the cluster's runtimes.
    kubelets: Vec<KubeletProcess>,
    cluster: Cluster,
    kubectl: PathBuf,
    namespace: String,
    namespaces: u32,
}

impl Ground {
    /// Runs a trial on the cluster of one node that trials share. One in which a trial failed is
    /// given up, so that it fails no other.
    pub(crate) fn on_one_node(
        &self,
        trial: fn(&mut Stage) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let stage = match self.shared.0.take() {
            Some(stage) => stage,
            None => Stage::start(self, 1, serve_trust_bundles)?,
        };
        let stage = stage.run(trial)?;
        self.shared.0.replace(Some(stage));
        Ok(())
    }

    /// Runs a trial on a cluster of its own, whose control plane `adjust` changes.
    pub(crate) fn on_nodes(
        &self,
        nodes: u8,
        adjust: fn(&mut Options),
        trial: fn(&mut Stage) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        // Two clusters at once are too much for a small machine.
        drop(self.shared.0.take());
        Stage::start(self, nodes, adjust)?.run(trial).map(drop)
    }
}

impl Stage {
    fn start(ground: &Ground, nodes: u8, adjust: fn(&mut Options)) -> anyhow::Result<Self> {
        let mut control_plane = Options::new(ground.cache.run());
        adjust(&mut control_plane);
        let options = ClusterOptions { name: "cluster".to_owned(), nodes, control_plane };
        let cluster = Cluster::start(&ground.tools, &ground.control_plane, options)?;
        let mut kubelets = Vec::new();
        for (index, runtime) in cluster.runtimes().iter().enumerate() {
            let mut options = cluster.kubelet_options(index, &ground.kubelet);
            let name = Cluster::node_name(index);
            let identity = cluster.control_plane().node(&name)?;
            options.args = vec![
                format!("--kubeconfig={}", identity.kubeconfig.display()),
                format!("--cert-dir={}", runtime.dir().join(&name).join("pki").display()),
                format!("--node-labels={COLOUR}=blue"),
            ];
            let config = json!({
                "rotateCertificates": false,
                "authorization": {
                    "mode": "Webhook",
                    "webhook": { "cacheUnauthorizedTTL": "2s" },
                },
                "nodeLeaseDurationSeconds": 8,
                "nodeStatusUpdateFrequency": "4s",
                // Unless it is said otherwise, as often as it is looked at.
                "nodeStatusReportFrequency": "5m",
                "kubeReserved": { "cpu": "100m", "memory": "64Mi" },
                "crashLoopBackOff": { "maxContainerRestartPeriod": "1s" },
                "registerWithTaints": [
                    { "key": TAINT, "value": "yes", "effect": "PreferNoSchedule" },
                ],
                "logging": { "verbosity": 4 },
            });
            options.config = manifest::with(options.config, config);
            kubelets.push(KubeletProcess::launch(runtime, options)?);
        }
        let kubectl = ground.control_plane.kubectl.clone();
        let stage = Self { kubelets, cluster, kubectl, namespace: String::new(), namespaces: 0 };
        for index in 0..usize::from(nodes) {
            stage.wait_until_node_is_ready(index)?;
        }
        Ok(stage)
    }

    /// Runs a trial in a namespace of its own, after which nothing of it may be left.
    fn run(mut self, trial: fn(&mut Self) -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let result = self
            .make_namespace()
            .and_then(|()| trial(&mut self))
            .and_then(|()| self.remove_namespace().context("when it was over"));
        let Err(error) = result else { return Ok(self) };
        let mut logs = String::new();
        for (index, kubelet) in self.kubelets.iter().enumerate() {
            let name = Cluster::node_name(index);
            logs += &format!("\nthe log of {name} ends with:\n{}", kubelet.log_tail(12));
            if let Some(dir) = std::env::var_os(LOGS) {
                let to = PathBuf::from(dir).join(format!("{}-{name}", self.namespace));
                keep_logs(kubelet.runtime(), &name, &to)?;
            }
        }
        // The outermost text comes first, and the logs are the least.
        Err(anyhow::anyhow!("{error:#}{logs}"))
    }

    fn make_namespace(&mut self) -> anyhow::Result<()> {
        self.namespaces += 1;
        self.namespace = format!("trial-{}", self.namespaces);
        let namespace = json!({ "metadata": { "name": self.namespace } });
        self.create("/api/v1/namespaces", &namespace)?;
        // Without it no pod can be made. Who makes it otherwise takes his time after an outage, or has
        // made it already.
        let account = json!({ "metadata": { "name": "default" } });
        let _ = self.create(&self.path("serviceaccounts"), &account);
        self.wait_for_object("serviceaccounts/default", |_| true).map(drop)
    }

    fn remove_namespace(&self) -> anyhow::Result<()> {
        self.delete(&format!("/api/v1/namespaces/{}", self.namespace))?;
        // Nothing is made in there any more. Who looks after namespaces may take his time after an
        // outage, and deletes nothing otherwise.
        self.delete(&self.path("pods"))?;
        self.wait_until_nothing_is_left()
    }

    /// Waits until the trial's namespace has no pod, and the nodes have nothing of any pod.
    pub(crate) fn wait_until_nothing_is_left(&self) -> anyhow::Result<()> {
        wait_for("the pods to leave nothing behind", WAIT, || {
            let pods = self.pods().map_err(|error| format!("{error:#}"))?;
            let mut left: Vec<String> =
                pods.iter().map(|pod| format!("pod {} {}", pod.name, pod.raw["status"])).collect();
            left.extend(self.kubelets.iter().flat_map(pod_leftovers));
            if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
        })
    }

    pub(crate) fn wait_until_node_is_ready(&self, index: usize) -> anyhow::Result<()> {
        let name = Cluster::node_name(index);
        wait_for(&format!("{name} to be ready"), WAIT, || {
            match self.cluster.readiness(index).map_err(|error| format!("{error:#}"))? {
                Some(ready) if ready["status"] == "True" => Ok(()),
                Some(ready) => Err(ready.to_string()),
                None => Err("it has not joined".to_owned()),
            }
        })
        .with_context(|| format!("its log ends with:\n{}", self.kubelets[index].log_tail(25)))
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The kubelet of the first node.
    pub(crate) fn kubelet(&self) -> &KubeletProcess {
        &self.kubelets[0]
    }

    /// The kubelet of a node, of which the first has 0.
    pub(crate) fn kubelet_mut(&mut self, index: usize) -> &mut KubeletProcess {
        &mut self.kubelets[index]
    }

    /// Ends the first node's kubelet and starts it with options that `change` has changed; waits for
    /// nothing. Returns those from before, for the trial to give back at its end.
    pub(crate) fn restart_kubelet(
        &mut self,
        change: impl FnOnce(&mut KubeletOptions),
    ) -> anyhow::Result<KubeletOptions> {
        let kubelet = &mut self.kubelets[0];
        kubelet.stop()?;
        let before = kubelet.options_mut().clone();
        change(kubelet.options_mut());
        kubelet.launch_again()?;
        Ok(before)
    }

    /// The namespace of the trial.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The collection or object `rest` of the core API in the trial's namespace.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.namespace)
    }

    fn block_on<T>(
        &self,
        ask: impl AsyncFnOnce(&rubelet_control_plane::Client) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.cluster.block_on(ask(self.cluster.control_plane().admin()))
    }

    pub(crate) fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.block_on(async |admin| admin.get(path).await)
    }

    pub(crate) fn create(&self, collection: &str, object: &Value) -> anyhow::Result<Value> {
        self.block_on(async |admin| admin.create(collection, object).await)
    }

    pub(crate) fn merge(&self, path: &str, patch: &Value) -> anyhow::Result<Value> {
        self.block_on(async |admin| admin.merge(path, patch).await)
    }

    pub(crate) fn delete(&self, path: &str) -> anyhow::Result<()> {
        self.block_on(async |admin| admin.delete(path).await).map(drop)
    }

    /// Creates a pod in the trial's namespace.
    pub(crate) fn create_pod(&self, pod: &Value) -> anyhow::Result<()> {
        self.create(&self.path("pods"), pod).map(drop)
    }

    /// Runs kubectl in the trial's namespace.
    pub(crate) fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        let plane = self.cluster.control_plane();
        let args = [&["--namespace", self.namespace.as_str()], args].concat();
        self.cluster.block_on(plane.kubectl(&args))
    }

    /// A kubectl for the trial's namespace on this machine, outside of the cluster's network.
    pub(crate) fn kubectl_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig())
            .args(["--namespace", &self.namespace])
            .args(args)
            .env("HOME", self.cluster.control_plane().dir());
        command
    }

    /// A list of the trial's namespace, such as `pods`.
    pub(crate) fn list(&self, collection: &str) -> anyhow::Result<Vec<Value>> {
        let list = self.get(&self.path(collection))?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// The pods of the trial's namespace, by name.
    pub(crate) fn pods(&self) -> anyhow::Result<Vec<PodView>> {
        Ok(PodView::from_list(&self.get(&self.path("pods"))?))
    }

    pub(crate) fn pod(&self, name: &str) -> anyhow::Result<Option<PodView>> {
        Ok(self.pods()?.into_iter().find(|pod| pod.name == name))
    }

    /// Waits until the pod `name` is as `is_so` wants it.
    pub(crate) fn wait_for_pod(
        &self,
        name: &str,
        what: &str,
        is_so: impl Fn(&PodView) -> bool,
    ) -> anyhow::Result<PodView> {
        wait_for(&format!("{name} to be {what}"), WAIT, || match self.pod(name) {
            Ok(Some(pod)) if is_so(&pod) => Ok(pod),
            Ok(Some(pod)) => Err(format!("{} {}", pod.raw["metadata"], pod.raw["status"])),
            Ok(None) => Err("there is no such pod".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        })
    }

    pub(crate) fn wait_until_ready(&self, name: &str) -> anyhow::Result<PodView> {
        self.wait_for_pod(name, "ready", |pod| pod.ready)
    }

    /// Waits until there are `count` pods, as `is_so` wants all of them.
    pub(crate) fn wait_for_pods(
        &self,
        count: usize,
        what: &str,
        is_so: impl Fn(&PodView) -> bool,
    ) -> anyhow::Result<Vec<PodView>> {
        wait_for(&format!("{count} pods to be {what}"), WAIT, || {
            let pods = self.pods().map_err(|error| format!("{error:#}"))?;
            if pods.len() == count && pods.iter().all(&is_so) {
                return Ok(pods);
            }
            let states = pods.iter().map(|pod| format!("{} {}", pod.name, pod.raw["status"]));
            Err(states.collect::<Vec<_>>().join("\n"))
        })
    }

    /// Waits until the API server has no pod `name`.
    pub(crate) fn wait_until_gone(&self, name: &str) -> anyhow::Result<()> {
        wait_for(&format!("{name} to be gone"), WAIT, || match self.pod(name) {
            Ok(None) => Ok(()),
            Ok(Some(pod)) => Err(format!("{} {}", pod.raw["metadata"], pod.raw["status"])),
            Err(error) => Err(format!("{error:#}")),
        })
    }

    /// Waits until an object of the trial's namespace is there, as `is_so` wants it.
    pub(crate) fn wait_for_object(
        &self,
        rest: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let path = self.path(rest);
        wait_for(&path, WAIT, || match self.get(&path) {
            Ok(object) if is_so(&object) => Ok(object),
            Ok(object) => Err(object.to_string()),
            Err(error) => Err(format!("{error:#}")),
        })
    }

    /// Waits for an event about the pod `name` with that reason and `text` in its message.
    pub(crate) fn wait_for_event(
        &self,
        name: &str,
        reason: &str,
        text: &str,
    ) -> anyhow::Result<Value> {
        wait_for(&format!("the event {reason} of {name} with {text:?}"), WAIT, || {
            let events = self.list("events").map_err(|error| format!("{error:#}"))?;
            let of_pod: Vec<&Value> =
                events.iter().filter(|event| event["involvedObject"]["name"] == name).collect();
            let found = of_pod.iter().find(|event| {
                event["reason"] == reason
                    && event["message"].as_str().is_some_and(|message| message.contains(text))
            });
            found.map(|event| (*event).clone()).ok_or_else(|| {
                let told =
                    of_pod.iter().map(|event| format!("{} {}", event["reason"], event["message"]));
                told.collect::<Vec<_>>().join("\n")
            })
        })
    }

    /// Waits until a node has renewed its lease `times` more: a clock that stands still with the
    /// kubelet and goes on however busy the machine is.
    pub(crate) fn wait_for_renewals(&self, times: u32) -> anyhow::Result<()> {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/node-1";
        let renewed = || Ok::<_, anyhow::Error>(self.get(lease)?["spec"]["renewTime"].clone());
        for _ in 0..times {
            let before = renewed()?;
            wait_for("the lease to be renewed", WAIT, || match renewed() {
                Ok(now) if now != before => Ok(()),
                other => Err(format!("{other:?}")),
            })?;
        }
        Ok(())
    }

    /// Waits until no pod of the trial is written for the time of some renewals, and returns their
    /// versions.
    pub(crate) fn wait_until_at_rest(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let mut before = self.versions()?;
        wait_for("the pods to be at rest", WAIT, || {
            self.wait_for_renewals(2).map_err(|error| format!("{error:#}"))?;
            let now = self.versions().map_err(|error| format!("{error:#}"))?;
            let rest = now == before;
            before = now;
            if rest { Ok(()) } else { Err(format!("{before:?}")) }
        })?;
        Ok(before)
    }

    /// The versions of the first node and of the trial's pods.
    pub(crate) fn versions(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let node = self.get("/api/v1/nodes/node-1")?;
        let pods = self.list("pods")?;
        Ok(std::iter::once(&node)
            .chain(&pods)
            .map(|object| &object["metadata"])
            .map(|metadata| (text(&metadata["name"]), text(&metadata["resourceVersion"])))
            .collect())
    }

    /// A diary for the pods of the first node.
    pub(crate) fn diary(&self) -> anyhow::Result<Diary> {
        Diary::create(&self.kubelet().runtime().dir().join(format!("diary-{}", self.namespace)))
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What nodes may read of what the cluster trusts is behind gates that are off.
fn serve_trust_bundles(control_plane: &mut Options) {
    control_plane.api_server_args.extend(
        [
            "--runtime-config=certificates.k8s.io/v1beta1=true",
            "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true",
        ]
        .map(str::to_owned),
    );
}

/// A pod that has no token.
pub(crate) fn pod(name: &str, spec: Value) -> Value {
    manifest::pod(name, manifest::with(json!({ "automountServiceAccountToken": false }), spec))
}

/// The template of such pods for a controller, with the label `app`.
pub(crate) fn template(app: &str, spec: Value) -> Value {
    let mut template = pod(app, spec);
    template["metadata"] = json!({ "labels": { "app": app } });
    template
}

/// The condition `kind` of a pod or node.
pub(crate) fn condition(object: &Value, kind: &str) -> anyhow::Result<Value> {
    let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice);
    let found = conditions.unwrap_or_default().iter().find(|condition| condition["type"] == kind);
    found.cloned().with_context(|| format!("no condition {kind} in {}", object["status"]))
}

/// The id of a pod's container `app`.
pub(crate) fn id_of_app(pod: &PodView) -> anyhow::Result<String> {
    let app = pod.container("app").with_context(|| format!("no app in {}", pod.raw["status"]))?;
    ensure!(!app.id.is_empty(), "app has no id in {}", pod.raw["status"]);
    Ok(app.id.clone())
}

/// A readiness probe each second, patient with a busy machine.
pub(crate) fn each_second(probe: Value) -> Value {
    manifest::with(json!({ "periodSeconds": 1, "timeoutSeconds": 10 }), probe)
}

/// What takes about that long by the clock of a diary in which `who` writes `tick` each second.
pub(crate) fn wait_for_ticks(diary: &Diary, who: &str, count: usize) -> anyhow::Result<()> {
    let before = diary.times(who, "tick")?.len();
    let timeout = WAIT + Duration::from_secs(2 * count as u64);
    diary.wait_for(who, "tick", before + count, timeout).map(drop)
}
