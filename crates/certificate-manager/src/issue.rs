//! One request on its way: made, followed, answered.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use tokio::time::timeout;

use crate::key::SigningKey;
use crate::request::{
    Incompatible, Purpose, RequestName, RequestState, RequestTemplate, check_compatible,
    request_state, signing_request,
};

/// What is needed of an API server to get a certificate, under one set of credentials.
pub trait SigningRequests: Send + Sync {
    /// Creates the object and returns it as the server has it.
    fn create(
        &self,
        request: &CertificateSigningRequest,
    ) -> impl Future<Output = Result<CertificateSigningRequest, RequestError>> + Send;

    /// Reads the object.
    fn get(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<CertificateSigningRequest, RequestError>> + Send;

    /// Follows the object from its present state on. The stream never ends: it goes over
    /// interruptions by itself, with pauses between its tries.
    fn watch(&self, name: &str) -> BoxStream<'static, SeenRequest>;

    /// Whether the server gives some answer now. Returns within ten seconds.
    fn is_responding(&self) -> impl Future<Output = bool> + Send;
}

/// What is seen of a request by who follows it.
#[derive(Debug)]
pub enum SeenRequest {
    /// This is how it is now.
    Present(Box<CertificateSigningRequest>),
    /// There is none of that name.
    Absent,
    /// Nobody knows for the moment.
    Interrupted(RequestError),
}

/// How the API server refused, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestErrorKind {
    /// The name is taken.
    AlreadyExists,
    /// There is no such object.
    NotFound,
    /// The credentials are good for other things.
    Forbidden,
    /// The credentials are unknown or have expired.
    Unauthorized,
    /// Anything else, no answer included.
    Other,
}

/// A call that failed. Its text is the server's own, where the server answered.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// How.
    pub kind: RequestErrorKind,
    /// What the server said, or what was tried.
    pub message: String,
    /// What went wrong on the way.
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl RequestError {
    /// The answer is one that a server in good health gives to somebody whose certificate has
    /// expired or who may not ask.
    pub fn is_from_healthy_server(&self) -> bool {
        match self.kind {
            RequestErrorKind::NotFound
            | RequestErrorKind::Forbidden
            | RequestErrorKind::Unauthorized => true,
            RequestErrorKind::AlreadyExists | RequestErrorKind::Other => false,
        }
    }
}

/// Why a request has not become a certificate.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The request cannot be put into words: a name cannot stand in a certificate.
    #[error("unable to generate certificate request")]
    Generate(#[source] rcgen::Error),
    /// The API server did not take the request.
    #[error("cannot create certificate signing request{}", hint(.0))]
    Create(#[source] RequestError),
    /// A request of this name was there already, and cannot be read.
    #[error("cannot retrieve certificate signing request{}", hint(.0))]
    Retrieve(#[source] RequestError),
    /// It can, and is not ours, or of no use any more.
    #[error("retrieved csr is not compatible")]
    Incompatible(#[source] Incompatible),
    /// Somebody said no.
    #[error("certificate signing request is denied, reason: {reason}, message: {message}")]
    Denied {
        /// A short word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// The signer gave up.
    #[error("certificate signing request failed, reason: {reason}, message: {message}")]
    Failed {
        /// A short word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// Somebody removed the request.
    #[error("csr {name:?} was deleted")]
    Deleted {
        /// Its name.
        name: String,
    },
    /// Somebody removed the request and made another of the same name.
    #[error("csr {name:?} changed UIDs")]
    Replaced {
        /// Its name.
        name: String,
    },
    /// Nobody approved and signed it.
    #[error(
        "timed out after {} waiting for csr {name:?} to be {}",
        rubelet_types::format_go_duration(*after),
        if *approved { "signed; it is approved" } else { "approved" }
    )]
    TimedOut {
        /// Its name.
        name: String,
        /// How long that took.
        after: Duration,
        /// It was approved, and the signer did nothing.
        approved: bool,
    },
}

/// What an administrator should look at.
fn hint(error: &RequestError) -> &'static str {
    match error.kind {
        RequestErrorKind::Unauthorized => {
            " (the API server does not accept the credentials: the bootstrap token or the \
             certificate may have expired)"
        }
        RequestErrorKind::Forbidden => {
            " (the credentials may not create certificate signing requests)"
        }
        _ => "",
    }
}

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) purpose: Purpose,
    pub(crate) template: &'a RequestTemplate,
    pub(crate) key: &'a SigningKey,
    pub(crate) name: RequestName,
}

/// A request that the API server has.
#[derive(Debug)]
pub(crate) struct Submitted {
    name: String,
    uid: String,
}

/// Makes the request, or finds it where an earlier process made it.
pub(crate) async fn submit(
    requests: &impl SigningRequests,
    ask: Ask<'_>,
    now: Timestamp,
) -> Result<Submitted, IssueError> {
    let wanted = signing_request(ask.purpose, ask.template, ask.key, ask.name)
        .map_err(IssueError::Generate)?;
    let found = match (requests.create(&wanted).await, &wanted.metadata.name) {
        (Ok(created), _) => created,
        (Err(error), Some(name)) if error.kind == RequestErrorKind::AlreadyExists => {
            tracing::info!(csr = %name, "csr for this node already exists, reusing");
            let found = requests.get(name).await.map_err(IssueError::Retrieve)?;
            check_compatible(&found, &wanted, ask.key, now).map_err(IssueError::Incompatible)?;
            found
        }
        (Err(error), _) => return Err(IssueError::Create(error)),
    };
    let metadata = found.metadata;
    let submitted = Submitted {
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
    };
    tracing::info!(csr = %submitted.name, signer = ask.purpose.signer_name(),
        "Certificate signing request created, waiting for it to be approved and signed");
    Ok(submitted)
}

/// Follows the request until there is a certificate, and returns its PEM.
pub(crate) async fn wait_until_issued(
    requests: &impl SigningRequests,
    submitted: &Submitted,
    limit: Duration,
) -> Result<Vec<u8>, IssueError> {
    let name = || submitted.name.clone();
    let mut seen = false;
    let mut approved = false;
    let following = async {
        let mut watch = requests.watch(&submitted.name);
        while let Some(event) = watch.next().await {
            let request = match event {
                SeenRequest::Present(request) => request,
                SeenRequest::Interrupted(error) => {
                    tracing::debug!(csr = %submitted.name, %error, "Cannot look at the csr");
                    continue;
                }
                SeenRequest::Absent if seen => return Err(IssueError::Deleted { name: name() }),
                // The server's cache may not have it yet.
                SeenRequest::Absent => continue,
            };
            if request.metadata.uid.as_ref() != Some(&submitted.uid) {
                return Err(IssueError::Replaced { name: name() });
            }
            seen = true;
            match request_state(&request) {
                RequestState::Pending => {}
                RequestState::Approved => approved = true,
                RequestState::Issued(certificate) => return Ok(certificate),
                RequestState::Denied { reason, message } => {
                    return Err(IssueError::Denied { reason, message });
                }
                RequestState::Failed { reason, message } => {
                    return Err(IssueError::Failed { reason, message });
                }
            }
        }
        std::future::pending().await
    };
    match timeout(limit, following).await {
        Ok(result) => result,
        Err(_) => Err(IssueError::TimedOut { name: name(), after: limit, approved }),
    }
}
