//! `httpGet` against loopback servers that answer by script.

#![allow(clippy::unwrap_used)] // Clippy takes helpers outside of test functions for production code.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, HTTPHeader};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use rubelet_container_http::{
    ContainerClient, ErroredAs, HookResponse, HttpTarget, ProbeOutcome, Purpose, Scheme,
};
use support::{Reply, Server};

mod support;

const TIME: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(50);
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine";

fn client() -> ContainerClient {
    ContainerClient::new("1.36")
}

fn target(server: &Server, path: &str) -> HttpTarget {
    HttpTarget {
        scheme: Scheme::Http,
        host: server.address.ip().to_string(),
        port: server.address.port(),
        path: path.to_owned(),
        headers: Vec::new(),
        purpose: Purpose::Probe,
    }
}

fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Probes a server that gives `replies`, and tells the outcome and the requests it saw.
async fn probe(path: &str, replies: Vec<Reply>) -> (ProbeOutcome, Vec<String>, Server) {
    let mut server = Server::start(replies).await;
    let outcome = client().http_probe(&target(&server, path), TIME).await;
    let requests = server.requests();
    (outcome, requests, server)
}

fn failure(text: impl Into<String>) -> ProbeOutcome {
    ProbeOutcome::Failure(text.into())
}

fn success(text: &str) -> ProbeOutcome {
    ProbeOutcome::Success(text.to_owned())
}

