//! Checks of the machine before anything is made.

use std::collections::BTreeSet;

use rubelet_linux::cgroup::{CgroupError, CgroupFs};
use rubelet_linux::mount::tmpfs_noswap_supported;
use rubelet_linux::{Host, HostError};
use rubelet_node_resources::OverReserved;
use rubelet_types::{EventObject, EventRecorder};

use crate::{ContainerManagerSettings, TreeError};

/// Controllers without which pods cannot run on cgroup v1.
const REQUIRED_V1: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];

/// Kernel tunables and the values that Kubernetes expects.
const TUNABLES: [(&str, &str); 6] = [
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
];

/// Why the container manager does not start. All are for the administrator to settle.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The node uses cgroup v1, and `failCgroupV1` is set.
    #[error(
        "kubelet is configured to not run on a host using cgroup v1. \
         cgroup v1 support is unsupported and will be removed in a future release"
    )]
    CgroupV1Refused,
    /// Controllers are missing.
    #[error("system validation failed - Following Cgroup subsystem not mounted: {0:?}")]
    MissingControllers(Vec<String>),
    /// Swap is in use, and `failSwapOn` is set.
    #[error(
        "running with swap on is not supported, please disable swap or set --fail-swap-on flag \
         to false. /proc/swaps contained: {0:?}"
    )]
    SwapOn(Vec<String>),
    /// `cgroupsPerQOS` needs a root.
    #[error(
        "invalid configuration: cgroups-per-qos was specified and cgroup-root was not specified. \
         To enable the QoS cgroup hierarchy you need to specify a valid cgroup-root"
    )]
    NoCgroupRoot,
    /// The configured root is missing.
    #[error("invalid configuration: cgroup-root {0:?} doesn't exist")]
    CgroupRootMissing(String),
    /// A kernel tunable is wrong, and `protectKernelDefaults` forbids to set it.
    #[error("invalid kernel flag: {name}, expected value: {expected}, actual value: {actual}")]
    Tunable {
        /// The sysctl.
        name: &'static str,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        actual: String,
    },
    /// More is reserved than there is.
    #[error(transparent)]
    OverReserved(#[from] OverReserved),
    /// A cgroup that holds a reservation does not exist.
    #[error("{cgroup:?} cgroup does not exist")]
    ReservedCgroupMissing {
        /// Its name.
        cgroup: String,
    },
    /// A reservation cannot be enforced.
    #[error("failed to enforce {what} Reserved Cgroup Limits on {cgroup:?}")]
    ReservedCgroup {
        /// `System` or `Kube`.
        what: &'static str,
        /// The cgroup's name.
        cgroup: String,
        /// Why.
        #[source]
        source: TreeError,
    },
    /// A cgroup of ours cannot be made.
    #[error("cannot create the cgroup {cgroup}")]
    CreateCgroup {
        /// Its name.
        cgroup: String,
        /// Why.
        #[source]
        source: TreeError,
    },
    /// The machine does not tell about itself.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The cgroup file system cannot be used.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// It was started before.
    #[error("the container manager was started twice")]
    StartedTwice,
}

/// What an administrator should know although the kubelet goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetupWarning {
    /// The node uses cgroup v1.
    CgroupV1,
    /// The node swaps, and its kernel cannot keep a tmpfs out of swap.
    MemoryBackedVolumesMaySwap,
}

impl SetupWarning {
    /// What has to be known of a node that swaps.
    pub(crate) fn of_swap(can_keep_tmpfs_out: bool) -> Option<Self> {
        (!can_keep_tmpfs_out).then_some(Self::MemoryBackedVolumesMaySwap)
    }

    /// Reason of the event on the node.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::CgroupV1 => "CgroupV1",
            Self::MemoryBackedVolumesMaySwap => "PossibleMemoryBackedVolumesOnDisk",
        }
    }

    /// Message of the event on the node.
    pub fn message(&self) -> &'static str {
        match self {
            Self::CgroupV1 => {
                "cgroup v1 support is in maintenance mode, please migrate to cgroup v2"
            }
            Self::MemoryBackedVolumesMaySwap => {
                "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, \
                 emptyDirs, etc.) might be swapped to disk and should no longer be considered \
                 secure."
            }
        }
    }

    pub(crate) fn record(&self, recorder: &EventRecorder) {
        recorder.warning(EventObject::Node, self.reason(), self.message());
    }
}

/// Checks the machine, and sets the kernel tunables unless that is forbidden.
pub(crate) fn check_machine(
    host: &Host,
    cgroups: &CgroupFs,
    settings: &ContainerManagerSettings,
) -> Result<Vec<SetupWarning>, SetupError> {
    let mut warnings = Vec::new();
    if !cgroups.is_v2() {
        if settings.fail_cgroup_v1 {
            return Err(SetupError::CgroupV1Refused);
        }
        let present = cgroups.controllers()?;
        let required: BTreeSet<String> = REQUIRED_V1.iter().map(|name| (*name).into()).collect();
        let missing: Vec<String> = required.difference(&present).cloned().collect();
        if !missing.is_empty() {
            return Err(SetupError::MissingControllers(missing));
        }
        warnings.push(SetupWarning::CgroupV1);
    }
    let swaps = host.swaps()?;
    if !swaps.is_empty() {
        if settings.fail_swap_on {
            return Err(SetupError::SwapOn(swaps.into_iter().map(|swap| swap.path).collect()));
        }
        warnings.extend(SetupWarning::of_swap(tmpfs_noswap_supported()));
    }
    if settings.cgroups_per_qos {
        if settings.cgroup_root.is_empty() {
            return Err(SetupError::NoCgroupRoot);
        }
        if !cgroups.exists(&settings.cgroup_root)? {
            return Err(SetupError::CgroupRootMissing(settings.cgroup_root.clone()));
        }
    }
    set_tunables(host, settings.protect_kernel_defaults)?;
    Ok(warnings)
}

fn set_tunables(host: &Host, protect: bool) -> Result<(), SetupError> {
    for (name, expected) in TUNABLES {
        let actual = host.read_sysctl(name)?;
        if actual == expected {
            continue;
        }
        if protect {
            return Err(SetupError::Tunable { name, expected, actual });
        }
        tracing::info!(sysctl = name, from = actual, to = expected, "kernel tunable set");
        host.write_sysctl(name, expected)?;
    }
    Ok(())
}
