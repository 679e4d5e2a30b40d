use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use rubelet_apiserver::Verb;
use rubelet_types::Clock;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::authority::Authority;
use crate::faults::{Fault, Faults, Struck};
use crate::operations::{carry_out, parse, with_type};
use crate::refusal::Refusal;
use crate::reviews::{User, review_token};
use crate::route::Route;
use crate::storage::{Key, Storage};
use crate::watching::Watching;

/// How the server is to be.
#[derive(Clone, Debug)]
pub struct FakeOptions {
    /// The time that objects are stamped with.
    pub clock: Clock,
    /// What chance begins with.
    pub seed: u64,
}

impl Default for FakeOptions {
    fn default() -> Self {
        Self { clock: Clock::system(), seed: 0 }
    }
}

/// The server: cheap to clone, and gone with its last clone and connection.
///
/// It begins with the namespaces `default`, `kube-system`, `kube-public` and `kube-node-lease`.
#[derive(Clone)]
pub struct FakeApiServer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) clock: Clock,
    storage: Mutex<Storage>,
    faults: Faults,
    pub(crate) knobs: Knobs,
    users: Mutex<HashMap<String, User>>,
    must_authenticate: AtomicBool,
    access: Mutex<Access>,
    signer: Mutex<Option<Authority>>,
    requests: Mutex<HashMap<(Verb, String), u64>>,
    pub(crate) watches: AtomicUsize,
    pub(crate) connections: AtomicUsize,
}

type Access = Arc<dyn Fn(&Value) -> bool + Send + Sync>;

/// What tests turn, and connections and watches look at.
#[derive(Debug)]
pub(crate) struct Knobs {
    /// Counts the changes of objects.
    pub(crate) changes: watch::Sender<u64>,
    /// Counts the times that all watches were ended.
    pub(crate) cuts: watch::Sender<u64>,
    /// Counts the times that all watches were to send a bookmark.
    pub(crate) bookmarks: watch::Sender<u64>,
    /// Watches tell nothing.
    pub(crate) holds_watches: watch::Sender<bool>,
    /// Connections are neither read nor written.
    pub(crate) is_frozen: watch::Sender<bool>,
    /// Nobody answers.
    is_away: AtomicBool,
    /// Ends all connections there are.
    connections: Mutex<CancellationToken>,
    /// Lets all connections there are be neither read nor written any more.
    stuck: Mutex<CancellationToken>,
}

impl Knobs {
    fn new() -> Self {
        Self {
            changes: watch::Sender::new(0),
            cuts: watch::Sender::new(0),
            bookmarks: watch::Sender::new(0),
            holds_watches: watch::Sender::new(false),
            is_frozen: watch::Sender::new(false),
            is_away: AtomicBool::new(false),
            connections: Mutex::default(),
            stuck: Mutex::default(),
        }
    }

    pub(crate) fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Acquire)
    }

    /// Stops a connection that begins now, when all are stopped.
    pub(crate) fn stuck(&self) -> CancellationToken {
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends a connection that begins now, when all are ended.
    pub(crate) fn connection(&self) -> CancellationToken {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// The connection is to break.
#[derive(Debug)]
pub(crate) struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken on purpose")
    }
}

impl std::error::Error for Broken {}

impl FakeApiServer {
    /// A server that keeps nothing but its namespaces.
    pub fn new(options: FakeOptions) -> Self {
        let inner = Inner {
            clock: options.clock,
            storage: Mutex::new(Storage::new()),
            faults: Faults::new(options.seed),
            knobs: Knobs::new(),
            users: Mutex::default(),
            must_authenticate: AtomicBool::new(false),
            access: Mutex::new(Arc::new(|_| true)),
            signer: Mutex::default(),
            requests: Mutex::default(),
            watches: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        };
        let server = Self { inner: Arc::new(inner) };
        for name in ["default", "kube-system", "kube-public", "kube-node-lease"] {
            server.add_namespace(name);
        }
        server
    }

