//! What only reality shows: a kubelet on a real containerd.
//!
//! `cargo xtask test` runs it; `cargo test -p rubelet-e2e -- NAME` runs some of it.

mod probes;
mod runtime;
mod start;

use std::process::ExitCode;

use rubelet_e2e::runner::{self, Scenario};

fn main() -> ExitCode {
    let scenarios: Vec<Scenario> =
        [runtime::SCENARIOS, start::SCENARIOS, probes::SCENARIOS].concat();
    runner::run(&scenarios, runtime::reset)
}
