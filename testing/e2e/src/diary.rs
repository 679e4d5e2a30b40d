//! What containers write down about themselves while they run, in the order in which it happened.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use crate::wait::wait_for;

/// Where the directory is seen inside of a container.
const MOUNT: &str = "/diary";

/// A directory that pods mount, with one file to which their containers append lines.
///
/// One line is one write to a file opened for appending, so the lines stand in the order of the
/// events, over all pods.
#[derive(Debug, Clone)]
pub struct Diary {
    dir: PathBuf,
}

/// A line of a [`Diary`].
#[derive(Debug, Clone, PartialEq)]
pub struct DiaryEntry {
    /// When it was written, in seconds after boot ([`uptime`] tells the same clock).
    pub at: f64,
    /// Who wrote it: the name given to [`Diary::container`].
    pub who: String,
    /// What was written.
    pub what: String,
}

impl Diary {
    /// An empty diary in a new directory.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn create(dir: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)
            .and_then(|()| fs::write(dir.join("log"), ""))
            // Containers with a user of their own write here, too.
            .and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o777)))
            .and_then(|()| fs::set_permissions(dir.join("log"), Permissions::from_mode(0o666)))
            .with_context(|| format!("cannot make the diary {}", dir.display()))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// The directory, seen by containers as `/diary`: they may keep more in there.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The volume for `spec.volumes`.
    pub fn volume(&self) -> Value {
        json!({ "name": "diary", "hostPath": { "path": self.dir, "type": "Directory" } })
    }

    /// The mount for `spec.containers[].volumeMounts`.
    pub fn mount() -> Value {
        json!({ "name": "diary", "mountPath": MOUNT })
    }

    /// A script in which `note TEXT` writes a line as `who`, and `alone` writes `overlap` when
    /// another one of that name, which called it, still runs.
    ///
    /// The first to call it leaves a token in a pipe that it holds open, and the kernel throws the
    /// token away with the pipe's last holder, however that one ends.
    pub fn script(who: &str, script: &str) -> String {
        let pipe = format!("{MOUNT}/alone.{}", who.replace('/', "."));
        format!(
            "note() {{ read at idle </proc/uptime; echo \"$at {who} $*\" >>{MOUNT}/log; }}\n\
             alone() {{ mkfifo -m 666 {pipe} 2>/dev/null; exec 9<>{pipe}; \
             read -t 0 token <&9 && note overlap; echo token >&9; }}\n{script}"
        )
    }

    /// As [`Diary::container`], for one that is alone, writes `start`, goes on until it is told to
    /// end, and then writes `term`, runs `last`, writes `end` and exits with 0.
    /// [`Diary::has_started`] can tell when it has come as far as `start`.
    pub fn service(name: &str, who: &str, last: &str) -> Value {
        let script = format!(
            "trap 'note term; {last}; note end; exit 0' TERM\n\
             alone; note start; touch /tmp/started; while :; do sleep 1000 & wait $!; done"
        );
        Self::container(name, who, &script)
    }

    /// A probe that succeeds once a [`Diary::service`] has written `start`: that the runtime started
    /// a container does not say how far its process has come.
    pub fn has_started() -> Value {
        json!({
            "exec": { "command": ["test", "-e", "/tmp/started"] },
            "periodSeconds": 1,
            "timeoutSeconds": 10,
            "failureThreshold": 60,
        })
    }

    /// A busybox container `name` that runs [`Diary::script`].
    pub fn container(name: &str, who: &str, script: &str) -> Value {
        json!({
            "name": name,
            "image": "busybox",
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", Self::script(who, script)],
            "volumeMounts": [Self::mount()],
        })
    }

    /// The lines so far.
    ///
    /// # Errors
    /// When they cannot be read, or a line was not written by `note`.
    pub fn entries(&self) -> anyhow::Result<Vec<DiaryEntry>> {
        let text = fs::read_to_string(self.dir.join("log")).context("cannot read the diary")?;
        let parse = |line: &str| -> Option<DiaryEntry> {
            let mut words = line.splitn(3, ' ');
            let at = words.next()?.parse().ok()?;
            let (who, what) = (words.next()?.to_owned(), words.next()?.to_owned());
            Some(DiaryEntry { at, who, what })
        };
        text.lines()
            .map(|line| parse(line).with_context(|| format!("no line of a diary: {line:?}")))
            .collect()
    }

    /// The lines of those whose name starts with `prefix`, as `WHO WHAT`.
    ///
    /// # Errors
    /// As for [`Diary::entries`].
    pub fn lines(&self, prefix: &str) -> anyhow::Result<Vec<String>> {
        let entries = self.entries()?;
        let of = entries.iter().filter(|entry| entry.who.starts_with(prefix));
        Ok(of.map(|entry| format!("{} {}", entry.who, entry.what)).collect())
    }

    /// When `who` wrote `what`, each time.
    ///
    /// # Errors
    /// As for [`Diary::entries`].
    pub fn times(&self, who: &str, what: &str) -> anyhow::Result<Vec<f64>> {
        let entries = self.entries()?;
        let of = entries.iter().filter(|entry| entry.who == who && entry.what == what);
        Ok(of.map(|entry| entry.at).collect())
    }

    /// Waits until `who` has written `what` `count` times, and returns when.
    ///
    /// # Errors
    /// When `timeout` passes first; the error carries all lines.
    pub fn wait_for(
        &self,
        who: &str,
        what: &str,
        count: usize,
        timeout: Duration,
    ) -> anyhow::Result<Vec<f64>> {
        wait_for(&format!("{who} to write {what:?} {count} times"), timeout, || {
            let times = self.times(who, what).map_err(|error| format!("{error:#}"))?;
            if times.len() >= count {
                return Ok(times);
            }
            Err(format!("the diary has {:?}", self.lines("").unwrap_or_default()))
        })
    }
}

/// Seconds after boot, by the clock of the diaries.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn uptime() -> anyhow::Result<f64> {
    let text = fs::read_to_string("/proc/uptime").context("cannot read /proc/uptime")?;
    text.split(' ')
        .next()
        .and_then(|seconds| seconds.parse().ok())
        .with_context(|| format!("/proc/uptime has {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_one_writer_keep_their_order() {
        let dir = std::env::temp_dir().join(format!("rubelet-diary-{}", std::process::id()));
        let diary = Diary::create(&dir).expect("created");
        let text = "1.50 a/x start\n2.25 b start\n3.00 a/y end of it\n";
        fs::write(dir.join("log"), text).expect("written");
        assert_eq!(diary.lines("a").expect("read"), ["a/x start", "a/y end of it"]);
        assert_eq!(diary.times("b", "start").expect("read"), [2.25]);
        fs::write(dir.join("log"), "nonsense\n").expect("written");
        assert!(diary.entries().is_err());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
