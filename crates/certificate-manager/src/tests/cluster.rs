//! A small cluster: it keeps requests, and approves and signs them as it is told.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use rcgen::{CertificateParams, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rubelet_types::Clock;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension};

use crate::testing::{at, signed};
use crate::{
    CertificatePair, CertificateStatus, Purpose, RequestError, RequestErrorKind, RotationPort,
    SeenRequest, SigningRequests,
};

/// How the signer dates certificates back.
pub(crate) const BACKDATE: i64 = 300;

/// What the cluster does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    /// It leaves it alone.
    Ignore,
    /// It approves and signs it.
    Sign,
    /// It signs it, and forgets the names.
    SignWithoutNames,
    Deny,
    Fail,
}

/// How the API server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Up,
    /// It knows nobody any more.
    Unauthorized,
    Forbidden,
    /// It is in trouble.
    Internal,
    Unreachable,
}

/// One request that came in.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    /// Since the start of the test.
    pub(crate) after: Duration,
    /// Under which credentials: `initial` or `own`.
    pub(crate) by: &'static str,
    pub(crate) name: String,
    /// Host names and addresses.
    pub(crate) names: Vec<String>,
}

#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    start: Instant,
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

struct State {
    policy: Policy,
    server: Server,
    /// Of certificates, in seconds.
    lifetime: i64,
    /// The wall clock is ahead by this.
    ahead: SignedDuration,
    requests: BTreeMap<String, CertificateSigningRequest>,
    came: Vec<Came>,
    /// Tries to create, the refused ones included.
    tries: Vec<Duration>,
    /// How often somebody was told of a new certificate.
    changed: usize,
    made: u64,
}

