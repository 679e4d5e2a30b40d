//! A kubelet on a machine that is made up: its files are a directory, its runtime is a fake.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use kubelet::{ClusterParts, Invocation, Kubelet, Node, Parts};
use rubelet_container_manager::CgroupDriver;
use rubelet_cri::CriOptions;
use rubelet_fake_cri::{FakeOptions, FakeRuntime, tokio_clock};
use rubelet_linux::Host;
use rubelet_pod_sources::{PodSource, PodSourceHandle};
use rubelet_types::{Clock, EventRecorder, NodePaths};
use rubelet_volume_manager::MountPort;
use tokio::time::Instant;

/// The image that the runtime has.
pub(crate) const IMAGE: &str = "registry.example/app:1";

/// A machine of four cores and 16 GiB.
pub(crate) struct Machine {
    files: tempfile::TempDir,
    pub(crate) runtime: FakeRuntime,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let options =
            FakeOptions { clock: tokio_clock(Timestamp::UNIX_EPOCH), ..FakeOptions::default() };
        let machine =
            Self { files: tempfile::tempdir().unwrap(), runtime: FakeRuntime::new(options) };
        machine.runtime.add_image(IMAGE, 1 << 20);
        for (path, content) in [
            ("host/proc/self/cgroup", "0::/\n"),
            ("host/proc/self/mountinfo", "30 23 0:26 / /cgroup rw - cgroup2 cgroup2 rw\n"),
            ("host/cgroup/cgroup.controllers", "cpuset cpu memory pids\n"),
            ("host/cgroup/memory.current", "0\n"),
            ("host/proc/meminfo", "MemTotal: 16777216 kB\nSwapTotal: 0 kB\n"),
            ("host/proc/swaps", "Filename Type Size Used Priority\n"),
            ("host/proc/sys/kernel/pid_max", "32768\n"),
            ("host/proc/sys/kernel/threads-max", "100000\n"),
            ("host/proc/sys/vm/overcommit_memory", "1"),
            ("host/proc/sys/vm/panic_on_oom", "0"),
            ("host/proc/sys/kernel/panic", "10"),
            ("host/proc/sys/kernel/panic_on_oops", "1"),
            ("host/proc/sys/kernel/keys/root_maxkeys", "1000000"),
            ("host/proc/sys/kernel/keys/root_maxbytes", "25000000"),
            ("host/sys/devices/system/cpu/online", "0-3"),
            ("resolv.conf", "nameserver 10.0.0.10\n"),
        ] {
            machine.write(path, content);
        }
        machine
    }

    /// Gives pods cgroups: files that stand for what the kernel would make.
    #[allow(dead_code, reason = "not every file of tests needs it")]
    pub(crate) fn with_cgroups(self) -> Self {
        for directory in ["", "kubepods", "kubepods/burstable", "kubepods/besteffort"] {
            self.write(
                &format!("host/cgroup/{directory}/cgroup.controllers"),
                "cpuset cpu memory pids\n",
            );
            for file in
                ["cgroup.subtree_control", "cgroup.procs", "cpu.weight", "cpu.max", "memory.max"]
            {
                self.write(&format!("host/cgroup/{directory}/{file}"), "");
            }
        }
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).unwrap();
        fs::write(path, content).unwrap();
    }

    /// A kubelet that does not run yet, as a node of the cluster that `cluster` makes of the handle
    /// of its pods. Without one it is alone, and the handle comes back.
    pub(crate) async fn kubelet(
        &self,
        clock: Clock,
        events: EventRecorder,
        mounts: Arc<dyn MountPort>,
        cluster: impl FnOnce(PodSourceHandle, Host) -> Option<ClusterParts>,
    ) -> Kubelet {
        // Unless the machine is made for more, pods have no cgroups.
        let has_cgroups = self.path("host/cgroup/kubepods").exists();
        let arguments = [
            format!("--cgroups-per-qos={has_cgroups}"),
            "--enforce-node-allocatable=".to_owned(),
            "--fail-cgroupv1=false".to_owned(),
            format!("--root-dir={}", self.path("kubelet").display()),
            format!("--resolv-conf={}", self.path("resolv.conf").display()),
        ];
        let invocation = rubelet_config::load(arguments.map(Into::into)).unwrap();
        let Invocation::Run(effective) = invocation else { panic!("no kubelet to run") };
        let paths = NodePaths::new(
            self.path("kubelet"),
            self.path("pod-logs"),
            self.path("container-logs"),
        );
        for dir in [paths.pods_dir().as_path(), paths.pod_logs(), paths.container_logs()] {
            fs::create_dir_all(dir).unwrap();
        }
        let host = Host::at(self.path("host"));
        let manager = kubelet::start_container_manager(
            &effective,
            CgroupDriver::Cgroupfs,
            host.clone(),
            events.clone(),
        );
        let container_manager = manager.await.unwrap();
        let node = Node { name: "n1".to_owned(), ips: vec![[10, 0, 0, 1].into()] };
        let mut sources =
            kubelet::pod_sources(&effective, &node, clock.clone(), events.clone()).unwrap();
        let pods = sources.0.register_source(PodSource::Api);
        let credential_providers = kubelet::credential_providers(&effective).unwrap();
        kubelet::assemble(Parts {
            effective: &effective,
            node,
            paths,
            clock,
            events,
            cri: self.runtime.client(CriOptions::default()),
            runtime_name: "fake".to_owned(),
            runtime_version: "1".to_owned(),
            container_manager,
            credential_providers,
            mounts,
            sources,
            cluster: cluster(pods, host),
            concurrent_starts: 8,
            started: Instant::now(),
        })
    }
}
