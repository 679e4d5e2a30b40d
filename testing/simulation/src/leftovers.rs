//! What a simulation has outside of itself: a directory and a cgroup, both named after its process,
//! so that whoever comes later can tell whose they are.

use std::fs;
use std::path::{Path, PathBuf};

use rubelet_linux::Host;
use rubelet_linux::cgroup::CgroupFs;

const PREFIX: &str = "rubelet-simulation-";

/// The directory of the simulation in process `pid`. It is in memory, where there is such a file
/// system: a history writes thousands of small files. Its name is not random, as every process of
/// one seed draws the same numbers, and has one length.
pub(crate) fn directory(pid: u32) -> PathBuf {
    place_of_directories().join(format!("{PREFIX}{pid:08}"))
}

/// The cgroup of the simulation in process `pid`, in every hierarchy.
pub(crate) fn cgroup(pid: u32) -> String {
    format!("/{PREFIX}{pid:08}")
}

fn place_of_directories() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Removes whatever the simulation in process `pid` has left. To be called when it has ended, or by
/// itself. Says what could not be removed.
#[must_use]
pub fn sweep(pid: u32) -> Vec<String> {
    let mut left = Vec::new();
    let directory = directory(pid);
    if let Err(error) = fs::remove_dir_all(&directory)
        && directory.exists()
    {
        left.push(format!("cannot remove {}: {error}", directory.display()));
    }
    // Without a cgroup file system there are no cgroups.
    if let Ok(tree) = CgroupFs::detect(&Host::system())
        && let Err(error) = tree.destroy(&cgroup(pid))
    {
        left.push(format!("cannot remove the cgroup {}: {error}", cgroup(pid)));
    }
    left
}

/// Sweeps after simulations that have ended without doing it themselves, as by SIGKILL together with
/// those who had started them.
#[must_use]
pub fn sweep_abandoned() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(place_of_directories())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    if let Ok(tree) = CgroupFs::detect(&Host::system()) {
        names.extend(tree.children("/").unwrap_or_default());
    }
    let mut pids: Vec<u32> = names
        .iter()
        .filter_map(|name| name.strip_prefix(PREFIX)?.parse().ok())
        // Where the number has been given to another process it waits for the end of that one.
        .filter(|pid| !Path::new(&format!("/proc/{pid}")).exists())
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().flat_map(sweep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_left_is_swept_when_it_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        fs::create_dir_all(directory(pid).join("host/proc")).unwrap();
        let tree = CgroupFs::detect(&Host::system());
        // Only root may, and not everywhere.
        let made = tree
            .as_ref()
            .is_ok_and(|tree| tree.ensure(&format!("{}/kubepods/besteffort", cgroup(pid))).is_ok());
        assert!(sweep_abandoned().is_empty());
        assert!(!directory(pid).exists());
        assert!(!made || !tree.unwrap().exists_partly(&cgroup(pid)).unwrap());
        assert!(sweep(pid).is_empty());
    }
}
