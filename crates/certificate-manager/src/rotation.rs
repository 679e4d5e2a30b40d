//! Keeps one certificate up to date.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeAddress;
use rubelet_types::{Clock, error_chain};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::certificate::{CertificatePair, LeafCertificate, PairError};
use crate::issue::{Ask, IssueError, SigningRequests, submit, wait_until_issued};
use crate::key::SigningKey;
use crate::names::serving_template;
use crate::request::{Purpose, RequestName, RequestTemplate};
use crate::schedule::{
    Due, REQUEST_LIMIT, ServerAnswer, decide_due, retry_delay, rotation_deadline,
};
use crate::status::CertificateStatus;
use crate::store::{CertificateStore, StoreError};

/// The wall clock may be set: nobody sleeps longer than this before looking at it again.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// Certificates are not replaced faster than this, whatever they say.
const BETWEEN_ROTATIONS: Duration = Duration::from_secs(1);

/// What keeping a certificate up to date needs from outside.
pub trait RotationPort: Send + Sync {
    /// The API server, under one set of credentials.
    type Requests: SigningRequests;

    /// Asked before each try: with the certificate in use if it is valid, else with what the kubelet
    /// was given to begin with.
    fn signing_requests(
        &self,
        has_valid_certificate: bool,
    ) -> impl Future<Output = Result<Self::Requests, Box<dyn Error + Send + Sync>>> + Send;

    /// There is a new certificate in the store: take it into use. Returns soon.
    fn certificate_changed(&self) -> impl Future<Output = ()> + Send;
}

/// Whom the certificate has to name.
#[derive(Clone, Debug)]
pub(crate) enum Template {
    /// The node.
    Node(RequestTemplate),
    /// The node and its addresses, which change.
    Addresses { node_name: String, addresses: watch::Receiver<Vec<NodeAddress>>, dns_only: bool },
}

impl Template {
    fn current(&self) -> Option<RequestTemplate> {
        match self {
            Self::Node(template) => Some(template.clone()),
            Self::Addresses { node_name, addresses, dns_only } => {
                serving_template(node_name, &addresses.borrow(), *dns_only)
            }
        }
    }

