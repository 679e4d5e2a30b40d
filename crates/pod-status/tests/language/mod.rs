//! The small language of the decision tables: facts in, report out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState as ApiState, ContainerStatus, Pod, PodCondition, PodIP, PodStatus,
    ResourceRequirements,
};
use rubelet_pod_status::{
    ContainerProbes, NodeFacts, Stage, StartFailure, StatusInput, StatusOverride, TerminalPhase,
    compute_pod_status,
};
use rubelet_types::{
    ContainerAnnotations, ContainerId, ContainerResources, ContainerSnapshot, ContainerState,
    PodSnapshot, ProbeResult, SandboxId, SandboxSnapshot, SandboxState, pod_ref,
};
use serde_json::{Value, json};

pub(crate) struct Case {
    pub(crate) pod: Pod,
    pub(crate) previous: PodStatus,
    pub(crate) now: i64,
    snapshot: Option<PodSnapshot>,
    probes: BTreeMap<String, ContainerProbes>,
    failures: BTreeMap<String, StartFailure>,
    starting: BTreeSet<String>,
    vanished: BTreeSet<String>,
    stage: Stage,
    outcome: Option<StatusOverride>,
    restarting_all: bool,
    is_leaving: bool,
    node: NodeFacts,
    show: Vec<String>,
}

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// `key=value` among the words.
fn value<'a>(words: &[&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number(words: &[&str], key: &str) -> Option<i64> {
    value(words, key).map(|text| text.parse().unwrap())
}

/// `name(a,b)` as name and arguments.
fn call(word: &str) -> (&str, Vec<&str>) {
    match word.split_once('(') {
        Some((name, rest)) => (name, rest.trim_end_matches(')').split(',').collect()),
        None => (word, Vec::new()),
    }
}

fn reason_of(exit_code: &str) -> &'static str {
    if exit_code == "0" { "Completed" } else { "Error" }
}

