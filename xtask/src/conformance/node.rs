//! A cluster of one node that the suite runs on.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rubelet_control_plane::{Options as ControlPlaneOptions, Tools as ControlPlaneTools};
use rubelet_e2e::{Cache, Cluster, ClusterOptions, KubeletProcess, Owner, Tools, leftovers};
use serde_json::json;

use crate::cluster::wait_until_ready;
use crate::interrupt::Interrupt;
use crate::report;
use crate::testbed::Suite;

/// How often the run tells how far it is.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// What is to be run.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    /// Which specs, as a regular expression.
    pub(crate) focus: String,
    /// Which of these not.
    pub(crate) skip: String,
    /// How many of them, if that is known.
    pub(crate) specs: Option<usize>,
    /// How many at a time.
    pub(crate) procs: u32,
    /// After how long the rest is given up.
    pub(crate) limit: Duration,
    /// Where reports and logs go.
    pub(crate) out: PathBuf,
}

/// A control plane, a containerd with the suite's images, the kubelet that is judged, and what makes
/// Services work.
///
/// Fields are dropped in this order: each needs those after it.
#[derive(Debug)]
pub(crate) struct Node {
    proxy: Process,
    kubelet: KubeletProcess,
    suite: Suite,
    cluster: Cluster,
}

impl Node {
    /// Starts all of it and waits until the node is ready.
    pub(crate) fn start(
        cache: &Cache,
        tools: &Tools,
        control_plane: &ControlPlaneTools,
        suite: &Suite,
        kubelet: &Path,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Self> {
        let cluster = Cluster::start(
            tools,
            control_plane,
            ClusterOptions {
                name: "conformance".to_owned(),
                nodes: 1,
                control_plane: ControlPlaneOptions::new(cache.run()),
            },
        )?;
        let runtime = &cluster.runtimes()[0];
        for archive in &suite.images {
            let archive = archive.to_str().context("the cache's path is not UTF-8")?;
            runtime
                .ctr(&["-n", "k8s.io", "images", "import", archive])
                .with_context(|| format!("cannot import {archive}"))?;
        }
        let mut options = cluster.kubelet_options(0, kubelet);
        // Many specs at a time: none waits for the images of another.
        options.config["serializeImagePulls"] = json!(false);
        let mut kubelet = KubeletProcess::launch(runtime, options)?;
        wait_until_ready(&cluster, 0, &mut kubelet, interrupt)?;
        let proxy = start_proxy(&cluster, &suite.kube_proxy)?;
        Ok(Self { proxy, kubelet, suite: suite.clone(), cluster })
    }

    /// Runs the suite to its end, and says how that was.
    pub(crate) fn run(&mut self, run: &Run, interrupt: &Interrupt) -> anyhow::Result<ExitStatus> {
        let runtime = &self.cluster.runtimes()[0];
        let mut command = runtime.namespaces().command(&self.suite.ginkgo);
        command
            .arg(format!("--procs={}", run.procs))
            .args(["--no-color", "--silence-skips", "--json-report=report.json"])
            .arg(format!("--output-dir={}", run.out.display()))
            .arg(format!("--timeout={}s", run.limit.as_secs()))
            .arg(format!("--focus={}", run.focus))
            .arg(format!("--skip={}", run.skip))
            .arg(&self.suite.tests)
            .args(["--", "--provider=skeleton", "--num-nodes=1"])
            .arg(format!(
                "--kubeconfig={}",
                self.cluster.control_plane().admin_kubeconfig().display()
            ));
        let bin = self.suite.tests.parent().context("the suite is in no directory")?;
        command.env("PATH", search_path(bin)?);
        let log = run.out.join("suite.log");
        let output =
            File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let child = runtime.namespaces().spawn(&mut command).context("cannot start ginkgo")?;
        let mut ginkgo = Process(child);

        let started = Instant::now();
        let mut told = started;
        loop {
            if let Some(status) = ginkgo.0.try_wait().context("cannot wait for ginkgo")? {
                return Ok(status);
            }
            if let Some(status) = self.kubelet.ended()? {
                anyhow::bail!("the kubelet ended with {status}:\n{}", self.kubelet.log_tail(25));
            }
            if let Some(status) = self.proxy.0.try_wait().context("cannot wait for kube-proxy")? {
                anyhow::bail!("kube-proxy ended with {status}");
            }
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let done = Progress::read(&log);
                let all = run.specs.map(|all| format!(" of {all}")).unwrap_or_default();
                report::say(format_args!(
                    "{}{all} done, {} failed so far ({} s)",
                    done.ended,
                    done.failed,
                    started.elapsed().as_secs()
                ));
            }
            interrupt.sleep(Duration::from_millis(200))?;
        }
    }

    /// Keeps the logs of kubelet and kube-proxy with the report.
    pub(crate) fn keep_logs(&self, out: &Path) -> anyhow::Result<()> {
        std::fs::copy(self.kubelet.log_file(), out.join("kubelet.log"))
            .context("cannot keep the kubelet's log")?;
        let proxy = proxy_log(&self.cluster);
        std::fs::copy(proxy, out.join("kube-proxy.log")).context("cannot keep kube-proxy's log")?;
        Ok(())
    }

    /// Ends it, and names what is left.
    pub(crate) fn end(self) -> Vec<String> {
        let owner: Owner = self.cluster.runtimes()[0].owner().clone();
        drop(self);
        leftovers(&owner)
    }
}

/// How far a run is, from what ginkgo has written so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    ended: usize,
    failed: usize,
}

impl Progress {
    fn read(log: &Path) -> Self {
        // The next look finds what this one did not.
        Self::of(&String::from_utf8_lossy(&std::fs::read(log).unwrap_or_default()))
    }

    fn of(text: &str) -> Self {
        // One bullet for each, also several in a line.
        Self { ended: text.matches('•').count(), failed: text.matches("• [FAILED]").count() }
    }
}

/// A child that ends when this does.
#[derive(Debug)]
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn proxy_log(cluster: &Cluster) -> PathBuf {
    cluster.runtimes()[0].dir().join("kube-proxy.log")
}

fn start_proxy(cluster: &Cluster, kube_proxy: &Path) -> anyhow::Result<Process> {
    let runtime = &cluster.runtimes()[0];
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": { "kubeconfig": cluster.control_plane().admin_kubeconfig() },
        "mode": "iptables",
        "hostnameOverride": Cluster::node_name(0),
        // The table is the machine's, and not ours to size.
        "conntrack": { "maxPerCore": 0, "min": 0 }
    });
    let config_file = runtime.dir().join("kube-proxy.yaml");
    File::create(&config_file)
        .and_then(|mut file| file.write_all(config.to_string().as_bytes()))
        .with_context(|| format!("cannot write {}", config_file.display()))?;
    let log = File::create(proxy_log(cluster)).context("cannot make kube-proxy's log")?;
    let mut command = runtime.namespaces().command(kube_proxy);
    command.arg(format!("--config={}", config_file.display()));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let child = runtime.namespaces().spawn(&mut command).context("cannot start kube-proxy")?;
    Ok(Process(child))
}

/// Ours first: the suite calls kubectl.
fn search_path(bin: &Path) -> anyhow::Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(dirs).context("PATH cannot be made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_counted_by_bullets() {
        let text =
            "••\n------------------------------\n• [FAILED] [302 seconds]\n• [3 seconds]\nx\n";
        assert_eq!(Progress::of(text), Progress { ended: 4, failed: 1 });
    }
}