impl Cluster {
    pub(crate) fn new(policy: Policy, lifetime: i64) -> Self {
        let state = State {
            policy,
            server: Server::Up,
            lifetime,
            ahead: SignedDuration::ZERO,
            requests: BTreeMap::new(),
            came: Vec::new(),
            tries: Vec::new(),
            changed: 0,
            made: 0,
        };
        Self(Arc::new(Inner {
            start: Instant::now(),
            state: Mutex::new(state),
            changes: watch::Sender::new(0),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// The wall clock of everybody: [`at`] 0 at the start, and in step with simulated time.
    pub(crate) fn clock(&self) -> Clock {
        let this = self.clone();
        Clock::from_fn(move || {
            let elapsed = SignedDuration::try_from(this.0.start.elapsed()).unwrap();
            at(0) + elapsed + this.state().ahead
        })
    }

    pub(crate) fn set_clock_ahead(&self, ahead: SignedDuration) {
        self.state().ahead = ahead;
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        let mut state = self.state();
        state.policy = policy;
        let names: Vec<String> = state.requests.keys().cloned().collect();
        let now = self.now(&state);
        for name in names {
            decide(&mut state, &name, now);
        }
        drop(state);
        self.0.changes.send_modify(|version| *version += 1);
    }

    pub(crate) fn set_server(&self, server: Server) {
        self.state().server = server;
    }

    pub(crate) fn set_lifetime(&self, seconds: i64) {
        self.state().lifetime = seconds;
    }

    pub(crate) fn remove(&self, name: &str) {
        self.state().requests.remove(name);
        self.0.changes.send_modify(|version| *version += 1);
    }

    pub(crate) fn replace(&self, name: &str) {
        if let Some(request) = self.state().requests.get_mut(name) {
            request.metadata.uid = Some("another".to_owned());
        }
        self.0.changes.send_modify(|version| *version += 1);
    }

    /// All requests that were taken.
    pub(crate) fn came(&self) -> Vec<Came> {
        self.state().came.clone()
    }

    /// When somebody tried to create one.
    pub(crate) fn tries(&self) -> Vec<Duration> {
        self.state().tries.clone()
    }

    pub(crate) fn changed(&self) -> usize {
        self.state().changed
    }

    pub(crate) fn requests(&self, by: &'static str) -> Requests {
        Requests { cluster: self.clone(), by }
    }

    /// Lets time pass until `what` is true.
    pub(crate) async fn until(&self, what: impl Fn() -> bool) {
        let mut changes = self.0.changes.subscribe();
        let waiting = async {
            while !what() {
                // Not everything that is waited for is a change of the cluster.
                let _ = timeout(Duration::from_secs(1), changes.changed()).await;
            }
        };
        // Simulated time: a year passes in no time.
        let limit = Duration::from_secs(400 * 86_400);
        timeout(limit, waiting).await.expect("it never came");
    }

    fn now(&self, state: &State) -> Timestamp {
        at(0) + SignedDuration::try_from(self.0.start.elapsed()).unwrap() + state.ahead
    }
}

fn decide(state: &mut State, name: &str, now: Timestamp) {
    let (policy, lifetime) = (state.policy, state.lifetime);
    let Some(request) = state.requests.get_mut(name) else { return };
    if request.status.as_ref().is_some_and(|status| status.conditions.is_some()) {
        return;
    }
    let condition = |type_: &str| CertificateSigningRequestCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: Some("Because".to_owned()),
        message: Some("I say so".to_owned()),
        ..CertificateSigningRequestCondition::default()
    };
    let (condition, certificate) = match policy {
        Policy::Ignore => return,
        Policy::Deny => (condition("Denied"), None),
        Policy::Fail => (condition("Failed"), None),
        Policy::Sign | Policy::SignWithoutNames => {
            let keep_names = policy == Policy::Sign;
            let certificate = sign(&request.spec.request.0, now, lifetime, keep_names);
            (condition("Approved"), Some(ByteString(certificate.into_bytes())))
        }
    };
    request.status =
        Some(CertificateSigningRequestStatus { conditions: Some(vec![condition]), certificate });
}

/// Subject, names and public key of a request.
struct Parsed {
    common_name: String,
    names: Vec<String>,
    key: Vec<u8>,
}

impl PublicKeyData for Parsed {
    fn der_bytes(&self) -> &[u8] {
        &self.key
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

fn parse(pem: &[u8]) -> Parsed {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).unwrap();
    let (_, request) = X509CertificationRequest::from_der(&pem.contents).unwrap();
    let info = &request.certification_request_info;
    let mut names = Vec::new();
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(found) = extension else { continue };
        for name in &found.general_names {
            match name {
                GeneralName::DNSName(name) => names.push((*name).to_owned()),
                GeneralName::IPAddress(octets) => {
                    let ip = match <[u8; 4]>::try_from(*octets) {
                        Ok(octets) => IpAddr::from(octets),
                        Err(_) => IpAddr::from(<[u8; 16]>::try_from(*octets).unwrap()),
                    };
                    names.push(ip.to_string());
                }
                other => panic!("{other}"),
            }
        }
    }
    let common_name = info.subject.iter_common_name().next().unwrap().as_str().unwrap();
    let key = info.subject_pki.subject_public_key.data.to_vec();
    Parsed { common_name: common_name.to_owned(), names, key }
}

fn sign(request: &[u8], now: Timestamp, lifetime: i64, keep_names: bool) -> String {
    let parsed = parse(request);
    let names: Vec<&str> = match keep_names {
        true => parsed.names.iter().map(String::as_str).collect(),
        false => Vec::new(),
    };
    let issuer = Issuer::new(CertificateParams::default(), KeyPair::generate().unwrap());
    let seconds = SignedDuration::from_secs;
    let (from, until) = (now - seconds(BACKDATE), now + seconds(lifetime));
    signed(&parsed.common_name, from, until, &names, &parsed, &issuer)
}

/// The cluster under one set of credentials.
#[derive(Clone)]
pub(crate) struct Requests {
    cluster: Cluster,
    by: &'static str,
}

impl Requests {
    fn check(&self) -> Result<(), RequestError> {
        let (kind, message) = match self.cluster.state().server {
            Server::Up => return Ok(()),
            Server::Unauthorized => (RequestErrorKind::Unauthorized, "Unauthorized"),
            Server::Forbidden => (RequestErrorKind::Forbidden, "forbidden: User \"x\" cannot"),
            Server::Internal => (RequestErrorKind::Other, "etcd has no leader"),
            Server::Unreachable => (RequestErrorKind::Other, "connection refused"),
        };
        Err(RequestError { kind, message: message.to_owned(), source: None })
    }
}

impl SigningRequests for Requests {
    async fn create(
        &self,
        request: &CertificateSigningRequest,
    ) -> Result<CertificateSigningRequest, RequestError> {
        let after = self.cluster.0.start.elapsed();
        self.cluster.state().tries.push(after);
        self.cluster.0.changes.send_modify(|version| *version += 1);
        self.check()?;
        let mut state = self.cluster.state();
        state.made += 1;
        let mut request = request.clone();
        let metadata = &mut request.metadata;
        let name = match metadata.name.clone() {
            Some(name) => name,
            None => format!("{}{}", metadata.generate_name.clone().unwrap(), state.made),
        };
        if state.requests.contains_key(&name) {
            let message = format!("certificatesigningrequests \"{name}\" already exists");
            let kind = RequestErrorKind::AlreadyExists;
            return Err(RequestError { kind, message, source: None });
        }
        metadata.name = Some(name.clone());
        metadata.uid = Some(format!("uid-{}", state.made));
        let names = parse(&request.spec.request.0).names;
        state.came.push(Came { after, by: self.by, name: name.clone(), names });
        state.requests.insert(name.clone(), request.clone());
        let now = self.cluster.now(&state);
        decide(&mut state, &name, now);
        Ok(request)
    }

    async fn get(&self, name: &str) -> Result<CertificateSigningRequest, RequestError> {
        self.check()?;
        self.cluster.state().requests.get(name).cloned().ok_or_else(|| RequestError {
            kind: RequestErrorKind::NotFound,
            message: format!("certificatesigningrequests \"{name}\" not found"),
            source: None,
        })
    }

    fn watch(&self, name: &str) -> BoxStream<'static, SeenRequest> {
        let (this, name) = (self.clone(), name.to_owned());
        let mut changes = this.cluster.0.changes.subscribe();
        changes.mark_changed();
        stream::unfold(changes, move |mut changes| {
            let (this, name) = (this.clone(), name.clone());
            async move {
                changes.changed().await.ok()?;
                let seen = match (this.check(), this.cluster.state().requests.get(&name)) {
                    (Err(error), _) => SeenRequest::Interrupted(error),
                    (Ok(()), Some(request)) => SeenRequest::Present(Box::new(request.clone())),
                    (Ok(()), None) => SeenRequest::Absent,
                };
                Some((seen, changes))
            }
        })
        .boxed()
    }

    async fn is_responding(&self) -> bool {
        self.cluster.state().server != Server::Unreachable
    }
}

impl RotationPort for Cluster {
    type Requests = Requests;

    async fn signing_requests(
        &self,
        has_valid_certificate: bool,
    ) -> Result<Requests, Box<dyn Error + Send + Sync>> {
        Ok(self.requests(if has_valid_certificate { "own" } else { "initial" }))
    }

    async fn certificate_changed(&self) {
        self.state().changed += 1;
        self.0.changes.send_modify(|version| *version += 1);
    }
}

/// The pair behind a link, read as TLS reads it.
pub(crate) fn read_pair(path: &Path) -> CertificatePair {
    let pem = std::fs::read(path).unwrap();
    CertificatePair::from_pem(&pem, &pem).unwrap()
}

/// That what is on disk is what the manager says.
pub(crate) fn assert_in_store(status: &CertificateStatus, path: &Path) {
    assert_eq!(status.changes().borrow().as_deref(), Some(read_pair(path).leaf()));
}

/// The files of the store that hold pairs.
pub(crate) fn pairs(directory: &Path, purpose: Purpose) -> Vec<PathBuf> {
    let prefix = match purpose {
        Purpose::Client => "kubelet-client-2",
        Purpose::Serving => "kubelet-server-2",
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(prefix))
        .collect();
    files.sort();
    files
}
