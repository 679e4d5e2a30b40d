//! Devices with a file system, and those that are given one.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::helper::{MountHelperError, describe_start, mount_with_helper};

/// Signatures of file systems are within so many bytes.
const START: u64 = 1 << 20;

/// A device could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// What is on it cannot be told.
    #[error("failed to get disk format of disk {}: {problem}", device.display())]
    Unknown {
        /// The device.
        device: PathBuf,
        /// Why not.
        problem: String,
    },
    /// There is something on it, and that is no file system: it is not formatted.
    #[error("disk {} is not empty and has no file system: {found}", device.display())]
    NotEmpty {
        /// The device.
        device: PathBuf,
        /// What is there.
        found: String,
    },
    /// It would have to be formatted, and nobody may write to it.
    #[error("cannot mount unformatted disk {} as we are manipulating it in read-only mode", device.display())]
    ReadOnly {
        /// The device.
        device: PathBuf,
    },
    /// It cannot be formatted.
    #[error("format of disk {} failed: type:({file_system}) errcode:({problem})", device.display())]
    Format {
        /// The device.
        device: PathBuf,
        /// With what.
        file_system: String,
        /// Why not.
        problem: String,
    },
    /// Its file system is damaged.
    #[error("'fsck' found errors on device {} but could not correct them: {output}", device.display())]
    Damaged {
        /// The device.
        device: PathBuf,
        /// What `fsck` printed.
        output: String,
    },
    /// It could not be mounted.
    #[error(transparent)]
    Mount(#[from] MountHelperError),
}

/// Mounts `device` at `target`. A device with nothing on it is formatted with `file_system`; one with a
/// file system is checked first. What holds anything else is never touched.
///
/// # Errors
/// With what the programs of the file system say, or that one of them is missing.
pub fn format_and_mount(
    device: &Path,
    target: &Path,
    file_system: &str,
    options: &[String],
) -> Result<(), FormatError> {
    let read_only = options.iter().any(|option| option == "ro");
    match find_format(device)? {
        None if read_only => return Err(FormatError::ReadOnly { device: device.to_owned() }),
        None => format(device, file_system)?,
        Some(_) if read_only => {}
        Some(_) => check(device)?,
    }
    let options = [options, &["defaults".to_owned()]].concat();
    let device = device.to_string_lossy();
    Ok(mount_with_helper(&device, target, file_system, &options)?)
}

/// Detaches all loop devices that show what is at `backing`, free of links.
///
/// # Errors
/// When they cannot be listed, or one of them cannot be detached.
pub fn detach_loop_devices(backing: &Path) -> io::Result<()> {
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let shown = Path::new("/sys/block").join(&name).join("loop/backing_file");
        // Not a loop device, or one that shows nothing.
        let Ok(shown) = fs::read_to_string(shown) else { continue };
        if Path::new(shown.trim_end_matches('\n')) != backing {
            continue;
        }
        let device = Path::new("/dev").join(&name);
        let ended = run("losetup", &["--detach"], &device).map_err(io::Error::other)?;
        if !ended.status.success() {
            let output = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
            return Err(io::Error::other(format!("losetup: {}: {output}", ended.status)));
        }
    }
    Ok(())
}

fn run(program: &str, arguments: &[&str], device: &Path) -> Result<Output, String> {
    Command::new(program)
        .args(arguments)
        .arg(device)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| describe_start(program, &error))
}

/// The file system on a device; none if there is nothing on it.
fn find_format(device: &Path) -> Result<Option<String>, FormatError> {
    let unknown = |problem| FormatError::Unknown { device: device.to_owned(), problem };
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"];
    let answer = run("blkid", &arguments, device).map_err(unknown)?;
    match answer.status.code() {
        Some(0) => {}
        // So it says that nothing was found, and also that it could not look.
        Some(2) => {
            read_start(device).map_err(|error| unknown(format!("cannot read it: {error}")))?;
            return Ok(None);
        }
        _ => {
            let text = String::from_utf8_lossy(&answer.stderr).trim().to_owned();
            return Err(unknown(format!("blkid: {}: {text}", answer.status)));
        }
    }
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    parse_format(&text).map_err(|found| FormatError::NotEmpty { device: device.to_owned(), found })
}

/// Reads where signatures of file systems are.
fn read_start(device: &Path) -> io::Result<()> {
    let mut start = Vec::new();
    File::open(device)?.take(START).read_to_end(&mut start).map(drop)
}

