//! `cargo xtask test`: everything that shows whether the project works.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::Context;
use rubelet_e2e::{Cache, RuntimeKind};

use crate::lint::{self, Tally};
use crate::packages::{self, Need};
use crate::project::{self, Profile};
use crate::{conformance, report, testbed};

/// Packages whose tests, other than those of their own functions, need what is not built by cargo.
const ON_REAL_THINGS: &[&str] = &["rubelet-e2e", "rubelet-control-plane"];

pub(crate) fn run(without_e2e: bool) -> anyhow::Result<ExitCode> {
    let started = Instant::now();
    let mut tally = lint::check_all();

    report::heading("Tests on fakes and on the kernel");
    let mut workspace = project::cargo();
    workspace.args(["test", "--workspace", "--no-fail-fast"]);
    for package in ON_REAL_THINGS {
        workspace.args(["--exclude", package]);
    }
    tally.add(count(&mut workspace)?);
    // Their own functions, and their examples.
    for part in ["--lib", "--doc"] {
        let mut test_beds = project::cargo();
        test_beds.args(["test", part]);
        for package in ON_REAL_THINGS {
            test_beds.args(["--package", package]);
        }
        tally.add(count(&mut test_beds)?);
    }

    report::heading("Tests on real containerd");
    if without_e2e {
        report::say("left out, as asked");
    } else {
        tally.add(end_to_end()?);
    }

    report::heading("Tests on a real control plane");
    if without_e2e {
        report::say("left out, as asked");
    } else {
        tally.add(control_plane()?);
    }

    report::heading("Kubernetes' own tests");
    if without_e2e {
        report::say("left out, as asked");
    } else {
        tally.add(official()?);
    }

    println!();
    report::say(format_args!("took {} s", started.elapsed().as_secs()));
    println!("\n{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    Ok(if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The scenarios, on both runtimes. What a runtime needs is installed or built first; where that is
/// not possible, its scenarios say so themselves and count as not run.
fn end_to_end() -> anyhow::Result<Tally> {
    if rustix::process::geteuid().is_root() {
        let cache = Cache::from_environment()?;
        for kind in RuntimeKind::ALL {
            if let Err(error) = testbed::ensure_runtime(kind, &cache) {
                report::say(format_args!("no {kind} runtime: {error:#}"));
            }
        }
        if let Err(error) = packages::ensure(&[Need::Registry]) {
            report::say(format_args!("no registry: {error:#}"));
        }
    } else {
        report::say("containers need root: run this as root to see these tests, too");
    }
    let kubelet = match project::build_kubelet(Profile::Debug) {
        Ok(kubelet) => kubelet,
        Err(error) => {
            report::say(format_args!("{error:#}"));
            return Ok(Tally { failed: 1, ..Tally::default() });
        }
    };
    let mut command = project::cargo();
    command.args(["test", "--package", "rubelet-e2e", "--test", "scenarios"]);
    command.env("RUBELET_KUBELET", kubelet);
    count(&mut command)
}

/// The trials of the control plane and of clusters. It is built first where it is not; where that
/// is not possible, they say so themselves and count as not run.
fn control_plane() -> anyhow::Result<Tally> {
    if let Err(error) = testbed::ensure_control_plane(&Cache::from_environment()?) {
        report::say(format_args!("no control plane: {error:#}"));
    }
    // It changes places with ours in one of them.
    if let Err(error) = testbed::ensure_peer(&Cache::from_environment()?) {
        report::say(format_args!("no Go kubelet: {error:#}"));
    }
    let kubelet = match project::build_kubelet(Profile::Debug) {
        Ok(kubelet) => kubelet,
        Err(error) => {
            report::say(format_args!("{error:#}"));
            return Ok(Tally { failed: 1, ..Tally::default() });
        }
    };
    let mut tally = Tally::default();
    for (package, target) in [
        ("rubelet-control-plane", "control_plane"),
        ("rubelet-fake-apiserver", "real"),
        ("rubelet-e2e", "cluster"),
    ] {
        let mut command = project::cargo();
        command.args(["test", "--package", package, "--test", target]);
        command.env("RUBELET_KUBELET", &kubelet);
        tally.add(count(&mut command)?);
    }
    Ok(tally)
}

/// The quick ones of Kubernetes' own tests. Where what they need cannot be had, they count as not run.
fn official() -> anyhow::Result<Tally> {
    let quick =
        project::build_kubelet(Profile::Debug).and_then(|kubelet| conformance::quick(&kubelet));
    Ok(quick.unwrap_or_else(|error| {
        report::say(format_args!("{error:#}"));
        Tally { failed: 1, ..Tally::default() }
    }))
}

/// Runs `cargo test`, passes on what it writes, and adds up its closing lines.
fn count(command: &mut Command) -> anyhow::Result<Tally> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo test")?;
    let stdout = child.stdout.take().context("cargo test has no output")?;
    let mut tally = Tally::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read from cargo test")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if let Some(found) = closing_line(&line) {
            tally.add(found);
        }
    }
    let status = child.wait().context("cannot wait for cargo test")?;
    // A crate that does not build, or a test that ends the process, has no line that counts it.
    if !status.success() && tally.failed == 0 {
        tally.failed = 1;
    }
    Ok(tally)
}

/// The numbers of a line like `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn closing_line(line: &str) -> Option<Tally> {
    let (_, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        let part = numbers.split(';').map(str::trim).find(|part| part.ends_with(word))?;
        part.split(' ').next()?.parse().ok()
    };
    Some(Tally {
        passed: number("passed")?,
        failed: number("failed")?,
        skipped: number("ignored")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_both_verdicts_are_read() {
        let good = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.02s";
        assert_eq!(closing_line(good), Some(Tally { passed: 12, failed: 0, skipped: 1 }));
        let bad = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1s";
        assert_eq!(closing_line(bad), Some(Tally { passed: 1, failed: 2, skipped: 0 }));
        assert_eq!(closing_line("test a::b ... ok"), None);
    }
}
