//! What a control plane for tests must be able to do, shown on a real one.
//!
//! `cargo xtask test` builds what it needs and runs it; `cargo xtask setup cluster` builds it ahead
//! of time. `cargo test -p rubelet-control-plane --test control_plane -- NAME` runs some of it.

mod certificates;
mod ground;
mod life;
mod nodes;
mod objects;

use std::process::ExitCode;

use rubelet_test_bed::trials;

use ground::Ground;

fn main() -> ExitCode {
    if let Some(run) = std::env::var_os(life::HOLD) {
        return life::hold_a_control_plane(run.into());
    }
    trials::run(&[life::TRIALS, nodes::TRIALS, objects::TRIALS, certificates::TRIALS], Ground::find)
}