/// Reads what `blkid` exports; `Err` carries what is no file system.
fn parse_format(text: &str) -> Result<Option<String>, String> {
    let value = |key: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.filter(|value| !value.is_empty()).map(str::to_owned)
    };
    match (value("PTTYPE"), value("TYPE")) {
        (Some(table), _) => Err(format!("partition table {table}")),
        (None, found) => Ok(found),
    }
}

fn format(device: &Path, file_system: &str) -> Result<(), FormatError> {
    let failed = |problem| FormatError::Format {
        device: device.to_owned(),
        file_system: file_system.to_owned(),
        problem,
    };
    // Its name becomes that of a program.
    if !file_system.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(failed("no such file system".to_owned()));
    }
    let arguments: &[&str] = match file_system {
        // Nothing is kept for root, and no question is asked.
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let program = format!("mkfs.{file_system}");
    let answer = run(&program, arguments, device).map_err(failed)?;
    if answer.status.success() {
        tracing::info!(device = %device.display(), file_system, "Formatted a device");
        return Ok(());
    }
    let output = [answer.stdout, answer.stderr].concat();
    Err(failed(format!("{}: {}", answer.status, String::from_utf8_lossy(&output).trim())))
}

fn check(device: &Path) -> Result<(), FormatError> {
    const UNCORRECTED: i32 = 4;
    match run("fsck", &["-a"], device) {
        Ok(answer) if answer.status.code() == Some(UNCORRECTED) => {
            let output = [answer.stdout, answer.stderr].concat();
            let output = String::from_utf8_lossy(&output).trim().to_owned();
            Err(FormatError::Damaged { device: device.to_owned(), output })
        }
        // The mount tells whether it is of use.
        Ok(_) => Ok(()),
        Err(problem) => {
            tracing::warn!(device = %device.display(), problem, "A device could not be checked");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::unmount;
    use crate::test_namespace::in_private_mount_namespace;

    #[test]
    fn what_blkid_says_is_read() {
        for (text, expected) in [
            ("DEVNAME=/dev/x\nTYPE=ext4\n", Ok(Some("ext4".to_owned()))),
            ("DEVNAME=/dev/x\n", Ok(None)),
            ("TYPE=\n", Ok(None)),
            ("TYPE=ext4\nPTTYPE=dos\n", Err("partition table dos".to_owned())),
        ] {
            assert_eq!(parse_format(text), expected, "{text}");
        }
    }

    #[test]
    fn a_device_that_cannot_be_read_is_not_an_empty_one() {
        let temp = tempfile::tempdir().unwrap();
        let missing = temp.path().join("disk");
        let refused = format_and_mount(&missing, temp.path(), "ext4", &[]).unwrap_err();
        assert!(matches!(refused, FormatError::Unknown { .. }), "{refused}");
        assert!(!missing.exists());
    }

    struct Loop(PathBuf);

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("--detach").arg(&self.0).output();
        }
    }

    #[test]
    fn an_empty_device_is_formatted_once_and_anything_else_is_kept() {
        in_private_mount_namespace(
            "mount::format::tests::an_empty_device_is_formatted_once_and_anything_else_is_kept",
            || {
                let temp = tempfile::tempdir().unwrap();
                let (file, target) = (temp.path().join("disk"), temp.path().join("target"));
                fs::write(&file, vec![0; 4 << 20]).unwrap();
                fs::create_dir(&target).unwrap();
                let made =
                    Command::new("losetup").args(["--find", "--show"]).arg(&file).output().unwrap();
                assert!(made.status.success(), "{made:?}");
                let device = Loop(String::from_utf8(made.stdout).unwrap().trim().into());
                let mount = |options: &[&str]| {
                    let options: Vec<String> =
                        options.iter().map(|option| (*option).to_owned()).collect();
                    format_and_mount(&device.0, &target, "ext4", &options)
                };
                let refused = mount(&["ro"]).unwrap_err();
                assert!(matches!(refused, FormatError::ReadOnly { .. }), "{refused}");
                mount(&[]).unwrap();
                fs::write(target.join("file"), "kept").unwrap();
                unmount(&target).unwrap();
                mount(&["ro"]).unwrap();
                assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
                assert!(fs::write(target.join("file"), "").is_err());
                unmount(&target).unwrap();

                let wrong = format_and_mount(&device.0, &target, "ext4; true", &[]).unwrap_err();
                assert!(matches!(wrong, FormatError::Mount(_)), "{wrong}");
                mount(&[]).unwrap();
                assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "kept");
                unmount(&target).unwrap();
            },
        );
    }
}
