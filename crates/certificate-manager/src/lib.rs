//! The kubelet's certificates: by which the API server knows it, and by which it is known on port
//! 10250.
//!
//! What: the store on disk in upstream's layout ([`CertificateStore`]); the first client certificate,
//! while the start waits ([`ClientCredentials::ensure_bootstrapped`]); the client certificate that is
//! rotated in the background ([`ClientCertificateManager`]); the serving certificate that the cluster
//! signs ([`ServingCertificateManager`]).
//!
//! Guarantees: killed between any two steps, a valid pair is in use, and a first request is found
//! again. A Go kubelet can take over at any moment, and hand back. A certificate is replaced after 70
//! to 90 % of its life; while that fails it is tried again without end, and counted. No private key
//! leaves this crate but into a file with mode 0600.
//!
//! Not here: who approves and signs; TLS itself; certificates that the kubelet signs for itself, and
//! those that an administrator gives it (both are the server's).
//!
//! # One certificate's way
//!
//! ```text
//!             ┌───────────────── signed: store, tell ◀─────────────────┐
//!             ▼                                                        │
//!   ┌──────────────────┐ due: old, expired,  ┌──────────┐ taken ┌─────────────┐
//!   │ waits for its    │ or of other names   │ asks for │──────▶│ waits for   │
//!   │ deadline         │────────────────────▶│ a new one│       │ approval    │
//!   └──────────────────┘                     └──────────┘       └─────────────┘
//!             ▲                               ▲        │               │
//!             │ address of the node           │ 2, 4,  │ refused       │ denied, failed, 15 min,
//!   ┌──────────────────┐                      │ 8, 16, ▼               ▼ other names
//!   │ nothing to ask   │                      │ 32 s ┌───────────────────┐
//!   │ for (serving)    │                      └──────│ pauses            │
//!   └──────────────────┘                             └───────────────────┘
//! ```
//!
//! Time comes from [`rubelet_types::Clock`] where it is compared with certificates, and from Tokio
//! where it is slept: nobody sleeps longer than a minute, so that a clock that is set is noticed.

mod bootstrap;
mod certificate;
mod client;
mod cluster;
mod issue;
mod key;
mod metrics;
mod names;
mod request;
mod rotation;
mod schedule;
mod serving;
mod status;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use bootstrap::{FirstCertificateError, obtain_first_certificate};
pub use certificate::{CertificatePair, LeafCertificate, PairError};
pub use client::{
    ClientCertificateLost, ClientCertificateManager, ClientCertificateSettings, InitialCertificate,
    Origin, decide_origin,
};
pub use cluster::{
    ClientCredentials, ClientRotationPort, ClusterRequests, CredentialsError, ServingRotationPort,
};
pub use issue::{IssueError, RequestError, RequestErrorKind, SeenRequest, SigningRequests};
pub use key::SigningKey;
pub use metrics::{ClientCertificateMetrics, ServingCertificateMetrics};
pub use names::serving_template;
pub use request::{
    Incompatible, Missing, Purpose, RequestName, RequestState, RequestTemplate, check_compatible,
    digested_name, request_state, signing_request,
};
pub use rotation::RotationPort;
pub use schedule::{
    Due, LOSS_LIMIT, Outlook, REQUEST_LIMIT, ServerAnswer, decide_due, decide_outlook, retry_delay,
    rotation_deadline,
};
pub use serving::{ServingCertificateManager, ServingCertificateSettings};
pub use status::{CertificateStatus, ROTATION_AGE_BOUNDS, RotationAges};
pub use store::{CertificateStore, PairFiles, StoreError};
