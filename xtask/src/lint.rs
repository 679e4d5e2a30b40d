//! `cargo xtask lint`: what must hold for the text of the project before any test is run.

mod deny;
mod layers;

use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, bail};

pub(crate) use deny::ensure_cargo_deny;

use crate::{project, report};

/// How many checks passed, failed, and could not be made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// What came of one check.
enum Verdict {
    Good,
    /// Could not be made here, with the reason.
    NotMade(String),
}

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let tally = check_all();
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes every check, also after one has failed.
pub(crate) fn check_all() -> Tally {
    type Check = fn() -> anyhow::Result<Verdict>;
    let checks: [(&str, Check); 6] = [
        ("format", format),
        ("clippy", clippy),
        ("documentation", documentation),
        ("layers", layers),
        ("licences, sources, duplicates", deny::check),
        ("advisories", deny::check_advisories),
    ];
    report::heading("Lint");
    let mut tally = Tally::default();
    for (name, check) in checks {
        let started = Instant::now();
        let result = check();
        let seconds = started.elapsed().as_secs();
        match result {
            Ok(Verdict::Good) => {
                tally.passed += 1;
                report::say(format_args!("{name}: ok ({seconds} s)"));
            }
            Ok(Verdict::NotMade(why)) => {
                tally.skipped += 1;
                report::say(format_args!("{name}: not checked, {why}"));
            }
            Err(error) => {
                tally.failed += 1;
                report::say(format_args!("{name}: FAILED: {error:#}"));
            }
        }
    }
    tally
}

fn format() -> anyhow::Result<Verdict> {
    succeed(project::cargo().args(["fmt", "--all", "--check"]))
}

fn clippy() -> anyhow::Result<Verdict> {
    let mut command = project::cargo();
    command.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
    succeed(&mut command)
}

fn documentation() -> anyhow::Result<Verdict> {
    let mut command = project::cargo();
    command.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    succeed(command.env("RUSTDOCFLAGS", "-D warnings"))
}

fn layers() -> anyhow::Result<Verdict> {
    let metadata = project::metadata(&["--no-deps"])?;
    let problems = layers::check(&metadata)?;
    if !problems.is_empty() {
        bail!("\n    {}", problems.join("\n    "));
    }
    Ok(Verdict::Good)
}

/// Runs a command whose own output is what a person has to read when it fails.
fn succeed(command: &mut Command) -> anyhow::Result<Verdict> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !status.success() {
        bail!("see above");
    }
    Ok(Verdict::Good)
}
