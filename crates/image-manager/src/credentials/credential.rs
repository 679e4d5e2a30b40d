use std::fmt;

use rubelet_cri::v1::AuthConfig;
use rubelet_types::go_json_object;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

/// An object of the API, as records of pulls name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectCoordinates {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// Whom a credential belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CredentialOrigin {
    /// To the node: all its pods may use it.
    Node,
    /// To a Secret, which the pod names.
    Secret(ObjectCoordinates),
    /// To the pod's service account, whose token a plugin has exchanged.
    ServiceAccount(ObjectCoordinates),
}

/// A credential for a registry. The password is shown to the runtime only.
#[derive(Clone)]
pub struct PullCredential {
    username: String,
    password: SecretString,
    email: String,
    origin: CredentialOrigin,
}

impl PullCredential {
    /// A user's password.
    pub fn new(
        username: impl Into<String>,
        password: SecretString,
        origin: CredentialOrigin,
    ) -> Self {
        Self { username: username.into(), password, email: String::new(), origin }
    }

    /// With the user's address, which only counts for [`PullCredential::hash`].
    pub(crate) fn with_email(self, email: &str) -> Self {
        Self { email: email.to_owned(), ..self }
    }

    /// Whom it belongs to.
    pub fn origin(&self) -> &CredentialOrigin {
        &self.origin
    }

    /// What records of pulls know a credential by: equal to the Go kubelet's, so that its records
    /// can be taken over.
    pub fn hash(&self) -> String {
        let json = SecretString::from(go_json_object(&[
            ("username", &self.username),
            ("password", self.password.expose_secret()),
            ("email", &self.email),
        ]));
        let digest = Sha256::digest(json.expose_secret().as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// As the runtime takes it.
    pub(crate) fn to_auth_config(&self) -> AuthConfig {
        AuthConfig {
            username: self.username.clone(),
            password: self.password.expose_secret().to_owned(),
            ..AuthConfig::default()
        }
    }
}

impl PartialEq for PullCredential {
    fn eq(&self, other: &Self) -> bool {
        self.username == other.username
            && self.email == other.email
            && self.origin == other.origin
            && self.password.expose_secret() == other.password.expose_secret()
    }
}

/// Without the password, and without the user, which is a secret with some registries.
impl fmt::Debug for PullCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PullCredential").field("origin", &self.origin).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(username: &str, password: &str) -> PullCredential {
        PullCredential::new(username, password.into(), CredentialOrigin::Node)
    }

    #[test]
    fn the_hash_equals_the_go_kubelets() {
        assert_eq!(
            credential("user", "password").hash(),
            "a55436fc140d516560d072c5fe8700385ce9f41629abf65c1edcbcb39fac691d"
        );
        let hashes = [
            credential("user", "password"),
            credential("user", "other"),
            credential("userpassword", ""),
            credential("user", "password").with_email("a@b"),
        ]
        .map(|credential| credential.hash());
        let distinct: std::collections::BTreeSet<_> = hashes.iter().collect();
        assert_eq!(distinct.len(), hashes.len());
    }

    #[test]
    fn nothing_secret_is_shown() {
        let credential = credential("wh0", "t0ps3cret");
        let shown = format!("{credential:?} {:#?}", vec![&credential]);
        assert!(!shown.contains("t0ps3cret") && !shown.contains("wh0"), "{shown}");
        assert_eq!(credential.to_auth_config().password, "t0ps3cret");
    }
}
