//! The little of an API client that setting up and looking at a control plane takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::kubeconfig::Credentials;
use crate::machine::Machine;

mod streams;

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Asks the API server as somebody. Each request has a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    machine: Arc<dyn Machine>,
    address: SocketAddr,
    /// None: without TLS.
    tls: Option<Arc<ClientConfig>>,
    token: Option<String>,
    timeout: Duration,
}

impl Client {
    /// A client of a server whose certificate `authority` (PEM) signed.
    pub(crate) fn new(
        machine: Arc<dyn Machine>,
        address: SocketAddr,
        authority: &str,
        who: Option<&Credentials>,
    ) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_slice(authority.as_bytes())
            .context("the authority is no certificate")?;
        roots.add(authority).context("the authority cannot be trusted")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no TLS version")?
            .with_root_certificates(roots);
        let certificate = |certificate: &[u8], key: &[u8]| -> anyhow::Result<_> {
            let chain = CertificateDer::pem_slice_iter(certificate)
                .collect::<Result<Vec<_>, _>>()
                .context("no certificate")?;
            Ok((chain, PrivateKeyDer::from_pem_slice(key).context("no key")?))
        };
        let (identity, token) = match who {
            None => (None, None),
            Some(Credentials::Token(token)) => (None, Some(token.clone())),
            Some(Credentials::Inline(pair)) => {
                (Some(certificate(pair.certificate.as_bytes(), pair.key.as_bytes())?), None)
            }
            Some(Credentials::Files { certificate: file, key }) => {
                let read = |path| {
                    std::fs::read(path).with_context(|| format!("cannot read {}", file.display()))
                };
                (Some(certificate(&read(file)?, &read(key)?)?), None)
            }
        };
        let config = match identity {
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).context("certificate and key differ")?
            }
            None => builder.with_no_client_auth(),
        };
        let tls = Some(Arc::new(config));
        Ok(Self { machine, address, tls, token, timeout: ANSWER_WITHIN })
    }

    /// A client of a server without TLS.
    pub(crate) fn plain(machine: Arc<dyn Machine>, address: SocketAddr) -> Self {
        Self { machine, address, tls: None, token: None, timeout: ANSWER_WITHIN }
    }

    /// The same with another time within which the answer has to be there.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends a request and returns status and body, whatever the status. A body that is no JSON is
    /// a string.
    ///
    /// # Errors
    /// When there is no answer in time.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> anyhow::Result<(u16, Value)> {
        let what = format!("{method} {path}");
        tokio::time::timeout(self.timeout, self.exchange(method, path, body))
            .await
            .with_context(|| format!("no answer to {what} within {:?}", self.timeout))?
            .with_context(|| format!("no answer to {what}"))
    }

    /// Reads an object or a list.
    ///
    /// # Errors
    /// When the answer is not 2xx.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.succeed(Method::GET, path, None).await
    }

    /// Creates an object in the collection at `path`.
    ///
    /// # Errors
    /// When the answer is not 2xx.
    pub async fn create(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        self.succeed(Method::POST, path, Some(("application/json", object))).await
    }

    /// Replaces an object.
    ///
    /// # Errors
    /// When the answer is not 2xx.
    pub async fn replace(&self, path: &str, object: &Value) -> anyhow::Result<Value> {
        self.succeed(Method::PUT, path, Some(("application/json", object))).await
    }

    /// Changes an object by a merge patch (RFC 7386).
    ///
    /// # Errors
    /// When the answer is not 2xx.
    pub async fn merge(&self, path: &str, patch: &Value) -> anyhow::Result<Value> {
        self.succeed(Method::PATCH, path, Some(("application/merge-patch+json", patch))).await
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// When the answer is not 2xx.
    pub async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.succeed(Method::DELETE, path, None).await
    }

    async fn succeed(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> anyhow::Result<Value> {
        let (status, answer) = self.request(method.clone(), path, body).await?;
        if !(200..300).contains(&status) {
            // A Status object says it in one field.
            let why = answer["message"].as_str().map_or_else(|| answer.to_string(), str::to_owned);
            bail!("{method} {path} was answered with {status}: {why}");
        }
        Ok(answer)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<(&str, &Value)>,
    ) -> anyhow::Result<(u16, Value)> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.address.to_string())
            .header(ACCEPT, "application/json");
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let bytes = match body {
            Some((kind, value)) => {
                request = request.header(CONTENT_TYPE, kind);
                Bytes::from(value.to_string())
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(bytes)).context("not a request")?;
        match self.connect().await? {
            Connected::Plain(stream) => send(stream, request).await,
            Connected::Tls(stream) => send(stream, request).await,
        }
    }

    async fn connect(&self) -> anyhow::Result<Connected> {
        let (machine, address) = (Arc::clone(&self.machine), self.address);
        let stream = tokio::task::spawn_blocking(move || machine.connect(address)).await??;
        stream.set_nonblocking(true)?;
        let stream = TcpStream::from_std(stream)?;
        Ok(match &self.tls {
            None => Connected::Plain(stream),
            Some(config) => {
                let name = ServerName::from(self.address.ip());
                let connector = TlsConnector::from(Arc::clone(config));
                Connected::Tls(Box::new(connector.connect(name, stream).await?))
            }
        })
    }
}

enum Connected {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<(u16, Value)> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let answer = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        let body = serde_json::from_slice(&body)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body)));
        Ok((status, body))
    };
    let answer = answer.await;
    connection.abort();
    answer
}
