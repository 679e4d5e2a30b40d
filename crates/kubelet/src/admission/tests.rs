use rubelet_node_resources::ResizeRules;
use serde_json::{Value, json};

use super::*;

/// A node with 4 cores, 1 GiB and room for three pods, and what is asked of it.
struct Bed {
    active: Vec<Arc<Pod>>,
    leaving: HashSet<PodUid>,
    expected: HashSet<PodUid>,
    node: Node,
}

fn amounts(list: &[(&str, &str)]) -> ResourceAmounts {
    let mut amounts = ResourceAmounts::default();
    for (name, amount) in list {
        amounts.set(name, amount.parse().unwrap());
    }
    amounts
}

impl Bed {
    fn standalone(active: Vec<Pod>) -> Self {
        Self {
            active: active.into_iter().map(Arc::new).collect(),
            leaving: HashSet::new(),
            expected: HashSet::new(),
            node: Node::default(),
        }
    }

    /// In a cluster, as the node `n1`.
    fn on_node(node: Value) -> Self {
        let mut bed = Self::standalone(vec![]);
        let mut node: Node = serde_json::from_value(node).unwrap();
        node.metadata.name = Some("n1".to_owned());
        bed.node = node;
        bed
    }

    fn with_facts<T>(&self, decide: impl FnOnce(&AdmissionFacts<'_>) -> T) -> T {
        let allocatable = amounts(&[("cpu", "4"), ("memory", "1Gi"), ("pods", "3")]);
        decide(&AdmissionFacts {
            active: &self.active,
            leaving: &self.leaving,
            expected: &self.expected,
            node: &self.node,
            allocatable: &allocatable,
            allowed_unsafe_sysctls: &["net.core.*".to_owned()],
            apparmor_enabled: false,
            supplemental_groups_policy: false,
        })
    }

    fn verdict(&self, pod: &Pod) -> Verdict {
        self.with_facts(|facts| decide_admission(pod, facts))
    }

    fn resize(&self, wanted: &Pod, granted: &Pod, rules: ResizeRules, swaps: bool) -> String {
        let verdict =
            self.with_facts(|facts| decide_resize(wanted, granted, rules, &|_, _| swaps, facts));
        match verdict {
            ResizeVerdict::Granted => "granted".to_owned(),
            ResizeVerdict::Infeasible(why) => format!("never ({}): {}", why.detail, why.message),
            ResizeVerdict::Deferred(why) => format!("{}: {}", why.reason, why.message),
        }
    }

    fn check(&self, pod: &Pod) -> String {
        match self.verdict(pod) {
            Verdict::Admitted => "admitted".to_owned(),
            Verdict::Rejected(rejection) => format!("{}: {}", rejection.reason, rejection.message),
            Verdict::AfterOthers { victims, .. } => {
                let names: Vec<_> =
                    victims.iter().map(|pod| pod.metadata.name.as_deref().unwrap()).collect();
                format!("preempts [{}]", names.join(" "))
            }
        }
    }
}

fn pod(spec: Value) -> Pod {
    serde_json::from_value(json!({"spec": spec})).unwrap()
}

fn named(name: &str, mut pod: Pod) -> Pod {
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.uid = Some(name.to_owned());
    pod
}

fn check(spec: Value, active: Vec<Pod>) -> String {
    Bed::standalone(active).check(&pod(spec))
}

fn asking(cpu: &str) -> Value {
    json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]})
}

fn critical(mut spec: Value) -> Pod {
    spec["priority"] = json!(2_000_000_000);
    named("critical", pod(spec))
}

fn on_port(port: i32, protocol: &str, ip: &str) -> Value {
    json!({"containers": [{"name": "c", "ports": [
        {"containerPort": 1, "hostPort": port, "protocol": protocol, "hostIP": ip}]}]})
}

const NOT_MATCHED: &str = "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's \
                           node affinity/selector";

