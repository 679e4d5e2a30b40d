//! Logs over the kubelet's port, and their rotation.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::{busybox, pod, with};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, PodView, wait_for};
use serde_json::json;

use crate::WAIT;
use crate::server::get;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::on_all(
        "logs_are_served_as_they_are_asked_for",
        logs_are_served_as_they_are_asked_for,
    ),
    Scenario::on_all(
        "a_log_that_is_rotated_is_followed_without_loss",
        a_log_that_is_rotated_is_followed_without_loss,
    ),
];

/// Writes some lines and fails; the second time it writes others and goes on. The one that is longer
/// than the runtime's lines comes in parts.
const TALE: &str = "
    if ! [ -e /dev/shm/been ]; then
        touch /dev/shm/been; echo before; exit 3
    fi
    printf '%040000d\\n' 7
    i=1; while [ $i -le 20 ]; do echo line $i; i=$((i+1)); done
    exec sleep 3600";

struct Log<'a> {
    kubelet: &'a KubeletProcess,
    pod: PodView,
    container: &'static str,
}

impl Log<'_> {
    fn ask(&self, query: &str) -> anyhow::Result<(u16, String)> {
        let PodView { namespace, name, .. } = &self.pod;
        get(
            self.kubelet,
            None,
            &format!("/containerLogs/{namespace}/{name}/{}?{query}", self.container),
        )
    }

    fn read(&self, query: &str) -> anyhow::Result<String> {
        let (status, text) = self.ask(query)?;
        ensure!(status == 200, "{query} is answered {status}: {text}");
        Ok(text)
    }
}

