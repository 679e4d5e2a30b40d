//! What only reality shows: a kubelet on a real containerd.
//!
//! `cargo xtask test` runs it; `cargo test -p rubelet-e2e -- NAME` runs some of it.

mod environment;
mod facts;
mod images;
mod lifecycle;
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
mod volumes;

use std::process::ExitCode;

use rubelet_e2e::runner::{self, Scenario};

/// Scenarios that have held again and again, also on a machine that is busy with other work. The
/// others are younger: they run on demand until they have earned their place here, so that a
/// deadline that is too short never passes for a fault of the kubelet.
const SETTLED: &[&str] = &[
    "a_container_that_dies_behind_the_kubelets_back_is_seen_and_restarted_at_once",
    "a_crashing_container_is_restarted_after_0_10_and_20_seconds",
    "a_failed_grpc_liveness_probe_restarts_the_container",
    "a_killed_containerd_comes_back",
    "a_killed_sandbox_is_replaced_and_the_pod_starts_anew_from_its_init_containers",
    "a_pod_ends_as_its_restart_policy_and_exit_codes_say",
    "a_post_start_hook_holds_back_the_next_container_and_its_failure_kills",
    "a_pre_stop_hook_runs_inside_the_grace_period",
    "a_timed_out_exec_probe_counts_as_failed_and_leaves_no_process",
    "init_containers_run_one_by_one_and_their_failures_count_by_policy",
    "one_pod_runs",
    "readiness_follows_the_http_probe",
    "sidecars_start_before_and_stop_after_the_regular_containers",
    "startup_and_liveness_probes_decide_when_a_container_is_restarted",
    "tcp_and_exec_probes_make_a_pod_ready",
    "the_runtime_has_its_images",
];

/// Set to anything, every scenario runs.
const ALL: &str = "RUBELET_E2E_ALL";

fn main() -> ExitCode {
    let scenarios: Vec<Scenario> = [
        runtime::SCENARIOS,
        start::SCENARIOS,
        probes::SCENARIOS,
        lifecycle::SCENARIOS,
        sources::SCENARIOS,
        soak::SCENARIOS,
        server::SCENARIOS,
        restart::SCENARIOS,
        environment::SCENARIOS,
        resources::SCENARIOS,
        network::SCENARIOS,
        security::SCENARIOS,
        volumes::SCENARIOS,
        images::SCENARIOS,
    ]
    .concat();
    // Whoever names a scenario, or asks for all, gets it.
    let asked = std::env::var_os(ALL).is_some()
        || std::env::args().skip(1).any(|argument| !argument.starts_with('-'));
    let (run, later): (Vec<_>, Vec<_>) =
        scenarios.into_iter().partition(|one| asked || SETTLED.contains(&one.name));
    if !later.is_empty() {
        println!("not run: {} scenarios that are not settled yet; {ALL}=1 runs them", later.len());
    }
    runner::run(&run, runtime::reset)
}
