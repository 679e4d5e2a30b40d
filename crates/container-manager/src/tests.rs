//! Against the kernel's cgroup v1, beneath a cgroup of each test's own, and against made-up trees of
//! version 2. All other facts come from a made-up machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rubelet_linux::Host;
use rubelet_linux::cgroup::CgroupFs;
use rubelet_linux::mount::MountTable;
use rubelet_node_resources::EvictionThreshold;
use rubelet_types::{EventRecorder, EventType, PodUid, Quantity, ResourceAmounts};
use serde_json::json;

use crate::*;

const TUNABLES: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

struct Machine {
    temp: tempfile::TempDir,
    events: Arc<Mutex<Vec<String>>>,
}

impl Machine {
    fn new(mountinfo: &str) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let machine = Self { temp, events: Arc::default() };
        machine.write("proc/self/mountinfo", mountinfo);
        machine.write("proc/self/cgroup", "0::/\n");
        machine.write("proc/meminfo", "MemTotal: 8388608 kB\nSwapTotal: 0 kB\n");
        machine.write("proc/swaps", "Filename Type Size Used Priority\n");
        machine.write("proc/sys/kernel/pid_max", "32768\n");
        machine.write("proc/sys/kernel/threads-max", "100000\n");
        machine.write("sys/devices/system/cpu/online", "0-3\n");
        for (tunable, value) in TUNABLES {
            machine.write(&format!("proc/sys/{tunable}"), value);
        }
        machine
    }

    /// With the kernel's own version 1 hierarchies.
    fn with_kernel_v1() -> Self {
        let table = MountTable::read().unwrap();
        let mut mountinfo = String::new();
        for mount in table.mounts().iter().filter(|mount| mount.file_system == "cgroup") {
            let place = mount.mount_point.strip_prefix("/sys/fs/cgroup").unwrap().display();
            let options = mount.super_options.join(",");
            mountinfo.push_str(&format!(
                "{} 1 {} / /cgroup/{place} rw - cgroup cgroup {options}\n",
                mount.id, mount.device
            ));
        }
        let machine = Self::new(&mountinfo);
        std::os::unix::fs::symlink("/sys/fs/cgroup", machine.path("cgroup")).unwrap();
        machine
    }

    /// With a version 2 hierarchy of plain files.
    fn with_fake_v2(directories: &[&str]) -> Self {
        let machine = Self::new("30 23 0:26 / /cgroup rw - cgroup2 cgroup2 rw\n");
        for directory in directories {
            let place = format!("cgroup/{directory}");
            machine.write(&format!("{place}/cgroup.controllers"), "cpuset cpu memory pids");
            for file in [
                "cgroup.subtree_control",
                "cgroup.procs",
                "cpu.weight",
                "cpu.max",
                "memory.max",
                "memory.min",
                "memory.swap.max",
                "pids.max",
                "cpuset.cpus",
            ] {
                machine.write(&format!("{place}/{file}"), "");
            }
            machine.write(&format!("{place}/memory.current"), "0\n");
        }
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.temp.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn host(&self) -> Host {
        Host::at(self.temp.path())
    }

    fn manager(&self, settings: ContainerManagerSettings) -> ContainerManager {
        let events = Arc::clone(&self.events);
        let recorder = EventRecorder::new(move |event| {
            let kind = if event.event_type == EventType::Normal { "N" } else { "W" };
            events.lock().unwrap().push(format!("{kind} {}: {}", event.reason, event.message));
        });
        ContainerManager::new(settings, self.host(), recorder)
    }

    fn events(&self) -> Vec<String> {
        std::mem::take(&mut *self.events.lock().unwrap())
    }
}

/// A cgroup root of the test's own in the kernel's hierarchies, removed at the end.
struct OwnRoot {
    cgroups: CgroupFs,
    path: String,
}

