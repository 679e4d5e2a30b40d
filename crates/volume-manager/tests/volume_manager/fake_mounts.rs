use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};

use rubelet_volume_manager::{MountPoint, MountPort};

/// A mount table in memory over real directories. It keeps the rules of the kernel that matter
/// here: mounts stack, a busy one stays, and a tree with a mount in it is not removed.
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeMounts(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    mounts: Vec<MountPoint>,
    /// What is bound where, by device and inode.
    bound: BTreeMap<PathBuf, (u64, u64)>,
    /// Options of each tmpfs.
    sizes: BTreeMap<PathBuf, Option<u64>>,
    /// Unmounting fails with this.
    unmount_error: Option<io::ErrorKind>,
    /// Mounting fails with this.
    mount_error: Option<io::ErrorKind>,
    mount_attempts: usize,
    /// Mounting waits for a message, or for the sender to go away.
    hang: Option<mpsc::Receiver<()>>,
}

impl FakeMounts {
    pub(crate) fn fail_unmount(&self, error: Option<io::ErrorKind>) {
        self.state().unmount_error = error;
    }

    pub(crate) fn fail_mount(&self, error: Option<io::ErrorKind>) {
        self.state().mount_error = error;
    }

    /// The next mount hangs until the sender is dropped.
    pub(crate) fn hang_next_mount(&self) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        self.state().hang = Some(released);
        release
    }

    pub(crate) fn mount_attempts(&self) -> usize {
        self.state().mount_attempts
    }

    pub(crate) fn tmpfs_size(&self, path: &Path) -> Option<u64> {
        self.state().sizes.get(path).copied().flatten()
    }

    /// Somebody else mounts something.
    pub(crate) fn mount(&self, path: &Path, fs_type: &str) {
        let mount = MountPoint {
            path: path.to_owned(),
            fs_type: fs_type.to_owned(),
            page_size_bytes: None,
            read_only: false,
        };
        self.state().mounts.push(mount);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn new_mount(&self, mount: MountPoint) -> io::Result<()> {
        let hang = {
            let mut state = self.state();
            state.mount_attempts += 1;
            state.hang.take()
        };
        if let Some(released) = hang {
            let _ = released.recv();
        }
        let mut state = self.state();
        if let Some(error) = state.mount_error {
            return Err(error.into());
        }
        if !mount.path.is_dir() {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.mounts.push(mount);
        Ok(())
    }

    fn refuse_mounts(&self, path: &Path) -> io::Result<()> {
        match self.mounts_beneath(path)?.first() {
            Some(mount) => Err(io::Error::other(format!("{} is mounted", mount.path.display()))),
            None => Ok(()),
        }
    }
}

impl MountPort for FakeMounts {
    fn mounts_beneath(&self, directory: &Path) -> io::Result<Vec<MountPoint>> {
        let state = self.state();
        Ok(state.mounts.iter().filter(|m| m.path.starts_with(directory)).cloned().collect())
    }

    fn mount_tmpfs(&self, target: &Path, size_bytes: Option<u64>) -> io::Result<()> {
        self.new_mount(MountPoint {
            path: target.to_owned(),
            fs_type: "tmpfs".to_owned(),
            page_size_bytes: None,
            read_only: false,
        })?;
        self.state().sizes.insert(target.to_owned(), size_bytes);
        Ok(())
    }

    fn mount_huge_pages(&self, target: &Path, page_size_bytes: u64) -> io::Result<()> {
        self.new_mount(MountPoint {
            path: target.to_owned(),
            fs_type: "hugetlbfs".to_owned(),
            page_size_bytes: Some(page_size_bytes),
            read_only: false,
        })
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
        let metadata = fs::metadata(source)?;
        self.new_mount(MountPoint {
            path: target.to_owned(),
            fs_type: "ext4".to_owned(),
            page_size_bytes: None,
            read_only,
        })?;
        self.state().bound.insert(target.to_owned(), (metadata.dev(), metadata.ino()));
        Ok(())
    }

    fn mount_file_system(
        &self,
        _source: &str,
        target: &Path,
        fs_type: &str,
        options: &[String],
    ) -> io::Result<()> {
        self.new_mount(MountPoint {
            path: target.to_owned(),
            fs_type: fs_type.to_owned(),
            page_size_bytes: None,
            read_only: options.iter().any(|option| option == "ro"),
        })
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

    fn other_mounts_of(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let metadata = fs::metadata(path)?;
        let identity = (metadata.dev(), metadata.ino());
        let bound = self.state().bound.clone();
        Ok(bound.into_iter().filter(|(_, found)| *found == identity).map(|(at, _)| at).collect())
    }

    fn prepare_sub_path(
        &self,
        volume: &Path,
        sub_path: &Path,
        pod_directory: &Path,
        target: &Path,
    ) -> io::Result<()> {
        let volume = fs::canonicalize(volume)?;
        let source = volume.join(sub_path);
        if !source.exists() {
            fs::create_dir_all(&source)?;
            fs::set_permissions(&source, fs::metadata(&volume)?.permissions())?;
        }
        let source = fs::canonicalize(&source)?;
        if !source.starts_with(&volume) {
            return Err(io::Error::other("leads out of the volume"));
        }
        let metadata = fs::metadata(&source)?;
        let identity = (metadata.dev(), metadata.ino());
        let target = pod_directory.join(target);
        let mut state = self.state();
        if state.mounts.iter().any(|mount| mount.path == target) {
            if state.bound.get(&target) == Some(&identity) {
                return Ok(());
            }
            state.mounts.retain(|mount| mount.path != target);
        }
        fs::create_dir_all(&target)?;
        state.bound.insert(target.clone(), identity);
        state.mounts.push(MountPoint {
            path: target,
            fs_type: "ext4".to_owned(),
            page_size_bytes: None,
            read_only: false,
        });
        Ok(())
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        let mut state = self.state();
        let Some(index) = state.mounts.iter().rposition(|mount| mount.path == target) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        if let Some(error) = state.unmount_error {
            return Err(error.into());
        }
        state.mounts.remove(index);
        state.bound.remove(target);
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        self.refuse_mounts(path)?;
        let removed = match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn remove_empty_tree(&self, path: &Path) -> io::Result<()> {
        self.refuse_mounts(path)?;
        refuse_content(path)?;
        self.remove_tree(path)
    }
}

fn refuse_content(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => {
            for entry in fs::read_dir(path)? {
                refuse_content(&entry?.path())?;
            }
            Ok(())
        }
        Ok(metadata) if metadata.is_file() && metadata.len() == 0 => Ok(()),
        Ok(_) => Err(io::Error::other(format!("{} is not empty", path.display()))),
    }
}
