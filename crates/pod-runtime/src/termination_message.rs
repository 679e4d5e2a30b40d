//! What an ended container has to say.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rubelet_types::{
    ContainerId, ContainerSnapshot, ContainerState, NodePaths, PodSnapshot, PodUid,
};

use crate::text::{path_error, tail};

/// Bytes of one message.
const MAX_MESSAGE: usize = 4096;
/// Lines taken from the log instead.
const MAX_LOG_LINES: usize = 80;
/// Bytes taken from the log instead.
const MAX_LOG_BYTES: usize = 2048;
/// Bytes of the log that are looked at: records are longer than the text in them.
const LOG_WINDOW: usize = 64 * 1024;

/// The runtime's reason for a container whose process never began (Docker's; containerd says
/// `StartError`).
const NEVER_BEGAN: &str = "ContainerCannotRun";

/// Reads termination messages, each once: what an ended container said never changes.
#[derive(Debug, Default)]
pub struct TerminationMessages {
    known: Mutex<HashMap<PodUid, HashMap<ContainerId, String>>>,
}

impl TerminationMessages {
    /// Puts the termination messages of ended containers into `snapshot`, behind what the runtime
    /// says of their end, and forgets those of containers that are gone. Does file I/O. How much of
    /// them a status has room for is not decided here.
    pub fn fill(&self, snapshot: &mut PodSnapshot, paths: &NodePaths) {
        let uid = snapshot.pod.uid.clone();
        let pod_dir = paths.pod_dir(&uid);
        let mut known = self.lock().remove(&uid).unwrap_or_default();
        let mut still_there = HashMap::new();
        for container in &mut snapshot.containers {
            if container.exit_code().is_none() {
                continue;
            }
            let text = match known.remove(&container.id) {
                Some(text) => text,
                None => match read_message(container, &pod_dir) {
                    Ok(text) => text,
                    Err(text) => {
                        // Said now, and read again the next time.
                        append(container, &text);
                        continue;
                    }
                },
            };
            append(container, &text);
            still_there.insert(container.id.clone(), text);
        }
        if !still_there.is_empty() {
            self.lock().insert(uid, still_there);
        }
    }

