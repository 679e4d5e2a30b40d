//! Certificates: the server's own, its clients', and those that are asked for.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::json;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::kinds::KINDS;
use crate::pods::timestamp;
use crate::reviews::User;
use crate::storage::Storage;

/// How long a certificate lasts that nobody said anything about, in seconds.
const LASTS: i64 = 24 * 3600;

/// A certificate authority of its own.
#[derive(Clone, Debug)]
pub struct Authority {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// A new authority, with a new key.
    pub fn new() -> Self {
        let key = new_key();
        let mut params = CertificateParams::default();
        params.distinguished_name = subject("fake-authority", &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let certificate = params.self_signed(&key).expect("parameters of our own").pem();
        let issuer = Issuer::new(params, key);
        Self { inner: Arc::new(Inner { issuer, certificate }) }
    }

    /// The authority's own certificate.
    pub fn certificate_pem(&self) -> &str {
        &self.inner.certificate
    }

    /// A certificate for a client, valid until `not_after`.
    pub fn client(&self, user: &User, not_after: Timestamp) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(&user.name, &user.groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        set_validity(&mut params, not_after);
        self.sign(&params)
    }

    /// A certificate for a server with these names and addresses.
    pub fn server(&self, names: &[&str]) -> Pair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names of our own");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Pair {
        let key = new_key();
        let certificate = params
            .signed_by(&key, &self.inner.issuer)
            .expect("parameters and keys of our own")
            .pem();
        Pair { certificate, key: key.serialize_pem() }
    }

    /// TLS of a server: client certificates are welcome, and not needed.
    pub fn server_config(&self) -> Arc<ServerConfig> {
        let pair = self.server(&["127.0.0.1", "localhost", "kubernetes.default.svc"]);
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())
            .expect("a certificate of our own");
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key of our own");
        let mut roots = RootCertStore::empty();
        let own = CertificateDer::from_pem_slice(self.certificate_pem().as_bytes())
            .expect("a certificate of our own");
        roots.add(own).expect("an authority of our own");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .allow_unauthenticated()
                .build()
                .expect("an authority of our own");
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the ring provider implements TLS 1.2 and TLS 1.3")
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], key)
            .expect("a certificate and its key");
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Arc::new(config)
    }

    /// Approves and signs all requests that have neither been approved nor denied. One that cannot
    /// be read fails.
    pub(crate) fn sign_all(&self, storage: &mut Storage, now: Timestamp) {
        let Some(kind) = KINDS.iter().find(|kind| kind.kind == "CertificateSigningRequest") else {
            return;
        };
        for request in storage.list(kind, None) {
            if !request["status"]["conditions"].is_null() {
                continue;
            }
            let mut answered = (*request).clone();
            let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(LASTS);
            let not_after = now + jiff::SignedDuration::from_secs(seconds);
            let condition = |kind: &str| {
                json!({"type": kind, "status": "True", "reason": "Fake",
                    "lastUpdateTime": timestamp(now), "lastTransitionTime": timestamp(now)})
            };
            let text = request["spec"]["request"].as_str().unwrap_or_default();
            answered["status"] = match self.sign_request(text, not_after) {
                Some(certificate) => json!({
                    "conditions": [condition("Approved")],
                    "certificate": BASE64_STANDARD.encode(certificate),
                }),
                None => json!({"conditions": [condition("Approved"), condition("Failed")]}),
            };
            let name = request["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let key = crate::storage::Key { plural: kind.plural, namespace: String::new(), name };
            storage.put(key, answered);
        }
    }

    /// `text` is PEM within base64, as the API has it.
    fn sign_request(&self, text: &str, not_after: Timestamp) -> Option<String> {
        let pem = String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()?;
        let mut request = CertificateSigningRequestParams::from_pem(&pem).ok()?;
        set_validity(&mut request.params, not_after);
        Some(request.signed_by(&self.inner.issuer).ok()?.pem())
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("the ring provider makes keys of the default kind")
}

fn subject(name: &str, groups: &[String]) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    for group in groups {
        subject.push(DnType::OrganizationName, group.as_str());
    }
    subject.push(DnType::CommonName, name);
    subject
}

/// From a month before `not_after`, so that clocks may differ.
fn set_validity(params: &mut CertificateParams, not_after: Timestamp) {
    let seconds = u64::try_from(not_after.as_second()).unwrap_or_default();
    let end = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = end - Duration::from_secs(30 * 24 * 3600);
    params.not_after = end;
}

/// Who a client certificate is made out to.
pub(crate) fn user_of(chain: &[CertificateDer<'_>]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(chain.first()?).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups =
        subject.iter_organization().filter_map(|group| Some(group.as_str().ok()?.to_owned()));
    Some(User { name, groups: groups.collect() })
}
