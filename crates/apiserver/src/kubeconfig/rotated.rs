//! Kubeconfigs whose client certificate is replaced by and by, in a file beside them.

use std::fs;
use std::hash::Hash;
use std::io;
use std::path::{Path, PathBuf};

use kube::config::AuthInfo;
use secrecy::{ExposeSecret, SecretSlice};

use super::{Identity, KubeConfig, KubeConfigError, Reader};

/// Where a kubeconfig was read, to read it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) path: PathBuf,
    /// The file with the certificate that goes before the kubeconfig's own.
    pub(crate) rotated: Option<PathBuf>,
}

impl Origin {
    /// Reads it again. Blocks.
    pub(crate) fn load(&self) -> Result<KubeConfig, KubeConfigError> {
        KubeConfig::read(&self.path, self.rotated.as_deref())
    }
}

/// The client certificate that a kubeconfig itself has.
#[derive(Clone, Debug)]
pub enum InitialCertificate {
    /// It has none.
    None,
    /// It names files, which need not be there.
    Files {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// At least a part of it stands in the kubeconfig.
    Inline(InlineCertificate),
}

/// A certificate and its key, in PEM. The key does not show in the `Debug` text.
#[derive(Clone, Debug)]
pub struct InlineCertificate {
    certificate: Vec<u8>,
    key: SecretSlice<u8>,
}

impl InlineCertificate {
    /// The certificate, and those that lead to its issuer.
    pub fn certificate_pem(&self) -> &[u8] {
        &self.certificate
    }

    /// The key.
    pub fn key_pem(&self) -> &[u8] {
        self.key.expose_secret()
    }
}

impl KubeConfig {
    /// As [`load`](Self::load), for a kubelet whose client certificate is rotated into the file `pem`,
    /// which holds certificate and key: if that is there and can be used, it goes before what the
    /// kubeconfig has. Otherwise files that the kubeconfig names may be missing: there is no client
    /// certificate yet, then. [`ApiServer::reload`](crate::ApiServer::reload) does the same. Blocks.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load) otherwise.
    pub fn load_with_rotated_certificate(path: &Path, pem: &Path) -> Result<Self, KubeConfigError> {
        Self::read(path, Some(pem))
    }

    /// The client certificate that the kubeconfig itself has, whatever is in use.
    pub fn initial_certificate(&self) -> &InitialCertificate {
        &self.inner.initial_certificate
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.inner.origin
    }
}

impl Reader<'_> {
    pub(super) fn identity_or_rotated(
        &mut self,
        user: &AuthInfo,
        rotated: Option<&Path>,
    ) -> Result<Option<Identity>, KubeConfigError> {
        let Some(pem) = rotated else { return self.identity(user) };
        match fs::read(pem) {
            Ok(content) => {
                content.hash(&mut self.hasher);
                if let Ok(identity) = Identity::from_pem(&content, &content) {
                    return Ok(Some(identity));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(KubeConfigError::ReadFile {
                    path: self.path.to_owned(),
                    field: "the rotated certificate",
                    file: pem.to_owned(),
                    source,
                });
            }
        }
        match self.identity(user) {
            Err(KubeConfigError::ReadFile { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(None)
            }
            identity => identity,
        }
    }

    pub(super) fn initial_certificate(
        &mut self,
        user: &AuthInfo,
    ) -> Result<InitialCertificate, KubeConfigError> {
        let has = |text: Option<&str>| text.is_some_and(|text| !text.is_empty());
        let key_data = user.client_key_data.as_ref().map(ExposeSecret::expose_secret);
        if !has(user.client_certificate_data.as_deref()) && !has(key_data) {
            let file = |named: &Option<String>| {
                named.as_ref().filter(|file| !file.is_empty()).map(|file| self.resolve(file))
            };
            return Ok(match (file(&user.client_certificate), file(&user.client_key)) {
                (Some(certificate), Some(key)) => InitialCertificate::Files { certificate, key },
                _ => InitialCertificate::None,
            });
        }
        Ok(match self.certificate_and_key(user)? {
            (Some((certificate, _)), Some((key, _))) => {
                InitialCertificate::Inline(InlineCertificate { certificate, key: key.into() })
            }
            _ => InitialCertificate::None,
        })
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use rustls::pki_types::CertificateDer;

    use super::*;
    use crate::{ApiServer, ApiServerOptions};

    struct Ground {
        directory: tempfile::TempDir,
    }

    struct Made {
        der: CertificateDer<'static>,
        certificate: String,
        key: String,
    }

    fn made() -> Made {
        let made = rcgen::generate_simple_self_signed(vec!["n1".to_owned()]).unwrap();
        let key = made.signing_key.serialize_pem();
        Made { der: made.cert.der().clone(), certificate: made.cert.pem(), key }
    }

    impl Ground {
        fn new(user: &str) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}]\n\
                 users: [{{name: u, user: {{{user}}}}}]\n\
                 contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n\
                 current-context: x\n"
            );
            fs::write(directory.path().join("kubeconfig"), text).unwrap();
            Self { directory }
        }

