//! A node changes hands: the Go kubelet gives it to ours, and takes it back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, ensure};
use rubelet_cri::{CriClient, CriOptions};
use rubelet_e2e::manifest::{self, busybox, probe_target, with};
use rubelet_e2e::{PodView, find_go_kubelet, wait_for};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, condition, each_second, pod};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] =
    on_one_node![no_pod_notices_that_the_go_kubelet_and_ours_change_places];

/// What must be the same of a pod whoever is its kubelet.
#[derive(Debug, PartialEq)]
struct Facts {
    uid: String,
    ip: String,
    start_time: String,
    /// Names, ids and restarts, those of init containers too.
    containers: Vec<(String, String, u64)>,
    /// When it became ready: a pod that was not ready in between has become so anew.
    ready_since: [Value; 2],
}

impl Facts {
    fn of(pod: &PodView) -> anyhow::Result<Self> {
        let since = |kind: &str| -> anyhow::Result<Value> {
            let condition = condition(&pod.raw, kind)?;
            ensure!(condition["status"] == "True", "{} is not ready: {condition}", pod.name);
            Ok(condition["lastTransitionTime"].clone())
        };
        let containers = pod.containers.iter();
        Ok(Self {
            uid: pod.uid.clone(),
            ip: pod.ip.clone(),
            start_time: pod.start_time.clone(),
            containers: containers
                .map(|one| (one.name.clone(), one.id.clone(), one.restarts))
                .collect(),
            ready_since: [since("Ready")?, since("ContainersReady")?],
        })
    }
}

/// The node as its API server and its runtime see it.
#[derive(Debug, PartialEq)]
struct Seen {
    pods: BTreeMap<String, Facts>,
    /// The ids of all sandboxes.
    sandboxes: BTreeSet<String>,
}

impl Seen {
    fn now(stage: &Stage) -> anyhow::Result<Self> {
        let pods = stage.pods()?;
        let pods = pods.iter().map(|pod| Ok((pod.name.clone(), Facts::of(pod)?)));
        let endpoint = format!("unix://{}", stage.kubelet().runtime().socket().display());
        let sandboxes = stage.cluster().block_on(async {
            let cri = CriClient::connect_lazy(&endpoint, None, CriOptions::default())?;
            anyhow::Ok(cri.list_pod_sandbox(None).await?)
        })?;
        Ok(Self {
            pods: pods.collect::<anyhow::Result<_>>()?,
            sandboxes: sandboxes.into_iter().map(|sandbox| sandbox.id).collect(),
        })
    }

    /// Says first which pod has changed and how.
    fn ensure_same(&self, now: &Self, kubelet: &str) -> anyhow::Result<()> {
        for (name, before) in &self.pods {
            let now = now.pods.get(name).with_context(|| format!("{name} is gone"))?;
            ensure!(before == now, "under {kubelet} {name} became {now:#?}, and was {before:#?}");
        }
        ensure!(self == now, "under {kubelet} {self:#?} became {now:#?}");
        Ok(())
    }

    /// Without the times of static pods, see [`is_static`].
    fn without_times_of_static_pods(mut self) -> Self {
        for (name, facts) in &mut self.pods {
            if is_static(name) {
                facts.start_time = String::new();
                facts.ready_since = [Value::Null, Value::Null];
            }
        }
        self
    }
}

/// Of static pods the Go kubelet forgets at each of its starts since when they run and whether they
/// are ready, unless it happens to see the mirror of a pod before its manifest; also when it takes
/// over from itself.
fn is_static(name: &str) -> bool {
    name.starts_with("static-")
}

/// Notes whether each pod is ready, each time anything about it is written.
struct ReadinessWatch {
    kubectl: Child,
    notes: PathBuf,
}

impl ReadinessWatch {
    fn start(stage: &Stage) -> anyhow::Result<Self> {
        let notes = stage.kubelet().runtime().dir().join(format!("ready-{}", stage.namespace()));
        let ready = "{.metadata.name} {.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}";
        let kubectl = stage
            .kubectl_command(&["get", "pods", "--watch", "--output", &format!("jsonpath={ready}")])
            .stdin(Stdio::null())
            .stdout(File::create(&notes)?)
            .spawn()
            .context("cannot run kubectl")?;
        let watch = Self { kubectl, notes };
        let pods = stage.pods()?.len();
        wait_for("the first look of the watch", WAIT, || match watch.notes() {
            Ok(notes) if notes.len() >= pods => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        Ok(watch)
    }

    fn notes(&self) -> anyhow::Result<Vec<String>> {
        Ok(fs::read_to_string(&self.notes)?.lines().map(str::to_owned).collect())
    }

    /// Ends the watch: of no pod that `counts` was it written that it is not ready.
    fn ensure_all_were_ready(mut self, counts: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        ensure!(self.kubectl.try_wait()?.is_none(), "kubectl ended too early");
        let notes = self.notes()?;
        let is_bad = |note: &&String| counts(note) && !note.ends_with(" True");
        let not_ready: Vec<&String> = notes.iter().filter(is_bad).collect();
        ensure!(not_ready.is_empty(), "of {} notes: {not_ready:?}", notes.len());
        Ok(())
    }
}

impl Drop for ReadinessWatch {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

fn sleeper(name: &str) -> Value {
    busybox(name, "exec sleep 3600")
}

fn mounted(name: &str) -> Value {
    with(sleeper(name), json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] }))
}

