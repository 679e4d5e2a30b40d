//! Whose work keeps the machine's cores busy while pods start: what a kubelet cannot save by being
//! quick itself is the runtime's, and is told apart here.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use rubelet_control_plane::Component;
use rubelet_e2e::process_cpu;

use super::node::Node;

const CONTROL_PLANE: [Component; 4] =
    [Component::Etcd, Component::ApiServer, Component::ControllerManager, Component::Scheduler];

/// Time of cores that was used up to some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuTime {
    machine: Duration,
    pub(super) kubelet: Duration,
    pub(super) control_plane: Duration,
    bench: Duration,
}

impl CpuTime {
    pub(super) fn now(node: &Node<'_>) -> anyhow::Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("the machine's CPU time")?;
        let plane = node.cluster.control_plane();
        let of = |component: &Component| plane.pid(*component).and_then(process_cpu);
        Ok(Self {
            machine: busy(&stat).context("the machine's CPU time is not told")?,
            kubelet: node.usage()?.cpu,
            control_plane: CONTROL_PLANE.iter().filter_map(of).sum(),
            bench: process_cpu(std::process::id()).unwrap_or_default(),
        })
    }

    /// What was used since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            machine: self.machine.saturating_sub(before.machine),
            kubelet: self.kubelet.saturating_sub(before.kubelet),
            control_plane: self.control_plane.saturating_sub(before.control_plane),
            bench: self.bench.saturating_sub(before.bench),
        }
    }

    /// What nobody else used: containerd, its shims, runc, the network plugins, the containers, and
    /// the kernel's own threads.
    pub(super) fn runtime(self) -> Duration {
        self.machine.saturating_sub(self.kubelet + self.control_plane + self.bench)
    }
}

/// The time that all cores together were not idle, of the first line of `/proc/stat`, which is in
/// hundredths of a second: user, nice, system, idle, iowait, irq, softirq, and more that counts
/// elsewhere.
fn busy(stat: &str) -> Option<Duration> {
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let ticks: u64 = [0, 1, 2, 5, 6].iter().map(|index| fields.get(*index)).sum::<Option<_>>()?;
    Some(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_that_idle_or_wait_for_a_disk_are_not_busy() {
        let stat = "cpu  100 20 30 5000 700 4 6 9 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy(stat), Some(Duration::from_millis(1600)));
        assert_eq!(busy("cpu  1 2"), None);
        assert_eq!(busy("intr 5"), None);
    }

    #[test]
    fn what_nobody_else_used_is_the_runtimes() {
        let seconds = Duration::from_secs;
        let at = |machine, kubelet, control_plane, bench| CpuTime {
            machine: seconds(machine),
            kubelet: seconds(kubelet),
            control_plane: seconds(control_plane),
            bench: seconds(bench),
        };
        let used = at(150, 12, 23, 5).since(at(100, 10, 20, 4));
        assert_eq!(used.runtime(), seconds(44));
    }
}
