//! One GET over HTTP/1.1, plain or with TLS, with bounds on everything.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{AUTHORIZATION, COOKIE, HOST, LOCATION, USER_AGENT, WWW_AUTHENTICATE};
use ::http::uri::{PathAndQuery, Scheme};
use ::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

/// Redirects that are followed, as Go's client does.
const MAX_REDIRECTS: usize = 10;
/// Certificates that the machine trusts, where distributions keep them.
const CA_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why a GET gave no body.
#[derive(Debug, thiserror::Error)]
pub(super) enum GetError {
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    #[error("cannot connect to {authority}: {cause}")]
    Connect { authority: String, cause: io::Error },
    #[error("the request failed: {0}")]
    Http(hyper::Error),
    #[error("{0}")]
    Status(StatusCode),
    #[error("stopped after {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    #[error("redirected to {0:?}, which is no http or https URL")]
    BadRedirect(String),
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
}

/// Reads URLs within bounds.
#[derive(Debug)]
pub(super) struct HttpClient {
    /// For everything from the first connection to the last byte.
    pub(super) timeout: Duration,
    /// Of a body.
    pub(super) max_bytes: usize,
    /// The first that exists says whom to trust.
    pub(super) ca_bundles: Vec<PathBuf>,
}

impl HttpClient {
    pub(super) fn new(timeout: Duration, max_bytes: usize) -> Self {
        Self { timeout, max_bytes, ca_bundles: CA_BUNDLES.iter().map(PathBuf::from).collect() }
    }

    /// GETs `url` and follows redirects.
    pub(super) async fn get(&self, url: &Uri, headers: &HeaderMap) -> Result<Bytes, GetError> {
        tokio::time::timeout(self.timeout, self.follow(url, headers))
            .await
            .map_err(|_| GetError::Timeout(self.timeout))?
    }

    async fn follow(&self, url: &Uri, headers: &HeaderMap) -> Result<Bytes, GetError> {
        let mut target = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let headers =
                if keeps_credentials(url, &target) { headers.clone() } else { public(headers) };
            let (response, _connection) = self.get_once(&target, headers).await?;
            let status = response.status();
            let location = response.headers().get(LOCATION);
            let redirects = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = location.filter(|_| redirects) else {
                if status != StatusCode::OK {
                    return Err(GetError::Status(status));
                }
                return read_body(response.into_body(), self.max_bytes).await;
            };
            let location = String::from_utf8_lossy(location.as_bytes()).into_owned();
            target = resolve(&target, &location).ok_or(GetError::BadRedirect(location))?;
        }
        Err(GetError::TooManyRedirects)
    }

    async fn get_once(
        &self,
        target: &Uri,
        mut headers: HeaderMap,
    ) -> Result<(hyper::Response<Incoming>, Connection), GetError> {
        let stream = self.connect(target).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(GetError::Http)?;
        let authority = target.authority().map(|it| it.as_str()).unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        if let Ok(host) = HeaderValue::from_str(host) {
            headers.entry(HOST).or_insert(host);
        }
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static("kubelet"));
        let path = target.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.uri_mut() = path.parse().unwrap_or_default();
        *request.headers_mut() = headers;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let response = sender.send_request(request).await.map_err(GetError::Http)?;
        Ok((response, connection))
    }

    async fn connect(&self, target: &Uri) -> Result<Box<dyn Stream>, GetError> {
        let is_tls = target.scheme() == Some(&Scheme::HTTPS);
        let host = target.host().unwrap_or_default();
        let port = target.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let failed =
            |cause: io::Error| GetError::Connect { authority: format!("{host}:{port}"), cause };
        // An IPv6 literal stands in brackets, which are no part of the address.
        let name = host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((name, port)).await.map_err(failed)?;
        if !is_tls {
            return Ok(Box::new(stream));
        }
        let server = ServerName::try_from(name.to_owned())
            .map_err(|error| failed(io::Error::other(error)))?;
        let bundles = self.ca_bundles.clone();
        let config = tokio::task::spawn_blocking(move || tls_config(&bundles))
            .await
            .map_err(io::Error::other)
            .and_then(|config| config)
            .map_err(failed)?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(server, stream).await.map_err(failed)?;
        Ok(Box::new(stream))
    }
}

