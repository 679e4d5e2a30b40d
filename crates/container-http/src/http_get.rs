use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderValue, LOCATION, REFERER};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::dial::{DIAL_TIMEOUT, DialError, dial, errno_text};
use crate::outcome::{ErroredAs, ProbeOutcome};
use crate::record::{FirstBytes, Recorded};
use crate::target::{HttpTarget, Scheme};
use crate::tls::{handshake_text, unverified_client_config};
use crate::url::{Url, split_scheme};

/// How much of a response's body is read, in bytes.
pub(crate) const BODY_CAP: usize = 10 * 1024;

/// How many requests one chain of redirects may cost.
const MAX_REQUESTS: usize = 10;

/// How long a TLS handshake may take where the caller sets no time.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server gets to close its connection after the response.
const CLOSE_WAIT: Duration = Duration::from_millis(50);

/// How many headers a response may have.
const MAX_HEADERS: usize = 512;

/// What a container answered to a GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status code. A redirection (300 to 399) is one that was not followed.
    pub status: u16,
    /// The first 10 KiB of the body.
    pub body: Vec<u8>,
}

/// A container answered to the `httpGet` of a lifecycle hook. Any status will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookResponse {
    /// The hook asks for HTTPS, the container speaks HTTP, and was asked again in that. Worth the
    /// event `LifecycleHTTPFallback` with the text `request to HTTPS lifecycle hook <host:port>
    /// got HTTP response, retry with HTTP succeeded` and one count in
    /// `kubelet_lifecycle_handler_http_fallbacks_total`.
    pub fell_back_to_http: bool,
}

/// A GET got no response. The text is Go's, which events have carried for years.
#[derive(Debug)]
pub struct HttpGetError {
    /// The URL that was asked for last.
    pub url: String,
    /// What went wrong.
    pub failure: HttpFailure,
}

impl fmt::Display for HttpGetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.failure.in_body() {
            write!(f, "{}", self.failure)
        } else {
            write!(f, "Get {:?}: {}", self.url, self.failure)
        }
    }
}

impl std::error::Error for HttpGetError {}

/// Why a GET got no response. Causes are part of the text, because the text stands in events.
#[derive(Debug, thiserror::Error)]
pub enum HttpFailure {
    /// No connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// No response in time.
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    /// The response began, and did not end in time.
    #[error(
        "context deadline exceeded (Client.Timeout or context cancellation while reading body)"
    )]
    BodyTimeout,
    /// The response began, and broke off.
    #[error("{reason}")]
    Body {
        /// How.
        reason: String,
    },
    /// The server speaks HTTP where TLS was expected.
    #[error("http: server gave HTTP response to HTTPS client")]
    HttpInsteadOfTls,
    /// The TLS handshake failed.
    #[error("{reason}")]
    Tls {
        /// How.
        reason: String,
    },
    /// The TLS handshake took longer than 10 s.
    #[error("net/http: TLS handshake timeout")]
    TlsTimeout,
    /// The server closed the connection without a word.
    #[error("EOF")]
    Closed,
    /// The server closed the connection within the head of its response.
    #[error("unexpected EOF")]
    ClosedEarly,
    /// The server does not speak HTTP.
    #[error(
        "net/http: HTTP/1.x transport connection broken: malformed HTTP response {first_line:?}"
    )]
    Malformed {
        /// What it says instead.
        first_line: String,
    },
    /// The connection broke.
    #[error("{operation} tcp {local}->{peer}: {operation}: {}", errno_text(error))]
    Io {
        /// `read` or `write`.
        operation: &'static str,
        /// Our end.
        local: SocketAddr,
        /// The container's end.
        peer: SocketAddr,
        /// What the kernel said.
        error: io::Error,
    },
    /// Any other break of the protocol.
    #[error("net/http: HTTP/1.x transport connection broken: {reason}")]
    Protocol {
        /// Which.
        reason: String,
    },
    /// More than ten requests in a chain of redirects.
    #[error("stopped after 10 redirects")]
    TooManyRedirects,
    /// A redirect to something that is no http or https URL.
    #[error("failed to parse Location header {location:?}")]
    BadLocation {
        /// The header.
        location: String,
    },
    /// The spec names a header that cannot be.
    #[error("net/http: invalid header field name {name:?}")]
    InvalidHeaderName {
        /// The name.
        name: String,
    },
    /// The spec gives a header a value that cannot be.
    #[error("net/http: invalid header field value for {name:?}")]
    InvalidHeaderValue {
        /// The header's name.
        name: String,
    },
}

