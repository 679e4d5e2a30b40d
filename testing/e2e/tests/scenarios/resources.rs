//! Cgroups and what the kernel makes of them.

use std::fs;

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{PodView, Runtime, RuntimeKind, find_container_processes, wait_for};
use rubelet_types::ContainerId;
use serde_json::{Value, json};

use crate::WAIT;
use crate::facts::{start_kubelet, wait_until_ready};
use crate::runtime::with_cri;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "cgroups_of_every_qos_class_hold_what_the_pods_ask_for",
        runtimes: &RuntimeKind::ALL,
        run: cgroups_of_every_qos_class_hold_what_the_pods_ask_for,
    },
    Scenario {
        name: "a_container_that_exceeds_its_memory_limit_is_killed",
        runtimes: &RuntimeKind::ALL,
        run: a_container_that_exceeds_its_memory_limit_is_killed,
    },
];

const MI: i64 = 1 << 20;
/// What a cgroup without a memory limit shows: the greatest number of whole pages.
const NO_MEMORY_LIMIT: i64 = i64::MAX / 4096 * 4096;

/// The values of one cgroup, as version 1 shows them.
#[derive(Debug, PartialEq, Eq)]
struct Values {
    shares: i64,
    quota: i64,
    period: i64,
    memory: i64,
}

const UNLIMITED: Values = Values { shares: 2, quota: -1, period: 100_000, memory: NO_MEMORY_LIMIT };

fn cgroups_of_every_qos_class_hold_what_the_pods_ask_for(stage: &Stage) -> anyhow::Result<()> {
    let runtime = stage.runtime();
    let kubelet = start_kubelet(stage, json!({ "podPidsLimit": 321 }))?;
    let cores = i64::try_from(std::thread::available_parallelism()?.get())?;
    for (name, spec) in pods() {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec
        });
        pod["spec"]["terminationGracePeriodSeconds"] = json!(1);
        kubelet.write_manifest(&format!("{name}.yaml"), &pod.to_string())?;
    }
    let guaranteed = wait_until_ready(&kubelet, "guaranteed")?;
    let capped = wait_until_ready(&kubelet, "capped")?;
    let burstable = wait_until_ready(&kubelet, "burstable")?;
    let together = wait_until_ready(&kubelet, "together")?;
    let besteffort = wait_until_ready(&kubelet, "besteffort")?;
    let qos = |pod: &PodView| pod.raw["status"]["qosClass"].clone();
    assert_eq!(
        [&guaranteed, &capped, &burstable, &together, &besteffort].map(qos),
        ["Guaranteed", "Burstable", "Burstable", "Burstable", "BestEffort"].map(Value::from)
    );

    // The tiers. Burstable pods weigh what they ask for together, the others nothing.
    wait_for("the tiers to have their values", WAIT, || {
        let shares = |group: &str| {
            let text = runtime.read_cgroup(group, "cpu.shares").map_err(|e| format!("{e:#}"))?;
            text.parse::<i64>().map_err(|error| error.to_string())
        };
        let found =
            (shares("kubepods")?, shares("kubepods/burstable")?, shares("kubepods/besteffort")?);
        // (100 + 10)m of "capped", 250m of an init container of "burstable", 300m of "together".
        let expected = (cores * 1024, 675, 2);
        if found == expected { Ok(()) } else { Err(format!("{found:?}, not {expected:?}")) }
    })?;

    let group = |tier: &str, pod: &PodView| format!("kubepods{tier}/pod{}", pod.uid);
    for (group, expected) in [
        (
            group("", &guaranteed),
            Values { shares: 512, quota: 50_000, period: 100_000, memory: 64 * MI },
        ),
        (
            group("/burstable", &capped),
            Values { shares: 112, quota: 130_000, period: 100_000, memory: 96 * MI },
        ),
        // Its first container has no limits; its init container asks for most.
        (group("/burstable", &burstable), Values { shares: 256, ..UNLIMITED }),
        (
            group("/burstable", &together),
            Values { shares: 307, quota: 60_000, period: 100_000, memory: 80 * MI },
        ),
        (group("/besteffort", &besteffort), UNLIMITED),
    ] {
        assert_eq!(read_values(runtime, &group)?, expected, "{group}");
        assert_eq!(runtime.read_cgroup(&group, "pids.max")?, "321", "{group}");
    }

    for (tier, pod, container, expected) in [
        (
            "",
            &guaranteed,
            "one",
            Values { shares: 409, quota: 40_000, period: 100_000, memory: 48 * MI },
        ),
        (
            "",
            &guaranteed,
            "two",
            Values { shares: 102, quota: 10_000, period: 100_000, memory: 16 * MI },
        ),
        (
            "/burstable",
            &capped,
            "one",
            Values { shares: 102, quota: 120_000, period: 100_000, memory: 64 * MI },
        ),
        // 10m of a core have the smallest quota that the kernel takes.
        (
            "/burstable",
            &capped,
            "two",
            Values { shares: 10, quota: 10_000, period: 100_000, memory: 32 * MI },
        ),
        ("/burstable", &burstable, "free", Values { shares: 51, ..UNLIMITED }),
        ("/burstable", &burstable, "some", Values { memory: 32 * MI, ..UNLIMITED }),
        // What the pod may use together, each of its containers may use, and asks for if it asks
        // for nothing itself.
        (
            "/burstable",
            &together,
            "free",
            Values { shares: 614, quota: 60_000, period: 100_000, memory: 80 * MI },
        ),
        (
            "/burstable",
            &together,
            "some",
            Values { shares: 51, quota: 60_000, period: 100_000, memory: 16 * MI },
        ),
        ("/besteffort", &besteffort, "app", UNLIMITED),
    ] {
        let id = &pod.container(container).context("no status")?.id;
        let group = format!("{}/{id}", group(tier, pod));
        assert_eq!(read_values(runtime, &group)?, expected, "{container} in {group}");
        let processes = find_container_processes(runtime.cgroup(), id);
        assert!(!processes.is_empty(), "{container} runs in {group}");
    }
    check_oom_scores(runtime, &guaranteed, &burstable, &besteffort)?;

    for (name, _) in pods() {
        kubelet.remove_manifest(&format!("{name}.yaml"))?;
    }
    for (tier, pod) in [
        ("", &guaranteed),
        ("/burstable", &capped),
        ("/burstable", &burstable),
        ("/burstable", &together),
        ("/besteffort", &besteffort),
    ] {
        let group = group(tier, pod);
        wait_for(&format!("{group} to be gone"), WAIT, || {
            match runtime.read_cgroup(&group, "cgroup.procs") {
                Err(_) => Ok(()),
                Ok(processes) => Err(format!("its processes are {processes:?}")),
            }
        })?;
    }
    Ok(())
}

