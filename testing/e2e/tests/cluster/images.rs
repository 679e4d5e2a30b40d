//! Images that not everybody may have.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::ensure;
use rubelet_e2e::Registry;
use rubelet_e2e::manifest::with;
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, pod};
use crate::{Ground, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_pod_pulls_with_the_secret_that_it_names,
    an_image_that_one_pod_pulled_is_not_everybodys,
    a_credential_provider_exchanges_the_token_of_the_pod,
];

/// A Secret with credentials for the registry.
fn secret(name: &str, password: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": { ".dockerconfigjson": Registry::docker_config(password).to_string() },
    })
}

/// A pod that runs an image of the registry.
fn user_of(name: &str, image: &str, more: Value) -> Value {
    let container = json!({
        "name": "app",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "3600"],
    });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [container] });
    pod(name, with(more, spec))
}

/// The message of a container that waits for that reason.
fn wait_for_refusal(stage: &Stage, name: &str, reason: &str) -> anyhow::Result<String> {
    let refused = stage.wait_for_pod(name, reason, |pod| {
        pod.container("app").is_some_and(|app| app.state == "waiting" && app.reason == reason)
    })?;
    Ok(refused.container("app").map(|app| app.message.clone()).unwrap_or_default())
}

fn a_pod_pulls_with_the_secret_that_it_names(stage: &mut Stage) -> anyhow::Result<()> {
    let registry = Registry::start_protected(stage.kubelet().runtime(), stage.namespace())?;
    registry.push("private:1")?;
    let image = Registry::name("private:1");
    let secrets = stage.path("secrets");
    stage.create(&secrets, &secret("right", Registry::PASSWORD))?;
    stage.create(&secrets, &secret("wrong", "wr0ngpass"))?;
    let account =
        json!({ "metadata": { "name": "puller" }, "imagePullSecrets": [{ "name": "right" }] });
    stage.create(&stage.path("serviceaccounts"), &account)?;

    let names = |secret: &str| json!({ "imagePullSecrets": [{ "name": secret }] });
    stage.create_pod(&user_of("wrong", &image, names("wrong")))?;
    stage.create_pod(&user_of("missing", &image, names("nothing")))?;
    stage.wait_for_event("wrong", "Failed", "401 Unauthorized")?;
    let message = wait_for_refusal(stage, "wrong", "ImagePullBackOff")?;
    let start = format!("Back-off pulling image {image:?}: ErrImagePull: ");
    ensure!(message.starts_with(&start), "{message}");
    stage.wait_for_event(
        "missing",
        "FailedToRetrieveImagePullSecret",
        "Unable to retrieve some image pull secrets (nothing); attempting to pull the image may \
         not succeed.",
    )?;
    stage.wait_for_event("missing", "Failed", &format!("Failed to pull image {image:?}: "))?;
    stage.wait_for_event("missing", "Failed", "Error: ErrImagePull")?;

    // The right one, by the pod itself and by way of its service account.
    stage.create_pod(&user_of("right", &image, names("right")))?;
    stage.wait_until_ready("right")?;
    stage.wait_for_event("right", "Pulled", &format!("Successfully pulled image {image:?} in "))?;
    let account = json!({ "serviceAccountName": "puller" });
    stage.create_pod(&user_of("account", &image, account))?;
    stage.wait_until_ready("account")?;

    let log = fs::read_to_string(stage.kubelet().log_file())?;
    for secret in ["wr0ngpass", Registry::PASSWORD] {
        ensure!(!log.contains(secret), "the log shows {secret}");
    }
    Ok(())
}

