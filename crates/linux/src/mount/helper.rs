//! Mounting by way of `mount(8)`, which knows the helpers of network file systems.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::MountTable;
use super::table::MountTableError;

/// `mount` did not mount.
#[derive(Debug, thiserror::Error)]
#[error(
    "mount failed: {cause}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}"
)]
pub struct MountHelperError {
    /// How it ended, or that it could not be started.
    pub cause: String,
    /// What it was given.
    pub arguments: String,
    /// What it printed.
    pub output: String,
}

/// Mounts `source` at `target` by way of `mount(8)`. Takes as long as the file system's helper does:
/// minutes, if a server does not answer.
///
/// # Errors
/// With what `mount` printed, or that there is no `mount`.
pub fn mount_with_helper(
    source: &str,
    target: &Path,
    file_system: &str,
    options: &[String],
) -> Result<(), MountHelperError> {
    let mut arguments = vec!["-t".to_owned(), file_system.to_owned()];
    if !options.is_empty() {
        arguments.extend(["-o".to_owned(), options.join(",")]);
    }
    // What a user wrote is no option, however it begins.
    arguments.extend(["--".to_owned(), source.to_owned(), target.to_string_lossy().into_owned()]);
    let failed = |cause: String, output: String| MountHelperError {
        cause,
        arguments: arguments.join(" "),
        output,
    };
    let ended = Command::new("mount")
        .args(&arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(describe_start("mount", &error), String::new()))?;
    if ended.status.success() {
        return Ok(());
    }
    let output = [ended.stdout, ended.stderr].concat();
    let cause = match ended.status.code() {
        Some(code) => format!("exit status {code}"),
        None => ended.status.to_string(),
    };
    Err(failed(cause, String::from_utf8_lossy(&output).into_owned()))
}

/// Why a program of the node could not be started.
pub(super) fn describe_start(program: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            format!("exec: {program:?}: executable file not found in $PATH")
        }
        _ => format!("exec: {program:?}: {error}"),
    }
}

impl MountTable {
    /// Where else the directory at `path`, free of links, is mounted: all mounts that show the same
    /// place of the same file system, the one at `path` itself left out.
    ///
    /// # Errors
    /// When nothing at all is mounted above `path`, which cannot be.
    pub fn other_mounts_of(&self, path: &Path) -> Result<Vec<PathBuf>, MountTableError> {
        let under = self.containing(path).ok_or_else(|| MountTableError::Read {
            path: path.to_owned(),
            source: io::ErrorKind::NotFound.into(),
        })?;
        let within = path.strip_prefix(&under.mount_point).unwrap_or(Path::new(""));
        let root = if within.as_os_str().is_empty() {
            under.root.clone()
        } else {
            under.root.join(within)
        };
        let same = self.mounts().iter().filter(|mount| {
            mount.device == under.device && mount.root == root && mount.mount_point != path
        });
        Ok(same.map(|mount| mount.mount_point.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::{is_mount_point, unmount};
    use crate::test_namespace::in_private_mount_namespace;

    #[test]
    fn mount_mounts_and_tells_what_went_wrong() {
        in_private_mount_namespace(
            "mount::helper::tests::mount_mounts_and_tells_what_went_wrong",
            || {
                let temp = tempfile::tempdir().unwrap();
                let target = temp.path().canonicalize().unwrap();
                let options = ["ro".to_owned(), "size=4096".to_owned()];
                mount_with_helper("it", &target, "tmpfs", &options).unwrap();
                assert!(is_mount_point(&target).unwrap());
                assert!(std::fs::write(target.join("file"), "").is_err());
                unmount(&target).unwrap();

                let error = mount_with_helper("--help", &target, "nosuchfs", &[]).unwrap_err();
                let text = error.to_string();
                assert!(
                    text.starts_with("mount failed: exit status 32\nMounting command: mount\n"),
                    "{text}"
                );
                assert!(text.contains("-t nosuchfs -- --help"), "{text}");
                assert!(text.contains("special device --help does not exist"), "{text}");
            },
        );
    }

    #[test]
    fn binds_of_one_directory_are_found() {
        let table = MountTable::parse(
            b"1 0 8:1 / / rw - ext4 /dev/a rw\n\
              2 1 8:2 / /data rw - ext4 /dev/b rw\n\
              3 1 8:2 /disk /pods/u1/v rw - ext4 /dev/b rw\n\
              4 1 8:2 /disk /pods/u2/v ro - ext4 /dev/b rw\n\
              5 1 8:2 /other /pods/u3/v rw - ext4 /dev/b rw\n\
              6 1 8:1 /disk /pods/u4/v rw - ext4 /dev/a rw\n",
        )
        .unwrap();
        let others = |path: &str| table.other_mounts_of(Path::new(path)).unwrap();
        let pods = |names: &[&str]| -> Vec<PathBuf> {
            names.iter().map(|name| PathBuf::from(format!("/pods/{name}/v"))).collect()
        };
        assert_eq!(others("/data/disk"), pods(&["u1", "u2"]));
        assert_eq!(others("/pods/u1/v"), pods(&["u2"]));
        assert_eq!(others("/disk"), pods(&["u4"]));
        assert_eq!(others("/data"), Vec::<PathBuf>::new());
    }
}
