//! A kubelet process: ours, or another one with the same flags and configuration.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::events::{self, EventView};
use crate::http;
use crate::namespaces::ProcessStat;
use crate::pods::PodView;
use crate::runtime::{Runtime, tail};
use crate::wait::wait_for;

const HEALTHZ_PORT: u16 = 10248;
const READ_ONLY_PORT: u16 = 10255;
const HEALTHY_WITHIN: Duration = Duration::from_secs(120);
const STOPPED_WITHIN: Duration = Duration::from_secs(60);

/// How a kubelet is started.
#[derive(Debug, Clone)]
pub struct KubeletOptions {
    /// The executable.
    pub binary: PathBuf,
    /// The node's name, and the name of its directory in the runtime's.
    pub node_name: String,
    /// Fields of `KubeletConfiguration` that are laid over the test bed's.
    pub config: Value,
    /// More flags.
    pub args: Vec<String>,
}

impl KubeletOptions {
    /// A kubelet as the test bed wants it.
    pub fn new(binary: impl Into<PathBuf>, node_name: &str) -> Self {
        Self {
            binary: binary.into(),
            node_name: node_name.to_owned(),
            config: json!({}),
            args: Vec::new(),
        }
    }
}

/// What a process has used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    /// User and system time.
    pub cpu: Duration,
    /// Resident memory in bytes.
    pub resident: u64,
    /// Resident memory at its highest, in bytes.
    pub resident_peak: u64,
    /// Threads.
    pub threads: u64,
}

/// A kubelet that runs standalone on a [`Runtime`], with pods from a directory of manifests.
///
/// Dropping it kills it, unless its runtime keeps running. Its pods stay, as they do on a node.
#[derive(Debug)]
pub struct KubeletProcess {
    runtime: Arc<Runtime>,
    options: KubeletOptions,
    dir: PathBuf,
    child: Child,
    running: bool,
}

impl KubeletProcess {
    /// Starts a kubelet and waits until its `/healthz` says ok.
    ///
    /// # Errors
    /// When it does not become healthy; the error carries the end of its log.
    pub fn start(runtime: &Arc<Runtime>, options: KubeletOptions) -> anyhow::Result<Self> {
        let mut kubelet = Self::launch(runtime, options)?;
        kubelet.wait_until_healthy()?;
        Ok(kubelet)
    }

