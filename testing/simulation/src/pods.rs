//! The pods of a simulation: what they ask for, and how their containers behave.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use rand::Rng;
use rand::rngs::StdRng;
use rubelet_fake_cri::{OnStopSignal, Script, Step};
use rubelet_pod_sources::defaults::apply_defaults;
use rubelet_pod_sources::{ManifestOrigin, StaticPodPolicy, prepare_static_pod};
use serde_json::{Value, json};

/// The node's name.
pub(crate) const NODE: &str = "node";
/// Images that are on the node.
pub(crate) const IMAGES: [&str; 2] = ["registry.test/app:1", "registry.test/app:2"];
/// An image that has to be pulled.
pub(crate) const REMOTE_IMAGE: &str = "registry.test/remote:1";

/// A directory of the node that pods mount. It is part of the uid of static pods, and so has to be
/// the same in every run.
const SHARED: &str = "/tmp";

/// Commands of probes and hooks. What they answer is set per container.
pub(crate) const LIVENESS: &str = "alive";
pub(crate) const READINESS: &str = "ready";
pub(crate) const STARTUP: &str = "started";
pub(crate) const POST_START: &str = "post-start";
pub(crate) const PRE_STOP: &str = "pre-stop";

/// Where a pod comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A manifest: a change makes another pod of the same name.
    Static,
    /// The API: it can be changed in place, and is deleted gracefully.
    Api,
}

