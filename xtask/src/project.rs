//! Where things are in the checkout, and how cargo is called.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The cargo that started us, in the root of the checkout.
pub(crate) fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// What `cargo metadata` says.
pub(crate) fn metadata(args: &[&str]) -> anyhow::Result<Value> {
    let output = cargo()
        .args(["metadata", "--format-version", "1"])
        .args(args)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata ended with {}", output.status);
    }
    serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")
}

/// Which build of the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    Debug,
    Release,
}

/// Builds the kubelet and returns the path of the executable. `$RUBELET_KUBELET` stands in for it:
/// a kubelet that was built elsewhere, or another one to compare with.
pub(crate) fn build_kubelet(profile: Profile) -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os("RUBELET_KUBELET") {
        return std::path::absolute(given).context("RUBELET_KUBELET is no path");
    }
    let mut command = cargo();
    command.args(["build", "--package", "kubelet"]);
    let dir = match profile {
        Profile::Debug => "debug",
        Profile::Release => {
            command.arg("--release");
            "release"
        }
    };
    let status = command.status().context("cannot run cargo build")?;
    if !status.success() {
        bail!("the kubelet does not build");
    }
    Ok(target_dir()?.join(dir).join("kubelet"))
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> anyhow::Result<PathBuf> {
    let metadata = metadata(&["--no-deps"])?;
    let target = metadata["target_directory"].as_str().context("no target directory")?;
    Ok(PathBuf::from(target))
}
