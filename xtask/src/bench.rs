//! `cargo xtask bench pods`: what a number of pods costs a kubelet that is alone, in time, CPU and
//! memory. What it does as a node of a cluster, beside another kubelet, is [`beside`].

pub(crate) mod beside;
mod measure;
mod outcome;

use std::path::PathBuf;
use std::process::ExitCode;

use rubelet_e2e::{Cache, RuntimeKind};

use crate::interrupt::Interrupt;
use crate::packages::{self, Need};
use crate::project::{self, Profile};
use crate::{report, testbed};

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// How many pods.
    pub(crate) pods: usize,
    /// Another kubelet to compare with.
    pub(crate) peer: Option<PathBuf>,
    /// How often.
    pub(crate) rounds: Option<usize>,
    /// Over how long idle CPU is measured.
    pub(crate) idle_seconds: u64,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    packages::ensure_root(&[Need::BuildRuntime, Need::Images])?;
    let cache = Cache::from_environment()?;
    report::heading("Getting ready");
    let tools = testbed::ensure_runtime(RuntimeKind::Built, &cache)?;
    let ours = project::build_kubelet(Profile::Release)?;
    let interrupt = Interrupt::watch()?;
    let mut kubelets = vec![("rubelet", ours)];
    kubelets.extend(options.peer.clone().map(|peer| ("peer", peer)));
    let rounds = options.rounds.unwrap_or(if options.peer.is_some() { 3 } else { 1 });

    report::heading(&format!("{} pods", options.pods));
    let mut outcomes: Vec<(&str, Vec<outcome::Outcome>)> =
        kubelets.iter().map(|(name, _)| (*name, Vec::new())).collect();
    for round in 1..=rounds {
        for ((name, binary), (_, results)) in kubelets.iter().zip(&mut outcomes) {
            interrupt.check()?;
            report::begin(format_args!("round {round} of {rounds}, {name}"));
            let result = measure::measure(&tools, &cache, binary, options, &interrupt)?;
            report::end(format_args!(
                "all running after {:.1} s",
                result.all_running.as_secs_f64()
            ));
            results.push(result);
        }
    }
    report::heading("Medians");
    for line in outcome::render(&outcomes) {
        report::say(line);
    }
    Ok(ExitCode::SUCCESS)
}
