//! The server's side of a WebSocket.

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::relay::PIECE;
use super::upgrade::is_upgrade;

/// The sub-protocol with channels that can be closed one by one.
pub(super) const CHANNELS: &str = "v5.channel.k8s.io";
/// Begins the names of sub-protocols that carry a SPDY connection.
pub(super) const TUNNEL_PREFIX: &str = "SPDY/3.1+";
const TUNNEL_SUFFIX: &str = ".k8s.io";

/// How large a message may be, in bytes: as large as the Go kubelet takes.
const MAX_MESSAGE: usize = 32 << 20;

/// Fixed by RFC 6455.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// What a request wants its connection to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// A WebSocket with [`CHANNELS`].
    Channels,
    /// A WebSocket that carries SPDY.
    Tunnel,
    /// Any other WebSocket.
    OtherWebSocket,
    /// SPDY, or nothing at all.
    Other,
}

impl Dialect {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let upgrade = headers.get(header::UPGRADE).and_then(|value| value.to_str().ok());
        let is_websocket = upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"));
        if !is_websocket || !is_upgrade(headers) {
            return Self::Other;
        }
        let protocols = protocols(headers);
        if protocols.contains(&CHANNELS) {
            Self::Channels
        } else if tunneled(&protocols).next().is_some() {
            Self::Tunnel
        } else {
            Self::OtherWebSocket
        }
    }
}

/// The sub-protocols that the caller would speak.
pub(super) fn protocols(headers: &HeaderMap) -> Vec<&str> {
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect()
}

/// Those within a SPDY connection that these would carry.
pub(super) fn tunneled<'a>(protocols: &[&'a str]) -> impl Iterator<Item = &'a str> {
    protocols
        .iter()
        .filter(|name| name.ends_with(TUNNEL_SUFFIX))
        .filter_map(|name| name.strip_prefix(TUNNEL_PREFIX))
}

/// A request for a WebSocket that cannot become one.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoWebSocket(StatusCode);

impl IntoResponse for NoWebSocket {
    fn into_response(self) -> Response {
        let supported = [(header::SEC_WEBSOCKET_VERSION, "13")];
        let text = self.0.canonical_reason().unwrap_or_default();
        (self.0, supported, text).into_response()
    }
}

/// Agrees to a WebSocket with the sub-protocol `protocol`: the answer, and what comes after it.
///
/// # Errors
///
/// The request is none for a WebSocket.
pub(super) fn accept(
    request: &mut Request,
    protocol: Option<HeaderValue>,
) -> Result<(Response, OnUpgrade), NoWebSocket> {
    let headers = request.headers();
    let version = headers.get(header::SEC_WEBSOCKET_VERSION);
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let (Some(key), true) = (key, version.is_some_and(|version| version == "13")) else {
        return Err(NoWebSocket(StatusCode::BAD_REQUEST));
    };
    if request.method() != Method::GET {
        return Err(NoWebSocket(StatusCode::METHOD_NOT_ALLOWED));
    }
    let accepted = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key.as_bytes(), GUID.as_bytes()].concat());
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(value) = HeaderValue::from_str(&STANDARD.encode(accepted)) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, value);
    }
    if let Some(protocol) = protocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok((response, hyper::upgrade::on(request)))
}

/// The WebSocket on a connection that was agreed to become one.
pub(super) async fn open(connection: Upgraded) -> WebSocketStream<TokioIo<Upgraded>> {
    let config = WebSocketConfig::default()
        .read_buffer_size(PIECE)
        .write_buffer_size(PIECE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    WebSocketStream::from_raw_socket(TokioIo::new(connection), Role::Server, Some(config)).await
}

/// The last message of an orderly end. Without a reason Go's clients take it for a failure.
pub(super) fn goodbye() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut builder = http::Request::get("/exec/ns/pod/c");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(Body::empty()).unwrap()
    }

    #[test]
    fn what_a_caller_speaks_is_told_by_its_headers() {
        let websocket = [("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")];
        for (protocol, expected) in [
            ("v5.channel.k8s.io, v4.channel.k8s.io", Dialect::Channels),
            ("v4.channel.k8s.io,v5.channel.k8s.io", Dialect::Channels),
            ("SPDY/3.1+portforward.k8s.io", Dialect::Tunnel),
            ("SPDY/3.1+example.com", Dialect::OtherWebSocket),
            ("v4.channel.k8s.io", Dialect::OtherWebSocket),
            ("", Dialect::OtherWebSocket),
        ] {
            let request =
                request(&[&websocket[..], &[("sec-websocket-protocol", protocol)]].concat());
            assert_eq!(Dialect::of(request.headers()), expected, "{protocol}");
        }
        for headers in [
            &[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")][..],
            &[("upgrade", "websocket"), ("sec-websocket-protocol", CHANNELS)],
            &[],
        ] {
            assert_eq!(Dialect::of(request(headers).headers()), Dialect::Other, "{headers:?}");
        }
    }

    #[test]
    fn the_key_is_answered_as_the_standard_says() {
        // The example of RFC 6455.
        let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let mut asked = request(&[key, ("sec-websocket-version", "13")]);
        let protocol = HeaderValue::from_static(CHANNELS);
        let (response, _) = accept(&mut asked, Some(protocol)).unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(response.headers()["sec-websocket-protocol"], CHANNELS);
        for headers in [&[key, ("sec-websocket-version", "8")][..], &[key], &[]] {
            let refused = accept(&mut request(headers), None).map(drop).unwrap_err();
            assert_eq!(refused.0, StatusCode::BAD_REQUEST, "{headers:?}");
        }
    }
}
