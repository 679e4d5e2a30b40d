//! The ports of a kubelet, its command line and its refusals.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rubelet_e2e::manifest::{busybox, pod};
use rubelet_e2e::runner::{Scenario, Stage};
use rubelet_e2e::{KubeletOptions, KubeletProcess, wait_for};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::{Value, json};

use crate::WAIT;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::on_built(
        "health_pods_and_configuration_are_served_on_their_ports",
        health_pods_and_configuration_are_served_on_their_ports,
    ),
    Scenario::on_debian(
        "who_may_ask_on_10250_is_as_configured",
        who_may_ask_on_10250_is_as_configured,
    ),
    Scenario::on_built(
        "a_kubelet_that_cannot_start_says_all_that_is_wrong_and_exits_with_1",
        a_kubelet_that_cannot_start_says_all_that_is_wrong_and_exits_with_1,
    ),
];

const PORT: u16 = 10250;

/// Takes any certificate: the kubelet's is of its own making, and what is looked at is the answer.
#[derive(Debug)]
struct AnyServer(Vec<SignatureScheme>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// A certificate authority that says who somebody is.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// Somebody with a certificate.
pub(crate) struct Client {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Authority {
    fn new(name: &str) -> anyhow::Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    fn client(&self, name: &str) -> anyhow::Result<Client> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        Ok(Client { certificate, key: key.serialize_der() })
    }
}

/// A connection to 10250.
pub(crate) fn connect(
    kubelet: &KubeletProcess,
    client: Option<&Client>,
) -> anyhow::Result<StreamOwned<ClientConnection, TcpStream>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let schemes = provider.signature_verification_algorithms.supported_schemes();
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyServer(schemes)));
    let config = match client {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(client.key.clone()));
            builder.with_client_auth_cert(vec![client.certificate.clone()], key)?
        }
    };
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT);
    let stream = kubelet.runtime().namespaces().connect(address, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let name = ServerName::try_from("localhost")?;
    Ok(StreamOwned::new(ClientConnection::new(Arc::new(config), name)?, stream))
}

/// `GET path` on 10250: the status and the body.
pub(crate) fn get(
    kubelet: &KubeletProcess,
    client: Option<&Client>,
    path: &str,
) -> anyhow::Result<(u16, String)> {
    ask(kubelet, client, "GET", path)
}

/// Any request on 10250: the status and the body.
pub(crate) fn ask(
    kubelet: &KubeletProcess,
    client: Option<&Client>,
    method: &str,
    path: &str,
) -> anyhow::Result<(u16, String)> {
    let mut tls = connect(kubelet, client)?;
    write!(tls, "{method} {path} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer)?;
    let answer = String::from_utf8(answer).context("no UTF-8")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("no status in {head}"))?, body.to_owned()))
}

fn json_of(kubelet: &KubeletProcess, path: &str) -> anyhow::Result<Value> {
    let (status, body) = get(kubelet, None, path)?;
    ensure!(status == 200, "{path} answered {status}: {body}");
    serde_json::from_str(&body).with_context(|| format!("{path} answered no JSON: {body}"))
}