/// A pod with the behaviour of its containers.
#[derive(Clone, Debug)]
pub(crate) struct NewPod {
    pub(crate) pod: Pod,
    /// No container ends by itself.
    pub(crate) is_steady: bool,
    /// How each container behaves, by name.
    pub(crate) scripts: BTreeMap<String, Script>,
    /// Commands that fail from the beginning: container, command.
    pub(crate) failing: Vec<(String, &'static str)>,
    /// How long hooks take: container, command.
    pub(crate) hooks: Vec<(String, &'static str, Duration)>,
}

/// Draws a pod. Names of containers are unique in the history: behaviour goes by them.
pub(crate) struct PodMaker<'a> {
    pub(crate) random: &'a mut StdRng,
    pub(crate) next_container: &'a mut u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Init,
    Sidecar,
    Regular,
}

impl PodMaker<'_> {
    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn one_of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.random.random_range(0..choices.len())].clone()
    }

    fn seconds(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.random.random_range(from * 1000..=to * 1000))
    }

    /// A pod `name`; its uid is `uid` unless it is static.
    pub(crate) fn make(&mut self, name: &str, uid: &str, origin: Origin) -> anyhow::Result<NewPod> {
        let policy = self.one_of(&["Always", "Always", "OnFailure", "Never"]);
        let mut made = NewPod {
            pod: Pod::default(),
            is_steady: true,
            scripts: BTreeMap::new(),
            failing: Vec::new(),
            hooks: Vec::new(),
        };
        let is_job = policy != "Always" && self.chance(0.7);
        let mut init = Vec::new();
        if self.chance(0.4) {
            for _ in 0..self.random.random_range(1..=3) {
                let role = if self.chance(0.4) { Role::Sidecar } else { Role::Init };
                init.push(self.container(role, is_job, policy, &mut made));
            }
        }
        let regular: Vec<Value> = (0..self.random.random_range(1..=3))
            .map(|_| self.container(Role::Regular, is_job, policy, &mut made))
            .collect();
        let mut spec = json!({
            "restartPolicy": policy,
            "containers": regular,
            "terminationGracePeriodSeconds": self.one_of(&[0, 1, 5, 30, 30, 120]),
            "volumes": [
                {"name": "scratch", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "shared", "hostPath": {"path": SHARED}},
            ],
        });
        if !init.is_empty() {
            spec["initContainers"] = Value::Array(init);
        }
        if self.chance(0.15) {
            spec["hostNetwork"] = json!(true);
        }
        if self.chance(0.1) {
            spec["activeDeadlineSeconds"] = json!(self.random.random_range(5..300));
            made.is_steady = false;
        }
        let pod = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        let mut pod: Pod = serde_json::from_value(pod).context("a pod that is none")?;
        made.pod = match origin {
            Origin::Static => {
                let origin = ManifestOrigin::File(format!("/manifests/{name}.yaml").into());
                let policy =
                    StaticPodPolicy { node_name: NODE.to_owned(), prevent_api_references: true };
                prepare_static_pod(pod, &origin, &policy)?
            }
            Origin::Api => {
                pod.metadata.uid = Some(uid.to_owned());
                apply_defaults(&mut pod);
                pod.spec.get_or_insert_default().node_name = Some(NODE.to_owned());
                pod
            }
        };
        Ok(made)
    }

    fn container(&mut self, role: Role, is_job: bool, policy: &str, made: &mut NewPod) -> Value {
        *self.next_container += 1;
        let name = format!("c{}", self.next_container);
        let image = if self.chance(0.15) {
            REMOTE_IMAGE.to_owned()
        } else {
            self.one_of(&IMAGES).to_owned()
        };
        let mut container = json!({"name": name, "image": image, "command": ["run"]});
        let ends = match role {
            Role::Init => true,
            Role::Sidecar => false,
            Role::Regular => is_job,
        };
        let (script, is_steady) = self.script(ends, role);
        made.is_steady &= is_steady || role == Role::Init;
        made.scripts.insert(name.clone(), script);
        if self.chance(0.4) {
            container["volumeMounts"] = json!([
                {"name": self.one_of(&["scratch", "memory", "shared"]), "mountPath": "/data"}
            ]);
        }
        if self.chance(0.15) {
            container["volumeMounts"] = json!([
                {"name": "scratch", "mountPath": "/part", "subPath": name}
            ]);
        }
        if self.chance(0.3) {
            container["resources"] = json!({"requests": {"cpu": "10m", "memory": "16Mi"}});
            if role != Role::Init && policy == "Always" && self.next_container.is_multiple_of(3) {
                container["resizePolicy"] =
                    json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
            }
        }
        if role == Role::Sidecar {
            container["restartPolicy"] = json!("Always");
        }
        if role != Role::Init {
            self.add_probes(&name, policy, &mut container, made);
            self.add_hooks(&name, &mut container, made);
        }
        container
    }

    fn add_probes(&mut self, name: &str, policy: &str, container: &mut Value, made: &mut NewPod) {
        if self.chance(0.35) {
            container["readinessProbe"] = self.probe(READINESS);
        }
        if self.chance(0.3) {
            container["livenessProbe"] = self.probe(LIVENESS);
            if self.chance(0.2) {
                container["livenessProbe"]["terminationGracePeriodSeconds"] = json!(2);
            }
            if policy != "Never" && self.chance(0.1) {
                made.failing.push((name.to_owned(), LIVENESS));
            }
        }
        if self.chance(0.2) {
            container["startupProbe"] = self.probe(STARTUP);
            container["startupProbe"]["failureThreshold"] = json!(10);
            if self.chance(0.3) {
                made.failing.push((name.to_owned(), STARTUP));
            }
        }
    }

    fn probe(&mut self, command: &str) -> Value {
        json!({
            "exec": {"command": [command]},
            "periodSeconds": self.one_of(&[1, 2, 10]),
            "failureThreshold": self.one_of(&[1, 3]),
            "timeoutSeconds": 1,
        })
    }

    fn add_hooks(&mut self, name: &str, container: &mut Value, made: &mut NewPod) {
        let mut hooks = json!({});
        if self.chance(0.15) {
            hooks["postStart"] = json!({"exec": {"command": [POST_START]}});
            if self.chance(0.2) {
                made.failing.push((name.to_owned(), POST_START));
            } else {
                made.hooks.push((name.to_owned(), POST_START, self.seconds(0, 20)));
            }
        }
        if self.chance(0.2) {
            hooks["preStop"] = json!({"exec": {"command": [PRE_STOP]}});
            made.hooks.push((name.to_owned(), PRE_STOP, self.seconds(0, 60)));
        }
        container["lifecycle"] = hooks;
    }

    /// How a container behaves, and whether it runs until somebody ends it.
    fn script(&mut self, ends: bool, role: Role) -> (Script, bool) {
        let mut is_steady = false;
        let script = if ends {
            let after = self.seconds(0, if role == Role::Init { 10 } else { 90 });
            let code = if self.chance(0.2) { 1 } else { 0 };
            Script::exit(after, code)
        } else if self.chance(0.12) {
            let after = self.seconds(0, 120);
            let end = self.one_of(&[Step::Exit(1), Step::Exit(0), Step::OutOfMemory]);
            Script::of([Step::Sleep(after), end])
        } else {
            is_steady = true;
            Script::of([Step::Print("hello".to_owned()), Step::RunForever])
        };
        let reaction = match self.random.random_range(0..10) {
            0 | 1 => OnStopSignal::Ignore,
            2..=4 => OnStopSignal::Exit { after: self.seconds(0, 20), code: 0 },
            _ => OnStopSignal::Exit { after: Duration::ZERO, code: 143 },
        };
        (script.on_stop_signal(reaction).termination_message("bye"), is_steady)
    }
}
