//! Kubeconfigs, the store and the API server together, over loopback.

#![allow(clippy::unwrap_used)] // Clippy takes helpers outside of test functions for production code.

use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Namespace, NodeAddress};
use rubelet_apiserver::{ApiServer, ApiServerOptions, KubeConfig, Selector};
use rubelet_certificate_manager::{
    CertificatePair, ClientCredentials, CredentialsError, ServingCertificateManager,
    ServingCertificateSettings, ServingRotationPort,
};
use rubelet_config::KubeletConfiguration;
use rubelet_fake_apiserver::{Authority, FakeApiServer, FakeOptions, Listening, User};
use rubelet_types::{Clock, error_chain};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Ends what never comes.
const PATIENCE: Duration = Duration::from_secs(120);
const TOKEN: &str = "abcdef.0123456789abcdef";

struct Ground {
    directory: tempfile::TempDir,
    server: FakeApiServer,
    authority: Authority,
    listening: Listening,
}

impl Ground {
    /// A server that knows the bootstrap token and certificates, and signs requests.
    async fn new() -> Self {
        let server = FakeApiServer::new(FakeOptions::default());
        let authority = Authority::new();
        server.require_authentication(true);
        server.add_user(
            TOKEN,
            User {
                name: "system:bootstrap:abcdef".to_owned(),
                groups: vec!["system:bootstrappers".to_owned()],
            },
        );
        server.sign_certificates(Some(authority.clone()));
        let listening = server.listen_with_tls(&authority).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let ground = Self { directory, server, authority, listening };
        ground.write("bootstrap.conf", &json!({"token": TOKEN}));
        ground
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, user: &Value) {
        std::fs::write(self.file(name), self.listening.kubeconfig(user)).unwrap();
    }

    fn credentials(&self) -> ClientCredentials {
        ClientCredentials {
            kubeconfig: self.file("etc/kubelet.conf"),
            bootstrap_kubeconfig: Some(self.file("bootstrap.conf")),
            cert_dir: self.file("pki"),
            node_name: "n1".to_owned(),
            options: options(),
            clock: Clock::system(),
        }
    }

    fn current(&self) -> CertificatePair {
        let pem = std::fs::read(self.file("pki/kubelet-client-current.pem")).unwrap();
        CertificatePair::from_pem(&pem, &pem).unwrap()
    }

    fn requests(&self) -> Vec<CertificateSigningRequest> {
        self.server.list()
    }
}

fn options() -> ApiServerOptions {
    ApiServerOptions::from_configuration(&KubeletConfiguration::default(), "kubelet/test")
}

fn api(config: &KubeConfig) -> ApiServer {
    ApiServer::new(config, options(), Clock::system()).unwrap()
}

/// Whether the server lets somebody read.
async fn is_let_in(api: &ApiServer) -> bool {
    api.cluster::<Namespace>().list(&Selector::all()).await.is_ok()
}