        fn file(&self, name: &str) -> PathBuf {
            self.directory.path().join(name)
        }

        fn load(&self) -> KubeConfig {
            let (path, pem) = (self.file("kubeconfig"), self.file("current.pem"));
            KubeConfig::load_with_rotated_certificate(&path, &pem).unwrap()
        }
    }

    #[test]
    fn the_rotated_certificate_goes_before_the_kubeconfigs_own() {
        let (own, rotated) = (made(), made());
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let (certificate, key) = (encode(&own.certificate), encode(&own.key));
        let ground =
            Ground::new(&format!("client-certificate-data: {certificate}, client-key-data: {key}"));
        let before = ground.load();
        assert_eq!(before.client_certificates(), std::slice::from_ref(&own.der));
        let InitialCertificate::Inline(initial) = before.initial_certificate() else { panic!() };
        assert_eq!(initial.certificate_pem(), own.certificate.as_bytes());
        assert_eq!(initial.key_pem(), own.key.as_bytes());
        assert!(!format!("{initial:?}").contains("45, 45, 45, 45, 45, 66, 69, 71, 73, 78, 32, 80"));

        fs::write(ground.file("current.pem"), rotated.certificate + &rotated.key).unwrap();
        let after = ground.load();
        assert_eq!(after.client_certificates(), std::slice::from_ref(&rotated.der));
        assert!(matches!(after.initial_certificate(), InitialCertificate::Inline(_)));
        assert_ne!(after.fingerprint(), before.fingerprint());

        fs::write(ground.file("current.pem"), "damaged").unwrap();
        assert_eq!(ground.load().client_certificates(), std::slice::from_ref(&own.der));
    }

    #[test]
    fn a_certificate_that_is_to_come_is_no_error() {
        let ground = Ground::new("client-certificate: current.pem, client-key: current.pem");
        assert!(KubeConfig::load(&ground.file("kubeconfig")).is_err());
        let config = ground.load();
        assert!(config.client_certificates().is_empty());
        let InitialCertificate::Files { certificate, key } = config.initial_certificate() else {
            panic!()
        };
        assert_eq!((certificate, key), (&ground.file("current.pem"), &ground.file("current.pem")));
        let token = Ground::new("token: abc");
        assert!(matches!(token.load().initial_certificate(), InitialCertificate::None));
    }

    #[tokio::test]
    async fn a_certificate_that_has_come_is_taken_into_use() {
        let ground = Ground::new("client-certificate: current.pem, client-key: current.pem");
        let options = ApiServerOptions::from_configuration(&Default::default(), "test");
        let api = ApiServer::new(&ground.load(), options, rubelet_types::Clock::system()).unwrap();
        assert!(!api.reload().await.unwrap());
        let rotated = made();
        fs::write(ground.file("current.pem"), rotated.certificate + &rotated.key).unwrap();
        assert!(api.reload().await.unwrap());
        assert!(!api.reload().await.unwrap());
    }
}
