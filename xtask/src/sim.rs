//! `cargo xtask sim`: simulated histories of a node, many or one. See docs/simulation.md.

use std::process::ExitCode;

use anyhow::Context;

use crate::project;

/// Which histories.
pub(crate) enum Options {
    /// Of so many seeds.
    Many {
        /// The first.
        from: u64,
        /// How many.
        seeds: u64,
    },
    /// Of this seed.
    One {
        /// Which.
        seed: u64,
        /// Show everything that happens.
        is_verbose: bool,
    },
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = project::cargo();
    command.args(["run", "--quiet", "--package", "rubelet-simulation", "--bin", "rubelet-sim"]);
    command.arg("--");
    match options {
        Options::Many { from, seeds } => {
            command.args(["--from", &from.to_string(), "--seeds", &seeds.to_string()]);
        }
        Options::One { seed, is_verbose } => {
            command.args(["--seed", &seed.to_string()]);
            if *is_verbose {
                command.arg("--verbose");
            }
        }
    }
    let status = command.status().context("cannot run cargo run")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