fn logs_are_served_as_they_are_asked_for(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = stage.start_kubelet()?;
    let shared = json!({ "volumeMounts": [{ "name": "shm", "mountPath": "/dev/shm" }] });
    let spec = json!({
        "containers": [
            with(busybox("app", TALE), shared),
            busybox("brief", "echo once"),
            busybox("loud", "echo on the other stream >&2; exec sleep 3600"),
        ],
        "initContainers": [busybox("setup", "echo prepared")],
        "volumes": [{ "name": "shm", "emptyDir": {} }],
        "restartPolicy": "OnFailure",
    });
    kubelet.write_pod(&pod("teller", spec))?;
    let unpullable = with(
        busybox("app", "true"),
        json!({ "imagePullPolicy": "Always", "image": "127.0.0.1:1/nothing" }),
    );
    kubelet.write_pod(&pod("imageless", json!({ "containers": [unpullable] })))?;
    let teller = kubelet.wait_for_pod("teller", "on its second run", WAIT, |pod| {
        pod.container("app").is_some_and(|app| app.restarts == 1 && app.is_running())
            && pod.container("brief").is_some_and(|brief| brief.state == "terminated")
    })?;
    let log = |container| Log { kubelet: &kubelet, pod: teller.clone(), container };
    let app = log("app");
    wait_for("the last line", WAIT, || match app.read("") {
        Ok(text) if text.contains("line 20\n") => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    wait_for("what is written to the other stream", WAIT, || match log("loud").read("") {
        Ok(text) if text == "on the other stream\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })?;

    let whole = app.read("")?;
    let lines: Vec<&str> = whole.lines().collect();
    ensure!(lines.len() == 21, "{} lines", lines.len());
    ensure!(lines[0].len() == 40_000 && lines[0].ends_with("07"), "{} bytes", lines[0].len());
    let written: Vec<String> = (1..=20).map(|number| format!("line {number}")).collect();
    ensure!(lines[1..] == written, "{lines:?}");
    ensure!(app.read("tailLines=3")?.lines().count() == 3);
    ensure!(app.read("tail=0")?.is_empty());
    ensure!(app.read("limitBytes=100")? == "0".repeat(100));
    ensure!(app.read("previous=true")? == "before\n");
    ensure!(app.read("sinceSeconds=3600")? == whole);
    ensure!(app.read("sinceTime=2099-01-01T00:00:00Z")?.is_empty());
    let stamped = app.read("timestamps=true&tailLines=1")?;
    let (time, text) = stamped.split_once(' ').context("no time")?;
    let digits =
        time.split_once('.').map(|(_, rest)| rest.bytes().take_while(u8::is_ascii_digit).count());
    ensure!(digits == Some(9) && text.ends_with('\n'), "{stamped}");
    ensure!(log("setup").read("")? == "prepared\n");
    ensure!(log("brief").read("follow=true")? == "once\n", "who has ended is not waited for");

    let name = &teller.name;
    for (container, query, status, text) in [
        ("other", "", 404, format!("container \"other\" not found in pod \"{name}\"")),
        (
            "brief",
            "previous=true",
            400,
            format!("previous terminated container \"brief\" in pod \"{name}\" not found"),
        ),
        ("app", "limitBytes=0", 422, r#"{"message": "Invalid request."}"#.to_owned()),
        ("app", "sinceTime=never", 400, r#"{"message": "Unable to decode query."}"#.to_owned()),
        (
            "app",
            "stream=Stderr",
            400,
            "unable to return the given log stream: \"Stderr\". Please enable \
             PodLogsQuerySplitStreams feature gate in kubelet"
                .to_owned(),
        ),
    ] {
        assert_eq!(log(container).ask(query)?, (status, text), "{container} {query}");
    }
    let (status, text) = get(&kubelet, None, "/containerLogs/default/nobody/app")?;
    assert_eq!((status, text.as_str()), (404, "pod \"nobody\" does not exist"));
    let imageless = kubelet.wait_for_pod("imageless", "without its image", WAIT, |pod| {
        pod.container("app").is_some_and(|app| app.reason.contains("ImagePull"))
    })?;
    let (status, text) = Log { kubelet: &kubelet, pod: imageless, container: "app" }.ask("")?;
    ensure!(status == 400, "{status} {text}");
    ensure!(
        text.ends_with("is waiting to start: image can't be pulled")
            || text.ends_with("is waiting to start: trying and failing to pull image"),
        "{text}"
    );
    Ok(())
}

fn a_log_that_is_rotated_is_followed_without_loss(stage: &Stage) -> anyhow::Result<()> {
    let mut options = stage.kubelet_options();
    options.config = json!({
        "containerLogMaxSize": "64Ki",
        "containerLogMaxFiles": 3,
        "containerLogMonitorInterval": "3s",
    });
    let kubelet = stage.start_kubelet_with(options)?;
    // It writes until it is told that there was enough, without a moment's rest when a log changes.
    let script = "
        i=0
        while ! [ -e /talk/enough ]; do
            n=$((i+500)); while [ $i -lt $n ]; do i=$((i+1)); echo $i; done
            sleep 0.02
        done";
    let talk = stage.runtime().dir().join(format!("talk-{}", stage.kubelet_options().node_name));
    std::fs::create_dir_all(&talk)?;
    let mount = json!({ "volumeMounts": [{ "name": "talk", "mountPath": "/talk" }] });
    let spec = json!({
        "containers": [with(busybox("app", script), mount)],
        "volumes": [{ "name": "talk", "hostPath": { "path": talk } }],
        "restartPolicy": "Never",
    });
    kubelet.write_pod(&pod("talker", spec))?;
    let talker = kubelet.wait_for_pod("talker", "running", WAIT, |pod| {
        pod.container("app").is_some_and(rubelet_e2e::ContainerView::is_running)
    })?;
    let log = Log { kubelet: &kubelet, pod: talker.clone(), container: "app" };
    let dir = kubelet
        .pod_logs()
        .join(format!("{}_{}_{}", talker.namespace, talker.name, talker.uid))
        .join("app");
    let names = || -> anyhow::Result<Vec<String>> {
        let entries = std::fs::read_dir(&dir)?;
        let mut names: Vec<String> = entries
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<std::io::Result<_>>()?;
        names.sort();
        Ok(names)
    };
    let followed = std::thread::scope(|scope| {
        let following = scope.spawn(|| log.read("follow=true"));
        let rotated = wait_for("two rotations and a third", WAIT, || match names() {
            // The oldest has gone by then.
            Ok(names) => {
                let first = names.iter().find(|name| name.ends_with(".gz")).cloned();
                first.ok_or_else(|| format!("{names:?}"))
            }
            Err(error) => Err(format!("{error:#}")),
        })
        .and_then(|first| {
            wait_for("the oldest to go", WAIT, || match names() {
                Ok(names) if !names.contains(&first) => Ok(()),
                other => Err(format!("{other:?}")),
            })
        });
        std::fs::write(talk.join("enough"), "")?;
        let followed = following.join().map_err(|_| anyhow::anyhow!("the follower panicked"))??;
        rotated?;
        anyhow::Ok(followed)
    })?;
    // A rotation may still be under way.
    let all = wait_for("the last rotation to end", WAIT, || match names() {
        Ok(names) if !names.iter().any(|name| name.ends_with(".tmp")) => Ok(names),
        other => Err(format!("{other:?}")),
    })?;
    ensure!(all.len() <= 3 && all[0] == "0.log", "{all:?}");
    let mut expected: u64 = 0;
    for line in followed.lines() {
        expected += 1;
        ensure!(
            line == expected.to_string(),
            "{line:?} where {expected} is due; {}",
            on_disk(&dir, expected)?
        );
    }
    ensure!(expected > 10_000, "only {expected} lines");

    // What was compressed is whole, and goes on in the next file.
    let compressed = all.iter().rfind(|name| name.ends_with(".gz"));
    let compressed = dir.join(compressed.with_context(|| format!("{all:?}"))?);
    let unpacked = Command::new("gzip").arg("-dc").arg(&compressed).output()?;
    ensure!(unpacked.status.success(), "{}", String::from_utf8_lossy(&unpacked.stderr));
    // A container that ends while its log is rotated keeps it.
    let next = all.iter().find(|name| name.len() == "0.log.20260101-000000".len());
    let next = std::fs::read(dir.join(next.unwrap_or(&all[0])))?;
    let number = |line: Option<&[u8]>| -> anyhow::Result<u64> {
        let line = String::from_utf8_lossy(line.context("no line")?).into_owned();
        let number = line.trim_end().rsplit(' ').next().context("no number")?;
        number.parse().with_context(|| line.clone())
    };
    let last = number(unpacked.stdout.split_inclusive(|byte| *byte == b'\n').next_back())?;
    let first = number(next.split_inclusive(|byte| *byte == b'\n').next())?;
    ensure!(first == last + 1, "{last} is followed by {first}");
    Ok(())
}

/// Where the logs in `dir` have the lines around a number.
fn on_disk(dir: &Path, number: u64) -> anyhow::Result<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let text = match path.extension() {
            Some(extension) if extension == "gz" => {
                Command::new("gzip").arg("-dc").arg(&path).output()?.stdout
            }
            _ => std::fs::read(&path)?,
        };
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        let around = lines.iter().position(|line| line.ends_with(&format!(" {number}")));
        let around = around.map(|at| &lines[at.saturating_sub(2)..(at + 3).min(lines.len())]);
        let ends = (lines.first(), lines.last());
        found.push(format!("{} {ends:?} {around:?}", path.display()));
    }
    Ok(found.join("\n"))
}