impl HttpFailure {
    /// The container had answered, with a status, before it happened.
    fn in_body(&self) -> bool {
        matches!(self, Self::BodyTimeout | Self::Body { .. })
    }
}

/// Makes requests to containers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ContainerClient {
    pub(crate) version: Arc<str>,
    tls: UnverifiedTls,
}

/// The connector, with a `Debug` of its own.
#[derive(Clone)]
struct UnverifiedTls(TlsConnector);

impl fmt::Debug for UnverifiedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConnector")
    }
}

impl ContainerClient {
    /// A client that calls itself `kube-probe/<version>` and `kube-lifecycle/<version>`;
    /// `version` is the Kubernetes minor, such as `1.36`.
    pub fn new(version: &str) -> Self {
        let connector = TlsConnector::from(unverified_client_config());
        Self { version: Arc::from(version), tls: UnverifiedTls(connector) }
    }

    /// One GET of `target` with at most `time` for all of it, redirects included; follows
    /// redirects to the same host name only.
    ///
    /// Without `time`, dialling may take 30 s, a TLS handshake 10 s, and the response as long as
    /// the caller waits.
    pub async fn http_get(
        &self,
        target: &HttpTarget,
        time: Option<Duration>,
    ) -> Result<HttpResponse, HttpGetError> {
        let deadline = time.and_then(|time| Instant::now().checked_add(time));
        let mut url = target.url();
        let origin = url.host.clone();
        let fail = |url: &Url, failure| HttpGetError { url: url.to_string(), failure };
        let (mut headers, mut host) =
            target.header_map(&self.version).map_err(|failure| fail(&url, failure))?;
        let mut requests = 0;
        loop {
            requests += 1;
            let exchange = self.exchange(&url, &headers, host.as_ref(), deadline);
            let (response, location) =
                Box::pin(exchange).await.map_err(|failure| fail(&url, failure))?;
            let Some(location) = location else { return Ok(response) };
            let Some(next) = url.join(&location) else {
                return Err(fail(&url, HttpFailure::BadLocation { location }));
            };
            if next.host != origin {
                return Ok(response);
            }
            if requests == MAX_REQUESTS {
                return Err(HttpGetError { url: location, failure: HttpFailure::TooManyRedirects });
            }
            if !(url.scheme == Scheme::Https && next.scheme == Scheme::Http)
                && let Ok(referer) = HeaderValue::try_from(url.to_string())
            {
                headers.insert(REFERER, referer);
            }
            if split_scheme(&location).is_some() {
                // An absolute redirect names its host itself.
                host = None;
            }
            url = next;
        }
    }

    /// One attempt of an `httpGet` probe.
    pub async fn http_probe(&self, target: &HttpTarget, time: Duration) -> ProbeOutcome {
        match self.http_get(target, Some(time)).await {
            Ok(HttpResponse { status, body }) => {
                let body = String::from_utf8_lossy(&body);
                match status {
                    200..=299 => ProbeOutcome::Success(body.into_owned()),
                    300..=399 => ProbeOutcome::Warning(format!(
                        "Probe terminated redirects, Response body: {body}"
                    )),
                    _ => ProbeOutcome::Failure(format!(
                        "HTTP probe failed with statuscode: {status}"
                    )),
                }
            }
            Err(error) if error.failure.in_body() => {
                ProbeOutcome::Error { state: ErroredAs::Failure, message: error.to_string() }
            }
            Err(error) => ProbeOutcome::Failure(error.to_string()),
        }
    }

    /// The `httpGet` of a lifecycle hook. Any response counts as success. When the container
    /// speaks HTTP where the hook asks for HTTPS, it is asked again in plain HTTP, without the
    /// `Authorization` header.
    ///
    /// There is no time limit on the response: the caller drops the future when the grace period
    /// is over.
    pub async fn http_hook(&self, target: &HttpTarget) -> Result<HookResponse, HttpGetError> {
        let error = match answered(self.http_get(target, None).await) {
            Ok(()) => return Ok(HookResponse { fell_back_to_http: false }),
            Err(error) => error,
        };
        if !matches!(error.failure, HttpFailure::HttpInsteadOfTls) {
            return Err(error);
        }
        let mut plain = target.clone();
        plain.scheme = Scheme::Http;
        plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        match answered(self.http_get(&plain, None).await) {
            Ok(()) => Ok(HookResponse { fell_back_to_http: true }),
            Err(_) => Err(error),
        }
    }

