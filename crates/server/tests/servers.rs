//! The servers over loopback.

#![allow(clippy::unwrap_used)] // Clippy takes helpers outside of test functions for production code.

#[path = "servers/streaming.rs"]
mod streaming;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rubelet_server::{
    About, Access, AccessSettings, Authorization, BoundListener, CERTIFICATE_FILE, ContainerAccess,
    ContainerTarget, Endpoints, HealthChecks, HealthzServer, KEY_FILE, KubeletServer, KubeletState,
    MetricsEndpoints, MinTlsVersion, PodTarget, ReadOnlyServer, ServerMetrics, ServingTls,
    StateError, StreamOptions, StreamingError, TlsFiles, TlsOptions, TlsReload,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, version};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Node {
    runtime_is_silent: bool,
    /// Where the runtime's streaming server is.
    streaming: String,
}

impl KubeletState for Node {
    fn pods(&self) -> Vec<Arc<Pod>> {
        let pod = json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "1"},
            "spec": {"containers": [{"name": "c"}]},
            "status": {"phase": "Running"},
        });
        vec![Arc::new(serde_json::from_value(pod).unwrap())]
    }

    async fn running_pods(&self) -> Result<Vec<Pod>, StateError> {
        if self.runtime_is_silent {
            return Err(StateError::new("the runtime does not answer"));
        }
        let pod = json!({"metadata": {"name": "web"}});
        Ok(vec![serde_json::from_value(pod).unwrap()])
    }

    fn configz(&self) -> Value {
        json!({"kubeletconfig": {"kind": "KubeletConfiguration"}})
    }

    fn about(&self) -> About {
        let (started, now) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        About { version: "1.36.0".to_owned(), started, now, flags: Default::default() }
    }

    fn set_log_verbosity(&self, _: u32) {}
}

impl Node {
    fn address(&self, call: &str, target: impl std::fmt::Debug) -> Result<String, StreamingError> {
        if self.streaming.is_empty() {
            return Err(StreamingError::Failed(format!("{call} {target:?}")));
        }
        Ok(format!("{}/{call}", self.streaming))
    }
}

impl ContainerAccess for Node {
    async fn exec(
        &self,
        target: &ContainerTarget,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> Result<String, StreamingError> {
        self.address("exec", (target, command, streams))
    }

    async fn attach(
        &self,
        target: &ContainerTarget,
        streams: StreamOptions,
    ) -> Result<String, StreamingError> {
        self.address("attach", (target, streams))
    }

    async fn port_forward(
        &self,
        target: &PodTarget,
        ports: Vec<u16>,
    ) -> Result<String, StreamingError> {
        self.address("portforward", (target, ports))
    }

    async fn run(&self, _: &ContainerTarget, _: Vec<String>) -> Result<Vec<u8>, StreamingError> {
        Err(StreamingError::NoSuchPod)
    }

    async fn checkpoint(
        &self,
        _: &ContainerTarget,
        _: Option<u32>,
    ) -> Result<String, StreamingError> {
        Err(StreamingError::NoSuchPod)
    }

    fn idle_timeout(&self) -> Duration {
        Duration::from_secs(3600)
    }
}

fn node() -> Arc<Node> {
    Arc::default()
}

fn access(anonymous: bool) -> Access {
    let settings = AccessSettings {
        anonymous,
        client_certificates: true,
        tokens: None,
        authorization: Authorization::AlwaysAllow,
    };
    Access::new(settings, "node-1", None).unwrap()
}

const ALL: Endpoints = Endpoints {
    debugging: true,
    profiling: true,
    debug_flags: true,
    system_logs: true,
    system_log_query: true,
    checkpoints: true,
};

/// A server that runs until it is dropped.
struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    async fn start<F: Future<Output = ()> + Send + 'static>(
        run: impl FnOnce(BoundListener, CancellationToken) -> F,
    ) -> Self {
        let listener = BoundListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let address = listener.local_addr();
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(listener, stop.clone()));
        Self { address, stop, task }
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.ask(Method::GET, path).await
    }

    async fn ask(&self, method: Method, path: &str) -> (StatusCode, String) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let request = request(method, path);
        let (response, _) = tokio::join!(
            async {
                let response = sender.send_request(request).await.unwrap();
                drop(sender);
                read(response).await
            },
            connection
        );
        response
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn request(method: Method, path: &str) -> Request<Empty<bytes::Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("https://node-1{path}"))
        .header("host", "node-1")
        .body(Empty::new())
        .unwrap()
}

