//! Tests that need what a machine may lack, such as a built control plane.
//!
//! The standard harness knows passed and failed, and a test that returns early where something is
//! missing counts as passed. A test target with `harness = false` that calls [`run`] says instead
//! which trials were not run, and why; its closing line has the form of the standard harness.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use crate::missing::Missing;
use crate::selection::Selection;

/// A sentence that is to be shown true, on a ground `G` that all trials of a target share.
#[derive(Debug)]
pub struct Trial<G> {
    /// The sentence, as an identifier.
    pub name: &'static str,
    /// Shows it, or fails. With [`Missing`] as its error it could not be run.
    pub run: fn(&G) -> anyhow::Result<()>,
}

/// Runs those of some sets of trials that the process's arguments select, one after the other.
///
/// `ground` is asked for once, when there is something to run; its error is the reason why nothing
/// can be run here.
pub fn run<G>(sets: &[&[Trial<G>]], ground: impl FnOnce() -> Result<G, String>) -> ExitCode {
    let selection = Selection::from_args(std::env::args().skip(1));
    let all = || sets.iter().copied().flatten();
    let selected: Vec<&Trial<G>> = all().filter(|trial| selection.takes(trial.name)).collect();
    if selection.list {
        selected.iter().for_each(|trial| println!("{}: test", trial.name));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} trials", selected.len());
    let started = Instant::now();
    let (mut passed, mut failed, mut not_run) = (0, 0, 0);
    if !selected.is_empty() {
        match ground() {
            Ok(ground) => {
                for trial in selected {
                    match run_one(trial, &ground) {
                        Outcome::Passed => passed += 1,
                        Outcome::Failed => failed += 1,
                        Outcome::NotRun => not_run += 1,
                    }
                }
            }
            Err(why) => {
                for trial in selected {
                    println!("test {} ... ignored, not run: {why}", trial.name);
                    not_run += 1;
                }
            }
        }
    }
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; {not_run} ignored; 0 measured; \
         {} filtered out; finished in {:.1}s\n",
        all().count() - passed - failed - not_run,
        started.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

enum Outcome {
    Passed,
    Failed,
    NotRun,
}

fn run_one<G>(trial: &Trial<G>, ground: &G) -> Outcome {
    print!("test {} ... ", trial.name);
    // Nobody reads any more: the closing line will find that out.
    let _ = std::io::stdout().flush();
    let started = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (trial.run)(ground)));
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok(Ok(())) => {
            println!("ok ({seconds:.1} s)");
            Outcome::Passed
        }
        Ok(Err(error)) => match error.downcast_ref::<Missing>() {
            Some(missing) => {
                println!("ignored, not run: {missing}");
                Outcome::NotRun
            }
            None => {
                println!("FAILED ({seconds:.1} s)\n{error:#}");
                Outcome::Failed
            }
        },
        // The panic has already written its text.
        Err(_) => {
            println!("FAILED ({seconds:.1} s), it panicked");
            Outcome::Failed
        }
    }
}