#[test]
fn resources_have_to_fit() {
    assert_eq!(check(asking("1"), vec![pod(asking("3"))]), "admitted");
    assert_eq!(
        check(asking("1"), vec![pod(asking("3500m"))]),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 1000, used: 3500, \
         capacity: 4000"
    );
    assert_eq!(
        check(asking("0"), vec![pod(asking("0")), pod(asking("0")), pod(asking("0"))]),
        "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
    let mut heavy = asking("1");
    heavy["overhead"] = json!({"cpu": "3500m"});
    assert!(check(heavy, vec![]).starts_with("OutOfcpu"));
}

#[test]
fn a_resize_waits_for_room_whoever_wants_it() {
    let rules = ResizeRules::default();
    let others = || vec![named("other", pod(asking("2500m")))];
    let bed = Bed::standalone(others());
    let waits = "OutOfcpu: Node didn't have enough resource: cpu, requested: 2000, used: 2500, \
                 capacity: 4000";
    let small = pod(asking("1"));
    assert_eq!(bed.resize(&pod(asking("1500m")), &small, rules, true), "granted");
    assert_eq!(bed.resize(&pod(asking("2")), &small, rules, true), waits);
    // Nobody has to go for a resize, and who goes has to be gone.
    assert_eq!(bed.resize(&critical(asking("2")), &critical(asking("1")), rules, false), waits);
    let mut leaving = Bed::standalone(others());
    leaving.leaving = HashSet::from([PodUid::new("other")]);
    assert_eq!(leaving.resize(&pod(asking("2")), &small, rules, false), waits);
}

#[test]
fn resizes_that_are_never_granted_are_told_apart() {
    let rules = ResizeRules::default();
    let bed = Bed::standalone(vec![]);
    let memory = |request: &str, policy: &str| {
        pod(json!({"containers": [{
            "name": "c",
            "resources": {"requests": {"memory": request}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}],
        }]}))
    };
    let resize = |policy: &str, swaps: bool| {
        bed.resize(&memory("2Mi", policy), &memory("1Mi", policy), rules, swaps)
    };
    let swap = "never (swap_limitation): In-place resize of containers with swap is not supported.";
    assert_eq!(resize("NotRequired", true), swap);
    assert_eq!(resize("NotRequired", false), "granted");
    assert_eq!(resize("RestartContainer", true), "granted");

    let whole = |cpu: &str| {
        pod(json!({"resources": {"requests": {"cpu": cpu}}, "containers": [{"name": "c"}]}))
    };
    let off = ResizeRules { pod_level: false, ..rules };
    assert_eq!(bed.resize(&whole("2"), &whole("1"), rules, false), "granted");
    assert_eq!(
        bed.resize(&whole("2"), &whole("1"), off, false),
        "never (plr_feature_gate_off): InPlacePodLevelResourcesVerticalScaling is disabled"
    );
}

#[test]
fn the_node_object_says_what_can_be_given_once_it_says_anything() {
    let with = |allocatable: Value| Bed::on_node(json!({"status": {"allocatable": allocatable}}));
    let device = pod(json!({"containers": [{"name": "c",
        "resources": {"requests": {"cpu": "5", "example.com/device": "2"}}}]}));
    let all = with(json!({"cpu": "8", "pods": "3", "example.com/device": "2"}));
    assert_eq!(all.check(&device), "admitted");
    assert_eq!(
        with(json!({"cpu": "8", "pods": "3", "example.com/device": "1"})).check(&device),
        "OutOfexample.com/device: Node didn't have enough resource: example.com/device, \
         requested: 2, used: 0, capacity: 1"
    );
    // One that the node does not know is somebody else's affair.
    assert_eq!(with(json!({"cpu": "8", "pods": "3"})).check(&device), "admitted");
    assert!(with(json!({})).check(&device).starts_with("OutOfcpu"));
}

