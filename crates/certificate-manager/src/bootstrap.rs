//! The first client certificate, for a kubelet that does not rotate: the start waits for it.

use std::time::Duration;

use rubelet_types::Clock;
use tokio::time::{Instant, sleep};

use crate::certificate::{CertificatePair, PairError};
use crate::issue::{Ask, IssueError, SigningRequests, submit, wait_until_issued};
use crate::key::SigningKey;
use crate::request::{Purpose, RequestName, RequestTemplate};
use crate::rotation::off_executor;
use crate::store::{CertificateStore, StoreError};

/// How long the certificate may take.
const ISSUE_LIMIT: Duration = Duration::from_secs(3600);
/// How long the API server may take to give its first answer; it is asked in any case then.
const SERVER_LIMIT: Duration = Duration::from_secs(60);
/// Wait between two looks at it, before chance is added.
const SERVER_POLL: Duration = Duration::from_secs(2);

/// There is no first certificate. The process has to end; the next one goes on where this one was,
/// with the same key and the same request.
#[derive(Debug, thiserror::Error)]
pub enum FirstCertificateError {
    /// The certificate directory cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The request did not become a certificate.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// What was signed is no certificate for our key.
    #[error("the signed certificate cannot be used")]
    Unusable(#[source] PairError),
}

/// Asks for the client certificate of `node_name` and puts it into `store`; waits up to an hour.
///
/// The key stays in the certificate directory until [`CertificateStore::remove_key`], so that a
/// restart finds its request again: first write the kubeconfig, then remove the key.
///
/// # Errors
///
/// [`FirstCertificateError`].
pub async fn obtain_first_certificate(
    requests: &impl SigningRequests,
    store: &CertificateStore,
    node_name: &str,
    clock: &Clock,
) -> Result<(), FirstCertificateError> {
    let owned = store.clone();
    let mut key = off_executor(store, move || owned.load_or_generate_key()).await?;
    wait_for_server(requests).await;
    let template = RequestTemplate::node(node_name);
    let submitted = match ask(requests, &template, &key, clock).await {
        // The answer to an earlier request with this key, which has outlived its use.
        Err(IssueError::Incompatible(because)) => {
            tracing::warn!(%because, "The earlier csr cannot be used, asking with a new key");
            let owned = store.clone();
            key = off_executor(store, move || owned.generate_key()).await?;
            ask(requests, &template, &key, clock).await?
        }
        submitted => submitted?,
    };
    let issued = wait_until_issued(requests, &submitted, ISSUE_LIMIT).await?;
    let pair = CertificatePair::from_pem(&issued, key.to_pem().as_bytes())
        .map_err(FirstCertificateError::Unusable)?;
    tracing::info!(notAfter = %pair.leaf().not_after, "Received the first client certificate");
    let (owned, now) = (store.clone(), clock.now());
    Ok(off_executor(store, move || owned.update(&pair, now)).await?)
}

async fn ask(
    requests: &impl SigningRequests,
    template: &RequestTemplate,
    key: &SigningKey,
    clock: &Clock,
) -> Result<crate::issue::Submitted, IssueError> {
    let ask = Ask { purpose: Purpose::Client, template, key, name: RequestName::Digested };
    submit(requests, ask, clock.now()).await
}

/// A machine that has just started may have its network later.
async fn wait_for_server(requests: &impl SigningRequests) {
    let start = Instant::now();
    while !requests.is_responding().await {
        let waited = start.elapsed();
        if waited >= SERVER_LIMIT {
            tracing::warn!(?waited, "The API server does not answer; asking it nevertheless");
            return;
        }
        tracing::info!(?waited, "Waiting for the API server to come up");
        sleep(SERVER_POLL.mul_f64(1.0 + 0.2 * rand::random::<f64>())).await;
    }
}
