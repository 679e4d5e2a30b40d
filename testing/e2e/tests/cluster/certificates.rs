//! How a kubelet becomes known to its cluster, and its own server to others.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rubelet_control_plane::Credentials;
use rubelet_e2e::manifest::{busybox, with};
use rubelet_e2e::{KubeletOptions, find_container_processes, wait_for};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};

use crate::stage::{Stage, id_of_app, pod};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    a_node_joins_with_a_token_and_its_server_with_a_certificate_of_the_cluster,
    credentials_that_expired_while_no_kubelet_ran_are_replaced_and_no_pod_notices,
    a_certificate_of_another_node_is_refused_in_plain_words,
];

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

const NO_CERTIFICATE: &str = "no serving certificate available for the kubelet";

/// A node's credentials in a directory of their own, beside those it usually has.
struct Place {
    kubeconfig: PathBuf,
    bootstrap: PathBuf,
    pki: PathBuf,
}

impl Place {
    fn create(stage: &Stage, name: &str) -> anyhow::Result<Self> {
        let dir = stage.kubelet().runtime().dir().join(name);
        let pki = dir.join("pki");
        fs::create_dir_all(&pki).with_context(|| format!("cannot make {}", pki.display()))?;
        let (kubeconfig, bootstrap) = (dir.join("kubeconfig"), dir.join("bootstrap-kubeconfig"));
        Ok(Self { kubeconfig, bootstrap, pki })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.pki.join(name)
    }

    /// Has the node use it at its next start.
    fn choose(&self, options: &mut KubeletOptions, config: Value) {
        options.args = vec![
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--bootstrap-kubeconfig={}", self.bootstrap.display()),
            format!("--cert-dir={}", self.pki.display()),
        ];
        options.config = with(options.config.clone(), config);
    }
}

/// Where a link of the store leads, once there is one.
fn linked(link: &Path) -> anyhow::Result<PathBuf> {
    wait_for(&link.display().to_string(), WAIT, || {
        fs::read_link(link).map_err(|error| error.to_string())
    })
}

/// Waits for a request for `signer` by one whose name starts with `user`.
fn request_of(stage: &Stage, signer: &str, user: &str) -> anyhow::Result<String> {
    wait_for(&format!("a request of {user} for {signer}"), WAIT, || {
        let all = stage.get(REQUESTS).map_err(|error| format!("{error:#}"))?;
        let spec = |request: &Value, field: &str| {
            request["spec"][field].as_str().unwrap_or_default().to_owned()
        };
        let found = all["items"].as_array().into_iter().flatten().find(|request| {
            spec(request, "signerName") == signer && spec(request, "username").starts_with(user)
        });
        let name = found.and_then(|request| request["metadata"]["name"].as_str());
        name.map(str::to_owned).ok_or_else(|| all["items"].to_string())
    })
}

