use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use ::http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rubelet_types::{Clock, EventRecorder};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::{PodChanges, PodConfig, PodSourceSettings};

const DEADLINE: Duration = Duration::from_secs(20);

type Answer = Response<Full<Bytes>>;

/// A server whose answer can be changed while it runs.
struct Server {
    address: std::net::SocketAddr,
    answer: Arc<Mutex<Answer>>,
    requests: Arc<Mutex<Vec<HeaderMap>>>,
    _task: AbortOnDropHandle<()>,
}

fn answer(status: StatusCode, body: &str) -> Answer {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned())));
    *response.status_mut() = status;
    response
}

fn redirect(location: &str) -> Answer {
    let mut response = answer(StatusCode::FOUND, "");
    response.headers_mut().insert("location", location.parse().unwrap());
    response
}

impl Server {
    async fn start(first: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(Mutex::new(first));
        let requests = Arc::default();
        let state = (Arc::clone(&answer), Arc::clone(&requests));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, state.clone()));
            }
        });
        Self { address, answer, requests, _task: AbortOnDropHandle::new(task) }
    }

    fn url(&self) -> String {
        format!("http://{}/pods", self.address)
    }

    fn set(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    /// Waits for the answer to be taken that is set now.
    async fn is_asked(&self) {
        let before = self.requests.lock().unwrap().len();
        let asked = async {
            // The first may have been under way already.
            while self.requests.lock().unwrap().len() < before + 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, asked).await.expect("a request in time");
    }
}

type State = (Arc<Mutex<Answer>>, Arc<Mutex<Vec<HeaderMap>>>);

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, state: State) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (answer, requests) = state.clone();
        async move {
            requests.lock().unwrap().push(request.headers().clone());
            let answer = answer.lock().unwrap();
            let mut response = Response::new(answer.body().clone());
            *response.status_mut() = answer.status();
            *response.headers_mut() = answer.headers().clone();
            Ok::<_, Infallible>(response)
        }
    });
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn start(url: &str, headers: &[(&str, &str)]) -> (PodChanges, AbortOnDropHandle<()>) {
    let settings = PodSourceSettings {
        static_pod_path: None,
        file_check_frequency: Duration::from_secs(20),
        manifest_url: Some(url.to_owned()),
        manifest_url_headers: headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        http_check_frequency: Duration::from_millis(10),
        node_name: "node".to_owned(),
        prevent_api_references: true,
    };
    let clock = Clock::from_fn(|| Timestamp::UNIX_EPOCH);
    let (config, out) = PodConfig::new(settings, clock, EventRecorder::discard()).unwrap();
    (out, AbortOnDropHandle::new(tokio::spawn(config.run(CancellationToken::new()))))
}

async fn next(out: &mut PodChanges) -> String {
    let change = tokio::time::timeout(DEADLINE, out.changes.recv()).await;
    let change = change.expect("a change in time").expect("the source runs");
    let name = |pod: &Arc<Pod>| pod.metadata.name.clone().unwrap_or_default();
    let names: Vec<String> = change.pods.iter().map(name).collect();
    format!("{} {}", change.op, names.join(" "))
}

fn pod(name: &str) -> String {
    format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"{name}"}},
        "spec":{{"containers":[{{"name":"c","image":"i:1"}}]}}}}"#
    )
}