    /// One attempt of a `tcpSocket` probe: connecting is enough.
    pub async fn tcp_probe(&self, host: &str, port: u16, time: Duration) -> ProbeOutcome {
        match dial(host, port, Instant::now() + time).await {
            Ok(_connected) => ProbeOutcome::Success(String::new()),
            Err(error) => ProbeOutcome::Failure(error.to_string()),
        }
    }

    /// One request and its response; the `Location` if that is a redirection to follow.
    async fn exchange(
        &self,
        url: &Url,
        headers: &HeaderMap,
        host: Option<&HeaderValue>,
        deadline: Option<Instant>,
    ) -> Result<(HttpResponse, Option<String>), HttpFailure> {
        let request = request(url, headers, host)?;
        let connect = async {
            let stream = dial(&url.host, url.port(), Instant::now() + DIAL_TIMEOUT).await?;
            let ends = Ends::of(&stream);
            let (stream, first) = Recorded::new(stream);
            let stream: Box<dyn Stream> = match url.scheme {
                Scheme::Http => Box::new(stream),
                Scheme::Https => Box::new(self.start_tls(url, stream, &first, ends).await?),
            };
            Ok::<_, HttpFailure>((stream, ends))
        };
        let (stream, ends) = before(deadline, connect, HttpFailure::Timeout).await?;
        let (stream, first) = Recorded::new(stream);
        let mut connection = Connection::new(stream, first, ends).await?;
        let head = connection.send(request);
        let response = before(deadline, head, HttpFailure::Timeout).await?;
        let status = response.status();
        let location = is_followed(status)
            .then(|| response.headers().get(LOCATION))
            .flatten()
            .map(|location| String::from_utf8_lossy(location.as_bytes()).into_owned());
        let body = connection.read_body(response.into_body());
        let body = before(deadline, body, HttpFailure::BodyTimeout).await?;
        connection.close().await;
        Ok((HttpResponse { status: status.as_u16(), body }, location))
    }

    async fn start_tls(
        &self,
        url: &Url,
        stream: Recorded<tokio::net::TcpStream>,
        first: &FirstBytes,
        ends: Ends,
    ) -> Result<tokio_rustls::client::TlsStream<Recorded<tokio::net::TcpStream>>, HttpFailure> {
        let name = ServerName::try_from(url.host.clone())
            .map_err(|error| HttpFailure::Tls { reason: format!("tls: {error}") })?;
        let handshake = self.tls.0.connect(name, stream);
        match timeout(TLS_HANDSHAKE_TIMEOUT, handshake).await {
            Err(_) => Err(HttpFailure::TlsTimeout),
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(_)) if first.starts_with(b"HTTP/") => Err(HttpFailure::HttpInsteadOfTls),
            Ok(Err(error)) => Err(match error.get_ref().and_then(|it| it.downcast_ref()) {
                Some(error) => HttpFailure::Tls { reason: handshake_text(error) },
                None if error.kind() == io::ErrorKind::UnexpectedEof => HttpFailure::Closed,
                None => ends.broken(error),
            }),
        }
    }
}

