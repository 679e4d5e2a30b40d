use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::access::User;
use crate::client_certificates::ClientAuthorities;
use crate::self_signed::{CERTIFICATE_FILE, KEY_FILE, ensure_self_signed};

/// How often the files are looked at.
const RELOAD_PERIOD: Duration = Duration::from_secs(60);

/// `tlsMinVersion`. What is older than TLS 1.2 is not spoken, so that asking for 1.0 or 1.1 means
/// 1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MinTlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 alone.
    Tls13,
}

impl MinTlsVersion {
    fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        match self {
            Self::Tls12 => vec![&version::TLS12, &version::TLS13],
            Self::Tls13 => vec![&version::TLS13],
        }
    }
}

/// Where the serving certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsFiles {
    /// `tlsCertFile` and `tlsPrivateKeyFile`.
    Given {
        /// The certificate, and those that lead to its issuer, in PEM.
        certificate: PathBuf,
        /// Its key, in PEM.
        key: PathBuf,
    },
    /// `kubelet.crt` and `kubelet.key` in the certificate directory, made when they are not there.
    SelfSigned {
        /// `--cert-dir`.
        directory: PathBuf,
        /// The node's host name.
        hostname: String,
    },
    /// A certificate that the cluster signs (`serverTLSBootstrap`): it may not be there yet, and is
    /// replaced by and by. Without one, handshakes fail. One that was there once stays in use until
    /// there is another, even if its file is gone.
    Rotated {
        /// Where the certificate and its key may be, both in PEM; the first place where both files
        /// exist counts.
        places: Vec<(PathBuf, PathBuf)>,
    },
}

/// How to speak TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The serving certificate.
    pub files: TlsFiles,
    /// `tlsMinVersion`.
    pub min_version: MinTlsVersion,
    /// `tlsCipherSuites`, by their IANA names; they restrict TLS 1.2 only, as in Go. Empty: all.
    pub cipher_suites: Vec<String>,
    /// `authentication.x509.clientCAFile`: whose client certificates are believed.
    pub client_ca_file: Option<PathBuf>,
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// A certificate cannot be used with its key.
    #[error("certificate {} and key {} make no pair", certificate.display(), key.display())]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// A file holds no certificate of an authority.
    #[error("{} holds no usable certificate", path.display())]
    NoAuthority {
        /// The file.
        path: PathBuf,
    },
    /// The authorities of clients cannot be used.
    #[error("cannot verify client certificates with {}", path.display())]
    ClientAuthority {
        /// Their file.
        path: PathBuf,
        /// Why.
        #[source]
        source: VerifierBuilderError,
    },
    /// No version and cipher suite are left.
    #[error("the TLS settings leave nothing to speak")]
    Settings {
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// A certificate cannot be made.
    #[error("failed to generate a self-signed certificate")]
    Generate {
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// A file cannot be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The TLS side of the server, as the files on disk have it now.
pub struct ServingTls {
    options: TlsOptions,
    current: RwLock<Current>,
    /// What the files held when `current` was made of them. Held while they are looked at.
    seen: Mutex<Vec<Option<Vec<u8>>>>,
    look_again: TlsReload,
}

/// What the next connection gets.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) config: Arc<ServerConfig>,
    certificate: Option<Arc<CertifiedKey>>,
    clients: Option<ClientAuthorities>,
}

impl Current {
    fn new(options: &TlsOptions, certificate: Option<Arc<CertifiedKey>>) -> Result<Self, TlsError> {
        let provider = Arc::new(provider(&options.cipher_suites));
        let clients = client_authorities(options, &provider)?;
        let config = server_config(options, provider, certificate.clone(), clients.clone())?;
        Ok(Self { config, certificate, clients })
    }

    /// Whom a client's certificate names, the first of `chain`; none if it is not to be believed.
    pub(crate) fn user(&self, chain: &[CertificateDer<'_>]) -> Option<User> {
        self.clients.as_ref()?.user(chain)
    }

    /// Whether a handshake can succeed at all.
    pub(crate) fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }
}

/// Tells a server that its TLS files have changed, for who knows and does not want it to find out
/// within a minute. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TlsReload(Arc<Notify>);

impl TlsReload {
    /// The server looks at the files soon.
    pub fn reload(&self) {
        self.0.notify_one();
    }
}

impl fmt::Debug for ServingTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingTls").field("options", &self.options).finish_non_exhaustive()
    }
}

impl ServingTls {
    /// Reads the files; makes those that the kubelet has to make itself. Does blocking I/O.
    pub fn load(options: TlsOptions, now: Timestamp) -> Result<Self, TlsError> {
        if let TlsFiles::SelfSigned { directory, hostname } = &options.files {
            ensure_self_signed(directory, hostname, now)?;
        }
        let seen = read_all(&options);
        let certificate = match read_certificate(&options) {
            // Its manager has it made anew.
            Err(error) if matches!(options.files, TlsFiles::Rotated { .. }) => {
                warn_of(&error, "the serving certificate cannot be used");
                None
            }
            certificate => certificate?,
        };
        let current = RwLock::new(Current::new(&options, certificate)?);
        let look_again = TlsReload::default();
        Ok(Self { options, current, seen: Mutex::new(seen), look_again })
    }

