//! `cargo xtask vm`: a node with cgroup v2 and systemd, in a virtual machine, and what our kubelet
//! makes of it.
//!
//! Most users' nodes are like that, and the machines that build this project often are not. Software
//! emulation needs nothing but QEMU: it is slow, and it works everywhere.

mod image;
mod machine;
mod trees;
mod work_disk;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use rubelet_e2e::{Cache, RuntimeKind};

use crate::interrupt::Interrupt;
use crate::packages::{self, Need};
use crate::project::{self, Profile};
use crate::{report, testbed};

use machine::Outcome;
use work_disk::WorkDisk;

/// What was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Another kubelet, whose cgroups are compared with ours.
    pub(crate) peer: Option<PathBuf>,
    /// A script to run in the guest instead of the scenario with pods.
    pub(crate) script: Option<PathBuf>,
    /// Files that the guest finds beside its script.
    pub(crate) files: Vec<PathBuf>,
    /// MiB.
    pub(crate) memory: u32,
    /// How long one boot may take altogether.
    pub(crate) limit: Duration,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let cache = Cache::from_environment()?;
    anyhow::ensure!(
        cfg!(target_arch = "x86_64"),
        "the virtual machine is an x86_64 one, and this is none"
    );
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "making the virtual machine's disk needs root: run it again as root (it also installs \
         Debian packages that are missing)"
    );
    report::heading("Getting ready");
    packages::ensure(&[Need::VirtualMachine])?;
    testbed::ensure_runtime(RuntimeKind::Built, &cache)?;
    let interrupt = Interrupt::watch()?;
    let directory = cache.root().join("vm");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    // Two emulated machines at once would starve each other.
    let lock = fs::File::create(directory.join("lock")).context("cannot make the lock file")?;
    if lock.try_lock().is_err() {
        report::say("another virtual machine runs: waiting for its end");
        lock.lock().context("cannot wait for the other virtual machine")?;
    }
    let image = image::ensure(&directory, &interrupt)?;
    report::say("building the kubelet (release; the first time takes minutes)");
    let ours = project::build_kubelet(Profile::Release)?;

    let boot = |who: &str, kubelet: &Path| -> anyhow::Result<Boot> {
        report::heading(&format!("In the virtual machine: {who}"));
        let disk = WorkDisk::make(&directory.join(who), &cache, kubelet, options)?;
        let outcome = machine::run(&image, disk.image(), options, &interrupt)?;
        let results = disk.take_results()?;
        report::say(format_args!("its logs and cgroups: {}", results.display()));
        Ok(Boot { outcome, results })
    };
    let our_boot = boot("rubelet", &ours)?;
    let mut code = our_boot.exit_status(options.limit)?;
    if let Some(peer) = &options.peer {
        let peer_boot = boot("peer", peer)?;
        // Its checks are about us: what it does differently is worth to be seen, and no failure.
        let peer_code = peer_boot.exit_status(options.limit)?;
        report::say(format_args!("the peer's scenario ended with {peer_code}"));
        report::heading("Cgroups: rubelet and the peer");
        if !trees::compare(&our_boot.results, &peer_boot.results)? && code == 0 {
            code = 1;
        }
    }
    Ok(ExitCode::from(code))
}

/// What a boot left.
struct Boot {
    outcome: Outcome,
    results: PathBuf,
}

impl Boot {
    /// The exit status of the guest's script.
    fn exit_status(&self, limit: Duration) -> anyhow::Result<u8> {
        if self.outcome == Outcome::TookTooLong {
            bail!("the virtual machine did not end within {} s", limit.as_secs());
        }
        let file = self.results.join("exit-status");
        let text = fs::read_to_string(&file)
            .context("the virtual machine ended without a word about its script")?;
        let status: u32 = text.trim().parse().with_context(|| format!("in {}", file.display()))?;
        Ok(u8::try_from(status).unwrap_or(u8::MAX))
    }
}

/// Runs a tool that says nothing when all is well.
fn run_tool(command: &mut Command) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!(
            "{name} ended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