/// The specs of pods of every kind that comes to rest, by what they are.
fn kinds(stage: &Stage) -> Vec<(&'static str, Value)> {
    let http = each_second(json!({ "httpGet": { "path": "/", "port": 8080 } }));
    let probes = json!({
        "startupProbe": with(http.clone(), json!({ "failureThreshold": 60 })),
        "readinessProbe": http,
        "livenessProbe": each_second(json!({ "tcpSocket": { "port": 7070 } })),
    });
    let exec = each_second(json!({ "exec": { "command": ["true"] } }));
    // A readiness that is forgotten stays away for a minute.
    let rarely = json!({ "periodSeconds": 60, "exec": { "command": ["true"] } });
    let sidecar = json!({ "restartPolicy": "Always", "startupProbe": exec.clone() });
    let requests = json!({ "cpu": "10m", "memory": "16Mi" });
    let volume = |source: Value| json!({ "containers": [mounted("app")], "volumes": [with(json!({ "name": "data" }), source)] });
    let on_node = stage.kubelet().runtime().dir().join(stage.namespace());
    let token = json!({ "serviceAccountToken": { "path": "token", "expirationSeconds": 3600 } });
    let about = json!({ "items": [
        { "path": "name", "fieldRef": { "fieldPath": "metadata.name" } },
        { "path": "cpu", "resourceFieldRef": { "containerName": "app", "resource": "limits.cpu" } },
    ] });
    let parts = json!([
        { "mountPath": "/one", "name": "data", "subPath": "one" },
        { "mountPath": "/two", "name": "data", "subPathExpr": "$(WHERE)" },
    ]);
    vec![
        ("plain", json!({ "containers": [sleeper("app")] })),
        ("two", json!({ "containers": [sleeper("app"), sleeper("other")] })),
        ("host", json!({ "hostNetwork": true, "containers": [sleeper("app")] })),
        (
            "init",
            json!({
                "initContainers": [busybox("first", "exit 0"), busybox("second", "exit 0")],
                "containers": [sleeper("app")],
            }),
        ),
        (
            "sidecar",
            json!({
                "initContainers": [busybox("init", "exit 0"), with(sleeper("sidecar"), sidecar)],
                "containers": [sleeper("app")],
            }),
        ),
        ("probed", json!({ "containers": [with(probe_target("app"), probes)] })),
        (
            "rarely",
            json!({ "containers": [with(sleeper("app"), json!({ "readinessProbe": rarely }))] }),
        ),
        (
            "hooked",
            json!({ "containers": [with(
                sleeper("app"),
                json!({ "lifecycle": { "postStart": { "exec": { "command": ["true"] } } } }),
            )] }),
        ),
        (
            "guaranteed",
            json!({ "containers": [with(
                sleeper("app"),
                json!({ "resources": { "requests": requests, "limits": requests } }),
            )] }),
        ),
        (
            "token",
            with(
                json!({ "automountServiceAccountToken": true }),
                json!({ "containers": [sleeper("app")] }),
            ),
        ),
        ("disk", volume(json!({ "emptyDir": { "sizeLimit": "16Mi" } }))),
        ("memory", volume(json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "1Mi" } }))),
        (
            "of-node",
            volume(json!({ "hostPath": { "path": on_node, "type": "DirectoryOrCreate" } })),
        ),
        ("settings", volume(json!({ "configMap": { "name": "settings" } }))),
        ("secret", volume(json!({ "secret": { "secretName": "door", "defaultMode": 0o400 } }))),
        ("about", volume(json!({ "downwardAPI": about.clone() }))),
        (
            "projected",
            volume(json!({ "projected": { "sources": [
                token, { "configMap": { "name": "settings" } }, { "secret": { "name": "door" } },
                { "downwardAPI": about },
            ] } })),
        ),
        (
            "parts",
            json!({
                "containers": [with(
                    sleeper("app"),
                    json!({ "volumeMounts": parts, "env": [{ "name": "WHERE", "value": "two" }] }),
                )],
                "volumes": [{ "name": "data", "emptyDir": {} }],
            }),
        ),
        (
            "owned",
            with(
                volume(json!({ "emptyDir": {} })),
                json!({ "securityContext": { "fsGroup": 2000 } }),
            ),
        ),
        (
            "environment",
            json!({ "containers": [with(
                sleeper("app"),
                json!({ "envFrom": [
                    { "configMapRef": { "name": "settings" } }, { "secretRef": { "name": "door" } },
                ] }),
            )] }),
        ),
    ]
}

