//! Certificates and the pairs that they make with their keys.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// What a certificate says, as far as the kubelet cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafCertificate {
    /// `CN` of its subject; empty if there is none.
    pub common_name: String,
    /// All `O` of its subject.
    pub organizations: Vec<String>,
    /// Host names among its subject alternative names.
    pub dns_names: Vec<String>,
    /// Addresses among them.
    pub ip_addresses: Vec<IpAddr>,
    /// Valid from this moment on.
    pub not_before: Timestamp,
    /// Valid up to and with this moment.
    pub not_after: Timestamp,
    /// The certificate itself.
    pub der: CertificateDer<'static>,
}

impl LeafCertificate {
    /// Reads a certificate.
    ///
    /// # Errors
    ///
    /// [`PairError::Certificate`].
    pub fn parse(der: CertificateDer<'static>) -> Result<Self, PairError> {
        let bad = |problem: String| PairError::Certificate { problem };
        let (_, certificate) =
            X509Certificate::from_der(&der).map_err(|error| bad(error.to_string()))?;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            value.as_str().map(str::to_owned).map_err(|error| bad(error.to_string()))
        };
        let subject = certificate.subject();
        let common_name = subject.iter_common_name().next().map(text).transpose()?;
        let organizations = subject.iter_organization().map(text).collect::<Result<_, _>>()?;
        let mut dns_names = Vec::new();
        let mut ip_addresses = Vec::new();
        let names =
            certificate.subject_alternative_name().map_err(|error| bad(error.to_string()))?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(octets) => ip_addresses.extend(ip_address(octets)),
                _ => {}
            }
        }
        let validity = certificate.validity();
        let (not_before, not_after) = (
            moment(validity.not_before.timestamp(), Timestamp::MIN),
            moment(validity.not_after.timestamp(), Timestamp::MAX),
        );
        let common_name = common_name.unwrap_or_default();
        Ok(Self { common_name, organizations, dns_names, ip_addresses, not_before, not_after, der })
    }

    /// It has not expired. One that is not valid *yet* passes, as it does upstream: it is the
    /// clock of this machine that is wrong then.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        now <= self.not_after
    }
}

fn ip_address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(octets) {
        return Some(Ipv4Addr::from(octets).into());
    }
    <[u8; 16]>::try_from(octets).ok().map(|octets| Ipv6Addr::from(octets).into())
}

fn moment(seconds: i64, otherwise: Timestamp) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(otherwise)
}

/// Why a certificate and a key are no usable pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// A certificate cannot be read, or there is none.
    #[error("the certificate cannot be used: {problem}")]
    Certificate {
        /// What is wrong.
        problem: String,
    },
    /// The key cannot be read, or there is none.
    #[error("the private key cannot be used: {problem}")]
    Key {
        /// What is wrong; nothing of the key itself.
        problem: String,
    },
    /// The certificate was made for another key.
    #[error("the certificate and the private key make no pair")]
    Mismatch,
}

/// A certificate, those that lead to its issuer, and the key: what one file of the store holds.
///
/// Whoever has one knows that the key belongs to the certificate. The key does not show in its
/// `Debug` text.
pub struct CertificatePair {
    leaf: LeafCertificate,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl CertificatePair {
    /// Reads PEM of both kinds, which may be one and the same text.
    ///
    /// # Errors
    ///
    /// What is missing, unreadable, or does not belong together.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, PairError> {
        let chain = read_certificates(certificate)?;
        let leaf = match chain.first() {
            Some(leaf) => LeafCertificate::parse(leaf.clone())?,
            None => {
                let problem = "there is none in the PEM".to_owned();
                return Err(PairError::Certificate { problem });
            }
        };
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| PairError::Key { problem: error.to_string() })?;
        let provider = rustls::crypto::ring::default_provider();
        match CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider) {
            Ok(_) => Ok(Self { leaf, chain, key }),
            Err(rustls::Error::InconsistentKeys(_)) => Err(PairError::Mismatch),
            Err(rustls::Error::InvalidCertificate(error)) => {
                Err(PairError::Certificate { problem: error.to_string() })
            }
            Err(error) => Err(PairError::Key { problem: error.to_string() }),
        }
    }

    /// The certificate itself.
    pub fn leaf(&self) -> &LeafCertificate {
        &self.leaf
    }

    /// The text of a file of the store, in upstream's order: the certificate, those that lead to its
    /// issuer, the key.
    pub fn to_pem(&self) -> String {
        let mut text = String::new();
        for certificate in &self.chain {
            encode_pem(&mut text, "CERTIFICATE", certificate);
        }
        let label = match &self.key {
            PrivateKeyDer::Pkcs1(_) => "RSA PRIVATE KEY",
            PrivateKeyDer::Sec1(_) => "EC PRIVATE KEY",
            _ => "PRIVATE KEY",
        };
        encode_pem(&mut text, label, self.key.secret_der());
        text
    }
}