fn health_pods_and_configuration_are_served_on_their_ports(stage: &Stage) -> anyhow::Result<()> {
    let mut options = stage.kubelet_options();
    options.config = json!({ "maxPods": 77, "cpuManagerReconcilePeriod": "13s" });
    options.args = vec!["--max-pods=78".to_owned()];
    let kubelet = stage.start_kubelet_with(options)?;
    let containers = [busybox("app", "exec sleep 3600"), busybox("done", "exit 0")];
    let spec = json!({ "containers": containers, "restartPolicy": "OnFailure" });
    kubelet.write_pod(&pod("served", spec))?;
    let served = kubelet.wait_for_pod("served", "half done", WAIT, |pod| {
        pod.container("done").is_some_and(|done| done.state == "terminated")
            && pod.container("app").is_some_and(|app| app.is_running())
    })?;

    for path in ["/healthz", "/healthz/ping", "/healthz/log", "/healthz/syncloop"] {
        let (status, body) = kubelet.get(10248, path)?;
        assert_eq!((status, &*body), (200, &b"ok"[..]), "10248{path}");
        assert_eq!(get(&kubelet, None, path)?, (200, "ok".to_owned()), "10250{path}");
    }
    let (status, body) = kubelet.get(10248, "/healthz?verbose")?;
    assert_eq!(status, 200);
    ensure!(String::from_utf8_lossy(&body).contains("[+]ping ok"), "verbose says {body:?}");
    assert_eq!(kubelet.get(10248, "/pods")?.0, 404, "the health port serves health alone");
    assert_eq!(kubelet.get(10255, "/configz")?.0, 404, "the open port serves no configuration");
    assert_eq!(get(&kubelet, None, "/nowhere")?.0, 404);

    let pods = json_of(&kubelet, "/pods")?;
    assert_eq!((&pods["kind"], &pods["apiVersion"]), (&json!("PodList"), &json!("v1")));
    assert_eq!(pods["items"][0]["metadata"]["uid"], json!(served.uid));
    assert_eq!(pods["items"][0]["status"]["phase"], "Running");
    let running = json_of(&kubelet, "/runningpods/")?;
    assert_eq!(running["kind"], "PodList");
    let items = running["items"].as_array().context("items")?;
    assert_eq!(items.len(), 1, "{running}");
    assert_eq!(items[0]["metadata"]["name"], json!(served.name));
    let names: Vec<&Value> = items[0]["spec"]["containers"]
        .as_array()
        .context("containers")?
        .iter()
        .map(|container| &container["name"])
        .collect();
    assert_eq!(names, ["app"], "only what runs");

    let (status, text) = get(&kubelet, None, "/flagz")?;
    ensure!(status == 200 && text.contains("\nmax-pods=78\n"), "/flagz answered {status}: {text}");
    let (status, text) = get(&kubelet, None, "/statusz")?;
    ensure!(status == 200 && text.contains("\nBinary version: 1.36."), "{status}: {text}");
    let (status, page) = get(&kubelet, None, "/logs/")?;
    ensure!(status == 200 && page.contains("<pre>\n"), "/logs/ answered {status}: {page}");
    assert_eq!(get(&kubelet, None, "/logs/../../etc/passwd")?.0, 404);

    let configz = json_of(&kubelet, "/configz")?;
    let config = &configz["kubeletconfig"];
    assert_eq!(config["kind"], "KubeletConfiguration");
    assert_eq!(config["maxPods"], 78, "a flag beats the file");
    assert_eq!(config["cpuManagerReconcilePeriod"], "13s");
    assert_eq!(config["syncFrequency"], "1m0s", "defaults are in");
    assert_eq!(config["staticPodPath"], json!(kubelet.manifests()));
    Ok(())
}

