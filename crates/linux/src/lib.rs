//! The Linux edge: cgroups, mounts, paths opened beneath a directory, procfs, rlimits.
//!
//! What: synchronous functions over system calls, short enough for any thread except where their
//! documentation says that they can block, and the systemd client, which is asynchronous. Roots
//! (of procfs, of the cgroup hierarchies) are arguments, so that tests can bring their own.
//! Not here: any decision about pods, and any state that outlives a call.

pub mod cgroup;
mod host;
mod lock_file;
pub mod mount;
mod network;
pub mod path;
mod process;
#[cfg(test)]
mod test_machine;
#[cfg(test)]
mod test_namespace;

pub use host::{Host, HostError, HugePagePool, KernelVersion, Swap};
pub use lock_file::{LockFile, LockFileError};
pub use network::{DefaultRoute, InterfaceAddress};
pub use process::{
    ProcessError, ProcessUsage, raise_open_file_limit, read_oom_score_adj, write_oom_score_adj,
    write_own_oom_score_adj,
};
