//! A containerd of our own.

use std::fs::{self, File};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use serde_json::json;

use crate::cache::{RuntimeKind, Tools};
use crate::cgroups;
use crate::namespaces::{Lifetime, Namespaces, kill};
use crate::network::NodeNetwork;
use crate::owner::{Owner, sweep, sweep_abandoned};
use crate::wait::wait_for;

/// The image of the sandboxes' first process.
const PAUSE_IMAGE: &str = "registry.k8s.io/pause:3.10";
/// The bit of `CAP_SYS_RESOURCE` in a capability set.
const CAP_SYS_RESOURCE: u64 = 1 << 24;
/// What fits into the address of a unix socket, with its final zero.
const SOCKET_PATH_LIMIT: usize = 107;

/// Where and how a runtime is started.
#[derive(Debug, Clone)]
pub struct RuntimeOptions {
    /// A word for the directory and the cgroup: `demo`, `debian`.
    pub name: String,
    /// The directory of all run directories ([`crate::Cache::run`]).
    pub run: PathBuf,
    /// Whether it can outlive us.
    pub lifetime: Lifetime,
}

/// A running containerd with its images, alone in its namespaces.
///
/// Dropping it ends it and everything that runs on it and removes its directory and cgroups,
/// unless it was told to [keep running](Runtime::keep_running).
#[derive(Debug)]
pub struct Runtime {
    tools: Tools,
    owner: Owner,
    lifetime: Lifetime,
    network: NodeNetwork,
    /// Whether it is left running when it is dropped.
    kept: AtomicBool,
    /// None while it is stopped.
    containerd: Mutex<Option<Child>>,
    namespaces: Namespaces,
}

impl Runtime {
    /// Starts containerd, waits until it answers, and imports the images.
    ///
    /// # Errors
    /// When something it needs is missing or fails; nothing is left running then.
    pub fn start(tools: Tools, options: RuntimeOptions) -> anyhow::Result<Self> {
        Self::start_on(NodeNetwork::alone(), tools, options)
    }

    /// As [`Runtime::start`], on a node with that network.
    ///
    /// # Errors
    /// When something it needs is missing or fails; nothing is left running then.
    pub fn start_on(
        network: NodeNetwork,
        tools: Tools,
        options: RuntimeOptions,
    ) -> anyhow::Result<Self> {
        anyhow::ensure!(rustix::process::geteuid().is_root(), "containers need root");
        sweep_abandoned(&options.run)?;
        let (dir, cgroup) = free_name(&options);
        let owner = Owner::claim(&dir, &cgroup, options.lifetime == Lifetime::UntilSwept)?;
        Self::start_in(tools, owner.clone(), options.lifetime, network).inspect_err(|_| {
            let claimed = Owner::read(&owner.dir).unwrap_or(owner);
            if let Err(error) = sweep(&claimed) {
                eprintln!("cannot clean up: {error:#}");
            }
        })
    }

    fn start_in(
        tools: Tools,
        mut owner: Owner,
        lifetime: Lifetime,
        network: NodeNetwork,
    ) -> anyhow::Result<Self> {
        let dir = owner.dir.clone();
        let socket = dir.join("containerd.sock");
        anyhow::ensure!(
            socket.as_os_str().len() + ".ttrpc".len() <= SOCKET_PATH_LIMIT,
            "{} is too long for a socket: set RUBELET_CACHE to a shorter path",
            socket.display()
        );
        cgroups::create(&owner.cgroup)?;
        let namespaces = Namespaces::create(lifetime)?;
        owner.set_init(namespaces.init_pid())?;
        namespaces.mount_private_dirs(&dir.join("private"))?;
        network.set_up(&namespaces)?;

        write(&dir.join("containerd.toml"), &containerd_config(&tools, &dir))?;
        fs::create_dir_all(dir.join("cni.d"))?;
        write(&dir.join("cni.d/10-rubelet.conflist"), &cni_config(&dir, &network))?;
        write(&dir.join("resolv.conf"), "nameserver 127.0.0.1\n")?;

        let kept = AtomicBool::new(false);
        let containerd = Mutex::new(None);
        let runtime = Self { tools, owner, lifetime, network, kept, containerd, namespaces };
        let started = runtime.start_containerd().and_then(|()| runtime.import_images());
        if let Err(error) = started {
            let log = tail(&runtime.dir().join("containerd.log"), 15);
            drop(runtime);
            return Err(error.context(format!("containerd says:\n{log}")));
        }
        Ok(runtime)
    }