impl Case {
    pub(crate) fn parse(facts: &str) -> Self {
        let mut spec = json!({ "containers": [], "initContainers": [], "ephemeralContainers": [] });
        let mut metadata = json!({ "uid": "uid", "namespace": "ns", "name": "pod" });
        let mut api = None;
        let mut case = Self {
            pod: Pod::default(),
            previous: PodStatus::default(),
            now: 1000,
            snapshot: Some(PodSnapshot::empty(pod_ref(&Pod::default()), second(0))),
            probes: BTreeMap::new(),
            failures: BTreeMap::new(),
            starting: BTreeSet::new(),
            vanished: BTreeSet::new(),
            stage: Stage::Setup,
            outcome: None,
            restarting_all: false,
            is_leaving: false,
            node: NodeFacts {
                host_ips: vec!["192.168.0.1".to_owned()],
                runtime_name: "containerd".to_owned(),
                recursive_read_only_mounts: true,
            },
            show: Vec::new(),
        };
        for line in facts.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let rest = &words[1..];
            match words[0] {
                "pod" => read_pod(rest, &mut spec, &mut metadata),
                "container" => read_container(rest, &mut spec),
                "api" => read_status(rest, &spec, api.get_or_insert_default()),
                "was" => read_status(rest, &spec, &mut case.previous),
                "runtime" => case.snapshot = None,
                "sandbox" => case.read_sandbox(rest),
                "runs" => case.read_instance(rest),
                "in-force" => case.read_resources(rest),
                "probe" => case.read_probe(rest),
                "failing" => {
                    let failure =
                        StartFailure { reason: rest[1].to_owned(), message: rest[2..].join(" ") };
                    case.failures.insert(rest[0].to_owned(), failure);
                }
                "starting" => case.starting.extend(rest.iter().map(|name| (*name).to_owned())),
                "vanished" => case.vanished.extend(rest.iter().map(|name| (*name).to_owned())),
                "restarting-all" => case.restarting_all = true,
                "leaving" => case.is_leaving = true,
                "stage" => {
                    case.stage = match rest[0] {
                        "Terminating" => Stage::Terminating,
                        "Terminated" => Stage::Terminated,
                        other => panic!("stage {other}"),
                    }
                }
                "now" => case.now = rest[0].parse().unwrap(),
                "hosts" => {
                    case.node.host_ips = rest.iter().map(|ip| (*ip).to_owned()).collect();
                }
                "override" => {
                    case.outcome = Some(StatusOverride {
                        phase: match rest[0] {
                            "Failed" => TerminalPhase::Failed,
                            _ => TerminalPhase::Succeeded,
                        },
                        reason: rest[1].to_owned(),
                        message: rest[2..].join(" "),
                        conditions: Vec::new(),
                    });
                }
                "disruption" => case.outcome.as_mut().unwrap().conditions.push(PodCondition {
                    type_: "DisruptionTarget".to_owned(),
                    status: "True".to_owned(),
                    reason: Some(rest[0].to_owned()),
                    ..Default::default()
                }),
                "show" => case.show = rest.iter().map(|word| (*word).to_owned()).collect(),
                other => panic!("no fact begins with {other:?}: {line}"),
            }
        }
        case.pod = serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
        case.pod.status = api;
        if case.previous == PodStatus::default() {
            case.previous = case.pod.status.clone().unwrap_or_default();
        }
        case
    }

    fn snapshot(&mut self) -> &mut PodSnapshot {
        self.snapshot.as_mut().expect("`runtime unknown` stands alone")
    }

    fn read_sandbox(&mut self, words: &[&str]) {
        let sandbox = SandboxSnapshot {
            id: SandboxId::new(words[0]),
            state: match words[1] {
                "ready" => SandboxState::Ready,
                _ => SandboxState::NotReady,
            },
            attempt: 0,
            created_at: second(0),
            ips: value(words, "ip")
                .map(|ips| ips.split(',').map(str::to_owned).collect())
                .unwrap_or_default(),
            host_network: words.contains(&"host-network"),
        };
        self.snapshot().sandboxes.push(sandbox);
    }

    fn read_instance(&mut self, words: &[&str]) {
        let (state, arguments) = call(words[2]);
        let instance = ContainerSnapshot {
            id: ContainerId::new(words[1]),
            name: words[0].to_owned(),
            sandbox_id: value(words, "sandbox").map(SandboxId::new),
            state: match state {
                "created" => ContainerState::Created,
                "running" => ContainerState::Running { started_at: second(100) },
                "unknown" => ContainerState::Unknown,
                "exited" => ContainerState::Exited {
                    started_at: Some(second(100)),
                    finished_at: second(200),
                    exit_code: arguments[0].parse().unwrap(),
                    reason: arguments
                        .get(1)
                        .map_or_else(|| reason_of(arguments[0]), |reason| *reason)
                        .to_owned(),
                    message: String::new(),
                },
                other => panic!("state {other}"),
            },
            created_at: second(100),
            image: "image".to_owned(),
            image_ref: "sha256:ref".to_owned(),
            hash: String::new(),
            restart_count: number(words, "restarts").map_or(0, |n| u32::try_from(n).unwrap()),
            annotations: ContainerAnnotations::default(),
            resources: None,
            user: None,
            log_path: String::new(),
            mounts: BTreeMap::new(),
            stop_signal: None,
        };
        self.snapshot().containers.push(instance);
    }

    fn read_resources(&mut self, words: &[&str]) {
        let instances = &mut self.snapshot().containers;
        let instance =
            instances.iter_mut().find(|instance| instance.id.as_str() == words[0]).unwrap();
        instance.resources = Some(ContainerResources {
            cpu_shares: number(words, "shares"),
            cpu_quota: number(words, "quota"),
            cpu_period: Some(100_000),
            memory_limit: number(words, "memory"),
        });
    }

    fn read_probe(&mut self, words: &[&str]) {
        let probes = self.probes.entry(words[0].to_owned()).or_default();
        let result = |kind| {
            value(words, kind).map(|result| match result {
                "Success" => ProbeResult::Success,
                "Failure" => ProbeResult::Failure,
                _ => ProbeResult::Unknown,
            })
        };
        probes.readiness = result("readiness").or(probes.readiness);
        probes.startup = result("startup").or(probes.startup);
    }

    pub(crate) fn compute(&self) -> PodStatus {
        let probes =
            |name: &str, _: &ContainerId| self.probes.get(name).copied().unwrap_or_default();
        compute_pod_status(&StatusInput {
            snapshot: self.snapshot.as_ref(),
            probes: &probes,
            start_failures: &self.failures,
            starting: &self.starting,
            vanished: &self.vanished,
            stage: self.stage,
            outcome_override: self.outcome.as_ref(),
            restarting_all: self.restarting_all,
            is_leaving: self.is_leaving,
            ..StatusInput::new(&self.pod, &self.previous, &self.node, second(self.now))
        })
    }

    pub(crate) fn report(&self) -> String {
        let status = self.compute();
        let default = ["phase".to_owned(), "containers".to_owned()];
        let show = if self.show.is_empty() { &default[..] } else { &self.show[..] };
        let messages = show.iter().any(|part| part == "messages");
        let mut out = String::new();
        for part in show {
            match part.as_str() {
                "phase" => show_phase(&mut out, &status),
                "containers" => show_containers(&mut out, &status, messages),
                "conditions" => show_conditions(&mut out, &status, false),
                "times" => {
                    show_conditions(&mut out, &status, true);
                    let start = status.start_time.as_ref().unwrap().0.as_second();
                    writeln!(out, "start {start}").unwrap();
                }
                "ips" => {
                    let list = |ips: Vec<&str>| ips.join(",");
                    let pod = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
                    let host = status.host_ips.iter().flatten().map(|ip| ip.ip.as_str()).collect();
                    writeln!(
                        out,
                        "pod {} [{}] host {} [{}]",
                        status.pod_ip.as_deref().unwrap_or("-"),
                        list(pod),
                        status.host_ip.as_deref().unwrap_or("-"),
                        list(host)
                    )
                    .unwrap();
                }
                "resources" => show_resources(&mut out, &status),
                "mounts" => show_mounts(&mut out, &status),
                "messages" => {}
                other => panic!("nothing to show for {other}"),
            }
        }
        out
    }
}