    /// Starts a kubelet and waits for nothing.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(runtime: &Arc<Runtime>, options: KubeletOptions) -> anyhow::Result<Self> {
        let dir = runtime.dir().join(&options.node_name);
        for name in ["manifests", "root", "pod-logs"] {
            fs::create_dir_all(dir.join(name))
                .with_context(|| format!("cannot make {}", dir.join(name).display()))?;
        }
        let child = launch(runtime, &options, &dir)?;
        Ok(Self { runtime: Arc::clone(runtime), options, dir, child, running: true })
    }

    /// Waits until its `/healthz` says ok.
    ///
    /// # Errors
    /// When it ends or does not become healthy; the error carries the end of its log.
    pub fn wait_until_healthy(&mut self) -> anyhow::Result<()> {
        let healthy = wait_for("the kubelet to be healthy", HEALTHY_WITHIN, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                self.running = false;
                return Err(format!("it ended with {status}"));
            }
            match http::get(self.runtime.namespaces(), local(HEALTHZ_PORT), "/healthz") {
                Ok((200, _)) => Ok(()),
                Ok((status, body)) => Err(format!("{status} {}", String::from_utf8_lossy(&body))),
                Err(error) => Err(format!("{error:#}")),
            }
        });
        healthy.with_context(|| format!("its log ends with:\n{}", self.log_tail(25)))
    }

    /// The directory that its pods come from.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// Its root directory (`--root-dir`).
    pub fn root_dir(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// The directory of the pods' logs.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("pod-logs")
    }

    /// The file with its own log.
    pub fn log_file(&self) -> PathBuf {
        self.dir.join("kubelet.log")
    }

    /// The runtime it talks to.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Its process id, as seen from outside.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log_file(), lines)
    }

    /// How long its log is: what it writes later stands behind.
    pub fn log_size(&self) -> u64 {
        fs::metadata(self.log_file()).map_or(0, |file| file.len())
    }

    /// Waits until it has written a line with `text` into its own log, behind the first `from` bytes.
    ///
    /// # Errors
    /// When `timeout` passes first.
    pub fn wait_for_own_log(&self, from: u64, text: &str, timeout: Duration) -> anyhow::Result<()> {
        let path = self.log_file();
        wait_for(&format!("{text:?} in the kubelet's log"), timeout, || {
            let log = fs::read(&path).map_err(|error| error.to_string())?;
            let from = usize::try_from(from).unwrap_or(usize::MAX).min(log.len());
            let found = String::from_utf8_lossy(&log[from..]).contains(text);
            if found { Ok(()) } else { Err(format!("it ends with:\n{}", self.log_tail(10))) }
        })
    }

    /// Puts a manifest into place at once: written beside, then renamed.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_manifest(&self, file_name: &str, text: &str) -> anyhow::Result<()> {
        let target = self.manifests().join(file_name);
        let partial = self.dir.join(format!(".{file_name}.partial"));
        fs::write(&partial, text)
            .and_then(|()| fs::rename(&partial, &target))
            .with_context(|| format!("cannot write {}", target.display()))
    }

    /// Puts the manifest of a pod into place, in a file named after it.
    ///
    /// # Errors
    /// When it cannot be written, or has no name.
    pub fn write_pod(&self, pod: &Value) -> anyhow::Result<()> {
        let name = pod["metadata"]["name"].as_str().context("the pod has no name")?;
        self.write_manifest(&format!("{name}.yaml"), &pod.to_string())
    }

    /// Takes the manifest of a pod away that [`KubeletProcess::write_pod`] wrote.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove_pod(&self, name: &str) -> anyhow::Result<()> {
        self.remove_manifest(&format!("{name}.yaml"))
    }

    /// Takes a manifest away.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove_manifest(&self, file_name: &str) -> anyhow::Result<()> {
        let target = self.manifests().join(file_name);
        fs::remove_file(&target).with_context(|| format!("cannot remove {}", target.display()))
    }

    /// `GET path` on a port of the node.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn get(&self, port: u16, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        http::get(self.runtime.namespaces(), local(port), path)
    }

    /// `GET path` on a port of a pod (or any address that can be reached from the node).
    ///
    /// # Errors
    /// When nobody answers.
    pub fn get_from(
        &self,
        address: IpAddr,
        port: u16,
        path: &str,
    ) -> anyhow::Result<(u16, Vec<u8>)> {
        http::get(self.runtime.namespaces(), SocketAddr::new(address, port), path)
    }

    /// The pods it has, from `/pods`.
    ///
    /// # Errors
    /// When it does not answer with a pod list.
    pub fn pods(&self) -> anyhow::Result<Vec<PodView>> {
        let (status, body) = self.get(READ_ONLY_PORT, "/pods")?;
        if status != 200 {
            bail!("/pods answered {status}: {}", String::from_utf8_lossy(&body));
        }
        let list: Value = serde_json::from_slice(&body).context("/pods is not JSON")?;
        Ok(PodView::from_list(&list))
    }

    /// The static pod of a manifest whose `metadata.name` is `name`.
    ///
    /// # Errors
    /// When it does not answer with a pod list.
    pub fn pod(&self, name: &str) -> anyhow::Result<Option<PodView>> {
        let full_name = format!("{name}-{}", self.options.node_name);
        Ok(self.pods()?.into_iter().find(|pod| pod.name == full_name))
    }

    /// Waits until the static pod `name` is as `is_so` wants it.
    ///
    /// # Errors
    /// When `timeout` passes first; the error carries the pod's status and the end of the log.
    pub fn wait_for_pod(
        &self,
        name: &str,
        what: &str,
        timeout: Duration,
        is_so: impl Fn(&PodView) -> bool,
    ) -> anyhow::Result<PodView> {
        wait_for(&format!("{name} to be {what}"), timeout, || match self.pod(name) {
            Ok(Some(pod)) if is_so(&pod) => Ok(pod),
            Ok(Some(pod)) => Err(format!("its status is {}", pod.raw["status"])),
            Ok(None) => Err("there is no such pod".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        })
        .with_context(|| format!("the kubelet's log ends with:\n{}", self.log_tail(25)))
    }

    /// Waits until the static pod `name` is gone from `/pods`.
    ///
    /// # Errors
    /// When `timeout` passes first.
    pub fn wait_until_gone(&self, name: &str, timeout: Duration) -> anyhow::Result<()> {
        wait_for(&format!("{name} to be gone"), timeout, || match self.pod(name) {
            Ok(None) => Ok(()),
            Ok(Some(pod)) => Err(format!("its status is {}", pod.raw["status"])),
            Err(error) => Err(format!("{error:#}")),
        })
        .with_context(|| format!("the kubelet's log ends with:\n{}", self.log_tail(25)))
    }

    /// The events that it told of so far, in all its runs.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn events(&self) -> anyhow::Result<Vec<EventView>> {
        let path = self.log_file();
        let log = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(events::read(&String::from_utf8_lossy(&log)))
    }

    /// Waits until it has told of an event of the static pod `name` with that reason and `text` in
    /// the message.
    ///
    /// # Errors
    /// When `timeout` passes first; the error carries what it told of the pod.
    pub fn wait_for_event(
        &self,
        name: &str,
        reason: &str,
        text: &str,
        timeout: Duration,
    ) -> anyhow::Result<EventView> {
        let object = format!("/{name}-{}", self.options.node_name);
        let what = format!("the event {reason} of {name} with {text:?}");
        wait_for(&what, timeout, || {
            let told = self.events().map_err(|error| format!("{error:#}"))?;
            let mut told = told.into_iter().filter(|event| event.object.ends_with(&object));
            let others: Vec<EventView> = told.clone().collect();
            told.find(|event| event.reason == reason && event.message.contains(text))
                .ok_or_else(|| format!("it told of {others:#?}"))
        })
    }

    /// The lines that a container wrote, over all its restarts that are still on disk.
    ///
    /// # Errors
    /// When a log file cannot be read.
    pub fn container_log(&self, pod: &PodView, container: &str) -> anyhow::Result<Vec<String>> {
        let dir = self
            .pod_logs()
            .join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
            .join(container);
        let mut files: Vec<(u64, PathBuf)> = fs::read_dir(&dir)
            .with_context(|| format!("cannot read {}", dir.display()))?
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                let number = name.to_str()?.strip_suffix(".log")?.parse().ok()?;
                Some((number, entry.path()))
            })
            .collect();
        files.sort();
        let mut lines = Vec::new();
        for (_, file) in files {
            let text =
                fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            // Each line: time, stream, tag, text.
            lines.extend(
                String::from_utf8_lossy(&text)
                    .lines()
                    .filter_map(|line| line.splitn(4, ' ').nth(3).map(str::to_owned)),
            );
        }
        Ok(lines)
    }

    /// Waits until a container has written a line with `text` in it: ready says only that a
    /// container without probes was started, not how far it has come.
    ///
    /// # Errors
    /// When `timeout` passes first; the error carries what it wrote.
    pub fn wait_for_log(
        &self,
        pod: &PodView,
        container: &str,
        text: &str,
        timeout: Duration,
    ) -> anyhow::Result<Vec<String>> {
        let what = format!("{text:?} in the log of {}/{container}", pod.name);
        wait_for(&what, timeout, || match self.container_log(pod, container) {
            Ok(lines) if lines.iter().any(|line| line.contains(text)) => Ok(lines),
            Ok(lines) => Err(format!("it wrote {lines:?}")),
            Err(error) => Err(format!("{error:#}")),
        })
    }

    /// What it has used so far.
    ///
    /// # Errors
    /// When it does not run.
    pub fn usage(&self) -> anyhow::Result<ProcessUsage> {
        let pid = self.pid();
        let stat = ProcessStat::read(pid).context("the kubelet does not run")?;
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .context("the kubelet does not run")?;
        let field = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            number.unwrap_or(0)
        };
        Ok(ProcessUsage {
            cpu: stat.cpu(),
            resident: field("VmRSS:") * 1024,
            resident_peak: field("VmHWM:") * 1024,
            threads: field("Threads:"),
        })
    }

    /// Kills it with SIGKILL. Pods run on.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn sigkill(&mut self) -> anyhow::Result<()> {
        if self.running {
            self.signal(Signal::KILL);
            self.child.wait().context("cannot wait for the kubelet")?;
            self.running = false;
        }
        Ok(())
    }

    /// Holds it still (SIGSTOP) until [`KubeletProcess::resume`] or its end.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it with SIGTERM, as an init system does. Pods run on.
    ///
    /// # Errors
    /// When it has to be killed after all.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        if !self.running {
            return Ok(());
        }
        self.signal(Signal::TERM);
        let ended = self.wait_for_end(STOPPED_WITHIN).map(|_| ());
        if ended.is_err() {
            self.sigkill()?;
        }
        ended
    }

    /// How it ended, if it has by itself.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        let ended = self.child.try_wait().context("cannot wait for the kubelet")?;
        self.running &= ended.is_none();
        Ok(ended)
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// When `timeout` passes first; the error carries the end of its log.
    pub fn wait_for_end(&mut self, timeout: Duration) -> anyhow::Result<ExitStatus> {
        let ended = wait_for("the kubelet to end", timeout, || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            Ok(None) => Err("it runs".to_owned()),
            Err(error) => Err(error.to_string()),
        })
        .with_context(|| format!("its log ends with:\n{}", self.log_tail(25)))?;
        self.running = false;
        Ok(ended)
    }

    /// Starts it again with the same options; its log goes on in the same file.
    ///
    /// # Errors
    /// When it still runs or does not become healthy.
    pub fn start_again(&mut self) -> anyhow::Result<()> {
        self.launch_again()?;
        self.wait_until_healthy()
    }

    /// As [`KubeletProcess::start_again`], but does not wait for anything.
    ///
    /// # Errors
    /// When it still runs or cannot be started.
    pub fn launch_again(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.running, "it still runs");
        self.child = launch(&self.runtime, &self.options, &self.dir)?;
        self.running = true;
        Ok(())
    }

    /// SIGTERM, then a new start.
    ///
    /// # Errors
    /// As for [`KubeletProcess::stop`] and [`KubeletProcess::start_again`].
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.stop()?;
        self.start_again()
    }

    /// The executable of its last start or of its next.
    pub fn binary(&self) -> &Path {
        &self.options.binary
    }

    /// Changes the options of the next start.
    pub fn options_mut(&mut self) -> &mut KubeletOptions {
        &mut self.options
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // It may be gone already; the wait that follows finds that out.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for KubeletProcess {
    fn drop(&mut self) {
        if !self.runtime.is_kept()
            && let Err(error) = self.sigkill()
        {
            eprintln!("{error:#}");
        }
    }
}

