//! What the demo shows, one scene after the other.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use jiff::Timestamp;
use rubelet_e2e::{
    ContainerView, KubeletProcess, PodView, find_container_processes, kill_container,
};

use super::table;
use crate::interrupt::Interrupt;
use crate::{project, report};

const EXAMPLES: [&str; 6] = [
    "web.yaml",
    "init-and-sidecar.yaml",
    "crash-loop.yaml",
    "batch.yaml",
    "shared-volumes.yaml",
    "host-network.yaml",
];
const WEB_PORT: u16 = 8080;
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Plays all scenes; an error is a scene that did not go as it should.
pub(super) fn play(kubelet: &mut KubeletProcess, interrupt: &Interrupt) -> anyhow::Result<()> {
    let demo = Scenes { kubelet, interrupt };
    demo.pods_start()?;
    demo.a_pod_writes_its_log()?;
    demo.a_killed_container_comes_back()?;
    demo.a_changed_manifest_replaces_its_pod()?;
    demo.a_removed_manifest_ends_its_pod()?;
    restart(kubelet, interrupt)
}

struct Scenes<'a> {
    kubelet: &'a KubeletProcess,
    interrupt: &'a Interrupt,
}

impl Scenes<'_> {
    fn pods_start(&self) -> anyhow::Result<()> {
        report::heading("The manifests of examples/ become pods");
        for name in EXAMPLES {
            let path = project::root().join("examples").join(name);
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            self.kubelet.write_manifest(name, &text)?;
        }
        let started = Instant::now();
        self.watch_until(
            "every example is where it should be",
            Duration::from_secs(120),
            |pods| {
                let pod = |name: &str| find(pods, name);
                let is_ready = |name: &str| pod(name).is_some_and(|pod| pod.ready);
                let crashed =
                    pod("crash-loop").is_some_and(|pod| pod.state() == "CrashLoopBackOff");
                let worked = pod("batch").is_some_and(|pod| pod.restarts() >= 1);
                ["web", "init-and-sidecar", "shared-volumes", "host-network"]
                    .iter()
                    .all(|n| is_ready(n))
                    && crashed
                    && worked
            },
        )?;
        report::say(format_args!("that took {:.1} s", started.elapsed().as_secs_f64()));
        Ok(())
    }

    fn a_pod_writes_its_log(&self) -> anyhow::Result<()> {
        report::heading("What the sidecar of init-and-sidecar wrote");
        let pod = self.pod("init-and-sidecar")?;
        let lines = self.until("log lines", Duration::from_secs(20), || {
            let lines = self.kubelet.container_log(&pod, "log-shipper").unwrap_or_default();
            (lines.len() >= 3).then_some(lines)
        })?;
        for line in lines.iter().take(5) {
            report::say(format_args!("| {line}"));
        }
        Ok(())
    }

    fn a_killed_container_comes_back(&self) -> anyhow::Result<()> {
        report::heading("The web server is killed");
        let before = self.pod("web")?;
        let container = before.container("httpd").context("web has no container httpd")?.clone();
        let killed = kill_container(self.kubelet.runtime().cgroup(), &container.id);
        anyhow::ensure!(killed > 0, "no process was found in the container {}", container.id);
        let started = Instant::now();
        report::say(format_args!("killed {killed} processes of container {:.12}", container.id));
        let after = self.until("the container's restart", Duration::from_secs(60), || {
            let pod = self.pod("web").ok()?;
            (pod.ready && pod.restarts() > before.restarts()).then_some(pod)
        })?;
        anyhow::ensure!(after.uid == before.uid, "the pod itself was replaced");
        report::say(format_args!(
            "ready again after {:.1} s as container {:.12}, restarts {} -> {}, same pod, same \
             address {}",
            started.elapsed().as_secs_f64(),
            after.container("httpd").map_or("", |container| &container.id),
            before.restarts(),
            after.restarts(),
            after.ip
        ));
        Ok(())
    }

    fn a_changed_manifest_replaces_its_pod(&self) -> anyhow::Result<()> {
        report::heading("The manifest of the web server is changed");
        let before = self.pod("web")?;
        report::say(format_args!("it says: {}", self.page(&before)?));
        let path = self.kubelet.manifests().join("web.yaml");
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let changed = text.replace("value: \"hello\"", "value: \"good evening\"");
        anyhow::ensure!(changed != text, "{} has no greeting to change", path.display());
        let started = Instant::now();
        self.kubelet.write_manifest("web.yaml", &changed)?;
        let after = self.until("the new pod", Duration::from_secs(60), || {
            let pod = self.pod("web").ok()?;
            (pod.ready && pod.uid != before.uid).then_some(pod)
        })?;
        let page = self.page(&after)?;
        report::say(format_args!("it says: {page}"));
        anyhow::ensure!(page.starts_with("good evening"), "the old greeting is still there");
        report::say(format_args!(
            "the old pod ended and a new one took its place in {:.1} s",
            started.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    fn a_removed_manifest_ends_its_pod(&self) -> anyhow::Result<()> {
        report::heading("The manifest of shared-volumes is removed");
        let pod = self.pod("shared-volumes")?;
        let dir = self.kubelet.root_dir().join("pods").join(&pod.uid);
        let cgroup = self.kubelet.runtime().cgroup();
        let started = Instant::now();
        self.kubelet.remove_manifest("shared-volumes.yaml")?;
        self.until("the pod and all it had to go", Duration::from_secs(90), || {
            let pods = self.kubelet.pods().ok()?;
            let runs = |container: &ContainerView| {
                !find_container_processes(cgroup, &container.id).is_empty()
            };
            let is_gone = find(&pods, "shared-volumes").is_none()
                && !pod.containers.iter().any(runs)
                && !dir.exists();
            is_gone.then_some(())
        })?;
        report::say(format_args!(
            "its containers have ended, its volumes and its directory are gone after {:.1} s",
            started.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    fn pod(&self, name: &str) -> anyhow::Result<PodView> {
        self.kubelet.pod(name)?.with_context(|| format!("there is no pod {name}"))
    }

    /// What the web server answers.
    fn page(&self, pod: &PodView) -> anyhow::Result<String> {
        let address: IpAddr =
            pod.ip.parse().with_context(|| format!("{} has no address", pod.name))?;
        let (status, body) = self.kubelet.get_from(address, WEB_PORT, "/")?;
        if status != 200 {
            bail!("{address}:{WEB_PORT} answered {status}");
        }
        Ok(String::from_utf8_lossy(&body).trim().to_owned())
    }

    fn until<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        loop {
            if let Some(found) = look() {
                return Ok(found);
            }
            if started.elapsed() > timeout {
                bail!("waited {} s for {what}; {}", timeout.as_secs(), self.evidence());
            }
            self.interrupt.sleep(LOOK_EVERY)?;
        }
    }

    /// Shows the table until `is_so`.
    fn watch_until(
        &self,
        what: &str,
        timeout: Duration,
        is_so: impl Fn(&[PodView]) -> bool,
    ) -> anyhow::Result<()> {
        let mut screen = Screen::default();
        let result = self.until(what, timeout, || {
            let pods = self.kubelet.pods().ok()?;
            screen.show(&table::render(&pods, Timestamp::now()));
            is_so(&pods).then_some(pods)
        });
        let pods = result?;
        screen.finish(&table::render(&pods, Timestamp::now()));
        Ok(())
    }

    fn evidence(&self) -> String {
        let pods = self.kubelet.pods().unwrap_or_default();
        format!(
            "the pods:\n{}\nthe kubelet's log ends with:\n{}",
            table::render(&pods, Timestamp::now()).join("\n"),
            self.kubelet.log_tail(20)
        )
    }
}

/// The kubelet is ended and started: nothing happens to the pods.
fn restart(kubelet: &mut KubeletProcess, interrupt: &Interrupt) -> anyhow::Result<()> {
    report::heading("The kubelet is killed and started again");
    let web = |kubelet: &KubeletProcess| -> anyhow::Result<PodView> {
        kubelet.pod("web")?.context("there is no pod web")
    };
    let before = web(kubelet)?;
    interrupt.check()?;
    kubelet.sigkill()?;
    let started = Instant::now();
    kubelet.start_again()?;
    let demo = Scenes { kubelet, interrupt };
    let after = demo.until("the pod to be seen again", Duration::from_secs(30), || {
        web(demo.kubelet).ok().filter(|pod| pod.ready)
    })?;
    let id = |pod: &PodView| pod.container("httpd").map(|container| container.id.clone());
    anyhow::ensure!(
        id(&before) == id(&after) && before.restarts() == after.restarts(),
        "the container was restarted"
    );
    report::say(format_args!(
        "after {:.1} s it reports the same containers, still ready; none was restarted",
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Shows the table until somebody has seen enough.
pub(super) fn watch(kubelet: &KubeletProcess, interrupt: &Interrupt) -> anyhow::Result<()> {
    report::heading("Live (Ctrl-C ends it and cleans up)");
    report::say(format_args!("manifests: {}", kubelet.manifests().display()));
    let mut screen = Screen::default();
    loop {
        if let Ok(pods) = kubelet.pods() {
            screen.show(&table::render(&pods, Timestamp::now()));
        }
        interrupt.sleep(Duration::from_secs(1))?;
    }
}

fn find<'a>(pods: &'a [PodView], name: &str) -> Option<&'a PodView> {
    let full_name = format!("{name}-{}", super::NODE_NAME);
    pods.iter().find(|pod| pod.name == full_name)
}

/// A table that is drawn over itself on a terminal, and left out elsewhere until it is final.
#[derive(Debug, Default)]
struct Screen {
    lines: usize,
}

impl Screen {
    fn show(&mut self, lines: &[String]) {
        if report::is_interactive() {
            self.draw(lines);
        }
    }

    fn finish(&mut self, lines: &[String]) {
        self.draw(lines);
        self.lines = 0;
    }

    fn draw(&mut self, lines: &[String]) {
        if self.lines > 0 {
            // Up to the first line of the last drawing, and clear from there on.
            print!("\x1b[{}A\x1b[J", self.lines);
        }
        for line in lines {
            println!("  {line}");
        }
        report::flush();
        self.lines = lines.len();
    }
}