fn read_pod(words: &[&str], spec: &mut Value, metadata: &mut Value) {
    for word in words {
        match word.split_once('=') {
            Some(("restart", policy)) => spec["restartPolicy"] = policy.into(),
            Some(("generation", number)) => {
                metadata["generation"] = number.parse::<i64>().unwrap().into();
            }
            Some(("gate", condition)) => {
                spec["readinessGates"] = json!([{ "conditionType": condition }]);
            }
            None if *word == "static" => {
                metadata["annotations"] = json!({ "kubernetes.io/config.source": "file" });
            }
            None if *word == "deleting" => {
                metadata["deletionTimestamp"] = "1970-01-01T00:10:00Z".into();
            }
            None if *word == "host-network" => spec["hostNetwork"] = true.into(),
            _ => panic!("pod {word}"),
        }
    }
}

fn read_container(words: &[&str], spec: &mut Value) {
    let mut container = json!({ "name": words[0], "image": "image" });
    let mut list = "containers";
    for word in &words[1..] {
        match word.split_once('=') {
            None if *word == "init" => list = "initContainers",
            None if *word == "sidecar" => {
                list = "initContainers";
                container["restartPolicy"] = "Always".into();
            }
            None if *word == "ephemeral" => list = "ephemeralContainers",
            None => container[format!("{word}Probe")] = json!({ "exec": { "command": ["true"] } }),
            Some(("restart", policy)) => container["restartPolicy"] = policy.into(),
            Some(("rule", rule)) => {
                let (action, code) = rule.split_once(':').unwrap();
                container["restartPolicyRules"] = json!([{
                    "action": action,
                    "exitCodes": { "operator": "In", "values": [code.parse::<i32>().unwrap()] },
                }]);
            }
            Some(("mount", mount)) => {
                let parts: Vec<&str> = mount.split(':').collect();
                container["volumeMounts"] = json!([{
                    "name": parts[0],
                    "mountPath": parts[1],
                    "readOnly": parts.get(2).map(|word| *word == "ro"),
                    "recursiveReadOnly": parts.get(3),
                }]);
            }
            Some((resource, amounts)) => {
                let (request, limit) = match amounts.split_once('/') {
                    Some((request, limit)) => (request, Some(limit)),
                    None => (amounts, None),
                };
                container["resources"]["requests"][resource] = request.into();
                if let Some(limit) = limit {
                    container["resources"]["limits"][resource] = limit.into();
                }
            }
        }
    }
    spec[list].as_array_mut().unwrap().push(container);
}