    /// Makes a namespace, if there is none of this name.
    pub fn add_namespace(&self, name: &str) {
        let mut storage = self.inner.storage();
        let key = Key { plural: "namespaces", namespace: String::new(), name: name.to_owned() };
        if storage.get(&key).is_none() {
            let uid = storage.next_uid();
            let at = crate::pods::timestamp(self.inner.clock.now());
            let namespace = json!({
                "metadata": {"name": name, "uid": uid, "creationTimestamp": at},
                "spec": {"finalizers": ["kubernetes"]},
                "status": {"phase": "Active"},
            });
            storage.put(key, namespace);
            drop(storage);
            self.inner.tell_watches();
        }
    }

    /// Lets something go wrong.
    pub fn inject(&self, fault: Fault) {
        self.inner.faults.inject(fault);
    }

    /// Takes back the faults that still wait.
    pub fn clear_faults(&self) {
        self.inner.faults.clear();
    }

    /// Ends all watches in good order, as a server does from time to time.
    pub fn cut_watches(&self) {
        self.inner.knobs.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Lets all watches that want them send a bookmark now.
    pub fn send_bookmarks(&self) {
        self.inner.knobs.bookmarks.send_modify(|bookmarks| *bookmarks += 1);
    }

    /// Lets watches tell nothing, or everything again.
    pub fn hold_watches(&self, is_held: bool) {
        self.inner.knobs.holds_watches.send_replace(is_held);
    }

    /// Breaks all connections. New ones are taken.
    pub fn break_connections(&self) {
        let mut connections =
            self.inner.knobs.connections.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *connections).cancel();
    }

    /// Lets nothing pass over the connections there are, in either direction, and does not close
    /// them, as when the way between is cut. New ones work.
    pub fn stick_connections(&self) {
        let mut stuck = self.inner.knobs.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *stuck).cancel();
    }

    /// Goes away: all connections break, and new ones are refused. Or comes back.
    pub fn set_away(&self, is_away: bool) {
        self.inner.knobs.is_away.store(is_away, Ordering::Release);
        if is_away {
            self.break_connections();
        }
    }

    /// Stops to read and write, as a process that is stopped does; connections stay. Or goes on.
    pub fn set_frozen(&self, is_frozen: bool) {
        self.inner.knobs.is_frozen.send_replace(is_frozen);
    }

    /// Forgets what has changed: lists that are half read, and watches from now back, are refused
    /// as expired.
    pub fn forget_history(&self) {
        self.inner.storage().forget_history();
    }

    /// Makes the bearer token stand for a user.
    pub fn add_user(&self, token: impl Into<String>, user: User) {
        self.inner.users().insert(token.into(), user);
    }

    /// The bearer token stands for nobody any more.
    pub fn remove_user(&self, token: &str) {
        self.inner.users().remove(token);
    }

    /// Refuses requests without a known token, or a client certificate that was verified.
    pub fn require_authentication(&self, is_required: bool) {
        self.inner.must_authenticate.store(is_required, Ordering::Release);
    }

    /// Decides reviews of access, by the review's `spec`. Everything is allowed without it.
    pub fn allow_if(&self, access: impl Fn(&Value) -> bool + Send + Sync + 'static) {
        *self.inner.access.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    /// Approves and signs each certificate request at once, with this authority; or does not.
    pub fn sign_certificates(&self, signer: Option<Authority>) {
        *self.inner.signer.lock().unwrap_or_else(PoisonError::into_inner) = signer;
    }

    /// How many requests of this kind there were, refused ones included.
    pub fn requests(&self, verb: Verb, resource: &str) -> u64 {
        self.inner.counts().get(&(verb, resource.to_owned())).copied().unwrap_or(0)
    }

    /// Grows with every change of an object.
    pub fn revision(&self) -> u64 {
        self.inner.storage().revision()
    }

    /// How many watches are open.
    pub fn open_watches(&self) -> usize {
        self.inner.watches.load(Ordering::Acquire)
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.inner.connections.load(Ordering::Acquire)
    }
}

impl fmt::Debug for FakeApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FakeApiServer")
    }
}

