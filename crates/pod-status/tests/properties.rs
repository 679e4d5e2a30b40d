//! Invariants over random histories of one pod.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use proptest::prelude::*;
use rubelet_pod_status::{
    ContainerProbes, IllegalTransition, NodeFacts, Stage, StartFailure, StatusInput,
    StatusOverride, TerminalPhase, check_transition, compute_pod_status, statuses_equal,
};
use rubelet_types::{
    ContainerAnnotations, ContainerId, ContainerSnapshot, ContainerState, PodSnapshot, ProbeResult,
    SandboxId, SandboxSnapshot, SandboxState, is_terminal_phase, pod_ref,
};
use serde_json::json;

const NAMES: [&str; 4] = ["i", "s", "a", "b"];

fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod() -> impl Strategy<Value = Pod> {
    let policy = prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")];
    (policy, any::<[bool; 5]>()).prop_map(|(policy, [init, sidecar, second, is_static, probes])| {
        let probe = probes.then(|| json!({ "exec": { "command": ["true"] } }));
        let container = |name: &str| json!({ "name": name, "image": "image" });
        let mut init_containers = Vec::new();
        if init {
            init_containers.push(container("i"));
        }
        if sidecar {
            let mut sidecar = container("s");
            sidecar["restartPolicy"] = "Always".into();
            sidecar["startupProbe"] = json!(probe);
            init_containers.push(sidecar);
        }
        let mut main = container("a");
        main["readinessProbe"] = json!(probe);
        main["startupProbe"] = json!(probe);
        let mut containers = vec![main];
        if second {
            containers.push(container("b"));
        }
        serde_json::from_value(json!({
            "metadata": {
                "uid": "uid", "namespace": "ns", "name": "pod", "generation": 3,
                "annotations": {
                    "kubernetes.io/config.source": if is_static { "file" } else { "api" },
                },
            },
            "spec": {
                "restartPolicy": policy,
                "initContainers": init_containers,
                "containers": containers,
            },
        }))
        .unwrap()
    })
}

/// What happens to one container between two looks at it.
#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    Create,
    Run,
    Exit(i32),
    Blur,
    Remove,
}

#[derive(Clone, Debug)]
struct Step {
    changes: [Change; 4],
    known: bool,
    sandbox_ready: bool,
    new_sandbox: bool,
    starting: [bool; 4],
    failing: [bool; 4],
    probe: Option<ProbeResult>,
    advance_stage: bool,
    evict: bool,
    restarting_all: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let change = prop_oneof![
        4 => Just(Change::Nothing),
        2 => Just(Change::Create),
        3 => Just(Change::Run),
        3 => prop_oneof![Just(0), Just(1), Just(137)].prop_map(Change::Exit),
        1 => Just(Change::Blur),
        1 => Just(Change::Remove),
    ];
    let probe = prop_oneof![
        Just(None),
        Just(Some(ProbeResult::Unknown)),
        Just(Some(ProbeResult::Success)),
        Just(Some(ProbeResult::Failure)),
    ];
    let seldom = || prop::bool::weighted(0.1);
    (
        [change.clone(), change.clone(), change.clone(), change],
        (prop::bool::weighted(0.9), prop::bool::weighted(0.8), seldom()),
        [seldom(), seldom(), seldom(), seldom()],
        [seldom(), seldom(), seldom(), seldom()],
        probe,
        (seldom(), seldom(), seldom()),
    )
        .prop_map(
            |(changes, (known, sandbox_ready, new_sandbox), starting, failing, probe, rest)| Step {
                changes,
                known,
                sandbox_ready,
                new_sandbox,
                starting,
                failing,
                probe,
                advance_stage: rest.0,
                evict: rest.1,
                restarting_all: rest.2,
            },
        )
}

/// The world as it is after some steps.
struct World {
    pod: Pod,
    snapshot: PodSnapshot,
    stage: Stage,
    evicted: Option<StatusOverride>,
    created: u32,
    now: i64,
}

impl World {
    fn new(pod: Pod) -> Self {
        let snapshot = PodSnapshot::empty(pod_ref(&pod), second(0));
        Self { pod, snapshot, stage: Stage::Setup, evicted: None, created: 0, now: 1000 }
    }

