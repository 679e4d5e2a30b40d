use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::connection::{Connection, InvalidEndpoint, socket_path};
use crate::v1::image_service_client::ImageServiceClient;
use crate::v1::runtime_service_client::RuntimeServiceClient;
use crate::{CriError, Rpc, RuntimeMetrics};

/// Largest message taken from the runtime.
const MAX_RECEIVE_BYTES: usize = 16 * 1024 * 1024;

/// Deadlines beyond this are as good as this; keeps arithmetic on users' grace periods in range.
const LONGEST_DEADLINE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// How a [`CriClient`] behaves.
#[derive(Clone, Debug)]
pub struct CriOptions {
    /// `runtimeRequestTimeout`: the deadline of most calls, and the unit of the others.
    pub request_timeout: Duration,
    /// Feature gate `CRIListStreaming`: fetch lists in parts, which the size limit of one message
    /// does not touch. A runtime without these calls is asked the old way from then on.
    pub list_streaming: bool,
}

impl Default for CriOptions {
    fn default() -> Self {
        Self { request_timeout: Duration::from_secs(120), list_streaming: false }
    }
}

/// The client of one container runtime: one method for each call of the CRI.
///
/// A clone is cheap and shares the connection. Nothing is connected before the first call; a
/// connection that breaks is made again, with gRPC's back-off from 100 ms to 3 s, during which
/// calls fail at once with [`crate::CriErrorKind::Unavailable`]. Every call but those that say so
/// ends by its deadline. Dropping the future of a call cancels it.
#[derive(Clone, Debug)]
pub struct CriClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    runtime: Connection,
    /// None: the runtime's socket serves images too.
    image: Option<Connection>,
    request_timeout: Duration,
    list_streaming: AtomicBool,
    metrics: Arc<RuntimeMetrics>,
}

impl CriClient {
    /// A client of the unix socket `runtime_endpoint`, and of `image_endpoint` for images if that
    /// is another one.
    ///
    /// # Errors
    ///
    /// An endpoint is neither `unix:///path` nor an absolute path.
    pub fn connect_lazy(
        runtime_endpoint: &str,
        image_endpoint: Option<&str>,
        options: CriOptions,
    ) -> Result<Self, InvalidEndpoint> {
        let runtime = socket_path(runtime_endpoint)?;
        let image = image_endpoint
            .filter(|endpoint| !endpoint.is_empty())
            .map(socket_path)
            .transpose()?
            .filter(|image| *image != runtime)
            .map(Connection::to_socket);
        Ok(Self::new(Connection::to_socket(runtime), image, options))
    }

    /// A client over a channel made by the caller, for a runtime in the same process.
    pub fn over_channel(channel: Channel, options: CriOptions) -> Self {
        Self::new(Connection::over(channel), None, options)
    }

    fn new(runtime: Connection, image: Option<Connection>, options: CriOptions) -> Self {
        let CriOptions { request_timeout, list_streaming } = options;
        let list_streaming = AtomicBool::new(list_streaming);
        let metrics = Arc::default();
        let inner = Inner { runtime, image, request_timeout, list_streaming, metrics };
        Self { inner: Arc::new(inner) }
    }

    /// What is counted of its calls, those of its clones included.
    pub fn metrics(&self) -> &Arc<RuntimeMetrics> {
        &self.inner.metrics
    }

