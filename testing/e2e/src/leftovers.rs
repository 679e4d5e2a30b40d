//! The check that a run left nothing behind.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroups;
use crate::kubelet::KubeletProcess;
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

/// What is still on the node of pods that should be gone, one text for each: their directories,
/// logs, mounts and cgroups. Empty is good.
pub fn pod_leftovers(kubelet: &KubeletProcess) -> Vec<String> {
    let root = kubelet.root_dir();
    let mut found: Vec<String> = [root.join("pods"), kubelet.pod_logs()]
        .iter()
        .flat_map(|dir| entries(dir))
        .map(|entry| entry.display().to_string())
        .collect();
    // The directory of the links is shared with the kubelets before on the same runtime.
    let links = entries(&kubelet.runtime().dir().join("private/var-log/containers"));
    let ours = |link: &&PathBuf| {
        fs::read_link(link).is_ok_and(|target| target.starts_with(kubelet.pod_logs()))
    };
    found.extend(links.iter().filter(ours).map(|link| format!("link {}", link.display())));
    let init = kubelet.runtime().namespaces().init_pid();
    let mounts = fs::read_to_string(format!("/proc/{init}/mountinfo")).unwrap_or_default();
    let below = root.join("pods").display().to_string();
    found.extend(mounts.lines().filter(|m| m.contains(&below)).map(|m| format!("mount {m}")));
    let of_pod = |group: &&PathBuf| {
        group.file_name().is_some_and(|name| name.to_string_lossy().starts_with("pod"))
    };
    let groups = cgroups::groups(kubelet.runtime().cgroup());
    found.extend(groups.iter().filter(of_pod).map(|group| format!("cgroup {}", group.display())));
    found
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
