//! Files around containers: log directories, links, hosts file, termination messages.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rubelet_types::{ContainerId, NodePaths, PodRef, PodUid};

/// A file operation that failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what} {path:?}")]
pub(crate) struct FileError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |source| FileError { what, path, source }
}

/// Makes `path` and what is missing above it.
pub(crate) fn ensure_dir(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(failed("create directory", path))
}

/// The restart count that follows from the logs in a directory: one more than the highest
/// `N.log*`, or 0. Keeps a log of an instance that the runtime has forgotten from being
/// overwritten.
pub(crate) fn next_restart_count(log_dir: &Path) -> u32 {
    let Ok(entries) = fs::read_dir(log_dir) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let (number, rest) = name.to_str()?.split_once('.')?;
            rest.starts_with("log").then(|| number.parse::<u32>().ok())?
        })
        .max()
        .map_or(0, |highest| highest.saturating_add(1))
}

/// Writes the hosts file of a pod. Containers have it mounted, so it is rewritten in place.
pub(crate) fn write_hosts_file(path: &Path, content: &str) -> Result<(), FileError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .custom_flags(nofollow())
        .open(path)
        .map_err(failed("open", path))?;
    file.write_all(content.as_bytes()).map_err(failed("write", path))?;
    file.set_permissions(Permissions::from_mode(0o644)).map_err(failed("set the mode of", path))
}

/// Makes the file that a container writes its termination message to, under a fresh name.
pub(crate) fn create_termination_message_file(dir: &Path) -> Result<PathBuf, FileError> {
    ensure_dir(dir, 0o750)?;
    let path = dir.join(format!("{:08x}", rand::random::<u32>()));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o666)
        .custom_flags(nofollow())
        .open(&path)
        .map_err(failed("create", &path))?;
    // The container may run as any user; the umask must not keep it out.
    file.set_permissions(Permissions::from_mode(0o666))
        .map_err(failed("set the mode of", &path))?;
    Ok(path)
}

fn nofollow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default()
}

/// The link that log collectors read: `<pod>_<namespace>_<container>-<id>.log`.
pub(crate) fn log_link(
    paths: &NodePaths,
    pod: &PodRef,
    container: &str,
    id: &ContainerId,
) -> PathBuf {
    paths.container_logs().join(format!("{}_{}_{container}-{id}.log", pod.name, pod.namespace))
}

/// Links to the log, if the runtime made one.
pub(crate) fn link_log(link: &Path, log: &Path) -> Result<(), FileError> {
    if !log.exists() {
        return Ok(());
    }
    match std::os::unix::fs::symlink(log, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(failed("link", link)),
    }
}

/// Removes a container's log, its rotated parts, and the link to it.
pub(crate) fn remove_container_logs(log: &Path, link: &Path) -> Result<(), FileError> {
    remove_if_there(link)?;
    let (Some(dir), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    let Ok(entries) = fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let belongs = file.to_str().is_some_and(|file| {
            file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        if belongs {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(())
}

/// Removes a pod's log directory and the links into it.
pub(crate) fn remove_pod_logs(paths: &NodePaths, pod: &PodRef) -> Result<(), FileError> {
    let dir = paths.pod_log_dir(pod);
    let prefix = format!("{}_{}_", pod.name, pod.namespace);
    if let Ok(entries) = fs::read_dir(paths.container_logs()) {
        for entry in entries.flatten() {
            let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))
                && fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(&dir));
            if ours {
                remove_if_there(&entry.path())?;
            }
        }
    }
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(failed("remove directory", &dir)),
    }
}

fn remove_if_there(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(failed("remove", path)),
    }
}

/// Directory of the termination message files of a container.
pub(crate) fn termination_dir(paths: &NodePaths, uid: &PodUid, container: &str) -> PathBuf {
    paths.container_dir(uid, container)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_counts_continue_after_the_highest_log() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(next_restart_count(dir.path()), 0);
        assert_eq!(next_restart_count(&dir.path().join("missing")), 0);
        for name in ["0.log", "2.log.20260101-000000.gz", "x.log", "7.txt"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(next_restart_count(dir.path()), 3);
    }

    #[test]
    fn only_the_logs_of_the_instance_go() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["1.log", "1.log.20260101-000000", "11.log", "2.log"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_container_logs(&dir.path().join("1.log"), &dir.path().join("link")).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["11.log", "2.log"]);
    }

    #[test]
    fn a_link_in_place_of_the_hosts_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "whole").unwrap();
        let hosts = dir.path().join("etc-hosts");
        std::os::unix::fs::symlink(&victim, &hosts).unwrap();
        assert!(write_hosts_file(&hosts, "x").is_err());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "whole");
    }
}