    /// By which the server is told that the files have changed.
    pub fn reload_handle(&self) -> TlsReload {
        self.look_again.clone()
    }

    /// What the next connection gets.
    pub(crate) fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again if they have changed; true if they had. What they held before stays
    /// in use when they are damaged, or half replaced. Does blocking I/O.
    fn reload(&self) -> Result<bool, TlsError> {
        let mut seen: MutexGuard<'_, _> = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = read_all(&self.options);
        if *seen == now {
            return Ok(false);
        }
        let certificate = read_certificate(&self.options)?.or_else(|| self.current().certificate);
        let current = Current::new(&self.options, certificate)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        *seen = now;
        Ok(true)
    }

    /// Takes files that change into use, for as long as it is polled.
    pub(crate) async fn follow_files(this: Arc<Self>) {
        loop {
            // Whether it was told or the time is over makes no difference.
            let _ = timeout(RELOAD_PERIOD, this.look_again.0.notified()).await;
            let tls = this.clone();
            match spawn_blocking(move || tls.reload()).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => info!("reloaded the serving certificate and client authorities"),
                Ok(Err(error)) => {
                    warn_of(&error, "failed to reload TLS files; those before stay in use");
                }
                Err(error) => warn!(%error, "failed to look at TLS files"),
            }
        }
    }
}

fn warn_of(error: &TlsError, what: &str) {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    warn!(%error, cause, "{what}");
}

/// Where the certificate and its key are; nothing if there are none yet.
fn pair(options: &TlsOptions) -> Option<(PathBuf, PathBuf)> {
    match &options.files {
        TlsFiles::Given { certificate, key } => Some((certificate.clone(), key.clone())),
        TlsFiles::SelfSigned { directory, .. } => {
            Some((directory.join(CERTIFICATE_FILE), directory.join(KEY_FILE)))
        }
        TlsFiles::Rotated { places } => {
            places.iter().find(|(certificate, key)| certificate.exists() && key.exists()).cloned()
        }
    }
}

fn read_certificate(options: &TlsOptions) -> Result<Option<Arc<CertifiedKey>>, TlsError> {
    let Some((certificate, key)) = pair(options) else { return Ok(None) };
    read_certified_key(&certificate, &key).map(|certified| Some(Arc::new(certified)))
}

/// What the files hold; none of one that cannot be read.
fn read_all(options: &TlsOptions) -> Vec<Option<Vec<u8>>> {
    let (certificate, key) = pair(options).unzip();
    let files = [certificate, key, options.client_ca_file.clone()];
    files.into_iter().map(|path| path.and_then(|path| std::fs::read(path).ok())).collect()
}

/// The one certificate, or none.
#[derive(Debug)]
struct Certificate(Option<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }
}

fn client_authorities(
    options: &TlsOptions,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<ClientAuthorities>, TlsError> {
    let Some(path) = &options.client_ca_file else { return Ok(None) };
    let roots = Arc::new(authorities(path)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|source| TlsError::ClientAuthority { path: path.clone(), source })?;
    Ok(Some(ClientAuthorities::new(verifier)))
}

fn server_config(
    options: &TlsOptions,
    provider: Arc<CryptoProvider>,
    certificate: Option<Arc<CertifiedKey>>,
    clients: Option<ClientAuthorities>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&options.min_version.versions())
        .map_err(|source| TlsError::Settings { source })?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(Arc::new(clients)),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Certificate(certificate)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The cipher suites of TLS 1.3 and, of TLS 1.2, those that `names` allows.
fn provider(names: &[String]) -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    if !names.is_empty() {
        provider.cipher_suites.retain(|suite| {
            let name = suite.suite().as_str().unwrap_or_default();
            suite.tls13().is_some() || names.iter().any(|allowed| is_same_suite(allowed, name))
        });
    }
    provider
}

