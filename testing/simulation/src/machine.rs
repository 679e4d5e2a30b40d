//! The machine that a simulated node is: a directory that stands for its files, a part of the
//! kernel's cgroup tree if that may be had, and a wall clock that can be set.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use rubelet_linux::Host;
use rubelet_linux::cgroup::CgroupFs;
use rubelet_linux::mount::MountTable;
use rubelet_types::{Clock, NodePaths};
use tokio::time::Instant;

use crate::leftovers;

/// What the wall clock shows when a history begins.
const BEGINNING: i64 = 1_767_225_600;

const FACTS: [(&str, &str); 15] = [
    ("etc/machine-id", "0123456789abcdef0123456789abcdef\n"),
    ("proc/sys/kernel/osrelease", "6.12.0\n"),
    ("proc/sys/kernel/random/boot_id", "00000000-0000-4000-8000-000000000001\n"),
    ("proc/self/cgroup", "0::/\n"),
    ("proc/meminfo", "MemTotal: 16777216 kB\nSwapTotal: 0 kB\n"),
    ("proc/swaps", "Filename Type Size Used Priority\n"),
    ("proc/sys/kernel/pid_max", "32768\n"),
    ("proc/sys/kernel/threads-max", "100000\n"),
    ("sys/devices/system/cpu/online", "0-7\n"),
    ("proc/sys/vm/overcommit_memory", "1"),
    ("proc/sys/vm/panic_on_oom", "0"),
    ("proc/sys/kernel/panic", "10"),
    ("proc/sys/kernel/panic_on_oops", "1"),
    ("proc/sys/kernel/keys/root_maxkeys", "1000000"),
    ("proc/sys/kernel/keys/root_maxbytes", "25000000"),
];

/// A wall clock that goes with Tokio's time, and jumps when told so.
#[derive(Clone, Debug)]
pub(crate) struct WallClock {
    origin: Instant,
    offset_ms: Arc<AtomicI64>,
    /// Nanoseconds on top: no two looks at the clock show the same, as on a real machine.
    looks: Arc<AtomicI64>,
}

impl WallClock {
    pub(crate) fn start() -> Self {
        Self { origin: Instant::now(), offset_ms: Arc::default(), looks: Arc::default() }
    }

    pub(crate) fn jump(&self, by: SignedDuration) {
        let ms = i64::try_from(by.as_millis()).unwrap_or(0);
        self.offset_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Time that has really passed.
    pub(crate) fn elapsed(&self) -> std::time::Duration {
        self.origin.elapsed()
    }

    pub(crate) fn clock(&self) -> Clock {
        let this = self.clone();
        Clock::from_fn(move || {
            let looks = this.looks.fetch_add(1, Ordering::Relaxed);
            let offset = SignedDuration::from_millis(this.offset_ms.load(Ordering::Relaxed))
                + SignedDuration::from_nanos(looks);
            let elapsed = SignedDuration::try_from(this.elapsed()).unwrap_or(SignedDuration::MAX);
            Timestamp::from_second(BEGINNING)
                .and_then(|start| start.checked_add(elapsed))
                .and_then(|now| now.checked_add(offset))
                .unwrap_or(Timestamp::MAX)
        })
    }
}

/// The files of a node.
#[derive(Debug)]
pub(crate) struct Machine {
    directory: PathBuf,
    /// The kernel's cgroups, where we may have one of our own.
    cgroups: Option<CgroupFs>,
    /// The one of our own.
    cgroup_root: String,
}

impl Machine {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let pid = std::process::id();
        let directory = leftovers::directory(pid);
        // Of an earlier process of the same number.
        let left = leftovers::sweep(pid);
        anyhow::ensure!(left.is_empty(), "{}", left.join("; "));
        fs::create_dir(&directory).context("making the machine's directory")?;
        let mut machine = Self { directory, cgroups: None, cgroup_root: leftovers::cgroup(pid) };
        for (path, content) in FACTS {
            machine.write_host_file(path, content)?;
        }
        let table = MountTable::read().context("reading what is mounted")?;
        machine.write_host_file("proc/self/mountinfo", &cgroup_mounts(&table))?;
        symlink("/sys/fs/cgroup", machine.path("host/cgroup"))?;
        let paths = machine.node_paths();
        for dir in [paths.root(), paths.pod_logs(), &paths.pods_dir(), paths.container_logs()] {
            fs::create_dir_all(dir)?;
        }
        fs::write(machine.path("resolv.conf"), "nameserver 10.0.0.10\n")?;
        let tree = CgroupFs::detect(&machine.host()).ok();
        machine.cgroups = tree.filter(|tree| tree.ensure(&machine.cgroup_root).is_ok());
        Ok(machine)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    fn write_host_file(&self, path: &str, content: &str) -> io::Result<()> {
        let path = self.directory.join("host").join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)
    }

    pub(crate) fn host(&self) -> Host {
        Host::at(self.path("host"))
    }

    pub(crate) fn node_paths(&self) -> NodePaths {
        NodePaths::new(self.path("kubelet"), self.path("pod-logs"), self.path("container-logs"))
    }

    /// The command line of a kubelet on this machine.
    pub(crate) fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            format!("--root-dir={}", self.path("kubelet").display()),
            format!("--resolv-conf={}", self.path("resolv.conf").display()),
            "--hostname-override=node".to_owned(),
            "--node-ip=10.0.0.1".to_owned(),
            "--fail-cgroupv1=false".to_owned(),
        ];
        match &self.cgroups {
            Some(_) => flags.push(format!("--cgroup-root={}", self.cgroup_root)),
            None => flags.extend(
                ["--cgroups-per-qos=false", "--enforce-node-allocatable="].map(str::to_owned),
            ),
        }
        flags
    }

    /// The uids of pods that have a cgroup.
    pub(crate) fn pod_cgroups(&self) -> Vec<String> {
        let Some(tree) = &self.cgroups else { return Vec::new() };
        let tiers = ["kubepods", "kubepods/burstable", "kubepods/besteffort"];
        let mut found: Vec<String> = tiers
            .iter()
            .filter_map(|tier| tree.children(&format!("{}/{tier}", self.cgroup_root)).ok())
            .flatten()
            .filter_map(|name| name.strip_prefix("pod").map(str::to_owned))
            .collect();
        found.sort();
        found
    }

    /// What does not outlive a reboot is gone.
    pub(crate) fn reboot(&self) {
        if let Some(tree) = &self.cgroups {
            // No process was ever in it. What stays is found in the end.
            let _ = tree.destroy(&format!("{}/kubepods", self.cgroup_root));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Whoever has started this process looks for what stays.
        let _ = leftovers::sweep(std::process::id());
    }
}

/// The cgroup mounts in `table` as lines of a mount table, seen beneath `/cgroup`.
fn cgroup_mounts(table: &MountTable) -> String {
    let mut lines = String::new();
    for mount in table.mounts().iter().filter(|mount| mount.file_system.starts_with("cgroup")) {
        let Ok(place) = mount.mount_point.strip_prefix("/sys/fs/cgroup") else { continue };
        let _ = writeln!(
            lines,
            "{} 1 {} / {} rw - {} cgroup {}",
            mount.id,
            mount.device,
            Path::new("/cgroup").join(place).display(),
            mount.file_system,
            mount.super_options.join(",")
        );
    }
    lines
}
