//! The small language of the decision tables: facts in, decision out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{
    ContainerAnnotations, ContainerId, ContainerSnapshot, ContainerState, PodSnapshot, ProbeKind,
    ProbeResult, SandboxId, SandboxSnapshot, SandboxState, container_hash, pod_ref,
};
use serde_json::{Map, Value, json};

use super::evicted;
use crate::{
    Action, ActionFailure, ActionKey, ActionOutcome, BackOffSettings, Decision, NetworkState,
    Observed, PodEvent, PodState, ProbeLookup, ResizeDue, Stage, StopCause, decide,
};

/// Probe results by container name: instances come and go, the tables speak of the newest.
#[derive(Debug, Default)]
pub(super) struct Probes(pub(super) BTreeMap<(String, ProbeKind), ProbeResult>);

impl ProbeLookup for Probes {
    fn result(&self, name: &str, _id: &ContainerId, kind: ProbeKind) -> Option<ProbeResult> {
        self.0.get(&(name.to_owned(), kind)).copied()
    }
}

/// A pod, the world around it, and its state as it goes through a case.
#[derive(Debug)]
pub(super) struct Case {
    spec: Map<String, Value>,
    metadata: Map<String, Value>,
    status: Map<String, Value>,
    containers: Vec<(String, &'static str, Value)>,
    waiting: bool,
    unprepared: bool,
    unseen: bool,
    state: Option<PodState>,
    decided: Decision,
    snapshot: PodSnapshot,
    probes: Probes,
    network: NetworkState,
    resize: Option<ResizeDue>,
    now: i64,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            spec: Map::new(),
            metadata: json!({"uid": "uid", "namespace": "ns", "name": "web"})
                .as_object()
                .unwrap()
                .clone(),
            status: Map::new(),
            containers: Vec::new(),
            waiting: false,
            unprepared: false,
            unseen: false,
            state: None,
            decided: Decision::default(),
            snapshot: PodSnapshot::empty(pod_ref(&Pod::default()), second(0)),
            probes: Probes::default(),
            network: NetworkState::Ready,
            resize: None,
            now: 1000,
        }
    }
}

pub(super) fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// `key=value` among the words.
fn value<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number(words: &[&str], key: &str) -> Option<i64> {
    value(words, key).map(|text| text.parse().unwrap())
}

/// The keys of actions, as the tables write them.
fn key(word: &str) -> ActionKey {
    let (kind, of) = word.split_once(':').unwrap_or((word, ""));
    match kind {
        "prepare" => ActionKey::Prepare,
        "volumes" => ActionKey::MountVolumes,
        "create-sandbox" => ActionKey::CreateSandbox,
        "stop-sandbox" => ActionKey::StopSandbox(of.into()),
        "start" => ActionKey::Start(of.to_owned()),
        "pre-stop" => ActionKey::PreStop(of.into()),
        "stop" => ActionKey::Stop(of.into()),
        "resize" => ActionKey::Resize,
        "remove" => ActionKey::Remove(of.into()),
        "remove-sandbox" => ActionKey::RemoveSandbox(of.into()),
        "release" => ActionKey::Release,
        "remove-pod" => ActionKey::RemovePod,
        other => panic!("no action is called {other}"),
    }
}

fn key_word(key: &ActionKey) -> String {
    match key {
        ActionKey::Prepare => "prepare".to_owned(),
        ActionKey::MountVolumes => "volumes".to_owned(),
        ActionKey::CreateSandbox => "create-sandbox".to_owned(),
        ActionKey::StopSandbox(id) => format!("stop-sandbox:{id}"),
        ActionKey::Start(name) => format!("start:{name}"),
        ActionKey::PreStop(id) => format!("pre-stop:{id}"),
        ActionKey::Stop(id) => format!("stop:{id}"),
        ActionKey::Resize => "resize".to_owned(),
        ActionKey::Remove(id) => format!("remove:{id}"),
        ActionKey::RemoveSandbox(id) => format!("remove-sandbox:{id}"),
        ActionKey::Release => "release".to_owned(),
        ActionKey::RemovePod => "remove-pod".to_owned(),
    }
}

