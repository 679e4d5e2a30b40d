//! Keys and certificates.

use anyhow::Context;
use jiff::{Timestamp, ToSpan, civil::Date, tz::TimeZone};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// A certificate and its key, both as PEM.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// Its key (PKCS #8, ECDSA P-256).
    pub key: String,
}

/// A certificate authority.
#[derive(Debug)]
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Makes a new one, good for ten years.
    pub(crate) fn create(name: &str) -> anyhow::Result<Self> {
        let mut params = params(name, None, Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let key = KeyPair::generate().context("cannot make a key")?;
        let certificate = params.self_signed(&key).context("cannot sign an authority")?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// Its certificate and its own key, for who signs in its name.
    pub(crate) fn pair(&self) -> Pair {
        Pair { certificate: self.certificate.clone(), key: self.issuer.key().serialize_pem() }
    }

    /// Its certificate as PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A client certificate for a user of Kubernetes in at most one group.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> anyhow::Result<Pair> {
        let mut params = params(user, group, Vec::new())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// The same, but it expired the day before.
    pub(crate) fn expired_client(&self, user: &str, group: Option<&str>) -> anyhow::Result<Pair> {
        let mut params = params(user, group, Vec::new())?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        set_days(&mut params, -2, -1);
        self.sign(params)
    }

    /// A serving certificate for these names and addresses.
    pub(crate) fn server(&self, name: &str, hosts: Vec<String>) -> anyhow::Result<Pair> {
        let mut params = params(name, None, hosts)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> anyhow::Result<Pair> {
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().context("cannot make a key")?;
        let certificate = params.signed_by(&key, &self.issuer).context("cannot sign")?;
        Ok(Pair { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// The key that signs service account tokens: its private and its public half, as PEM.
pub(crate) fn signing_key() -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate().context("cannot make a key")?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn params(
    name: &str,
    group: Option<&str>,
    hosts: Vec<String>,
) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(hosts).context("not a host name")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    // A clock that is a little behind must not find it too young.
    set_days(&mut params, -1, 3652);
    Ok(params)
}

/// Has a certificate begin and end at midnight, so many days from today.
fn set_days(params: &mut CertificateParams, first: i64, last: i64) {
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let date = |days: i64| {
        let date: Date = today.saturating_add(days.days());
        date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    params.not_before = date(first);
    params.not_after = date(last);
}