/// For a hook a status is an answer, whatever came of the body.
fn answered(result: Result<HttpResponse, HttpGetError>) -> Result<(), HttpGetError> {
    match result {
        Err(error) if !error.failure.in_body() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Waits for `future` until `deadline`, if there is one.
async fn before<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = Result<T, HttpFailure>>,
    late: HttpFailure,
) -> Result<T, HttpFailure> {
    match deadline {
        Some(deadline) => timeout_at(deadline, future).await.unwrap_or(Err(late)),
        None => future.await,
    }
}

/// Go's client follows these, and only with a `Location`.
fn is_followed(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn request(
    url: &Url,
    headers: &HeaderMap,
    host: Option<&HeaderValue>,
) -> Result<Request<Empty<Bytes>>, HttpFailure> {
    let invalid = |error: &dyn fmt::Display| HttpFailure::Protocol { reason: error.to_string() };
    let mut request =
        Request::get(url.path_and_query()).body(Empty::new()).map_err(|error| invalid(&error))?;
    let host = match host {
        Some(host) => host.clone(),
        None => HeaderValue::try_from(url.authority()).map_err(|error| invalid(&error))?,
    };
    request.headers_mut().insert(HOST, host);
    request.headers_mut().extend(headers.clone());
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(request)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Both ends of a connection, for messages.
#[derive(Clone, Copy)]
struct Ends {
    local: SocketAddr,
    peer: SocketAddr,
}

impl Ends {
    fn of(stream: &tokio::net::TcpStream) -> Self {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        Self {
            local: stream.local_addr().unwrap_or(unknown),
            peer: stream.peer_addr().unwrap_or(unknown),
        }
    }

    fn broken(self, error: io::Error) -> HttpFailure {
        let operation = if error.kind() == io::ErrorKind::BrokenPipe { "write" } else { "read" };
        HttpFailure::Io { operation, local: self.local, peer: self.peer, error }
    }
}

/// A connection as hyper drives it.
type Driven = http1::Connection<TokioIo<Recorded<Box<dyn Stream>>>, Empty<Bytes>>;

/// One HTTP/1.1 connection for one request, driven by whoever waits for the response.
struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    connection: Driven,
    /// The connection has nothing more to do; polling it again is not allowed.
    finished: bool,
    first: FirstBytes,
    ends: Ends,
    body_complete: bool,
}

impl Connection {
    async fn new(
        stream: Recorded<Box<dyn Stream>>,
        first: FirstBytes,
        ends: Ends,
    ) -> Result<Self, HttpFailure> {
        let (sender, connection) = http1::Builder::new()
            // Go's client writes header names canonically, and old servers look for that.
            .title_case_headers(true)
            // A probe asks for the status. A header that is none is no reason to kill a container.
            .allow_spaces_after_header_name_in_responses(true)
            .allow_obsolete_multiline_headers_in_responses(true)
            .ignore_invalid_headers_in_responses(true)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| HttpFailure::Protocol { reason: error.to_string() })?;
        Ok(Self { sender, connection, finished: false, first, ends, body_complete: false })
    }

    async fn send(
        &mut self,
        request: Request<Empty<Bytes>>,
    ) -> Result<Response<Incoming>, HttpFailure> {
        let response = self.sender.send_request(request);
        drive(&mut self.connection, &mut self.finished, response)
            .await
            .map_err(|error| self.failure(error))
    }

    /// Reads the body up to its cap.
    async fn read_body(&mut self, mut body: Incoming) -> Result<Vec<u8>, HttpFailure> {
        let mut read = Vec::new();
        while read.len() < BODY_CAP {
            let frame = drive(&mut self.connection, &mut self.finished, body.frame()).await;
            match frame {
                None => {
                    self.body_complete = true;
                    break;
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        let room = (BODY_CAP - read.len()).min(data.len());
                        read.extend_from_slice(&data[..room]);
                    }
                }
                Some(Err(error)) => {
                    let reason = match self.failure(error) {
                        HttpFailure::Closed | HttpFailure::ClosedEarly => {
                            "unexpected EOF".to_owned()
                        }
                        other => other.to_string(),
                    };
                    return Err(HttpFailure::Body { reason });
                }
            }
        }
        Ok(read)
    }

    /// Lets the server close first, so that it is its end that stays in `TIME_WAIT`.
    async fn close(mut self) {
        if !self.body_complete {
            return;
        }
        let close = async {
            if !self.finished {
                let finished = std::future::poll_fn(|cx| self.connection.poll_without_shutdown(cx));
                if finished.await.is_err() {
                    return;
                }
            }
            let mut stream = self.connection.into_parts().io.into_inner();
            let mut rest = [0; 512];
            while matches!(stream.read(&mut rest).await, Ok(read) if read > 0) {}
        };
        // Late or not, the connection is closed now.
        let _ = timeout(CLOSE_WAIT, close).await;
    }

    fn failure(&self, error: hyper::Error) -> HttpFailure {
        if error.is_incomplete_message() {
            if self.first.is_empty() { HttpFailure::Closed } else { HttpFailure::ClosedEarly }
        } else if error.is_parse() {
            HttpFailure::Malformed { first_line: self.first.first_line() }
        } else {
            let source = std::error::Error::source(&error)
                .and_then(|source| source.downcast_ref::<io::Error>());
            match source {
                Some(io) => match io.raw_os_error() {
                    Some(number) => self.ends.broken(io::Error::from_raw_os_error(number)),
                    None if io.kind() == io::ErrorKind::UnexpectedEof => HttpFailure::ClosedEarly,
                    None => HttpFailure::Protocol { reason: io.to_string() },
                },
                None => HttpFailure::Protocol { reason: error.to_string() },
            }
        }
    }
}

/// Waits for `future` while moving `connection` on, without which it would never come.
async fn drive<T>(
    connection: &mut Driven,
    finished: &mut bool,
    future: impl Future<Output = T>,
) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(value) = Pin::as_mut(&mut future).poll(cx) {
            return Poll::Ready(value);
        }
        if !*finished && connection.poll_without_shutdown(cx).is_ready() {
            // Its error, if any, reaches `future`.
            *finished = true;
        }
        Pin::as_mut(&mut future).poll(cx)
    })
    .await
}
