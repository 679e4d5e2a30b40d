//! What the node itself adds to the security of containers.

use std::fs;
use std::path::Path;

/// `f_type` of selinuxfs.
const SELINUX_MAGIC: u32 = 0xf97c_ff8c;

/// What the node itself adds to the security of containers. It does not change while it runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeSecurity {
    /// Files that tell of the load of the whole machine, and so of other tenants.
    pub(crate) masked_paths: Vec<String>,
    /// SELinux is on, so that relabelling means something.
    pub(crate) selinux_enabled: bool,
}

impl NodeSecurity {
    /// Looks at this node. Does file I/O.
    pub(crate) fn observe() -> Self {
        Self {
            masked_paths: thermal_throttle_paths(Path::new("/sys/devices/system/cpu")),
            selinux_enabled: selinux_enabled(),
        }
    }
}

/// The `thermal_throttle` directories beneath `cpus`, by number of the CPU.
fn thermal_throttle_paths(cpus: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(cpus) else { return Vec::new() };
    let mut found: Vec<(u32, String)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("cpu")?.parse().ok()?;
            let path = entry.path().join("thermal_throttle");
            path.exists().then(|| (number, path.to_string_lossy().into_owned()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

fn selinux_enabled() -> bool {
    let mounted = rustix::fs::statfs("/sys/fs/selinux")
        .is_ok_and(|found| u32::try_from(found.f_type).is_ok_and(|kind| kind == SELINUX_MAGIC));
    // Without a policy everything is labelled `kernel`.
    mounted
        && fs::read_to_string("/proc/self/attr/current")
            .is_ok_and(|label| !matches!(label.trim_end_matches('\0'), "" | "kernel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_files_are_found_by_number_of_their_cpu() {
        let root = tempfile::tempdir().unwrap();
        for dir in
            ["cpu10/thermal_throttle", "cpu2/thermal_throttle", "cpu3", "cpufreq/thermal_throttle"]
        {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let found = thermal_throttle_paths(root.path());
        let expected = ["cpu2", "cpu10"]
            .map(|cpu| root.path().join(cpu).join("thermal_throttle").display().to_string());
        assert_eq!(found, expected);
    }
}