async fn read(response: hyper::Response<hyper::body::Incoming>) -> (StatusCode, String) {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn ok(text: &str) -> (StatusCode, String) {
    (StatusCode::OK, text.to_owned())
}

fn not_found() -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, "404 page not found\n".to_owned())
}

fn pod_list(item: Value) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [item]})
}

fn pods() -> Value {
    pod_list(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "1"},
        "spec": {"containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }))
}

async fn healthz() -> Running {
    Running::start(|listener, stop| HealthzServer::new(HealthChecks::ping()).run(listener, stop))
        .await
}

#[tokio::test]
async fn the_health_port_serves_health_and_nothing_else() {
    let server = healthz().await;
    assert_eq!(server.get("/healthz").await, ok("ok"));
    assert_eq!(server.get("/healthz/ping").await, ok("ok"));
    let verbose = "[+]ping ok\nhealthz check passed\n";
    assert_eq!(server.get("/healthz?verbose").await, ok(verbose));
    assert_eq!(server.get("/healthz?verbose=true").await, ok(verbose));
    for path in ["/", "/pods", "/healthz/", "/healthz/log", "/healthz/ping/x", "/debug/pprof/"] {
        assert_eq!(server.get(path).await, not_found(), "{path}");
    }
    let (status, _) = server.ask(Method::POST, "/healthz").await;
    assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn the_read_only_port_serves_pods_and_health_and_nothing_else() {
    let checks = HealthChecks::ping().with("syncloop", || Err("it hangs".to_owned()));
    let server =
        Running::start(|listener, stop| ReadOnlyServer::new(node(), checks).run(listener, stop))
            .await;
    for path in ["/pods", "/pods/"] {
        let (status, body) = server.get(path).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), pods());
    }
    let (status, text) = server.get("/healthz").await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text.contains("[-]syncloop failed: reason withheld\n"), "{text}");
    let (_, text) = server.get("/healthz/syncloop").await;
    assert_eq!(text, "internal server error: it hangs\n");
    for path in ["/configz", "/runningpods/", "/exec/a/b/c", "/checkpoint/a/b/c"] {
        assert_eq!(server.get(path).await, not_found(), "{path}");
    }
}

/// A server on 10250 with its own certificates and an authority of clients.
struct Secure {
    metrics: Arc<ServerMetrics>,
    server: Running,
    authority: CertifiedIssuer<'static, KeyPair>,
    directory: tempfile::TempDir,
    changed: TlsReload,
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

impl Secure {
    async fn start(anonymous: bool) -> Self {
        Self::start_with(node(), anonymous, MinTlsVersion::Tls12).await
    }

    async fn start_with(state: Arc<Node>, anonymous: bool, min_version: MinTlsVersion) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let authority = authority("clients");
        let client_ca_file = directory.path().join("ca.crt");
        std::fs::write(&client_ca_file, authority.pem()).unwrap();
        let options = TlsOptions {
            files: TlsFiles::SelfSigned {
                directory: directory.path().to_owned(),
                hostname: "node-1".to_owned(),
            },
            min_version,
            cipher_suites: Vec::new(),
            client_ca_file: Some(client_ca_file),
        };
        #[allow(clippy::disallowed_methods)] // Certificates are checked against the real clock.
        let tls = ServingTls::load(options, Timestamp::now()).unwrap();
        let changed = tls.reload_handle();
        let access = access(anonymous);
        let checks = HealthChecks::ping().with("log", || Ok(()));
        let metrics = Arc::<ServerMetrics>::default();
        let server = Running::start(|listener, stop| {
            KubeletServer::new(state, checks, access, ALL, tls)
                .with_metrics(MetricsEndpoints::new(metrics.clone()))
                .run(listener, stop)
        })
        .await;
        Self { metrics, server, authority, directory, changed }
    }

