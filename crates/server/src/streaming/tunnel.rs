//! A SPDY connection within a WebSocket: the messages are its bytes.

use std::io;
use std::time::Duration;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::relay::{Activity, PIECE};
use super::upgrade::{Answer, ask, forwarded_headers};
use super::websocket::{self, TUNNEL_PREFIX, protocols, tunneled};
use super::{Session, failed};

/// The protocol within SPDY.
pub(super) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// What is asked for in `Upgrade`.
pub(super) const SPDY: HeaderValue = HeaderValue::from_static("SPDY/3.1");

/// How long saying goodbye may take.
const GOODBYE: Duration = Duration::from_secs(10);

/// Joins a WebSocket that carries SPDY with the streaming server's SPDY.
pub(super) async fn tunnel(mut request: Request, url: &str, session: Session) -> Response {
    let mut headers = forwarded_headers(&request);
    for name in [
        header::SEC_WEBSOCKET_PROTOCOL,
        header::SEC_WEBSOCKET_KEY,
        header::SEC_WEBSOCKET_VERSION,
        header::SEC_WEBSOCKET_EXTENSIONS,
        STREAM_PROTOCOL,
    ] {
        headers.remove(name);
    }
    headers.insert(header::UPGRADE, SPDY);
    for name in tunneled(&protocols(request.headers())) {
        if let Ok(value) = HeaderValue::from_str(name) {
            headers.append(STREAM_PROTOCOL, value);
        }
    }
    let (parts, runtime) = match ask(url, Method::POST, headers).await {
        Ok(Answer::Switched(parts, runtime)) => (parts, runtime),
        Ok(Answer::Refused(response)) => return response,
        Err(error) => {
            tracing::error!(%error, "Error while proxying request");
            return failed(error);
        }
    };
    let spoken = parts.headers.get(STREAM_PROTOCOL).and_then(|value| value.to_str().ok());
    let protocol = spoken.map(|name| HeaderValue::from_str(&format!("{TUNNEL_PREFIX}{name}")));
    let Ok(protocol) = protocol.transpose() else {
        return (StatusCode::BAD_GATEWAY, "the runtime speaks no known protocol\n").into_response();
    };
    let (response, caller) = match websocket::accept(&mut request, protocol) {
        Ok(accepted) => accepted,
        Err(refusal) => return refusal.into_response(),
    };
    let activity = Activity::new(session.idle);
    session.spawn(async move {
        if let Err(error) = carry(caller, runtime, &activity).await {
            tracing::debug!(%error, "port forwarding session ended");
        }
    });
    response
}

async fn carry(caller: OnUpgrade, runtime: OnUpgrade, activity: &Activity) -> io::Result<()> {
    let (caller, runtime) = tokio::try_join!(caller, runtime).map_err(io::Error::other)?;
    let (mut sink, source) = websocket::open(caller).await.split();
    let (from_runtime, to_runtime) = split(TokioIo::new(runtime));
    // Either end is the end: what SPDY connections have to say to the last is said in frames.
    let ended = tokio::select! {
        ended = unpack(source, to_runtime, activity) => ended,
        ended = pack(from_runtime, &mut sink, activity) => ended,
        () = activity.until_idle() => Ok(()),
    };
    // Whoever does not read does not hold this up.
    let _ = timeout(GOODBYE, sink.send(websocket::goodbye())).await;
    ended
}

async fn unpack(
    mut messages: impl Stream<Item = Result<Message, SocketError>> + Unpin,
    mut to: impl AsyncWrite + Unpin,
    activity: &Activity,
) -> io::Result<()> {
    while let Some(message) = messages.next().await {
        activity.touch();
        match message.map_err(io::Error::other)? {
            Message::Binary(bytes) => {
                to.write_all(&bytes).await?;
                to.flush().await?;
            }
            Message::Text(_) => return Err(io::Error::other("a text message carries no SPDY")),
            Message::Close(_) => break,
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
    Ok(())
}

async fn pack(
    mut from: impl AsyncRead + Unpin,
    messages: &mut (impl Sink<Message, Error = SocketError> + Unpin),
    activity: &Activity,
) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        let length = from.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        activity.touch();
        let message = Message::Binary(Bytes::copy_from_slice(&piece[..length]));
        messages.send(message).await.map_err(io::Error::other)?;
        activity.touch();
    }
}