impl OwnRoot {
    fn new(machine: &Machine, name: &str) -> Self {
        let cgroups = CgroupFs::detect(&machine.host()).unwrap();
        let path = format!("/rubelet-test-{}-manager-{name}", std::process::id());
        cgroups.ensure(&path).unwrap();
        Self { cgroups, path }
    }

    fn settings(&self) -> ContainerManagerSettings {
        ContainerManagerSettings { cgroup_root: self.path.clone(), ..v1_settings() }
    }

    fn read(&self, controller: &str, path: &str) -> String {
        let path = format!("/sys/fs/cgroup/{controller}{}/{path}", self.path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().into()
    }

    fn write(&self, controller: &str, path: &str, value: &str) {
        fs::write(format!("/sys/fs/cgroup/{controller}{}/{path}", self.path), value).unwrap();
    }

    fn exists(&self, path: &str) -> bool {
        self.cgroups.exists_partly(&format!("{}/{path}", self.path)).unwrap()
    }
}

impl Drop for OwnRoot {
    fn drop(&mut self) {
        for _ in 0..1000 {
            let _ = self.cgroups.kill(&self.path);
            if self.cgroups.destroy(&self.path).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
        if !std::thread::panicking() {
            panic!("{} is left behind", self.path);
        }
    }
}

/// A process that waits, and is gone at the end.
struct Sleeper(Child);

impl Sleeper {
    fn start(root: &OwnRoot, cgroup: &str) -> Self {
        Self::run(root, cgroup, "exec sleep 1000")
    }

    /// Runs `script` in the cgroup from its beginning, so that its memory is accounted there.
    fn run(root: &OwnRoot, cgroup: &str, script: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read line; {script}")])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let path = format!("{}/{cgroup}", root.path);
        root.cgroups.ensure(&path).unwrap();
        root.cgroups.add_process(&path, child.id()).unwrap();
        drop(child.stdin.take());
        Self(child)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn v1_settings() -> ContainerManagerSettings {
    ContainerManagerSettings { fail_cgroup_v1: false, ..ContainerManagerSettings::default() }
}

fn amounts(list: &[(&str, &str)]) -> ResourceAmounts {
    let mut amounts = ResourceAmounts::default();
    for (name, amount) in list {
        amounts.set(name, amount.parse().unwrap());
    }
    amounts
}

fn pod(uid: &str, requests: serde_json::Value, limits: serde_json::Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"uid": uid, "name": uid, "namespace": "default"},
        "spec": {"containers": [
            {"name": "c", "resources": {"requests": requests, "limits": limits}},
        ]},
    }))
    .unwrap()
}

fn guaranteed(uid: &str) -> Pod {
    pod(uid, json!({}), json!({"cpu": "500m", "memory": "64Mi"}))
}

fn burstable(uid: &str) -> Pod {
    pod(uid, json!({"cpu": "1"}), json!({}))
}

fn best_effort(uid: &str) -> Pod {
    pod(uid, json!({}), json!({}))
}

#[tokio::test]
async fn nothing_is_answered_before_the_start() {
    let machine = Machine::new("");
    let manager = machine.manager(v1_settings());
    let pod = guaranteed("a");
    assert!(matches!(manager.pod_cgroup_parent(&pod), Err(ContainerManagerError::NotStarted)));
    assert!(matches!(manager.capacity(), Err(ContainerManagerError::NotStarted)));
    assert!(manager.ensure_pod_cgroup(&pod).await.is_err());
    assert!(manager.list_pod_cgroups().await.is_err());
}

