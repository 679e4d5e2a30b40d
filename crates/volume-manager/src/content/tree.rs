use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};

use rubelet_volume_plan::{Payload, PayloadFile};
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};

use super::writer::Steps;

/// Everybody may look into a directory of files, whose own modes say who may read them.
const DIRECTORY_MODE: u32 = 0o755;
/// What `fsGroup` adds to a directory in a volume that is read-only.
const GROUP_DIRECTORY: u32 = 0o2550;

/// A set of files with the directories that they need.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    files: &'a BTreeMap<String, PayloadFile>,
    /// Each before those beneath it.
    directories: BTreeSet<String>,
    group: Option<u32>,
}

impl<'a> Tree<'a> {
    /// The files of `payload`, and `extra` directories where no file is in the way.
    pub(crate) fn new<'e>(
        payload: &'a Payload,
        extra: impl IntoIterator<Item = &'e String>,
    ) -> Self {
        let mut directories = BTreeSet::new();
        for path in payload.files.keys() {
            directories.extend(parents(path));
        }
        for path in extra {
            let mut all: Vec<String> = parents(path).collect();
            all.push(path.clone());
            if !all.iter().any(|path| payload.files.contains_key(path)) {
                directories.extend(all);
            }
        }
        Self { files: &payload.files, directories, group: payload.group }
    }

    /// The first elements of all paths.
    pub(crate) fn tops(&self) -> BTreeSet<&str> {
        let paths = self.files.keys().chain(&self.directories);
        paths.map(|path| path.split('/').next().unwrap_or(path)).collect()
    }

    fn directory_mode(&self) -> u32 {
        self.group.map_or(DIRECTORY_MODE, |_| DIRECTORY_MODE | GROUP_DIRECTORY)
    }

    /// Writes everything into the empty `directory`.
    pub(crate) fn write(&self, directory: &OwnedFd, steps: &mut Steps<'_>) -> io::Result<()> {
        // Relative to one descriptor: nobody else can have put a link into a directory that has just
        // been made, and that only the kubelet can write to.
        for path in &self.directories {
            steps.next()?;
            rustix::fs::mkdirat(directory, path, Mode::from_raw_mode(0o700))?;
        }
        for (path, file) in self.files {
            steps.next()?;
            let flags =
                OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(directory, path, flags, Mode::from_raw_mode(0o600))?;
            let mut opened = File::from(opened);
            opened.write_all(&file.content)?;
            steps.next()?;
            self.own(&opened, file.owner)?;
            // After the owner: a change of it takes bits away.
            rustix::fs::fchmod(&opened, Mode::from_raw_mode(file.mode))?;
        }
        for path in &self.directories {
            steps.next()?;
            self.open_up(open_directory(directory, path)?)?;
        }
        steps.next()?;
        self.open_up(open_directory(directory, ".")?)
    }

    fn open_up(&self, directory: OwnedFd) -> io::Result<()> {
        self.own(&directory, None)?;
        Ok(rustix::fs::fchmod(&directory, Mode::from_raw_mode(self.directory_mode()))?)
    }

    fn own(&self, file: &impl AsFd, owner: Option<u32>) -> io::Result<()> {
        if owner.is_none() && self.group.is_none() {
            return Ok(());
        }
        let (uid, gid) = (owner.map(Uid::from_raw), self.group.map(Gid::from_raw));
        Ok(rustix::fs::fchown(file, uid, gid)?)
    }

    /// `directory` holds exactly this, with the same contents, modes and owners.
    pub(crate) fn is_in(&self, directory: &OwnedFd) -> io::Result<bool> {
        let mut seen = 0;
        let same = self.is_beneath(directory, "", &mut seen)?;
        Ok(same && seen == self.files.len() + self.directories.len())
    }

    fn is_beneath(&self, at: &OwnedFd, prefix: &str, seen: &mut usize) -> io::Result<bool> {
        let stat = rustix::fs::fstat(at)?;
        if stat.st_mode & 0o7777 != self.directory_mode() || !self.owns(&stat, None) {
            return Ok(false);
        }
        for entry in Dir::read_from(at)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { return Ok(false) };
            if matches!(name, "." | "..") {
                continue;
            }
            let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
            *seen += 1;
            let same = if self.directories.contains(&path) {
                match open_directory(at, name) {
                    Ok(directory) => self.is_beneath(&directory, &path, seen)?,
                    Err(_) => false,
                }
            } else if let Some(file) = self.files.get(&path) {
                self.is_file(at, name, file)?
            } else {
                false
            };
            if !same {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_file(&self, at: &OwnedFd, name: &str, file: &PayloadFile) -> io::Result<bool> {
        let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let same = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_mode & 0o7777 == file.mode
            && u64::try_from(stat.st_size).is_ok_and(|size| size == file.content.len() as u64)
            && self.owns(&stat, file.owner);
        if !same {
            return Ok(false);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = File::from(rustix::fs::openat(at, name, flags, Mode::empty())?);
        let mut content = Vec::with_capacity(file.content.len());
        opened.take(file.content.len() as u64 + 1).read_to_end(&mut content)?;
        Ok(content == file.content)
    }

    fn owns(&self, stat: &rustix::fs::Stat, owner: Option<u32>) -> bool {
        owner.is_none_or(|owner| stat.st_uid == owner)
            && self.group.is_none_or(|group| stat.st_gid == group)
    }
}

/// The directories on the way to a path, the topmost first.
fn parents(path: &str) -> impl Iterator<Item = String> + '_ {
    path.match_indices('/').map(|(end, _)| path[..end].to_owned())
}

/// Opens a directory that is reached through no link.
pub(crate) fn open_directory(at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?)
}
