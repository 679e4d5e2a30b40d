//! Runs scenarios: one lane for each runtime, one scenario at a time in each lane.
//!
//! A kubelet ends the pods that it does not know, so two of them cannot share a runtime; two
//! runtimes can run side by side, since each is alone in its namespaces. A lane keeps its runtime
//! from scenario to scenario as long as the given `reset` manages to empty it, and takes a new one
//! otherwise.

use std::collections::BTreeMap;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;
use rubelet_test_bed::Selection;

use crate::cache::{Cache, Missing, RuntimeKind, Tools};
use crate::kubelet::{KubeletOptions, KubeletProcess};
use crate::leftovers::leftovers;
use crate::namespaces::Lifetime;
use crate::runtime::{Runtime, RuntimeOptions};

/// Names a directory for the logs of scenarios that failed.
pub const LOGS: &str = "RUBELET_E2E_LOGS";
/// A scenario that takes longer hangs: the whole run is given up then.
const SCENARIO_LIMIT: Duration = Duration::from_secs(600);

/// A sentence about the kubelet that only reality can show.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// The sentence, as an identifier.
    pub name: &'static str,
    /// Where it is shown.
    pub runtimes: &'static [RuntimeKind],
    /// Shows it, or fails.
    pub run: fn(&Stage) -> anyhow::Result<()>,
}

impl Scenario {
    /// A scenario for every kind of runtime.
    pub const fn on_all(name: &'static str, run: fn(&Stage) -> anyhow::Result<()>) -> Self {
        Self { name, runtimes: &RuntimeKind::ALL, run }
    }

    /// A scenario to which the runtime does not matter: the older one shows it.
    pub const fn on_debian(name: &'static str, run: fn(&Stage) -> anyhow::Result<()>) -> Self {
        Self { name, runtimes: &[RuntimeKind::Debian], run }
    }

    /// A scenario to which the runtime does not matter, or that needs a current one.
    pub const fn on_built(name: &'static str, run: fn(&Stage) -> anyhow::Result<()>) -> Self {
        Self { name, runtimes: &[RuntimeKind::Built], run }
    }
}

/// What a scenario is given.
#[derive(Debug)]
pub struct Stage {
    runtime: Arc<Runtime>,
    kubelet_binary: PathBuf,
    node_name: String,
}

impl Stage {
    /// An empty runtime.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The options of a kubelet for this scenario, to be changed at will.
    pub fn kubelet_options(&self) -> KubeletOptions {
        KubeletOptions::new(&self.kubelet_binary, &self.node_name)
    }

    /// Starts a kubelet with the test bed's options.
    ///
    /// # Errors
    /// When it does not become healthy.
    pub fn start_kubelet(&self) -> anyhow::Result<KubeletProcess> {
        self.start_kubelet_with(self.kubelet_options())
    }

    /// Starts a kubelet.
    ///
    /// # Errors
    /// When it does not become healthy.
    pub fn start_kubelet_with(&self, options: KubeletOptions) -> anyhow::Result<KubeletProcess> {
        KubeletProcess::start(&self.runtime, options)
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    /// With the reason.
    NotRun(String),
}

impl Outcome {
    /// A scenario that ends with [`Missing`] could not be run.
    fn of(result: anyhow::Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(error) => match error.downcast_ref::<Missing>() {
                Some(missing) => Self::NotRun(missing.to_string()),
                None => Self::Failed(format!("{error:#}")),
            },
        }
    }
}