#[tokio::test]
async fn the_upper_cgroups_are_made_on_v1() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "upper");
    let manager = machine.manager(ContainerManagerSettings {
        system_reserved: amounts(&[("cpu", "500m"), ("memory", "1Gi"), ("pid", "1000")]),
        kube_reserved: amounts(&[("cpu", "500m"), ("memory", "1Gi")]),
        eviction_memory_available: Some(EvictionThreshold::Amount(Quantity::from_bytes(1 << 20))),
        ..root.settings()
    });
    assert_eq!(manager.start().await.unwrap(), [SetupWarning::CgroupV1]);
    assert_eq!(
        machine.events(),
        [
            "W CgroupV1: cgroup v1 support is in maintenance mode, please migrate to cgroup v2",
            "N NodeAllocatableEnforced: Updated Node Allocatable limit across pods",
        ]
    );
    assert_eq!(root.read("cpu", "kubepods/cpu.shares"), "3072");
    assert_eq!(root.read("memory", "kubepods/memory.limit_in_bytes"), (6u64 << 30).to_string());
    assert_eq!(root.read("pids", "kubepods/pids.max"), "31768");
    assert_eq!(root.read("cpu", "kubepods/besteffort/cpu.shares"), "2");
    assert!(root.exists("kubepods/burstable"));

    assert_eq!(
        manager.capacity().unwrap(),
        &amounts(&[("cpu", "4"), ("memory", "8Gi"), ("pods", "110"),])
    );
    assert_eq!(
        manager.allocatable().unwrap(),
        &amounts(&[("cpu", "3"), ("memory", "6143Mi"), ("pods", "110"),])
    );
    assert_eq!(manager.reservation().unwrap(), &amounts(&[("cpu", "1"), ("memory", "2049Mi")]));
    assert!(!manager.uses_cgroup_v2().unwrap());
    assert!(matches!(manager.start().await, Err(SetupError::StartedTwice)));
}

#[tokio::test]
async fn pods_come_and_go() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "pods");
    let manager =
        machine.manager(ContainerManagerSettings { pod_pids_limit: Some(50), ..root.settings() });
    manager.start().await.unwrap();
    let pods = [guaranteed("1-a"), burstable("2-b"), best_effort("3-c")];
    let paths = ["kubepods/pod1-a", "kubepods/burstable/pod2-b", "kubepods/besteffort/pod3-c"];
    for (pod, path) in pods.iter().zip(paths) {
        assert!(!manager.pod_cgroup_exists(pod).await.unwrap());
        assert_eq!(manager.ensure_pod_cgroup(pod).await.unwrap(), PodCgroup { existed: false });
        assert_eq!(manager.ensure_pod_cgroup(pod).await.unwrap(), PodCgroup { existed: true });
        assert!(manager.pod_cgroup_exists(pod).await.unwrap());
        assert_eq!(manager.pod_cgroup_parent(pod).unwrap(), format!("{}/{path}", root.path));
        assert_eq!(root.read("pids", &format!("{path}/pids.max")), "50");
    }
    assert_eq!(root.read("cpu", "kubepods/pod1-a/cpu.shares"), "512");
    assert_eq!(root.read("cpu", "kubepods/pod1-a/cpu.cfs_quota_us"), "50000");
    assert_eq!(
        root.read("memory", "kubepods/pod1-a/memory.limit_in_bytes"),
        (64 << 20).to_string()
    );
    assert_eq!(root.read("cpu", "kubepods/burstable/pod2-b/cpu.shares"), "1024");
    assert_eq!(root.read("cpu", "kubepods/burstable/pod2-b/cpu.cfs_quota_us"), "-1");
    assert_eq!(root.read("cpu", "kubepods/besteffort/pod3-c/cpu.shares"), "2");

    // Directories of no pod do not count.
    root.cgroups.ensure(&format!("{}/kubepods/burstable/other", root.path)).unwrap();
    let all: BTreeSet<PodUid> = ["1-a", "2-b", "3-c"].into_iter().map(PodUid::from).collect();
    assert_eq!(manager.list_pod_cgroups().await.unwrap(), all);

    // A second kubelet finds them, and leaves their values alone.
    root.write("cpu", "kubepods/pod1-a/cpu.shares", "300");
    let second = machine.manager(root.settings());
    second.start().await.unwrap();
    assert_eq!(second.list_pod_cgroups().await.unwrap(), all);
    assert_eq!(second.ensure_pod_cgroup(&pods[0]).await.unwrap(), PodCgroup { existed: true });
    assert_eq!(root.read("cpu", "kubepods/pod1-a/cpu.shares"), "300");
    set_all_values(&second, &pods[0]).await;
    assert_eq!(root.read("cpu", "kubepods/pod1-a/cpu.shares"), "512");

    for uid in all {
        second.destroy_pod_cgroup(&uid).await.unwrap();
        second.destroy_pod_cgroup(&uid).await.unwrap();
    }
    assert!(second.list_pod_cgroups().await.unwrap().is_empty());
    assert!(paths.iter().all(|path| !root.exists(path)));
    assert!(root.exists("kubepods/burstable/other"));
}

