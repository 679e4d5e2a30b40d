//! A cgroup sub-tree of our own, in every hierarchy the machine has (v1, hybrid or v2).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use crate::wait::wait_for;

/// The mount points of all hierarchies.
pub(crate) fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    parse_hierarchies(&mounts)
}

fn parse_hierarchies(mountinfo: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = mountinfo
        .lines()
        .filter_map(|line| {
            let (mount, source) = line.split_once(" - ")?;
            let is_cgroup = matches!(source.split(' ').next(), Some("cgroup" | "cgroup2"));
            is_cgroup.then(|| PathBuf::from(mount.split(' ').nth(4).unwrap_or_default()))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Makes the group `name` at the root of every hierarchy.
pub(crate) fn create(name: &str) -> anyhow::Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(name);
        match fs::create_dir(&group) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", group.display()));
            }
        }
        // A cpuset of v1 is empty until it is told otherwise, and then no process can join.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (above, own) = (hierarchy.join(file), group.join(file));
            if above.exists() && own.exists() {
                fs::read(&above)
                    .and_then(|value| fs::write(&own, value))
                    .with_context(|| format!("cannot set {}", own.display()))?;
            }
        }
        // In v2 a controller reaches a group's children only when the group passes it on.
        if let Ok(controllers) = fs::read_to_string(group.join("cgroup.controllers")) {
            for controller in controllers.split_whitespace() {
                let _ = fs::write(group.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
    }
    Ok(())
}

/// Every group of the sub-tree `name`, children before parents.
pub(crate) fn groups(name: &str) -> Vec<PathBuf> {
    fn visit(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                visit(&entry.path(), found);
            }
        }
        found.push(dir.to_owned());
    }
    let mut found = Vec::new();
    for root in hierarchies().iter().map(|hierarchy| hierarchy.join(name)) {
        if root.is_dir() {
            visit(&root, &mut found);
        }
    }
    found
}

/// The processes in a group, as ids of our own process namespace.
pub(crate) fn processes(group: &Path) -> Vec<u32> {
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid != 0).collect()
}

/// Ends every process in the sub-tree `name` and removes it.
pub(crate) fn remove(name: &str) -> anyhow::Result<()> {
    assert!(!name.is_empty() && !name.contains('/'), "one group at the root, not the root itself");
    wait_for(&format!("the cgroup {name} to go"), Duration::from_secs(60), || {
        let mut problem = None;
        for group in groups(name) {
            processes(&group).into_iter().for_each(crate::namespaces::kill);
            if let Err(error) = fs::remove_dir(&group)
                && error.kind() != io::ErrorKind::NotFound
            {
                problem = Some(format!("{}: {error}", group.display()));
            }
        }
        problem.map_or(Ok(()), Err)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let text = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:3 - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw";
        let expected =
            [PathBuf::from("/sys/fs/cgroup/cpu"), PathBuf::from("/sys/fs/cgroup/unified")];
        assert_eq!(parse_hierarchies(text), expected);
    }
}