    /// Starts containerd and waits until it answers; nothing happens while it runs.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_containerd(&self) -> anyhow::Result<()> {
        let mut containerd = self.containerd();
        if containerd.is_some() {
            return Ok(());
        }
        let path = self.dir().join("containerd.log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut command = self.namespaces.command(&self.tools.containerd);
        command.arg("--config").arg(self.dir().join("containerd.toml"));
        command.env("PATH", search_path(&self.tools));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child =
            containerd.insert(self.namespaces.spawn(&mut command).context("cannot start it")?);
        wait_for("containerd to answer", Duration::from_secs(120), || {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(format!("containerd ended with {status}"));
            }
            self.ctr(&["version"]).map(|_| ()).map_err(|error| format!("{error:#}"))
        })
    }

    /// Ends containerd with SIGKILL. Containers and their shims run on.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill_containerd(&self) -> anyhow::Result<()> {
        if let Some(mut child) = self.containerd().take() {
            kill(child.id());
            child.wait().context("cannot wait for containerd")?;
        }
        Ok(())
    }

    fn containerd(&self) -> MutexGuard<'_, Option<Child>> {
        // A scenario that panicked meanwhile has failed anyway; the process is still ours to end.
        self.containerd.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn import_images(&self) -> anyhow::Result<()> {
        for archive in self.tools.images.clone() {
            let archive = archive.to_str().context("the cache's path is not UTF-8")?;
            self.ctr(&["-n", "k8s.io", "images", "import", archive])
                .with_context(|| format!("cannot import {archive}"))?;
        }
        Ok(())
    }

    /// Runs containerd's own client, and returns what it wrote.
    ///
    /// # Errors
    /// When it fails.
    pub fn ctr(&self, args: &[&str]) -> anyhow::Result<String> {
        let ctr = self.tools.ctr.to_str().context("the cache's path is not UTF-8")?;
        let socket = self.socket();
        let socket = socket.to_str().context("the cache's path is not UTF-8")?;
        let output = self.namespaces.run(ctr, &[&["-a", socket], args].concat())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Lets it, its kubelets and its pods run on after us, until somebody sweeps them.
    ///
    /// # Errors
    /// When it was started to end with us.
    pub fn keep_running(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.lifetime == Lifetime::UntilSwept, "it was started to end with us");
        self.kept.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// Which containerd it is.
    pub fn kind(&self) -> RuntimeKind {
        self.tools.kind
    }

    /// Its directory: state, sockets, logs, and those of the kubelets on it.
    pub fn dir(&self) -> &Path {
        &self.owner.dir
    }

    /// Where containerd keeps what it knows of running tasks.
    pub fn state_dir(&self) -> PathBuf {
        self.dir().join("private/run/containerd")
    }

    /// The record by which it can be swept.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The socket of the CRI. It can be reached from outside of the namespaces, too.
    pub fn socket(&self) -> PathBuf {
        self.dir().join("containerd.sock")
    }

    /// The name of the cgroup that kubelets on it use as their root.
    pub fn cgroup(&self) -> &str {
        &self.owner.cgroup
    }

    /// What a file says in a group below its cgroup, in whichever hierarchy has it, without the
    /// last line's end.
    ///
    /// # Errors
    /// When no hierarchy has it or it cannot be read.
    pub fn read_cgroup(&self, group: &str, file: &str) -> anyhow::Result<String> {
        let below = Path::new(self.cgroup()).join(group).join(file);
        let path = cgroups::hierarchies()
            .into_iter()
            .map(|hierarchy| hierarchy.join(&below))
            .find(|path| path.exists())
            .with_context(|| format!("no hierarchy has {}", below.display()))?;
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(text.trim_end().to_owned())
    }

    /// The namespaces it runs in.
    pub fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// The address of the node.
    pub fn node_address(&self) -> IpAddr {
        self.network.address().into()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.is_kept() {
            return;
        }
        let ended = self
            .kill_containerd()
            .and_then(|()| self.namespaces.end())
            .and_then(|()| sweep(&self.owner));
        if let Err(error) = ended {
            eprintln!("cannot clean up {}: {error:#}", self.owner.dir.display());
        }
    }
}