    /// Forgets the messages of a pod.
    pub fn forget(&self, pod: &PodUid) {
        self.lock().remove(pod);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PodUid, HashMap<ContainerId, String>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn append(container: &mut ContainerSnapshot, text: &str) {
    let ContainerState::Exited { message, .. } = &mut container.state else { return };
    if !text.is_empty() && !message.is_empty() {
        message.push_str(": ");
    }
    message.push_str(text);
}

/// Where the container's termination message is on the node.
pub(crate) fn message_file(container: &ContainerSnapshot) -> Option<&Path> {
    let path = &container.annotations.termination_message_path;
    if path.is_empty() {
        return None;
    }
    // A relative path is one from the root.
    let mounted = Path::new("/").join(path);
    container.mounts.get(mounted.to_str()?).map(Path::new)
}

/// `Err` carries what to say of a message that cannot be read.
fn read_message(container: &ContainerSnapshot, pod_dir: &Path) -> Result<String, String> {
    let annotations = &container.annotations;
    let file = message_file(container)
        // A container of another kubelet may have anything mounted there.
        .filter(|path| path.starts_with(pod_dir));
    if let Some(path) = file {
        match read_tail(path, MAX_MESSAGE) {
            Ok(bytes) if !bytes.is_empty() => {
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let cause = path_error("open", path, &error);
                return Err(format!(
                    "Error on reading termination log {}: {cause}",
                    path.display()
                ));
            }
        }
    }
    let from_log = annotations.termination_message_policy == "FallbackToLogsOnError"
        && container.exit_code() != Some(0)
        && !matches!(&container.state, ContainerState::Exited { reason, .. } if reason == NEVER_BEGAN);
    if !from_log {
        return Ok(String::new());
    }
    let log = Path::new(&container.log_path);
    match read_tail(log, LOG_WINDOW) {
        Ok(bytes) => Ok(last_log_lines(&String::from_utf8_lossy(&bytes))),
        // A container that failed to start has none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => {
            let cause = path_error("open", log, &error);
            Err(format!("Error on reading termination message from logs: {cause}"))
        }
    }
}

/// The last bytes of a regular file; a link is not followed, a FIFO does not block.
fn read_tail(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let max = u64::try_from(max).unwrap_or(u64::MAX);
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut file: File = OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(flags.bits()).unwrap_or_default())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    file.seek(SeekFrom::Start(metadata.len().saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of the last records of a CRI log: `<time> <stream> <P|F> <text>`, `P` being a part of
/// a line that goes on in the next record.
fn last_log_lines(log: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for record in log.lines() {
        let mut fields = record.splitn(4, ' ');
        let (Some(_time), Some(_stream), Some(tag)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let text = fields.next().unwrap_or_default();
        match lines.last_mut() {
            Some(line) if open => line.push_str(text),
            _ => lines.push(text.to_owned()),
        }
        open = tag.split(':').next() == Some("P");
    }
    let first = lines.len().saturating_sub(MAX_LOG_LINES);
    let mut text = lines[first..].join("\n");
    // A container that ends in the middle of a line leaves a part that nothing follows.
    if !lines.is_empty() && !open {
        text.push('\n');
    }
    tail(&text, MAX_LOG_BYTES).to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use jiff::Timestamp;
    use rubelet_types::{ContainerAnnotations, PodRef};

    use super::*;

    fn exited(
        id: &str,
        policy: &str,
        file: &Path,
        log: &Path,
        exit_code: i32,
    ) -> ContainerSnapshot {
        ContainerSnapshot {
            id: ContainerId::new(id),
            name: id.to_owned(),
            sandbox_id: None,
            state: ContainerState::Exited {
                started_at: None,
                finished_at: Timestamp::UNIX_EPOCH,
                exit_code,
                reason: "Error".to_owned(),
                message: String::new(),
            },
            created_at: Timestamp::UNIX_EPOCH,
            image: String::new(),
            image_ref: String::new(),
            hash: String::new(),
            restart_count: 0,
            annotations: ContainerAnnotations {
                termination_message_path: "/dev/termination-log".to_owned(),
                termination_message_policy: policy.to_owned(),
                ..ContainerAnnotations::default()
            },
            resources: None,
            user: None,
            log_path: log.to_string_lossy().into_owned(),
            mounts: BTreeMap::from([(
                "/dev/termination-log".to_owned(),
                file.to_string_lossy().into_owned(),
            )]),
            stop_signal: None,
        }
    }

    fn messages(root: &Path, containers: Vec<ContainerSnapshot>) -> Vec<String> {
        let paths = NodePaths::new(root, root.join("logs"), root.join("links"));
        let pod = PodRef::new("uid", "ns", "pod");
        let mut snapshot =
            PodSnapshot { containers, ..PodSnapshot::empty(pod, Timestamp::UNIX_EPOCH) };
        TerminationMessages::default().fill(&mut snapshot, &paths);
        snapshot
            .containers
            .into_iter()
            .map(|container| match container.state {
                ContainerState::Exited { message, .. } => message,
                _ => unreachable!("all have exited"),
            })
            .collect()
    }

    #[test]
    fn the_file_counts_then_the_log_if_the_policy_says_so() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pods/uid/containers/c");
        fs::create_dir_all(&dir).unwrap();
        let (full, empty, log) = (dir.join("full"), dir.join("empty"), root.path().join("0.log"));
        fs::write(&full, "x".repeat(5000)).unwrap();
        fs::write(&empty, "").unwrap();
        fs::write(&log, "t stdout F one\nt stderr P tw\nt stderr F o\n").unwrap();
        let found = messages(
            root.path(),
            vec![
                exited("a", "File", &full, &log, 1),
                exited("b", "File", &empty, &log, 1),
                exited("c", "FallbackToLogsOnError", &empty, &log, 1),
            ],
        );
        assert_eq!(found[0].len(), 4096);
        assert_eq!(found[1..], ["".to_owned(), "one\ntwo\n".to_owned()]);
        fs::write(&log, "t stdout F one\nt stdout P two\n").unwrap();
        let cut =
            messages(root.path(), vec![exited("c", "FallbackToLogsOnError", &empty, &log, 1)]);
        assert_eq!(cut, ["one\ntwo"], "its last line has no end");
        let ok = messages(root.path(), vec![exited("d", "FallbackToLogsOnError", &empty, &log, 0)]);
        assert_eq!(ok, [""]);
    }

    #[test]
    fn a_relative_path_is_one_from_the_root() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pods/uid/containers/c");
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("f");
        fs::write(&file, "bye").unwrap();
        let mut container = exited("a", "File", &file, root.path(), 0);
        container.annotations.termination_message_path = "dev/termination-log".to_owned();
        assert_eq!(messages(root.path(), vec![container]), ["bye"]);
    }

    #[test]
    fn links_fifos_and_foreign_files_are_not_read() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pods/uid/containers/c");
        fs::create_dir_all(&dir).unwrap();
        let outside = root.path().join("secret");
        fs::write(&outside, "secret").unwrap();
        let link = dir.join("link");
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        let log = root.path().join("none");
        let found = messages(
            root.path(),
            vec![exited("a", "File", &link, &log, 1), exited("b", "File", &outside, &log, 1)],
        );
        assert_eq!(
            found,
            [
                format!(
                    "Error on reading termination log {0}: open {0}: too many levels of symbolic \
                     links",
                    link.display()
                ),
                String::new()
            ]
        );
    }

    #[test]
    fn what_the_runtime_says_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pods/uid/containers/c");
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("f");
        fs::write(&file, "disk full").unwrap();
        let none = root.path().join("0.log");
        let mut containers = vec![
            exited("a", "File", &file, &none, 128),
            exited("b", "FallbackToLogsOnError", &dir.join("none"), &none, 128),
        ];
        for container in &mut containers {
            let ContainerState::Exited { message, reason, .. } = &mut container.state else {
                unreachable!("all have exited")
            };
            *reason = "StartError".to_owned();
            *message = "exec: \"nonsense\": not found".to_owned();
        }
        assert_eq!(
            messages(root.path(), containers),
            ["exec: \"nonsense\": not found: disk full", "exec: \"nonsense\": not found"]
        );
    }

