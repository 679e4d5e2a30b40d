//! Images and a registry that has them, or does not.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;

use anyhow::Context;
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{
    Cache, KubeletProcess, Missing, PodView, Runtime, RuntimeKind, kill_container, wait_for,
};
use serde_json::json;

use crate::WAIT;
use crate::facts::{start_kubelet, wait_for_refusal, wait_until_ready};
use crate::runtime::with_cri;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "an_image_that_is_missing_is_pulled_when_the_registry_has_it",
        runtimes: &RuntimeKind::ALL,
        run: an_image_that_is_missing_is_pulled_when_the_registry_has_it,
    },
    Scenario {
        name: "the_pull_policy_decides_whether_the_registry_is_asked",
        runtimes: &RuntimeKind::ALL,
        run: the_pull_policy_decides_whether_the_registry_is_asked,
    },
];

/// Debian's registry.
const REGISTRY: &str = "/usr/bin/docker-registry";
const PORT: u16 = 5000;
/// A containerd namespace that the kubelet sees nothing of.
const STAGING: &str = "staging";
const PUSHED: &str = "docker.io/library/busybox:latest";

/// A registry on the node's loopback, which containerd takes without TLS. It and what was pulled
/// from it are gone when it is dropped.
struct Registry {
    runtime: Arc<Runtime>,
    dir: PathBuf,
    child: Option<Child>,
}

impl Registry {
    fn start(stage: &Stage, kubelet: &KubeletProcess) -> anyhow::Result<Self> {
        if !Path::new(REGISTRY).exists() {
            let remedy = "run `cargo xtask setup` as root";
            return Err(Missing { files: vec![REGISTRY.into()], remedy }.into());
        }
        let runtime = Arc::clone(stage.runtime());
        let dir = runtime.dir().join(format!("registry-{}", stage.kubelet_options().node_name));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let config = json!({
            "version": 0.1,
            "log": { "level": "warn" },
            "storage": { "filesystem": { "rootdirectory": dir.join("blobs") } },
            "http": { "addr": format!("127.0.0.1:{PORT}") }
        });
        fs::write(dir.join("config.yml"), config.to_string())?;
        let mut registry = Self { runtime, dir, child: None };
        registry.resume(kubelet)?;
        let archive = Cache::from_environment()?.images().join("busybox.tar");
        let archive = archive.to_str().context("the cache's path is not UTF-8")?;
        registry.runtime.ctr(&["-n", STAGING, "images", "import", archive])?;
        Ok(registry)
    }

    /// Starts it, after [`Registry::pause`] with all that it had.
    fn resume(&mut self, kubelet: &KubeletProcess) -> anyhow::Result<()> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = self.runtime.namespaces().command(REGISTRY);
        command.arg("serve").arg(self.dir.join("config.yml"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(self.runtime.namespaces().spawn(&mut command)?);
        let local = IpAddr::from(Ipv4Addr::LOCALHOST);
        wait_for("the registry to answer", WAIT, || match kubelet.get_from(local, PORT, "/v2/") {
            Ok((200, _)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    }

    fn pause(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().context("cannot end the registry")?;
            child.wait().context("cannot wait for the registry")?;
        }
        Ok(())
    }

    /// The name of one of its images.
    fn name(image: &str) -> String {
        format!("127.0.0.1:{PORT}/{image}")
    }

    fn push(&self, image: &str) -> anyhow::Result<()> {
        let name = Self::name(image);
        let push = ["-n", STAGING, "images", "push", "--plain-http", &name, PUSHED];
        self.runtime.ctr(&push).map(|_| ())
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// How often it was asked what an image is.
    fn lookups(&self, repository: &str) -> anyhow::Result<usize> {
        let log = fs::read_to_string(self.log())?;
        let request = format!("\"HEAD /v2/{repository}/manifests/");
        Ok(log.lines().filter(|line| line.contains(&request)).count())
    }

    /// Takes away what the runtime has of it. Not over the CRI, which also takes away all other
    /// names of the same image.
    fn forget_images(&self) -> anyhow::Result<()> {
        let ours = format!("127.0.0.1:{PORT}/");
        let names = self.runtime.ctr(&["-n", "k8s.io", "images", "ls", "-q"])?;
        for name in names.lines().filter(|name| name.starts_with(&ours)) {
            self.runtime.ctr(&["-n", "k8s.io", "images", "rm", "--sync", name])?;
        }
        wait_for("the images to be gone", WAIT, || {
            let images =
                with_cri(&self.runtime, |cri| async move { Ok(cri.list_images(None).await?) });
            let images = images.map_err(|error| format!("{error:#}"))?;
            let left = images.iter().flat_map(|image| &image.repo_tags);
            match left.into_iter().find(|name| name.starts_with(&ours)) {
                None => Ok(()),
                Some(name) => Err(name.clone()),
            }
        })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Err(error) = self.pause().and_then(|()| self.forget_images()) {
            eprintln!("cannot clean up the registry: {error:#}");
        }
    }
}

fn write_pod(
    kubelet: &KubeletProcess,
    name: &str,
    image: &str,
    policy: Option<&str>,
) -> anyhow::Result<()> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "app", "image": image, "command": ["sleep", "3600"] }]
        }
    });
    if let Some(policy) = policy {
        pod["spec"]["containers"][0]["imagePullPolicy"] = json!(policy);
    }
    kubelet.write_manifest(&format!("{name}.yaml"), &pod.to_string())
}

fn policy_of(pod: &PodView) -> &str {
    pod.raw["spec"]["containers"][0]["imagePullPolicy"].as_str().unwrap_or_default()
}

