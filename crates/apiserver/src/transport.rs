//! One way to the API server: a kubeconfig as it was read, with its connections.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use rubelet_types::Clock;
use tokio::time::{Instant, timeout_at};

use crate::connection::{
    Base, Connect, ConnectError, Dialer, Lease, Network, Pool, Proxy, ProxyKind, Request,
    SendError, Tls,
};
use crate::credentials::{Credentials, CredentialsError};
use crate::error::{ApiError, ApiErrorKind, Target};
use crate::kubeconfig::{KubeConfig, ServerUrl, Trust};
use crate::options::ApiServerOptions;

/// Which connections a request goes over, and which limits it obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    General,
    Events,
    Heartbeats,
}

impl Lane {
    pub(crate) const ALL: [Self; 3] = [Self::General, Self::Events, Self::Heartbeats];
}

/// A longer answer is refused, as is a longer event of a watch.
pub(crate) const MAX_ANSWER: usize = 128 * 1024 * 1024;

/// The settings of a kubeconfig make no connection possible.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransportError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Connections and credentials that belong together.
#[derive(Debug)]
pub(crate) struct Transport {
    /// Of the kubeconfig it was made of; nothing within the process.
    pub(crate) fingerprint: Option<u64>,
    /// The server's host and port as its URL has them, to be counted by.
    host: String,
    credentials: Arc<Credentials>,
    lanes: [Pools; 3],
}

/// Watches last, and must not take the room of requests that do not.
#[derive(Debug)]
struct Pools {
    calls: Pool,
    watches: Pool,
}

/// The whole answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An answer that goes on.
#[derive(Debug)]
pub(crate) struct OpenAnswer {
    pub(crate) body: Incoming,
    /// Given back when the answer is over.
    pub(crate) lease: Lease,
}

impl Transport {
    pub(crate) fn new(
        config: &KubeConfig,
        options: &ApiServerOptions,
        clock: Clock,
    ) -> Result<Self, TransportError> {
        let credentials =
            Arc::new(Credentials::new(config.authorization(), config.identity(), clock)?);
        let server = config.server_url();
        let tls = match server.is_tls() {
            false => None,
            true => {
                let name = config.server_name().unwrap_or(server.host());
                Some(Tls::new(config.trust().clone(), name, options.http2)?)
            }
        };
        let proxy = config.proxy().cloned().or_else(|| options.proxies.proxy_for(server));
        let proxy = match &proxy {
            None => None,
            Some(url) => Some(proxy_with_tls(Proxy::from_url(url)?, config.trust())?),
        };
        let base = Base::new(server, &options.user_agent, config.impersonation());
        let network =
            Network { server: server.clone(), tls, proxy, credentials: Arc::clone(&credentials) };
        let dialer = Dialer::Network(Arc::new(network));
        let new_pool = || Pool::new(dialer.clone(), base.clone());
        let lanes = Lane::ALL.map(|_| Pools { calls: new_pool(), watches: new_pool() });
        let (fingerprint, host) = (Some(config.fingerprint()), server.authority());
        Ok(Self { fingerprint, host, credentials, lanes })
    }

    /// To a server within the process.
    pub(crate) fn within(connector: &Arc<dyn Connect>, options: &ApiServerOptions) -> Self {
        let base = Base::new(&ServerUrl::within_process(), &options.user_agent, &[]);
        let new_pool = || Pool::new(Dialer::Within(Arc::clone(connector)), base.clone());
        let lanes = Lane::ALL.map(|_| Pools { calls: new_pool(), watches: new_pool() });
        let (host, credentials) = (ServerUrl::within_process().authority(), Credentials::none());
        Self { fingerprint: None, host, credentials: Arc::new(credentials), lanes }
    }

    /// The server's host and port.
    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    fn pools(&self, lane: Lane) -> &Pools {
        match lane {
            Lane::General => &self.lanes[0],
            Lane::Events => &self.lanes[1],
            Lane::Heartbeats => &self.lanes[2],
        }
    }