    /// `runtimeRequestTimeout`.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.inner.request_timeout
    }

    fn runtime_service(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.inner.runtime.channel())
            .max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    fn image_service(&self) -> ImageServiceClient<Channel> {
        let connection = self.inner.image.as_ref().unwrap_or(&self.inner.runtime);
        ImageServiceClient::new(connection.channel()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// One call to the runtime service with the usual deadline.
    pub(crate) async fn runtime<M, R, F>(
        &self,
        rpc: Rpc,
        message: M,
        send: impl FnOnce(RuntimeServiceClient<Channel>, Request<M>) -> F,
    ) -> Result<R, CriError>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        self.runtime_within(rpc, Some(self.request_timeout()), message, send).await
    }

    /// One call to the runtime service with a deadline of its own, or none.
    ///
    /// The call lives on the heap: callers keep many of these futures within their own.
    pub(crate) async fn runtime_within<M, R, F>(
        &self,
        rpc: Rpc,
        deadline: Option<Duration>,
        message: M,
        send: impl FnOnce(RuntimeServiceClient<Channel>, Request<M>) -> F,
    ) -> Result<R, CriError>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let deadline = bounded(deadline);
        let answer = Box::pin(send(self.runtime_service(), request(message, deadline)));
        self.within(rpc, deadline, async { Ok(answer.await?.into_inner()) }).await
    }

    /// One call to the image service.
    pub(crate) async fn image_within<M, R, F>(
        &self,
        rpc: Rpc,
        deadline: Option<Duration>,
        message: M,
        send: impl FnOnce(ImageServiceClient<Channel>, Request<M>) -> F,
    ) -> Result<R, CriError>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let deadline = bounded(deadline);
        let answer = Box::pin(send(self.image_service(), request(message, deadline)));
        self.within(rpc, deadline, async { Ok(answer.await?.into_inner()) }).await
    }

    /// A list: in parts if wanted and offered, else in one message.
    ///
    /// `parts` starts the streaming call, `items` takes the items out of a part.
    pub(crate) async fn list<M, P, T, F>(
        &self,
        rpc: Rpc,
        message: M,
        parts: impl FnOnce(Clients, Request<M>) -> F,
        items: impl Fn(P) -> Vec<T>,
        in_one: impl Future<Output = Result<Vec<T>, CriError>>,
    ) -> Result<Vec<T>, CriError>
    where
        F: Future<Output = Result<Response<Streaming<P>>, Status>>,
    {
        if !self.inner.list_streaming.load(Ordering::Relaxed) {
            return in_one.await;
        }
        let deadline = bounded(Some(self.request_timeout()));
        let clients = Clients { runtime: self.runtime_service(), image: self.image_service() };
        let answer = Box::pin(parts(clients, request(message, deadline)));
        let collected = self.within(rpc, deadline, async {
            let mut stream = answer.await?.into_inner();
            let mut all = Vec::new();
            while let Some(part) = stream.message().await? {
                all.extend(items(part));
            }
            Ok(all)
        });
        match collected.await {
            Err(error) if error.is_unimplemented() => {
                tracing::info!(%rpc, "the runtime does not stream lists, asking for whole ones");
                self.inner.list_streaming.store(false, Ordering::Relaxed);
                in_one.await
            }
            result => result,
        }
    }

    /// A stream without a deadline. Runtimes may send nothing, not even headers, before the first
    /// message, so the future may stay pending for long.
    pub(crate) async fn stream<M, R, F>(
        &self,
        rpc: Rpc,
        message: M,
        send: impl FnOnce(RuntimeServiceClient<Channel>, Request<M>) -> F,
    ) -> Result<Streaming<R>, CriError>
    where
        F: Future<Output = Result<Response<Streaming<R>>, Status>>,
    {
        let answer = Box::pin(send(self.runtime_service(), Request::new(message)));
        self.within(rpc, None, async { Ok(answer.await?.into_inner()) }).await
    }

    async fn within<T>(
        &self,
        rpc: Rpc,
        deadline: Option<Duration>,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, CriError> {
        let started = Instant::now();
        let result = match deadline {
            Some(deadline) => match timeout(deadline, call).await {
                Ok(Err(status))
                    if status.code() == Code::Cancelled
                        && started.elapsed() + TIMER_RESOLUTION >= deadline =>
                {
                    Err(CriError::deadline(rpc, deadline))
                }
                Ok(result) => result.map_err(|status| CriError::from_status(rpc, status)),
                Err(_) => Err(CriError::deadline(rpc, deadline)),
            },
            None => call.await.map_err(|status| CriError::from_status(rpc, status)),
        };
        let duration = started.elapsed();
        if let Err(error) = &result {
            tracing::debug!(%rpc, ?duration, %error, "CRI call failed");
        }
        self.inner.metrics.record(rpc, duration, result.is_err());
        result
    }
}

/// Both sides of a call learn the deadline and time it on their own; the other side's timer, or
/// the transport's, may fire this much before ours and then reports a cancelled call.
const TIMER_RESOLUTION: Duration = Duration::from_millis(5);

/// Both services, for list calls, whichever they go to.
pub(crate) struct Clients {
    pub(crate) runtime: RuntimeServiceClient<Channel>,
    pub(crate) image: ImageServiceClient<Channel>,
}

fn bounded(deadline: Option<Duration>) -> Option<Duration> {
    deadline.map(|deadline| deadline.min(LONGEST_DEADLINE))
}

fn request<M>(message: M, deadline: Option<Duration>) -> Request<M> {
    let mut request = Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline);
    }
    request
}