fn list(names: &[&str]) -> String {
    let pods: Vec<String> = names.iter().map(|name| pod(name)).collect();
    format!(r#"{{"apiVersion":"v1","kind":"PodList","items":[{}]}}"#, pods.join(","))
}

#[tokio::test]
async fn a_pod_then_a_list_then_nothing() {
    let server = Server::start(answer(StatusCode::OK, &pod("a"))).await;
    let (mut out, _running) = start(&server.url(), &[("X-Token", "t"), ("X-Token", "u")]);
    assert_eq!(next(&mut out).await, "ADD a-node");
    server.set(answer(StatusCode::OK, &list(&["a", "b"])));
    assert_eq!(next(&mut out).await, "ADD b-node");
    // Neither the same bytes nor failures change anything.
    server.is_asked().await;
    for failure in [
        answer(StatusCode::INTERNAL_SERVER_ERROR, &pod("x")),
        answer(StatusCode::OK, "junk"),
        answer(StatusCode::OK, &list(&["a", "B"])),
        answer(StatusCode::OK, &"x".repeat(MAX_MANIFEST_BYTES + 1)),
    ] {
        server.set(failure);
        server.is_asked().await;
    }
    server.set(answer(StatusCode::OK, &list(&["b"])));
    assert_eq!(next(&mut out).await, "REMOVE a-node");
    server.set(answer(StatusCode::OK, ""));
    assert_eq!(next(&mut out).await, "REMOVE b-node");
    let requests = server.requests.lock().unwrap();
    let tokens: Vec<_> = requests[0].get_all("x-token").iter().collect();
    assert_eq!(tokens, ["t", "u"]);
}

#[tokio::test]
async fn an_empty_body_counts_as_an_answer() {
    let server = Server::start(answer(StatusCode::OK, "")).await;
    let (mut out, _running) = start(&server.url(), &[]);
    assert_eq!(next(&mut out).await, "ADD ");
    tokio::time::timeout(DEADLINE, out.ready.wait_for(|ready| *ready)).await.unwrap().unwrap();
}

#[tokio::test]
async fn redirects_are_followed_but_not_for_ever() {
    let target = Server::start(answer(StatusCode::OK, &pod("a"))).await;
    let first = Server::start(redirect(&target.url())).await;
    let (mut out, _running) = start(&first.url(), &[]);
    assert_eq!(next(&mut out).await, "ADD a-node");

    let circle = Server::start(redirect("/pods")).await;
    let url: Uri = circle.url().parse().unwrap();
    let error = HttpClient::new(DEADLINE, 100).get(&url, &HeaderMap::new()).await.unwrap_err();
    assert!(matches!(error, GetError::TooManyRedirects), "{error}");
    assert_eq!(circle.requests.lock().unwrap().len(), 11);
    circle.set(redirect("file:///etc/passwd"));
    let error = HttpClient::new(DEADLINE, 100).get(&url, &HeaderMap::new()).await.unwrap_err();
    assert!(matches!(error, GetError::BadRedirect(_)), "{error}");
}

#[tokio::test]
async fn credentials_in_the_url_become_a_header() {
    let server = Server::start(answer(StatusCode::OK, &pod("a"))).await;
    let url = format!("http://user:p%40ss@{}/pods", server.address);
    let (mut out, _running) = start(&url, &[]);
    assert_eq!(next(&mut out).await, "ADD a-node");
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests[0]["authorization"], "Basic dXNlcjpwQHNz");
    assert_eq!(requests[0]["host"], server.address.to_string());
}

/// The Go kubelet hashes the setting as it stands, so nothing of it may be tidied up.
#[tokio::test]
async fn uids_follow_the_url_to_the_letter() {
    let server = Server::start(answer(StatusCode::OK, &pod("a"))).await;
    let url = format!("http://user:p%40ss@{}?node=1#x", server.address);
    let (mut out, _running) = start(&url, &[]);
    let change = tokio::time::timeout(DEADLINE, out.changes.recv()).await.unwrap().unwrap();
    let manifest = crate::decode::decode_pod(pod("a").as_bytes()).unwrap();
    let uid = crate::static_pod_uid(&manifest.pods[0], &ManifestOrigin::Url(url), "node");
    assert_eq!(change.pods[0].metadata.uid, Some(uid));
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let timeout = Duration::from_millis(100);
    let error = HttpClient::new(timeout, 100).get(&url, &HeaderMap::new()).await.unwrap_err();
    assert!(matches!(error, GetError::Timeout(_)), "{error}");
    drop(listener);
    let error = HttpClient::new(DEADLINE, 100).get(&url, &HeaderMap::new()).await.unwrap_err();
    assert!(matches!(error, GetError::Connect { .. }), "{error}");
}

#[tokio::test]
async fn certificates_are_checked_against_the_trusted_ones() {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key.unwrap())
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let state: State = (Arc::new(Mutex::new(answer(StatusCode::OK, "body"))), Arc::default());
    let _server = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(serve(stream, state.clone()));
            }
        }
    }));
    let url: Uri = format!("https://localhost:{port}/").parse().unwrap();
    let error = HttpClient::new(DEADLINE, 100).get(&url, &HeaderMap::new()).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");

    let bundle = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(bundle.path(), certified.cert.pem()).unwrap();
    let mut client = HttpClient::new(DEADLINE, 100);
    client.ca_bundles = vec!["/nonexistent".into(), bundle.path().to_owned()];
    assert_eq!(client.get(&url, &HeaderMap::new()).await.unwrap(), "body");
}