    async fn connect(&self, config: ClientConfig) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.server.address).await?;
        let name = ServerName::try_from("node-1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    async fn get(&self, config: ClientConfig, path: &str) -> std::io::Result<(StatusCode, String)> {
        let http2 = config.alpn_protocols.contains(&b"h2".to_vec());
        let stream = self.connect(config).await?;
        let protocol = stream.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        let stream = TokioIo::new(stream);
        let request = request(Method::GET, path);
        let response = if http2 {
            assert_eq!(protocol.as_deref(), Some(&b"h2"[..]));
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream)
                    .await
                    .map_err(std::io::Error::other)?;
            tokio::spawn(connection);
            sender.send_request(request).await
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(stream)
                .await
                .map_err(std::io::Error::other)?;
            tokio::spawn(connection);
            sender.send_request(request).await
        };
        Ok(read(response.map_err(std::io::Error::other)?).await)
    }

    fn stranger(&self) -> ClientConfig {
        client(self.directory.path(), &[&version::TLS12, &version::TLS13], None)
    }

    fn alice(&self) -> ClientConfig {
        self.client_of(&self.authority)
    }

    fn client_of(&self, authority: &CertifiedIssuer<'static, KeyPair>) -> ClientConfig {
        let key = KeyPair::generate().unwrap();
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "alice");
        parameters.distinguished_name.push(DnType::OrganizationName, "ops");
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = parameters.signed_by(&key, authority).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let identity = (certificate.der().clone(), key);
        client(self.directory.path(), &[&version::TLS12, &version::TLS13], Some(identity))
    }
}

fn client(
    directory: &Path,
    versions: &[&'static SupportedProtocolVersion],
    identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(directory.join(CERTIFICATE_FILE)).unwrap();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    match identity {
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => builder.with_no_client_auth(),
    }
}

#[tokio::test]
async fn the_kubelet_port_serves_those_it_knows() {
    let secure = Secure::start(false).await;
    for path in ["/pods", "/configz", "/healthz", "/nonsense"] {
        let answer = secure.get(secure.stranger(), path).await.unwrap();
        assert_eq!(answer, (StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()), "{path}");
    }
    let get = async |path: &str| secure.get(secure.alice(), path).await.unwrap();
    let (status, body) = get("/pods").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), pods());
    for path in ["/runningpods", "/runningpods/"] {
        let (status, body) = get(path).await;
        assert_eq!(status, StatusCode::OK);
        let expected = pod_list(json!({"metadata": {"name": "web"}}));
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    }
    let configz = "{\"kubeletconfig\":{\"kind\":\"KubeletConfiguration\"}}";
    assert_eq!(get("/configz").await, ok(configz));
    let verbose = "[+]ping ok\n[+]log ok\nhealthz check passed\n";
    assert_eq!(get("/healthz?verbose").await, ok(verbose));
    assert_eq!(get("/nonsense").await, not_found());
}

#[tokio::test]
async fn http2_is_spoken_to_whom_asks_for_it() {
    let secure = Secure::start(true).await;
    let mut config = secure.stranger();
    config.alpn_protocols = vec![b"h2".to_vec()];
    assert_eq!(secure.get(config, "/healthz").await.unwrap(), ok("ok"));
}

#[tokio::test]
async fn a_certificate_of_another_authority_counts_for_nothing() {
    for (anonymous, expected) in [(false, StatusCode::UNAUTHORIZED), (true, StatusCode::OK)] {
        let secure = Secure::start(anonymous).await;
        let impostor = secure.client_of(&authority("clients"));
        assert_eq!(secure.get(impostor, "/pods").await.unwrap().0, expected);
    }
}

