//! Images and a registry that has them, or does not.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, ensure};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletProcess, PodView, Registry, RuntimeKind, kill_container};
use serde_json::json;

use crate::WAIT;
use crate::facts::{start_kubelet, wait_for_refusal, wait_until_ready};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "an_image_that_is_missing_is_pulled_when_the_registry_has_it",
        runtimes: &RuntimeKind::ALL,
        run: an_image_that_is_missing_is_pulled_when_the_registry_has_it,
    },
    Scenario {
        name: "the_nodes_own_credentials_open_a_registry",
        runtimes: &RuntimeKind::ALL,
        run: the_nodes_own_credentials_open_a_registry,
    },
    Scenario {
        name: "a_credential_provider_opens_a_registry",
        runtimes: &RuntimeKind::ALL,
        run: a_credential_provider_opens_a_registry,
    },
    Scenario {
        name: "the_pull_policy_decides_whether_the_registry_is_asked",
        runtimes: &RuntimeKind::ALL,
        run: the_pull_policy_decides_whether_the_registry_is_asked,
    },
];

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
    let registry = Registry::start(stage.runtime(), "open")?;
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
    let mut registry = Registry::start(stage.runtime(), "open")?;
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
    registry.resume()?;
    wait_until_ready(&kubelet, "waits")?;
    Ok(())
}

fn the_nodes_own_credentials_open_a_registry(stage: &Stage) -> anyhow::Result<()> {
    let kubelet = start_kubelet(stage, json!({}))?;
    let registry = Registry::start_protected(stage.runtime(), "protected")?;
    registry.push("private:1")?;
    let image = Registry::name("private:1");
    let file = kubelet.root_dir().join("config.json");

    // Nobody, and then somebody with the wrong password, gets nothing.
    write_pod(&kubelet, "private", &image, None)?;
    let failed = format!("Failed to pull image {image:?}: ");
    let event = kubelet.wait_for_event("private", "Failed", &failed, WAIT)?;
    let message = event.message.replacen(&failed, "", 1);
    let waiting = wait_for_refusal(&kubelet, "private", "app", "ImagePullBackOff")?;
    assert_eq!(waiting, format!("Back-off pulling image {image:?}: ErrImagePull: {message}"));
    fs::write(&file, Registry::docker_config("wr0ngpass").to_string())?;
    write_pod(&kubelet, "wrong", &image, None)?;
    let event = kubelet.wait_for_event("wrong", "Failed", &failed, WAIT)?;
    ensure!(event.message.contains("401 Unauthorized"), "{}", event.message);

    // The file is looked at again at each pull.
    fs::write(&file, Registry::docker_config(Registry::PASSWORD).to_string())?;
    write_pod(&kubelet, "right", &image, None)?;
    wait_until_ready(&kubelet, "right")?;
    // What the node has, all its pods have.
    wait_until_ready(&kubelet, "private")?;
    wait_until_ready(&kubelet, "wrong")?;
    let log = fs::read_to_string(kubelet.log_file())?;
    for secret in ["wr0ngpass", Registry::PASSWORD] {
        ensure!(!log.contains(secret), "the log shows {secret}");
    }
    Ok(())
}

fn a_credential_provider_opens_a_registry(stage: &Stage) -> anyhow::Result<()> {
    let dir = stage.runtime().dir().join("providers");
    let (bin, config) = (dir.join("bin"), dir.join("config.json"));
    fs::create_dir_all(&bin)?;
    let login = json!({ "username": Registry::USER, "password": Registry::PASSWORD });
    let answer = json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry",
        "auth": { "127.0.0.1:5000": login },
    });
    let requests = dir.join("requests");
    let script = format!("#!/bin/sh\ncat >> {}\necho '{answer}'\n", requests.display());
    fs::write(bin.join("keys"), script)?;
    fs::set_permissions(bin.join("keys"), Permissions::from_mode(0o755))?;
    let provider = json!({
        "name": "keys", "matchImages": ["127.0.0.1:5000"], "defaultCacheDuration": "10m",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    });
    let providers = json!({
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [provider],
    });
    fs::write(&config, providers.to_string())?;
    let mut options = stage.kubelet_options();
    options.config = json!({ "logging": { "verbosity": 5 } });
    options.args = vec![
        format!("--image-credential-provider-config={}", config.display()),
        format!("--image-credential-provider-bin-dir={}", bin.display()),
    ];
    let kubelet = stage.start_kubelet_with(options)?;
    let registry = Registry::start_protected(stage.runtime(), "protected")?;
    for name in ["one", "two"] {
        registry.push(&format!("{name}:1"))?;
        write_pod(&kubelet, name, &Registry::name(&format!("{name}:1")), None)?;
        wait_until_ready(&kubelet, name)?;
    }
    let asked = fs::read_to_string(&requests)?;
    let image = Registry::name("one");
    let request = format!(
        r#"{{"kind":"CredentialProviderRequest","apiVersion":"credentialprovider.kubelet.k8s.io/v1","image":"{image}"}}"#
    );
    assert_eq!(asked.trim_end(), request, "once for the whole registry");
    let log = fs::read_to_string(kubelet.log_file())?;
    ensure!(!log.contains(Registry::PASSWORD), "the log shows the password");
    Ok(())
}
