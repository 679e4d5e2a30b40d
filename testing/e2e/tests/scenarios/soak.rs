//! A kubelet that is killed again and again while its pods come, run, crash and go.
//!
//! `RUBELET_SOAK_KILLS` (20) says how often, `RUBELET_SOAK_SEED` repeats a run.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rubelet_e2e::manifest::{pod, with};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{Deadline, Diary, DiaryEntry, KubeletProcess, PodView, wait_for};
use serde_json::{Value, json};

use crate::WAIT;
use crate::lifecycle::wait_until_nothing_is_left;

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario::on_all(
    "a_kubelet_killed_again_and_again_restarts_nothing_that_did_not_fail_and_leaves_nothing",
    a_kubelet_killed_again_and_again_restarts_nothing_that_did_not_fail_and_leaves_nothing,
)];

const KILLS: u32 = 20;
/// How long a kubelet lives at most before it is killed.
const LIFE: Duration = Duration::from_millis(3000);

/// Pods of each kind.
const STEADY: usize = 6;
const CRASHING: usize = 3;
const JOBS: usize = 4;
const TRAVELLERS: usize = 7;

/// The writer of a diary is one instance of one container: `POD/CONTAINER`.
fn steady(name: &str, diary: &Diary, index: usize) -> Value {
    let app = Diary::service("app", &format!("{name}/app"), ":");
    let mut spec = json!({
        "terminationGracePeriodSeconds": 10,
        "containers": [app],
        "volumes": [diary.volume(), { "name": "scratch", "emptyDir": {} }],
    });
    let probe =
        json!({ "exec": { "command": ["true"] }, "periodSeconds": 1, "timeoutSeconds": 10 });
    match index % 3 {
        0 => {}
        1 => spec["containers"][0]["livenessProbe"] = probe,
        _ => {
            let sidecar = Diary::service("sidecar", &format!("{name}/sidecar"), ":");
            spec["initContainers"] = json!([
                Diary::container("init", &format!("{name}/init"), "note start; note end"),
                with(sidecar, json!({ "restartPolicy": "Always" })),
            ]);
        }
    }
    pod(name, spec)
}

/// Ends by itself after a while, with an exit code that it writes down.
fn crashing(name: &str, diary: &Diary, index: usize) -> Value {
    let script = format!("note start; sleep {}; note end; exit 7", 1 + index);
    let containers = [Diary::container("app", &format!("{name}/app"), &script)];
    pod(name, json!({ "containers": containers, "volumes": [diary.volume()] }))
}

/// Runs once, or until it succeeds for the first time.
fn job(name: &str, diary: &Diary, index: usize) -> Value {
    let policy = if index.is_multiple_of(2) { "Never" } else { "OnFailure" };
    let script = format!("note start; sleep {}; note end", 2 + 3 * index);
    pod(
        name,
        json!({
            "restartPolicy": policy,
            "containers": [Diary::container("app", &format!("{name}/app"), &script)],
            "volumes": [diary.volume()],
        }),
    )
}

/// What a pod that comes and goes is doing, as far as its manifest tells.
#[derive(Debug)]
struct Traveller {
    name: String,
    generation: u32,
    is_there: bool,
}

impl Traveller {
    /// Takes it away, puts it back, or changes it.
    fn step(
        &mut self,
        kubelet: &KubeletProcess,
        diary: &Diary,
        random: &mut StdRng,
    ) -> anyhow::Result<()> {
        if self.is_there && random.random_bool(0.6) {
            kubelet.remove_pod(&self.name)?;
            self.is_there = false;
            return Ok(());
        }
        self.generation += 1;
        self.write(kubelet, diary)
    }

    fn write(&mut self, kubelet: &KubeletProcess, diary: &Diary) -> anyhow::Result<()> {
        let mut manifest = steady(&self.name, diary, self.generation as usize);
        manifest["metadata"]["labels"] = json!({ "generation": self.generation.to_string() });
        self.is_there = true;
        kubelet.write_pod(&manifest)
    }
}

