use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Base, ByteStream, ConnectError, Dialer, Request};

/// Streams on one HTTP/2 connection. The API server allows 100 by default, and a request too many
/// would wait for another one's end.
const MAX_STREAMS: usize = 90;
/// What a stream may hold that nobody has read yet.
const STREAM_WINDOW: u32 = 256 * 1024;
/// All streams together: so large that slow readers leave room for the others.
const CONNECTION_WINDOW: u32 = 90 * STREAM_WINDOW;
/// A connection on which nothing came for this long is asked for a sign of life...
const PING_AFTER: Duration = Duration::from_secs(10);
/// ... and is given up if there is none within this time.
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// A connection that nobody uses for this long (at most twice as long) is closed.
const IDLE_LIMIT: Duration = Duration::from_secs(90);
/// How often a request moves on to another connection because one was closing.
const MAX_CONNECTIONS_TRIED: u32 = 3;

/// Connections to one server for one purpose.
#[derive(Debug)]
pub(crate) struct Pool {
    dialer: Dialer,
    base: Base,
    shared: Arc<Shared>,
    /// Held while connecting, so that many requests make one connection.
    dialing: tokio::sync::Mutex<Option<Arc<ConnectError>>>,
    /// Attempts that are over.
    dialed: AtomicU64,
    /// Set once HTTP/1.1 was spoken: each request needs a connection of its own.
    is_http1: AtomicBool,
}

#[derive(Debug)]
struct Shared {
    connections: Mutex<Connections>,
}

#[derive(Debug)]
struct Connections {
    http2: Vec<Http2>,
    idle_http1: Vec<Http1>,
    identity_version: u64,
    /// Ends all of them.
    end: CancellationToken,
}

type Http2Connection = http2::Connection<TokioIo<Box<dyn ByteStream>>, Full<Bytes>, TokioExecutor>;

#[derive(Clone, Debug)]
struct Http2 {
    sender: http2::SendRequest<Full<Bytes>>,
    state: Arc<State>,
}

#[derive(Debug)]
struct Http1 {
    sender: http1::SendRequest<Full<Bytes>>,
    state: Arc<State>,
}

/// What is known about one connection.
#[derive(Debug, Default)]
struct State {
    in_use: AtomicUsize,
    /// Streams that the server allows.
    room: AtomicUsize,
    was_used: AtomicBool,
    /// Takes no more requests.
    is_retired: AtomicBool,
}

impl State {
    fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }
}

/// A request that got no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// No connection could be made; several requests may share the reason.
    Connect(Arc<ConnectError>),
    /// The connection broke.
    Broken(hyper::Error),
    /// The request cannot be put into HTTP.
    Unsendable(http::Error),
    /// The deadline passed.
    Deadline,
}

/// The right to a connection while an answer is read.
#[derive(Debug)]
pub(crate) struct Lease {
    connection: Leased,
    shared: Arc<Shared>,
}

#[derive(Debug)]
enum Leased {
    Http2(Http2),
    Http1(Option<Http1>),
}

impl Lease {
    fn state(&self) -> Option<&State> {
        match &self.connection {
            Leased::Http2(connection) => Some(&connection.state),
            Leased::Http1(connection) => connection.as_ref().map(|connection| &*connection.state),
        }
    }

    /// The answer has been read to its end: the connection may serve others.
    pub(crate) fn finish(mut self) {
        if let Leased::Http1(connection) = &mut self.connection
            && let Some(connection) = connection.take()
        {
            connection.state.in_use.store(0, Ordering::Release);
            let mut connections = self.shared.lock();
            if !connections.end.is_cancelled() && !connection.state.is_retired() {
                connections.idle_http1.push(connection);
            }
        }
    }