fn an_image_that_one_pod_pulled_is_not_everybodys(stage: &mut Stage) -> anyhow::Result<()> {
    let registry = Registry::start_protected(stage.kubelet().runtime(), stage.namespace())?;
    registry.push("owned:1")?;
    let image = Registry::name("owned:1");
    stage.create(&stage.path("secrets"), &secret("right", Registry::PASSWORD))?;
    stage.create(&stage.path("secrets"), &secret("copy", Registry::PASSWORD))?;
    let names = |secret: &str| json!({ "imagePullSecrets": [{ "name": secret }] });
    stage.create_pod(&user_of("owner", &image, names("right")))?;
    stage.wait_until_ready("owner")?;
    let asked = registry.lookups("owned")?;

    // Whoever has the password may use it at once.
    let usable = format!(
        "Container image {image:?} already present on machine and can be accessed by the pod"
    );
    for name in ["right", "copy"] {
        stage.create_pod(&user_of(name, &image, names(name)))?;
        stage.wait_until_ready(name)?;
        stage.wait_for_event(name, "Pulled", &usable)?;
    }
    ensure!(registry.lookups("owned")? == asked, "the registry was asked again");

    // Whoever has not must be able to pull it, and is not.
    let refused = |name: &str| {
        stage.create_pod(&user_of(name, &image, json!({})))?;
        stage.wait_for_event(name, "Pulling", &format!("Pulling image {image:?}"))?;
        stage.wait_for_event(name, "Failed", &format!("Failed to pull image {image:?}: "))?;
        stage.wait_for_event(name, "Failed", "Error: ErrImagePull")?;
        wait_for_refusal(stage, name, "ImagePullBackOff")
    };
    refused("stranger")?;
    let mut never = user_of("never", &image, json!({}));
    never["spec"]["containers"][0]["imagePullPolicy"] = json!("Never");
    stage.create_pod(&never)?;
    let message = wait_for_refusal(stage, "never", "ErrImageNeverPull")?;
    let text = format!("Container image {image:?} is not present with pull policy of Never");
    ensure!(message == text, "{message}");

    // Also by a kubelet that was not there when it was pulled.
    stage.kubelet_mut(0).restart()?;
    stage.wait_until_node_is_ready(0)?;
    let refused = |name: &str| {
        stage.create_pod(&user_of(name, &image, json!({})))?;
        stage.wait_for_event(name, "Failed", &format!("Failed to pull image {image:?}: "))
    };
    refused("late")?;
    stage.create_pod(&user_of("late-owner", &image, names("copy")))?;
    stage.wait_until_ready("late-owner")?;
    let records = stage.kubelet().root_dir().join("image_manager");
    let count = |kind: &str| fs::read_dir(records.join(kind)).map(Iterator::count);
    ensure!(count("pulled")? > 0, "there is no record");
    Ok(())
}

const AUDIENCE: &str = "registry.test";

/// Writes a provider that notes what it is asked, and gives the registry's password to whoever has a
/// token. Returns the flags for it.
fn write_provider(dir: &Path) -> anyhow::Result<Vec<String>> {
    let bin = dir.join("bin");
    fs::create_dir_all(&bin)?;
    let api_version = "credentialprovider.kubelet.k8s.io/v1";
    let login = json!({ "username": Registry::USER, "password": Registry::PASSWORD });
    let answer = json!({
        "kind": "CredentialProviderResponse", "apiVersion": api_version,
        "cacheKeyType": "Image", "cacheDuration": "0s", "auth": { "127.0.0.1:5000": login },
    });
    let script = format!(
        "#!/bin/sh\ntee -a {} | grep -q '\"serviceAccountToken\":\"ey' || exit 1\necho '{answer}'\n",
        dir.join("requests").display()
    );
    fs::write(bin.join("exchange"), script)?;
    fs::set_permissions(bin.join("exchange"), Permissions::from_mode(0o755))?;
    let provider = json!({
        "name": "exchange", "matchImages": ["127.0.0.1:5000"], "defaultCacheDuration": "0s",
        "apiVersion": api_version,
        "tokenAttributes": {
            "serviceAccountTokenAudience": AUDIENCE, "cacheType": "ServiceAccount",
            "requireServiceAccount": true,
            "requiredServiceAccountAnnotationKeys": ["registry.test/role"],
        },
    });
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [provider],
    });
    fs::write(dir.join("config.json"), config.to_string())?;
    Ok(vec![
        format!("--image-credential-provider-config={}", dir.join("config.json").display()),
        format!("--image-credential-provider-bin-dir={}", bin.display()),
    ])
}

