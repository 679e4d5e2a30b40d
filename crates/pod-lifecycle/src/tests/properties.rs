//! Random histories in the model world. `PROPTEST_CASES=20000 cargo test -p rubelet-pod-lifecycle`
//! runs more of them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use proptest::sample::select;
use rubelet_types::{ProbeKind, ProbeResult};
use serde_json::{Value, json};

use super::world::{How, Step, World};

fn container(name: &'static str, is_init: bool) -> impl Strategy<Value = Value> {
    let policies = if is_init {
        // A sidecar as often as not.
        vec![None, None, Some("Always"), Some("Always"), Some("Never"), Some("OnFailure")]
    } else {
        vec![None, None, None, Some("Always"), Some("Never"), Some("OnFailure")]
    };
    let rules = select(vec![None, None, None, Some("Restart"), Some("RestartAllContainers")]);
    (select(policies), rules, any::<[bool; 3]>()).prop_map(
        move |(policy, rule, [pre_stop, liveness, startup])| {
            let mut container = json!({"name": name, "image": "image"});
            let is_sidecar = is_init && policy == Some("Always");
            if let Some(policy) = policy {
                container["restartPolicy"] = policy.into();
            }
            if let Some(action) = rule {
                container["restartPolicyRules"] =
                    json!([{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]);
            }
            if is_init && !is_sidecar {
                return container;
            }
            if pre_stop {
                container["lifecycle"] = json!({"preStop": {"exec": {}}});
            }
            if liveness {
                container["livenessProbe"] =
                    json!({"exec": {}, "terminationGracePeriodSeconds": 3});
            }
            if startup {
                container["startupProbe"] = json!({"exec": {}});
            }
            container
        },
    )
}

pub(super) fn pod() -> impl Strategy<Value = Pod> {
    let init = (container("i1", true), container("i2", true), container("i3", true), 0..4usize);
    let regular = (container("a", false), container("b", false), 1..3usize);
    (
        select(vec!["Always", "OnFailure", "Never"]),
        select(vec![1, 5, 30]),
        init,
        regular,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
    )
        .prop_map(|(policy, grace, init, regular, has_ephemeral, is_static)| {
            let (i1, i2, i3, inits) = init;
            let (a, b, regulars) = regular;
            let ephemeral = json!([{"name": "e", "image": "e"}]);
            let take = |list: &[Value], count: usize| Value::from(list[..count].to_vec());
            serde_json::from_value(json!({
                "metadata": {
                    "uid": "uid", "namespace": "ns", "name": "pod",
                    "annotations": {
                        "kubernetes.io/config.source": if is_static { "file" } else { "api" },
                    },
                },
                "spec": {
                    "restartPolicy": policy,
                    "terminationGracePeriodSeconds": grace,
                    "initContainers": take(&[i1, i2, i3], inits),
                    "containers": take(&[a, b], regulars),
                    "ephemeralContainers": if has_ephemeral { ephemeral } else { json!([]) },
                },
            }))
            .unwrap()
        })
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..8usize;
    let how = select(vec![
        How::Success,
        How::Success,
        How::Success,
        How::Nothing,
        How::EffectAnyway,
        How::Half,
        How::HalfThenLater,
        How::EffectLater,
        How::HookFailed,
    ]);
    let result = select(vec![ProbeResult::Success, ProbeResult::Success, ProbeResult::Failure]);
    let kind = select(vec![ProbeKind::Liveness, ProbeKind::Startup]);
    prop_oneof![
        4 => select(vec![0, 1, 2, 10, 40, 700]).prop_map(Step::Pass),
        2 => number.clone().prop_map(Step::Effect),
        4 => number.clone().prop_map(|which| Step::Finish(which, How::Success)),
        12 => (number.clone(), how).prop_map(|(which, how)| Step::Finish(which, how)),
        1 => Just(Step::Late),
        14 => Just(Step::Look),
        2 => Just(Step::Save),
        2 => Just(Step::DeliverSaved),
        4 => (number.clone(), select(vec![0, 0, 1, 42, 137]))
            .prop_map(|(which, code)| Step::Exit(which, code)),
        1 => number.clone().prop_map(Step::LoseTrack),
        1 => Just(Step::SandboxDies),
        5 => (number.clone(), kind, result)
            .prop_map(|(which, kind, result)| Step::Probe(which, kind, result)),
        1 => any::<bool>().prop_map(Step::Network),
        1 => select(vec![1, 10, 600]).prop_map(Step::Delete),
        1 => prop::bool::weighted(0.3).prop_map(|remove| if remove { Step::Remove } else { Step::Look }),
        1 => prop::bool::weighted(0.3)
            .prop_map(|evict| if evict { Step::Evict(4) } else { Step::Late }),
        1 => (number.clone(), any::<bool>()).prop_map(|(which, in_place)| Step::Resize(which, in_place)),
        1 => number.clone().prop_map(Step::NewImage),
        1 => number.prop_map(Step::Prune),
        1 => any::<u8>().prop_map(Step::Crash),
    ]
}

/// A pod that shows itself as JSON.
#[derive(Clone)]
pub(super) struct Manifest(pub(super) Pod);

impl fmt::Debug for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(&self.0.spec).unwrap_or_default())
    }
}

fn run(pod: Pod, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(pod);
    let result = catch_unwind(AssertUnwindSafe(|| {
        for step in steps {
            world.step(step);
        }
        world.calm_down();
        world.check_restart_is_harmless();
    }));
    result.map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        TestCaseError::fail(format!("{message}\n{}\n", world.trace()))
    })
}

/// The number of cases: `default`, unless the environment says otherwise.
pub(super) fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default)
}

proptest! {
    #![proptest_config(ProptestConfig {
        max_shrink_iters: 20_000,
        ..ProptestConfig::with_cases(cases(400))
    })]

    #[test]
    fn histories_keep_the_invariants_and_come_to_rest(
        pod in pod().prop_map(Manifest),
        steps in prop::collection::vec(step(), 0..80),
    ) {
        run(pod.0, &steps)?;
    }
}