impl fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificatePair").field("leaf", &self.leaf).finish_non_exhaustive()
    }
}

/// All certificates of a PEM text.
pub(crate) fn read_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, PairError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| PairError::Certificate { problem: error.to_string() })
}

/// Lines of 64 characters, as everybody writes it.
pub(crate) fn encode_pem(text: &mut String, label: &str, der: &[u8]) {
    text.push_str("-----BEGIN ");
    text.push_str(label);
    text.push_str("-----\n");
    // 48 bytes are 64 characters.
    for line in der.chunks(48) {
        STANDARD.encode_string(line, text);
        text.push('\n');
    }
    text.push_str("-----END ");
    text.push_str(label);
    text.push_str("-----\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GO_EC_KEY, RSA_PAIR, at, certificate};

    #[test]
    fn a_certificate_says_whom_it_names_and_how_long_it_is_good() {
        let made = certificate("system:node:n1", at(100), at(200), &["n1", "10.0.0.1", "fd00::1"]);
        let pair = CertificatePair::from_pem(made.certificate.as_bytes(), made.key.as_bytes());
        let pair = pair.unwrap();
        let leaf = pair.leaf();
        assert_eq!(leaf.common_name, "system:node:n1");
        assert_eq!(leaf.organizations, ["system:nodes"]);
        assert_eq!(leaf.dns_names, ["n1"]);
        let ips: Vec<IpAddr> = ["10.0.0.1", "fd00::1"].map(|ip| ip.parse().unwrap()).into();
        assert_eq!(leaf.ip_addresses, ips);
        assert_eq!((leaf.not_before, leaf.not_after), (at(100), at(200)));
        assert!(leaf.is_valid(at(0)) && leaf.is_valid(at(200)) && !leaf.is_valid(at(201)));
    }

    #[test]
    fn one_text_holds_both_and_is_written_as_it_was_read() {
        let made = certificate("n", at(0), at(200), &[]);
        let text = format!("{}{}", made.certificate, made.key).replace('\r', "");
        let pair = CertificatePair::from_pem(text.as_bytes(), text.as_bytes()).unwrap();
        assert_eq!(pair.to_pem(), text);
        let again = pair.to_pem();
        let again = CertificatePair::from_pem(again.as_bytes(), again.as_bytes()).unwrap();
        assert_eq!(again.leaf(), pair.leaf());
        let shown = format!("{pair:?}");
        assert!(!shown.contains("key"), "{shown}");
    }

    #[test]
    fn keys_of_other_kinds_stay_of_their_kind() {
        let pair = CertificatePair::from_pem(RSA_PAIR.as_bytes(), RSA_PAIR.as_bytes()).unwrap();
        assert_eq!(pair.to_pem(), RSA_PAIR);
        assert_eq!(pair.leaf().common_name, "system:node:rsa");
    }

    #[test]
    fn what_is_no_pair_says_why() {
        let (one, two) = (certificate("a", at(0), at(9), &[]), certificate("b", at(0), at(9), &[]));
        let why = |certificate: &str, key: &str| {
            CertificatePair::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err()
        };
        assert_eq!(why(&one.certificate, &two.key), PairError::Mismatch);
        assert_eq!(why(&one.certificate, GO_EC_KEY), PairError::Mismatch);
        assert!(matches!(why("", &one.key), PairError::Certificate { .. }));
        assert!(matches!(why(&one.key, &one.key), PairError::Certificate { .. }));
        assert!(matches!(why(&one.certificate, ""), PairError::Key { .. }));
        assert!(matches!(why(&one.certificate, &one.certificate), PairError::Key { .. }));
        let cut = &one.certificate[..one.certificate.len() / 2];
        assert!(matches!(why(cut, &one.key), PairError::Certificate { .. }));
    }
}