fn a_node_joins_with_a_token_and_its_server_with_a_certificate_of_the_cluster(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let talker = busybox("app", "echo hello; exec sleep 3600");
    stage.create_pod(&pod("talker", json!({ "containers": [talker] })))?;
    stage.wait_until_ready("talker")?;
    let place = Place::create(stage, "joining")?;
    let token = stage.cluster().control_plane().bootstrap_kubeconfig();
    fs::copy(&token, &place.bootstrap).context("cannot copy the bootstrap kubeconfig")?;
    let log = stage.kubelet().log_size();
    let usual = stage.restart_kubelet(|options| {
        let config = json!({ "rotateCertificates": false, "serverTLSBootstrap": true });
        place.choose(options, config);
    })?;
    stage.kubelet_mut(0).wait_until_healthy()?;

    // As upstream keeps it.
    let current = place.file("kubelet-client-current.pem");
    let dated = linked(&current)?;
    let name = dated.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let date = name.strip_prefix("kubelet-client-").and_then(|rest| rest.strip_suffix(".pem"));
    let shape = |date: &str| date.replace(|letter: char| letter.is_ascii_digit(), "0");
    ensure!(date.map(shape).as_deref() == Some("0000-00-00-00-00-00"), "{name}");
    let pem = fs::read_to_string(&current)?;
    ensure!(pem.contains("BEGIN CERTIFICATE") && pem.contains("PRIVATE KEY"), "{}", pem.len());
    let mode = fs::metadata(&current)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    ensure!(!place.file("kubelet-client.key.tmp").exists(), "the first key is left");
    let kubeconfig = fs::read_to_string(&place.kubeconfig)?;
    for part in ["default-context", "default-auth", "default-cluster", &*current.to_string_lossy()]
    {
        ensure!(kubeconfig.contains(part), "no {part} in\n{kubeconfig}");
    }
    let joined =
        request_of(stage, "kubernetes.io/kube-apiserver-client-kubelet", "system:bootstrap:")?;
    ensure!(joined.starts_with("node-csr-"), "{joined}");
    stage.wait_for_renewals(2)?;

    // Whom nobody has approved, nobody can speak to.
    let serving = request_of(stage, "kubernetes.io/kubelet-serving", "system:node:node-1")?;
    ensure!(stage.kubectl(&["logs", "talker"]).is_err(), "it shows a certificate");
    stage.kubelet().wait_for_own_log(log, NO_CERTIFICATE, WAIT)?;
    stage.kubectl(&["certificate", "approve", &serving])?;
    wait_for("the log", WAIT, || match stage.kubectl(&["logs", "talker"]) {
        Ok(log) if log == "hello\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })?;
    linked(&place.file("kubelet-server-current.pem"))?;

    for request in [joined, serving] {
        stage.delete(&format!("{REQUESTS}/{request}"))?;
    }
    stage.restart_kubelet(|options| *options = usual)?;
    stage.wait_for_renewals(2)
}

fn credentials_that_expired_while_no_kubelet_ran_are_replaced_and_no_pod_notices(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    stage
        .create_pod(&pod("stays", json!({ "containers": [busybox("app", "exec sleep 3600")] })))?;
    let before = stage.wait_until_ready("stays")?;
    let id = id_of_app(&before)?;
    let place = Place::create(stage, "expired")?;
    let current = place.file("kubelet-client-current.pem");
    let plane = stage.cluster().control_plane();
    let pair = plane.expired_node("node-1")?;
    let dated = place.file("kubelet-client-2026-01-01-00-00-00.pem");
    fs::write(&dated, pair.certificate + &pair.key)?;
    symlink(&dated, &current)?;
    let files = Credentials::Files { certificate: current.clone(), key: current.clone() };
    plane.write_kubeconfig(&place.kubeconfig, "default-auth", &files)?;
    let good = fs::read_to_string(plane.bootstrap_kubeconfig())?;
    let unknown = good.replace(&plane.bootstrap_token(), "abcdef.0123456789abcdef");
    fs::write(&place.bootstrap, unknown)?;
    let log = stage.kubelet().log_size();
    let usual = stage.restart_kubelet(|options| {
        place.choose(options, json!({ "rotateCertificates": true }));
    })?;

    // It says what is wrong, lives on, and leaves alone what it cannot ask about.
    stage.kubelet_mut(0).wait_until_healthy()?;
    let why = "the bootstrap token or the certificate may have expired";
    stage.kubelet().wait_for_own_log(log, why, WAIT)?;
    ensure!(stage.kubelet_mut(0).ended()?.is_none(), "it gave up");
    let running = || find_container_processes(stage.kubelet().runtime().cgroup(), &id);
    ensure!(!running().is_empty(), "the pod ended");

    fs::write(&place.bootstrap, good)?;
    stage.wait_for_renewals(2)?;
    stage.wait_until_node_is_ready(0)?;
    ensure!(linked(&current)? != dated, "the certificate is the old one");
    let after = stage.wait_until_ready("stays")?;
    ensure!(id_of_app(&after)? == id && after.restarts() == 0, "{}", after.raw["status"]);
    let requests =
        request_of(stage, "kubernetes.io/kube-apiserver-client-kubelet", "system:bootstrap:")?;
    stage.delete(&format!("{REQUESTS}/{requests}"))?;
    stage.restart_kubelet(|options| *options = usual)?;
    stage.wait_for_renewals(2)
}

fn a_certificate_of_another_node_is_refused_in_plain_words(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    stage
        .create_pod(&pod("stays", json!({ "containers": [busybox("app", "exec sleep 3600")] })))?;
    let id = id_of_app(&stage.wait_until_ready("stays")?)?;
    let other = stage.cluster().control_plane().node("other")?;
    let log = stage.kubelet().log_size();
    let usual = stage.restart_kubelet(|options| {
        let taken = format!("--kubeconfig={}", other.kubeconfig.display());
        options.args.retain(|arg| !arg.starts_with("--kubeconfig="));
        options.args.push(taken);
    })?;
    stage.kubelet_mut(0).wait_until_healthy()?;
    let why = "node 'other' cannot read 'node-1', only its own Node object";
    stage.kubelet().wait_for_own_log(log, why, WAIT)?;
    ensure!(stage.kubelet_mut(0).ended()?.is_none(), "it gave up");
    let group = stage.kubelet().runtime().cgroup();
    ensure!(!find_container_processes(group, &id).is_empty(), "the pod ended");
    stage.restart_kubelet(|options| *options = usual)?;
    stage.wait_for_renewals(2)?;
    let after = stage.wait_until_ready("stays")?;
    ensure!(id_of_app(&after)? == id && after.restarts() == 0, "{}", after.raw["status"]);
    Ok(())
}