fn a_credential_provider_exchanges_the_token_of_the_pod(stage: &mut Stage) -> anyhow::Result<()> {
    let dir = stage.kubelet().runtime().dir().join(format!("providers-{}", stage.namespace()));
    let flags = write_provider(&dir)?;
    let args = stage.kubelet_mut(0).options_mut().args.clone();
    stage.kubelet_mut(0).options_mut().args.extend(flags);
    stage.kubelet_mut(0).restart()?;
    stage.wait_until_node_is_ready(0)?;
    // Nodes get tokens for other audiences than the API server's only where that is allowed.
    let role = format!("{}-audience", stage.namespace());
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    stage.create(
        &format!("{rbac}/clusterroles"),
        &json!({ "metadata": { "name": role }, "rules": [{
            "verbs": ["request-serviceaccounts-token-audience"],
            "apiGroups": [""], "resources": [AUDIENCE],
        }]}),
    )?;
    stage.create(
        &format!("{rbac}/clusterrolebindings"),
        &json!({
            "metadata": { "name": role },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role,
            },
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes",
            }],
        }),
    )?;
    let account = json!({ "metadata": {
        "name": "puller", "annotations": { "registry.test/role": "reader", "other": "x" },
    }});
    let account = stage.create(&stage.path("serviceaccounts"), &account)?;
    let uid = account["metadata"]["uid"].as_str().unwrap_or_default();

    let registry = Registry::start_protected(stage.kubelet().runtime(), stage.namespace())?;
    registry.push("exchanged:1")?;
    let image = Registry::name("exchanged:1");
    stage.create_pod(&user_of("puller", &image, json!({ "serviceAccountName": "puller" })))?;
    stage.wait_until_ready("puller")?;
    let asked = fs::read_to_string(dir.join("requests"))?;
    let request: Value = serde_json::from_str(asked.lines().next().unwrap_or_default())?;
    ensure!(request["image"] == Registry::name("exchanged"), "{request}");
    let annotations = json!({ "registry.test/role": "reader" });
    ensure!(request["serviceAccountAnnotations"] == annotations, "{request}");
    let token = request["serviceAccountToken"].as_str().unwrap_or_default();
    ensure!(token.split('.').count() == 3, "{request}");

    // The image is the service account's. Another one, which has no such annotation, is not even
    // worth asking for.
    stage.create_pod(&user_of("mate", &image, json!({ "serviceAccountName": "puller" })))?;
    stage.wait_until_ready("mate")?;
    stage.wait_for_event("mate", "Pulled", "already present on machine and can be accessed")?;
    stage.create_pod(&user_of("stranger", &image, json!({})))?;
    stage.wait_for_event("stranger", "Failed", &format!("Failed to pull image {image:?}: "))?;
    let records = fs::read_dir(stage.kubelet().root_dir().join("image_manager/pulled"))?;
    let texts = records.map(|entry| fs::read_to_string(entry?.path()));
    let texts = texts.collect::<Result<Vec<_>, _>>()?;
    let owner = format!("\"kubernetesServiceAccounts\":[{{\"uid\":\"{uid}\"");
    ensure!(texts.iter().any(|text| text.contains(&owner)), "{texts:?}");
    let log = fs::read_to_string(stage.kubelet().log_file())?;
    for secret in [token, Registry::PASSWORD] {
        ensure!(!log.contains(secret), "the log shows a secret");
    }

    stage.kubelet_mut(0).options_mut().args = args;
    stage.kubelet_mut(0).restart()?;
    stage.wait_until_node_is_ready(0)?;
    stage.delete(&format!("{rbac}/clusterrolebindings/{role}"))?;
    stage.delete(&format!("{rbac}/clusterroles/{role}"))
}
