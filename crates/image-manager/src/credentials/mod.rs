//! Credentials for registries: where they come from, and which of them fit an image.
//!
//! [`PullCredentials`] puts three sources together, in upstream's order: the pod's pull secrets, the
//! node's Docker configuration files, and credential provider plugins. Matching ([`location`],
//! [`keyring`]) is pure.
//!
//! No password appears in a log, an error or a `Debug` output.

mod credential;
mod docker_config;
mod keyring;
mod location;
mod node_files;
mod providers;
mod sources;

pub use credential::{CredentialOrigin, ObjectCoordinates, PullCredential};
pub use node_files::NodeCredentialFiles;
pub use providers::{CredentialProviders, CredentialProvidersError, ServiceAccountFacts};
pub use sources::{CredentialObjects, PullCredentials, PullCredentialsError};