/// A name that no other run uses.
fn free_name(options: &RuntimeOptions) -> (PathBuf, String) {
    let pid = std::process::id();
    let mut serial = 0;
    loop {
        let name = match serial {
            0 => format!("{}-{pid}", options.name),
            _ => format!("{}-{pid}-{serial}", options.name),
        };
        let dir = options.run.join(&name);
        if !dir.exists() {
            return (dir, format!("rubelet-{name}"));
        }
        serial += 1;
    }
}

fn search_path(tools: &Tools) -> String {
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    match (tools.kind, tools.containerd.parent()) {
        (RuntimeKind::Built, Some(bin)) => format!("{}:{system}", bin.display()),
        _ => system.to_owned(),
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The configuration, in the version that the kind of containerd reads.
fn containerd_config(tools: &Tools, dir: &Path) -> String {
    // TOML takes a JSON string for a basic string.
    let quoted = |path: &Path| json!(path.display().to_string()).to_string();
    let at = |name: &str| quoted(&dir.join(name));
    let common = format!(
        "root = {}\nstate = {}\n[grpc]\n  address = {}\n[ttrpc]\n  address = {}\n\
         [plugins.'io.containerd.internal.v1.opt']\n  path = {}\n",
        at("containerd/root"),
        // Not below the cache, which may be in root's home: the users of a pod with users of its own
        // may not pass through there to what runc mounts for them.
        quoted(Path::new("/run/containerd")),
        at("containerd.sock"),
        at("containerd.sock.ttrpc"),
        at("containerd/opt"),
    );
    let plugins = quoted(&tools.cni_plugins);
    let (runc, conf) = (quoted(&tools.runc), at("cni.d"));
    let restrict = !may_lower_oom_score();
    let runtime = |plugin: &str| {
        format!(
            "  [plugins.'{plugin}'.containerd.runtimes.runc]\n    \
             runtime_type = \"io.containerd.runc.v2\"\n    \
             [plugins.'{plugin}'.containerd.runtimes.runc.options]\n      BinaryName = {runc}\n"
        )
    };
    match tools.kind {
        RuntimeKind::Debian => {
            let cri = "io.containerd.grpc.v1.cri";
            format!(
                "version = 2\n{common}[plugins.'{cri}']\n  sandbox_image = \"{PAUSE_IMAGE}\"\n  \
                 restrict_oom_score_adj = {restrict}\n  [plugins.'{cri}'.cni]\n    \
                 bin_dir = {plugins}\n    conf_dir = {conf}\n  [plugins.'{cri}'.containerd]\n    \
                 snapshotter = \"overlayfs\"\n    default_runtime_name = \"runc\"\n{}",
                runtime(cri)
            )
        }
        RuntimeKind::Built => {
            let (images, cri) = ("io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime");
            format!(
                "version = 3\n{common}[plugins.'{images}']\n  snapshotter = \"overlayfs\"\n  \
                 [plugins.'{images}'.pinned_images]\n    sandbox = \"{PAUSE_IMAGE}\"\n\
                 [plugins.'{cri}']\n  restrict_oom_score_adj = {restrict}\n  \
                 [plugins.'{cri}'.cni]\n    bin_dirs = [{plugins}]\n    conf_dir = {conf}\n  \
                 [plugins.'{cri}'.containerd]\n    default_runtime_name = \"runc\"\n{}",
                runtime(cri)
            )
        }
    }
}

/// Whether this process may make itself less likely to be killed than it is: without that right,
/// runc fails to start a container that asks for it, unless containerd is told to leave it out.
fn may_lower_oom_score() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & CAP_SYS_RESOURCE != 0)
}

fn cni_config(dir: &Path, network: &NodeNetwork) -> String {
    json!({
        "cniVersion": "1.0.0",
        "name": "rubelet",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "rubelet0",
                "isGateway": true,
                "ipMasq": network.hides_pods(),
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": dir.join("cni-addresses"),
                    "ranges": [[{ "subnet": network.pods() }]],
                    "routes": [{ "dst": "0.0.0.0/0" }]
                }
            },
            { "type": "portmap", "capabilities": { "portMappings": true } }
        ]
    })
    .to_string()
}

/// The last lines of a file.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
