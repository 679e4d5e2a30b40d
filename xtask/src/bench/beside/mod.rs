//! `cargo xtask bench`: a kubelet as a node of a cluster, and another one beside it.
//!
//! Both take turns on one node, with one containerd and one control plane, so that whatever is slow
//! is slow for both.

mod calls;
mod cpu;
mod ends;
mod node;
mod parts;
mod samples;
mod table;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use rubelet_control_plane::KUBERNETES_VERSION;
use rubelet_e2e::{Cache, RuntimeKind};

use crate::interrupt::Interrupt;
use crate::packages::{self, Need};
use crate::project::{self, Profile};
use crate::{report, testbed};

use node::Node;
use samples::Samples;

/// The word for the Go kubelet of the version that ours stands in for.
const GO: &str = "go";

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// `go`, or the path of another kubelet to run in turn with ours.
    pub(crate) peer: Option<String>,
    /// How often.
    pub(crate) rounds: usize,
    /// How many pods are started at once: each of these, in rising order.
    pub(crate) sizes: Vec<usize>,
    /// How many pods are started, and how many containers ended, alone.
    pub(crate) singles: usize,
    /// Over how long idle CPU is measured.
    pub(crate) idle: Duration,
    /// Whether the report is written.
    pub(crate) write: bool,
}

impl Options {
    /// Of the sizes the two largest are looked at while they rest.
    fn rest_from(&self) -> usize {
        self.sizes.iter().rev().nth(1).or(self.sizes.last()).copied().unwrap_or(0)
    }

    fn command(&self) -> String {
        let peer = self.peer.as_ref().map(|peer| format!(" --peer {peer}")).unwrap_or_default();
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        format!(
            "cargo xtask bench{peer} --rounds {} --pods {} --singles {} --idle {} --write",
            self.rounds,
            sizes.join(","),
            self.singles,
            self.idle.as_secs(),
        )
    }
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    packages::ensure_root(&[Need::BuildRuntime, Need::Images])?;
    let cache = Cache::from_environment()?;
    report::heading("Getting ready");
    let tools = testbed::ensure_runtime(RuntimeKind::Built, &cache)?;
    let control_plane = testbed::ensure_control_plane(&cache)?;
    let mut kubelets = vec![("rubelet".to_owned(), project::build_kubelet(Profile::Release)?)];
    match options.peer.as_deref() {
        None => {}
        Some(GO) => kubelets.push((GO.to_owned(), testbed::ensure_peer(&cache)?)),
        Some(path) => kubelets.push(("peer".to_owned(), std::path::absolute(path)?)),
    }
    let interrupt = Interrupt::watch()?;
    report::begin("starting a control plane and a containerd");
    let mut node = Node::start(&tools, &control_plane, &cache, &interrupt)?;
    report::end("done");

    let most = options.sizes.last().copied().unwrap_or(0).max(options.singles);
    let mut outcomes: Vec<(String, Samples)> =
        kubelets.iter().map(|(name, _)| (name.clone(), Samples::default())).collect();
    for round in 1..=options.rounds {
        report::heading(&format!("Round {round} of {}", options.rounds));
        let mut turns: Vec<usize> = (0..kubelets.len()).collect();
        // Whoever comes second finds a containerd that is warm.
        if round % 2 == 0 {
            turns.reverse();
        }
        for turn in turns {
            let (name, binary): &(String, PathBuf) = &kubelets[turn];
            interrupt.check()?;
            report::begin(name);
            let began = std::time::Instant::now();
            node.give_to(binary, most)?;
            let samples = parts::measure(&mut node, options)?;
            outcomes[turn].1.extend(samples);
            report::end(format_args!("{} s", began.elapsed().as_secs()));
        }
    }
    drop(node);

    report::heading("Medians");
    table::lines(&outcomes).iter().for_each(report::say);
    if options.write {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let what = format!(
            "Release build, a node of a cluster, containerd 2.4 (cgroup {}), Kubernetes \
             {KUBERNETES_VERSION}, {cores} cores; {} rounds in turn, medians.",
            if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
                "v2"
            } else {
                "v1"
            },
            options.rounds,
        );
        table::write(&table::report(&outcomes, &options.command(), &what))?;
        report::say(format_args!("written: {}", table::report_file().display()));
    }
    Ok(ExitCode::SUCCESS)
}
