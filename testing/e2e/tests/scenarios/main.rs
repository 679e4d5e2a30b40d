//! What only reality shows: a kubelet on a real containerd.
//!
//! `cargo xtask test` runs it; `cargo test -p rubelet-e2e -- NAME` runs some of it.

mod configured;
mod environment;
mod facts;
mod image_volumes;
mod images;
mod lifecycle;
mod logs;
mod metrics;
mod network;
mod probes;
mod resources;
mod restart;
mod runtime;
mod security;
mod server;
mod soak;
mod sources;
mod start;
mod streaming;
mod user_namespaces;
mod volume_cycles;
mod volumes;
mod why;

use std::process::ExitCode;
use std::time::Duration;

use rubelet_e2e::runner::{self, Scenario};

/// What takes longer than this does not come, on however busy a machine.
const WAIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let scenarios: Vec<Scenario> = [
        runtime::SCENARIOS,
        start::SCENARIOS,
        configured::SCENARIOS,
        probes::SCENARIOS,
        lifecycle::SCENARIOS,
        sources::SCENARIOS,
        soak::SCENARIOS,
        server::SCENARIOS,
        logs::SCENARIOS,
        why::SCENARIOS,
        streaming::SCENARIOS,
        restart::SCENARIOS,
        environment::SCENARIOS,
        resources::SCENARIOS,
        metrics::SCENARIOS,
        network::SCENARIOS,
        security::SCENARIOS,
        volumes::SCENARIOS,
        images::SCENARIOS,
        image_volumes::SCENARIOS,
        user_namespaces::SCENARIOS,
        volume_cycles::SCENARIOS,
    ]
    .concat();
    runner::run(&scenarios, runtime::reset)
}
