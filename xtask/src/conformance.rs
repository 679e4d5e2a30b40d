//! `cargo xtask conformance`: Kubernetes' own end-to-end tests judge our node, beside the Go kubelet.

mod node;
mod outcome;
mod specs;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rubelet_e2e::{Cache, RuntimeKind};

use self::node::{Node, Run};
use self::outcome::Outcomes;
use self::specs::{Spec, Verdict};
use self::table::Peer;
use crate::interrupt::Interrupt;
use crate::lint::Tally;
use crate::packages::{self, Need};
use crate::project::{self, Profile};
use crate::{report, testbed};

/// Keeps two cores busy: most specs wait most of the time.
const PROCS: u32 = 8;
/// The whole list takes half an hour, nearly all of it for one spec that waits out a back-off.
const LIMIT: Duration = Duration::from_secs(90 * 60);
/// The quick ones take a minute or two.
const QUICK_LIMIT: Duration = Duration::from_secs(10 * 60);

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Only specs that match this regular expression, of the whole suite.
    pub(crate) focus: Option<String>,
    /// None that match this one.
    pub(crate) skip: Option<String>,
    /// Only those that every test run repeats.
    pub(crate) quick: bool,
    /// How many at a time.
    pub(crate) procs: Option<u32>,
    /// Another kubelet that is judged afresh: `go`, or the path of an executable.
    pub(crate) peer: Option<String>,
}

/// What a run is about.
struct Selection {
    focus: String,
    skip: String,
    /// The specs of the list that it consists of; None when the suite itself knows.
    list: Option<Vec<Spec>>,
    limit: Duration,
}

impl Selection {
    fn of(options: &Options) -> anyhow::Result<Self> {
        let skip = options.skip.clone().unwrap_or_default();
        if let Some(focus) = &options.focus {
            return Ok(Self { focus: focus.clone(), skip, list: None, limit: LIMIT });
        }
        let mut list = specs::all()?;
        list.retain(|spec| spec.is_quick || !options.quick);
        let focus = specs::focus(list.iter().map(|spec| spec.name.as_str()));
        let limit = if options.quick { QUICK_LIMIT } else { LIMIT };
        // What is skipped by an expression is known only to the suite.
        let list = options.skip.is_none().then_some(list);
        Ok(Self { focus, skip, list, limit })
    }

    /// The specs it consists of, once it has run.
    fn list(&self, outcomes: &Outcomes) -> anyhow::Result<Vec<Spec>> {
        if let Some(list) = &self.list {
            return Ok(list.clone());
        }
        let known = specs::all()?;
        let spec = |name: &String| match known.iter().find(|spec| spec.name == *name) {
            Some(spec) => spec.clone(),
            None => Spec { name: name.clone(), go: Verdict::Skipped, seconds: 0, is_quick: false },
        };
        Ok(outcomes.keys().map(spec).collect())
    }
}

/// What is on this machine to run it with.
struct Bed {
    cache: Cache,
    tools: rubelet_e2e::Tools,
    control_plane: rubelet_control_plane::Tools,
    suite: testbed::Suite,
}