    fn take(&mut self, step: &Step) {
        self.now += 10;
        if step.new_sandbox || self.snapshot.sandboxes.is_empty() {
            for old in &mut self.snapshot.sandboxes {
                old.state = SandboxState::NotReady;
            }
            let sandbox = SandboxSnapshot {
                id: SandboxId::new(format!("sandbox-{}", self.now)),
                state: SandboxState::Ready,
                attempt: 0,
                created_at: second(self.now),
                ips: vec!["10.0.0.1".to_owned()],
                host_network: false,
            };
            self.snapshot.sandboxes.insert(0, sandbox);
        }
        self.snapshot.sandboxes[0].state =
            if step.sandbox_ready { SandboxState::Ready } else { SandboxState::NotReady };
        for (name, change) in NAMES.into_iter().zip(step.changes) {
            self.change(name, change);
        }
        if step.evict && self.evicted.is_none() {
            self.evicted = Some(StatusOverride {
                phase: TerminalPhase::Failed,
                reason: "Evicted".to_owned(),
                message: "low".to_owned(),
                conditions: vec![PodCondition {
                    type_: "DisruptionTarget".to_owned(),
                    status: "True".to_owned(),
                    ..Default::default()
                }],
            });
        }
        if step.advance_stage {
            self.stage = match self.stage {
                Stage::Setup => Stage::Terminating,
                Stage::Terminating | Stage::Terminated => Stage::Terminated,
            };
        }
    }

    fn change(&mut self, name: &str, change: Change) {
        let instances = &mut self.snapshot.containers;
        let newest = instances.iter_mut().find(|instance| instance.name == name);
        match (change, newest) {
            (Change::Nothing, _) | (Change::Run | Change::Exit(_) | Change::Blur, None) => {}
            (Change::Create, newest) => {
                let restart_count = newest.map_or(0, |before| before.restart_count + 1);
                self.created += 1;
                let instance = ContainerSnapshot {
                    id: ContainerId::new(format!("{name}{}", self.created)),
                    name: name.to_owned(),
                    sandbox_id: Some(self.snapshot.sandboxes[0].id.clone()),
                    state: ContainerState::Created,
                    created_at: second(self.now),
                    image: "image".to_owned(),
                    image_ref: "ref".to_owned(),
                    hash: String::new(),
                    restart_count,
                    annotations: ContainerAnnotations::default(),
                    resources: None,
                    user: None,
                    log_path: String::new(),
                    mounts: BTreeMap::new(),
                    stop_signal: None,
                };
                instances.insert(0, instance);
            }
            (Change::Run, Some(instance)) => {
                if matches!(instance.state, ContainerState::Created | ContainerState::Unknown) {
                    instance.state = ContainerState::Running { started_at: second(self.now) };
                }
            }
            (Change::Exit(exit_code), Some(instance)) => {
                if instance.may_run() {
                    instance.state = ContainerState::Exited {
                        started_at: None,
                        finished_at: second(self.now),
                        exit_code,
                        reason: "Error".to_owned(),
                        message: String::new(),
                    };
                }
            }
            (Change::Blur, Some(instance)) => {
                if instance.is_running() {
                    instance.state = ContainerState::Unknown;
                }
            }
            (Change::Remove, _) => instances.retain(|instance| instance.name != name),
        }
    }

    fn compute(&self, step: &Step, previous: &PodStatus, now: i64) -> PodStatus {
        let chosen = |flags: [bool; 4]| NAMES.into_iter().zip(flags).filter(|(_, flag)| *flag);
        let starting: BTreeSet<String> =
            chosen(step.starting).map(|(name, _)| name.to_owned()).collect();
        let failures: BTreeMap<String, StartFailure> = chosen(step.failing)
            .map(|(name, _)| {
                let failure =
                    StartFailure { reason: "ErrImagePull".to_owned(), message: "no".to_owned() };
                (name.to_owned(), failure)
            })
            .collect();
        let probes = |_: &str, _: &ContainerId| ContainerProbes {
            readiness: step.probe,
            startup: step.probe,
        };
        let node = NodeFacts {
            host_ips: vec!["192.168.0.1".to_owned()],
            runtime_name: "containerd".to_owned(),
            recursive_read_only_mounts: false,
        };
        compute_pod_status(&StatusInput {
            snapshot: step.known.then_some(&self.snapshot),
            probes: &probes,
            start_failures: &failures,
            starting: &starting,
            stage: self.stage,
            outcome_override: self.evicted.as_ref(),
            restarting_all: step.restarting_all,
            ..StatusInput::new(&self.pod, previous, &node, second(now))
        })
    }
}