/// Waits until somebody answers on 10250: that the health port answers says nothing about it.
pub(crate) fn wait_until_served(kubelet: &KubeletProcess) -> anyhow::Result<()> {
    wait_for("an answer on 10250", WAIT, || match get(kubelet, None, "/healthz") {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{error:#}")),
    })
}

fn who_may_ask_on_10250_is_as_configured(stage: &Stage) -> anyhow::Result<()> {
    let authority = Authority::new("the right one")?;
    let alice = authority.client("alice")?;
    let mallory = Authority::new("another one")?.client("alice")?;
    let ca_file = stage.runtime().dir().join("clients.crt");
    std::fs::write(&ca_file, &authority.certificate)?;
    let mut options = stage.kubelet_options();
    options.config = json!({
        "authentication": {
            "anonymous": { "enabled": false },
            "x509": { "clientCAFile": ca_file },
        },
        "readOnlyPort": 0,
    });
    let mut kubelet = stage.start_kubelet_with(options)?;
    wait_until_served(&kubelet)?;
    for path in ["/pods", "/configz", "/runningpods/", "/healthz", "/nowhere"] {
        assert_eq!(get(&kubelet, None, path)?, (401, "Unauthorized".to_owned()), "{path}");
    }
    assert_eq!(get(&kubelet, Some(&alice), "/configz")?.0, 200);
    assert_eq!(get(&kubelet, Some(&alice), "/nowhere")?.0, 404);
    // Somebody else's word for it does not count.
    assert_eq!(get(&kubelet, Some(&mallory), "/configz")?.0, 401);
    ensure!(kubelet.get(10255, "/pods").is_err(), "the open port is closed");
    assert_eq!(kubelet.get(10248, "/healthz")?.0, 200);

    kubelet.options_mut().config = json!({ "enableServer": false });
    kubelet.restart()?;
    ensure!(get(&kubelet, None, "/healthz").is_err(), "the server is off");
    assert_eq!(kubelet.get(10248, "/healthz")?.0, 200);
    Ok(())
}

/// Runs a kubelet to its end: exit code, stdout, stderr.
fn run(
    stage: &Stage,
    options: &KubeletOptions,
    args: &[&str],
) -> anyhow::Result<(Option<i32>, String, String)> {
    let namespaces = stage.runtime().namespaces();
    let mut command = namespaces.command(&options.binary);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = namespaces.spawn(&mut command)?.wait_with_output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((output.status.code(), text(output.stdout), text(output.stderr)))
}

fn a_kubelet_that_cannot_start_says_all_that_is_wrong_and_exits_with_1(
    stage: &Stage,
) -> anyhow::Result<()> {
    let options = stage.kubelet_options();
    let (code, version, _) = run(stage, &options, &["--version"])?;
    assert_eq!(code, Some(0));
    ensure!(version.starts_with("Kubernetes v1.36."), "--version says {version}");
    let (code, help, _) = run(stage, &options, &["--help"])?;
    assert_eq!(code, Some(0));
    ensure!(help.contains("--config") && help.contains("--root-dir"), "--help says {help}");

    let path = stage.runtime().dir().join("wrong.yaml");
    let write = |config: &str| std::fs::write(&path, config);
    let config = format!("--config={}", path.display());
    write(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         port: 70000\nmaxPods: -1\nimageGCHighThresholdPercent: 40\n\
         imageGCLowThresholdPercent: 60\ncgroupDriver: fantasy\nstaticPodURL: 'http://%zz'\n\
         featureGates: {NoSuchGate: true}\n",
    )?;
    let (code, _, stderr) = run(stage, &options, &[&config])?;
    assert_eq!(code, Some(1), "{stderr}");
    for field in ["port", "maxPods", "imageGCLowThresholdPercent", "NoSuchGate"] {
        ensure!(stderr.contains(field), "{field} is missing in: {stderr}");
    }
    for (args, telling) in [
        (vec!["--no-such-flag"], "no-such-flag"),
        (vec!["leftover"], "leftover"),
        (vec!["--config=/nowhere/config.yaml"], "/nowhere/config.yaml"),
        (vec!["--cloud-provider=aws"], "cloud-provider"),
        (vec!["--exit-on-lock-contention"], "lock-file"),
    ] {
        let (code, _, stderr) = run(stage, &options, &args)?;
        assert_eq!(code, Some(1), "{args:?}: {stderr}");
        ensure!(stderr.contains(telling), "{args:?} says: {stderr}");
    }
    // Nobody is there to ask who may use the API.
    for (settings, telling) in [
        ("", "no client provided, cannot use webhook authentication"),
        (
            "authentication: {webhook: {enabled: false}, anonymous: {enabled: true}}\n",
            "no client provided, cannot use webhook authorization",
        ),
        (
            "authentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n",
            "no authentication method configured",
        ),
    ] {
        write(&format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{settings}"
        ))?;
        let (code, _, stderr) = run(stage, &options, &[&config])?;
        assert_eq!(code, Some(1), "{stderr}");
        ensure!(stderr.contains(telling), "{settings} says: {stderr}");
    }
    write("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: [1, 2")?;
    let (code, _, stderr) = run(stage, &options, &[&config])?;
    assert_eq!(code, Some(1), "{stderr}");
    ensure!(stderr.contains("wrong.yaml"), "it says: {stderr}");
    Ok(())
}