fn from_environment<T: std::str::FromStr>(name: &str, default: T) -> anyhow::Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().with_context(|| format!("{name}={text} is no number")),
        Err(_) => Ok(default),
    }
}

fn a_kubelet_killed_again_and_again_restarts_nothing_that_did_not_fail_and_leaves_nothing(
    stage: &Stage,
) -> anyhow::Result<()> {
    let kills = from_environment("RUBELET_SOAK_KILLS", KILLS)?;
    let seed = from_environment("RUBELET_SOAK_SEED", u64::from(std::process::id()))?;
    soak(stage, kills, seed).with_context(|| format!("RUBELET_SOAK_SEED={seed}"))
}

fn soak(stage: &Stage, kills: u32, seed: u64) -> anyhow::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut options = stage.kubelet_options();
    options.config = json!({
        "crashLoopBackOff": { "maxContainerRestartPeriod": "2s" },
        // The Go kubelet tells of events at this level.
        "logging": { "verbosity": 3 },
    });
    let mut kubelet = stage.start_kubelet_with(options)?;
    let diary = Diary::create(&kubelet.manifests().with_file_name("diary"))?;

    let named = |kind: &str, count: usize| -> Vec<String> {
        (0..count).map(|index| format!("{kind}-{index}")).collect()
    };
    let (steadies, crashers) = (named("steady", STEADY), named("crash", CRASHING));
    let jobs = named("job", JOBS);
    for (index, name) in steadies.iter().enumerate() {
        kubelet.write_pod(&steady(name, &diary, index))?;
    }
    for (index, name) in crashers.iter().enumerate() {
        kubelet.write_pod(&crashing(name, &diary, index))?;
    }
    for (index, name) in jobs.iter().enumerate() {
        kubelet.write_pod(&job(name, &diary, index))?;
    }
    let mut travellers: Vec<Traveller> = named("travel", TRAVELLERS)
        .into_iter()
        .map(|name| Traveller { name, generation: 0, is_there: false })
        .collect();

    let started = Instant::now();
    for _ in 0..kills {
        let life = Deadline::after(LIFE.mul_f64(random.random_range(0.0..1.0)));
        while !life.is_over() {
            let index = random.random_range(0..travellers.len());
            travellers[index].step(&kubelet, &diary, &mut random)?;
            // The point in time is what is random here; there is nothing to wait for.
            let pause = Duration::from_millis(random.random_range(0..400));
            std::thread::sleep(pause.min(life.remaining()));
        }
        kubelet.sigkill()?;
        // What changes while nobody looks.
        let index = random.random_range(0..travellers.len());
        travellers[index].step(&kubelet, &diary, &mut random)?;
        kubelet.launch_again()?;
    }
    kubelet.wait_until_healthy()?;
    println!("{}: {kills} kills in {:.0?}, seed {seed}", stage.runtime().kind(), started.elapsed());

    // Everything comes to rest as its manifest says.
    for traveller in &mut travellers {
        if !traveller.is_there {
            traveller.write(&kubelet, &diary)?;
        }
        let generation = json!(traveller.generation.to_string());
        kubelet.wait_for_pod(&traveller.name, "ready", WAIT, |pod| {
            pod.ready && pod.raw["metadata"]["labels"]["generation"] == generation
        })?;
    }
    for name in &steadies {
        let pod = kubelet.wait_for_pod(name, "ready", WAIT, |pod| pod.ready)?;
        ensure_only_starts_failed(&pod)?;
    }
    for name in &jobs {
        let is_over = |pod: &PodView| matches!(&*pod.phase, "Succeeded" | "Failed");
        let pod = kubelet.wait_for_pod(name, "over", WAIT, is_over)?;
        let app = pod.container("app").context("it has a container")?;
        let fate = (&*pod.phase, &*app.reason);
        let expected = [("Succeeded", "Completed"), ("Failed", "StartError")].contains(&fate);
        ensure!(expected, "{name} ended as {fate:?}: {}", pod.raw["status"]);
        ensure_only_starts_failed(&pod)?;
    }
    for name in &crashers {
        // One more end, and it is its own.
        let restarts = kubelet.pod(name)?.context("it is there")?.restarts();
        let pod = kubelet.wait_for_pod(name, "restarted", WAIT, |pod| pod.restarts() > restarts)?;
        let last = &pod.raw["status"]["containerStatuses"][0]["lastState"]["terminated"];
        assert_eq!(last["exitCode"], 7, "{name} ends by itself: {last}");
    }
    check_diary(&diary, &starts_cut_short(&kubelet)?)?;

    for name in steadies.iter().chain(&jobs).chain(&crashers) {
        kubelet.remove_pod(name)?;
    }
    for traveller in &travellers {
        kubelet.remove_pod(&traveller.name)?;
    }
    wait_for("all pods to be gone", WAIT, || match kubelet.pods() {
        Ok(pods) if pods.is_empty() => Ok(()),
        Ok(pods) => Err(format!("{} are there", pods.len())),
        Err(error) => Err(format!("{error:#}")),
    })?;
    // A start that is given up at the wrong moment, as by a kubelet that dies, leaves a task that
    // containerd cannot remove for as long as it lives.
    stage.runtime().kill_containerd()?;
    stage.runtime().start_containerd()?;
    wait_until_nothing_is_left(&kubelet, WAIT)
}