    /// One try of a request, answer included.
    pub(crate) async fn call(
        &self,
        lane: Lane,
        target: &Target,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, ApiError> {
        let deadline = Instant::now() + limit;
        let pool = &self.pools(lane).calls;
        let (response, lease) = self.send(pool, target, request, deadline, limit).await?;
        let (head, body) = response.into_parts();
        match timeout_at(deadline, read_all(body)).await {
            Ok(Ok(body)) => {
                lease.finish();
                Ok(Answer { status: head.status, headers: head.headers, body })
            }
            Ok(Err(ReadError::Broken(error))) => {
                lease.suspect();
                Err(ApiError::caused_by(target.clone(), ApiErrorKind::Connection, error))
            }
            Ok(Err(ReadError::TooLong)) => {
                let message =
                    format!("cannot {target}: the answer is longer than {MAX_ANSWER} bytes");
                Err(ApiError::new(target.clone(), ApiErrorKind::TooLong, message))
            }
            Err(_) => {
                lease.suspect();
                Err(ApiError::timeout(target.clone(), limit))
            }
        }
    }

    /// Begins a watch: the answer's head has to come within `limit`.
    pub(crate) async fn open(
        &self,
        lane: Lane,
        target: &Target,
        request: &Request,
        limit: Duration,
    ) -> Result<Result<OpenAnswer, Answer>, ApiError> {
        let deadline = Instant::now() + limit;
        let pool = &self.pools(lane).watches;
        let (response, lease) = self.send(pool, target, request, deadline, limit).await?;
        let (head, body) = response.into_parts();
        if head.status.is_success() {
            return Ok(Ok(OpenAnswer { body, lease }));
        }
        // What a refusal says is of use, and not worth waiting for.
        let body = match timeout_at(deadline, read_all(body)).await {
            Ok(Ok(body)) => {
                lease.finish();
                body
            }
            _ => Bytes::new(),
        };
        Ok(Err(Answer { status: head.status, headers: head.headers, body }))
    }

    async fn send(
        &self,
        pool: &Pool,
        target: &Target,
        request: &Request,
        deadline: Instant,
        limit: Duration,
    ) -> Result<(Response<Incoming>, Lease), ApiError> {
        let no_credentials =
            |error| ApiError::caused_by(target.clone(), ApiErrorKind::Credentials, error);
        let too_slow = || ApiError::timeout(target.clone(), limit);
        let mut has_refreshed = false;
        loop {
            let header = timeout_at(deadline, self.credentials.header())
                .await
                .map_err(|_| too_slow())?
                .map_err(no_credentials)?;
            let (response, lease) = pool.send(request, header.as_ref(), deadline).await.map_err(
                |error| match error {
                    SendError::Deadline => too_slow(),
                    SendError::Connect(error) => {
                        let kind = match &*error {
                            ConnectError::Credentials(_) => ApiErrorKind::Credentials,
                            _ => ApiErrorKind::Connection,
                        };
                        ApiError::caused_by(target.clone(), kind, error)
                    }
                    SendError::Broken(error) => {
                        ApiError::caused_by(target.clone(), ApiErrorKind::Connection, error)
                    }
                    SendError::Unsendable(error) => {
                        ApiError::caused_by(target.clone(), ApiErrorKind::BadRequest, error)
                    }
                },
            )?;
            let is_refused = response.status() == StatusCode::UNAUTHORIZED && !has_refreshed;
            if !is_refused || !self.credentials.refused(header.as_ref()).await {
                return Ok((response, lease));
            }
            has_refreshed = true;
        }
    }

    /// Ends the connections of one lane.
    pub(crate) fn close(&self, lane: Lane) {
        let Pools { calls, watches } = self.pools(lane);
        calls.close();
        watches.close();
    }

    /// Another transport takes over: watches end, and calls on their way come to their end.
    pub(crate) fn retire(&self) {
        for Pools { calls, watches } in &self.lanes {
            calls.release();
            watches.close();
        }
    }
}

fn proxy_with_tls(proxy: Proxy, trust: &Trust) -> Result<(Proxy, Option<Tls>), ConnectError> {
    let tls = match proxy.kind {
        ProxyKind::Https => Some(Tls::new(trust.clone(), &proxy.host, false)?),
        ProxyKind::Http | ProxyKind::Socks5 => None,
    };
    Ok((proxy, tls))
}

enum ReadError {
    Broken(hyper::Error),
    TooLong,
}

async fn read_all(mut body: Incoming) -> Result<Bytes, ReadError> {
    let mut whole = BytesMut::new();
    let mut first = Bytes::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ReadError::Broken)?.into_data() else { continue };
        if whole.len() + data.len() > MAX_ANSWER {
            return Err(ReadError::TooLong);
        }
        // Most answers come in one piece, which needs no copy.
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.extend_from_slice(&first);
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() { first } else { whole.freeze() })
}
