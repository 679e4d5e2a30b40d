//! `cargo xtask cluster`: a Kubernetes cluster on this machine, with our kubelet on its nodes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use rubelet_control_plane::Options as ControlPlaneOptions;
use rubelet_e2e::{
    Cache, Cluster, ClusterOptions, Deadline, KubeletProcess, Owner, RuntimeKind, leftovers,
    wait_for,
};

use crate::interrupt::{Interrupt, Interrupted};
use crate::packages::{self, Need};
use crate::project::{self, Profile};
use crate::{report, testbed};

/// The first word of the nodes' directories.
const NAME: &str = "cluster";
/// How long nodes may take to join and to be ready: seconds where nothing else happens.
const READY_WITHIN: Duration = Duration::from_secs(180);
/// How long a cluster may take to end.
const ENDED_WITHIN: Duration = Duration::from_secs(120);

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// How many nodes.
    pub(crate) nodes: u8,
    /// End the one that runs.
    pub(crate) stop: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let cache = Cache::from_environment()?;
    if options.stop {
        return stop(&cache);
    }
    packages::ensure_root(&[Need::BuildRuntime, Need::Images])?;

    report::heading("Getting ready");
    let tools = testbed::ensure_runtime(RuntimeKind::Built, &cache)?;
    let control_plane_tools = testbed::ensure_control_plane(&cache)?;
    report::say("containerd, control plane and images are there");
    report::say("building the kubelet (release; the first time takes minutes)");
    let binary = project::build_kubelet(Profile::Release)?;

    let interrupt = Interrupt::watch()?;
    let started = Instant::now();
    let nodes = match options.nodes {
        1 => "a node".to_owned(),
        more => format!("{more} nodes"),
    };
    report::begin(format_args!("starting a control plane and the containerd of {nodes}"));
    let cluster = Cluster::start(
        &tools,
        &control_plane_tools,
        ClusterOptions {
            name: NAME.to_owned(),
            nodes: options.nodes,
            control_plane: ControlPlaneOptions::new(cache.run()),
        },
    )?;
    report::end(format_args!("{:.1} s", started.elapsed().as_secs_f64()));
    let owners: Vec<Owner> =
        cluster.runtimes().iter().map(|runtime| runtime.owner().clone()).collect();

    let result = (|| {
        interrupt.check()?;
        let mut kubelets = Vec::new();
        for (index, runtime) in cluster.runtimes().iter().enumerate() {
            let options = cluster.kubelet_options(index, &binary);
            kubelets.push(KubeletProcess::launch(runtime, options)?);
        }
        report::say(format_args!("kubelets started: {}", binary.display()));
        for (index, kubelet) in kubelets.iter_mut().enumerate() {
            interrupt.check()?;
            wait_until_ready(&cluster, index, kubelet, &interrupt)?;
            let after = started.elapsed().as_secs_f64();
            report::say(format_args!("{} is ready after {after:.1} s", Cluster::node_name(index)));
        }
        explain(&cluster, &control_plane_tools);
        loop {
            interrupt.sleep(Duration::from_secs(3600))?;
        }
    })();
    if let Err(error) = &result
        && !error_is_interrupt(error)
    {
        println!("\n{error:#}");
    }

    report::heading("Cleaning up");
    let control_plane_dir = cluster.control_plane().dir().to_owned();
    drop(cluster);
    let mut left: Vec<String> = owners.iter().flat_map(leftovers).collect();
    if control_plane_dir.exists() {
        left.push(format!("directory {}", control_plane_dir.display()));
    }
    if left.is_empty() {
        report::say("processes, mounts, cgroups and network are gone");
    } else {
        report::say(format_args!("left behind:\n    {}", left.join("\n    ")));
    }
    let result: anyhow::Result<()> = result;
    match result {
        Err(error) if error_is_interrupt(&error) && left.is_empty() => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

fn error_is_interrupt(error: &anyhow::Error) -> bool {
    error.is::<Interrupted>()
}

/// Waits until a node, of which the first has 0, says that it is ready.
///
/// # Errors
/// When it does not within a time in which it always does, or its kubelet ends; the error carries the
/// end of the kubelet's log.
pub(crate) fn wait_until_ready(
    cluster: &Cluster,
    index: usize,
    kubelet: &mut KubeletProcess,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let name = Cluster::node_name(index);
    let deadline = Deadline::after(READY_WITHIN);
    loop {
        let condition = cluster.readiness(index)?;
        let state = match &condition {
            Some(ready) if ready["status"] == "True" => return Ok(()),
            Some(ready) => ready.to_string(),
            None => "it has not joined".to_owned(),
        };
        let ended = kubelet.ended()?;
        if ended.is_some() || deadline.is_over() {
            let state = ended.map_or(state, |status| format!("its kubelet ended with {status}"));
            anyhow::bail!(
                "{name} is not ready: {state}\nits kubelet's log ends with:\n{}",
                kubelet.log_tail(25)
            );
        }
        interrupt.sleep(Duration::from_millis(100))?;
    }
}

fn explain(cluster: &Cluster, tools: &rubelet_control_plane::Tools) {
    report::heading("A cluster");
    let kubectl =
        format!("{} --kubeconfig {}", tools.kubectl.display(), cluster.kubeconfig().display());
    let node = &cluster.runtimes()[0];
    let name = Cluster::node_name(0);
    for (what, how) in [
        ("nodes", format!("{kubectl} get nodes -o wide")),
        ("a pod (images: busybox, localhost/rubelet/nonroot:1)", {
            format!("{kubectl} apply -f examples/web.yaml")
        }),
        ("what happens", format!("{kubectl} get pods -A -o wide --watch")),
        (
            "a shell on the first node",
            format!("nsenter -t {} --mount --net --pid sh", node.namespaces().init_pid()),
        ),
        (
            "its kubelet's log",
            format!("tail -f {}", node.dir().join(name).join("kubelet.log").display()),
        ),
        (
            "the control plane's logs",
            format!("ls {}/*.log", cluster.control_plane().dir().display()),
        ),
    ] {
        println!("  {what}:\n      {how}");
    }
    println!("\n  Ctrl-C ends it and removes everything; so does `cargo xtask cluster --stop`.");
    report::flush();
}

/// Asks the clusters that run to end, and waits until they have cleaned up.
fn stop(cache: &Cache) -> anyhow::Result<ExitCode> {
    let running = find_running(cache);
    if running.is_empty() {
        println!("no cluster is running");
    }
    for owner in &running {
        owner.ask_maker_to_end();
    }
    for owner in &running {
        wait_for(&format!("{} to end", owner.dir.display()), ENDED_WITHIN, || {
            match owner.has_maker() {
                true => Err("it is cleaning up".to_owned()),
                false => Ok(()),
            }
        })
        .context("its own terminal says more")?;
        println!("ended {}", owner.dir.display());
    }
    // Nothing is left of those that could clean up.
    rubelet_e2e::sweep_abandoned(&cache.run())?;
    Ok(ExitCode::SUCCESS)
}

fn find_running(cache: &Cache) -> Vec<Owner> {
    let entries = std::fs::read_dir(cache.run()).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&format!("{NAME}-")))
        .filter_map(|entry| Owner::read(&entry.path()))
        .filter(Owner::has_maker)
        .collect()
}
