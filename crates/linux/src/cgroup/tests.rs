//! Against the kernel's version 1 hierarchies and its version 2 hierarchy without controllers, and
//! against made-up trees for what this kernel cannot show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rubelet_node_resources::{CgroupValues, PageSize};

use super::*;
use crate::Host;

/// A machine whose mount table has these lines.
fn host_with(mountinfo: &str) -> (tempfile::TempDir, Host) {
    let temp = tempfile::tempdir().unwrap();
    fs::create_dir_all(temp.path().join("proc/self")).unwrap();
    fs::write(temp.path().join("proc/self/mountinfo"), mountinfo).unwrap();
    let host = Host::at(temp.path());
    (temp, host)
}

/// A cgroup of the test's own in every hierarchy, removed at the end.
struct OwnCgroup {
    cgroups: CgroupFs,
    path: String,
}

impl OwnCgroup {
    fn new(cgroups: CgroupFs, name: &str) -> Self {
        let path = format!("/rubelet-test-{}-{name}", std::process::id());
        assert!(!cgroups.exists_partly(&path).unwrap());
        cgroups.ensure(&path).unwrap();
        Self { cgroups, path }
    }

    fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        // What the kernel still holds on to is gone in a moment.
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
    fn start() -> Self {
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        Self(child)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn kernel_v1() -> CgroupFs {
    CgroupFs::detect(&Host::system()).unwrap()
}

fn file(controller: &str, path: &str, name: &str) -> String {
    let path = format!("/sys/fs/cgroup/{controller}{path}/{name}");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")).trim().to_owned()
}

#[test]
fn the_kernels_hierarchies_are_found() {
    let cgroups = kernel_v1();
    assert_eq!(cgroups.mode(), CgroupMode::Hybrid);
    let controllers = cgroups.controllers().unwrap();
    for controller in ["cpu", "cpuset", "memory", "pids", "systemd"] {
        assert!(controllers.contains(controller), "{controller}");
    }
    assert!(cgroups.exists("/").unwrap());
    assert!(!cgroups.exists("/no-such-cgroup").unwrap());
    assert!(cgroups.swap_accounting("/"));
}

#[test]
fn values_reach_the_kernel_on_v1() {
    let own = OwnCgroup::new(kernel_v1(), "values");
    let pod = own.child("burstable/pod1");
    own.cgroups.ensure(&pod).unwrap();
    own.cgroups.ensure(&pod).unwrap();
    assert!(own.cgroups.exists(&pod).unwrap());
    let values = CgroupValues {
        cpu_shares: Some(512),
        cpu_quota: Some(50_000),
        cpu_period: Some(100_000),
        memory_limit: Some(64 << 20),
        pids_limit: Some(100),
        hugepage_limits: Some(BTreeMap::from([(PageSize(2 << 20), 0)])),
        ..CgroupValues::default()
    };
    own.cgroups.apply(&pod, &values).unwrap();
    assert_eq!(file("cpu", &pod, "cpu.shares"), "512");
    assert_eq!(file("cpu", &pod, "cpu.cfs_quota_us"), "50000");
    assert_eq!(file("cpu", &pod, "cpu.cfs_period_us"), "100000");
    assert_eq!(file("memory", &pod, "memory.limit_in_bytes"), (64 << 20).to_string());
    assert_eq!(file("pids", &pod, "pids.max"), "100");
    assert_eq!(file("cpuset", &pod, "cpuset.cpus"), file("cpuset", "", "cpuset.cpus"));
    assert_eq!(file("cpuset", &pod, "cpuset.mems"), file("cpuset", "", "cpuset.mems"));
    assert_eq!(own.cgroups.memory_usage(&pod).unwrap(), 0);

    // What is not named stays; no limit is written as such.
    let unlimited = CgroupValues {
        cpu_quota: Some(-1),
        memory_limit: Some(-1),
        pids_limit: Some(-1),
        cpuset_cpus: Some("0".to_owned()),
        ..CgroupValues::default()
    };
    own.cgroups.apply(&pod, &unlimited).unwrap();
    assert_eq!(file("cpu", &pod, "cpu.shares"), "512");
    assert_eq!(file("cpu", &pod, "cpu.cfs_quota_us"), "-1");
    assert_eq!(file("pids", &pod, "pids.max"), "max");
    assert_eq!(file("cpuset", &pod, "cpuset.cpus"), "0");

    assert_eq!(own.cgroups.children(&own.path).unwrap(), BTreeSet::from(["burstable".to_owned()]));
    own.cgroups.destroy(&pod).unwrap();
    own.cgroups.destroy(&pod).unwrap();
    assert!(!own.cgroups.exists_partly(&pod).unwrap());
    assert!(own.cgroups.exists(&own.child("burstable")).unwrap());
}

#[test]
fn a_shorter_period_is_no_obstacle_to_a_smaller_quota() {
    let own = OwnCgroup::new(kernel_v1(), "period");
    let quota = |quota, period| CgroupValues {
        cpu_quota: Some(quota),
        cpu_period: Some(period),
        ..CgroupValues::default()
    };
    own.cgroups.apply(&own.path, &quota(100_000, 100_000)).unwrap();
    let pod = own.child("pod");
    own.cgroups.ensure(&pod).unwrap();
    own.cgroups.apply(&pod, &quota(90_000, 100_000)).unwrap();
    // 90 ms of 10 ms would be more than the parent has.
    own.cgroups.apply(&pod, &quota(5_000, 10_000)).unwrap();
    assert_eq!(file("cpu", &pod, "cpu.cfs_period_us"), "10000");
    assert_eq!(file("cpu", &pod, "cpu.cfs_quota_us"), "5000");
}

#[test]
fn a_value_that_the_kernel_refuses_is_named() {
    let own = OwnCgroup::new(kernel_v1(), "refused");
    let values = CgroupValues { cpu_quota: Some(1), ..CgroupValues::default() };
    let error = own.cgroups.apply(&own.path, &values).unwrap_err();
    assert!(error.to_string().contains("\"1\""), "{error}");
    assert!(error.to_string().ends_with("cpu.cfs_quota_us"), "{error}");
    let missing = own.child("missing");
    assert!(own.cgroups.apply(&missing, &CgroupValues::default()).is_ok(), "nothing to write");
    assert!(own.cgroups.apply(&missing, &values).is_err());
}

fn ends_when_killed(cgroups: CgroupFs, name: &str) {
    let own = OwnCgroup::new(cgroups, name);
    let container = own.child("pod/container");
    own.cgroups.ensure(&container).unwrap();
    let mut sleepers = [Sleeper::start(), Sleeper::start()];
    for sleeper in &sleepers {
        own.cgroups.add_process(&container, sleeper.0.id()).unwrap();
    }
    let pids: BTreeSet<u32> = sleepers.iter().map(|sleeper| sleeper.0.id()).collect();
    assert_eq!(own.cgroups.processes(&own.child("pod")).unwrap(), pids);
    assert!(matches!(own.cgroups.destroy(&own.child("pod")), Err(CgroupError::Busy { .. })));

    assert_eq!(own.cgroups.kill(&own.child("pod")).unwrap(), KillReport { killed: 2 });
    for sleeper in &mut sleepers {
        assert!(!sleeper.0.wait().unwrap().success());
    }
    assert!(own.cgroups.processes(&own.child("pod")).unwrap().is_empty());
    assert_eq!(own.cgroups.kill(&own.child("pod")).unwrap(), KillReport { killed: 0 });
    own.cgroups.destroy(&own.child("pod")).unwrap();
    assert!(!own.cgroups.exists_partly(&own.child("pod")).unwrap());
}

#[test]
fn processes_are_killed_on_v1() {
    ends_when_killed(kernel_v1(), "kill");
}

#[test]
fn processes_are_killed_on_v2() {
    ends_when_killed(kernel_v2().1, "kill-unified");
}

#[test]
fn frozen_processes_are_killed_too() {
    let own = OwnCgroup::new(kernel_v1(), "frozen");
    let container = own.child("pod/container");
    own.cgroups.ensure(&container).unwrap();
    let mut sleeper = Sleeper::start();
    own.cgroups.add_process(&container, sleeper.0.id()).unwrap();
    fs::write(format!("/sys/fs/cgroup/freezer{container}/freezer.state"), "FROZEN").unwrap();
    own.cgroups.kill(&own.child("pod")).unwrap();
    assert!(!sleeper.0.wait().unwrap().success());
}

/// The kernel's version 2 hierarchy as if it were the only one.
fn kernel_v2() -> (tempfile::TempDir, CgroupFs) {
    let (temp, host) = host_with("41 31 0:38 / /cgroup rw,relatime - cgroup2 cgroup2 rw\n");
    std::os::unix::fs::symlink("/sys/fs/cgroup/unified", temp.path().join("cgroup")).unwrap();
    let cgroups = CgroupFs::detect(&host).unwrap();
    assert!(cgroups.is_v2());
    (temp, cgroups)
}

#[test]
fn cgroups_come_and_go_on_v2() {
    let (_host, cgroups) = kernel_v2();
    let own = OwnCgroup::new(cgroups, "unified");
    let pod = own.child("burstable/pod1");
    assert!(!own.cgroups.exists(&pod).unwrap());
    own.cgroups.ensure(&pod).unwrap();
    assert!(own.cgroups.exists(&pod).unwrap());
    assert_eq!(own.cgroups.children(&own.path).unwrap(), BTreeSet::from(["burstable".to_owned()]));
    own.cgroups.destroy(&own.child("burstable")).unwrap();
    assert!(!own.cgroups.exists_partly(&pod).unwrap());
}

/// A version 2 tree of plain files.
struct FakeV2 {
    temp: tempfile::TempDir,
    cgroups: CgroupFs,
}

const FILES: [&str; 12] = [
    "cgroup.subtree_control",
    "cgroup.procs",
    "cpu.weight",
    "cpu.max",
    "memory.max",
    "memory.current",
    "memory.min",
    "memory.swap.max",
    "pids.max",
    "cpuset.cpus",
    "hugetlb.2MB.max",
    "hugetlb.1GB.max",
];

impl FakeV2 {
    fn new(controllers: &str, directories: &[&str]) -> Self {
        let (temp, host) = host_with("30 23 0:26 / /cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n");
        let page_sizes = temp.path().join("sys/kernel/mm/hugepages");
        for size in ["hugepages-2048kB", "hugepages-1048576kB"] {
            fs::create_dir_all(page_sizes.join(size)).unwrap();
            fs::write(page_sizes.join(size).join("nr_hugepages"), "0\n").unwrap();
        }
        for directory in directories {
            let directory = temp.path().join("cgroup").join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.controllers"), controllers).unwrap();
            for file in FILES {
                fs::write(directory.join(file), "").unwrap();
            }
        }
        let cgroups = CgroupFs::detect(&host).unwrap();
        Self { temp, cgroups }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.temp.path().join("cgroup").join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }
}

#[test]
fn controllers_are_handed_down_but_not_beyond_the_pod() {
    let fake = FakeV2::new("cpuset cpu io memory pids", &["", "kubepods", "kubepods/burstable"]);
    fs::write(fake.path("kubepods/cgroup.subtree_control"), "cpu memory").unwrap();
    fake.cgroups.ensure("/kubepods/burstable/pod1").unwrap();
    assert_eq!(fake.read("cgroup.subtree_control"), "+cpu +cpuset +io +memory +pids");
    assert_eq!(fake.read("kubepods/cgroup.subtree_control"), "+cpuset +io +pids");
    assert_eq!(
        fake.read("kubepods/burstable/cgroup.subtree_control"),
        "+cpu +cpuset +io +memory +pids"
    );
    assert!(fake.path("kubepods/burstable/pod1").is_dir());
    assert!(!fake.path("kubepods/burstable/pod1/cgroup.subtree_control").exists());
}

#[test]
fn a_cgroup_without_a_needed_controller_does_not_count() {
    let fake = FakeV2::new("cpuset cpu io memory pids", &["", "kubepods"]);
    assert!(fake.cgroups.exists("/kubepods").unwrap());
    fs::write(fake.path("kubepods/cgroup.controllers"), "cpuset cpu memory pids").unwrap();
    assert!(fake.cgroups.exists("/kubepods").unwrap(), "io is not needed");
    fs::write(fake.path("kubepods/cgroup.controllers"), "cpu io memory pids").unwrap();
    assert!(!fake.cgroups.exists("/kubepods").unwrap(), "cpuset is");
    assert!(fake.cgroups.exists_partly("/kubepods").unwrap());
}

#[test]
fn values_in_the_words_of_v2() {
    let fake = FakeV2::new("cpuset cpu memory pids hugetlb", &["", "pod"]);
    let values = CgroupValues {
        cpu_shares: Some(1024),
        cpu_quota: Some(-1),
        cpu_period: Some(100_000),
        memory_limit: Some(-1),
        pids_limit: Some(0),
        hugepage_limits: Some(BTreeMap::from([(PageSize(2 << 20), 4 << 20)])),
        cpuset_cpus: Some("0-1".to_owned()),
        unified: BTreeMap::from([("memory.min".to_owned(), "4096".to_owned())]),
    };
    fake.cgroups.apply("/pod", &values).unwrap();
    for (file, content) in [
        ("cpu.weight", "39"),
        ("cpu.max", "max 100000"),
        ("memory.max", "max"),
        ("pids.max", "1"),
        ("cpuset.cpus", "0-1"),
        ("hugetlb.2MB.max", "4194304"),
        ("hugetlb.1GB.max", "0"),
        ("memory.min", "4096"),
    ] {
        assert_eq!(fake.read(&format!("pod/{file}")), content, "{file}");
    }
    fs::write(fake.path("pod/memory.current"), "8192\n").unwrap();
    assert_eq!(fake.cgroups.memory_usage("/pod").unwrap(), 8192);
    assert!(fake.cgroups.swap_accounting("/pod"));
}

#[test]
fn huge_pages_need_their_controller() {
    let fake = FakeV2::new("cpu memory", &["", "pod"]);
    let values = CgroupValues { hugepage_limits: Some(BTreeMap::new()), ..CgroupValues::default() };
    fake.cgroups.apply("/pod", &values).unwrap();
    assert_eq!(fake.read("pod/hugetlb.2MB.max"), "");
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let fake = FakeV2::new("cpu", &["", "pod"]);
    for path in ["/..", "/pod/../../x", "../pod"] {
        for result in [
            fake.cgroups.ensure(path),
            fake.cgroups.destroy(path),
            fake.cgroups.exists(path).map(drop),
            fake.cgroups.kill(path).map(drop),
        ] {
            assert!(matches!(result, Err(CgroupError::InvalidName(_))), "{path} {result:?}");
        }
    }
    // The root holds everything that runs.
    assert!(matches!(fake.cgroups.destroy("/"), Err(CgroupError::InvalidName(_))));
    assert!(matches!(fake.cgroups.kill("/"), Err(CgroupError::InvalidName(_))));
    let values = CgroupValues {
        unified: BTreeMap::from([("../cpu.max".to_owned(), "1".to_owned())]),
        ..CgroupValues::default()
    };
    assert!(matches!(fake.cgroups.apply("/pod", &values), Err(CgroupError::InvalidName(_))));
}

#[test]
fn the_version_follows_from_the_mounts() {
    for (mountinfo, mode) in [
        ("1 0 0:1 / /c rw - cgroup2 none rw\n", Some(CgroupMode::V2)),
        ("1 0 0:1 / /cpu rw - cgroup none rw,cpu\n", Some(CgroupMode::V1)),
        (
            "1 0 0:1 / /cpu rw - cgroup none rw,cpu\n2 0 0:2 / /u rw - cgroup2 none rw\n",
            Some(CgroupMode::Hybrid),
        ),
        ("1 0 0:1 / / rw - ext4 /dev/vda rw\n", None),
    ] {
        let (_temp, host) = host_with(mountinfo);
        match (CgroupFs::detect(&host), mode) {
            (Ok(cgroups), Some(mode)) => assert_eq!(cgroups.mode(), mode),
            (Err(CgroupError::NotMounted), None) => {}
            (other, _) => panic!("{mountinfo}: {other:?}"),
        }
    }
    let (_temp, host) = host_with(
        "1 0 0:1 / /cpu rw - cgroup none rw,cpu,cpuacct\n2 0 0:1 / /again rw - cgroup none rw,cpu,cpuacct\n",
    );
    let root = host.path("/cpu");
    fs::create_dir(&root).unwrap();
    let cgroups = CgroupFs::detect(&host).unwrap();
    cgroups.ensure("/pod").unwrap();
    assert!(root.join("pod").is_dir());
    assert!(!Path::new(&host.path("/again")).exists());
}
