//! The brain and the status agree on when a pod is done: one ends it, the other says so, and what
//! is said is never taken back.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use proptest::prelude::*;
use proptest::sample::select;
use rubelet_pod_status::{NodeFacts, Stage, StatusInput, compute_pod_status};
use rubelet_types::{
    ContainerAnnotations, ContainerKind, ContainerSnapshot, ContainerState, PodSnapshot,
    SandboxSnapshot, SandboxState, containers, find_container, is_static_pod, is_terminal_phase,
    pod_ref, reasons,
};

use super::language::second;
use super::properties::{Manifest, cases, pod};
use crate::is_pod_done;

#[derive(Clone, Copy, Debug)]
enum Seen {
    Nothing,
    Created,
    Running,
    Exited(i32, &'static str),
}

fn seen() -> impl Strategy<Value = Seen> {
    select(vec![
        Seen::Nothing,
        Seen::Created,
        Seen::Running,
        Seen::Exited(0, reasons::COMPLETED),
        Seen::Exited(0, reasons::COMPLETED),
        Seen::Exited(0, reasons::OOM_KILLED),
        Seen::Exited(1, reasons::ERROR),
        Seen::Exited(42, reasons::ERROR),
        Seen::Exited(137, reasons::OOM_KILLED),
    ])
}

/// The older and the newer instance of each container, in the order of the spec.
type Instances = Vec<[Seen; 2]>;

fn snapshot(pod: &Pod, instances: &Instances) -> PodSnapshot {
    let mut snapshot = PodSnapshot::empty(pod_ref(pod), second(100));
    snapshot.sandboxes.push(SandboxSnapshot {
        id: "s".into(),
        state: SandboxState::Ready,
        attempt: 0,
        created_at: second(0),
        ips: vec!["10.0.0.1".to_owned()],
        host_network: false,
    });
    for (spec, seen) in containers(pod).zip(instances) {
        for (age, seen) in seen.iter().enumerate() {
            let state = match *seen {
                Seen::Nothing => continue,
                Seen::Created => ContainerState::Created,
                Seen::Running => ContainerState::Running { started_at: second(1) },
                Seen::Exited(exit_code, reason) => exited(exit_code, reason),
            };
            let name = &spec.container.name;
            let instance = ContainerSnapshot {
                id: format!("{name}{age}").as_str().into(),
                name: name.clone(),
                sandbox_id: Some("s".into()),
                state,
                created_at: second(0),
                image: String::new(),
                image_ref: String::new(),
                hash: String::new(),
                restart_count: u32::try_from(age).unwrap(),
                annotations: ContainerAnnotations::default(),
                resources: None,
                user: None,
                log_path: String::new(),
                mounts: Default::default(),
                stop_signal: None,
            };
            snapshot.containers.insert(0, instance);
        }
    }
    snapshot
}

fn exited(exit_code: i32, reason: &str) -> ContainerState {
    ContainerState::Exited {
        started_at: Some(second(1)),
        finished_at: second(2),
        exit_code,
        reason: reason.to_owned(),
        message: String::new(),
    }
}

/// The snapshot after everything `which` names was stopped.
fn stopped(
    pod: &Pod,
    snapshot: &PodSnapshot,
    which: impl Fn(Option<ContainerKind>) -> bool,
) -> PodSnapshot {
    let mut snapshot = snapshot.clone();
    for container in &mut snapshot.containers {
        let kind = find_container(pod, &container.name).map(|spec| spec.kind);
        if container.may_run() && which(kind) {
            container.state = exited(137, reasons::ERROR);
        }
    }
    snapshot
}

fn phase(pod: &Pod, snapshot: &PodSnapshot, stage: Stage) -> String {
    let (previous, node) = (PodStatus::default(), NodeFacts::default());
    let now: Timestamp = second(200);
    let input = StatusInput {
        snapshot: Some(snapshot),
        stage,
        ..StatusInput::new(pod, &previous, &node, now)
    };
    compute_pod_status(&input).phase.unwrap_or_default()
}

/// Initialisation that makes sense: an init container only exists if those before it exist, and
/// regular ones only if all of them do.
fn in_order(pod: &Pod, mut instances: Instances) -> Instances {
    let mut complete = true;
    for (spec, seen) in containers(pod).zip(&mut instances) {
        match spec.kind {
            ContainerKind::Init | ContainerKind::Sidecar | ContainerKind::Regular if !complete => {
                *seen = [Seen::Nothing, Seen::Nothing];
            }
            ContainerKind::Init => {
                complete = matches!(seen[1], Seen::Exited(0, reasons::COMPLETED));
            }
            ContainerKind::Sidecar => complete = !matches!(seen[1], Seen::Nothing | Seen::Created),
            ContainerKind::Regular | ContainerKind::Ephemeral => {}
        }
    }
    instances
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(2000)))]

    #[test]
    fn a_pod_is_done_when_its_phase_is_terminal(
        pod in pod().prop_map(Manifest),
        instances in prop::collection::vec([seen(), seen()], 6),
    ) {
        let pod = &pod.0;
        let seen = snapshot(pod, &in_order(pod, instances));
        let is_done = is_pod_done(pod, &seen);

        // Sidecars and ephemeral containers are stopped with the pod; they decide nothing.
        let alone = stopped(pod, &seen, |kind| {
            matches!(kind, Some(ContainerKind::Sidecar | ContainerKind::Ephemeral))
        });
        let is_over = is_terminal_phase(Some(&phase(pod, &alone, Stage::Setup)));
        if !alone.any_may_run() {
            prop_assert_eq!(is_done, is_over);
        }

        // Once it is done, stopping what still runs changes nothing about it.
        let dead = stopped(pod, &seen, |_| true);
        if is_done {
            prop_assert!(is_pod_done(pod, &dead));
            let phase_at = |stage| phase(pod, &dead, stage);
            prop_assert!(is_terminal_phase(Some(&phase_at(Stage::Terminating))));
            // A static pod may run again, so what it was about to start counts as lost.
            if !is_static_pod(pod) {
                prop_assert!(is_terminal_phase(Some(&phase_at(Stage::Terminated))));
            }
        }
    }
}
