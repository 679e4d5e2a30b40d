use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat};
use tokio::time::Instant;

/// When the group of a volume's files is changed (`fsGroupChangePolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FsGroupChangePolicy {
    /// At every set-up.
    Always,
    /// Only when the volume's root does not have it yet.
    OnRootMismatch,
}

impl FsGroupChangePolicy {
    pub(crate) fn parse(policy: Option<&str>) -> Self {
        match policy {
            Some("OnRootMismatch") => Self::OnRootMismatch,
            _ => Self::Always,
        }
    }
}

/// Read and write for the group.
const GROUP_ACCESS: u32 = 0o660;
/// A directory must also be searchable, and hand its group on to what is made in it.
const DIRECTORY_ACCESS: u32 = 0o2110;

/// What is said about a change of many files, and when: first after 30 s, then every minute.
const FIRST_REPORT: Duration = Duration::from_secs(30);
const REPORT_PERIOD: Duration = Duration::from_secs(60);

/// Tells the owner of a pod that giving its volume to a group takes long.
pub(crate) struct OwnershipProgress<'a> {
    /// The volume, as messages name it.
    volume: String,
    tell: &'a dyn Fn(String),
    files: u64,
    since: Instant,
    reports: u32,
}

impl<'a> OwnershipProgress<'a> {
    /// Begins to count; what is due to be said goes to `tell`.
    pub(crate) fn new(volume: String, now: Instant, tell: &'a dyn Fn(String)) -> Self {
        Self { volume, tell, files: 0, since: now, reports: 0 }
    }

    /// One more file is done.
    fn count(&mut self, now: Instant) {
        self.files += 1;
        if now.duration_since(self.since) < FIRST_REPORT + REPORT_PERIOD * self.reports {
            return;
        }
        let Self { volume, files, .. } = self;
        (self.tell)(if self.reports == 0 {
            format!(
                "Setting volume ownership for {volume} is taking longer than expected, consider \
                 using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/\
                 security-context/#configure-volume-permission-and-ownership-change-policy-for-pods"
            )
        } else {
            format!("Setting volume ownership for {volume}, processed {files} files.")
        });
        self.reports += 1;
    }
}