impl Bed {
    fn ensure() -> anyhow::Result<Self> {
        packages::ensure_root(&[Need::BuildRuntime, Need::Images, Need::SuiteImages])?;
        let cache = Cache::from_environment()?;
        let tools = testbed::ensure_runtime(RuntimeKind::Built, &cache)?;
        let control_plane = testbed::ensure_control_plane(&cache)?;
        let suite = testbed::ensure_suite(&cache)?;
        Ok(Self { cache, tools, control_plane, suite })
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    report::heading("Getting ready");
    let bed = Bed::ensure()?;
    let mut kubelets = vec![("rubelet", project::build_kubelet(Profile::Release)?)];
    match options.peer.as_deref() {
        None => {}
        Some("go") => kubelets.push(("go", testbed::ensure_peer(&bed.cache)?)),
        Some(path) => kubelets.push(("peer", std::path::absolute(path)?)),
    }
    let selection = Selection::of(options)?;
    let interrupt = Interrupt::watch()?;

    let mut results = Vec::new();
    for (name, kubelet) in &kubelets {
        let out = out_dir(name)?;
        results.push(judge(&bed, &selection, options.procs, name, kubelet, &out, &interrupt)?);
    }
    let ours = &results[0];
    let peer = results.get(1).map_or(Peer::Remembered, Peer::Fresh);
    let list = selection.list(ours)?;
    report::heading("Result");
    for line in table::lines(&list, ours, peer) {
        println!("  {line}");
    }
    for ((name, _), outcomes) in kubelets.iter().zip(&results) {
        report::say(format_args!("{name}: {}", table::summary(&list, outcomes)));
    }
    if options.focus.is_none() && options.skip.is_none() && !options.quick {
        let date = jiff::Zoned::now().date().to_string();
        let path = project::root().join("docs/reports/conformance.md");
        std::fs::write(&path, table::markdown(&list, ours, peer, &date))
            .with_context(|| format!("cannot write {}", path.display()))?;
        report::say(format_args!("written: {}", path.display()));
    }
    let passed = outcome::with_verdict(&list, ours, Verdict::Passed).len();
    Ok(if passed == list.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The quick specs, as a part of all tests.
pub(crate) fn quick(kubelet: &Path) -> anyhow::Result<Tally> {
    let options = Options { focus: None, skip: None, quick: true, procs: None, peer: None };
    let selection = Selection::of(&options)?;
    let bed = match Bed::ensure() {
        Ok(bed) => bed,
        Err(error) => {
            report::say(format_args!("not run: {error:#}"));
            let skipped = selection.list.map_or(1, |list| list.len());
            return Ok(Tally { skipped, ..Tally::default() });
        }
    };
    let interrupt = Interrupt::watch()?;
    let out = out_dir("quick")?;
    let outcomes = judge(&bed, &selection, None, "rubelet", kubelet, &out, &interrupt)?;
    let list = selection.list(&outcomes)?;
    for line in table::lines(&list, &outcomes, Peer::Remembered) {
        println!("  {line}");
    }
    report::say(table::summary(&list, &outcomes));
    let passed = outcome::with_verdict(&list, &outcomes, Verdict::Passed).len();
    // Each of them ran somewhere: one that left itself out here is a failure, too.
    Ok(Tally { passed, failed: list.len() - passed, skipped: 0 })
}

/// Runs the suite on a node with that kubelet.
fn judge(
    bed: &Bed,
    selection: &Selection,
    procs: Option<u32>,
    name: &str,
    kubelet: &Path,
    out: &Path,
    interrupt: &Interrupt,
) -> anyhow::Result<Outcomes> {
    report::heading(&format!("The suite on {name}"));
    report::say(format_args!("{}; reports and logs: {}", kubelet.display(), out.display()));
    let started = Instant::now();
    let mut node =
        Node::start(&bed.cache, &bed.tools, &bed.control_plane, &bed.suite, kubelet, interrupt)?;
    report::say(format_args!("the node is ready after {:.1} s", started.elapsed().as_secs_f64()));
    let run = Run {
        focus: selection.focus.clone(),
        skip: selection.skip.clone(),
        specs: selection.list.as_ref().map(Vec::len),
        procs: procs.unwrap_or(PROCS),
        limit: selection.limit,
        out: out.to_owned(),
    };
    let ended = node.run(&run, interrupt);
    let kept = node.keep_logs(out);
    let left = node.end();
    let status = ended?;
    kept?;
    if !left.is_empty() {
        bail!("left behind:\n    {}", left.join("\n    "));
    }
    report::say(format_args!("ended after {} s ({status})", started.elapsed().as_secs()));
    outcome::read(&out.join("report.json"))
        .with_context(|| format!("see {}", out.join("suite.log").display()))
}

/// An empty directory for what a run writes.
fn out_dir(name: &str) -> anyhow::Result<PathBuf> {
    let dir = project::target_dir()?.join("conformance").join(name);
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot empty {}", dir.display()));
        }
        _ => {}
    }
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    Ok(dir)
}
