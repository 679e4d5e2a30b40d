//! `tcpSocket` and `grpc` against loopback servers.

#![allow(clippy::unwrap_used)] // Clippy takes helpers outside of test functions for production code.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rubelet_container_http::{ContainerClient, ProbeOutcome};
use tokio::net::TcpListener;

mod support;

const TIME: Duration = Duration::from_secs(10);

fn client() -> ContainerClient {
    ContainerClient::new("1.36")
}

fn failure(text: impl Into<String>) -> ProbeOutcome {
    ProbeOutcome::Failure(text.into())
}

#[tokio::test]
async fn connecting_is_enough_for_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let outcome = client().tcp_probe("127.0.0.1", port, TIME).await;
    assert_eq!(outcome, ProbeOutcome::Success(String::new()));

    drop(listener);
    let outcome = client().tcp_probe("127.0.0.1", port, TIME).await;
    let expected = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(outcome, failure(expected));
}

#[tokio::test]
async fn nobody_answers() {
    // A listener whose queue is full drops further connection requests.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    let short = Duration::from_millis(100);
    while let Ok(Ok(stream)) =
        tokio::time::timeout(short, tokio::net::TcpStream::connect(address)).await
    {
        queued.push(stream);
    }
    let outcome = client().tcp_probe("127.0.0.1", address.port(), short).await;
    assert_eq!(outcome, failure(format!("dial tcp {address}: i/o timeout")));
    let outcome = client().grpc_probe("127.0.0.1", address.port(), "", short).await;
    let expected = format!(
        "timeout: failed to connect service \"{address}\" within 100ms: context deadline exceeded"
    );
    assert_eq!(outcome, failure(expected));
}

/// Serves one connection; `answer` maps the name of the service asked for to the message and the
/// gRPC code.
async fn serve_health(answer: fn(&str) -> (Option<u8>, &'static str, &'static str)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(move |request: Request<Incoming>| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            let agent = request.headers()["user-agent"].to_str().unwrap().to_owned();
            assert!(agent.starts_with("kube-probe/1.36 "), "{agent}");
            let message = request.into_body().collect().await.unwrap().to_bytes();
            // Five bytes of framing; then field 1, a string, unless it is empty.
            let name = message.get(7..).map(|name| String::from_utf8(name.to_vec()).unwrap());
            let (status, code, text) = answer(name.as_deref().unwrap_or(""));
            let body = match status {
                Some(status) => Bytes::from(vec![0, 0, 0, 0, 2, 8, status]),
                None => Bytes::new(),
            };
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static(code));
            trailers.insert("grpc-message", HeaderValue::from_static(text));
            let body = Full::new(body).with_trailers(async move { Some(Ok(trailers)) });
            Ok::<_, Infallible>(
                Response::builder().header("content-type", "application/grpc").body(body).unwrap(),
            )
        });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), service)
            .await;
    });
    address
}

#[tokio::test]
async fn only_serving_is_healthy() {
    for (service, expected) in [
        ("", ProbeOutcome::Success("service healthy".to_owned())),
        ("down", failure("service unhealthy (responded with \"NOT_SERVING\")")),
        ("new", failure("service unhealthy (responded with \"UNKNOWN\")")),
        (
            "absent",
            failure(
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
        ),
        (
            "old",
            failure(
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): unknown service grpc.health.v1.Health",
            ),
        ),
        ("slow", failure("timeout: health rpc did not complete within 10s")),
    ] {
        let address = serve_health(|service| match service {
            "" => (Some(1), "0", ""),
            "down" => (Some(2), "0", ""),
            "new" => (Some(0), "0", ""),
            "absent" => (None, "5", "unknown service"),
            "slow" => (None, "4", "deadline"),
            _ => (None, "12", "unknown service grpc.health.v1.Health"),
        })
        .await;
        let outcome = client().grpc_probe("127.0.0.1", address.port(), service, TIME).await;
        assert_eq!(outcome, expected, "{service}");
    }
}

#[tokio::test]
async fn a_server_that_never_answers_the_rpc_is_slow() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let outcome = client().grpc_probe("127.0.0.1", port, "", Duration::from_millis(100)).await;
    assert_eq!(outcome, failure("timeout: health rpc did not complete within 100ms"));
}

#[tokio::test]
async fn a_refused_grpc_probe_says_so_at_once_when_there_is_no_time_to_dial_again() {
    let port = support::unused_port();
    let outcome = client().grpc_probe("127.0.0.1", port, "", Duration::from_secs(1)).await;
    let expected = format!(
        "error: failed to connect service at \"127.0.0.1:{port}\": dial tcp 127.0.0.1:{port}: \
         connect: connection refused"
    );
    assert_eq!(outcome, failure(expected));
}