fn read_status(words: &[&str], spec: &Value, status: &mut PodStatus) {
    let text = |key| value(words, key).map(str::to_owned);
    if words[0].contains('=') {
        status.phase = text("phase");
        status.reason = text("reason");
        status.message = text("message");
        status.start_time = number(words, "start").map(|at| second(at).into());
        status.pod_ip = text("ip");
        status.pod_ips = text("ip").map(|ip| vec![PodIP { ip }]);
        return;
    }
    if words[0] == "condition" {
        let (type_, rest) = words[1].split_once('=').unwrap();
        let (holds, at) = rest.split_once('@').unwrap_or((rest, "1"));
        status.conditions.get_or_insert_default().push(PodCondition {
            type_: type_.to_owned(),
            status: holds.to_owned(),
            last_transition_time: Some(second(at.parse().unwrap()).into()),
            ..Default::default()
        });
        return;
    }
    let name = words[0];
    let (state, arguments) = call(words[1]);
    let id = value(words, "id").map(|id| format!("containerd://{id}"));
    let said = value(words, "said");
    let end = |code: &str, reason: Option<&str>, id: &Option<String>| {
        json!({ "terminated": {
            "exitCode": code.parse::<i32>().unwrap(),
            "reason": reason.unwrap_or_else(|| reason_of(code)),
            "containerID": id,
            "message": said,
        } })
    };
    let state = match state {
        "running" => json!({ "running": { "startedAt": "1970-01-01T00:01:40Z" } }),
        "waiting" => json!({ "waiting": { "reason": arguments[0] } }),
        "terminated" => end(arguments[0], arguments.get(1).copied(), &id),
        other => panic!("state {other}"),
    };
    let last = value(words, "last").map(|last| {
        let (code, reason) = last.split_once(',').unwrap_or((last, reason_of(last)));
        let last_id = value(words, "last-id").map(|id| format!("containerd://{id}"));
        end(code, Some(reason), &last_id.or_else(|| id.clone()))
    });
    let reported = ContainerStatus {
        name: name.to_owned(),
        image: "image".to_owned(),
        container_id: id.clone(),
        restart_count: number(words, "restarts").map_or(0, |n| i32::try_from(n).unwrap()),
        ready: words.contains(&"ready"),
        started: Some(words.contains(&"started")),
        state: serde_json::from_value(state).unwrap(),
        last_state: last.map(|last| serde_json::from_value(last).unwrap()),
        ..Default::default()
    };
    let named = |list: &str| {
        spec[list].as_array().unwrap().iter().any(|container| container["name"] == name)
    };
    let list = if named("initContainers") {
        &mut status.init_container_statuses
    } else if named("ephemeralContainers") {
        &mut status.ephemeral_container_statuses
    } else {
        &mut status.container_statuses
    };
    list.get_or_insert_default().push(reported);
}