#[tokio::test]
async fn a_certificate_is_believed_no_longer_than_its_authority() {
    let secure = Secure::start(false).await;
    let stream = TokioIo::new(secure.connect(secure.alice()).await.unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    let _connection = tokio::spawn(connection);
    let mut ask = async || {
        let response = sender.send_request(request(Method::GET, "/pods")).await.unwrap();
        read(response).await.0
    };
    assert_eq!(ask().await, StatusCode::OK);
    std::fs::write(secure.directory.path().join("ca.crt"), authority("clients").pem()).unwrap();
    secure.changed.reload();
    // The connection stays, and whoever is behind it is nobody any more.
    let is_nobody = async { while ask().await != StatusCode::UNAUTHORIZED {} };
    timeout(PATIENCE, is_nobody).await.unwrap();
}

#[tokio::test]
async fn the_minimum_version_is_kept() {
    for (min_version, succeeds) in [(MinTlsVersion::Tls12, true), (MinTlsVersion::Tls13, false)] {
        let secure = Secure::start_with(node(), true, min_version).await;
        let old = client(secure.directory.path(), &[&version::TLS12], None);
        assert_eq!(secure.connect(old).await.is_ok(), succeeds, "{min_version:?}");
    }
}

#[tokio::test]
async fn without_a_certificate_nobody_gets_in_until_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let options = |files| TlsOptions {
        files,
        min_version: MinTlsVersion::Tls12,
        cipher_suites: Vec::new(),
        client_ca_file: None,
    };
    let load = |files| {
        #[allow(clippy::disallowed_methods)] // Certificates are checked against the real clock.
        ServingTls::load(options(files), Timestamp::now()).unwrap()
    };
    let tls = load(TlsFiles::Rotated { places: vec![(file(CERTIFICATE_FILE), file(KEY_FILE))] });
    let changed = tls.reload_handle();
    let access = access(true);
    let server = Running::start(|listener, stop| {
        KubeletServer::new(node(), HealthChecks::ping(), access, ALL, tls).run(listener, stop)
    })
    .await;
    let made = tempfile::tempdir().unwrap();
    let at = made.path().to_owned();
    load(TlsFiles::SelfSigned { directory: at, hostname: "node-1".to_owned() });
    let (metrics, authority) = (Arc::default(), authority("clients"));
    let secure = Secure { metrics, server, authority, directory: made, changed };
    assert!(secure.connect(secure.stranger()).await.is_err());

    for name in [CERTIFICATE_FILE, KEY_FILE] {
        std::fs::copy(secure.directory.path().join(name), file(name)).unwrap();
    }
    secure.changed.reload();
    let comes = async {
        while secure.connect(secure.stranger()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, comes).await.unwrap();
    assert_eq!(secure.get(secure.stranger(), "/healthz").await.unwrap(), ok("ok"));
}

#[tokio::test]
async fn what_the_runtime_does_not_tell_is_an_error() {
    let state = Arc::new(Node { runtime_is_silent: true, ..Node::default() });
    let secure = Secure::start_with(state, true, MinTlsVersion::Tls12).await;
    let answer = secure.get(secure.stranger(), "/runningpods/").await.unwrap();
    let expected = "the runtime does not answer\n".to_owned();
    assert_eq!(answer, (StatusCode::INTERNAL_SERVER_ERROR, expected));
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it() {
    let server = healthz().await;
    let error = BoundListener::bind(server.address).await.unwrap_err();
    assert_eq!(error.to_string(), format!("failed to listen on {}", server.address));
}

#[tokio::test]
async fn shutdown_ends_idle_connections_and_listens_no_more() {
    let mut server = healthz().await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    server.stop.cancel();
    timeout(PATIENCE, &mut server.task).await.unwrap().unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, idle.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

/// Reads all that the server sends until it closes.
async fn read_to_end(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A server that closes with something unread resets.
    let _ = timeout(Duration::from_secs(600), stream.read_to_end(&mut text)).await.unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_or_not_enough_is_not_waited_for() {
    let server = healthz().await;
    for start in ["", "GET /healthz HTTP/1.1\r\nHost:"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        let answer = read_to_end(&mut stream).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    let secure = Secure::start(true).await;
    let mut stream = TcpStream::connect(secure.server.address).await.unwrap();
    assert_eq!(read_to_end(&mut stream).await, "");
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let server = healthz().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ").await.unwrap();
    let chunk = [b'x'; 1 << 16];
    let mut sent = 0;
    // The server closes some time after a mebibyte.
    while sent < 64 << 20 && stream.write_all(&chunk).await.is_ok() {
        sent += chunk.len();
    }
    assert!((1 << 20..64 << 20).contains(&sent), "{sent}");
}
