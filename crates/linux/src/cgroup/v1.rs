//! Cgroup v1: one hierarchy per controller, or per group of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rubelet_node_resources::{CgroupValues, PageSize};
use rustix::io::Errno;

use super::file_system::{
    CgroupError, child_directories, create_directory, hugepage_limits, pids_max, read, write,
};

/// One mounted hierarchy.
#[derive(Clone, Debug)]
pub(super) struct Hierarchy {
    /// Its controllers; a named hierarchy has its name (`systemd`).
    pub(super) controllers: BTreeSet<String>,
    /// Where it is mounted.
    pub(super) root: PathBuf,
}

impl Hierarchy {
    pub(super) fn controls(&self, controller: &str) -> bool {
        self.controllers.contains(controller)
    }

    /// Kubernetes looks at it to tell whether a cgroup exists; runtimes differ in the others.
    pub(super) fn matters(&self) -> bool {
        ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb", "systemd"]
            .iter()
            .any(|controller| self.controls(controller))
    }
}

/// The controllers among the options of a cgroup mount.
pub(super) fn controllers_of(options: &[String]) -> BTreeSet<String> {
    options
        .iter()
        .filter(|option| {
            let known_flag = matches!(
                option.as_str(),
                "rw" | "ro" | "xattr" | "noprefix" | "clone_children" | "cpuset_v2_mode" | "none"
            );
            !known_flag && !option.starts_with("release_agent=")
        })
        .map(|option| option.strip_prefix("name=").unwrap_or(option).to_owned())
        .collect()
}

pub(super) fn ensure(hierarchy: &Hierarchy, elements: &[&str]) -> Result<(), CgroupError> {
    let mut directory = hierarchy.root.clone();
    for element in elements {
        let parent = directory.clone();
        directory.push(element);
        create_directory(&directory)?;
        if hierarchy.controls("cpuset") {
            inherit_cpuset(&parent, &directory)?;
        }
    }
    Ok(())
}

/// A new cpuset is empty, and takes no process before it has CPUs and memory nodes.
fn inherit_cpuset(parent: &Path, directory: &Path) -> Result<(), CgroupError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if read(&directory.join(file))?.trim().is_empty() {
            write(directory, file, read(&parent.join(file))?.trim())?;
        }
    }
    Ok(())
}

pub(super) fn apply(
    hierarchy: &Hierarchy,
    directory: &Path,
    values: &CgroupValues,
    page_sizes: &[PageSize],
) -> Result<(), CgroupError> {
    if hierarchy.controls("cpu") {
        apply_cpu(directory, values)?;
    }
    if hierarchy.controls("memory")
        && let Some(limit) = values.memory_limit.filter(|limit| *limit != 0)
    {
        write(directory, "memory.limit_in_bytes", &limit.to_string())?;
    }
    if hierarchy.controls("pids")
        && let Some(limit) = values.pids_limit
    {
        write(directory, "pids.max", &pids_max(limit))?;
    }
    if hierarchy.controls("cpuset")
        && let Some(cpus) = &values.cpuset_cpus
    {
        write(directory, "cpuset.cpus", cpus)?;
    }
    if hierarchy.controls("hugetlb") {
        for (size, limit) in hugepage_limits(values, page_sizes) {
            write(directory, &format!("hugetlb.{size}.limit_in_bytes"), &limit.to_string())?;
            let reservations = format!("hugetlb.{size}.rsvd.limit_in_bytes");
            if directory.join(&reservations).exists() {
                write(directory, &reservations, &limit.to_string())?;
            }
        }
    }
    Ok(())
}

fn apply_cpu(directory: &Path, values: &CgroupValues) -> Result<(), CgroupError> {
    if let Some(shares) = values.cpu_shares {
        write(directory, "cpu.shares", &shares.to_string())?;
    }
    let write_period = || match values.cpu_period.filter(|period| *period != 0) {
        Some(period) => write(directory, "cpu.cfs_period_us", &period.to_string()),
        None => Ok(()),
    };
    let Some(quota) = values.cpu_quota.filter(|quota| *quota != 0) else { return write_period() };
    // The old quota over the new period may be more than the parent has: then the quota goes first.
    let quota_first = match write_period() {
        Err(CgroupError::Write { source, .. })
            if source.raw_os_error() == Some(Errno::INVAL.raw_os_error()) =>
        {
            true
        }
        result => {
            result?;
            false
        }
    };
    write(directory, "cpu.cfs_quota_us", &quota.to_string())?;
    if quota_first { write_period() } else { Ok(()) }
}

/// Thaws the cgroup and those below as far as it goes: what cannot be thawed shows up as busy when
/// it is removed.
pub(super) fn thaw(directory: &Path) {
    if let Err(error) = write(directory, "freezer.state", "THAWED") {
        tracing::debug!(cgroup = %directory.display(), %error, "cgroup not thawed");
    }
    for child in child_directories(directory).unwrap_or_default() {
        thaw(&child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_among_mount_options() {
        for (options, expected) in [
            (vec!["rw", "cpu", "cpuacct"], vec!["cpu", "cpuacct"]),
            (vec!["rw", "xattr", "name=systemd"], vec!["systemd"]),
            (vec!["rw", "cpuset", "noprefix", "release_agent=/x"], vec!["cpuset"]),
        ] {
            let options: Vec<String> = options.into_iter().map(str::to_owned).collect();
            assert_eq!(controllers_of(&options), expected.into_iter().map(str::to_owned).collect());
        }
    }
}
