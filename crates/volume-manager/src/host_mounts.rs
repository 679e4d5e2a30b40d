use std::error::Error;
use std::io;
use std::path::Path;

use rubelet_linux::mount::{
    HugetlbfsOptions, Mount, MountTable, TmpfsOptions, mount_hugetlbfs, mount_tmpfs,
    tmpfs_noswap_supported, unmount,
};
use rubelet_linux::path::{prepare_sub_path, remove_empty_tree, remove_tree_one_filesystem};

use crate::port::{MountPoint, MountPort};

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

    fn mount_tmpfs(&self, target: &Path, size_bytes: Option<u64>) -> io::Result<()> {
        let options =
            TmpfsOptions { size: size_bytes, noswap: tmpfs_noswap_supported(), mode: None };
        mount_tmpfs(target, &options).map_err(other)
    }

    fn mount_huge_pages(&self, target: &Path, page_size_bytes: u64) -> io::Result<()> {
        let options = HugetlbfsOptions { page_size: page_size_bytes, size: None };
        mount_hugetlbfs(target, &options).map_err(other)
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
