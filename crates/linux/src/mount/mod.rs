//! The mount table, and mounting.

mod format;
mod helper;
mod mounting;
mod table;

pub use format::{FormatError, detach_loop_devices, format_and_mount};
pub use helper::{MountHelperError, mount_with_helper};
pub use mounting::{
    HugetlbfsOptions, MountError, TmpfsOptions, UnmountError, bind_mount, ensure_shared,
    is_mount_point, mount_hugetlbfs, mount_tmpfs, remount_bind_read_only, tmpfs_noswap_supported,
    unmount,
};
pub use table::{Mount, MountTable, MountTableError};