fn launch(runtime: &Runtime, options: &KubeletOptions, dir: &Path) -> anyhow::Result<Child> {
    let config_file = dir.join("config.yaml");
    let mut config = default_config(runtime, dir);
    lay_over(&mut config, &options.config);
    fs::write(&config_file, serde_json::to_string_pretty(&config)?)
        .with_context(|| format!("cannot write {}", config_file.display()))?;
    let log = File::options()
        .create(true)
        .append(true)
        .open(dir.join("kubelet.log"))
        .context("cannot open the kubelet's log")?;
    let mut command = runtime.namespaces().command(&options.binary);
    command.arg(format!("--config={}", config_file.display()));
    command.arg(format!("--root-dir={}", dir.join("root").display()));
    command.arg(format!("--hostname-override={}", options.node_name));
    command.arg(format!("--node-ip={}", runtime.node_address()));
    command.args(&options.args);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    runtime
        .namespaces()
        .spawn(&mut command)
        .with_context(|| format!("cannot start {}", options.binary.display()))
}

/// The configuration in JSON, which is YAML, too.
fn default_config(runtime: &Runtime, dir: &Path) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": dir.join("manifests"),
        "podLogsDir": dir.join("pod-logs"),
        "containerRuntimeEndpoint": format!("unix://{}", runtime.socket().display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", runtime.cgroup()),
        "failCgroupV1": false,
        "failSwapOn": false,
        "authentication": {
            "anonymous": { "enabled": true },
            "webhook": { "enabled": false }
        },
        "authorization": { "mode": "AlwaysAllow" },
        "readOnlyPort": READ_ONLY_PORT,
        "healthzPort": HEALTHZ_PORT,
        "resolvConf": runtime.dir().join("resolv.conf"),
        "evictionHard": {
            "memory.available": "10Mi",
            "nodefs.available": "10Mi",
            "imagefs.available": "10Mi"
        },
        "imageGCHighThresholdPercent": 100,
        "logging": { "verbosity": 2 }
    })
}

/// Objects are merged field by field, anything else is replaced.
fn lay_over(below: &mut Value, above: &Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (key, value) in above {
                lay_over(below.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (below, above) => *below = above.clone(),
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_laid_over_leaves_its_neighbours() {
        let mut config = json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
        lay_over(&mut config, &json!({ "a": { "c": 3 }, "d": [2], "e": true }));
        assert_eq!(config, json!({ "a": { "b": 1, "c": 3 }, "d": [2], "e": true }));
    }
}
