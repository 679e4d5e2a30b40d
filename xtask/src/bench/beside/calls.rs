//! The runtime's part of a pod's start, as containerd's own log tells it: it notes the beginning and
//! the end of each call, so no kubelet has to be asked, and none is slowed down by being watched.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;

/// A call from its beginning to its end.
type Span = (Timestamp, Timestamp);

/// A place in the runtime's log.
#[derive(Debug)]
pub(super) struct Mark {
    log: PathBuf,
    from: u64,
}

impl Mark {
    /// Its end as it is now.
    pub(super) fn now(runtime_dir: &Path) -> anyhow::Result<Self> {
        let log = runtime_dir.join("containerd.log");
        let from = std::fs::metadata(&log).context("the runtime has no log")?.len();
        Ok(Self { log, from })
    }

    /// The calls from there on.
    pub(super) fn calls(&self) -> anyhow::Result<Calls> {
        let mut file = File::open(&self.log).context("the runtime has no log")?;
        file.seek(SeekFrom::Start(self.from))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(Calls::read(&String::from_utf8_lossy(&text)))
    }
}

/// The calls that starts of pods consist of.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Those of each pod, by its uid: of its sandbox, and of its containers.
    of_pods: BTreeMap<String, Vec<Span>>,
}

impl Calls {
    fn read(log: &str) -> Self {
        let mut calls = Self::default();
        // What is under way, by the words that begin it; and which pod's sandboxes and containers are.
        let mut begun: BTreeMap<String, Timestamp> = BTreeMap::new();
        let mut owners: BTreeMap<String, String> = BTreeMap::new();
        for (at, text) in log.lines().filter_map(entry) {
            let (call, answer) = match text.split_once(" returns ") {
                Some((call, answer)) => (call, Some(answer)),
                None => (text.as_str(), None),
            };
            let quoted = call.split('"').nth(1).unwrap_or_default();
            let (key, owner) = if call.starts_with("RunPodSandbox for ") {
                let uid = call.split_once("uid:\"").and_then(|(_, rest)| rest.split('"').next());
                (call.to_owned(), uid.map(str::to_owned))
            } else if call.starts_with("CreateContainer within sandbox ") {
                // It says the attempt only when it begins.
                let container =
                    call.split_once("name:\"").and_then(|(_, rest)| rest.split('"').next());
                let key = format!("CreateContainer {quoted} {}", container.unwrap_or_default());
                (key, owners.get(quoted).cloned())
            } else if call.starts_with("StartContainer for ") {
                (call.to_owned(), owners.get(quoted).cloned())
            } else {
                continue;
            };
            let (Some(answer), Some(owner)) = (answer, owner) else {
                begun.insert(key, at);
                continue;
            };
            if let Some(id) = answer.split('"').nth(1) {
                owners.insert(id.to_owned(), owner.clone());
            }
            if let Some(from) = begun.remove(&key) {
                calls.of_pods.entry(owner).or_default().push((from, at));
            }
        }
        calls
    }

    /// How long the calls for a pod of one container took, which are one after the other.
    pub(super) fn of_pod(&self, uid: &str) -> Duration {
        let spans = self.of_pods.get(uid).map(Vec::as_slice).unwrap_or_default();
        spans.iter().map(length).sum()
    }

    /// How long all calls took, each for itself.
    pub(super) fn sum(&self) -> Duration {
        self.of_pods.values().flatten().map(length).sum()
    }

    /// How long at least one call was under way.
    pub(super) fn busy(&self) -> Duration {
        let mut spans: Vec<Span> = self.of_pods.values().flatten().copied().collect();
        spans.sort();
        let mut busy = Duration::ZERO;
        let mut until = Timestamp::MIN;
        for (from, to) in spans {
            busy += length(&(from.max(until), to));
            until = until.max(to);
        }
        busy
    }
}

/// What stands between the calls that start a pod, and has to be answered before the next of them.
const QUESTIONS: [&str; 3] = ["podsandbox_status", "image_status", "container_status"];

/// How often a kubelet has asked the runtime each of [`QUESTIONS`], and for how long altogether in
/// seconds, as its metrics tell.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked([(f64, f64); QUESTIONS.len()]);

