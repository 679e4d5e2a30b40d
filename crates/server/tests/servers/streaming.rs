//! Connections into containers, with a small streaming server in place of the runtime's.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use hyper::upgrade::Upgraded;
use rubelet_metrics::{Format, Registry};
use tokio::net::TcpListener;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::*;

/// One connection of a streaming server: what it was asked, and the bytes after its answer.
struct Asked {
    head: String,
    stream: TcpStream,
}

/// Listens as a runtime's streaming server, and answers the first request with `answer`.
async fn runtime(answer: &'static str) -> (String, JoinHandle<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        Asked { head: String::from_utf8(head).unwrap().to_ascii_lowercase(), stream }
    });
    (url, asked)
}

const SPDY_AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                           Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

async fn secure_at(streaming: String) -> Secure {
    let node = Arc::new(Node { streaming, ..Node::default() });
    Secure::start_with(node, true, MinTlsVersion::Tls12).await
}

/// Sends a request, and gives what it was answered and the connection if it was agreed.
async fn upgrade(
    secure: &Secure,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, HeaderMap, Result<TokioIo<Upgraded>, String>) {
    let stream = secure.connect(secure.stranger()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut request = request(method, path);
    for (name, value) in headers {
        let name = http::HeaderName::from_bytes(name.as_bytes()).unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    let mut response = sender.send_request(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
        return (status, headers, Ok(TokioIo::new(upgraded)));
    }
    (status, headers, Err(read(response).await.1))
}

const SPDY: [(&str, &str); 4] = [
    ("connection", "Upgrade"),
    ("upgrade", "SPDY/3.1"),
    ("x-stream-protocol-version", "v4.channel.k8s.io"),
    ("authorization", "Bearer secret"),
];

fn websocket(protocol: &str) -> [(&str, &str); 5] {
    [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-protocol", protocol),
    ]
}

async fn channels(stream: TokioIo<Upgraded>) -> WebSocketStream<TokioIo<Upgraded>> {
    WebSocketStream::from_raw_socket(stream, Role::Client, None).await
}

async fn next(socket: &mut WebSocketStream<TokioIo<Upgraded>>) -> Vec<u8> {
    match timeout(PATIENCE, socket.next()).await.unwrap() {
        Some(Ok(Message::Binary(bytes))) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn bytes_are_passed_on_in_both_directions_and_so_are_ends() {
    let (url, asked) = runtime(SPDY_AGREED).await;
    let secure = secure_at(url).await;
    let path = "/exec/default/web/c?command=sh&input=1&output=1";
    let (status, headers, stream) = upgrade(&secure, Method::POST, path, &SPDY).await;
    assert_eq!(status, StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(headers["upgrade"], "SPDY/3.1");
    assert_eq!(headers["x-stream-protocol-version"], "v4.channel.k8s.io");
    let (mut caller, Asked { head, stream: mut runtime }) = (stream.unwrap(), asked.await.unwrap());
    assert!(head.starts_with("post /exec http/1.1\r\n"), "{head}");
    assert!(head.contains("upgrade: spdy/3.1\r\n"), "{head}");
    assert!(head.contains("x-stream-protocol-version: v4.channel.k8s.io\r\n"), "{head}");
    assert!(!head.contains("secret"), "{head}");
    // All bytes there are, more than any buffer holds.
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let mut received = vec![0; bytes.len()];
    let sends = caller.write_all(&bytes);
    let (sent, read) = tokio::join!(sends, runtime.read_exact(&mut received));
    sent.unwrap();
    read.unwrap();
    assert_eq!(received, bytes);
    caller.shutdown().await.unwrap();
    assert_eq!(timeout(PATIENCE, runtime.read(&mut [0])).await.unwrap().unwrap(), 0);
    runtime.write_all(b"the last word").await.unwrap();
    drop(runtime);
    let mut last = String::new();
    timeout(PATIENCE, caller.read_to_string(&mut last)).await.unwrap().unwrap();
    assert_eq!(last, "the last word");
}

#[tokio::test]
async fn requests_that_cannot_be_served_say_why() {
    let secure = secure_at(String::new()).await;
    let pod = |uid: &str| format!("PodTarget {{ namespace: \"n\", name: \"p\", uid: {uid} }}");
    let target = |uid| format!("ContainerTarget {{ pod: {}, container: \"c\" }}", pod(uid));
    let exec = format!(
        "exec ({}, [\"ls\"], StreamOptions {{ stdin: false, stdout: true, stderr: false, tty: true \
         }})",
        target("None")
    );
    let attach = format!(
        "attach ({}, StreamOptions {{ stdin: true, stdout: false, stderr: true, tty: false }})",
        target("Some(\"u\")")
    );
    let none = "you must specify at least 1 of stdin, stdout, stderr";
    let v4 = websocket("v4.channel.k8s.io");
    for (path, headers, status, text) in [
        ("/exec/n/p/c?command=ls", &SPDY[..], 400, none.to_owned()),
        ("/attach/n/p/c?input=yes", &SPDY, 400, none.to_owned()),
        ("/exec/n/p/c?command=ls&output=1&error=1&tty=1", &SPDY, 500, exec),
        ("/attach/n/p/u/c?input=1&error=1", &SPDY, 500, attach),
        ("/portForward/n/p", &SPDY, 500, format!("portforward ({}, [])", pod("None"))),
        ("/portForward/n/p", &v4, 400, "query parameter \"port\" is required".to_owned()),
        (
            "/portForward/n/p/u?port=80,443",
            &v4,
            500,
            format!("portforward ({}, [80, 443])", pod("Some(\"u\")")),
        ),
    ] {
        let answer = upgrade(&secure, Method::GET, path, headers).await;
        assert_eq!((answer.0.as_u16(), answer.2.unwrap_err()), (status, text), "{path}");
    }

    // Nobody is there, and nobody asks to be connected.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let secure = secure_at(url).await;
    let path = "/exec/n/p/c?command=ls&output=1";
    let (status, _, answer) = upgrade(&secure, Method::GET, path, &SPDY).await;
    let text = answer.unwrap_err();
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text.starts_with("error dialing backend: "), "{text}");
    let (status, _, answer) = upgrade(&secure, Method::GET, path, &[]).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.unwrap_err(), "Upgrade request required\n");
}

#[tokio::test]
async fn a_refusal_of_the_runtime_is_passed_on() {
    for (answer, status, text) in [
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone", 404, "gone"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
            500,
            "invalid upgrade response: status code 200\n",
        ),
    ] {
        let (url, _asked) = runtime(answer).await;
        let secure = secure_at(url).await;
        let path = "/attach/n/p/c?output=1";
        let (code, _, body) = upgrade(&secure, Method::POST, path, &SPDY).await;
        assert_eq!((code.as_u16(), body.unwrap_err().as_str()), (status, text));
    }
}

/// A frame of SPDY data.
fn data(stream: u8, last: bool, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0, 0, 0, stream, u8::from(last), 0, length[0], length[1]], bytes].concat()
}

