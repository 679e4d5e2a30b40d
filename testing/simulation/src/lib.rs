//! The whole kubelet on fakes: one thread, made-up time, seeded faults, replayable histories.
//!
//! What: [`run`] lives through the history of one seed. The real wiring of the kubelet works on a
//! fake container runtime, a machine that is a directory, and sources that a made-up world fills. The
//! world adds, changes and removes pods, kills processes, sandboxes, the runtime, the node and the
//! kubelet itself, sets the clock, and lets calls fail, hang and get lost. Meanwhile the invariants
//! of the design are checked; in the end everything is healed, and the node has to become what is
//! wanted.
//!
//! Guarantees: one seed is one history. Time is Tokio's paused time, everything random comes from
//! the seed ([`entropy`]), and file system work is done by one thread, whose results are taken up
//! only when nobody has anything else to do. For that, a process lives through one seed only.

mod api;
mod end;
pub mod entropy;
mod gate;
mod history;
mod invariants;
mod ledger;
mod leftovers;
mod life;
pub mod log;
mod machine;
mod many;
mod mounts;
mod pods;
mod world;

use std::time::Duration;

use anyhow::Context;

use gate::Gate;
pub use history::Outcome;
pub use leftovers::{sweep, sweep_abandoned};
pub use many::{Failed, Many};

/// Lives through the history of `seed`. With `is_verbose` it is shown as it goes on.
///
/// # Errors
///
/// The machine that runs the simulation cannot do it.
pub fn run(seed: u64, is_verbose: bool) -> anyhow::Result<Outcome> {
    let gate = Gate::default();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).thread_keep_alive(Duration::from_secs(600));
    gate.install(&mut builder);
    let runtime = builder.build().context("starting the runtime")?;
    gate.start(runtime.handle());
    // A task of its own: what the outermost future is woken by is not in the queue.
    let outcome = runtime.block_on(async {
        tokio::spawn(async move { Box::pin(history::live(seed, is_verbose)).await }).await
    });
    runtime.shutdown_background();
    outcome.context("the simulation itself failed")?
}