fn show_phase(out: &mut String, status: &PodStatus) {
    write!(out, "phase {}", status.phase.as_deref().unwrap_or("-")).unwrap();
    if let Some(reason) = &status.reason {
        write!(out, " {reason}").unwrap();
    }
    if let Some(message) = &status.message {
        write!(out, ": {message}").unwrap();
    }
    out.push('\n');
}

fn show_state(state: &ApiState, messages: bool) -> String {
    let (mut text, message) = match state {
        ApiState { running: Some(_), .. } => ("running".to_owned(), None),
        ApiState { terminated: Some(end), .. } => (
            format!("terminated({},{})", end.exit_code, end.reason.as_deref().unwrap_or_default()),
            end.message.as_ref(),
        ),
        ApiState { waiting: Some(waiting), .. } => (
            format!("waiting({})", waiting.reason.as_deref().unwrap_or_default()),
            waiting.message.as_ref(),
        ),
        _ => ("nothing".to_owned(), None),
    };
    if let Some(message) = message.filter(|_| messages) {
        write!(text, " {message:?}").unwrap();
    }
    text
}

fn all_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flat_map(|list| list.iter().flatten())
}

fn show_containers(out: &mut String, status: &PodStatus, messages: bool) {
    for container in all_statuses(status) {
        let state = container.state.as_ref().map_or_else(String::new, |s| show_state(s, messages));
        write!(out, "{}: {state}", container.name).unwrap();
        if let Some(id) = &container.container_id {
            write!(out, " {}", id.trim_start_matches("containerd://")).unwrap();
        }
        if container.started == Some(true) {
            out.push_str(" started");
        }
        if container.ready {
            out.push_str(" ready");
        }
        if container.restart_count > 0 {
            write!(out, " restarts={}", container.restart_count).unwrap();
        }
        if let Some(last) = &container.last_state {
            write!(out, " last={}", show_state(last, messages)).unwrap();
        }
        out.push('\n');
    }
}

fn show_conditions(out: &mut String, status: &PodStatus, times: bool) {
    for condition in status.conditions.iter().flatten() {
        write!(out, "{}={}", condition.type_, condition.status).unwrap();
        if let Some(since) = condition.last_transition_time.as_ref().filter(|_| times) {
            write!(out, "@{}", since.0.as_second()).unwrap();
        }
        if let Some(generation) = condition.observed_generation {
            write!(out, " generation={generation}").unwrap();
        }
        if let Some(reason) = &condition.reason {
            write!(out, " {reason}").unwrap();
        }
        if let Some(message) = &condition.message {
            write!(out, ": {message}").unwrap();
        }
        out.push('\n');
    }
}

fn show_resources(out: &mut String, status: &PodStatus) {
    let amounts = |resources: &ResourceRequirements| {
        let list = |list: &Option<BTreeMap<String, _>>| {
            let amounts: Vec<String> = list
                .iter()
                .flatten()
                .map(
                    |(name, amount): (
                        _,
                        &k8s_openapi::apimachinery::pkg::api::resource::Quantity,
                    )| { format!("{name}={}", amount.0) },
                )
                .collect();
            amounts.join(" ")
        };
        format!("requests[{}] limits[{}]", list(&resources.requests), list(&resources.limits))
    };
    for container in all_statuses(status) {
        if let Some(resources) = &container.resources {
            writeln!(out, "{}: {}", container.name, amounts(resources)).unwrap();
        }
    }
    if let Some(resources) = &status.resources {
        writeln!(out, "pod: {}", amounts(resources)).unwrap();
    }
    writeln!(out, "qos {}", status.qos_class.as_deref().unwrap_or("-")).unwrap();
}

fn show_mounts(out: &mut String, status: &PodStatus) {
    for container in all_statuses(status) {
        for mount in container.volume_mounts.iter().flatten() {
            writeln!(
                out,
                "{}: {} {} read-only={:?} recursive={}",
                container.name,
                mount.name,
                mount.mount_path,
                mount.read_only.unwrap_or(false),
                mount.recursive_read_only.as_deref().unwrap_or("-")
            )
            .unwrap();
        }
    }
}
