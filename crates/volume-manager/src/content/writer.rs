use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rubelet_volume_plan::Payload;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::tree::{Tree, open_directory};
use crate::port::MountPort;

/// The link that names the set of files in force.
const DATA: &str = "..data";
/// The next `..data`, before it takes its place.
const NEW_DATA: &str = "..data_tmp";
/// A link at the top, before it takes the place of what is wrong there.
const NEW_LINK: &str = "..link_tmp";
/// Everything that begins so belongs to the writer.
const RESERVED: &str = "..";
/// Others may search a directory that a volume is mounted on.
const MOUNT_POINT_MODE: u32 = 0o755;

/// Called before each change, so that tests can end the process there.
pub(crate) struct Steps<'a>(pub(crate) &'a mut dyn FnMut() -> io::Result<()>);

impl Steps<'_> {
    pub(crate) fn next(&mut self) -> io::Result<()> {
        (self.0)()
    }
}

/// Writes sets of files into the directory of a volume.
pub(crate) struct ContentWriter<'a> {
    pub(crate) mounts: &'a dyn MountPort,
    /// The volume's directory: an absolute path without links.
    pub(crate) directory: &'a Path,
    /// When the set was written, for its name.
    pub(crate) now: Timestamp,
}

impl ContentWriter<'_> {
    /// Makes the volume show `payload` and nothing else. What is right already stays as it is, and
    /// what an earlier attempt left is removed, so it may end anywhere and be begun again.
    ///
    /// `nested` are places of other volumes' mounts; they are made and left alone.
    pub(crate) fn write(
        &self,
        payload: &Payload,
        nested: &[String],
        steps: &mut Steps<'_>,
    ) -> io::Result<bool> {
        let root = open_root(self.directory)?;
        let (within, own): (Vec<_>, Vec<_>) =
            nested.iter().partition(|path| is_beneath_directory(path, payload));
        let tree = Tree::new(payload, within);
        let own_tops: BTreeSet<&str> = own.iter().map(|path| first_element(path)).collect();
        for path in &own {
            make_mount_point(&root, path, steps)?;
        }
        let current = current_set(&root)?;
        self.remove_stale(&root, current.as_deref(), steps)?;
        let unchanged = match &current {
            Some(name) => match open_directory(&root, name) {
                Ok(directory) => tree.is_in(&directory)?,
                Err(_) => false,
            },
            None => false,
        };
        if !unchanged {
            let name = self.write_set(&root, &tree, steps)?;
            self.swap(&root, &name, steps)?;
        }
        let tops: BTreeSet<&str> = tree.tops().difference(&own_tops).copied().collect();
        for name in &tops {
            self.link(&root, name, steps)?;
        }
        for name in entries(&root)? {
            let is_ours = !name.starts_with(RESERVED)
                && link_target(&root, &name)?.is_some_and(|target| target == through_data(&name));
            if is_ours && !tops.contains(name.as_str()) {
                steps.next()?;
                remove_file(&root, &name)?;
            }
        }
        if !unchanged {
            let current = current_set(&root)?;
            self.remove_stale(&root, current.as_deref(), steps)?;
        }
        Ok(!unchanged)
    }

    /// Writes a new set of files that nothing refers to yet.
    fn write_set(
        &self,
        root: &OwnedFd,
        tree: &Tree<'_>,
        steps: &mut Steps<'_>,
    ) -> io::Result<String> {
        let time = self.now.strftime("..%Y_%m_%d_%H_%M_%S").to_string();
        let mut number: u32 = rand::random();
        let name = loop {
            steps.next()?;
            let name = format!("{time}.{number}");
            match rustix::fs::mkdirat(root, &name, Mode::from_raw_mode(0o700)) {
                Ok(()) => break name,
                Err(Errno::EXIST) => number = number.wrapping_add(1),
                Err(error) => return Err(error.into()),
            }
        };
        tree.write(&open_directory(root, &name)?, steps)?;
        Ok(name)
    }

    /// Puts a set in force.
    fn swap(&self, root: &OwnedFd, name: &str, steps: &mut Steps<'_>) -> io::Result<()> {
        if !matches!(file_type(root, DATA)?, None | Some(FileType::Symlink)) {
            // Nothing that a kubelet has made, and a directory does not give way to a rename.
            steps.next()?;
            self.mounts.remove_tree(&self.path(DATA))?;
        }
        steps.next()?;
        rustix::fs::symlinkat(name, root, NEW_DATA)?;
        steps.next()?;
        Ok(rustix::fs::renameat(root, NEW_DATA, root, DATA)?)
    }

    /// Makes what users see of one file or directory.
    fn link(&self, root: &OwnedFd, name: &str, steps: &mut Steps<'_>) -> io::Result<()> {
        let target = through_data(name);
        if link_target(root, name)?.is_some_and(|found| found == target) {
            return Ok(());
        }
        if file_type(root, name)? == Some(FileType::Directory) {
            steps.next()?;
            // Whatever is in it is not ours to remove.
            rustix::fs::unlinkat(root, name, AtFlags::REMOVEDIR)?;
        }
        steps.next()?;
        rustix::fs::symlinkat(&target, root, NEW_LINK)?;
        steps.next()?;
        Ok(rustix::fs::renameat(root, NEW_LINK, root, name)?)
    }

    /// Removes what the writer made and no longer needs.
    fn remove_stale(
        &self,
        root: &OwnedFd,
        current: Option<&str>,
        steps: &mut Steps<'_>,
    ) -> io::Result<()> {
        for name in entries(root)? {
            let is_needed = name == DATA || current == Some(name.as_str());
            if name.starts_with(RESERVED) && !is_needed {
                steps.next()?;
                self.mounts.remove_tree(&self.path(&name))?;
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// A complete set of files is in force in the volume's directory.
pub(crate) fn has_content(directory: &Path) -> io::Result<bool> {
    let root = match open_root(directory) {
        Ok(root) => root,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let Some(name) = current_set(&root)? else { return Ok(false) };
    Ok(open_directory(&root, &name).is_ok())
}

fn open_root(directory: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, directory, flags, Mode::empty())?)
}

/// The name of the set in force. A `..data` that leads anywhere but to a neighbour is none of ours
/// and never followed.
fn current_set(root: &OwnedFd) -> io::Result<Option<String>> {
    let is_set = |name: &String| {
        name.starts_with(RESERVED)
            && name.len() > RESERVED.len()
            && !name.contains('/')
            && ![DATA, NEW_DATA, NEW_LINK].contains(&name.as_str())
    };
    Ok(link_target(root, DATA)?.filter(is_set))
}

/// Where a link leads; none if there is no link.
fn link_target(root: &OwnedFd, name: &str) -> io::Result<Option<String>> {
    match rustix::fs::readlinkat(root, name, Vec::new()) {
        Ok(target) => Ok(target.into_string().ok()),
        // There is nothing, or something else.
        Err(Errno::NOENT | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn file_type(root: &OwnedFd, name: &str) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The names in the directory. Those that are not UTF-8 are nobody's here.
fn entries(root: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(root)? {
        if let Ok(name) = entry?.file_name().to_str()
            && !matches!(name, "." | "..")
        {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn remove_file(root: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(root, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes a directory that another volume is mounted on, and what is missing on the way to it.
fn make_mount_point(root: &OwnedFd, path: &str, steps: &mut Steps<'_>) -> io::Result<()> {
    let mut at = open_directory(root, ".")?;
    for (depth, name) in path.split('/').enumerate() {
        if depth == 0 && file_type(&at, name)? == Some(FileType::Symlink) {
            // It was a file's until this mount came to be wanted.
            steps.next()?;
            remove_file(&at, name)?;
        }
        let is_new = file_type(&at, name)?.is_none();
        if is_new {
            steps.next()?;
            rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(MOUNT_POINT_MODE))?;
        }
        at = open_directory(&at, name)?;
        if is_new {
            rustix::fs::fchmod(&at, Mode::from_raw_mode(MOUNT_POINT_MODE))?;
        }
    }
    Ok(())
}

/// The place is within a directory that has files, so it is made among them.
fn is_beneath_directory(place: &str, payload: &Payload) -> bool {
    let top = first_element(place);
    let has_files = payload.files.keys().any(|path| path != top && first_element(path) == top);
    has_files && place != top
}

fn first_element(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

fn through_data(name: &str) -> String {
    format!("{DATA}/{name}")
}