/// Pods by name.
fn pods() -> [(&'static str, Value); 5] {
    let container = |name: &str, requests: Value, limits: Value| {
        json!({
            "name": name, "image": "busybox", "imagePullPolicy": "Never",
            "command": ["sleep", "3600"],
            "resources": { "requests": requests, "limits": limits }
        })
    };
    let amounts = |cpu: &str, memory: &str| json!({ "cpu": cpu, "memory": memory });
    let mut setup = container("setup", json!({ "cpu": "250m" }), json!({}));
    setup["command"] = json!(["true"]);
    let guaranteed = [
        container("one", json!({}), amounts("400m", "48Mi")),
        container("two", amounts("100m", "16Mi"), amounts("100m", "16Mi")),
    ];
    let capped = [
        container("one", amounts("100m", "32Mi"), amounts("1200m", "64Mi")),
        container("two", json!({ "cpu": "10m" }), amounts("100m", "32Mi")),
    ];
    let burstable = [
        container("free", amounts("50m", "100Mi"), json!({})),
        container("some", json!({}), json!({ "memory": "32Mi" })),
    ];
    let together = [
        container("free", json!({}), json!({})),
        container("some", json!({ "cpu": "50m" }), json!({ "memory": "16Mi" })),
    ];
    let pod_level = json!({
        "requests": amounts("300m", "64Mi"), "limits": amounts("600m", "80Mi")
    });
    [
        ("guaranteed", json!({ "containers": guaranteed })),
        ("capped", json!({ "containers": capped })),
        ("burstable", json!({ "containers": burstable, "initContainers": [setup] })),
        ("together", json!({ "containers": together, "resources": pod_level })),
        ("besteffort", json!({ "containers": [container("app", json!({}), json!({}))] })),
    ]
}

fn read_values(runtime: &Runtime, group: &str) -> anyhow::Result<Values> {
    let number = |file: &str| -> anyhow::Result<i64> {
        let text = runtime.read_cgroup(group, file)?;
        text.parse().with_context(|| format!("{file} of {group} is {text:?}"))
    };
    Ok(Values {
        shares: number("cpu.shares")?,
        quota: number("cpu.cfs_quota_us")?,
        period: number("cpu.cfs_period_us")?,
        memory: number("memory.limit_in_bytes")?,
    })
}

/// A process may only become a likelier victim here; what makes it a less likely one can be seen
/// in what the runtime was told.
fn check_oom_scores(
    runtime: &Runtime,
    guaranteed: &PodView,
    burstable: &PodView,
    besteffort: &PodView,
) -> anyhow::Result<()> {
    let capacity = node_memory_capacity()?;
    let share = 1000 - 1000 * (100 * MI) / capacity;
    for (pod, container, expected, is_raised) in [
        (guaranteed, "one", -997, false),
        (burstable, "free", share.clamp(3, 999), true),
        (burstable, "some", (1000 - 1000 * (32 * MI) / capacity).clamp(3, 999), true),
        (besteffort, "app", 1000, true),
    ] {
        let id = pod.container(container).context("no status")?.id.clone();
        let told = told_to_runtime(runtime, &id)?;
        assert_eq!(told["linux"]["resources"]["oom_score_adj"], expected, "{container}");
        if is_raised {
            let process = find_container_processes(runtime.cgroup(), &id)[0];
            let score = fs::read_to_string(format!("/proc/{process}/oom_score_adj"))?;
            assert_eq!(score.trim(), expected.to_string(), "{container}");
        }
    }
    Ok(())
}

/// The configuration that a container was created with, as containerd tells it.
fn told_to_runtime(runtime: &Runtime, id: &str) -> anyhow::Result<Value> {
    let id = ContainerId::new(id);
    let answer =
        with_cri(runtime, |cri| async move { Ok(cri.container_status(&id, true).await?) })?;
    let info = answer.info.get("info").context("containerd tells nothing more")?;
    let info: Value = serde_json::from_str(info).context("what it tells is no JSON")?;
    Ok(info["config"].clone())
}

fn node_memory_capacity() -> anyhow::Result<i64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes: i64 = total
        .and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok())
        .context("no MemTotal")?;
    Ok(kilobytes * 1024)
}