fn static_text(text: &str) -> &'static str {
    use rubelet_types::reasons::{
        CREATE_CONTAINER_CONFIG_ERROR, ERR_IMAGE_PULL, POST_START_HOOK_ERROR, RUN_CONTAINER_ERROR,
    };
    [CREATE_CONTAINER_CONFIG_ERROR, ERR_IMAGE_PULL, POST_START_HOOK_ERROR, RUN_CONTAINER_ERROR, ""]
        .into_iter()
        .find(|known| *known == text)
        .unwrap_or_else(|| panic!("reason {text} is not known to the tables"))
}

impl Case {
    /// Takes in facts, decides, and begins what was decided. Answers with the decisions.
    pub(super) fn decide(&mut self, facts: &str) -> String {
        let mut world_changed = self.state.is_none();
        let mut spec_changed = false;
        let mut looked_at = None;
        for line in facts.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let rest = &words[1..];
            match words[0] {
                "pod" => spec_changed |= self.read_pod(rest),
                "container" => spec_changed |= self.read_container(rest),
                "delete" => {
                    self.metadata.insert("deletionTimestamp".into(), "1970-01-01T00:00:00Z".into());
                    let grace = number(rest, "grace").unwrap();
                    self.metadata.insert("deletionGracePeriodSeconds".into(), grace.into());
                    spec_changed = true;
                }
                "was" => self.read_status(rest),
                "sandbox" => world_changed |= self.read_sandbox(rest),
                "runs" => world_changed |= self.read_instance(rest),
                "gone" => {
                    let id = rest[0];
                    self.snapshot.containers.retain(|container| container.id.as_str() != id);
                    self.snapshot.sandboxes.retain(|sandbox| sandbox.id.as_str() != id);
                    world_changed = true;
                }
                "look" => {
                    world_changed = true;
                    looked_at = rest.first().map(|at| at.trim_start_matches('@').parse().unwrap());
                }
                "probe" => {
                    let (kind, result) = rest[1].split_once('=').unwrap();
                    let kind = match kind {
                        "liveness" => ProbeKind::Liveness,
                        _ => ProbeKind::Startup,
                    };
                    let result = match result {
                        "Success" => ProbeResult::Success,
                        "Failure" => ProbeResult::Failure,
                        _ => ProbeResult::Unknown,
                    };
                    self.probes.0.insert((rest[0].to_owned(), kind), result);
                }
                "network" => {
                    self.network = match rest {
                        ["ready"] => NetworkState::Ready,
                        words => NetworkState::NotReady(words.join(" ")),
                    };
                }
                "resize" => self.read_resize(rest),
                "now" => self.now = rest[0].parse().unwrap(),
                word if word.starts_with('+') => {
                    self.now += word[1..].parse::<i64>().unwrap();
                }
                _ => {
                    self.start_if_new(&mut spec_changed);
                    self.happen(words[0], rest);
                }
            }
        }
        self.start_if_new(&mut spec_changed);
        if spec_changed {
            let pod = self.pod();
            self.apply(PodEvent::Updated(pod));
        }
        if world_changed && !self.unseen {
            let mut snapshot = self.snapshot.clone();
            snapshot.taken_at = second(looked_at.unwrap_or(self.now));
            self.apply(PodEvent::Observed(Box::new(snapshot)));
        }
        self.unseen = false;
        self.decide_until_settled()
    }

    fn read_resize(&mut self, words: &[&str]) {
        let names = |key| -> BTreeSet<String> {
            value(words, key).iter().flat_map(|list| list.split(',')).map(str::to_owned).collect()
        };
        self.resize = (!words.is_empty()).then(|| ResizeDue {
            in_place: names("in-place"),
            by_restart: names("by-restart"),
            pod_cgroup: words.contains(&"pod"),
        });
    }

    fn state(&mut self) -> &mut PodState {
        self.state.as_mut().expect("the state was made")
    }

    fn apply(&mut self, event: PodEvent) {
        let now = second(self.now);
        self.state().apply(event, now);
    }

    fn start_if_new(&mut self, spec_changed: &mut bool) {
        if self.state.is_some() {
            return;
        }
        *spec_changed = false;
        let mut state = PodState::new(self.pod(), BackOffSettings::default());
        let now = second(self.now);
        if !self.waiting {
            state.apply(PodEvent::Admitted, now);
        }
        if !self.unprepared && !self.waiting {
            for action in [Action::PreparePod, Action::MountVolumes] {
                let key = action.key();
                state.apply(PodEvent::ActionStarted(action), now);
                state.apply(PodEvent::ActionEnded(key, ActionOutcome::Done), now);
            }
        }
        self.state = Some(state);
    }

    fn happen(&mut self, what: &str, words: &[&str]) {
        let event = match what {
            "admit" => PodEvent::Admitted,
            "object-changed" => PodEvent::ObjectChanged,
            "remove" => PodEvent::Removed,
            "start-time" => PodEvent::StartTime(second(words[0].parse().unwrap())),
            "stop" => PodEvent::Stop {
                cause: match words[0] {
                    "Deleted" => StopCause::Deleted,
                    "Completed" => StopCause::Completed,
                    "Orphaned" => StopCause::Orphaned,
                    "Evicted" => evicted(),
                    other => panic!("cause {other}"),
                },
                grace_seconds: number(words, "grace"),
            },
            "done" => PodEvent::ActionEnded(key(words[0]), ActionOutcome::Done),
            "cancelled" => PodEvent::ActionEnded(key(words[0]), ActionOutcome::Cancelled),
            "fail" => {
                let end = words.len() - usize::from(value(words, "retry").is_some());
                let failure = ActionFailure {
                    reason: static_text(words[1].trim_matches('-')),
                    message: words[2..end].join(" "),
                    retry_at: number(words, "retry").map(|after| second(self.now + after)),
                };
                PodEvent::ActionEnded(key(words[0]), ActionOutcome::Failed(failure))
            }
            "started" => {
                let count = format!("restarts={}", self.begun_restart_count(words[0]));
                let seen = self.snapshot.containers.clone();
                let state = words.get(2).copied().unwrap_or("running");
                self.read_instance(&[words[0], words[1], state, &count]);
                let of_it = |c: &&ContainerSnapshot| c.id.as_str() == words[1];
                let instance = self.snapshot.containers.iter().find(of_it).unwrap().clone();
                if seen.iter().any(|c| of_it(&c)) {
                    // What the runtime showed meanwhile is newer.
                    self.snapshot.containers = seen;
                }
                PodEvent::ActionEnded(
                    ActionKey::Start(words[0].to_owned()),
                    ActionOutcome::ContainerStarted(Box::new(instance)),
                )
            }
            "made" => {
                self.read_sandbox(&[&[words[0], "ready"], &words[1..]].concat());
                let sandbox = self.snapshot.sandboxes[0].clone();
                PodEvent::ActionEnded(
                    ActionKey::CreateSandbox,
                    ActionOutcome::SandboxCreated(sandbox),
                )
            }
            other => panic!("no fact begins with {other:?}"),
        };
        self.apply(event);
    }

    /// The restart count that the last decision gave to the start of `name`.
    fn begun_restart_count(&self, name: &str) -> u32 {
        self.decided
            .actions
            .iter()
            .find_map(|action| match action {
                Action::StartContainer(start) if start.name == name => start.restart_count,
                _ => None,
            })
            .unwrap_or_default()
    }

    fn read_pod(&mut self, words: &[&str]) -> bool {
        for word in words {
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let (field, value): (&str, Value) = match name {
                "restart" => ("restartPolicy", value.into()),
                "grace" => ("terminationGracePeriodSeconds", value.parse::<i64>().unwrap().into()),
                "deadline" => ("activeDeadlineSeconds", value.parse::<i64>().unwrap().into()),
                "host-network" => ("hostNetwork", true.into()),
                "config-map" => ("volumes", json!([{"name": "v", "configMap": {"name": value}}])),
                "static" => {
                    let annotations = json!({"kubernetes.io/config.source": "file"});
                    self.metadata.insert("annotations".into(), annotations);
                    continue;
                }
                "waiting" => {
                    self.waiting = true;
                    continue;
                }
                "unprepared" => {
                    self.unprepared = true;
                    continue;
                }
                "unseen" => {
                    self.unseen = true;
                    continue;
                }
                other => panic!("a pod has no {other}"),
            };
            self.spec.insert(field.to_owned(), value);
        }
        true
    }

    fn read_container(&mut self, words: &[&str]) -> bool {
        let name = words[0];
        let mut container = json!({"name": name, "image": "img"});
        let mut list = "containers";
        let probe = |grace: &str| match grace {
            "" => json!({"exec": {}}),
            grace => {
                json!({"exec": {}, "terminationGracePeriodSeconds": grace.parse::<i64>().unwrap()})
            }
        };
        for word in &words[1..] {
            let (option, value) = word.split_once('=').unwrap_or((word, ""));
            match option {
                "init" => list = "initContainers",
                "sidecar" => {
                    list = "initContainers";
                    container["restartPolicy"] = "Always".into();
                }
                "ephemeral" => list = "ephemeralContainers",
                "image" => container["image"] = value.into(),
                "pre-stop" => container["lifecycle"] = json!({"preStop": {"exec": {}}}),
                "liveness" => container["livenessProbe"] = probe(value),
                "startup" => container["startupProbe"] = probe(value),
                "restart" => container["restartPolicy"] = value.into(),
                "target" => container["targetContainerName"] = value.into(),
                "rule" => {
                    let (action, codes) = value.split_once(':').unwrap();
                    let codes: Vec<i32> =
                        codes.split(',').map(|code| code.parse().unwrap()).collect();
                    let rule =
                        json!({"action": action, "exitCodes": {"operator": "In", "values": codes}});
                    let rules = container["restartPolicyRules"].as_array().cloned();
                    let mut rules = rules.unwrap_or_default();
                    rules.push(rule);
                    container["restartPolicyRules"] = rules.into();
                }
                other => panic!("a container has no {other}"),
            }
        }
        match self.containers.iter_mut().find(|(known, ..)| known == name) {
            Some(known) => *known = (name.to_owned(), list, container),
            None => self.containers.push((name.to_owned(), list, container)),
        }
        true
    }

    /// What an earlier life of the kubelet reported of a container.
    fn read_status(&mut self, words: &[&str]) {
        let (state, code) = words[1].split_once('(').unwrap_or((words[1], ""));
        let state = match state {
            "running" => json!({"running": {}}),
            "exited" => {
                let code: i32 = code.trim_end_matches(')').parse().unwrap();
                json!({"terminated": {"exitCode": code}})
            }
            other => panic!("state {other}"),
        };
        let list = match self.containers.iter().find(|(name, ..)| name == words[0]) {
            Some((_, "initContainers", _)) => "initContainerStatuses",
            _ => "containerStatuses",
        };
        let status = json!({
            "name": words[0], "state": state, "image": "", "imageID": "", "ready": false,
            "restartCount": number(words, "restarts").unwrap_or(0),
        });
        let statuses = self.status.entry(list).or_insert_with(|| json!([]));
        statuses.as_array_mut().unwrap().push(status);
    }

    fn pod(&self) -> Arc<Pod> {
        let mut spec = self.spec.clone();
        for list in ["initContainers", "containers", "ephemeralContainers"] {
            let containers: Vec<Value> = self
                .containers
                .iter()
                .filter(|(_, of, _)| *of == list)
                .map(|(.., container)| container.clone())
                .collect();
            spec.insert(list.to_owned(), containers.into());
        }
        let pod = json!({"metadata": self.metadata, "spec": spec, "status": self.status});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn read_sandbox(&mut self, words: &[&str]) -> bool {
        let host_network = words.contains(&"host-network");
        let sandbox = SandboxSnapshot {
            id: SandboxId::new(words[0]),
            state: match words[1] {
                "ready" => SandboxState::Ready,
                "notready" => SandboxState::NotReady,
                other => panic!("sandbox state {other}"),
            },
            attempt: u32::try_from(number(words, "attempt").unwrap_or(0)).unwrap(),
            created_at: second(0),
            ips: if host_network || words.contains(&"no-ip") {
                Vec::new()
            } else {
                vec!["10.0.0.1".to_owned()]
            },
            host_network,
        };
        match self.snapshot.sandboxes.iter_mut().find(|known| known.id == sandbox.id) {
            Some(known) => known.clone_from(&sandbox),
            None => self.snapshot.sandboxes.insert(0, sandbox),
        }
        true
    }

    /// Later lines are newer instances.
    fn read_instance(&mut self, words: &[&str]) -> bool {
        let name = words[0];
        let (state, finished_at) = words[2].split_once('@').unwrap_or((words[2], ""));
        let (state, arguments) = state.split_once('(').unwrap_or((state, ""));
        let arguments = arguments.trim_end_matches(')');
        let image = self
            .containers
            .iter()
            .find(|(known, ..)| known == name)
            .and_then(|(.., container)| container["image"].as_str())
            .unwrap_or_default();
        let known = self.snapshot.containers.iter().find(|c| c.id.as_str() == words[1]);
        let instance = ContainerSnapshot {
            id: ContainerId::new(words[1]),
            name: name.to_owned(),
            sandbox_id: value(words, "sandbox")
                .map(SandboxId::new)
                .or_else(|| known.and_then(|known| known.sandbox_id.clone()))
                .or_else(|| self.snapshot.sandboxes.first().map(|sandbox| sandbox.id.clone())),
            state: match state {
                "created" => ContainerState::Created,
                "running" => ContainerState::Running { started_at: second(0) },
                "unknown" => ContainerState::Unknown,
                "exited" => {
                    let (code, reason) = arguments.split_once(',').unwrap_or((arguments, ""));
                    let default = if code == "0" { "Completed" } else { "Error" };
                    ContainerState::Exited {
                        started_at: Some(second(0)),
                        finished_at: second(finished_at.parse().unwrap_or(self.now)),
                        exit_code: code.parse().unwrap(),
                        reason: if reason.is_empty() { default } else { reason }.to_owned(),
                        message: String::new(),
                    }
                }
                other => panic!("container state {other}"),
            },
            created_at: second(0),
            image: image.to_owned(),
            image_ref: image.to_owned(),
            hash: value(words, "hash")
                .map(str::to_owned)
                .or_else(|| known.map(|known| known.hash.clone()))
                .unwrap_or_else(|| container_hash(name, image)),
            restart_count: match number(words, "restarts") {
                Some(count) => u32::try_from(count).unwrap(),
                None => known.map_or(0, |known| known.restart_count),
            },
            annotations: ContainerAnnotations::default(),
            resources: None,
            user: None,
            log_path: String::new(),
            mounts: BTreeMap::new(),
            stop_signal: None,
        };
        match self.snapshot.containers.iter_mut().find(|known| known.id == instance.id) {
            Some(known) => known.clone_from(&instance),
            None => self.snapshot.containers.insert(0, instance),
        }
        true
    }

    /// Decides and begins what is due, as a worker does: again after a stage was entered.
    fn decide_until_settled(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..5 {
            let now = second(self.now);
            let observed = Observed {
                probes: &self.probes,
                network: &self.network,
                resize: self.resize.as_ref(),
            };
            let state = self.state.as_ref().expect("the state was made");
            let decision = decide(state, &observed, now);
            assert_eq!(decision, decide(state, &observed, now), "the same inputs decide the same");
            text.push_str(&render(&decision, state, now));
            for key in &decision.cancel {
                self.apply(PodEvent::ActionCancelled(key.clone()));
            }
            for action in &decision.actions {
                self.apply(PodEvent::ActionStarted(action.clone()));
            }
            let entered = decision.enter.clone();
            self.decided = decision;
            match entered {
                Some(stage) => self.apply(PodEvent::Entered(stage)),
                None => return text,
            }
        }
        text + "it does not come to rest\n"
    }
}