/// Nothing of the pod was restarted but what the runtime could not start.
fn ensure_only_starts_failed(pod: &PodView) -> anyhow::Result<()> {
    let statuses = ["initContainerStatuses", "containerStatuses"];
    let statuses = statuses.iter().flat_map(|field| pod.raw["status"][field].as_array());
    for status in statuses.flatten() {
        let ended = status["lastState"]["terminated"]["reason"].as_str();
        ensure!(matches!(ended, None | Some("StartError")), "{} was restarted: {status}", pod.name);
    }
    Ok(())
}

/// How many starts of each container were cut short, by its name in the diary: a kubelet told that it
/// was created and died before it could tell that it was started.
///
/// The runtime gives such a start up, and its process may have come as far as its first lines.
fn starts_cut_short(kubelet: &KubeletProcess) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut cut_short: BTreeMap<String, u64> = BTreeMap::new();
    for event in kubelet.events()? {
        let container =
            event.field_path.split_once('{').and_then(|(_, name)| name.strip_suffix('}'));
        let pod = event.object.rsplit_once('-').and_then(|(name, _)| name.rsplit_once('/'));
        let (Some(container), Some((_, pod))) = (container, pod) else { continue };
        let count = cut_short.entry(format!("{pod}/{container}")).or_default();
        match event.reason.as_str() {
            "Created" => *count += 1,
            "Started" => *count = count.saturating_sub(1),
            _ => {}
        }
    }
    Ok(cut_short)
}

/// What the containers wrote: nothing ran twice that should run once, nothing was told to end
/// without its manifest having gone, and never ran two of one name.
fn check_diary(diary: &Diary, cut_short: &BTreeMap<String, u64>) -> anyhow::Result<()> {
    let mut by_writer: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for DiaryEntry { who, what, .. } in diary.entries()? {
        by_writer.entry(who).or_default().push(what);
    }
    for (who, lines) in &by_writer {
        let count = |what: &str| lines.iter().filter(|line| *line == what).count() as u64;
        let kind = who.split('-').next().unwrap_or_default();
        let spare = cut_short.get(who).copied().unwrap_or(0);
        let is_once = (1..=1 + spare).contains(&count("start"));
        let as_expected = match (kind, who.ends_with("/init")) {
            ("steady", false) => is_once && count("end") == 0,
            // An init container is over so fast that such a one may have come to its end.
            ("steady", true) => is_once && count("end") <= count("start"),
            ("job", _) => is_once && count("end") <= 1,
            // A crash is over before the next start.
            ("crash", _) => count("start") <= count("end") + 1 + spare,
            _ => true,
        };
        let told = kind != "travel" && count("term") > 0;
        ensure!(
            as_expected && !told && count("overlap") == 0,
            "{who}, of which {spare} starts were cut short, wrote {lines:?}"
        );
    }
    Ok(())
}