/// Gives everything in a writable volume to the group `gid`, with the right to read and write.
///
/// The root comes last, so that a walk which was cut short does not look complete. Links are
/// never followed, be they swapped in while this runs: every object is held by a descriptor.
pub(crate) fn set_group_ownership(
    root: &Path,
    gid: u32,
    policy: FsGroupChangePolicy,
    progress: &mut OwnershipProgress<'_>,
) -> io::Result<()> {
    let root = open(CWD, root, OFlags::PATH)?;
    let stat = rustix::fs::fstat(&root)?;
    if policy == FsGroupChangePolicy::OnRootMismatch && matches(&stat, gid) {
        return Ok(());
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return set_group(&root, &stat, gid);
    }
    // A stack of its own: how deep directories nest is not ours to decide.
    let mut stack = vec![Level::open(root, stat)?];
    while let Some(level) = stack.last_mut() {
        let Some(entry) = level.entries.read() else {
            set_group(&level.directory, &level.stat, gid)?;
            progress.count(Instant::now());
            stack.pop();
            continue;
        };
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let child = match open(&level.directory, CString::from(name).as_c_str(), OFlags::PATH) {
            Ok(child) => child,
            // Deleted since the directory was read.
            Err(rustix::io::Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let stat = rustix::fs::fstat(&child)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            stack.push(Level::open(child, stat)?);
        } else {
            set_group(&child, &stat, gid)?;
            progress.count(Instant::now());
        }
    }
    Ok(())
}

struct Level {
    directory: OwnedFd,
    stat: Stat,
    entries: Dir,
}

impl Level {
    fn open(directory: OwnedFd, stat: Stat) -> io::Result<Self> {
        let readable = open(&directory, c".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Self { directory, stat, entries: Dir::new(readable)? })
    }
}

fn open(at: impl AsFd, path: impl rustix::path::Arg, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(at, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn set_group(object: &OwnedFd, stat: &Stat, gid: u32) -> io::Result<()> {
    rustix::fs::chownat(object, c"", None, Some(Gid::from_raw(gid)), AtFlags::EMPTY_PATH)?;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    if file_type == FileType::Symlink {
        // The mode of a link means nothing, and to set it would mean what it points to.
        return Ok(());
    }
    let wanted = (stat.st_mode & 0o7777) | access(file_type);
    // A path descriptor takes no fchmod; its entry in procfs leads to the object itself.
    fs::set_permissions(
        format!("/proc/self/fd/{}", object.as_raw_fd()),
        Permissions::from_mode(wanted),
    )
}

fn access(file_type: FileType) -> u32 {
    if file_type == FileType::Directory { GROUP_ACCESS | DIRECTORY_ACCESS } else { GROUP_ACCESS }
}

/// The root is a directory that has group and mode already.
fn matches(root: &Stat, gid: u32) -> bool {
    let access = access(FileType::Directory);
    FileType::from_raw_mode(root.st_mode) == FileType::Directory
        && root.st_gid == gid
        && root.st_mode & access == access
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    fn give(root: &Path, gid: u32, policy: FsGroupChangePolicy) -> io::Result<()> {
        let mut progress = OwnershipProgress::new("v".to_owned(), Instant::now(), &|_| ());
        set_group_ownership(root, gid, policy, &mut progress)
    }

    #[test]
    fn who_waits_long_is_told_why() {
        let told = std::cell::RefCell::new(Vec::new());
        let tell = |message: String| told.borrow_mut().push(message);
        let since = Instant::now();
        let mut progress = OwnershipProgress::new("u1/volumes/v".to_owned(), since, &tell);
        for seconds in [0, 29, 30, 31, 89, 90, 149, 150] {
            progress.count(since + Duration::from_secs(seconds));
        }
        let told = told.borrow();
        let [first, second, third] = told.as_slice() else { panic!("{told:?}") };
        assert!(first.starts_with("Setting volume ownership for u1/volumes/v is taking longer"));
        assert_eq!(second, "Setting volume ownership for u1/volumes/v, processed 6 files.");
        assert_eq!(third, "Setting volume ownership for u1/volumes/v, processed 8 files.");
    }

    fn facts(path: &Path) -> (u32, u32) {
        let metadata = fs::symlink_metadata(path).unwrap();
        (metadata.gid(), metadata.mode() & 0o7777)
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_group_gets_everything_but_what_links_point_to() {
        let temp = tempfile::tempdir().unwrap();
        let outside = temp.path().join("outside");
        fs::write(&outside, "").unwrap();
        set_mode(&outside, 0o600);
        let root = temp.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        for directory in ["", "a", "a/b"] {
            set_mode(&root.join(directory), 0o700);
        }
        fs::write(root.join("a/b/file"), "").unwrap();
        set_mode(&root.join("a/b/file"), 0o604);
        symlink(&outside, root.join("a/link")).unwrap();

        give(&root, 4321, FsGroupChangePolicy::Always).unwrap();
        for directory in ["", "a", "a/b"] {
            assert_eq!(facts(&root.join(directory)), (4321, 0o2770), "{directory:?}");
        }
        assert_eq!(facts(&root.join("a/b/file")), (4321, 0o664));
        assert_eq!(facts(&root.join("a/link")).0, 4321);
        assert_eq!(facts(&outside).1, 0o600);
        assert_ne!(facts(&outside).0, 4321);
    }

    #[test]
    fn on_root_mismatch_looks_at_the_root_alone() {
        let temp = tempfile::tempdir().unwrap();
        let (root, file) = (temp.path().join("root"), temp.path().join("root/file"));
        fs::create_dir(&root).unwrap();
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o600);
        let policy = FsGroupChangePolicy::OnRootMismatch;
        rustix::fs::chown(&root, None, Some(Gid::from_raw(77))).unwrap();
        set_mode(&root, 0o2770);
        give(&root, 77, policy).unwrap();
        assert_eq!(facts(&file).1, 0o600, "the root has all, so nothing is done");
        for mode in [0o770, 0o2760, 0o2750] {
            set_mode(&file, 0o600);
            set_mode(&root, mode);
            give(&root, 77, policy).unwrap();
            assert_eq!(facts(&file), (77, 0o660), "{mode:o}");
            assert_eq!(facts(&root), (77, 0o2770), "{mode:o}");
        }
        give(&root, 78, policy).unwrap();
        assert_eq!(facts(&file).0, 78);
    }

    #[test]
    fn depth_is_no_danger() {
        let temp = tempfile::tempdir().unwrap();
        let mut path = temp.path().to_owned();
        for _ in 0..150 {
            path.push("d");
        }
        fs::create_dir_all(&path).unwrap();
        give(temp.path(), 5, FsGroupChangePolicy::Always).unwrap();
        assert_eq!(facts(&path).0, 5);
    }

    #[test]
    fn policies_are_read() {
        for (text, expected) in [
            (None, FsGroupChangePolicy::Always),
            (Some("Always"), FsGroupChangePolicy::Always),
            (Some("OnRootMismatch"), FsGroupChangePolicy::OnRootMismatch),
        ] {
            assert_eq!(FsGroupChangePolicy::parse(text), expected);
        }
    }
}
