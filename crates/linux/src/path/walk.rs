//! Resolution of a path in user space, one element at a time, each opened relative to a handle of
//! the one before and never followed by the kernel. What is open cannot be exchanged any more, and
//! `..` goes back to the handle the walk came from, so that no rename can lead it out.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// As many links as the kernel follows in one path.
const MAX_LINKS: u32 = 40;

/// What to do with symbolic links.
#[derive(Clone, Copy, Debug)]
pub(super) enum Links<'a> {
    /// Every link is an error.
    Refuse,
    /// Links are followed as long as they stay beneath the root. Absolute ones do when they spell
    /// one of these paths of the root.
    Within(&'a [PathBuf]),
}

/// Why a walk ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkError {
    /// The path leads out of the root.
    Escapes,
    /// An element is a link, and links are refused.
    Link,
    /// The system's error.
    Os(Errno),
}

impl From<Errno> for WalkError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

/// Opens (`O_PATH`) what `path` names beneath `root`. Missing elements become directories with mode
/// `create`, if given, regardless of the umask.
pub(super) fn walk(
    root: BorrowedFd<'_>,
    path: &Path,
    links: Links<'_>,
    create: Option<Mode>,
) -> Result<OwnedFd, WalkError> {
    let mut pending = elements(path)?;
    let mut directories: Vec<OwnedFd> = Vec::new();
    let mut links_left = MAX_LINKS;
    while let Some(element) = pending.pop_front() {
        if element == ".." {
            if directories.pop().is_none() {
                return Err(WalkError::Escapes);
            }
            continue;
        }
        let current = directories.last().map_or(root, |directory| directory.as_fd());
        let next = match open_element(current, &element) {
            Err(Errno::NOENT) if create.is_some() => {
                let mode = create.unwrap_or(Mode::empty());
                create_directory(current, &element, mode)?;
                pending.push_front(element);
                continue;
            }
            opened => opened?,
        };
        match FileType::from_raw_mode(rustix::fs::fstat(&next)?.st_mode) {
            FileType::Directory => directories.push(next),
            FileType::Symlink => {
                let Links::Within(root_paths) = links else { return Err(WalkError::Link) };
                links_left = links_left.checked_sub(1).ok_or(Errno::LOOP)?;
                let target = read_link(&next)?;
                let mut target = match target.is_absolute() {
                    false => elements(&target)?,
                    true => {
                        directories.clear();
                        let beneath =
                            root_paths.iter().find_map(|root| target.strip_prefix(root).ok());
                        elements(beneath.ok_or(WalkError::Escapes)?)?
                    }
                };
                target.append(&mut pending);
                pending = target;
            }
            _ if pending.is_empty() => return Ok(next),
            _ => return Err(Errno::NOTDIR.into()),
        }
    }
    match directories.pop() {
        Some(directory) => Ok(directory),
        None => Ok(open_element(root, ".".as_ref())?),
    }
}

fn open_element(
    directory: BorrowedFd<'_>,
    element: &std::ffi::OsStr,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, element, flags, Mode::empty())
}

/// The elements of a relative path; `..` is kept for the walk to judge.
fn elements(path: &Path) -> Result<VecDeque<OsString>, WalkError> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(Ok(name.to_owned())),
            Component::ParentDir => Some(Ok(OsString::from(".."))),
            Component::CurDir => None,
            Component::RootDir | Component::Prefix(_) => Some(Err(WalkError::Escapes)),
        })
        .collect()
}

fn read_link(link: &OwnedFd) -> rustix::io::Result<PathBuf> {
    let target = rustix::fs::readlinkat(link, "", Vec::new())?;
    Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
}

/// Creates a directory with exactly this mode; somebody else may have created it meanwhile.
pub(super) fn create_directory(
    parent: BorrowedFd<'_>,
    name: &std::ffi::OsStr,
    mode: Mode,
) -> rustix::io::Result<()> {
    match rustix::fs::mkdirat(parent, name, mode) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if Mode::from_raw_mode(stat.st_mode) != mode {
        // The umask took bits away.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        rustix::fs::fchmod(directory, mode)?;
    }
    Ok(())
}
