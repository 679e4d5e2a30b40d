use std::fs;
use std::os::unix::fs::symlink;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{PodConfig, PodSource, PodSourceSettings};

const DEADLINE: Duration = Duration::from_secs(20);
/// Longer than any test: whatever is seen was hinted at.
const NEVER: Duration = Duration::from_secs(3600);

struct Running {
    root: tempfile::TempDir,
    changes: mpsc::Receiver<crate::PodChange>,
    wanted: std::collections::BTreeMap<String, String>,
    _task: AbortOnDropHandle<()>,
}

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: \
         c\n    image: {image}\n"
    )
}

#[allow(clippy::disallowed_methods)] // Fingerprints are compared with the machine's clock.
fn clock() -> Clock {
    Clock::from_fn(Timestamp::now)
}

impl Running {
    async fn start(below: &str, period: Duration, open_watch: OpenWatch) -> Self {
        Self::start_with(below, period, open_watch, DELAYS).await
    }

    async fn start_with(
        below: &str,
        period: Duration,
        open_watch: OpenWatch,
        delays: Delays,
    ) -> Self {
        let root = tempfile::tempdir().unwrap();
        let settings = PodSourceSettings {
            static_pod_path: None,
            file_check_frequency: period,
            manifest_url: None,
            manifest_url_headers: Vec::new(),
            http_check_frequency: period,
            node_name: "node".to_owned(),
            prevent_api_references: true,
        };
        let events = rubelet_types::EventRecorder::discard();
        let (mut config, out) = PodConfig::new(settings, clock(), events).unwrap();
        let handle = config.register_source(PodSource::File);
        let policy = StaticPodPolicy { node_name: "node".to_owned(), prevent_api_references: true };
        let path = root.path().join(below);
        let mut source = FileSource::new(path, period, policy, clock(), handle);
        source.open_watch = open_watch;
        source.delays = delays;
        let task = tokio::spawn(async move {
            let cancel = tokio_util::sync::CancellationToken::new();
            tokio::join!(config.run(cancel), source.run());
        });
        let mut running = Self {
            root,
            changes: out.changes,
            wanted: Default::default(),
            _task: AbortOnDropHandle::new(task),
        };
        // The first set says that the watch is in place.
        running.apply_next().await;
        running
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    async fn apply_next(&mut self) {
        let change = tokio::time::timeout(DEADLINE, self.changes.recv()).await;
        let change = change.expect("a change in time").expect("the source runs");
        for pod in change.pods {
            let uid = pod.metadata.uid.clone().unwrap();
            match change.op {
                crate::PodOperation::Remove => {
                    self.wanted.remove(&uid);
                }
                _ => {
                    let spec = pod.spec.as_ref().unwrap();
                    let image = spec.containers[0].image.clone().unwrap();
                    let name = pod.metadata.name.clone().unwrap();
                    self.wanted.insert(uid, format!("{name} {image}"));
                }
            }
        }
    }

    /// Waits until exactly these pods are wanted.
    async fn wants(&mut self, expected: &[&str]) {
        loop {
            let mut wanted: Vec<&str> = self.wanted.values().map(String::as_str).collect();
            wanted.sort_unstable();
            if wanted == expected {
                return;
            }
            let seen = format!("{wanted:?}");
            let next = tokio::time::timeout(DEADLINE, self.apply_next()).await;
            assert!(next.is_ok(), "wanted {expected:?}, saw {seen}");
        }
    }
}

#[tokio::test]
async fn changes_are_seen_by_their_events() {
    let mut running = Running::start("", NEVER, DirectoryWatch::open).await;
    let (a, temporary) = (running.path("a.yaml"), running.path(".a.yaml.tmp"));
    fs::write(&a, manifest("a", "i:1")).unwrap();
    running.wants(&["a-node i:1"]).await;
    // In place, as cp does.
    fs::write(&a, manifest("a", "i:2")).unwrap();
    running.wants(&["a-node i:2"]).await;
    // By rename, as careful writers do.
    fs::write(&temporary, manifest("a", "i:3")).unwrap();
    fs::rename(&temporary, &a).unwrap();
    running.wants(&["a-node i:3"]).await;
    // As a link.
    fs::write(&temporary, manifest("b", "i:1")).unwrap();
    symlink(&temporary, running.path("b.yaml")).unwrap();
    running.wants(&["a-node i:3", "b-node i:1"]).await;
    fs::remove_file(&a).unwrap();
    running.wants(&["b-node i:1"]).await;
    fs::rename(running.path("b.yaml"), running.path(".b")).unwrap();
    running.wants(&[]).await;
}

#[tokio::test]
async fn remove_and_copy_always_ends_with_the_pod() {
    let mut running = Running::start("", NEVER, DirectoryWatch::open).await;
    let (a, copy) = (running.path("a.yaml"), running.path(".copy"));
    for round in 0..100 {
        let image = format!("i:{}", round / 10);
        let _ = fs::remove_file(&a);
        match round % 3 {
            // At once; after the removal was seen; and with the copy under its name at once.
            0 => fs::write(&a, manifest("a", &image)).unwrap(),
            1 => {
                running.wants(&[]).await;
                fs::write(&a, manifest("a", &image)).unwrap();
            }
            _ => {
                fs::write(&copy, manifest("a", &image)).unwrap();
                fs::rename(&copy, &a).unwrap();
            }
        }
        running.wants(&[&format!("a-node {image}")]).await;
    }
}

#[tokio::test]
async fn a_quick_replacement_disturbs_nothing() {
    let mut running = Running::start("", NEVER, DirectoryWatch::open).await;
    let (a, backup) = (running.path("a.yaml"), running.path(".backup"));
    fs::write(&a, manifest("a", "i:1")).unwrap();
    running.wants(&["a-node i:1"]).await;
    // As editors with backups do.
    fs::rename(&a, &backup).unwrap();
    fs::copy(&backup, &a).unwrap();
    fs::write(running.path("z.yaml"), manifest("z", "i:1")).unwrap();
    let change = tokio::time::timeout(DEADLINE, running.changes.recv()).await.unwrap().unwrap();
    assert_eq!(change.op, crate::PodOperation::Add, "{change:?}");
    assert_eq!(change.pods[0].metadata.name.as_deref(), Some("z-node"));
}

#[tokio::test]
async fn a_slow_writer_is_waited_for() {
    use std::io::Write;
    let mut running = Running::start_with(
        "",
        NEVER,
        DirectoryWatch::open,
        Delays { unfinished: NEVER, ..DELAYS },
    )
    .await;
    let text = manifest("a", "i:1") + "    args: [one]\n";
    let mut file = fs::File::create(running.path("a.yaml")).unwrap();
    // The first part alone would be a valid pod.
    let (first, rest) = text.split_at(text.find("    args").unwrap());
    file.write_all(first.as_bytes()).unwrap();
    // Another file is seen meanwhile.
    fs::write(running.path("z.yaml"), manifest("z", "i:1")).unwrap();
    running.wants(&["z-node i:1"]).await;
    file.write_all(rest.as_bytes()).unwrap();
    drop(file);
    let change = tokio::time::timeout(DEADLINE, running.changes.recv()).await.unwrap().unwrap();
    let pod = &change.pods[0];
    let args = pod.spec.as_ref().unwrap().containers[0].args.clone();
    assert_eq!(args, Some(vec!["one".to_owned()]));
}

#[tokio::test]
async fn one_file_instead_of_a_directory() {
    let mut running = Running::start("pod.yaml", NEVER, DirectoryWatch::open).await;
    let pod = running.path("pod.yaml");
    // The path is missing at first; it is looked at again after a second.
    fs::write(running.path("other.yaml"), manifest("other", "i:1")).unwrap();
    fs::write(&pod, manifest("a", "i:1")).unwrap();
    running.wants(&["a-node i:1"]).await;
    fs::write(running.path("new"), manifest("a", "i:2")).unwrap();
    fs::rename(running.path("new"), &pod).unwrap();
    running.wants(&["a-node i:2"]).await;
    fs::remove_file(&pod).unwrap();
    running.wants(&[]).await;
}

#[tokio::test]
async fn a_directory_that_comes_later_goes_and_comes_back() {
    let mut running = Running::start("dir", NEVER, DirectoryWatch::open).await;
    for round in 0..2 {
        let image = format!("i:{round}");
        fs::create_dir(running.path("dir")).unwrap();
        fs::write(running.path("dir/a.yaml"), manifest("a", &image)).unwrap();
        running.wants(&[&format!("a-node {image}")]).await;
        fs::remove_dir_all(running.path("dir")).unwrap();
        running.wants(&[]).await;
    }
    fs::create_dir(running.path("dir")).unwrap();
    fs::write(running.path("dir/a.yaml"), manifest("a", "i:1")).unwrap();
    running.wants(&["a-node i:1"]).await;
    fs::rename(running.path("dir"), running.path("away")).unwrap();
    running.wants(&[]).await;
}

#[tokio::test]
async fn a_config_map_mount_swaps_at_once() {
    let mut running = Running::start("", NEVER, DirectoryWatch::open).await;
    for (version, image) in [("..1", "i:1"), ("..2", "i:2")] {
        fs::create_dir(running.path(version)).unwrap();
        fs::write(running.path(version).join("a.yaml"), manifest("a", image)).unwrap();
    }
    symlink("..1", running.path("..data")).unwrap();
    symlink("..data/a.yaml", running.path("a.yaml")).unwrap();
    running.wants(&["a-node i:1"]).await;
    symlink("..2", running.path("..data_tmp")).unwrap();
    fs::rename(running.path("..data_tmp"), running.path("..data")).unwrap();
    running.wants(&["a-node i:2"]).await;
}

#[tokio::test]
async fn without_watches_there_is_polling() {
    let none: OpenWatch = |_| Err(io::Error::from_raw_os_error(28));
    let mut running = Running::start("", Duration::from_millis(50), none).await;
    fs::write(running.path("a.yaml"), manifest("a", "i:1")).unwrap();
    running.wants(&["a-node i:1"]).await;
    fs::write(running.path("a.yaml"), manifest("a", "i:2")).unwrap();
    running.wants(&["a-node i:2"]).await;
    fs::remove_file(running.path("a.yaml")).unwrap();
    running.wants(&[]).await;
}

#[tokio::test]
async fn a_flood_of_events_loses_nothing() {
    let mut running = Running::start("", NEVER, DirectoryWatch::open).await;
    for index in 0..3000 {
        fs::write(running.path(&format!("junk{index}")), "x").unwrap();
    }
    fs::write(running.path("a.yaml"), manifest("a", "i:1")).unwrap();
    for index in 0..3000 {
        fs::remove_file(running.path(&format!("junk{index}"))).unwrap();
    }
    running.wants(&["a-node i:1"]).await;
}
