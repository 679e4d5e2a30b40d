//! The two programs of our own that go into images, linked statically: an image carries no libc.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

pub(crate) const PAUSE_SOURCE: &str = include_str!("../pause.c");
pub(crate) const PROBE_TARGET_SOURCE: &str = include_str!("bin/probe-target.rs");

/// Compiles C with the `cc` that the Rust toolchain links with, too.
pub(crate) fn compile_c(source: &str, out: &Path) -> anyhow::Result<Vec<u8>> {
    let source_path = out.with_extension("c");
    std::fs::write(&source_path, source)
        .with_context(|| format!("cannot write {}", source_path.display()))?;
    let mut command = Command::new("cc");
    command.args(["-Os", "-static", "-s", "-o"]).arg(out).arg(&source_path);
    run(&mut command)?;
    std::fs::read(out).with_context(|| format!("cannot read {}", out.display()))
}

/// Compiles a program of one file that needs only the standard library.
pub(crate) fn compile_rust(source: &str, dir: &Path) -> anyhow::Result<Vec<u8>> {
    let source_path = dir.join("probe_target.rs");
    let out = dir.join("probe-target");
    std::fs::write(&source_path, source)
        .with_context(|| format!("cannot write {}", source_path.display()))?;
    let mut command = Command::new("rustc");
    command
        .args(["--edition", "2024", "--crate-type", "bin", "--cap-lints", "allow"])
        .args(["-C", "opt-level=s", "-C", "target-feature=+crt-static", "-C", "strip=symbols"])
        .arg("-o")
        .arg(&out)
        .arg(&source_path);
    run(&mut command)?;
    std::fs::read(&out).with_context(|| format!("cannot read {}", out.display()))
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    if !output.status.success() {
        bail!(
            "{} ended with {}:\n{}",
            command.get_program().display(),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
