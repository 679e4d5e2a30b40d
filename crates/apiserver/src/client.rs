use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Method, StatusCode};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use rubelet_types::Clock;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout_at};

use crate::connection::{Connect, Request};
use crate::error::{ApiError, Target, Verb};
use crate::kubeconfig::{KubeConfig, KubeConfigError, Origin};
use crate::metrics::{RestClientMetrics, Try};
use crate::objects::{ApiObject, Objects};
use crate::options::ApiServerOptions;
use crate::outage::Outage;
use crate::rate_limit::TokenBucket;
use crate::transport::{Answer, Lane, OpenAnswer, Transport, TransportError};

/// How often [`ApiServer::keep_credentials_fresh`] looks at the kubeconfig and its files.
const RELOAD_PERIOD: Duration = Duration::from_secs(10);
/// How often a request is sent again because the server asked for it.
const MAX_RETRIES: u32 = 5;
/// The longest wait that the server can ask for; more is left to the caller.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(10);
/// All tries of a request together, in lengths of one.
const TRIES_LAST: u32 = 2;
/// Before a request is sent again that was refused because the server knew of no relation between
/// the node and the object: it learns of a new pod from a watch of its own, as a rule milliseconds
/// later than we do, and whatever the pod refers to is asked for at once.
const RELATION_WAITS: [Duration; 6] = [
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];
/// How long the server may take to show that it is there.
const RESPONDS_WITHIN: Duration = Duration::from_secs(10);

/// The API server, as seen through one lane: cheap to clone.
///
/// There are three lanes, each with connections and a limit of its own: [`general`](Self::general),
/// [`events`](Self::events) and [`heartbeats`](Self::heartbeats). A flood in one delays no other.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
    lane: Lane,
}

struct Shared {
    options: ApiServerOptions,
    clock: Clock,
    /// Where the kubeconfig is; nothing within the process.
    origin: Option<Origin>,
    limits: [Option<TokenBucket>; 3],
    transport: RwLock<Arc<Transport>>,
    /// Counts the transports.
    generation: watch::Sender<u64>,
    outage: Outage,
    metrics: Arc<RestClientMetrics>,
}

impl ApiServer {
    /// Speaks to the server of `config`. Nothing is sent before the first request.
    ///
    /// # Errors
    ///
    /// Settings with which no connection can ever be made.
    pub fn new(
        config: &KubeConfig,
        options: ApiServerOptions,
        clock: Clock,
    ) -> Result<Self, KubeConfigError> {
        let transport = Transport::new(config, &options, clock.clone())
            .map_err(|error| unusable(config, error))?;
        let origin = Some(config.origin().clone());
        Ok(Self::with_transport(transport, origin, options, clock))
    }

    /// Speaks to a server that lives in the same process.
    pub fn over(connector: &Arc<dyn Connect>, options: ApiServerOptions, clock: Clock) -> Self {
        let transport = Transport::within(connector, &options);
        Self::with_transport(transport, None, options, clock)
    }

    fn with_transport(
        transport: Transport,
        origin: Option<Origin>,
        options: ApiServerOptions,
        clock: Clock,
    ) -> Self {
        let limits =
            [options.general.map(TokenBucket::new), options.events.map(TokenBucket::new), None];
        let shared = Shared {
            options,
            clock,
            origin,
            limits,
            transport: RwLock::new(Arc::new(transport)),
            generation: watch::Sender::new(0),
            outage: Outage::default(),
            metrics: Arc::default(),
        };
        Self { shared: Arc::new(shared), lane: Lane::General }
    }

    /// What is counted of requests, over all lanes.
    pub fn metrics(&self) -> Arc<RestClientMetrics> {
        self.shared.metrics.clone()
    }

    fn by(&self, lane: Lane) -> Self {
        Self { shared: Arc::clone(&self.shared), lane }
    }

    /// The lane for everything that has none of its own.
    pub fn general(&self) -> Self {
        self.by(Lane::General)
    }

    /// The lane for events.
    pub fn events(&self) -> Self {
        self.by(Lane::Events)
    }

    /// The lane for the node's lease and status: never held back by a limit, and with a timeout
    /// that covers all tries of a request.
    pub fn heartbeats(&self) -> Self {
        self.by(Lane::Heartbeats)
    }