async fn expect(stream: &mut TcpStream, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    timeout(PATIENCE, stream.read_exact(&mut read)).await.unwrap().unwrap();
    assert_eq!(read, bytes);
}

#[tokio::test]
async fn channels_of_a_websocket_become_streams() {
    let (url, asked) = runtime(SPDY_AGREED).await;
    let secure = secure_at(url).await;
    let path = "/exec/n/p/c?command=sh&input=1&output=1&tty=1";
    let headers = websocket("v5.channel.k8s.io,v4.channel.k8s.io");
    let (status, headers, stream) = upgrade(&secure, Method::GET, path, &headers).await;
    assert_eq!(status, StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(headers["sec-websocket-protocol"], "v5.channel.k8s.io");
    assert_eq!(headers["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let mut socket = channels(stream.unwrap()).await;
    assert_eq!(next(&mut socket).await, [1], "a sign that it stands");
    let Asked { head, stream: mut runtime } = asked.await.unwrap();
    assert!(head.starts_with("post /exec http/1.1\r\n"), "{head}");
    let counted = |name: &str| {
        let text = Registry::new().with(secure.metrics.clone()).expose(Format::Prometheus);
        let of_exec = |line: &&str| line.starts_with(name) && line.contains("=\"exec\"");
        text.lines().find(of_exec).and_then(|line| line.rsplit_once(' ')?.1.parse::<u32>().ok())
    };
    assert_eq!(counted("kubelet_websocket_streaming_requests_total"), Some(1));
    assert_eq!(counted("kubelet_http_inflight_requests"), Some(1), "as long as its session");
    assert_eq!(counted("kubelet_http_requests_duration_seconds_count"), None);
    // Four streams are opened: the end, input, output and the terminal's size.
    for kind in ["error", "stdin", "stdout", "resize"] {
        let mut start = [0; 8];
        runtime.read_exact(&mut start).await.unwrap();
        assert_eq!(start[..4], [0x80, 3, 0, 1]);
        let mut rest = vec![0; usize::from(start[7])];
        runtime.read_exact(&mut rest).await.unwrap();
        let end = [kind.as_bytes(), b"\0\0\0\xff\xff"].concat();
        assert!(rest.ends_with(&end), "{kind} {rest:?}");
    }
    for message in [&b"\x00ls\n"[..], b"\x04{\"Width\":80,\"Height\":24}", b"\xff\x00", b"\x00late"]
    {
        socket.send(Message::Binary(message.to_vec().into())).await.unwrap();
    }
    expect(&mut runtime, &data(3, false, b"ls\n")).await;
    expect(&mut runtime, &data(7, false, b"{\"Width\":80,\"Height\":24}")).await;
    expect(&mut runtime, &data(3, true, b"")).await;
    // A ping, output, how it ended, and the ends of both.
    let status = b"{\"status\":\"Success\"}";
    for frame in [
        b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x02".to_vec(),
        data(5, false, b"a\n"),
        data(1, false, status),
        data(1, true, b""),
        data(5, true, b"b\n"),
    ] {
        runtime.write_all(&frame).await.unwrap();
    }
    expect(&mut runtime, b"\x80\x03\0\x06\0\0\0\x04\0\0\0\x02").await;
    assert_eq!(next(&mut socket).await, b"\x01a\n");
    assert_eq!(next(&mut socket).await, b"\x01b\n");
    assert_eq!(next(&mut socket).await, [b"\x03", &status[..]].concat(), "the end comes last");
    let last = timeout(PATIENCE, socket.next()).await.unwrap();
    assert!(
        matches!(&last, Some(Ok(Message::Close(Some(close)))) if close.code == CloseCode::Normal),
        "{last:?}"
    );
    assert_eq!(timeout(PATIENCE, runtime.read(&mut [0])).await.unwrap().unwrap(), 0);
    let over = async {
        while counted("kubelet_http_inflight_requests") != Some(0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, over).await.unwrap();
    assert_eq!(counted("kubelet_http_requests_duration_seconds_count"), Some(1));
}

#[tokio::test]
async fn what_goes_wrong_behind_a_websocket_is_told_as_its_end() {
    for answer in ["HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone", SPDY_AGREED] {
        let (url, asked) = runtime(answer).await;
        let secure = secure_at(url).await;
        let path = "/attach/n/p/c?error=1";
        let headers = websocket("v5.channel.k8s.io");
        let (_, _, stream) = upgrade(&secure, Method::GET, path, &headers).await;
        let mut socket = channels(stream.unwrap()).await;
        assert_eq!(next(&mut socket).await, [2]);
        // It goes away without a word.
        drop(asked.await.unwrap());
        let end = next(&mut socket).await;
        let status: Value = serde_json::from_slice(&end[1..]).unwrap();
        assert_eq!(
            (end[0], &status["status"], &status["code"]),
            (3, &json!("Failure"), &json!(500))
        );
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with("Internal error occurred: "), "{message}");
    }
}

#[tokio::test]
async fn a_caller_who_leaves_ends_the_session() {
    let (url, asked) = runtime(SPDY_AGREED).await;
    let secure = secure_at(url).await;
    let path = "/attach/n/p/c?output=1";
    let headers = websocket("v5.channel.k8s.io");
    let (_, _, stream) = upgrade(&secure, Method::GET, path, &headers).await;
    let mut runtime = asked.await.unwrap().stream;
    drop(stream);
    let mut rest = Vec::new();
    timeout(PATIENCE, runtime.read_to_end(&mut rest)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_websocket_carries_spdy() {
    const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                          Upgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: portforward.k8s.io\r\n\r\n";
    let (url, asked) = runtime(AGREED).await;
    let secure = secure_at(url).await;
    let headers = websocket("SPDY/3.1+portforward.k8s.io");
    let (status, headers, stream) =
        upgrade(&secure, Method::GET, "/portForward/n/p", &headers).await;
    assert_eq!(status, StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(headers["sec-websocket-protocol"], "SPDY/3.1+portforward.k8s.io");
    let Asked { head, stream: mut runtime } = asked.await.unwrap();
    assert!(head.starts_with("post /portforward http/1.1\r\n"), "{head}");
    assert!(head.contains("upgrade: spdy/3.1\r\n"), "{head}");
    assert!(head.contains("x-stream-protocol-version: portforward.k8s.io\r\n"), "{head}");
    assert!(!head.contains("sec-websocket"), "{head}");
    let mut socket = channels(stream.unwrap()).await;
    socket.send(Message::Binary(b"to the runtime".to_vec().into())).await.unwrap();
    expect(&mut runtime, b"to the runtime").await;
    runtime.write_all(b"and back").await.unwrap();
    assert_eq!(next(&mut socket).await, b"and back");
    drop(runtime);
    let last = timeout(PATIENCE, socket.next()).await.unwrap();
    assert!(
        matches!(&last, Some(Ok(Message::Close(Some(close)))) if close.code == CloseCode::Normal),
        "{last:?}"
    );
}

#[tokio::test]
async fn other_websockets_are_passed_on_as_they_are() {
    const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                          Upgrade: websocket\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
    let (url, asked) = runtime(AGREED).await;
    let secure = secure_at(url).await;
    let headers = websocket("v4.channel.k8s.io");
    let path = "/exec/n/p/c?command=ls&output=1";
    let (status, headers, stream) = upgrade(&secure, Method::GET, path, &headers).await;
    assert_eq!(status, StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(headers["sec-websocket-protocol"], "v4.channel.k8s.io");
    let Asked { head, stream: mut runtime } = asked.await.unwrap();
    assert!(head.starts_with("get /exec http/1.1\r\n"), "{head}");
    let key = STANDARD.encode("the sample nonce").to_ascii_lowercase();
    assert!(head.contains(&format!("sec-websocket-key: {key}\r\n")), "{head}");
    runtime.write_all(b"\x82\x01x").await.unwrap();
    let mut frame = [0; 3];
    stream.unwrap().read_exact(&mut frame).await.unwrap();
    assert_eq!(&frame, b"\x82\x01x");
}