/// Go has two ChaCha20 suites under an older name as well.
fn is_same_suite(configured: &str, name: &str) -> bool {
    configured == name
        || name
            .strip_suffix("_SHA256")
            .is_some_and(|short| short.ends_with("CHACHA20_POLY1305") && short == configured)
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let certificates = read_certificates(path)?;
    let mut store = RootCertStore::empty();
    let (usable, unusable) = store.add_parsable_certificates(certificates);
    if usable == 0 {
        return Err(TlsError::NoAuthority { path: path.to_owned() });
    }
    if unusable > 0 {
        warn!(path = %path.display(), unusable, "some client authorities cannot be used");
    }
    Ok(store)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

/// Reads a certificate with its chain, and its key, and sees that they belong together.
pub(crate) fn read_certified_key(certificate: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let chain = read_certificates(certificate)?;
    if chain.is_empty() {
        return Err(TlsError::NoAuthority { path: certificate.to_owned() });
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|source| TlsError::Read { path: key.to_owned(), source })?;
    CertifiedKey::from_der(chain, private, &rustls::crypto::ring::default_provider()).map_err(
        |source| TlsError::Pair {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            source,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(directory: &Path) -> TlsOptions {
        TlsOptions {
            files: TlsFiles::SelfSigned {
                directory: directory.to_owned(),
                hostname: "node-1".to_owned(),
            },
            min_version: MinTlsVersion::Tls12,
            cipher_suites: Vec::new(),
            client_ca_file: None,
        }
    }

    #[test]
    fn files_are_reloaded_when_they_change_and_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let tls = ServingTls::load(options(directory.path()), now).unwrap();
        ServingTls::load(options(other.path()), now).unwrap();
        assert!(!tls.reload().unwrap());

        let before = tls.current().config;
        let copy = |name: &str| {
            std::fs::copy(other.path().join(name), directory.path().join(name)).unwrap();
        };
        copy(CERTIFICATE_FILE);
        assert!(matches!(tls.reload(), Err(TlsError::Pair { .. })));
        assert!(Arc::ptr_eq(&before, &tls.current().config));
        copy(KEY_FILE);
        assert!(tls.reload().unwrap());
        assert!(!Arc::ptr_eq(&before, &tls.current().config));
        assert!(!tls.reload().unwrap());
    }

    #[test]
    fn a_certificate_that_is_signed_later_comes_and_stays() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let made = |name: &str| {
            let directory = directory.path().join(name);
            ServingTls::load(options(&directory), now).unwrap();
            let read = |name| std::fs::read_to_string(directory.join(name)).unwrap();
            read(CERTIFICATE_FILE) + &read(KEY_FILE)
        };
        let file = |name: &str| directory.path().join(name);
        let places = vec![
            (file("current.pem"), file("current.pem")),
            (file("given.crt"), file("given.key")),
        ];
        let files = TlsFiles::Rotated { places };
        let options = TlsOptions { files, ..options(directory.path()) };
        let load = || ServingTls::load(options.clone(), now).unwrap();
        let tls = load();
        assert!(!tls.current().has_certificate() && !tls.reload().unwrap());

        let given = made("given");
        std::fs::write(file("given.crt"), &given).unwrap();
        assert!(!tls.reload().unwrap());
        std::fs::write(file("given.key"), &given).unwrap();
        assert!(tls.reload().unwrap() && tls.current().has_certificate());

        let before = tls.current().certificate.unwrap();
        let is_new = |tls: &ServingTls| tls.current().certificate.unwrap().cert != before.cert;
        std::fs::write(file("current.pem"), "damaged").unwrap();
        assert!(tls.reload().is_err() && !is_new(&tls));
        assert!(!load().current().has_certificate());
        std::fs::write(file("current.pem"), made("signed")).unwrap();
        assert!(tls.reload().unwrap() && is_new(&tls));

        for name in ["current.pem", "given.crt"] {
            std::fs::remove_file(file(name)).unwrap();
        }
        assert!(tls.reload().unwrap() && is_new(&tls));
        assert!(!load().current().has_certificate());
    }

    #[test]
    fn settings_that_cannot_be_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let good = options(directory.path());
        let missing = directory.path().join("missing");
        let ca = TlsOptions { client_ca_file: Some(missing.clone()), ..good.clone() };
        assert!(matches!(ServingTls::load(ca, now), Err(TlsError::Read { .. })));
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "").unwrap();
        let ca = TlsOptions { client_ca_file: Some(empty), ..good.clone() };
        assert!(matches!(ServingTls::load(ca, now), Err(TlsError::NoAuthority { .. })));
        let files = TlsFiles::Given { certificate: missing.clone(), key: missing };
        let given = TlsOptions { files, ..good };
        assert!(matches!(ServingTls::load(given, now), Err(TlsError::Read { .. })));
    }

    #[test]
    fn cipher_suites_restrict_tls_1_2_only() {
        let names = |configured: &[&str]| -> Vec<&'static str> {
            let configured: Vec<_> = configured.iter().map(|name| (*name).to_owned()).collect();
            let suites = provider(&configured).cipher_suites;
            suites.iter().map(|suite| suite.suite().as_str().unwrap()).collect()
        };
        let tls13 = 3;
        assert_eq!(names(&[]).len(), tls13 + 6);
        let chosen = names(&[
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
            "TLS_RSA_WITH_AES_128_CBC_SHA",
        ]);
        assert_eq!(
            chosen[tls13..],
            [
                "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
                "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
            ]
        );
    }
}