async fn eventually<F: Future<Output = bool>>(look: impl Fn() -> F) {
    let waiting = async {
        while !look().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, waiting).await.unwrap();
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_kubelet_is_bootstrapped_once() {
    let ground = Ground::new().await;
    let credentials = ground.credentials();
    credentials.ensure_bootstrapped().await.unwrap();

    let text = std::fs::read_to_string(&credentials.kubeconfig).unwrap();
    for part in ["default-context", "default-auth", "default-cluster", "namespace: default"] {
        assert!(text.contains(part), "{text}");
    }
    let current = ground.file("pki/kubelet-client-current.pem");
    assert!(text.contains(current.to_str().unwrap()), "{text}");
    assert!(!text.contains(TOKEN), "{text}");
    let mode = std::fs::metadata(&credentials.kubeconfig).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(is_let_in(&api(&KubeConfig::load(&credentials.kubeconfig).unwrap())).await);
    // The key of the request is gone with the request.
    assert_eq!(names(&ground.file("pki")).len(), 2);

    std::fs::write(ground.file("pki/kubelet-client.key.tmp"), "left by a crash").unwrap();
    std::fs::remove_file(ground.file("bootstrap.conf")).unwrap();
    credentials.ensure_bootstrapped().await.unwrap();
    assert_eq!(ground.requests().len(), 1);
    assert_eq!(names(&ground.file("pki")).len(), 2);
}

#[tokio::test]
async fn a_damaged_certificate_with_a_good_one_before_needs_no_bootstrap() {
    let ground = Ground::new().await;
    let credentials = ground.credentials();
    credentials.ensure_bootstrapped().await.unwrap();
    let good = std::fs::read(ground.file("pki/kubelet-client-current.pem")).unwrap();
    std::fs::write(ground.file("pki/kubelet-client-2020-01-01-00-00-00.pem"), &good).unwrap();
    std::fs::write(ground.file("pki/kubelet-client-current.pem"), "cut off").unwrap();
    credentials.ensure_bootstrapped().await.unwrap();
    assert_eq!(ground.requests().len(), 1);
    assert!(is_let_in(&api(&KubeConfig::load(&credentials.kubeconfig).unwrap())).await);
    assert!(names(&ground.file("pki")).iter().any(|name| name.ends_with(".damaged-1")));
}

#[tokio::test]
async fn a_linked_kubeconfig_stays_a_link() {
    let ground = Ground::new().await;
    let credentials = ground.credentials();
    let real = ground.file("real.conf");
    std::fs::write(&real, "not a kubeconfig").unwrap();
    std::fs::create_dir(ground.file("etc")).unwrap();
    std::os::unix::fs::symlink(&real, &credentials.kubeconfig).unwrap();
    credentials.ensure_bootstrapped().await.unwrap();
    assert_eq!(std::fs::read_link(&credentials.kubeconfig).unwrap(), real);
    assert!(is_let_in(&api(&KubeConfig::load(&real).unwrap())).await);
}

#[tokio::test]
async fn what_cannot_be_used_is_named() {
    let ground = Ground::new().await;
    let failure = async |credentials: &ClientCredentials| {
        error_chain(&credentials.ensure_bootstrapped().await.unwrap_err())
    };
    let credentials = ground.credentials();
    ground.write("bootstrap.conf", &json!({"token": "expired"}));
    let text = failure(&credentials).await;
    assert!(text.contains("the bootstrap token or the certificate may have expired"), "{text}");
    assert!(!credentials.kubeconfig.exists());

    std::fs::remove_file(ground.file("bootstrap.conf")).unwrap();
    let text = failure(&credentials).await;
    assert!(text.starts_with("unable to load bootstrap kubeconfig: "), "{text}");
    let text = error_chain(&credentials.prepare_rotation().await.unwrap_err());
    assert!(text.starts_with("unable to load bootstrap kubeconfig: "), "{text}");

    let alone = ClientCredentials { bootstrap_kubeconfig: None, ..credentials };
    alone.ensure_bootstrapped().await.unwrap();
    let error = alone.prepare_rotation().await.unwrap_err();
    assert!(matches!(error, CredentialsError::Kubeconfig(_)), "{error}");
    assert!(error_chain(&error).starts_with("unable to load kubeconfig: "), "{error}");
}

#[tokio::test]
async fn with_rotation_the_start_waits_for_nobody_and_the_certificate_comes_later() {
    let ground = Ground::new().await;
    ground.server.sign_certificates(None);
    let credentials = ground.credentials();
    for _ in 0..2 {
        // Again after a crash: the kubeconfig is there, and what it points at is not.
        let (config, _) = credentials.prepare_rotation().await.unwrap();
        assert!(config.client_certificates().is_empty());
    }
    let (config, manager) = credentials.prepare_rotation().await.unwrap();
    let api = api(&config);
    assert!(!is_let_in(&api).await);

    ground.server.sign_certificates(Some(ground.authority.clone()));
    let status = manager.status();
    let stop = CancellationToken::new();
    let run = manager.run(credentials.rotation_port(api.clone()), stop.clone());
    let run = AbortOnDropHandle::new(tokio::spawn(run));
    eventually(|| is_let_in(&api)).await;
    let leaf = status.current(Clock::system().now()).unwrap();
    assert_eq!(*leaf, *ground.current().leaf());
    assert_eq!(leaf.common_name, "system:node:n1");
    stop.cancel();
    assert_eq!(run.await.unwrap(), Ok(()));

    // The next start needs no token any more.
    std::fs::remove_file(ground.file("bootstrap.conf")).unwrap();
    let (config, _) = credentials.prepare_rotation().await.unwrap();
    assert_eq!(config.client_certificates(), std::slice::from_ref(&leaf.der));
    assert_eq!(ground.requests().len(), 1);
}

#[tokio::test]
async fn the_certificate_that_kubeadm_put_into_the_kubeconfig_is_replaced() {
    let ground = Ground::new().await;
    let credentials = ClientCredentials { bootstrap_kubeconfig: None, ..ground.credentials() };
    let admin =
        User { name: "kubernetes-admin".to_owned(), groups: vec!["system:masters".to_owned()] };
    let day = jiff::SignedDuration::from_hours(24);
    let pair = ground.authority.client(&admin, Clock::system().now() + day);
    let encode = |text: &str| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, text);
    std::fs::create_dir(ground.file("etc")).unwrap();
    ground.write(
        "etc/kubelet.conf",
        &json!({
            "client-certificate-data": encode(&pair.certificate),
            "client-key-data": encode(&pair.key),
        }),
    );
    let before = std::fs::read(&credentials.kubeconfig).unwrap();
    let (config, manager) = credentials.prepare_rotation().await.unwrap();
    assert_eq!(ground.current().leaf().common_name, "kubernetes-admin");
    let api = api(&config);
    assert!(is_let_in(&api).await);
    let port = credentials.rotation_port(api.clone());
    let run = manager.run(port, CancellationToken::new());
    let _run = AbortOnDropHandle::new(tokio::spawn(run));
    let is_own = || ground.current().leaf().common_name == "system:node:n1";
    eventually(async || is_own()).await;
    assert!(is_let_in(&api).await);
    // The kubeconfig stays as it is; the rotated certificate goes before what it holds.
    assert_eq!(std::fs::read(&credentials.kubeconfig).unwrap(), before);
    let (config, _) = credentials.prepare_rotation().await.unwrap();
    let own = ground.current().leaf().der.clone();
    assert_eq!(config.client_certificates(), [own]);
}