/// Runs the scenarios that the process's arguments select, prints a line for each and a closing
/// line like the standard test harness.
///
/// `reset` empties a runtime of pods; an error makes the lane take a new one.
pub fn run(scenarios: &[Scenario], reset: fn(&Runtime) -> anyhow::Result<()>) -> ExitCode {
    let selection = Selection::from_args(std::env::args().skip(1));
    let mut lanes: BTreeMap<&'static str, (RuntimeKind, Vec<Scenario>)> = BTreeMap::new();
    for scenario in scenarios {
        for &kind in scenario.runtimes {
            if selection.takes(&full_name(kind, scenario)) {
                lanes.entry(kind.name()).or_insert((kind, Vec::new())).1.push(*scenario);
            }
        }
    }
    if selection.list {
        for (kind, scenarios) in lanes.values() {
            for scenario in scenarios {
                println!("{}: test", full_name(*kind, scenario));
            }
        }
        return ExitCode::SUCCESS;
    }

    let count: usize = lanes.values().map(|(_, scenarios)| scenarios.len()).sum();
    println!("\nrunning {count} scenarios");
    let started = Instant::now();
    let (send, outcomes) = mpsc::channel();
    let mut totals = (0, 0, 0);
    std::thread::scope(|scope| {
        let run_one = |kind: RuntimeKind, scenarios: Vec<Scenario>, send: mpsc::Sender<_>| {
            let lane = Lane { kind, reset, runtime: None, send };
            lane.run(&scenarios);
        };
        let lanes: Vec<_> = lanes.into_values().collect();
        if selection.one_lane {
            scope.spawn(move || {
                for (kind, scenarios) in lanes {
                    run_one(kind, scenarios, send.clone());
                }
            });
        } else {
            for (kind, scenarios) in lanes {
                let send = send.clone();
                scope.spawn(move || run_one(kind, scenarios, send));
            }
            drop(send);
        }
        for (name, took, outcome) in outcomes {
            let took: Duration = took;
            let seconds = took.as_secs_f64();
            match outcome {
                Outcome::Passed => {
                    totals.0 += 1;
                    println!("test {name} ... ok ({seconds:.1} s)");
                }
                Outcome::Failed(why) => {
                    totals.1 += 1;
                    println!("test {name} ... FAILED ({seconds:.1} s)\n{why}\n");
                }
                Outcome::NotRun(why) => {
                    totals.2 += 1;
                    println!("test {name} ... ignored, {why}");
                }
            }
        }
    });

    let (passed, failed, not_run) = totals;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {not_run} ignored; 0 measured; \
         0 filtered out; finished in {:.1}s\n",
        started.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn full_name(kind: RuntimeKind, scenario: &Scenario) -> String {
    format!("{kind}::{}", scenario.name)
}

struct Lane {
    kind: RuntimeKind,
    reset: fn(&Runtime) -> anyhow::Result<()>,
    runtime: Option<Arc<Runtime>>,
    send: mpsc::Sender<(String, Duration, Outcome)>,
}

impl Lane {
    fn run(mut self, scenarios: &[Scenario]) {
        let ground = Ground::find(self.kind);
        for (index, scenario) in scenarios.iter().enumerate() {
            let started = Instant::now();
            let outcome = match &ground {
                Err(why) => Outcome::NotRun(why.clone()),
                Ok(ground) => self.run_one(scenario, ground, index),
            };
            // The receiver outlives every lane.
            let _ = self.send.send((full_name(self.kind, scenario), started.elapsed(), outcome));
        }
        if let Some(runtime) = self.runtime.take() {
            self.take_down(runtime);
        }
    }

    fn run_one(&mut self, scenario: &Scenario, ground: &Ground, index: usize) -> Outcome {
        let runtime = match self.runtime(ground) {
            Ok(runtime) => runtime,
            Err(error) => return Outcome::Failed(format!("no runtime: {error:#}")),
        };
        let node_name = format!("n{index}");
        let stage = Stage {
            runtime: Arc::clone(&runtime),
            kubelet_binary: ground.kubelet.clone(),
            node_name: node_name.clone(),
        };
        let name = full_name(self.kind, scenario);
        let outcome = run_with_limit(scenario, stage, &name);
        if let (Outcome::Failed(_), Some(dir)) = (&outcome, std::env::var_os(LOGS))
            && let Err(error) = keep_logs(&runtime, &node_name, &PathBuf::from(dir).join(&name))
        {
            eprintln!("cannot keep the logs of {name}: {error:#}");
        }
        match (self.reset)(&runtime) {
            Ok(()) => self.runtime = Some(runtime),
            Err(_) => self.take_down(runtime),
        }
        outcome
    }

    fn runtime(&mut self, ground: &Ground) -> anyhow::Result<Arc<Runtime>> {
        if let Some(runtime) = self.runtime.take() {
            return Ok(runtime);
        }
        let options = RuntimeOptions {
            name: self.kind.name().to_owned(),
            run: ground.run.clone(),
            lifetime: Lifetime::WithUs,
        };
        Runtime::start(ground.tools.clone(), options).map(Arc::new)
    }

    /// Ends a runtime; what it leaves behind is a failure of its own.
    fn take_down(&self, runtime: Arc<Runtime>) {
        let started = Instant::now();
        let owner = runtime.owner().clone();
        drop(runtime);
        let left = leftovers(&owner);
        if !left.is_empty() {
            let name = format!("{}::nothing_is_left_behind", self.kind);
            let _ = self.send.send((name, started.elapsed(), Outcome::Failed(left.join("\n"))));
        }
    }
}

/// Copies what the kubelet and containerd wrote: with the runtime it is gone.
///
/// # Errors
/// When they cannot be copied.
pub fn keep_logs(runtime: &Runtime, node_name: &str, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for log in [format!("{node_name}/kubelet.log"), "containerd.log".to_owned()] {
        let from = runtime.dir().join(&log);
        let name = from.file_name().context("a log is a file")?;
        // A scenario may fail before it starts a kubelet.
        if from.exists() {
            fs::copy(&from, to.join(name))
                .with_context(|| format!("cannot copy {}", from.display()))?;
        }
    }
    Ok(())
}

/// What every scenario needs.
struct Ground {
    tools: Tools,
    run: PathBuf,
    kubelet: PathBuf,
}

impl Ground {
    fn find(kind: RuntimeKind) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        let cache = Cache::from_environment().map_err(|error| format!("{error:#}"))?;
        let tools = Tools::find(kind, &cache).map_err(|missing| missing.to_string())?;
        let kubelet = find_kubelet().map_err(|error| format!("{error:#}"))?;
        Ok(Self { tools, run: cache.run(), kubelet })
    }
}

