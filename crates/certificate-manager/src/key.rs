//! Private keys: making them, and reading those that a kubelet, of either kind, left behind.

use rcgen::{KeyPair, PKCS_RSA_SHA256, PublicKeyData};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;

use crate::certificate::PairError;

/// A key that can sign a request for a certificate.
#[derive(Debug)]
pub struct SigningKey(KeyPair);

impl SigningKey {
    /// A new key, ECDSA on P-256.
    ///
    /// # Errors
    ///
    /// The system has no random numbers.
    pub fn generate() -> Result<Self, rcgen::Error> {
        KeyPair::generate().map(Self)
    }

    /// Reads PEM: `PRIVATE KEY`, and what Go writes, `EC PRIVATE KEY` and `RSA PRIVATE KEY`.
    ///
    /// # Errors
    ///
    /// [`PairError::Key`], also for a key on a curve other than P-256 and P-384.
    pub fn from_pem(pem: &[u8]) -> Result<Self, PairError> {
        let bad = |problem: String| PairError::Key { problem };
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| bad(error.to_string()))?;
        let pkcs8 = match &key {
            PrivateKeyDer::Pkcs8(key) => key.clone_key(),
            PrivateKeyDer::Sec1(key) => wrapped(EC_P256, key.secret_sec1_der()),
            PrivateKeyDer::Pkcs1(key) => wrapped(RSA, key.secret_pkcs1_der()),
            _ => return Err(bad("a key of an unknown kind".to_owned())),
        };
        KeyPair::try_from(&pkcs8).map(Self).map_err(|error| bad(error.to_string()))
    }

    /// PEM, as `PRIVATE KEY`, which a Go kubelet reads too.
    pub fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// Whether it is an RSA key, which may encipher other keys.
    pub fn is_rsa(&self) -> bool {
        self.0.is_compatible(&PKCS_RSA_SHA256)
    }

    /// The public key with its algorithm (`SubjectPublicKeyInfo`), in DER.
    pub fn public_key_info(&self) -> Vec<u8> {
        self.0.subject_public_key_info()
    }

    pub(crate) fn key_pair(&self) -> &KeyPair {
        &self.0
    }
}

/// `AlgorithmIdentifier` of ECDSA keys on P-256.
const EC_P256: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48,
    0xce, 0x3d, 0x03, 0x01, 0x07,
];
/// `AlgorithmIdentifier` of RSA keys.
const RSA: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 0x04;
/// `INTEGER 0`, the version of the envelope.
const VERSION: &[u8] = &[0x02, 0x01, 0x00];

/// Puts a key of an algorithm's own format into the common envelope (RFC 5208), the only one that
/// the signing library reads.
fn wrapped(algorithm: &[u8], key: &[u8]) -> PrivatePkcs8KeyDer<'static> {
    let key = der(OCTET_STRING, key);
    PrivatePkcs8KeyDer::from(der(SEQUENCE, &[VERSION, algorithm, &key].concat()))
}

fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let length = content.len().to_be_bytes();
            let zeros = length.iter().take_while(|byte| **byte == 0).count();
            let length = &length[zeros..];
            // A length has at most eight bytes.
            out.push(0x80 | u8::try_from(length.len()).unwrap_or(8));
            out.extend_from_slice(length);
        }
    }
    out.extend_from_slice(content);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GO_EC_KEY, GO_EC_PUBLIC_KEY, RSA_PAIR};

    #[test]
    fn a_new_key_is_read_again() {
        let key = SigningKey::generate().unwrap();
        let again = SigningKey::from_pem(key.to_pem().as_bytes()).unwrap();
        assert_eq!(again.public_key_info(), key.public_key_info());
        assert!(!key.is_rsa());
    }

    #[test]
    fn keys_that_a_go_kubelet_wrote_are_read() {
        let key = SigningKey::from_pem(GO_EC_KEY.as_bytes()).unwrap();
        assert_eq!(key.public_key_info(), GO_EC_PUBLIC_KEY);
        let key = SigningKey::from_pem(RSA_PAIR.as_bytes()).unwrap();
        assert!(key.is_rsa());
    }

    #[test]
    fn rubbish_is_an_error() {
        for text in
            ["", "rubbish", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
        {
            assert!(matches!(SigningKey::from_pem(text.as_bytes()), Err(PairError::Key { .. })));
        }
    }

    #[test]
    fn lengths_are_as_short_as_they_can_be() {
        for (length, head) in [
            (0, vec![4, 0]),
            (127, vec![4, 127]),
            (128, vec![4, 0x81, 128]),
            (256, vec![4, 0x82, 1, 0]),
        ] {
            let out = der(OCTET_STRING, &vec![7; length]);
            assert_eq!(out[..head.len()], head);
            assert_eq!(out.len(), head.len() + length);
        }
    }
}