impl Inner {
    pub(crate) fn storage(&self) -> MutexGuard<'_, Storage> {
        self.storage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn users(&self) -> MutexGuard<'_, HashMap<String, User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<(Verb, String), u64>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets watches look for changes.
    pub(crate) fn tell_watches(&self) {
        self.knobs.changes.send_modify(|changes| *changes += 1);
    }

    /// Answers one request. `peer` is who the connection's client certificate says.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Option<User>,
    ) -> Result<Response<Body>, Broken> {
        match request.uri().path() {
            "/healthz" | "/livez" | "/readyz" => return Ok(plain("ok")),
            "/version" => {
                let version = json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2"});
                return Ok(json_response(StatusCode::OK, &version, None));
            }
            _ => {}
        }
        match self.try_answer(request, peer).await {
            Ok(response) => Ok(response),
            Err(Struck::Broken) => Err(Broken),
            Err(Struck::Refused(refusal)) => {
                Ok(json_response(refusal.status_code(), &refusal.to_status(), refusal.retry_after))
            }
        }
    }

    async fn try_answer(
        self: &Arc<Self>,
        request: Request<Incoming>,
        peer: Option<User>,
    ) -> Result<Response<Body>, Struck> {
        let route = Route::parse(request.method(), request.uri()).map_err(Struck::Refused)?;
        *self.counts().entry((route.verb, route.resource())).or_default() += 1;
        let user = self.authenticate(request.headers(), peer).map_err(Struck::Refused)?;
        let content_type = request
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned();
        let body = request.into_body().collect().await.map_err(|_| Struck::Broken)?.to_bytes();
        self.faults.strike(&route, false).await?;
        if route.verb == Verb::Watch {
            let watching = Watching::begin(self, &route).map_err(Struck::Refused)?;
            let frames = watching.into_stream().map(|line| Ok(Frame::data(line)));
            let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            return Ok(response);
        }
        let (code, answer) =
            self.change(&route, &user, &content_type, &body).map_err(Struck::Refused)?;
        self.faults.strike(&route, true).await?;
        let code = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
        Ok(json_response(code, &answer, None))
    }

    fn authenticate(&self, headers: &HeaderMap, peer: Option<User>) -> Result<User, Refusal> {
        let token = headers
            .get(AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let known = token.and_then(|token| self.users().get(token).cloned());
        match known.or(peer) {
            Some(user) => Ok(user),
            None if self.must_authenticate.load(Ordering::Acquire) => Err(Refusal::unauthorized()),
            None => Ok(User {
                name: "system:admin".to_owned(),
                groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            }),
        }
    }

    fn change(
        &self,
        route: &Route,
        user: &User,
        content_type: &str,
        body: &[u8],
    ) -> Result<(u16, Value), Refusal> {
        match (route.kind.kind, route.verb) {
            ("TokenReview", Verb::Create) => {
                let review = review_token(parse(body)?, &self.users());
                return Ok((201, with_type(route.kind, &review)));
            }
            ("SubjectAccessReview", Verb::Create) => {
                let mut review = parse(body)?;
                let access =
                    Arc::clone(&self.access.lock().unwrap_or_else(PoisonError::into_inner));
                review["status"] = json!({"allowed": access(&review["spec"])});
                return Ok((201, with_type(route.kind, &review)));
            }
            ("TokenReview" | "SubjectAccessReview", _) => {
                return Err(Refusal::method_not_allowed());
            }
            _ => {}
        }
        let now = self.clock.now();
        let mut storage = self.storage();
        let revision = storage.revision();
        let answer = carry_out(&mut storage, route, user, content_type, body, now);
        if answer.is_ok() && route.kind.plural == "certificatesigningrequests" {
            let signer = self.signer.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some(signer), Verb::Create) = (&*signer, route.verb) {
                signer.sign_all(&mut storage, now);
            }
        }
        let has_changed = storage.revision() != revision;
        drop(storage);
        if has_changed {
            self.tell_watches();
        }
        answer
    }
}

fn plain(text: &'static str) -> Response<Body> {
    Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync())
}

fn json_response(code: StatusCode, body: &Value, retry_after: Option<u32>) -> Response<Body> {
    let body = Bytes::from(body.to_string());
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}