#[tokio::test]
async fn left_over_processes_are_killed_with_their_pod() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "left-over");
    let manager = machine.manager(root.settings());
    manager.start().await.unwrap();
    let pod = burstable("gone");
    manager.ensure_pod_cgroup(&pod).await.unwrap();
    let mut inside = Sleeper::start(&root, "kubepods/burstable/podgone/container");
    let mut outside = Sleeper::start(&root, "kubepods/burstable/other");
    // The pod had another class once.
    root.cgroups.ensure(&format!("{}/kubepods/besteffort/podgone", root.path)).unwrap();

    manager.reduce_to_minimum(&"gone".into()).await.unwrap();
    assert_eq!(root.read("cpu", "kubepods/burstable/podgone/cpu.shares"), "2");
    assert!(inside.0.try_wait().unwrap().is_none());

    manager.destroy_pod_cgroup(&"gone".into()).await.unwrap();
    assert!(!inside.0.wait().unwrap().success());
    assert!(outside.0.try_wait().unwrap().is_none());
    assert!(!root.exists("kubepods/burstable/podgone"));
    assert!(!root.exists("kubepods/besteffort/podgone"));
}

#[tokio::test]
async fn a_part_of_a_cgroup_is_found_and_completed() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "part");
    let manager = machine.manager(root.settings());
    manager.start().await.unwrap();
    fs::create_dir(format!("/sys/fs/cgroup/pids{}/kubepods/podhalf", root.path)).unwrap();
    assert!(manager.pod_cgroup_exists(&guaranteed("half")).await.unwrap());
    assert!(!manager.pod_cgroup_exists(&burstable("half")).await.unwrap());
    assert_eq!(manager.list_pod_cgroups().await.unwrap(), BTreeSet::from([PodUid::from("half")]));
    manager.reduce_to_minimum(&"half".into()).await.unwrap();
    let made = manager.ensure_pod_cgroup(&guaranteed("half")).await.unwrap();
    assert_eq!(made, PodCgroup { existed: false });
    assert_eq!(root.read("cpu", "kubepods/podhalf/cpu.shares"), "512");
    fs::remove_dir(format!("/sys/fs/cgroup/cpu{}/kubepods/podhalf", root.path)).unwrap();
    manager.destroy_pod_cgroup(&"half".into()).await.unwrap();
    assert!(!root.exists("kubepods/podhalf"));
}

#[tokio::test]
async fn a_cgroup_that_cannot_get_its_values_does_not_stay() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "refused");
    // No kernel takes a period this short.
    let settings = ContainerManagerSettings { cpu_cfs_period_micros: 5, ..root.settings() };
    let manager = machine.manager(settings);
    manager.start().await.unwrap();
    let error = manager.ensure_pod_cgroup(&guaranteed("a")).await.unwrap_err();
    assert!(
        matches!(&error, ContainerManagerError::Cgroup { operation: "create", .. }),
        "{error:?}"
    );
    assert!(!root.exists("kubepods/poda"));
}