    /// Waits until it may be another one.
    async fn changed(&mut self) {
        let changed = match self {
            Self::Node(_) => false,
            Self::Addresses { addresses, .. } => addresses.changed().await.is_ok(),
        };
        if !changed {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until it is another one than `requested`, and one that `leaf` does not satisfy.
    async fn outgrows(mut self, requested: &RequestTemplate, leaf: Option<Arc<LeafCertificate>>) {
        loop {
            if let Some(template) = self.current()
                && template != *requested
                && leaf.as_ref().is_none_or(|leaf| template.missing_in(leaf).is_some())
            {
                return;
            }
            self.changed().await;
        }
    }
}

/// Why a try to renew failed.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    /// There is no key.
    #[error("unable to generate a new private key")]
    Generate(#[source] rcgen::Error),
    /// There is nobody to ask.
    #[error("unable to load a client to request certificates")]
    Credentials(#[source] Box<dyn Error + Send + Sync>),
    /// The request did not become a certificate.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// What was signed is no certificate for our key.
    #[error("the signed certificate cannot be used")]
    Unusable(#[source] PairError),
    /// The certificate cannot be kept.
    #[error("unable to store the new cert/key pair")]
    Store(#[source] StoreError),
    /// The names of the node changed meanwhile: there is no use for this certificate any more.
    #[error("the names of the node changed while the request was on its way")]
    Superseded,
}

/// One certificate, from the store to the signer and back.
#[derive(Debug)]
pub(crate) struct Rotation {
    pub(crate) purpose: Purpose,
    pub(crate) store: CertificateStore,
    pub(crate) clock: Clock,
    pub(crate) status: CertificateStatus,
    /// Replace what there is in any case: it was made for somebody else.
    pub(crate) force: bool,
}

/// A rotation that has begun.
struct Running<'a, P> {
    rotation: Rotation,
    port: &'a P,
    template: Template,
    /// For which certificate, and when, it is due. Chance decides once for each.
    deadline: Option<(Arc<LeafCertificate>, Timestamp)>,
    /// When this process received the certificate in use.
    received: Option<Timestamp>,
    /// What was asked for last: a signer that leaves some of it out is not asked again and again.
    requested: Option<RequestTemplate>,
}

impl Rotation {
    /// Keeps the certificate up to date for as long as it is polled.
    pub(crate) async fn run<P: RotationPort>(self, port: &P, template: Template) {
        let mut running = Running {
            rotation: self,
            port,
            template,
            deadline: None,
            received: None,
            requested: None,
        };
        running.run().await;
    }
}

impl<P: RotationPort> Running<'_, P> {
    async fn run(&mut self) {
        tracing::info!(signer = self.signer(), "Certificate rotation is enabled");
        let mut told = None;
        loop {
            match self.due() {
                Due::WithTemplate => {
                    tracing::info!(
                        signer = self.signer(),
                        "Waiting for an address of the node before asking for a certificate"
                    );
                    self.template.changed().await;
                }
                Due::At(deadline) => {
                    let now = self.rotation.clock.now();
                    let wait = Duration::try_from(now.duration_until(deadline)).unwrap_or_default();
                    if told.replace(deadline) != Some(deadline) {
                        tracing::info!(signer = self.signer(), %deadline,
                            "Certificate rotation deadline determined");
                    }
                    tokio::select! {
                        () = sleep(wait.min(LONGEST_SLEEP)) => {}
                        () = self.template.changed() => {}
                    }
                }
                Due::Now(because) => {
                    tracing::info!(signer = self.signer(), because, "Rotating certificates");
                    self.renew_until_done().await;
                    sleep(BETWEEN_ROTATIONS).await;
                }
            }
        }
    }

    fn signer(&self) -> &'static str {
        self.rotation.purpose.signer_name()
    }

    fn due(&mut self) -> Due {
        let now = self.rotation.clock.now();
        let leaf = self.rotation.status.leaf();
        let deadline = leaf.as_ref().map(|leaf| match &self.deadline {
            Some((of, deadline)) if Arc::ptr_eq(of, leaf) => *deadline,
            _ => {
                let deadline = rotation_deadline(leaf, self.received, rand::random());
                self.deadline = Some((leaf.clone(), deadline));
                deadline
            }
        });
        decide_due(
            leaf.as_deref().zip(deadline),
            self.template.current().as_ref(),
            self.requested.as_ref(),
            self.rotation.force,
            now,
        )
    }

    /// Tries until there is a new certificate, or none is due any more.
    async fn renew_until_done(&mut self) {
        let mut failures = 0;
        while matches!(self.due(), Due::Now(_)) && !self.adopt_from_disk().await {
            let Err(error) = self.renew().await else { return };
            let status = &self.rotation.status;
            if !matches!(error, RenewError::Superseded) {
                status.count_renew_error();
            }
            if let RenewError::Issue(IssueError::Create(error) | IssueError::Retrieve(error)) =
                &error
            {
                let refused = error.is_from_healthy_server();
                let answer = if refused { ServerAnswer::Refused } else { ServerAnswer::None };
                status.set_server_answer(answer);
            }
            let delay = retry_delay(failures, rand::random());
            tracing::error!(signer = self.signer(), error = error_chain(&error), failures,
                retryAfter = ?delay, "Certificate could not be rotated");
            failures += 1;
            sleep(delay).await;
        }
    }

    /// Somebody else may have put a certificate into the store. True if that is in use now.
    async fn adopt_from_disk(&mut self) -> bool {
        let rotation = &self.rotation;
        let now = rotation.clock.now();
        let store = rotation.store.clone();
        let found = match off_executor(&rotation.store, move || store.current(now)).await {
            Ok(Some(pair)) => pair,
            Ok(None) => return false,
            Err(error) => {
                tracing::warn!(error = error_chain(&error), "Cannot look at the certificate store");
                return false;
            }
        };
        let leaf = found.leaf();
        let ends_later = |known: Arc<LeafCertificate>| known.not_after < leaf.not_after;
        if !leaf.is_valid(now) || !rotation.status.leaf().is_none_or(ends_later) {
            return false;
        }
        tracing::info!(signer = self.signer(), notAfter = %leaf.not_after,
            "Found a newer certificate in the store, taking it into use");
        self.rotation.force = false;
        self.received = None;
        self.rotation.status.publish(leaf.clone());
        self.port.certificate_changed().await;
        true
    }

    /// One try.
    async fn renew(&mut self) -> Result<(), RenewError> {
        let Some(template) = self.template.current() else { return Err(RenewError::Superseded) };
        let (rotation, port) = (&self.rotation, self.port);
        let (clock, status) = (&rotation.clock, &rotation.status);
        let key = SigningKey::generate().map_err(RenewError::Generate)?;
        let valid = status.current(clock.now());
        let requests =
            port.signing_requests(valid.is_some()).await.map_err(RenewError::Credentials)?;
        let ask = Ask {
            purpose: rotation.purpose,
            template: &template,
            key: &key,
            name: RequestName::Generated,
        };
        let submitted = submit(&requests, ask, clock.now()).await?;
        status.set_server_answer(ServerAnswer::Accepted);
        let outgrown = self.template.clone().outgrows(&template, status.leaf());
        let issued = tokio::select! {
            issued = wait_until_issued(&requests, &submitted, REQUEST_LIMIT) => issued?,
            () = outgrown => return Err(RenewError::Superseded),
        };
        let pair = CertificatePair::from_pem(&issued, key.to_pem().as_bytes())
            .map_err(RenewError::Unusable)?;
        let leaf = pair.leaf().clone();
        let (store, now) = (rotation.store.clone(), clock.now());
        off_executor(&rotation.store, move || store.update(&pair, now))
            .await
            .map_err(RenewError::Store)?;

        if let Some(missing) = template.missing_in(&leaf) {
            tracing::warn!(signer = rotation.purpose.signer_name(), %missing,
                "The signed certificate is not what was asked for");
        }
        if let Some(before) = status.leaf() {
            status.count_rotation_age(before.not_before.duration_until(now).as_secs_f64());
        }
        tracing::info!(signer = rotation.purpose.signer_name(), notAfter = %leaf.not_after,
            "Certificate rotated");
        status.publish(leaf);
        self.rotation.force = false;
        self.received = Some(now);
        self.requested = Some(template);
        port.certificate_changed().await;
        Ok(())
    }
}

/// Runs work on a store where it may block.
pub(crate) async fn off_executor<T: Send + 'static>(
    store: &CertificateStore,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(StoreError::Read {
            path: store.current_path(),
            source: std::io::Error::other(error),
        }),
    }
}
