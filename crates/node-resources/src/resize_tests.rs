use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const RULES: ResizeRules = ResizeRules { init_containers: true, pod_level: true };
const CGROUP: PodCgroupRules = PodCgroupRules {
    cpu_cfs_quota: true,
    cpu_cfs_period_micros: 100_000,
    pod_pids_limit: Some(99),
    memory_qos: false,
};

fn pod(containers: &[(&str, &str, &str)]) -> Pod {
    let containers: Vec<Value> = containers
        .iter()
        .map(|(name, cpu, memory)| {
            let amounts = json!({"cpu": cpu, "memory": memory});
            json!({"name": name, "resources": {"requests": amounts, "limits": amounts}})
        })
        .collect();
    serde_json::from_value(json!({"spec": {"containers": containers}})).unwrap()
}

fn plan(before: &Pod, after: &Pod) -> ResizePlan {
    let running: Vec<String> = containers(after).map(|it| it.container.name.clone()).collect();
    let running = running.iter().map(String::as_str).collect();
    plan_resize(after, &PodResources::of(before, RULES), &running, RULES, &CGROUP)
}

/// The steps in short.
fn told(plan: &ResizePlan) -> Vec<String> {
    let amount = |list: &Option<BTreeMap<String, _>>, name: &str| {
        ResourceAmounts::from_api(list.as_ref())
            .get(name)
            .map_or_else(|| "-".to_owned(), |amount| amount.to_string())
    };
    plan.steps
        .iter()
        .map(|step| match step {
            ResizeStep::PodCgroup(values) => {
                assert_eq!((values.pids_limit, &values.hugepage_limits), (None, &None));
                let mut told = "pod".to_owned();
                for (word, value) in [
                    ("memory", values.memory_limit.map(|bytes| bytes >> 20)),
                    ("quota", values.cpu_quota),
                    ("shares", values.cpu_shares.map(|shares| i64::try_from(shares).unwrap())),
                ] {
                    if let Some(value) = value {
                        told.push_str(&format!(" {word} {value}"));
                    }
                }
                told
            }
            ResizeStep::Container { name, resource, resources, .. } => format!(
                "{name} {}: {} {}",
                resource.as_str(),
                amount(&resources.limits, "cpu"),
                amount(&resources.limits, "memory")
            ),
        })
        .collect()
}

#[test]
fn more_for_a_pod_goes_from_above_to_below() {
    let plan = plan(&pod(&[("a", "1", "100Mi")]), &pod(&[("a", "2", "200Mi")]));
    assert_eq!(
        told(&plan),
        [
            "pod memory 200",
            "a memory: 1 200Mi",
            "pod quota 200000",
            "pod shares 2048",
            "a cpu: 2 200Mi"
        ]
    );
    assert_eq!(plan.memory_limits, MemoryLimits { pod: Some(200 << 20), ..Default::default() });
}

#[test]
fn less_for_a_pod_goes_from_below_to_above() {
    let plan = plan(&pod(&[("a", "2", "200Mi")]), &pod(&[("a", "1", "100Mi")]));
    assert_eq!(
        told(&plan),
        [
            "a memory: 2 100Mi",
            "pod memory 100",
            "a cpu: 1 100Mi",
            "pod shares 1024",
            "pod quota 100000"
        ]
    );
    assert!(plan.memory_limits.pod_decreases);
    assert_eq!(plan.memory_limits.containers, BTreeMap::from([("a".to_owned(), 100 << 20)]));
}

#[test]
fn who_gives_comes_before_who_gets() {
    let before = pod(&[("a", "1", "100Mi"), ("b", "2", "200Mi"), ("c", "1", "1Gi")]);
    let after = pod(&[("a", "2", "200Mi"), ("b", "1", "100Mi"), ("c", "1", "1Gi")]);
    assert_eq!(
        told(&plan(&before, &after)),
        [
            "b memory: 2 100Mi",
            "a memory: 1 200Mi",
            "pod memory 1324",
            "b cpu: 1 100Mi",
            "a cpu: 2 200Mi",
            "pod shares 4096",
            "pod quota 400000"
        ]
    );
}

#[test]
fn containers_that_do_not_run_are_left_to_their_creation() {
    let (before, after) = (pod(&[("a", "1", "1Gi")]), pod(&[("a", "2", "1Gi")]));
    let in_force = PodResources::of(&before, RULES);
    let plan = plan_resize(&after, &in_force, &BTreeSet::new(), RULES, &CGROUP);
    assert_eq!(told(&plan), ["pod memory 1024", "pod quota 200000", "pod shares 2048"]);
}

#[test]
fn a_pod_without_limits_has_only_its_weight_set() {
    let of = |cpu: &str| -> Pod {
        let spec = json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]});
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    };
    assert_eq!(told(&plan(&of("1"), &of("2"))), ["pod shares 2048", "a cpu: - -"]);
    assert_eq!(told(&plan(&of("2"), &of("1"))), ["a cpu: - -", "pod shares 1024"]);
}