fn conditions(status: &PodStatus) -> BTreeMap<&str, &PodCondition> {
    status.conditions.iter().flatten().map(|c| (c.type_.as_str(), c)).collect()
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status
        .init_container_statuses
        .iter()
        .flatten()
        .chain(status.container_statuses.iter().flatten())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_history_never_contradicts_itself(
        pod in pod(),
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let mut world = World::new(pod);
        let mut previous = PodStatus::default();
        for step in &steps {
            world.take(step);
            let status = world.compute(step, &previous, world.now);
            prop_assert_eq!(&status, &world.compute(step, &previous, world.now), "I6");

            let ended = is_terminal_phase(status.phase.as_deref());
            if is_terminal_phase(previous.phase.as_deref()) {
                prop_assert_eq!(&status.phase, &previous.phase, "I7: a terminal phase was left");
                prop_assert_eq!(&status.reason, &previous.reason);
                prop_assert_eq!(&status.message, &previous.message);
            } else if ended {
                let may_run = if step.known {
                    world.snapshot.any_may_run()
                } else {
                    world.stage != Stage::Terminated
                };
                prop_assert!(!may_run, "I7: terminal while a container may run");
                prop_assert_eq!(
                    conditions(&status).contains_key("DisruptionTarget"),
                    world.evicted.is_some(),
                    "what goes together with the end was torn apart"
                );
            } else {
                prop_assert!(!conditions(&status).contains_key("DisruptionTarget"));
            }
            prop_assert!(
                !ended || conditions(&status)["Ready"].status == "False",
                "ended and ready"
            );

            let before = conditions(&previous);
            for (type_, condition) in conditions(&status) {
                let since = condition.last_transition_time.as_ref().unwrap();
                match before.get(type_) {
                    Some(before) if before.status == condition.status => {
                        prop_assert_eq!(
                            Some(since), before.last_transition_time.as_ref(), "{}", type_
                        );
                    }
                    _ => prop_assert_eq!(since.0, second(world.now), "{}", type_),
                }
            }
            if before.get("Initialized").is_some_and(|condition| condition.status == "True") {
                prop_assert_eq!(&conditions(&status)["Initialized"].status, "True");
            }
            if previous.start_time.is_some() {
                prop_assert_eq!(&status.start_time, &previous.start_time);
            }
            for container in containers(&status) {
                let before = containers(&previous).find(|before| before.name == container.name);
                prop_assert!(
                    before.is_none_or(|before| before.restart_count <= container.restart_count),
                    "a restart count shrank"
                );
                let waits =
                    container.state.as_ref().is_some_and(|state| state.waiting.is_some());
                prop_assert!(!(container.ready && waits), "waiting and ready");
            }
            let left_the_end = matches!(
                check_transition(&world.pod, &previous, &status),
                Err(IllegalTransition::PhaseLeftTerminal { .. })
            );
            prop_assert!(!left_the_end, "refused by the status manager");

            let again = world.compute(step, &status, world.now + 3600);
            prop_assert!(
                statuses_equal(&status, &again),
                "not at rest:\n{:#?}\n{:#?}", status, again
            );
            previous = status;
        }
    }

    /// Total: nothing that the API or the runtime could say makes it panic.
    #[test]
    fn no_status_from_elsewhere_panics(
        pod in pod(),
        step in step(),
        phase in prop::option::of("\\PC{0,12}"),
        name in "[isab]{0,1}",
        count in any::<i32>(),
        at in any::<i32>(),
    ) {
        let mut world = World::new(pod);
        world.take(&step);
        let previous = PodStatus {
            phase,
            container_statuses: Some(vec![ContainerStatus {
                name: name.clone(),
                restart_count: count,
                ..Default::default()
            }]),
            conditions: Some(vec![PodCondition { type_: name, ..Default::default() }]),
            start_time: Some(second(at.into()).into()),
            ..Default::default()
        };
        let status = world.compute(&step, &previous, world.now);
        prop_assert!(status.phase.is_some());
    }
}