#[test]
fn host_ports_have_to_be_free() {
    let taken = |ip| vec![pod(on_port(80, "TCP", ip))];
    assert_eq!(
        check(on_port(80, "TCP", ""), taken("")),
        "NodePorts: Predicate NodePorts failed: node(s) didn't have free ports for the requested \
         pod ports"
    );
    assert!(check(on_port(80, "TCP", "10.0.0.1"), taken("")).starts_with("NodePorts"));
    assert!(check(on_port(80, "", "10.0.0.1"), taken("10.0.0.1")).starts_with("NodePorts"));
    assert_eq!(check(on_port(80, "TCP", "10.0.0.1"), taken("10.0.0.2")), "admitted");
    assert_eq!(check(on_port(80, "UDP", ""), taken("")), "admitted");
}

#[test]
fn a_pod_for_another_node_is_refused() {
    let bed = Bed::on_node(json!({}));
    let mut spec = asking("1");
    spec["nodeName"] = json!("n1");
    assert_eq!(bed.check(&pod(spec.clone())), "admitted");
    spec["nodeName"] = json!("n2");
    assert_eq!(
        bed.check(&pod(spec)),
        "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"
    );
}

#[test]
fn the_node_selector_has_to_match() {
    let bed = Bed::on_node(json!({"metadata": {"labels": {"disk": "ssd", "zone": "a"}}}));
    for (selector, expected) in [
        (json!({}), "admitted"),
        (json!({"disk": "ssd"}), "admitted"),
        (json!({"disk": "ssd", "zone": "a"}), "admitted"),
        (json!({"disk": "ssd", "zone": "b"}), NOT_MATCHED),
        (json!({"rack": ""}), NOT_MATCHED),
    ] {
        let spec = json!({"containers": [], "nodeSelector": selector});
        assert_eq!(bed.check(&pod(spec)), expected, "{selector}");
    }
}

