//! The mounts of a simulated node: a table, and directories that stand for what is mounted.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rubelet_linux::path::{remove_empty_tree, remove_tree_one_filesystem};
use rubelet_volume_manager::{MountPoint, MountPort};

/// Lies in every tmpfs. Whoever deletes beneath a mount point deletes it too.
const CANARY: &str = ".canary";

#[derive(Debug, Default)]
struct Table {
    mounts: Vec<MountPoint>,
    violations: Vec<String>,
}

/// The mount table of the node. It outlives kubelets.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeMounts(Arc<Mutex<Table>>);

impl NodeMounts {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was done to mounts and must never be.
    pub(crate) fn violations(&self) -> Vec<String> {
        std::mem::take(&mut self.table().violations)
    }

    /// Where something is mounted.
    pub(crate) fn mount_points(&self) -> Vec<PathBuf> {
        self.table().mounts.iter().map(|mount| mount.path.clone()).collect()
    }

    /// Nothing is mounted any more, and what was in memory is lost.
    pub(crate) fn reboot(&self) {
        let mounts = std::mem::take(&mut self.table().mounts);
        for mount in mounts {
            empty(&mount.path);
        }
    }
}

/// The port of one kubelet. Whoever wants to know whether anything of that kubelet is left counts
/// the references to it.
#[derive(Debug)]
pub(crate) struct LifeMounts {
    node: NodeMounts,
    /// Host paths that running containers use.
    in_use: InUse,
}

/// Tells which paths running containers have mounted.
#[derive(Clone)]
pub(crate) struct InUse(pub(crate) Arc<dyn Fn() -> Vec<(String, PathBuf)> + Send + Sync>);

impl std::fmt::Debug for InUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InUse")
    }
}

impl LifeMounts {
    pub(crate) fn new(node: NodeMounts, in_use: InUse) -> Self {
        Self { node, in_use }
    }

    fn mount(&self, target: &Path, fs_type: &str, page_size_bytes: Option<u64>) -> io::Result<()> {
        if !target.is_dir() {
            return Err(io::ErrorKind::NotFound.into());
        }
        if fs_type == "tmpfs" {
            fs::write(target.join(CANARY), "")?;
        }
        let path = target.to_owned();
        self.node.table().mounts.push(MountPoint {
            path,
            fs_type: fs_type.to_owned(),
            page_size_bytes,
            read_only: false,
        });
        Ok(())
    }

    fn check_no_mount_beneath(&self, path: &Path) -> io::Result<()> {
        let table = self.node.table();
        match table.mounts.iter().find(|mount| mount.path.starts_with(path)) {
            None => Ok(()),
            Some(mount) => Err(io::Error::other(format!(
                "{} is mounted beneath {}",
                mount.path.display(),
                path.display()
            ))),
        }
    }
}

impl MountPort for LifeMounts {
    fn mounts_beneath(&self, directory: &Path) -> io::Result<Vec<MountPoint>> {
        let table = self.node.table();
        Ok(table.mounts.iter().filter(|m| m.path.starts_with(directory)).cloned().collect())
    }

    fn mount_tmpfs(&self, target: &Path, _size_bytes: Option<u64>) -> io::Result<()> {
        self.mount(target, "tmpfs", None)
    }

    fn mount_huge_pages(&self, target: &Path, page_size_bytes: u64) -> io::Result<()> {
        self.mount(target, "hugetlbfs", Some(page_size_bytes))
    }

    fn bind(&self, _source: &Path, target: &Path, _read_only: bool) -> io::Result<()> {
        self.mount(target, "bind", None)
    }

    fn mount_file_system(
        &self,
        _source: &str,
        target: &Path,
        fs_type: &str,
        _options: &[String],
    ) -> io::Result<()> {
        self.mount(target, fs_type, None)
    }

    fn format_and_mount(
        &self,
        _device: &Path,
        target: &Path,
        fs_type: &str,
        options: &[String],
    ) -> io::Result<()> {
        self.mount_file_system("device", target, fs_type, options)
    }

    fn detach_loop_devices(&self, _backing: &Path) -> io::Result<()> {
        Ok(())
    }

    fn other_mounts_of(&self, _path: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn prepare_sub_path(
        &self,
        volume: &Path,
        sub_path: &Path,
        pod_directory: &Path,
        target: &Path,
    ) -> io::Result<()> {
        let target = &pod_directory.join(target);
        fs::create_dir_all(volume.join(sub_path))?;
        fs::create_dir_all(target)?;
        if self.node.table().mounts.iter().any(|mount| mount.path == *target) {
            return Ok(());
        }
        self.mount(target, "bind", None)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        for (container, path) in (self.in_use.0)() {
            if path.starts_with(target) {
                let text = format!(
                    "I8: {} is unmounted under the running container {container}",
                    target.display()
                );
                self.node.table().violations.push(text);
            }
        }
        let mut table = self.node.table();
        let Some(index) = table.mounts.iter().rposition(|mount| mount.path == target) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mount = table.mounts.remove(index);
        if mount.fs_type == "tmpfs" && !target.join(CANARY).exists() {
            let text = format!("I12: something deleted beneath the mount {}", target.display());
            table.violations.push(text);
        }
        empty(target);
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.check_no_mount_beneath(path)?;
        remove_tree_one_filesystem(path).map_err(io::Error::other)
    }

    fn remove_empty_tree(&self, path: &Path) -> io::Result<()> {
        self.check_no_mount_beneath(path)?;
        remove_empty_tree(path).map_err(io::Error::other)
    }
}

/// What was mounted is seen no more.
fn empty(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        // A file or an empty directory: nothing else is put into a made-up file system.
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
}