#[tokio::test]
async fn a_request_carries_what_the_spec_says_and_nothing_of_the_node() {
    let mut server = Server::start(vec![Reply::new(OK), Reply::new(OK), Reply::new(OK)]).await;
    let mut target = target(&server, "/healthz?deep=1&x=%20");
    let authority = server.address;

    assert_eq!(client().http_probe(&target, TIME).await, success("fine"));
    assert_eq!(
        server.requests(),
        [format!(
            "GET /healthz?deep=1&x=%20 HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: \
             kube-probe/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        )]
    );

    target.headers = headers(&[
        ("hOST", "example.com"),
        ("x-cUSTOM", "one"),
        ("X-Custom", "two"),
        ("Accept", ""),
        ("User-Agent", "mine"),
        ("Content-Length", "17"),
    ]);
    assert_eq!(client().http_probe(&target, TIME).await, success("fine"));
    assert_eq!(
        server.requests(),
        ["GET /healthz?deep=1&x=%20 HTTP/1.1\r\nHost: example.com\r\nX-Custom: one\r\nX-Custom: \
          two\r\nUser-Agent: mine\r\nConnection: close\r\n\r\n"]
    );

    target.headers = headers(&[("User-Agent", ""), ("Accept", "text/plain")]);
    target.purpose = Purpose::LifecycleHook;
    client().http_hook(&target).await.unwrap();
    assert_eq!(
        server.requests(),
        [format!(
            "GET /healthz?deep=1&x=%20 HTTP/1.1\r\nHost: {authority}\r\nAccept: \
             text/plain\r\nConnection: close\r\n\r\n"
        )]
    );
}

#[tokio::test]
async fn statuses_decide() {
    for (status, expected) in [
        ("200 OK", success("x")),
        ("204 No Content", success("")),
        ("299 Odd", success("x")),
        ("404 Not Found", failure("HTTP probe failed with statuscode: 404")),
        ("500 Internal Server Error", failure("HTTP probe failed with statuscode: 500")),
        (
            "302 Found",
            ProbeOutcome::Warning("Probe terminated redirects, Response body: x".to_owned()),
        ),
        (
            "300 Multiple Choices\r\nLocation: /other",
            ProbeOutcome::Warning("Probe terminated redirects, Response body: x".to_owned()),
        ),
    ] {
        let reply = format!("HTTP/1.1 {status}\r\n\r\nx");
        let (outcome, requests, _) = probe("/", vec![Reply::new(reply)]).await;
        assert_eq!((outcome, requests.len()), (expected, 1), "{status}");
    }
}

#[tokio::test]
async fn redirects_are_followed_on_the_same_host_only() {
    let found =
        |location: &str| Reply::new(format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n"));

    let (outcome, requests, server) = probe("/a/b", vec![found("c?d"), Reply::new(OK)]).await;
    assert_eq!(outcome, success("fine"));
    assert!(requests[1].starts_with("GET /a/c?d HTTP/1.1\r\n"), "{requests:?}");
    let referer = format!("\r\nReferer: http://{}/a/b\r\n", server.address);
    assert!(requests[1].contains(&referer), "{requests:?}");

    let (outcome, requests, _) = probe("/", vec![found("http://example.com/")]).await;
    let expected = "Probe terminated redirects, Response body: ".to_owned();
    assert_eq!((outcome, requests.len()), (ProbeOutcome::Warning(expected), 1));

    let other_port = Server::start(vec![Reply::new(OK)]).await;
    let (outcome, ..) = probe("/", vec![found(&format!("http://{}/", other_port.address))]).await;
    assert_eq!(outcome, success("fine"));

    let (outcome, requests, _) = probe("/", (0..11).map(|_| found("/loop")).collect()).await;
    let expected = failure("Get \"/loop\": stopped after 10 redirects");
    assert_eq!((outcome, requests.len()), (expected, 10));

    let (outcome, _, server) = probe("/", vec![found("ftp://x/")]).await;
    let expected =
        format!("Get \"http://{}/\": failed to parse Location header \"ftp://x/\"", server.address);
    assert_eq!(outcome, failure(expected));
}

#[tokio::test]
async fn the_host_header_of_the_spec_survives_relative_redirects() {
    let mut server = Server::start(vec![
        Reply::new("HTTP/1.1 307 Temporary Redirect\r\nLocation: /next\r\n\r\n"),
        Reply::new(OK),
    ])
    .await;
    let mut target = target(&server, "/");
    target.headers = headers(&[("Host", "example.com")]);
    assert_eq!(client().http_probe(&target, TIME).await, success("fine"));
    for request in server.requests() {
        assert!(request.contains("\r\nHost: example.com\r\n"), "{request}");
    }
}

#[tokio::test]
async fn bodies_are_read_up_to_ten_kibibytes() {
    let mut reply = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".to_vec();
    reply.resize(reply.len() + 100_000, b'y');
    let (outcome, ..) = probe("/", vec![Reply::new(reply)]).await;
    assert_eq!(outcome, success(&"y".repeat(10 * 1024)));
}

#[tokio::test]
async fn odd_headers_are_no_reason_to_fail() {
    let reply = "HTTP/1.1 200 OK\r\nBad Header: x\r\nX-Space : y\r\n\r\nok";
    let (outcome, ..) = probe("/", vec![Reply::new(reply)]).await;
    assert_eq!(outcome, success("ok"));
    let many: String = (0..300).map(|number| format!("X-{number}: x\r\n")).collect();
    let (outcome, ..) =
        probe("/", vec![Reply::new(format!("HTTP/1.1 200 OK\r\n{many}\r\nok"))]).await;
    assert_eq!(outcome, success("ok"));
}

#[tokio::test]
async fn breaks_of_the_protocol_have_gos_words() {
    for (reply, expected) in [
        ("", "EOF"),
        ("HTTP/1.1 200 OK\r\nX", "unexpected EOF"),
        (
            "SSH-2.0-OpenSSH_9.2\r\n",
            "net/http: HTTP/1.x transport connection broken: malformed HTTP response \
             \"SSH-2.0-OpenSSH_9.2\"",
        ),
    ] {
        let (outcome, _, server) = probe("/", vec![Reply::new(reply)]).await;
        let expected = format!("Get \"http://{}/\": {expected}", server.address);
        assert_eq!(outcome, failure(expected), "{reply:?}");
    }
}

#[tokio::test]
async fn a_reset_connection_is_named_with_both_ends() {
    let (outcome, _, server) = probe("/", vec![Reply::reset()]).await;
    let ProbeOutcome::Failure(text) = outcome else { panic!("{outcome:?}") };
    let start = format!("Get \"http://{0}/\": read tcp 127.0.0.1:", server.address);
    let end = format!("->{}: read: connection reset by peer", server.address);
    assert!(text.starts_with(&start) && text.ends_with(&end), "{text}");
}

#[tokio::test]
async fn a_refused_connection_and_an_unknown_host_have_gos_words() {
    let mut target = target(&Server::start(Vec::new()).await, "/x");
    target.port = support::unused_port();
    let at = format!("127.0.0.1:{}", target.port);
    let expected = format!("Get \"http://{at}/x\": dial tcp {at}: connect: connection refused");
    assert_eq!(client().http_probe(&target, TIME).await, failure(expected));

    // A label this long is refused before anybody is asked.
    let name = format!("{}.invalid", "x".repeat(70));
    let expected =
        format!("Get \"http://{name}:{}/x\": dial tcp: lookup {name}: no such host", target.port);
    target.host = name;
    assert_eq!(client().http_probe(&target, TIME).await, failure(expected));
}

#[tokio::test]
async fn slowness_before_and_within_the_response() {
    let server = Server::start(vec![Reply::hang(b"")]).await;
    let expected = format!(
        "Get \"http://{}/\": context deadline exceeded (Client.Timeout exceeded while awaiting \
         headers)",
        server.address
    );
    assert_eq!(client().http_probe(&target(&server, "/"), SHORT).await, failure(expected));

    let partial = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\npart";
    let server = Server::start(vec![Reply::hang(partial)]).await;
    let expected = ProbeOutcome::Error {
        state: ErroredAs::Failure,
        message: "context deadline exceeded (Client.Timeout or context cancellation while reading \
                  body)"
            .to_owned(),
    };
    assert_eq!(client().http_probe(&target(&server, "/"), SHORT).await, expected);

    let (outcome, ..) = probe("/", vec![Reply::new(partial)]).await;
    let expected =
        ProbeOutcome::Error { state: ErroredAs::Failure, message: "unexpected EOF".to_owned() };
    assert_eq!(outcome, expected);
}

#[tokio::test]
async fn time_wait_stays_with_the_server() {
    let (outcome, _, server) = probe("/", vec![Reply::new(OK)]).await;
    assert_eq!(outcome, success("fine"));
    assert_eq!(support::time_wait_towards(server.address.port()), 0);
}

#[tokio::test]
async fn ipv6_hosts_are_bracketed() {
    let mut server = Server::start_at("[::1]:0", vec![Reply::new(OK)]).await;
    assert_eq!(client().http_probe(&target(&server, "/"), TIME).await, success("fine"));
    let host = format!("\r\nHost: [::1]:{}\r\n", server.address.port());
    assert!(server.requests()[0].contains(&host));
}

#[tokio::test]
async fn nobodys_certificate_matters() {
    let mut server = Server::start_tls(vec![Reply::new(OK)]).await;
    let mut target = target(&server, "/");
    target.scheme = Scheme::Https;
    assert_eq!(client().http_probe(&target, TIME).await, success("fine"));
    assert!(server.requests()[0].starts_with("GET / HTTP/1.1\r\n"));
}

#[tokio::test]
async fn tls_where_there_is_none() {
    for (reply, expected) in [
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "http: server gave HTTP response to HTTPS client"),
        ("220 smtp ready\r\n", "tls: first record does not look like a TLS handshake"),
    ] {
        let server = Server::start_blurting(reply).await;
        let mut target = target(&server, "/");
        target.scheme = Scheme::Https;
        let expected = format!("Get \"https://{}/\": {expected}", server.address);
        assert_eq!(client().http_probe(&target, TIME).await, failure(expected));
    }
}

#[tokio::test]
async fn hooks_take_any_status_and_fall_back_to_http() {
    let server = Server::start(vec![Reply::new("HTTP/1.1 500 Sorry\r\n\r\n")]).await;
    let mut target = target(&server, "/");
    target.purpose = Purpose::LifecycleHook;
    let answer = client().http_hook(&target).await.unwrap();
    assert_eq!(answer, HookResponse { fell_back_to_http: false });

    // A client hello is no request: the first connection gets the first reply as it stands.
    let mut server = Server::start(vec![
        Reply::at_once("HTTP/1.1 400 Bad Request\r\n\r\n"),
        Reply::new("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nshort"),
    ])
    .await;
    target.port = server.address.port();
    target.scheme = Scheme::Https;
    target.headers = headers(&[("Authorization", "Bearer secret"), ("X-Kept", "yes")]);
    let answer = client().http_hook(&target).await.unwrap();
    assert_eq!(answer, HookResponse { fell_back_to_http: true });
    let requests = server.requests();
    let request = requests.last().unwrap();
    assert!(request.contains("\r\nX-Kept: yes\r\n"), "{request}");
    assert!(request.contains("\r\nUser-Agent: kube-lifecycle/1.36\r\n"), "{request}");
    assert!(!request.contains("secret"), "{request}");
}

#[test]
fn targets_resolve_from_the_spec() {
    let action = HTTPGetAction {
        host: None,
        http_headers: Some(vec![HTTPHeader { name: "A".to_owned(), value: "b".to_owned() }]),
        path: Some("/p?q".to_owned()),
        port: IntOrString::Int(80),
        scheme: Some("HTTPS".to_owned()),
    };
    let target =
        HttpTarget::new(&action, &Container::default(), "fd00::1", Purpose::Probe).unwrap();
    assert_eq!((target.scheme, target.host.as_str(), target.port), (Scheme::Https, "fd00::1", 80));
    assert_eq!(target.authority(), "[fd00::1]:80");
    let action = HTTPGetAction { host: Some("other".to_owned()), ..action };
    let target =
        HttpTarget::new(&action, &Container::default(), "fd00::1", Purpose::Probe).unwrap();
    assert_eq!(target.host, "other");
}