fn an_image_that_is_missing_is_pulled_when_the_registry_has_it(
    stage: &Stage,
) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let registry = Registry::start(stage, &kubelet)?;
    let image = Registry::name("late:1");
    write_pod(&kubelet, "late", &image, None)?;
    let failed = format!("Failed to pull image {image:?}: ");
    let event = kubelet.wait_for_event("late", "Failed", &failed, WAIT)?;
    let message = event.message.replacen(&failed, "", 1);
    assert!(message.contains("late:1: not found"), "{message}");
    let waiting = wait_for_refusal(&kubelet, "late", "app", "ImagePullBackOff")?;
    assert_eq!(waiting, format!("Back-off pulling image {image:?}: ErrImagePull: {message}"));
    for (reason, text) in [
        ("Pulling", format!("Pulling image {image:?}")),
        ("Failed", format!("{failed}{message}")),
        ("Failed", "Error: ErrImagePull".to_owned()),
        ("BackOff", format!("Back-off pulling image {image:?}")),
        ("Failed", "Error: ImagePullBackOff".to_owned()),
    ] {
        let event = kubelet.wait_for_event("late", reason, &text, WAIT)?;
        assert_eq!(event.message, text);
        assert_eq!(event.field_path, "spec.containers{app}");
        let is_normal = matches!(reason, "Pulling" | "BackOff");
        assert_eq!(event.event_type, if is_normal { "Normal" } else { "Warning" });
    }

    registry.push("late:1")?;
    let pod = wait_until_ready(&kubelet, "late")?;
    assert_eq!(policy_of(&pod), "IfNotPresent", "the default with a tag");
    let status = &pod.raw["status"]["containerStatuses"][0];
    assert_eq!(status["image"], image);
    assert_eq!(status["restartCount"], 0, "what was not started has not restarted");
    let id = status["imageID"].as_str().unwrap_or_default();
    assert!(id.starts_with("127.0.0.1:5000/late@sha256:"), "{id}");
    let text = format!("Successfully pulled image {image:?} in ");
    let event = kubelet.wait_for_event("late", "Pulled", &text, WAIT)?;
    assert!(event.message.contains(" including waiting). Image size: "), "{}", event.message);

    // Whoever comes later finds it on the node.
    let asked = registry.lookups("late")?;
    write_pod(&kubelet, "second", &image, None)?;
    wait_until_ready(&kubelet, "second")?;
    let text = format!(
        "Container image {image:?} already present on machine and can be accessed by the pod"
    );
    kubelet.wait_for_event("second", "Pulled", &text, WAIT)?;
    assert_eq!(registry.lookups("late")?, asked);
    Ok(())
}

fn the_pull_policy_decides_whether_the_registry_is_asked(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let mut registry = Registry::start(stage, &kubelet)?;
    registry.push("app:latest")?;
    let image = Registry::name("app");
    let before = registry.lookups("app")?;

    // Always: at each start of a container, and so by default without a tag.
    write_pod(&kubelet, "always", &image, None)?;
    let pod = wait_until_ready(&kubelet, "always")?;
    assert_eq!((policy_of(&pod), registry.lookups("app")?), ("Always", before + 1));
    let id = &pod.container("app").context("no status")?.id;
    assert!(kill_container(stage.runtime().cgroup(), id) > 0);
    kubelet
        .wait_for_pod("always", "running again", WAIT, |pod| pod.ready && pod.restarts() == 1)?;
    assert_eq!(registry.lookups("app")?, before + 2);

    // Never: neither where it is there nor where it is not.
    let absent = Registry::name("absent:1");
    write_pod(&kubelet, "never", &image, Some("Never"))?;
    write_pod(&kubelet, "never-absent", &absent, Some("Never"))?;
    write_pod(&kubelet, "nonsense", "127.0.0.1:5000/NoImage:1", Some("IfNotPresent"))?;
    wait_until_ready(&kubelet, "never")?;
    let text = format!("Container image {absent:?} is not present with pull policy of Never");
    assert_eq!(wait_for_refusal(&kubelet, "never-absent", "app", "ErrImageNeverPull")?, text);
    kubelet.wait_for_event("never-absent", "ErrImageNeverPull", &text, WAIT)?;
    kubelet.wait_for_event("never-absent", "Failed", "Error: ErrImageNeverPull", WAIT)?;
    assert_eq!((registry.lookups("app")?, registry.lookups("absent")?), (before + 2, 0));

    // What is no name is not asked for.
    let text = "Failed to apply default image tag \"127.0.0.1:5000/NoImage:1\": couldn't parse \
                image name \"127.0.0.1:5000/NoImage:1\": invalid reference format: repository \
                name (NoImage) must be lowercase";
    assert_eq!(wait_for_refusal(&kubelet, "nonsense", "app", "InvalidImageName")?, text);
    kubelet.wait_for_event("nonsense", "InspectFailed", text, WAIT)?;
    kubelet.wait_for_event("nonsense", "Failed", "Error: InvalidImageName", WAIT)?;

    // Without the registry, IfNotPresent does with what is there; Always waits for the registry.
    registry.pause()?;
    write_pod(&kubelet, "present", &image, Some("IfNotPresent"))?;
    write_pod(&kubelet, "waits", &image, Some("Always"))?;
    wait_until_ready(&kubelet, "present")?;
    let message = wait_for_refusal(&kubelet, "waits", "app", "ImagePullBackOff")?;
    assert!(message.contains("connection refused"), "{message}");
    registry.resume(&kubelet)?;
    wait_until_ready(&kubelet, "waits")?;
    Ok(())
}
