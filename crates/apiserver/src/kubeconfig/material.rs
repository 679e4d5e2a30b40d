//! Certificates and keys: from PEM to what TLS works with.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Authorities that may vouch for the server.
#[derive(Clone, Debug)]
pub(crate) struct Roots(Arc<RootCertStore>);

impl Roots {
    pub(crate) fn none() -> Self {
        Self(Arc::new(RootCertStore::empty()))
    }

    /// All certificates of a bundle; those that cannot be read are left out, as upstream does,
    /// while one is left.
    pub(crate) fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let certificates = parse_certificates(pem)?;
        let mut store = RootCertStore::empty();
        let (added, _) = store.add_parsable_certificates(certificates);
        if added == 0 {
            return Err("none of its certificates can be used as an authority".to_owned());
        }
        Ok(Self(Arc::new(store)))
    }

    /// What the system trusts; nothing if that is nobody.
    pub(crate) fn of_the_system() -> Option<Self> {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        (!store.is_empty()).then(|| Self(Arc::new(store)))
    }

    pub(crate) fn store(&self) -> Arc<RootCertStore> {
        Arc::clone(&self.0)
    }
}

/// A client certificate with its key.
#[derive(Clone)]
pub(crate) struct Identity(Arc<CertifiedKey>);

/// Which half of an identity is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Certificate,
    Key,
}

/// An identity that cannot be used.
#[derive(Debug)]
pub(crate) struct IdentityError {
    pub(crate) part: Part,
    pub(crate) problem: String,
}

impl Identity {
    pub(crate) fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let at_certificate = |problem| IdentityError { part: Part::Certificate, problem };
        let at_key = |problem| IdentityError { part: Part::Key, problem };
        let chain = parse_certificates(certificate).map_err(at_certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| at_key(format!("no private key: {error}")))?;
        let key = rustls::crypto::ring::default_provider()
            .key_provider
            .load_private_key(key)
            .map_err(|error| at_key(format!("the private key cannot be used: {error}")))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) => Ok(Self(Arc::new(certified))),
            // The key's kind does not let itself be compared: the server will find out.
            Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
                Ok(Self(Arc::new(certified)))
            }
            Err(rustls::Error::InconsistentKeys(_)) => {
                Err(at_certificate("the private key is not the one of the certificate".to_owned()))
            }
            Err(error) => Err(at_certificate(error.to_string())),
        }
    }

    pub(crate) fn chain(&self) -> &[CertificateDer<'static>] {
        &self.0.cert
    }

    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.0)
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.chain() == other.chain()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({} certificates)", self.0.cert.len())
    }
}

fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("it is no PEM: {error}"))?;
    if certificates.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(certificates)
}
