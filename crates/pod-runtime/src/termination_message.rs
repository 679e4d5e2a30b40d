//! What an ended container has to say.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rubelet_types::{ContainerId, ContainerSnapshot, ContainerState, NodePaths, PodSnapshot};

/// Bytes of one message.
const MAX_MESSAGE: u64 = 4096;
/// Bytes of all messages of a pod.
const MAX_POD_MESSAGES: usize = 12 * 1024;
/// Lines taken from the log instead.
const MAX_LOG_LINES: usize = 80;
/// Bytes taken from the log instead.
const MAX_LOG_BYTES: usize = 2048;
/// Bytes of the log that are looked at: records are longer than the text in them.
const LOG_WINDOW: u64 = 64 * 1024;

/// Reads termination messages, each once: what an ended container said never changes.
#[derive(Debug, Default)]
pub struct TerminationMessages {
    known: Mutex<HashMap<ContainerId, String>>,
}

impl TerminationMessages {
    /// Puts the termination messages of ended containers into `snapshot`. Does file I/O.
    pub fn fill(&self, snapshot: &mut PodSnapshot, paths: &NodePaths) {
        let pod_dir = paths.pod_dir(&snapshot.pod.uid);
        let ended = snapshot.containers.iter().filter(|c| c.exit_code().is_some()).count();
        let share = MAX_POD_MESSAGES / ended.max(1);
        for container in &mut snapshot.containers {
            if container.exit_code().is_none() {
                continue;
            }
            let remembered = self.lock().get(&container.id).cloned();
            let text = remembered.unwrap_or_else(|| {
                let text = read_message(container, &pod_dir);
                self.lock().insert(container.id.clone(), text.clone());
                text
            });
            if let ContainerState::Exited { message, .. } = &mut container.state
                && !text.is_empty()
            {
                *message = tail_at_char(&text, share).to_owned();
            }
        }
    }

    /// Forgets the messages of containers that are gone.
    pub fn retain(&self, keep: impl Fn(&ContainerId) -> bool) {
        self.lock().retain(|id, _| keep(id));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<ContainerId, String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_message(container: &ContainerSnapshot, pod_dir: &Path) -> String {
    let annotations = &container.annotations;
    let from_file = container
        .mounts
        .get(&annotations.termination_message_path)
        .map(Path::new)
        // A container of another kubelet may have anything mounted there.
        .filter(|path| path.starts_with(pod_dir))
        .and_then(|path| read_tail(path, MAX_MESSAGE).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let from_log = from_file.is_empty()
        && annotations.termination_message_policy == "FallbackToLogsOnError"
        && container.exit_code() != Some(0);
    if !from_log {
        return from_file;
    }
    read_tail(Path::new(&container.log_path), LOG_WINDOW)
        .map(|bytes| last_log_lines(&String::from_utf8_lossy(&bytes)))
        .unwrap_or_default()
}

/// The last bytes of a regular file; a link is not followed, a FIFO does not block.
fn read_tail(path: &Path, max: u64) -> io::Result<Vec<u8>> {
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
    if !text.is_empty() {
        text.push('\n');
    }
    tail_at_char(&text, MAX_LOG_BYTES).to_owned()
}

fn tail_at_char(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
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
        let ok = messages(root.path(), vec![exited("d", "FallbackToLogsOnError", &empty, &log, 0)]);
        assert_eq!(ok, [""]);
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
        assert_eq!(found, ["", ""]);
    }

    #[test]
    fn many_messages_share_the_room_of_the_pod() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("pods/uid/containers/c");
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("f");
        fs::write(&file, "ü".repeat(2048)).unwrap();
        let containers = (0..6)
            .map(|i| exited(&format!("c{i}"), "File", &file, root.path(), 1))
            .collect::<Vec<_>>();
        let found = messages(root.path(), containers);
        assert_eq!(found.iter().map(String::len).sum::<usize>(), 6 * 2048);
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
