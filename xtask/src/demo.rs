//! `cargo xtask demo`: a node on this machine, and what it does when things happen to it.

mod scenes;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use rubelet_e2e::{
    Cache, KubeletOptions, KubeletProcess, Lifetime, Owner, Runtime, RuntimeKind, RuntimeOptions,
    sweep,
};

use crate::interrupt::{Interrupt, Interrupted};
use crate::packages::{self, Need};
use crate::project::{self, Profile};
use crate::{report, testbed};

pub(crate) const NODE_NAME: &str = "demo";

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Leave it running.
    pub(crate) keep: bool,
    /// Do not wait for anybody.
    pub(crate) once: bool,
    /// End what an earlier run left.
    pub(crate) stop: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let cache = Cache::from_environment()?;
    if options.stop {
        return stop(&cache);
    }
    if let Some(kept) = find_kept(&cache).first() {
        anyhow::bail!(
            "an earlier demo is still running in {}: `cargo xtask demo --stop` ends it",
            kept.dir.display()
        );
    }
    println!(
        "Rubelet is a Kubernetes node agent. This shows it at work: a containerd of its own, a\n\
         kubelet without an API server, and pods from the manifests in examples/."
    );
    packages::ensure_root(&[Need::DebianRuntime, Need::Images])?;

    report::heading("Getting ready");
    let tools = testbed::ensure_runtime(RuntimeKind::Debian, &cache)?;
    report::say("system packages and images are there");
    report::say("building the kubelet (release; the first time takes minutes)");
    let binary = project::build_kubelet(Profile::Release)?;
    report::say(format_args!("built {}", binary.display()));

    let interrupt = Interrupt::watch()?;
    let lifetime = if options.keep { Lifetime::UntilSwept } else { Lifetime::WithUs };
    report::begin("starting a private containerd");
    let runtime = Runtime::start(
        tools,
        RuntimeOptions { name: "demo".to_owned(), run: cache.run(), lifetime },
    )?;
    report::end(format_args!("running in {}", runtime.dir().display()));
    let runtime = Arc::new(runtime);
    let owner = runtime.owner().clone();

    let result = show(&runtime, binary, options, &interrupt);
    match &result {
        Ok(()) if options.keep => {
            drop(runtime);
            explain_how_to_look(&owner);
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) if !error.is::<Interrupted>() => println!("\n{error:#}"),
        _ => {}
    }

    report::heading("Cleaning up");
    drop(runtime);
    let left = rubelet_e2e::leftovers(&owner);
    if left.is_empty() {
        report::say("processes, mounts, cgroups and network are gone");
    } else {
        report::say(format_args!("left behind:\n    {}", left.join("\n    ")));
    }
    match result {
        Ok(()) if left.is_empty() => Ok(ExitCode::SUCCESS),
        Err(error) if error.is::<Interrupted>() && left.is_empty() => {
            // Somebody who watches until he has seen enough has not failed.
            Ok(if options.once { ExitCode::from(130) } else { ExitCode::SUCCESS })
        }
        _ => Ok(ExitCode::FAILURE),
    }
}

fn show(
    runtime: &Arc<Runtime>,
    binary: PathBuf,
    options: &Options,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    report::begin("starting the kubelet");
    let kubelet_options = KubeletOptions::new(binary, NODE_NAME);
    let mut kubelet = KubeletProcess::start(runtime, kubelet_options)?;
    report::end(format_args!("healthy, pid {}", kubelet.pid()));
    interrupt.check()?;
    scenes::play(&mut kubelet, interrupt)?;
    if options.keep {
        return runtime.keep_running();
    }
    if !options.once {
        scenes::watch(&kubelet, interrupt)?;
    }
    Ok(())
}

fn find_kept(cache: &Cache) -> Vec<Owner> {
    let entries = std::fs::read_dir(cache.run()).into_iter().flatten().flatten();
    let owners = entries.filter_map(|entry| Owner::read(&entry.path()));
    owners.filter(|owner| owner.kept && owner.is_running()).collect()
}

fn stop(cache: &Cache) -> anyhow::Result<ExitCode> {
    let kept = find_kept(cache);
    if kept.is_empty() {
        println!("no demo is running");
    }
    for owner in kept {
        sweep(&owner).with_context(|| format!("cannot end {}", owner.dir.display()))?;
        println!("ended {}", owner.dir.display());
    }
    rubelet_e2e::sweep_abandoned(&cache.run())?;
    Ok(ExitCode::SUCCESS)
}

fn explain_how_to_look(owner: &Owner) {
    let dir = owner.dir.display();
    let node = format!("{dir}/{NODE_NAME}");
    report::heading("It keeps running");
    let Some(pid) = owner.init_pid() else { return };
    let inside = format!("nsenter -t {pid} --mount --net --pid");
    let ctr = format!("ctr -a {dir}/containerd.sock -n k8s.io containers list");
    for (what, how) in [
        ("pods", format!("{inside} busybox wget -qO- http://127.0.0.1:10255/pods")),
        ("containers", format!("{inside} {ctr}")),
        ("a shell on the node", format!("{inside} sh")),
        ("the kubelet's log", format!("tail -f {node}/kubelet.log")),
        ("pods' logs", format!("ls {node}/pod-logs/*/*/")),
        ("manifests: add, edit, remove", format!("ls {node}/manifests/")),
        ("end it", "cargo xtask demo --stop".to_owned()),
    ] {
        println!("  {what}:\n      {how}");
    }
}
