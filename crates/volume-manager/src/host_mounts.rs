use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rubelet_linux::mount::{
    HugetlbfsOptions, Mount, MountTable, TmpfsOptions, bind_mount, detach_loop_devices,
    format_and_mount, is_mount_point, mount_hugetlbfs, mount_tmpfs, mount_with_helper,
    remount_bind_read_only, tmpfs_noswap_supported, unmount,
};
use rubelet_linux::path::{prepare_sub_path, remove_empty_tree, remove_tree_one_filesystem};

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};

use crate::port::{MountPoint, MountPort};

/// By which `statfs(2)` tells a tmpfs.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The mounts of the mount namespace that the kubelet runs in.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostMounts;

impl MountPort for HostMounts {
    fn mounts_beneath(&self, directory: &Path) -> io::Result<Vec<MountPoint>> {
        let table = MountTable::read().map_err(other)?;
        let beneath =
            table.mounts().iter().filter(|mount| mount.mount_point.starts_with(directory));
        Ok(beneath.map(mount_point).collect())
    }

    fn mounted_at(&self, directory: &Path) -> io::Result<Option<MountPoint>> {
        if !is_mount_point(directory).map_err(other)? {
            return Ok(None);
        }
        if rustix::fs::statfs(directory)?.f_type == TMPFS_MAGIC {
            let flags = rustix::fs::statvfs(directory)?.f_flag;
            return Ok(Some(MountPoint {
                path: directory.to_owned(),
                fs_type: "tmpfs".to_owned(),
                page_size_bytes: None,
                read_only: flags.contains(StatVfsMountFlags::RDONLY),
            }));
        }
        let mounts = self.mounts_beneath(directory)?;
        Ok(mounts.into_iter().rfind(|mount| mount.path == directory))
    }

    fn mount_tmpfs(&self, target: &Path, size_bytes: Option<u64>) -> io::Result<()> {
        let options =
            TmpfsOptions { size: size_bytes, noswap: tmpfs_noswap_supported(), mode: None };
        mount_tmpfs(target, &options).map_err(other)
    }

    fn mount_huge_pages(&self, target: &Path, page_size_bytes: u64) -> io::Result<()> {
        let options = HugetlbfsOptions { page_size: page_size_bytes, size: None };
        mount_hugetlbfs(target, &options).map_err(other)
    }

    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()> {
        if !is_mount_point(target).map_err(other)? {
            let open = |path: &Path, follow: OFlags| {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | follow;
                rustix::fs::open(path, flags, Mode::empty())
            };
            // The owner of the node may have put a link where the volume is; nobody may where it goes.
            let (from, to) = (open(source, OFlags::empty())?, open(target, OFlags::NOFOLLOW)?);
            bind_mount(from.as_fd(), to.as_fd(), target).map_err(other)?;
        }
        if read_only { remount_bind_read_only(target).map_err(other) } else { Ok(()) }
    }

    fn mount_file_system(
        &self,
        source: &str,
        target: &Path,
        fs_type: &str,
        options: &[String],
    ) -> io::Result<()> {
        mount_with_helper(source, target, fs_type, options).map_err(other)
    }

    fn format_and_mount(
        &self,
        device: &Path,
        target: &Path,
        fs_type: &str,
        options: &[String],
    ) -> io::Result<()> {
        format_and_mount(device, target, fs_type, options).map_err(other)
    }

    fn detach_loop_devices(&self, backing: &Path) -> io::Result<()> {
        detach_loop_devices(backing)
    }

    fn other_mounts_of(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let path = path.canonicalize()?;
        MountTable::read().and_then(|table| table.other_mounts_of(&path)).map_err(other)
    }

    fn prepare_sub_path(
        &self,
        volume: &Path,
        sub_path: &Path,
        pod_directory: &Path,
        target: &Path,
    ) -> io::Result<()> {
        prepare_sub_path(volume, sub_path, pod_directory, target).map(|_| ()).map_err(other)
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        unmount(target).map_err(other)
    }

    fn remove_tree(&self, path: &Path) -> io::Result<()> {
        remove_tree_one_filesystem(path).map_err(other)
    }

    fn remove_empty_tree(&self, path: &Path) -> io::Result<()> {
        remove_empty_tree(path).map_err(other)
    }
}

fn other(error: impl Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

fn mount_point(mount: &Mount) -> MountPoint {
    let page_size = mount.super_options.iter().find_map(|option| option.strip_prefix("pagesize="));
    MountPoint {
        path: mount.mount_point.clone(),
        fs_type: mount.file_system.clone(),
        page_size_bytes: page_size.and_then(parse_page_size),
        read_only: mount.options.iter().chain(&mount.super_options).any(|option| option == "ro"),
    }
}

/// Reads a page size as the mount table shows it: `2M`, `1G`, `64K`, or plain bytes.
fn parse_page_size(text: &str) -> Option<u64> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match &text[digits_end..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    text[..digits_end].parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_sizes_are_read_in_all_units() {
        for (text, bytes) in [
            ("2M", Some(2 << 20)),
            ("1G", Some(1 << 30)),
            ("64K", Some(64 << 10)),
            ("4096", Some(4096)),
            ("M", None),
            ("2T", None),
            ("", None),
            ("99999999999999G", None),
        ] {
            assert_eq!(parse_page_size(text), bytes, "{text}");
        }
    }
}
