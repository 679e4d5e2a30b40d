//! What a directory handle's own entries are called, and what happens to these names.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::directory::{Directory, PathError, check_beneath};

impl Directory {
    /// The names in this directory, without `.` and `..`, in no order.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn names(&self) -> Result<Vec<OsString>, PathError> {
        let failed = |errno| self.os_error(Path::new("."), errno);
        // A handle of its own: the position in a directory belongs to the open file.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::openat(self.as_fd(), ".", flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in Dir::new(open).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Gives the entry `from` the name `to`, which must not be taken.
    ///
    /// # Errors
    /// When a name is no single element, `from` does not exist, or `to` does.
    pub fn rename_to_new(&self, from: &OsStr, to: &OsStr) -> Result<(), PathError> {
        check_name(from)?;
        check_name(to)?;
        let fd = self.as_fd();
        let renamed = match rustix::fs::renameat_with(fd, from, fd, to, RenameFlags::NOREPLACE) {
            // A file system that knows no flags.
            Err(Errno::INVAL | Errno::NOSYS) => {
                match rustix::fs::statat(fd, to, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(_) => Err(Errno::EXIST),
                    Err(Errno::NOENT) => rustix::fs::renameat(fd, from, fd, to),
                    Err(errno) => Err(errno),
                }
            }
            result => result,
        };
        renamed.map_err(|errno| self.os_error(Path::new(from), errno))
    }

    /// Removes the entry `name`, which is no directory. One that is gone is removed.
    ///
    /// # Errors
    /// When the name is no single element, or the system refuses.
    pub fn remove_file(&self, name: &OsStr) -> Result<(), PathError> {
        check_name(name)?;
        match rustix::fs::unlinkat(self.as_fd(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.os_error(Path::new(name), errno)),
        }
    }

    /// Has the names in this directory written to the disk.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn sync(&self) -> Result<(), PathError> {
        let failed = |errno| self.os_error(Path::new("."), errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = rustix::fs::openat(self.as_fd(), ".", flags, Mode::empty()).map_err(failed)?;
        rustix::fs::fsync(open).map_err(failed)
    }
}

/// Refuses everything but a single normal element.
fn check_name(name: &OsStr) -> Result<(), PathError> {
    let path = Path::new(name);
    check_beneath(path)?;
    if path.file_name() == Some(name) {
        Ok(())
    } else {
        Err(PathError::NotBeneath { path: path.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("sub")).unwrap();
        std::fs::write(temp.path().join("one"), "1").unwrap();
        std::fs::write(temp.path().join("two"), "2").unwrap();
        symlink("one", temp.path().join("link")).unwrap();
        let directory = Directory::open(temp.path()).unwrap();
        (temp, directory)
    }

    fn names(directory: &Directory) -> Vec<OsString> {
        let mut names = directory.names().unwrap();
        names.sort();
        names
    }

    #[test]
    fn names_are_those_of_the_directory() {
        let (_temp, directory) = directory();
        assert_eq!(names(&directory), ["link", "one", "sub", "two"]);
        assert_eq!(names(&directory).len(), 4, "and again");
    }

    #[test]
    fn a_taken_name_is_not_taken_over() {
        let (temp, directory) = directory();
        let rename = |from: &str, to: &str| directory.rename_to_new(from.as_ref(), to.as_ref());
        for taken in ["two", "link", "sub"] {
            assert!(rename("one", taken).is_err(), "{taken}");
        }
        assert!(rename("none", "three").unwrap_err().is_not_found());
        rename("one", "three").unwrap();
        assert_eq!(names(&directory), ["link", "sub", "three", "two"]);
        assert_eq!(std::fs::read_to_string(temp.path().join("two")).unwrap(), "2");
        directory.sync().unwrap();
    }

    #[test]
    fn only_entries_of_the_directory_itself_have_names() {
        let (temp, directory) = directory();
        std::fs::write(temp.path().join("sub/inner"), "").unwrap();
        for name in ["", "..", ".", "sub/inner", "/etc/passwd", "one/"] {
            let name = OsStr::new(name);
            assert!(directory.remove_file(name).is_err(), "{name:?}");
            assert!(directory.rename_to_new(name, "new".as_ref()).is_err(), "{name:?}");
            assert!(directory.rename_to_new("one".as_ref(), name).is_err(), "{name:?}");
        }
        directory.remove_file("link".as_ref()).unwrap();
        directory.remove_file("link".as_ref()).unwrap();
        assert!(directory.remove_file("sub".as_ref()).is_err());
        assert_eq!(names(&directory), ["one", "sub", "two"]);
    }
}