    /// The peer does not answer: others should not wait for it either.
    pub(crate) fn suspect(&self) {
        if let Some(state) = self.state() {
            state.retire();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Leased::Http2(connection) = &self.connection {
            connection.state.in_use.fetch_sub(1, Ordering::AcqRel);
        }
        // An HTTP/1.1 connection whose answer was not read to the end goes with its sender.
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    pub(crate) fn new(dialer: Dialer, base: Base) -> Self {
        let connections = Connections {
            http2: Vec::new(),
            idle_http1: Vec::new(),
            identity_version: 0,
            end: CancellationToken::new(),
        };
        Self {
            dialer,
            base,
            shared: Arc::new(Shared { connections: Mutex::new(connections) }),
            dialing: tokio::sync::Mutex::default(),
            dialed: AtomicU64::new(0),
            is_http1: AtomicBool::new(false),
        }
    }

    /// Sends `request`, on a connection that is there or a new one, and gives the beginning of the
    /// answer.
    pub(crate) async fn send(
        &self,
        request: &Request,
        authorization: Option<&HeaderValue>,
        deadline: Instant,
    ) -> Result<(Response<Incoming>, Lease), SendError> {
        let mut tried = 0;
        loop {
            tried += 1;
            let (lease, is_new) = timeout_at(deadline, self.checkout())
                .await
                .map_err(|_| SendError::Deadline)?
                .map_err(SendError::Connect)?;
            let (lease, outcome) = self.send_on(lease, request, authorization, deadline).await?;
            let (error, was_sent) = match outcome {
                Ok(response) => return Ok((response, lease)),
                Err(failure) => failure,
            };
            lease.suspect();
            // A connection that was idle may have been closed by the other side at any time. What
            // was not sent, or changes nothing, goes over another one.
            let may_retry = !was_sent || (request.is_read() && !is_new);
            if !may_retry || tried >= MAX_CONNECTIONS_TRIED {
                return Err(SendError::Broken(error));
            }
        }
    }

    #[allow(clippy::type_complexity)] // The two layers are two kinds of failure.
    async fn send_on(
        &self,
        mut lease: Lease,
        request: &Request,
        authorization: Option<&HeaderValue>,
        deadline: Instant,
    ) -> Result<(Lease, Result<Response<Incoming>, (hyper::Error, bool)>), SendError> {
        let build = |version| {
            request.build(&self.base, authorization, version).map_err(SendError::Unsendable)
        };
        let outcome = match &mut lease.connection {
            Leased::Http2(connection) => {
                let request = build(Version::HTTP_2)?;
                timeout_at(deadline, connection.sender.try_send_request(request)).await
            }
            Leased::Http1(Some(connection)) => {
                let request = build(Version::HTTP_11)?;
                timeout_at(deadline, connection.sender.try_send_request(request)).await
            }
            Leased::Http1(None) => return Err(SendError::Deadline),
        };
        match outcome {
            Err(_) => {
                lease.suspect();
                Err(SendError::Deadline)
            }
            Ok(Ok(response)) => Ok((lease, Ok(response))),
            Ok(Err(mut failure)) => {
                let was_sent = failure.take_message().is_none();
                Ok((lease, Err((failure.into_error(), was_sent))))
            }
        }
    }

    /// Ends all connections at once; requests on them fail. New requests make new ones.
    pub(crate) fn close(&self) {
        let mut connections = self.shared.lock();
        connections.http2.clear();
        connections.idle_http1.clear();
        std::mem::take(&mut connections.end).cancel();
    }

    /// Lets go of all connections: each ends when its last request has its answer.
    pub(crate) fn release(&self) {
        let mut connections = self.shared.lock();
        connections.http2.clear();
        connections.idle_http1.clear();
    }

    /// A connection, and whether it is new.
    async fn checkout(&self) -> Result<(Lease, bool), Arc<ConnectError>> {
        self.drop_outdated();
        if let Some(lease) = self.reuse().await {
            return Ok((lease, false));
        }
        let dialed = self.dialed.load(Ordering::Acquire);
        let mut last_failure = self.dialing.lock().await;
        if let Some(lease) = self.reuse().await {
            return Ok((lease, false));
        }
        if self.dialed.load(Ordering::Acquire) != dialed
            && let Some(failure) = &*last_failure
        {
            // Somebody tried while this request waited for its turn.
            return Err(Arc::clone(failure));
        }
        if self.is_http1.load(Ordering::Acquire) {
            drop(last_failure);
            let lease = self.connect().await.map_err(Arc::new)?;
            return Ok((lease, true));
        }
        let connected = self.connect().await.map_err(Arc::new);
        self.dialed.fetch_add(1, Ordering::AcqRel);
        *last_failure = connected.as_ref().err().cloned();
        Ok((connected?, true))
    }

    /// A plugin has given another client certificate: the old one's connections are to end.
    fn drop_outdated(&self) {
        let version = self.dialer.identity_version();
        let mut connections = self.shared.lock();
        if std::mem::replace(&mut connections.identity_version, version) != version {
            connections.http2.clear();
            connections.idle_http1.clear();
            std::mem::take(&mut connections.end).cancel();
        }
    }

    async fn reuse(&self) -> Option<Lease> {
        loop {
            let mut idle = {
                let mut connections = self.shared.lock();
                connections.http2.retain(|connection| {
                    !connection.state.is_retired() && !connection.sender.is_closed()
                });
                let free = connections.http2.iter().find(|connection| connection.has_room());
                if let Some(connection) = free {
                    return Some(self.lease_http2(connection.clone()));
                }
                connections.idle_http1.pop()?
            };
            // Its last answer has been read, so that this takes no time.
            if !idle.state.is_retired() && idle.sender.ready().await.is_ok() {
                idle.state.in_use.store(1, Ordering::Release);
                idle.state.was_used.store(true, Ordering::Release);
                return Some(self.lease(Leased::Http1(Some(idle))));
            }
        }
    }

    fn lease(&self, connection: Leased) -> Lease {
        Lease { connection, shared: Arc::clone(&self.shared) }
    }

    fn lease_http2(&self, connection: Http2) -> Lease {
        connection.state.in_use.fetch_add(1, Ordering::AcqRel);
        connection.state.was_used.store(true, Ordering::Release);
        self.lease(Leased::Http2(connection))
    }

    async fn connect(&self) -> Result<Lease, ConnectError> {
        let end = self.shared.lock().end.clone();
        let (stream, is_http2) = self.dialer.dial().await?;
        self.is_http1.store(!is_http2, Ordering::Release);
        let state = Arc::new(State::default());
        let io = TokioIo::new(stream);
        if !is_http2 {
            let (sender, connection) = http1::handshake(io).await.map_err(ConnectError::Http)?;
            state.in_use.store(1, Ordering::Release);
            tokio::spawn(look_after(connection, Arc::clone(&state), end));
            return Ok(self.lease(Leased::Http1(Some(Http1 { sender, state }))));
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PONG_WITHIN)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(io)
            .await
            .map_err(ConnectError::Http)?;
        state.room.store(connection.current_max_send_streams(), Ordering::Release);
        let driven = driven(connection, Arc::clone(&state));
        tokio::spawn(look_after(driven, Arc::clone(&state), end.clone()));
        let connection = Http2 { sender, state };
        let lease = self.lease_http2(connection.clone());
        if !end.is_cancelled() {
            self.shared.lock().http2.push(connection);
        }
        Ok(lease)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().end.cancel();
    }
}

impl Http2 {
    fn has_room(&self) -> bool {
        let room = self.state.room.load(Ordering::Acquire).min(MAX_STREAMS);
        self.state.in_use.load(Ordering::Acquire) < room
    }
}

/// An HTTP/2 connection that keeps note of how many streams the server allows.
fn driven(
    mut connection: Http2Connection,
    state: Arc<State>,
) -> impl Future<Output = Result<(), hyper::Error>> {
    std::future::poll_fn(move |context| {
        let polled = Pin::new(&mut connection).poll(context);
        state.room.store(connection.current_max_send_streams(), Ordering::Release);
        polled
    })
}

/// Drives a connection until it ends by itself, has been idle for long, or is told to end.
async fn look_after(
    connection: impl Future<Output = Result<(), hyper::Error>>,
    state: Arc<State>,
    end: CancellationToken,
) {
    let mut connection = pin!(connection);
    loop {
        tokio::select! {
            result = &mut connection => {
                if let Err(error) = result {
                    tracing::debug!(%error, "connection to the API server");
                }
                break;
            }
            () = end.cancelled() => break,
            () = sleep(IDLE_LIMIT) => {
                let is_idle = state.in_use.load(Ordering::Acquire) == 0
                    && !state.was_used.swap(false, Ordering::AcqRel);
                if is_idle {
                    break;
                }
            }
        }
    }
    state.retire();
}
