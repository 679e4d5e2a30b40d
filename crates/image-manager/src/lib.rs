//! Image presence: policies, pulls in series or parallel, rate limits, back-off.
//!
//! What: [`ImageManager::ensure_image`] makes sure that an image is on the node before a container
//! starts, tells users about it in events, and says when to try again. Pulls of the same image
//! with the same credentials that overlap in time are one pull.
//! Credentials come from the pod's pull secrets, the node's files and provider plugins
//! ([`PullCredentials`]).
//! Not here: garbage collection, and the runtime's own protocol (`rubelet-cri`).
//!
//! Invariant: nothing here waits on a lock while a pull runs; a pull that nobody waits for any
//! more is cancelled; what is kept in memory (back-off, rate) may be lost at any time.

mod back_off;
mod credentials;
mod error;
mod manager;
mod metrics;
mod pull;
mod rate_limit;
pub mod reference;
mod service;
mod shared;
mod verification;

pub use credentials::{
    CredentialObjects, CredentialOrigin, CredentialProviders, CredentialProvidersError,
    NodeCredentialFiles, ObjectCoordinates, PullCredential, PullCredentials, PullCredentialsError,
    ServiceAccountFacts,
};
pub use error::EnsureImageError;
pub use manager::{
    EnsureImage, ImageManager, ImageManagerConfig, ImageRef, ImageUser, PullPolicy, PullState,
};
pub use metrics::{CredentialProviderMetrics, ImageMetrics};
pub use service::{CredentialLookup, ImageCredentials, ImageService};
pub use verification::{CredentialVerification, RecordError, VerificationPolicy};