#[tokio::test]
async fn uids_cannot_lead_elsewhere() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "uids");
    let manager = machine.manager(root.settings());
    manager.start().await.unwrap();
    for uid in ["../../x", "a/b", "", "a_b"] {
        let result = manager.ensure_pod_cgroup(&guaranteed(uid)).await;
        assert!(matches!(result, Err(ContainerManagerError::InvalidName(_))), "{uid:?}");
        assert!(manager.destroy_pod_cgroup(&uid.into()).await.is_err(), "{uid:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tiers_follow_their_pods() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "tiers");
    let manager = machine.manager(root.settings());
    manager.start().await.unwrap();
    let shares = || root.read("cpu", "kubepods/burstable/cpu.shares");
    let pods = [guaranteed("a"), burstable("b"), burstable("c"), best_effort("d")];
    manager.update_qos_cgroups(&pods).await.unwrap();
    assert_eq!(shares(), "2048");
    manager.update_qos_cgroups(&pods[..2]).await.unwrap();
    assert_eq!(shares(), "1024");

    // Nothing has changed: nothing is written. The resync finds out what others did.
    root.write("cpu", "kubepods/burstable/cpu.shares", "77");
    manager.update_qos_cgroups(&pods[..2]).await.unwrap();
    assert_eq!(shares(), "77");
    let active = vec![Arc::new(burstable("b"))];
    let resync = manager.run(|| active.clone());
    let seen = async {
        while shares() != "1024" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        root.write("cpu", "kubepods/burstable/cpu.shares", "77");
        while shares() != "1024" {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = resync => {}
        result = tokio::time::timeout(Duration::from_secs(300), seen) => result.unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn limits_that_pods_exceed_are_tried_again() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "exceeded");
    machine.write("proc/meminfo", "MemTotal: 2048 kB\nSwapTotal: 0 kB\n");
    let script = "x=$(head -c 8000000 /dev/zero | tr '\\0' x); sleep 1000";
    let hungry = Sleeper::run(&root, "kubepods/podhungry", script);
    let memory = || root.read("memory", "kubepods/memory.usage_in_bytes").parse::<u64>().unwrap();
    while memory() < 7 << 20 {
        tokio::task::yield_now().await;
    }
    let manager = machine.manager(root.settings());
    manager.start().await.unwrap();
    let events = machine.events();
    assert_eq!(events.len(), 2, "{events:?}");
    let expected = format!(
        "W FailedNodeAllocatableEnforcement: Failed to update Node Allocatable Limits \
         \"{}/kubepods\": cannot write \"2097152\" to ",
        root.path
    );
    assert!(events[1].starts_with(&expected), "{events:?}");

    drop(hungry);
    let resync = manager.run(Vec::new);
    let seen = async {
        while !machine.events().iter().any(|event| event.starts_with("N NodeAllocatableEnforced")) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        () = resync => {}
        result = tokio::time::timeout(Duration::from_secs(600), seen) => result.unwrap(),
    }
    assert_eq!(root.read("memory", "kubepods/memory.limit_in_bytes"), "2097152");
}

#[tokio::test]
async fn reservations_are_enforced_on_existing_cgroups() {
    let machine = Machine::with_kernel_v1();
    let root = OwnRoot::new(&machine, "reserved");
    let system = format!("{}/system", root.path);
    let kube = format!("{}/kube", root.path);
    let settings = ContainerManagerSettings {
        system_reserved: amounts(&[("cpu", "1"), ("memory", "1Gi"), ("pid", "500")]),
        kube_reserved: amounts(&[("cpu", "500m"), ("memory", "1Gi")]),
        system_reserved_cgroup: Some(system.clone()),
        kube_reserved_cgroup: Some(kube.clone()),
        enforce: Enforcement {
            pods: true,
            system_reserved: true,
            kube_reserved_compressible: true,
            ..Enforcement::default()
        },
        ..root.settings()
    };
    let error = machine.manager(settings.clone()).start().await.unwrap_err();
    assert_eq!(error.to_string(), format!("{system:?} cgroup does not exist"));
    assert_eq!(
        machine.events().last().unwrap(),
        &format!(
            "W FailedNodeAllocatableEnforcement: Failed to enforce System Reserved Cgroup Limits \
             on {system:?}: {system:?} cgroup does not exist"
        )
    );

    root.cgroups.ensure(&system).unwrap();
    root.cgroups.ensure(&kube).unwrap();
    machine.manager(settings).start().await.unwrap();
    assert_eq!(root.read("cpu", "system/cpu.shares"), "1024");
    assert_eq!(root.read("memory", "system/memory.limit_in_bytes"), (1 << 30).to_string());
    assert_eq!(root.read("pids", "system/pids.max"), "500");
    assert_eq!(root.read("cpu", "kube/cpu.shares"), "512");
    assert_ne!(root.read("memory", "kube/memory.limit_in_bytes"), (1 << 30).to_string());
    assert_eq!(
        machine.events()[2..],
        [
            format!("N NodeAllocatableEnforced: Updated limits on system reserved cgroup {system}"),
            format!("N NodeAllocatableEnforced: Updated limits on kube reserved cgroup {kube}"),
        ]
    );
}

#[tokio::test]
async fn without_cgroups_per_qos_everything_is_flat() {
    let machine = Machine::with_kernel_v1();
    let manager = machine.manager(ContainerManagerSettings {
        cgroups_per_qos: false,
        cgroup_root: String::new(),
        enforce: Enforcement::default(),
        ..v1_settings()
    });
    manager.start().await.unwrap();
    let pod = guaranteed("a");
    assert_eq!(manager.pod_cgroup_parent(&pod).unwrap(), "");
    assert_eq!(manager.ensure_pod_cgroup(&pod).await.unwrap(), PodCgroup { existed: true });
    assert!(manager.pod_cgroup_exists(&pod).await.unwrap());
    assert!(manager.list_pod_cgroups().await.unwrap().is_empty());
    manager.update_qos_cgroups([&pod]).await.unwrap();
    manager.reduce_to_minimum(&"a".into()).await.unwrap();
    manager.destroy_pod_cgroup(&"a".into()).await.unwrap();
    let resources = manager
        .container_resources(&pod, &pod.spec.as_ref().unwrap().containers[0], false)
        .unwrap();
    assert_eq!((resources.cpu_shares, resources.oom_score_adj), (512, -997));
    assert_eq!(resources.memory_swap_limit, 64 << 20);
}

const V2_DIRECTORIES: [&str; 5] =
    ["", "kubepods", "kubepods/burstable", "kubepods/besteffort", "kubepods/poda"];

#[tokio::test]
async fn the_same_on_v2() {
    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    let manager = machine.manager(ContainerManagerSettings {
        swap_behavior: rubelet_node_resources::SwapBehavior::LimitedSwap,
        ..ContainerManagerSettings::default()
    });
    machine.write("proc/meminfo", "MemTotal: 8388608 kB\nSwapTotal: 4194304 kB\n");
    assert!(manager.start().await.unwrap().is_empty());
    assert_eq!(machine.read("cgroup/kubepods/cpu.weight"), "157");
    assert_eq!(machine.read("cgroup/kubepods/memory.max"), (8u64 << 30).to_string());
    assert_eq!(machine.read("cgroup/kubepods/pids.max"), "32768");
    assert_eq!(machine.read("cgroup/kubepods/cpuset.cpus"), "");
    assert_eq!(machine.read("cgroup/kubepods/besteffort/cpu.weight"), "1");
    manager.update_qos_cgroups([&burstable("b")]).await.unwrap();
    assert_eq!(machine.read("cgroup/kubepods/burstable/cpu.weight"), "39");
    set_all_values(&manager, &guaranteed("a")).await;
    machine.write("cgroup/kubepods/poda/memory.current", "4096");
    let usage = manager.pod_memory_usage(&guaranteed("a")).await.unwrap();
    assert_eq!(usage, Some(4096));
    assert_eq!(machine.read("cgroup/kubepods/poda/cpu.max"), "50000 100000");
    assert_eq!(manager.list_pod_cgroups().await.unwrap(), BTreeSet::from([PodUid::from("a")]));

    assert_eq!(manager.swap_capacity().unwrap(), 4 << 30);
    let pod = pod("b", json!({"memory": "4Gi"}), json!({}));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let resources = manager.container_resources(&pod, container, false).unwrap();
    assert_eq!(resources.unified["memory.oom.group"], "1");
    assert_eq!(resources.unified["memory.swap.max"], (2u64 << 30).to_string());
}

#[tokio::test]
async fn memory_is_reserved_for_better_classes() {
    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    let manager = machine.manager(ContainerManagerSettings {
        qos_reserved_memory_percent: Some(100),
        memory_throttling_factor: Some(0.9),
        ..ContainerManagerSettings::default()
    });
    manager.start().await.unwrap();
    let wants = |uid, size| pod(uid, json!({}), json!({"cpu": "1", "memory": size}));
    manager.update_qos_cgroups([&wants("a", "2Gi")]).await.unwrap();
    assert_eq!(machine.read("cgroup/kubepods/burstable/memory.max"), (6u64 << 30).to_string());
    assert_eq!(machine.read("cgroup/kubepods/memory.min"), (2u64 << 30).to_string());
    set_all_values(&manager, &wants("a", "2Gi")).await;
    assert_eq!(machine.read("cgroup/kubepods/poda/memory.min"), (2u64 << 30).to_string());
}

async fn set_all_values(manager: &ContainerManager, pod: &Pod) {
    let rules = manager.pod_cgroup_rules().unwrap();
    let values = rubelet_node_resources::compute_pod_cgroup_values(pod, rules);
    manager.set_pod_cgroup_values(pod, &values).await.unwrap();
}

async fn refusal(machine: &Machine, settings: ContainerManagerSettings) -> String {
    let manager = machine.manager(settings);
    let error = manager.start().await.unwrap_err();
    assert!(matches!(manager.capacity(), Err(ContainerManagerError::NotStarted)));
    error.to_string()
}

#[tokio::test]
async fn unfit_machines_and_configurations_are_refused() {
    let settings = ContainerManagerSettings::default;
    let v1 = "1 0 0:1 / /cpu rw - cgroup none rw,cpu\n2 0 0:2 / /m rw - cgroup none rw,memory\n";
    assert_eq!(
        refusal(&Machine::new(v1), settings()).await,
        "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is \
         unsupported and will be removed in a future release"
    );
    assert_eq!(
        refusal(&Machine::new(v1), v1_settings()).await,
        "system validation failed - Following Cgroup subsystem not mounted: [\"cpuacct\", \"cpuset\"]"
    );
    assert_eq!(refusal(&Machine::new(""), settings()).await, "no cgroup file system is mounted");

    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    machine.write("proc/swaps", "Filename Type Size Used Priority\n/swap.img file 8 0 -2\n");
    let refused = refusal(&machine, settings()).await;
    assert!(
        refused.starts_with(
            "running with swap on is not supported, please disable swap or set --fail-swap-on \
             flag to false"
        ),
        "{refused}"
    );

    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    let with_root = |root: &str| ContainerManagerSettings {
        cgroup_root: root.to_owned(),
        ..ContainerManagerSettings::default()
    };
    assert!(refusal(&machine, with_root("")).await.contains("cgroup-root was not specified"));
    assert_eq!(
        refusal(&machine, with_root("/none")).await,
        "invalid configuration: cgroup-root \"/none\" doesn't exist"
    );
    let greedy = ContainerManagerSettings {
        kube_reserved: amounts(&[("memory", "9Gi")]),
        ..ContainerManagerSettings::default()
    };
    assert!(refusal(&machine, greedy).await.contains("Expected capacity >= reservation"));
}

#[test]
fn who_cannot_keep_memory_out_of_swap_says_so() {
    assert_eq!(SetupWarning::of_swap(true), None);
    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    let events = Arc::clone(&machine.events);
    let recorder = EventRecorder::new(move |event| {
        events.lock().unwrap().push(format!("{} {}", event.reason, event.message));
    });
    SetupWarning::of_swap(false).unwrap().record(&recorder);
    assert_eq!(
        machine.events(),
        ["PossibleMemoryBackedVolumesOnDisk The tmpfs noswap option is not supported. \
          Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be swapped to disk and should \
          no longer be considered secure."]
    );
}

/// Swap that is no longer forbidden is no obstacle, and by default pods get none of it.
#[tokio::test]
async fn a_node_may_swap_where_that_is_allowed() {
    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    machine.write("proc/swaps", "Filename Type Size Used Priority\n/swap.img file 8 0 -2\n");
    let manager = machine.manager(ContainerManagerSettings {
        fail_swap_on: false,
        ..ContainerManagerSettings::default()
    });
    manager.start().await.unwrap();
    let pod = pod("b", json!({"memory": "4Gi"}), json!({}));
    let container = &pod.spec.as_ref().unwrap().containers[0];
    let resources = manager.container_resources(&pod, container, false).unwrap();
    assert_eq!(resources.unified["memory.swap.max"], "0");
}

#[tokio::test]
async fn kernel_tunables_are_set_unless_protected() {
    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    machine.write("proc/sys/kernel/panic", "0\n");
    let protect = ContainerManagerSettings {
        protect_kernel_defaults: true,
        ..ContainerManagerSettings::default()
    };
    assert_eq!(
        refusal(&machine, protect.clone()).await,
        "invalid kernel flag: kernel.panic, expected value: 10, actual value: 0"
    );
    assert_eq!(machine.read("proc/sys/kernel/panic"), "0\n");
    machine.manager(ContainerManagerSettings::default()).start().await.unwrap();
    assert_eq!(machine.read("proc/sys/kernel/panic"), "10");
    machine.manager(protect).start().await.unwrap();
}

#[tokio::test]
async fn pods_are_bounded_by_cores_and_storage_is_measured() {
    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    let manager = machine.manager(ContainerManagerSettings {
        pods_per_core: 5,
        root_directory: Some(machine.temp.path().to_owned()),
        eviction_nodefs_available: Some(EvictionThreshold::Fraction(0.5)),
        ..ContainerManagerSettings::default()
    });
    manager.start().await.unwrap();
    let capacity = manager.capacity().unwrap();
    assert_eq!(capacity.get("pods").unwrap().value(), 20);
    let storage = capacity.get("ephemeral-storage").unwrap().value();
    let free = manager.allocatable().unwrap().get("ephemeral-storage").unwrap().value();
    assert!(storage > 0 && free.abs_diff(storage / 2) <= 1, "{free} of {storage}");
}

#[test]
fn parents_and_names_under_systemd() {
    use rubelet_node_resources::CgroupName;

    let machine = Machine::with_fake_v2(&V2_DIRECTORIES);
    let cgroups = || CgroupFs::detect(&machine.host()).unwrap();
    let systemd = tree::CgroupTree::new(cgroups(), CgroupDriver::Systemd, Default::default());
    let name = CgroupName::from_cgroupfs("/kubepods/burstable/pod1-a");
    assert_eq!(systemd.cgroup_parent(&name), "kubepods-burstable-pod1_a.slice");
    assert_eq!(
        systemd.path(&name),
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_a.slice"
    );
    assert_eq!(systemd.name_of("kubepods-burstable-pod1_a.slice"), name);
    for reserved in ["/system.slice", "system.slice", "/system"] {
        assert_eq!(systemd.path(&systemd.name_of(reserved)), "/system.slice", "{reserved}");
    }
    let cgroupfs = tree::CgroupTree::new(cgroups(), CgroupDriver::Cgroupfs, Default::default());
    assert_eq!(cgroupfs.cgroup_parent(&name), "/kubepods/burstable/pod1-a");
}