#[test]
fn the_limit_of_the_pod_is_that_of_containers_without_one() {
    let of = |memory: &str| -> Pod {
        serde_json::from_value(json!({"spec": {
            "resources": {"requests": {"memory": "10Mi"}, "limits": {"memory": memory}},
            "containers": [
                {"name": "a"},
                {"name": "b", "resources": {"limits": {"memory": "20Mi"}}},
            ],
        }}))
        .unwrap()
    };
    let (before, after) = (of("100Mi"), of("200Mi"));
    let changes = compute_container_changes(&after, &PodResources::of(&before, RULES), RULES);
    assert_eq!(changes.in_place, BTreeSet::from(["a".to_owned()]));
    assert_eq!(told(&plan(&before, &after)), ["pod memory 200", "a memory: - -", "pod shares 2"]);
}

#[test]
fn policies_say_who_restarts() {
    let of = |cpu: &str, memory: &str| -> Pod {
        let container = |name: &str, policy: Value| {
            json!({"name": name, "resizePolicy": policy, "resources": {
                "requests": {"cpu": cpu, "memory": memory},
            }})
        };
        let restart = |resource: &str| json!([{"resourceName": resource, "restartPolicy": "RestartContainer"}]);
        let spec = json!({"containers": [
            container("none", json!(null)),
            container("cpu", restart("cpu")),
            container("memory", restart("memory")),
        ]});
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    };
    let check = |before: Pod, in_place: &[&str], by_restart: &[&str]| {
        let changes =
            compute_container_changes(&of("1", "1Gi"), &PodResources::of(&before, RULES), RULES);
        assert_eq!(changes.in_place.iter().collect::<Vec<_>>(), in_place);
        assert_eq!(changes.by_restart.iter().collect::<Vec<_>>(), by_restart);
    };
    check(of("1000m", "1024Mi"), &[], &[]);
    check(of("2", "1Gi"), &["memory", "none"], &["cpu"]);
    check(of("1", "2Gi"), &["cpu", "none"], &["memory"]);
    check(of("2", "2Gi"), &["none"], &["cpu", "memory"]);
}

/// The limits of a node that carries out a plan.
struct Node {
    pod: (i64, i64),
    containers: BTreeMap<String, (i64, i64)>,
}

impl Node {
    fn of(pod: &Pod) -> Self {
        let values = compute_pod_cgroup_values(pod, &CGROUP);
        let containers = PodResources::of(pod, RULES)
            .containers
            .iter()
            .map(|(name, resources)| (name.clone(), limits(resources)))
            .collect();
        Self { pod: (values.memory_limit.unwrap(), values.cpu_quota.unwrap()), containers }
    }

    fn apply(&mut self, step: &ResizeStep) {
        match step {
            ResizeStep::PodCgroup(values) => {
                self.pod.0 = values.memory_limit.unwrap_or(self.pod.0);
                self.pod.1 = values.cpu_quota.unwrap_or(self.pod.1);
            }
            ResizeStep::Container { name, resource, resources, .. } => {
                let old = self.containers[name];
                let new = limits(resources);
                match resource {
                    ResizableResource::Memory => assert_eq!(old.1, new.1, "one at a time"),
                    ResizableResource::Cpu => assert_eq!(old.0, new.0, "one at a time"),
                }
                self.containers.insert(name.clone(), new);
            }
        }
    }

    fn check(&self) {
        let (memory, cpu) = self
            .containers
            .values()
            .fold((0, 0), |(memory, cpu), of_one| (memory + of_one.0, cpu + of_one.1));
        assert!(memory <= self.pod.0, "containers may use more memory than the pod");
        assert!(cpu * 100 <= self.pod.1, "containers may use more CPU than the pod");
    }
}

fn limits(resources: &ResourceRequirements) -> (i64, i64) {
    let limits = ResourceAmounts::from_api(resources.limits.as_ref());
    (limits.memory_bytes(), limits.cpu_milli())
}

fn any_pod() -> impl Strategy<Value = Pod> {
    proptest::collection::vec((10i64..4000, 1i64..4000), 4).prop_map(|amounts| {
        let amounts: Vec<(String, String, String)> = amounts
            .iter()
            .enumerate()
            .map(|(index, (cpu, memory))| {
                (format!("c{index}"), format!("{cpu}m"), format!("{memory}Mi"))
            })
            .collect();
        let amounts: Vec<_> =
            amounts.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
        pod(&amounts)
    })
}

proptest! {
    /// The containers of a pod together never have more than the pod, wherever a plan is broken off,
    /// and a plan for something else, or the same one, is made from there.
    #[test]
    fn a_pod_bounds_its_containers_at_each_step(
        first in any_pod(), second in any_pod(), third in any_pod(), broken_off in 0usize..24,
    ) {
        let mut node = Node::of(&first);
        let mut in_force = PodResources::of(&first, RULES);
        node.check();
        let names: Vec<String> = in_force.containers.keys().cloned().collect();
        let running: BTreeSet<&str> = names.iter().map(String::as_str).collect();
        for (wanted, steps) in [(&second, broken_off), (&third, usize::MAX)] {
            let plan = plan_resize(wanted, &in_force, &running, RULES, &CGROUP);
            for step in plan.steps.iter().take(steps) {
                node.apply(step);
                node.check();
                if let ResizeStep::Container { name, resources, .. } = step {
                    in_force.containers.insert(name.clone(), resources.clone());
                }
            }
        }
        prop_assert_eq!(node.pod, Node::of(&third).pod);
        prop_assert_eq!(node.containers, Node::of(&third).containers);
        prop_assert!(in_force.means_same(&PodResources::of(&third, RULES)));
        prop_assert_eq!(
            compute_container_changes(&third, &in_force, RULES), ContainerChanges::default()
        );
    }
}