/// The kinds that a manifest may be of, too.
const STATIC: [&str; 6] = ["plain", "init", "sidecar", "probed", "rarely", "memory"];
/// The kinds of which there are two, lest one is right by chance.
const TWICE: [&str; 4] = ["sidecar", "probed", "rarely", "projected"];

/// Creates 30 pods, and waits until they are ready and nothing more is said of them.
fn start_pods(stage: &Stage) -> anyhow::Result<()> {
    let (settings, door) = (
        json!({ "metadata": { "name": "settings" }, "data": { "COLOUR": "blue" } }),
        json!({ "metadata": { "name": "door" }, "stringData": { "PASSWORD": "sesame" } }),
    );
    stage.create(&stage.path("configmaps"), &settings)?;
    stage.create(&stage.path("secrets"), &door)?;
    let mut count = 0;
    for (kind, spec) in kinds(stage) {
        if STATIC.contains(&kind) {
            let mut fixed = manifest::pod(&format!("static-{kind}"), spec.clone());
            fixed["metadata"]["namespace"] = stage.namespace().into();
            stage.kubelet().write_pod(&fixed)?;
            count += 1;
        }
        for number in 0..=u32::from(TWICE.contains(&kind)) {
            stage.create_pod(&pod(&format!("{kind}-{number}"), spec.clone()))?;
            count += 1;
        }
    }
    ensure!(count == 30, "{count} pods");
    stage.wait_for_pods(count, "ready", |pod| pod.ready)?;
    stage.wait_until_at_rest().map(drop)
}

/// Ends the node's kubelet, and starts another one in its place; it has taken over once it tells the
/// same of every pod as the one before.
fn change_to(stage: &mut Stage, binary: &Path) -> anyhow::Result<()> {
    let kubelet = stage.kubelet_mut(0);
    kubelet.stop()?;
    kubelet.options_mut().binary = binary.to_owned();
    kubelet.start_again()?;
    let pods = stage.pods()?.len();
    wait_for("the new kubelet to know all pods", WAIT, || {
        let known = stage.kubelet().pods().map_err(|error| format!("{error:#}"))?;
        let ready = known.iter().filter(|pod| pod.ready).count();
        if ready == pods { Ok(()) } else { Err(format!("{ready} of {} are ready", known.len())) }
    })
    .with_context(|| format!("its log ends with:\n{}", stage.kubelet().log_tail(25)))?;
    stage.wait_until_node_is_ready(0)
}

fn no_pod_notices_that_the_go_kubelet_and_ours_change_places(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let theirs = find_go_kubelet()?;
    let ours = stage.kubelet().binary().to_owned();
    change_to(stage, &theirs)?;
    start_pods(stage)?;
    let before = Seen::now(stage)?;
    let watch = ReadinessWatch::start(stage)?;
    change_to(stage, &ours)?;
    stage.wait_until_at_rest()?;
    before.ensure_same(&Seen::now(stage)?, "ours")?;
    watch.ensure_all_were_ready(|_| true)?;
    let watch = ReadinessWatch::start(stage)?;
    change_to(stage, &theirs)?;
    stage.wait_until_at_rest()?;
    let after = Seen::now(stage)?.without_times_of_static_pods();
    before.without_times_of_static_pods().ensure_same(&after, "the Go kubelet")?;
    watch.ensure_all_were_ready(|pod| !is_static(pod))?;

    // Each ends what the other has kept, static pods by the one that comes last.
    stage.kubectl(&[
        "delete",
        "pod",
        "sidecar-0",
        "probed-0",
        "memory-0",
        "projected-0",
        "parts-0",
        "--timeout=120s",
    ])?;
    change_to(stage, &ours)?;
    for kind in STATIC {
        stage.kubelet().remove_pod(&format!("static-{kind}"))?;
    }
    stage.kubectl(&["delete", "pod", "--all", "--timeout=120s"])?;
    stage.wait_until_nothing_is_left()
}