#[test]
fn the_required_node_affinity_has_to_match() {
    let bed =
        Bed::on_node(json!({"metadata": {"labels": {"disk": "ssd", "cores": "8", "empty": ""}}}));
    let check = |terms: Value| {
        let spec = json!({"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        bed.check(&pod(spec)) == "admitted"
    };
    let label = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
    for (key, operator, values, matches) in [
        ("disk", "In", &["hdd", "ssd"][..], true),
        ("disk", "In", &["hdd"], false),
        ("disk", "In", &[], false),
        ("rack", "In", &[""], false),
        ("disk", "NotIn", &["hdd"], true),
        ("disk", "NotIn", &["hdd", "ssd"], false),
        ("rack", "NotIn", &["1"], true),
        ("rack", "NotIn", &[], false),
        ("empty", "Exists", &[], true),
        ("rack", "Exists", &[], false),
        ("disk", "Exists", &["ssd"], false),
        ("rack", "DoesNotExist", &[], true),
        ("empty", "DoesNotExist", &[], false),
        ("cores", "Gt", &["7"], true),
        ("cores", "Gt", &["8"], false),
        ("cores", "Lt", &["9"], true),
        ("cores", "Lt", &["8"], false),
        ("cores", "Lt", &["9", "10"], false),
        ("cores", "Gt", &["few"], false),
        ("disk", "Gt", &["1"], false),
        ("rack", "Lt", &["1"], false),
        ("disk", "Like", &["ssd"], false),
    ] {
        assert_eq!(check(label(key, operator, values)), matches, "{key} {operator} {values:?}");
    }
    let field = |key: &str, operator: &str, values: &[&str]| json!([{"matchFields": [{"key": key, "operator": operator, "values": values}]}]);
    for (key, operator, values, matches) in [
        ("metadata.name", "In", &["n1"][..], true),
        ("metadata.name", "In", &["n2"], false),
        ("metadata.name", "In", &["n1", "n2"], false),
        ("metadata.name", "NotIn", &["n2"], true),
        ("metadata.name", "NotIn", &["n1"], false),
        ("metadata.name", "Exists", &[], false),
        ("metadata.namespace", "In", &["n1"], false),
    ] {
        assert_eq!(check(field(key, operator, values)), matches, "{key} {operator} {values:?}");
    }
    // Terms are alternatives, and the parts of a term are not.
    let ssd = json!({"key": "disk", "operator": "In", "values": ["ssd"]});
    let hdd = json!({"key": "disk", "operator": "In", "values": ["hdd"]});
    let here = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    for (terms, matches) in [
        (json!([{"matchExpressions": [hdd]}, {"matchExpressions": [ssd]}]), true),
        (json!([{"matchExpressions": [hdd, ssd]}]), false),
        (json!([{"matchExpressions": [ssd], "matchFields": [here]}]), true),
        (json!([{"matchExpressions": [hdd], "matchFields": [here]}]), false),
        (json!([{}]), false),
        (json!([]), false),
    ] {
        assert_eq!(check(terms.clone()), matches, "{terms}");
    }
}

#[test]
fn taints_that_drive_pods_out_have_to_be_tolerated() {
    let bed = |taint: Value| Bed::on_node(json!({"spec": {"taints": [taint]}}));
    let gpu = || bed(json!({"key": "gpu", "value": "a100", "effect": "NoExecute"}));
    let tolerating =
        |toleration: Value| pod(json!({"containers": [], "tolerations": [toleration]}));
    let refused = "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the \
                   pod didn't tolerate";
    assert_eq!(gpu().check(&pod(json!({"containers": []}))), refused);
    for (toleration, expected) in [
        (json!({"key": "gpu", "operator": "Exists"}), "admitted"),
        (json!({"operator": "Exists"}), "admitted"),
        (json!({"key": "gpu", "value": "a100"}), "admitted"),
        (
            json!({"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoExecute"}),
            "admitted",
        ),
        (json!({"key": "gpu", "operator": "Equal", "value": "h100"}), refused),
        (json!({"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}), refused),
        (json!({"key": "cpu", "operator": "Exists"}), refused),
        (json!({"key": "gpu", "operator": "Gt", "value": "1"}), refused),
    ] {
        assert_eq!(gpu().check(&tolerating(toleration.clone())), expected, "{toleration}");
    }
    // Other effects are the scheduler's, and a node that takes no new pods keeps those it was given.
    for effect in ["NoSchedule", "PreferNoSchedule"] {
        let bed = bed(json!({"key": "node.kubernetes.io/unschedulable", "effect": effect}));
        assert_eq!(bed.check(&pod(json!({"containers": []}))), "admitted");
    }
    let mut cordoned = Bed::on_node(json!({"spec": {"unschedulable": true}}));
    assert_eq!(cordoned.check(&pod(json!({"containers": []}))), "admitted");
    // Static pods are asked nothing.
    cordoned.node = gpu().node;
    let mut static_pod = pod(json!({"containers": []}));
    static_pod.metadata.annotations =
        Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    assert_eq!(cordoned.check(&static_pod), "admitted");
}

#[test]
fn of_several_misfits_the_first_is_told() {
    let mut bed = Bed::on_node(json!({}));
    bed.active = vec![Arc::new(pod(on_port(80, "TCP", "")))];
    let mut spec = on_port(80, "TCP", "");
    assert!(bed.check(&pod(spec.clone())).starts_with("NodePorts"));
    spec["nodeName"] = json!("n2");
    assert!(bed.check(&pod(spec.clone())).starts_with("NodeName"));
    spec["nodeSelector"] = json!({"a": "b"});
    assert!(bed.check(&pod(spec.clone())).starts_with("NodeAffinity"));
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "5"}});
    assert!(bed.check(&pod(spec.clone())).starts_with("OutOfcpu"));
    // No preemption helps a critical pod with its node selector.
    assert!(bed.check(&critical(spec)).starts_with("NodeAffinity"));
}

#[test]
fn others_make_room_for_a_critical_pod() {
    let mut bed = Bed::standalone(vec![
        named("web", pod(asking("1500m"))),
        named("job", pod(asking("1500m"))),
        named("idle", pod(asking("0"))),
    ]);
    assert_eq!(bed.check(&critical(asking("1"))), "preempts [idle]");
    assert_eq!(bed.check(&critical(asking("2"))), "preempts [web]");
    assert_eq!(bed.check(&critical(asking("3"))), "preempts [web job]");
    assert!(bed.check(&named("plain", pod(asking("1")))).starts_with("OutOfpods"));
    assert_eq!(
        bed.check(&critical(asking("5"))),
        "UnexpectedAdmissionError: Unexpected error while attempting to recover from admission \
         failure: preemption: error finding a set of pods to preempt: no set of running pods found \
         to reclaim resources: [(res: cpu, q: 1000), ]"
    );
    // Who leaves already makes room too, and only the rest is asked of others.
    bed.leaving.insert(PodUid::new("web"));
    assert_eq!(bed.check(&critical(asking("2"))), "preempts []");
    assert_eq!(bed.check(&critical(asking("3"))), "preempts [job]");
    // So it is for pods that are not critical, but for that they ask nobody to go.
    assert_eq!(bed.check(&named("plain", pod(asking("2")))), "preempts []");
    assert_eq!(
        bed.check(&named("plain", pod(asking("3")))),
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 1500, \
         capacity: 4000"
    );
    // Who does not run yet cannot.
    bed.expected.insert(PodUid::new("job"));
    assert!(bed.check(&critical(asking("3"))).starts_with("UnexpectedAdmissionError"));
}

#[test]
fn nobody_goes_for_a_critical_pod_that_is_refused_anyway() {
    let bed = Bed::standalone(vec![named("web", pod(asking("4")))]);
    let mut spec = asking("1");
    spec["securityContext"] = json!({"appArmorProfile": {"type": "RuntimeDefault"}});
    assert!(bed.check(&critical(spec)).starts_with("AppArmor"));
}

#[test]
fn a_profile_that_nobody_enforces_is_refused() {
    let with = |profile: &str| {
        json!({"containers": [{"name": "c",
            "securityContext": {"appArmorProfile": {"type": profile}}}]})
    };
    assert_eq!(
        check(with("RuntimeDefault"), vec![]),
        "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"
    );
    assert_eq!(check(with("Unconfined"), vec![]), "admitted");
    // A pod that runs already is not asked again.
    let mut running = pod(with("RuntimeDefault"));
    for (phase, expected) in [("Pending", false), ("Running", true)] {
        running.status = serde_json::from_value(json!({"phase": phase})).unwrap();
        assert_eq!(Bed::standalone(vec![]).check(&running) == "admitted", expected, "{phase}");
    }
}

#[test]
fn only_allowed_sysctls_pass() {
    let with = |name: &str, host: bool| {
        json!({"containers": [], "hostNetwork": host, "securityContext":
            {"sysctls": [{"name": name, "value": "1"}]}})
    };
    assert_eq!(check(with("net.core.somaxconn", false), vec![]), "admitted");
    assert_eq!(check(with("net/ipv4/tcp_syncookies", false), vec![]), "admitted");
    assert_eq!(
        check(with("kernel.panic", false), vec![]),
        "SysctlForbidden: forbidden sysctl: \"kernel.panic\" not allowlisted"
    );
    assert!(check(with("net.core.somaxconn", true), vec![]).starts_with("SysctlForbidden"));
}

#[test]
fn a_strict_policy_of_groups_needs_a_runtime_that_keeps_it() {
    let with = |policy: &str| json!({"containers": [], "securityContext": {"supplementalGroupsPolicy": policy}});
    assert_eq!(check(with("Merge"), vec![]), "admitted");
    assert_eq!(
        check(with("Strict"), vec![]),
        "SupplementalGroupsPolicyNotSupported: SupplementalGroupsPolicy=Strict is not supported \
         in this node"
    );
}

#[test]
fn pods_of_another_operating_system_are_refused() {
    let spec = json!({"containers": [], "os": {"name": "windows"}});
    assert!(check(spec, vec![]).starts_with("PodOSNotSupported"));
    let mut labelled = pod(json!({"containers": []}));
    for (os, expected) in [("linux", "admitted"), ("windows", "PodOSSelectorNodeLabelDoesNotMatch")]
    {
        labelled.metadata.labels = Some([("kubernetes.io/os".to_owned(), os.to_owned())].into());
        assert!(Bed::standalone(vec![]).check(&labelled).starts_with(expected), "{os}");
    }
}