/// `$RUBELET_KUBELET`, else the kubelet of the profile that this test was built with.
///
/// # Errors
/// When there is none.
pub fn find_kubelet() -> anyhow::Result<PathBuf> {
    let path = match std::env::var_os("RUBELET_KUBELET") {
        Some(path) => PathBuf::from(path),
        None => {
            let test = std::env::current_exe().context("cannot find this executable")?;
            let profile = test.parent().and_then(|deps| deps.parent());
            profile.context("this executable is nowhere")?.join("kubelet")
        }
    };
    anyhow::ensure!(path.is_file(), "no {}: run `cargo build -p kubelet`", path.display());
    Ok(path)
}

fn run_with_limit(scenario: &Scenario, stage: Stage, name: &str) -> Outcome {
    let run = scenario.run;
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || {
        let outcome = match catch_unwind(AssertUnwindSafe(|| run(&stage))) {
            Ok(result) => Outcome::of(result),
            Err(panic) => Outcome::Failed(panic_text(panic.as_ref())),
        };
        // The stage holds the runtime: it has to be let go before the lane is told.
        drop(stage);
        let _ = send.send(outcome);
    });
    done.recv_timeout(SCENARIO_LIMIT).unwrap_or_else(|_| {
        println!("test {name} ... FAILED: still running after {SCENARIO_LIMIT:?}");
        println!("\ntest result: FAILED. 0 passed; 1 failed; 0 ignored; given up\n");
        // What runs in the namespaces ends with this process; the rest is swept by the next run.
        std::process::exit(1)
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_without_what_it_needs_is_not_run_and_no_failure() {
        let missing = Missing { files: vec!["/nowhere/tool".into()], remedy: "get it" };
        let error = anyhow::Error::from(missing).context("there is no registry");
        let why = "missing: /nowhere/tool; get it".to_owned();
        assert_eq!(Outcome::of(Err(error)), Outcome::NotRun(why));
        let failed = Outcome::Failed("it failed: badly".to_owned());
        assert_eq!(Outcome::of(Err(anyhow::anyhow!("badly").context("it failed"))), failed);
    }
}