#[tokio::test]
async fn a_serving_certificate_is_asked_for_over_the_kubelets_own_connection() {
    let ground = Ground::new().await;
    let credentials = ground.credentials();
    credentials.ensure_bootstrapped().await.unwrap();
    let api = api(&KubeConfig::load(&credentials.kubeconfig).unwrap());
    let settings = ServingCertificateSettings {
        directory: credentials.cert_dir,
        node_name: "n1".to_owned(),
        given: None,
        dns_only: false,
    };
    let manager = ServingCertificateManager::open(settings, Clock::system()).unwrap();
    let status = manager.status();
    let (_keep, addresses) = watch::channel(vec![NodeAddress {
        type_: "InternalIP".to_owned(),
        address: "10.0.0.1".to_owned(),
    }]);
    let (told, mut tell) = watch::channel(0);
    let port = ServingRotationPort::new(api, move || told.send_modify(|count| *count += 1));
    let run = manager.run(port, addresses, CancellationToken::new());
    let _run = AbortOnDropHandle::new(tokio::spawn(run));
    timeout(PATIENCE, tell.changed()).await.unwrap().unwrap();
    let leaf = status.current(Clock::system().now()).unwrap();
    assert_eq!(leaf.ip_addresses, ["10.0.0.1".parse::<std::net::IpAddr>().unwrap()]);
    let signers: Vec<String> =
        ground.requests().into_iter().map(|request| request.spec.signer_name).collect();
    assert!(signers.contains(&"kubernetes.io/kubelet-serving".to_owned()), "{signers:?}");
}
