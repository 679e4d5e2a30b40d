//! The processes of a cgroup.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::file_system::{CgroupError, child_directories, is_gone, read, write};

/// What killing a cgroup came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KillReport {
    /// How many processes were seen in it and signalled.
    pub killed: usize,
}

/// Ids of the processes in these directories and below.
pub(super) fn list(directories: &[PathBuf]) -> Result<BTreeSet<u32>, CgroupError> {
    let mut pids = BTreeSet::new();
    for directory in directories {
        collect(directory, &mut pids)?;
    }
    Ok(pids)
}

fn collect(directory: &Path, pids: &mut BTreeSet<u32>) -> Result<(), CgroupError> {
    match read(&directory.join("cgroup.procs")) {
        Ok(content) => pids.extend(content.lines().filter_map(|line| line.parse::<u32>().ok())),
        Err(CgroupError::Read { source, .. }) if is_gone(&source) => return Ok(()),
        // A threaded cgroup of version 2: its processes are listed above it.
        Err(CgroupError::Read { source, .. })
            if source.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    for child in child_directories(directory)? {
        collect(&child, pids)?;
    }
    Ok(())
}

/// Kills the processes in these directories, which are one cgroup's in all hierarchies.
pub(super) fn kill(directories: &[PathBuf], cgroup: &str) -> Result<KillReport, CgroupError> {
    let seen = list(directories)?;
    if seen.is_empty() {
        return Ok(KillReport::default());
    }
    // Kernels since 5.14 do it at once, and miss no child that is being forked.
    let at_once =
        directories.iter().filter(|directory| write(directory, "cgroup.kill", "1").is_ok()).count();
    if at_once == directories.len() {
        return Ok(KillReport { killed: seen.len() });
    }
    // A handle first, then a second look at the list: a pid that was used again meanwhile is not in
    // the cgroup, and the handle cannot mean another process later.
    let handles: Vec<(Pid, Option<OwnedFd>)> = seen
        .into_iter()
        .filter_map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw))
        .filter_map(|pid| match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Some((pid, Some(handle))),
            // Before Linux 5.3: the bare pid has to do.
            Err(Errno::NOSYS) => Some((pid, None)),
            Err(_) => None,
        })
        .collect();
    let still_there = list(directories)?;
    let mut report = KillReport::default();
    for (pid, handle) in handles {
        let number = pid.as_raw_nonzero().get().unsigned_abs();
        if !still_there.contains(&number) {
            continue;
        }
        let sent = match handle {
            Some(handle) => rustix::process::pidfd_send_signal(handle, Signal::KILL),
            None => rustix::process::kill_process(pid, Signal::KILL),
        };
        match sent {
            Ok(()) => report.killed += 1,
            Err(Errno::SRCH) => {}
            Err(errno) => {
                return Err(CgroupError::Kill {
                    pid: number,
                    cgroup: cgroup.to_owned(),
                    source: errno.into(),
                });
            }
        }
    }
    Ok(report)
}