impl Asked {
    pub(super) fn read(metrics: &str) -> Self {
        let value = |what: &str, question: &str| {
            let series = format!(
                "kubelet_runtime_operations_duration_seconds_{what}{{operation_type=\"{question}\"}} "
            );
            let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
            line.and_then(|value| value.parse().ok()).unwrap_or_default()
        };
        Self(QUESTIONS.map(|question| (value("count", question), value("sum", question))))
    }

    /// How long the runtime took to answer one of each since `before`, on average.
    pub(super) fn since(&self, before: &Self) -> Duration {
        let each =
            self.0.iter().zip(&before.0).map(|((count, sum), (count_before, sum_before))| {
                let count = count - count_before;
                if count > 0.0 { (sum - sum_before) / count } else { 0.0 }
            });
        Duration::try_from_secs_f64(each.sum()).unwrap_or_default()
    }
}

fn length((from, to): &Span) -> Duration {
    Duration::try_from(to.duration_since(*from)).unwrap_or_default()
}

/// Time and text of a line like `time="2026-11-30T18:31:33.049Z" level=info msg="..."`.
fn entry(line: &str) -> Option<(Timestamp, String)> {
    let (time, rest) = line.strip_prefix("time=\"")?.split_once('"')?;
    let text = rest.split_once("msg=\"")?.1.replace("\\\"", "\u{0}");
    let text = text.split('"').next()?.replace('\u{0}', "\"");
    Some((time.parse().ok()?, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = r#"
time="2026-11-30T10:00:00.000000000Z" level=info msg="RunPodSandbox for name:\"a\" uid:\"ua\" namespace:\"n\""
time="2026-11-30T10:00:00.100000000Z" level=info msg="RunPodSandbox for name:\"b\" uid:\"ub\" namespace:\"n\""
time="2026-11-30T10:00:00.300000000Z" level=info msg="RunPodSandbox for name:\"a\" uid:\"ua\" namespace:\"n\" returns sandbox id \"sa\""
time="2026-11-30T10:00:00.310000000Z" level=info msg="CreateContainer within sandbox \"sa\" for container name:\"app\""
time="2026-11-30T10:00:00.320000000Z" level=warning msg="something else"
time="2026-11-30T10:00:00.350000000Z" level=info msg="CreateContainer within sandbox \"sa\" for name:\"app\" returns container id \"ca\""
time="2026-11-30T10:00:00.400000000Z" level=info msg="RunPodSandbox for name:\"b\" uid:\"ub\" namespace:\"n\" returns sandbox id \"sb\""
time="2026-11-30T10:00:00.500000000Z" level=info msg="StartContainer for \"ca\""
time="2026-11-30T10:00:00.560000000Z" level=info msg="StartContainer for \"ca\" returns successfully"
time="2026-11-30T10:00:00.600000000Z" level=info msg="StartContainer for \"cx\""
"#;

    #[test]
    fn one_of_each_question_counts_as_long_as_it_took_on_average() {
        let metrics = |statuses: u32, seconds: f64, images: u32| {
            let of = |question: &str, count: u32, sum: f64| {
                let name = "kubelet_runtime_operations_duration_seconds";
                format!(
                    "{name}_sum{{operation_type=\"{question}\"}} {sum}\n\
                     {name}_count{{operation_type=\"{question}\"}} {count}\n"
                )
            };
            of("container_status", statuses, seconds) + &of("image_status", images, 1.0)
        };
        let before = Asked::read(&metrics(10, 2.0, 1));
        let after = Asked::read(&metrics(12, 2.5, 1));
        assert_eq!(after.since(&before), Duration::from_millis(250));
        assert_eq!(after.since(&Asked::default()), Duration::from_secs_f64(2.5 / 12.0 + 1.0));
    }

    #[test]
    fn the_calls_of_a_pod_are_found_by_its_sandbox_and_container() {
        let calls = Calls::read(LOG);
        assert_eq!(calls.of_pod("ua"), Duration::from_millis(300 + 40 + 60));
        assert_eq!(calls.of_pod("ub"), Duration::from_millis(300));
        assert_eq!(calls.of_pod("uc"), Duration::ZERO);
        assert_eq!(calls.sum(), Duration::from_millis(700));
        assert_eq!(calls.busy(), Duration::from_millis(400 + 60));
    }
}
