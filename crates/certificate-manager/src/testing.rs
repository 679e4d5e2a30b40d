//! Certificates for the tests of this crate.

use jiff::Timestamp;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};
use rcgen::{Issuer, PublicKeyData};

/// A key as Go's `x509.MarshalECPrivateKey` writes it, and its public half.
pub(crate) const GO_EC_KEY: &str = include_str!("testdata/go-ec-key.pem");
pub(crate) const GO_EC_PUBLIC_KEY: [u8; 91] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04, 0xcd, 0x9c, 0x52, 0x7f, 0x91,
    0x58, 0x54, 0x13, 0x02, 0xf7, 0x25, 0xe3, 0xef, 0xfc, 0x62, 0xdf, 0x58, 0xc7, 0xb2, 0xe9, 0xb1,
    0x96, 0x11, 0x72, 0xb3, 0xaf, 0xa9, 0x5b, 0xa9, 0xd6, 0x4b, 0x9a, 0x5b, 0xfe, 0x25, 0x7d, 0x6d,
    0x85, 0xd0, 0xdd, 0x63, 0x42, 0xfa, 0x1a, 0x77, 0x1e, 0x81, 0x50, 0x27, 0x96, 0xd2, 0xf1, 0x34,
    0x7d, 0x08, 0xb2, 0xcd, 0x96, 0x2f, 0x38, 0x2c, 0xb8, 0xfc, 0x37,
];
/// An RSA certificate with its key in `RSA PRIVATE KEY`.
pub(crate) const RSA_PAIR: &str = include_str!("testdata/rsa-pair.pem");

/// So many seconds after a fixed moment.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

/// PEM of a certificate and of its key.
pub(crate) struct Made {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Made {
    /// Both in one text.
    pub(crate) fn pem(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }
}

/// A certificate in the group of nodes that signed itself.
pub(crate) fn certificate(
    common_name: &str,
    not_before: Timestamp,
    not_after: Timestamp,
    names: &[&str],
) -> Made {
    let key = KeyPair::generate().unwrap();
    let parameters = parameters(common_name, not_before, not_after, names);
    Made { certificate: parameters.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

/// What `issuer` makes of somebody else's public key.
pub(crate) fn signed(
    common_name: &str,
    not_before: Timestamp,
    not_after: Timestamp,
    names: &[&str],
    public_key: &impl PublicKeyData,
    issuer: &Issuer<'_, KeyPair>,
) -> String {
    let parameters = parameters(common_name, not_before, not_after, names);
    parameters.signed_by(public_key, issuer).unwrap().pem()
}

fn parameters(
    common_name: &str,
    not_before: Timestamp,
    not_after: Timestamp,
    names: &[&str],
) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut parameters = CertificateParams::new(names).unwrap();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, common_name);
    parameters.distinguished_name = subject;
    let moment = |moment: Timestamp| {
        let seconds = u64::try_from(moment.as_second()).unwrap();
        date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(seconds)
    };
    (parameters.not_before, parameters.not_after) = (moment(not_before), moment(not_after));
    parameters
}