    #[test]
    fn messages_are_read_once_and_forgotten_with_their_containers() {
        let root = tempfile::tempdir().unwrap();
        let paths =
            NodePaths::new(root.path(), root.path().join("logs"), root.path().join("links"));
        let dir = root.path().join("pods/uid/containers/c");
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("f");
        fs::write(&file, "first").unwrap();
        let pod = PodRef::new("uid", "ns", "pod");
        let log = root.path().join("none");
        let snapshot = |containers| PodSnapshot {
            containers,
            ..PodSnapshot::empty(pod.clone(), Timestamp::UNIX_EPOCH)
        };
        let messages = TerminationMessages::default();
        let message = |messages: &TerminationMessages| {
            let mut snapshot = snapshot(vec![exited("a", "File", &file, &log, 1)]);
            messages.fill(&mut snapshot, &paths);
            match &snapshot.containers[0].state {
                ContainerState::Exited { message, .. } => message.clone(),
                _ => unreachable!("it has exited"),
            }
        };
        assert_eq!(message(&messages), "first");
        fs::write(&file, "second").unwrap();
        assert_eq!(message(&messages), "first");
        messages.fill(&mut snapshot(vec![]), &paths);
        assert!(messages.lock().is_empty());
        assert_eq!(message(&messages), "second");
    }

    #[test]
    fn at_most_eighty_lines_and_two_kilobytes_of_log() {
        let log: String = (0..200).map(|i| format!("t stdout F line {i}\n")).collect();
        let text = last_log_lines(&log);
        assert_eq!(text.lines().count(), 80);
        assert!(text.ends_with("line 199\n"));
        let long = format!("t stdout F {}\n", "y".repeat(10_000));
        assert_eq!(last_log_lines(&long).len(), 2048);
    }
}