fn id_of(pod: &PodView, container: &str) -> anyhow::Result<String> {
    Ok(pod.container(container).context("no status")?.id.clone())
}

fn a_container_that_exceeds_its_memory_limit_is_killed(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    // `tail` keeps all of a line that never ends. The runtime begins to watch the memory of a
    // container when it has started it.
    let pod = r#"
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
  - name: greedy
    image: busybox
    imagePullPolicy: Never
    command: [sh, -c, "sleep 2; exec tail /dev/zero"]
    resources: {limits: {memory: 16Mi}}
  - name: modest
    image: busybox
    imagePullPolicy: Never
    command: [sleep, "3600"]
    resources: {limits: {memory: 16Mi}}
"#;
    kubelet.write_manifest("greedy.yaml", pod)?;
    let pod = kubelet.wait_for_pod("greedy", "killed", WAIT, |pod| {
        pod.container("greedy").is_some_and(|greedy| greedy.state == "terminated")
            // It is started after the other one.
            && pod.container("modest").is_some_and(|modest| modest.is_running())
    })?;
    let greedy = pod.container("greedy").context("no status")?;
    assert_eq!((greedy.reason.as_str(), greedy.exit_code), ("OOMKilled", Some(137)));
    // The limit is each container's own.
    let modest = find_container_processes(stage.runtime().cgroup(), &id_of(&pod, "modest")?);
    assert_eq!(modest.len(), 1, "its process goes on");
    Ok(())
}