    /// Objects of kind `K` in one namespace.
    pub fn namespaced<K: ApiObject<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
    ) -> Objects<K> {
        Objects::new(self.clone(), Some(namespace.to_owned()))
    }

    /// Objects of kind `K` of all namespaces, to be listed and watched.
    pub fn all_namespaces<K: ApiObject<Scope = NamespaceResourceScope>>(&self) -> Objects<K> {
        Objects::new(self.clone(), None)
    }

    /// Objects of kind `K`, which are in no namespace: nodes, certificate signing requests, runtime
    /// classes; token and access reviews, which are only ever created.
    pub fn cluster<K: ApiObject<Scope = ClusterResourceScope>>(&self) -> Objects<K> {
        Objects::new(self.clone(), None)
    }

    /// Asks for a token of a service account.
    pub async fn create_token(
        &self,
        namespace: &str,
        service_account: &str,
        request: &TokenRequest,
    ) -> Result<TokenRequest, ApiError> {
        let accounts = self.namespaced::<ServiceAccount>(namespace);
        accounts.create_subresource(service_account, "token", request).await
    }

    /// Whether somebody who speaks HTTP answers, with anything but a failure of its own: also a
    /// server that does not know us responds.
    pub async fn is_responding(&self) -> bool {
        let request = Request {
            method: Method::GET,
            path: "/healthz".to_owned(),
            content_type: None,
            body: Bytes::new(),
        };
        let target = Target {
            verb: Verb::Get,
            resource: "/healthz".to_owned(),
            namespace: None,
            name: None,
        };
        match self.try_call(&target, &request, RESPONDS_WITHIN).await {
            Ok(answer) => !answer.status.is_server_error(),
            Err(_) => false,
        }
    }

    /// Reads the kubeconfig and its files again. If anything differs, new requests use new
    /// connections with the new credentials, watches start again over these, and the old
    /// connections are closed when their last request has its answer. Says whether anything did.
    ///
    /// # Errors
    ///
    /// Everything stays as it is.
    pub async fn reload(&self) -> Result<bool, KubeConfigError> {
        let Some(origin) = self.shared.origin.clone() else { return Ok(false) };
        let loading = tokio::task::spawn_blocking(move || origin.load());
        // The task neither panics nor is it aborted; if the runtime goes down nothing has changed.
        let Ok(loaded) = loading.await else { return Ok(false) };
        let config = loaded?;
        if self.transport().fingerprint == Some(config.fingerprint()) {
            return Ok(false);
        }
        let shared = &self.shared;
        let fresh = Transport::new(&config, &shared.options, shared.clock.clone())
            .map_err(|error| unusable(&config, error))?;
        let mut current = shared.transport.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, Arc::new(fresh));
        drop(current);
        shared.generation.send_modify(|generation| *generation += 1);
        old.retire();
        Ok(true)
    }

    /// Reloads each ten seconds, for ever. To be run once.
    pub async fn keep_credentials_fresh(&self) {
        let mut ticks = interval(RELOAD_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_problem = None;
        loop {
            ticks.tick().await;
            match self.reload().await {
                Ok(has_changed) => {
                    if has_changed {
                        tracing::info!("credentials for the API server have changed");
                    }
                    last_problem = None;
                }
                Err(error) => {
                    let problem = error.to_string();
                    // Half-written files are met now and then; a lasting problem is said once.
                    if last_problem.as_ref() != Some(&problem) {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::warn!(%error, cause, "the old credentials stay in use");
                    }
                    last_problem = Some(problem);
                }
            }
        }
    }

    /// Closes all connections of this lane; requests on them fail, watches resume over new ones.
    pub fn close_connections(&self) {
        self.transport().close(self.lane);
    }

    pub(crate) fn transport(&self) -> Arc<Transport> {
        Arc::clone(&self.shared.transport.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Counts up when connections and credentials are replaced.
    pub(crate) fn generation(&self) -> watch::Receiver<u64> {
        self.shared.generation.subscribe()
    }

    /// Counts up when the server serves a request after it had failed to.
    pub(crate) fn recoveries(&self) -> watch::Receiver<u64> {
        self.shared.outage.recoveries()
    }

    async fn turn(&self, method: &Method) {
        let limit = match self.lane {
            Lane::General => &self.shared.limits[0],
            Lane::Events => &self.shared.limits[1],
            Lane::Heartbeats => &self.shared.limits[2],
        };
        if let Some(limit) = limit {
            let begun = Instant::now();
            limit.turn().await;
            let transport = self.transport();
            self.shared.metrics.held_back(transport.host(), method, begun.elapsed());
        }
    }

    /// One try of a request.
    async fn try_call(
        &self,
        target: &Target,
        request: &Request,
        limit: Duration,
    ) -> Result<Answer, ApiError> {
        let transport = self.transport();
        let begun = Instant::now();
        let answer = transport.call(self.lane, target, request, limit).await;
        let tried = Try {
            status: answer.as_ref().ok().map(|answer| answer.status),
            took: begun.elapsed(),
            sent: request.body.len(),
            received: answer.as_ref().ok().map(|answer| answer.body.len()),
        };
        self.shared.metrics.tried(transport.host(), &request.method, &tried);
        answer
    }

    fn try_limit(&self) -> Duration {
        match self.lane {
            Lane::Heartbeats => self.shared.options.heartbeat_timeout,
            Lane::General | Lane::Events => self.shared.options.request_timeout,
        }
    }

    /// Sends a request until it has an answer that is neither "later" nor "not yet".
    pub(crate) async fn call(&self, target: Target, request: Request) -> Result<Bytes, ApiError> {
        let in_all = match self.lane {
            Lane::Heartbeats => self.try_limit(),
            Lane::General | Lane::Events => self.try_limit() * TRIES_LAST,
        };
        let deadline = Instant::now() + in_all;
        let mut retries = 0;
        let mut relation_waits = RELATION_WAITS.into_iter();
        loop {
            if timeout_at(deadline, self.turn(&request.method)).await.is_err() {
                return Err(ApiError::timeout(target, in_all));
            }
            let limit = self.try_limit().min(deadline - Instant::now());
            let answer = self.try_call(&target, &request, limit).await;
            let Answer { status, headers, body } =
                answer.inspect_err(|error| self.shared.outage.note_failure(error))?;
            if status.is_success() {
                self.shared.outage.note_success();
                return Ok(body);
            }
            let error = refusal(&target, status, &headers, &body);
            self.shared.outage.note_failure(&error);
            let wait = if error.is_unrelated() {
                relation_waits.next()
            } else {
                wait_before_retry(status, &error).filter(|_| retries < MAX_RETRIES)
            };
            let Some(wait) = wait.filter(|wait| Instant::now() + *wait < deadline) else {
                return Err(error);
            };
            retries += 1;
            self.shared.metrics.retried(self.transport().host(), &request.method, status);
            tracing::debug!(%target, ?wait, retries, %error, "sending a request again");
            sleep(wait).await;
        }
    }

    /// Begins a watch.
    pub(crate) async fn open(
        &self,
        target: &Target,
        request: &Request,
    ) -> Result<OpenAnswer, ApiError> {
        self.turn(&request.method).await;
        let limit = self.shared.options.request_timeout;
        let transport = self.transport();
        let begun = Instant::now();
        let opened = transport.open(self.lane, target, request, limit).await;
        let tried = Try {
            status: opened.as_ref().ok().map(|opened| match opened {
                Ok(_) => StatusCode::OK,
                Err(refusal) => refusal.status,
            }),
            took: begun.elapsed(),
            sent: request.body.len(),
            received: None,
        };
        self.shared.metrics.tried(transport.host(), &request.method, &tried);
        let opened = opened.and_then(|answer| {
            answer.map_err(|Answer { status, headers, body }| {
                refusal(target, status, &headers, &body)
            })
        });
        match &opened {
            Ok(_) => self.shared.outage.note_success(),
            Err(error) => self.shared.outage.note_failure(error),
        }
        opened
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer")
            .field("kubeconfig", &self.shared.origin)
            .field("lane", &self.lane)
            .finish_non_exhaustive()
    }
}

fn unusable(config: &KubeConfig, error: TransportError) -> KubeConfigError {
    KubeConfigError::Missing { path: config.path().to_owned(), what: error.to_string() }
}

fn refusal(target: &Target, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ApiError {
    ApiError::refused(target.clone(), status, retry_after(headers), body)
}

/// `Retry-After` in its form that the API server uses: seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Only a server that says when is asked again, as client-go has it.
fn wait_before_retry(status: StatusCode, error: &ApiError) -> Option<Duration> {
    let asks = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
    error.retry_after().filter(|wait| asks && *wait <= MAX_RETRY_AFTER)
}
