//! The connection to the runtime's streaming server, and passing an upgraded connection on to it.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::relay::{Activity, relay};
use super::{Session, failed, upgrade_required};

/// How long the streaming server may take to accept a connection and to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The connection to a streaming server cannot be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("error dialing backend: {url:?} is no address of a streaming server")]
    Url { url: String },
    #[error("error dialing backend: {source}")]
    Connect { source: io::Error },
    #[error("error dialing backend: no certificate of an authority to trust")]
    NoAuthority,
    #[error("error sending request: {source}")]
    Send { source: hyper::Error },
    #[error("error sending request: no answer within {} s", ANSWER_TIMEOUT.as_secs())]
    TimedOut,
}

impl DialError {
    fn connect(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Connect { source: io::Error::other(error) }
    }
}

/// The headers by which one side asks for, and the other grants, another protocol.
pub(super) fn is_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.to_ascii_lowercase().contains("upgrade"))
}

/// What a streaming server answered.
pub(super) enum Answer {
    /// It speaks the other protocol from now on.
    Switched(http::response::Parts, OnUpgrade),
    /// It does not.
    Refused(Response),
}

/// Asks the streaming server at `url` for another protocol.
pub(super) async fn ask(
    url: &str,
    method: Method,
    headers: HeaderMap,
) -> Result<Answer, DialError> {
    timeout(ANSWER_TIMEOUT, ask_now(url, method, headers)).await.unwrap_or(Err(DialError::TimedOut))
}

async fn ask_now(url: &str, method: Method, headers: HeaderMap) -> Result<Answer, DialError> {
    let bad_url = || DialError::Url { url: url.to_owned() };
    let uri: Uri = if url.contains("://") { url.parse() } else { format!("http://{url}").parse() }
        .map_err(|_| bad_url())?;
    let host = uri.host().ok_or_else(bad_url)?;
    let is_tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad_url()),
    };
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let stream =
        TcpStream::connect((host, port)).await.map_err(|source| DialError::Connect { source })?;
    // Keys that are typed are small.
    let _ = stream.set_nodelay(true);
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let mut request = http::Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().map_err(|_| bad_url())?;
    *request.headers_mut() = headers;
    if is_tls {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| bad_url())?;
        let config =
            tokio::task::spawn_blocking(client_config).await.map_err(DialError::connect)??;
        let stream = TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(|source| DialError::Connect { source })?;
        exchange(stream, request).await
    } else {
        exchange(stream, request).await
    }
}

/// Trusts whom the system trusts, as the Go kubelet does. A streaming server with TLS is rare, and
/// is on this machine, so that nothing is kept for the next time.
fn client_config() -> Result<Arc<ClientConfig>, DialError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(DialError::NoAuthority);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(DialError::connect)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: http::Request<Body>,
) -> Result<Answer, DialError> {
    let send = |source| DialError::Send { source };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(send)?;
    // It ends with the connection: when the upgraded one is dropped, or the answer was read.
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "the connection to the streaming server ended");
        }
    });
    let response: http::Response<Incoming> = sender.send_request(request).await.map_err(send)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let mut response = response;
        let upgrade = hyper::upgrade::on(&mut response);
        let (parts, _) = response.into_parts();
        return Ok(Answer::Switched(parts, upgrade));
    }
    if response.status().as_u16() < 400 {
        let code = response.status().as_u16();
        return Ok(Answer::Refused(failed(format!(
            "invalid upgrade response: status code {code}"
        ))));
    }
    let mut response = response.map(Body::new);
    for name in hop_by_hop() {
        response.headers_mut().remove(name);
    }
    Ok(Answer::Refused(response))
}

/// What concerns one connection only, but for the change of protocols.
fn hop_by_hop() -> [HeaderName; 4] {
    [
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
        HeaderName::from_static("keep-alive"),
    ]
}

/// The headers to send on: the caller's own, and who he is. His credentials are the kubelet's
/// business.
pub(super) fn forwarded_headers(request: &Request) -> HeaderMap {
    let mut headers = request.headers().clone();
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::AUTHORIZATION);
    if !headers.contains_key(header::HOST) {
        // HTTP/1.1 wants one, and the streaming server does not care which.
        headers.insert(header::HOST, HeaderValue::from_static("localhost"));
    }
    headers
}

/// Both ends, once both have changed protocols.
pub(super) async fn both(
    caller: OnUpgrade,
    runtime: OnUpgrade,
) -> Result<(TokioIo<Upgraded>, TokioIo<Upgraded>), hyper::Error> {
    let (caller, runtime) = tokio::try_join!(caller, runtime)?;
    Ok((TokioIo::new(caller), TokioIo::new(runtime)))
}

/// Joins the caller's connection with the streaming server's, without a look at what they speak.
pub(super) async fn pass_on(mut request: Request, url: &str, session: Session) -> Response {
    if let Some(refusal) = upgrade_required(&request) {
        return refusal;
    }
    let caller = hyper::upgrade::on(&mut request);
    let answer = ask(url, request.method().clone(), forwarded_headers(&request)).await;
    let (parts, runtime) = match answer {
        Ok(Answer::Switched(parts, runtime)) => (parts, runtime),
        Ok(Answer::Refused(response)) => return response,
        Err(error) => {
            tracing::error!(%error, "Error while proxying request");
            return failed(error);
        }
    };
    let idle = session.idle;
    session.spawn(async move {
        match both(caller, runtime).await {
            Ok((caller, runtime)) => relay(caller, runtime, &Activity::new(idle)).await,
            Err(error) => tracing::debug!(%error, "streaming session did not begin"),
        }
    });
    Response::from_parts(parts, Body::empty())
}
