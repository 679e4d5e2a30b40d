//! The Kubernetes node agent: the binary. What it does stands in the library beside it.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use kubelet::{Effective, Invocation};

fn main() -> ExitCode {
    rubelet_memory::prefer_small_heap();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log may not be there yet, and a supervisor shows what a process says last.
            let _ = writeln!(std::io::stderr(), "Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut stdout = std::io::stdout();
    match rubelet_config::load(std::env::args_os().skip(1))? {
        Invocation::Help(text) => write!(stdout, "{text}").context("writing the help text"),
        Invocation::Version { raw } => {
            writeln!(stdout, "{}", kubelet::version_text(raw)).context("writing the version")
        }
        Invocation::Run(effective) => serve(*effective),
    }
}

fn serve(effective: Effective) -> anyhow::Result<()> {
    // Two threads serve even a large node: the work is waiting for others. Blocking file work has
    // threads of its own, which end when they are idle.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("kubelet")
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let result = runtime.block_on(kubelet::run(effective));
    runtime.shutdown_background();
    result
}