/// The connection lives as long as its handle.
type Connection = AbortOnDropHandle<Result<(), hyper::Error>>;

/// Credentials go to the host they were given for and to hosts beneath it, as with Go's client.
fn keeps_credentials(first: &Uri, target: &Uri) -> bool {
    let (Some(first), Some(target)) = (first.host(), target.host()) else { return false };
    let (first, target) = (first.to_ascii_lowercase(), target.to_ascii_lowercase());
    target == first || target.strip_suffix(&first).is_some_and(|rest| rest.ends_with('.'))
}

fn public(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in [AUTHORIZATION, COOKIE, WWW_AUTHENTICATE] {
        headers.remove(name);
    }
    headers.remove("cookie2");
    headers
}

/// Where `location` leads from `base`.
fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next().unwrap_or_default();
    let lower = location.to_ascii_lowercase();
    if lower.starts_with("http://") || lower.starts_with("https://") {
        let uri: Uri = location.parse().ok()?;
        return uri.host().is_some().then_some(uri);
    }
    let mut parts = base.clone().into_parts();
    if let Some(rest) = location.strip_prefix("//") {
        return format!("{}://{rest}", parts.scheme.as_ref().map_or("http", Scheme::as_str))
            .parse()
            .ok();
    }
    let scheme_end = location.find(':').unwrap_or(usize::MAX);
    if scheme_end < location.find(['/', '?']).unwrap_or(usize::MAX) {
        return None;
    }
    let path = if location.starts_with('/') {
        location.to_owned()
    } else if location.starts_with('?') {
        format!("{}{location}", base.path())
    } else {
        let directory = base.path().rfind('/').map_or("/", |at| &base.path()[..=at]);
        format!("{directory}{location}")
    };
    parts.path_and_query = Some(path.parse::<PathAndQuery>().ok()?);
    Uri::from_parts(parts).ok()
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Trusts what the machine trusts. The bundle is read for each connection: it is one every twenty
/// seconds, and so an update of the bundle counts without a restart.
fn tls_config(bundles: &[PathBuf]) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let bundle = bundles.iter().find(|path| path.exists());
    if let Some(bundle) = bundle {
        let certificates = CertificateDer::pem_file_iter(bundle).map_err(io::Error::other)?;
        // Single certificates that cannot be read are as good as absent.
        roots.add_parsable_certificates(certificates.filter_map(Result::ok));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(config)
}

async fn read_body(mut body: Incoming, max_bytes: usize) -> Result<Bytes, GetError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(GetError::Http)?;
        if let Some(data) = frame.data_ref() {
            if bytes.len() + data.len() > max_bytes {
                return Err(GetError::TooLarge(max_bytes));
            }
            bytes.extend_from_slice(data);
        }
    }
    Ok(Bytes::from(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_resolve_like_links() {
        let base: Uri = "https://a.example:8443/pods/list?x=1".parse().unwrap();
        for (location, expected) in [
            ("http://b.example/p", Some("http://b.example/p")),
            ("//b.example/p", Some("https://b.example/p")),
            ("/other", Some("https://a.example:8443/other")),
            ("other?y=2#part", Some("https://a.example:8443/pods/other?y=2")),
            ("?z=3", Some("https://a.example:8443/pods/list?z=3")),
            ("file:///etc/passwd", None),
            ("javascript:alert(1)", None),
        ] {
            let resolved = resolve(&base, location).map(|uri| uri.to_string());
            assert_eq!(resolved.as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn credentials_stay_with_their_domain() {
        let uri = |text: &str| text.parse::<Uri>().unwrap();
        let first = uri("https://pods.example/");
        for (target, kept) in [
            ("https://pods.example/other", true),
            ("https://PODS.example:444/", true),
            ("https://eu.pods.example/", true),
            ("https://evilpods.example/", false),
            ("https://example/", false),
        ] {
            assert_eq!(keeps_credentials(&first, &uri(target)), kept, "{target}");
        }
    }
}
