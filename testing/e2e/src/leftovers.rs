//! The check that a run left nothing behind.

use std::fs;

use crate::cgroups;
use crate::owner::Owner;

/// Everything that is still there of a run that should be gone, one text for each. Empty is good.
pub fn leftovers(owner: &Owner) -> Vec<String> {
    let mut found = Vec::new();
    let dir = owner.dir.display().to_string();
    if owner.dir.exists() {
        found.push(format!("directory {dir}"));
    }
    found.extend(
        cgroups::groups(&owner.cgroup).iter().map(|group| format!("cgroup {}", group.display())),
    );
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    found.extend(mounts.lines().filter(|line| line.contains(&dir)).map(|m| format!("mount {m}")));
    if owner.is_running() {
        found.push("the namespaces' first process".to_owned());
    }
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(&dir) {
            found.push(format!("process {} {command}", entry.file_name().display()));
        }
    }
    found
}