fn render(decision: &Decision, state: &PodState, now: Timestamp) -> String {
    let mut text = String::new();
    let after = |at: Timestamp| format!("+{}", at.duration_since(now).as_secs_f64());
    for key in &decision.cancel {
        writeln!(text, "cancel {}", key_word(key)).unwrap();
    }
    for action in &decision.actions {
        writeln!(text, "do {}", render_action(action)).unwrap();
    }
    match &decision.enter {
        Some(Stage::Terminating { grace_seconds, deadline, cause, .. }) => writeln!(
            text,
            "enter Terminating because {cause:?} with grace {grace_seconds} until {}",
            after(*deadline)
        )
        .unwrap(),
        Some(Stage::Terminated { cause, .. }) => {
            writeln!(text, "enter Terminated because {cause:?}").unwrap();
        }
        Some(stage) => writeln!(text, "enter {stage:?}").unwrap(),
        None => {}
    }
    if decision.needs_snapshot {
        text.push_str("look\n");
    }
    if let Some(at) = decision.wake_at {
        writeln!(text, "wake {}", after(at)).unwrap();
    }
    for waiting in &decision.waiting {
        let until = after(waiting.until);
        writeln!(
            text,
            "waiting {} {} until {until}: {}",
            waiting.name, waiting.reason, waiting.message
        )
        .unwrap();
    }
    for name in state.starting().filter(|name| {
        !state.actions_in_flight().any(|key| *key == ActionKey::Start((*name).to_owned()))
    }) {
        writeln!(text, "owed a start: {name}").unwrap();
    }
    if state.restarting_all() {
        text.push_str("restarting all\n");
    }
    if let Some((reason, message)) = &decision.problem {
        writeln!(text, "problem {reason}: {message}").unwrap();
    }
    for because in &decision.because {
        let words: Vec<String> = because
            .split(' ')
            .map(|word| word.parse().map_or_else(|_| word.to_owned(), &after))
            .collect();
        writeln!(text, "because {}", words.join(" ")).unwrap();
    }
    text
}

fn render_action(action: &Action) -> String {
    let key = key_word(&action.key());
    match action {
        Action::CreateSandbox { attempt } => format!("{key} attempt={attempt}"),
        Action::StartContainer(start) => {
            let mut text = format!("{key} in {}", start.sandbox);
            if let Some(count) = start.restart_count {
                write!(text, " restarts={count}").unwrap();
            }
            if let Some(target) = &start.target {
                write!(text, " target={target}").unwrap();
            }
            text
        }
        Action::RunPreStop { name, budget, reason, .. } => {
            format!("{key} within {} ({})", budget.as_secs_f64(), reason.message(name))
        }
        Action::StopContainer(stop) => format!(
            "{key} within {}{} ({})",
            stop.timeout.as_secs_f64(),
            if stop.announced { " announced" } else { "" },
            stop.reason.message(&stop.name)
        ),
        Action::RemoveContainer { keep_log: true, .. } => format!("{key} keep-log"),
        Action::PreparePod
        | Action::MountVolumes
        | Action::StopSandbox { .. }
        | Action::RemoveContainer { .. }
        | Action::RemoveSandbox { .. }
        | Action::ResizePod
        | Action::ReleasePod
        | Action::RemovePod => key,
    }
}
