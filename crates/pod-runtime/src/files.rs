//! Files around containers: log directories, links, hosts file, termination messages.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rubelet_linux::path::{RemoveTreeError, remove_tree_one_filesystem};
use rubelet_types::{ContainerId, NodePaths, PodRef, PodUid};

use crate::text::path_error;

/// Longest name of a file.
const MAX_FILE_NAME: usize = 255;

/// A file operation that failed. The cause is part of the text, which goes into events and statuses
/// in the form that users know.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("{}", path_error(operation, path, error))]
    Operation { operation: &'static str, path: PathBuf, error: io::Error },
    #[error(transparent)]
    RemoveTree(#[from] RemoveTreeError),
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
    let path = path.to_owned();
    move |error| FileError::Operation { operation, path, error }
}

/// Reads a configuration file of the node. What is no text in it is replaced.
pub(crate) fn read_node_file(path: &Path) -> Result<String, FileError> {
    let bytes = fs::read(path).map_err(failed("open", path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Makes `path` and what is missing above it.
pub(crate) fn ensure_dir(path: &Path, mode: u32) -> Result<(), FileError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed("mkdir", path))
}

/// The restart count that follows from the logs in a directory: one more than the highest
/// `N.log*`, or 0. Keeps a log of an instance that the runtime has forgotten from being
/// overwritten.
pub(crate) fn next_restart_count(log_dir: &Path) -> u32 {
    let Ok(entries) = fs::read_dir(log_dir) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                return None;
            }
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
    file.set_permissions(Permissions::from_mode(0o644)).map_err(failed("chmod", path))
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
        .map_err(failed("open", &path))?;
    // The container may run as any user; the umask must not keep it out.
    file.set_permissions(Permissions::from_mode(0o666)).map_err(failed("chmod", &path))?;
    Ok(path)
}

fn nofollow() -> i32 {
    i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or_default()
}

/// The link that log collectors read: `<pod>_<namespace>_<container>-<id>.log`, cut before the
/// suffix to what a file name can be.
pub(crate) fn log_link(
    paths: &NodePaths,
    pod: &PodRef,
    container: &str,
    id: &ContainerId,
) -> PathBuf {
    const SUFFIX: &str = ".log";
    let name = format!("{}_{}_{container}-{id}", pod.name, pod.namespace);
    let cut = name.floor_char_boundary(MAX_FILE_NAME - SUFFIX.len());
    paths.container_logs().join(format!("{}{SUFFIX}", &name[..cut]))
}

/// Links to the log, if the runtime made one. A link that leads elsewhere is replaced: long names
/// of two instances can be cut to the same.
pub(crate) fn link_log(link: &Path, log: &Path) -> Result<(), FileError> {
    if !log.exists() {
        return Ok(());
    }
    if let Some(dir) = link.parent() {
        ensure_dir(dir, 0o755)?;
    }
    if fs::read_link(link).is_ok_and(|target| target != log) {
        remove_if_there(link)?;
    }
    match std::os::unix::fs::symlink(log, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map_err(failed("symlink", link)),
    }
}

/// Removes a container's log, its rotated parts, and the link to it.
pub(crate) fn remove_container_logs(log: &Path, link: &Path) -> Result<(), FileError> {
    if fs::read_link(link).is_ok_and(|target| target == log) {
        remove_if_there(link)?;
    }
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
    Ok(remove_tree_one_filesystem(&dir)?)
}

/// Removes the log directories of pods that `keep` does not know, and links to logs that are gone.
/// Answers how many directories went. What has no form of a pod's log directory is left alone.
pub(crate) fn remove_orphaned_logs(
    paths: &NodePaths,
    keep: impl Fn(&PodUid) -> bool,
) -> Result<usize, FileError> {
    let mut removed = 0;
    for entry in fs::read_dir(paths.pod_logs()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let mut parts = name.to_str().unwrap_or_default().split('_');
        let (Some(_), Some(_), Some(uid), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if !keep(&PodUid::new(uid)) {
            remove_tree_one_filesystem(&entry.path())?;
            removed += 1;
        }
    }
    for entry in fs::read_dir(paths.container_logs()).into_iter().flatten().flatten() {
        let points_into_ours =
            fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(paths.pod_logs()));
        if points_into_ours && !entry.path().exists() {
            remove_if_there(&entry.path())?;
        }
    }
    Ok(removed)
}

/// Removes a file or link; one that is gone is removed.
pub(crate) fn remove_if_there(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(failed("remove", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_of_pods_that_nobody_knows_are_orphaned() {
        let root = tempfile::tempdir().unwrap();
        let paths =
            NodePaths::new(root.path(), root.path().join("logs"), root.path().join("links"));
        for dir in ["logs/ns_a_known/c", "logs/ns_b_gone/c", "logs/something-else", "links"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        let link = |name: &str, target: &str| {
            let target = root.path().join(target);
            std::os::unix::fs::symlink(target, root.path().join("links").join(name)).unwrap();
        };
        fs::write(root.path().join("logs/ns_a_known/c/0.log"), "").unwrap();
        link("kept", "logs/ns_a_known/c/0.log");
        link("dangling", "logs/ns_b_gone/c/0.log");
        link("foreign", "elsewhere/0.log");
        let removed = remove_orphaned_logs(&paths, |uid| uid.as_str() == "known").unwrap();
        assert_eq!(removed, 1);
        let names = |dir: &str| {
            let mut names: Vec<_> = fs::read_dir(root.path().join(dir))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names("logs"), ["ns_a_known", "something-else"]);
        assert_eq!(names("links"), ["foreign", "kept"]);
    }

    #[test]
    fn restart_counts_continue_after_the_highest_log() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(next_restart_count(dir.path()), 0);
        assert_eq!(next_restart_count(&dir.path().join("missing")), 0);
        for name in ["0.log", "2.log.20260101-000000.gz", "x.log", "7.txt"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        fs::create_dir(dir.path().join("9.log")).unwrap();
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
    fn links_are_made_once_there_is_a_log_and_follow_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let (link, old, new) =
            (dir.path().join("links/link.log"), dir.path().join("0.log"), dir.path().join("1.log"));
        link_log(&link, &old).unwrap();
        assert!(!link.is_symlink());
        fs::write(&old, "").unwrap();
        fs::write(&new, "").unwrap();
        link_log(&link, &old).unwrap();
        link_log(&link, &old).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), old);
        link_log(&link, &new).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), new);
        remove_container_logs(&old, &link).unwrap();
        assert_eq!((old.exists(), link.is_symlink()), (false, true));
        remove_container_logs(&new, &link).unwrap();
        assert_eq!((new.exists(), link.is_symlink()), (false, false));
    }

    #[test]
    fn names_of_links_are_cut_to_what_a_file_name_can_be() {
        let paths = NodePaths::new("/r", "/l", "/var/log/containers");
        let pod = PodRef::new("u", "ns", "p".repeat(253));
        let link = log_link(&paths, &pod, "c", &ContainerId::new("4f53"));
        let name = link.file_name().unwrap().to_str().unwrap();
        assert_eq!(name.len(), 255);
        assert!(name.ends_with(".log"));
        let pod = PodRef::new("u", "ns", "web");
        assert_eq!(
            log_link(&paths, &pod, "c", &ContainerId::new("4f53")),
            Path::new("/var/log/containers/web_ns_c-4f53.log")
        );
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
