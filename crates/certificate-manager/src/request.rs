//! What is asked for: subject, names and usages of a certificate, and the object that asks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, SanType};
use sha2::{Digest, Sha512_256};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

use crate::certificate::{LeafCertificate, read_certificates};
use crate::key::SigningKey;

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// The kubelet shows it to the API server.
    Client,
    /// The kubelet shows it to those who connect to port 10250.
    Serving,
}

impl Purpose {
    /// Who has to sign it.
    pub fn signer_name(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The usages that are asked for; signers refuse any other set.
    pub fn usages(self, key_is_rsa: bool) -> Vec<String> {
        let last = match self {
            Self::Client => "client auth",
            Self::Serving => "server auth",
        };
        let usages: &[&str] = match key_is_rsa {
            true => &["digital signature", "key encipherment", last],
            false => &["digital signature", last],
        };
        usages.iter().map(|usage| (*usage).to_owned()).collect()
    }
}

/// Whom a certificate has to name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTemplate {
    /// `CN`: `system:node:<name>`.
    pub common_name: String,
    /// `O`.
    pub organizations: Vec<String>,
    /// Host names, sorted.
    pub dns_names: Vec<String>,
    /// Addresses, in the order of their texts.
    pub ip_addresses: Vec<IpAddr>,
}

impl RequestTemplate {
    /// A node that needs no names of its own: what a client certificate says.
    pub fn node(node_name: &str) -> Self {
        Self {
            common_name: format!("system:node:{node_name}"),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
        }
    }

    /// What of this a certificate does not name; nothing if it will do. Names that it has on top do
    /// no harm.
    pub fn missing_in(&self, leaf: &LeafCertificate) -> Option<Missing> {
        if self.common_name != leaf.common_name {
            let (found, wanted) = (leaf.common_name.clone(), self.common_name.clone());
            return Some(Missing::CommonName { found, wanted });
        }
        let missing = absent(&self.dns_names, &leaf.dns_names);
        if !missing.is_empty() {
            return Some(Missing::DnsNames(missing));
        }
        let missing = absent(&self.ip_addresses, &leaf.ip_addresses);
        if !missing.is_empty() {
            return Some(Missing::IpAddresses(missing));
        }
        let missing = absent(&self.organizations, &leaf.organizations);
        (!missing.is_empty()).then_some(Missing::Organizations(missing))
    }

    /// The request in PEM, signed with `key`.
    ///
    /// # Errors
    ///
    /// A name cannot stand in a certificate.
    pub fn to_request(&self, key: &SigningKey) -> Result<String, rcgen::Error> {
        let mut parameters = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        for organization in &self.organizations {
            subject.push(DnType::OrganizationName, organization.as_str());
        }
        subject.push(DnType::CommonName, self.common_name.as_str());
        parameters.distinguished_name = subject;
        for name in &self.dns_names {
            parameters.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        let addresses = self.ip_addresses.iter().copied().map(SanType::IpAddress);
        parameters.subject_alt_names.extend(addresses);
        parameters.serialize_request(key.key_pair())?.pem()
    }
}

fn absent<T: Ord + Clone>(wanted: &[T], found: &[T]) -> Vec<T> {
    let found: BTreeSet<&T> = found.iter().collect();
    wanted.iter().filter(|one| !found.contains(one)).cloned().collect()
}

/// What a certificate lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// It names somebody else.
    #[error("it names {found:?} instead of {wanted:?}")]
    CommonName {
        /// Whom it names.
        found: String,
        /// Whom it should.
        wanted: String,
    },
    /// Host names.
    #[error("it lacks the host names {0:?}")]
    DnsNames(Vec<String>),
    /// Addresses.
    #[error("it lacks the addresses {0:?}")]
    IpAddresses(Vec<IpAddr>),
    /// Organizations.
    #[error("it lacks the organizations {0:?}")]
    Organizations(Vec<String>),
}

/// What a request is called that is to be found again after a restart: the same for the same key,
/// subject and usages, as upstream makes it.
pub fn digested_name(key: &SigningKey, template: &RequestTemplate, usages: &[String]) -> String {
    let mut hash = Sha512_256::new();
    // The alphabet lacks the delimiter: no two sets of parts give one stream.
    let mut write = |part: &[u8]| {
        hash.update(URL_SAFE_NO_PAD.encode(part));
        hash.update(b"|");
    };
    write(&key.public_key_info());
    write(template.common_name.as_bytes());
    for part in template.organizations.iter().chain(usages) {
        write(part.as_bytes());
    }
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

/// What the name of a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestName {
    /// The server makes one up, `csr-xxxxx`: each request is a new one.
    Generated,
    /// [`digested_name`].
    Digested,
}

/// The object that asks.
///
/// # Errors
///
/// A name cannot stand in a certificate.
pub fn signing_request(
    purpose: Purpose,
    template: &RequestTemplate,
    key: &SigningKey,
    name: RequestName,
) -> Result<CertificateSigningRequest, rcgen::Error> {
    let usages = purpose.usages(key.is_rsa());
    let metadata = match name {
        RequestName::Generated => {
            ObjectMeta { generate_name: Some("csr-".to_owned()), ..ObjectMeta::default() }
        }
        RequestName::Digested => ObjectMeta {
            name: Some(digested_name(key, template, &usages)),
            ..ObjectMeta::default()
        },
    };
    let spec = CertificateSigningRequestSpec {
        request: ByteString(template.to_request(key)?.into_bytes()),
        signer_name: purpose.signer_name().to_owned(),
        usages: Some(usages),
        ..CertificateSigningRequestSpec::default()
    };
    Ok(CertificateSigningRequest { metadata, spec, status: None })
}

/// Why a request that was there already cannot be used in place of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatible {
    /// It cannot be read.
    #[error("unable to parse the csr: {0}")]
    Unreadable(String),
    /// It asks for another subject.
    #[error("csr subjects differ: {found:?} instead of {wanted:?}")]
    Subject {
        /// Its subject.
        found: String,
        /// Ours.
        wanted: String,
    },
    /// It asks another signer.
    #[error("csr signerNames differ: {found:?} instead of {wanted:?}")]
    Signer {
        /// Its signer.
        found: String,
        /// Ours.
        wanted: String,
    },
    /// It is about another key.
    #[error("the csr was signed with another key")]
    Key,
    /// It was answered, too long ago.
    #[error("one of the certificates for the CSR has expired: {not_after}")]
    Expired {
        /// When.
        not_after: Timestamp,
    },
}

/// Whether the request `found` will do where `wanted` was to be made with `key`.
///
/// # Errors
///
/// Why it will not.
pub fn check_compatible(
    found: &CertificateSigningRequest,
    wanted: &CertificateSigningRequest,
    key: &SigningKey,
    now: Timestamp,
) -> Result<(), Incompatible> {
    let (found_subject, found_key) = parse(&found.spec.request.0)?;
    let (wanted_subject, _) = parse(&wanted.spec.request.0)?;
    if found_subject != wanted_subject {
        return Err(Incompatible::Subject { found: found_subject, wanted: wanted_subject });
    }
    if found.spec.signer_name != wanted.spec.signer_name {
        return Err(Incompatible::Signer {
            found: found.spec.signer_name.clone(),
            wanted: wanted.spec.signer_name.clone(),
        });
    }
    if found_key != key.public_key_info() {
        return Err(Incompatible::Key);
    }
    let answer = found.status.as_ref().and_then(|status| status.certificate.as_ref());
    let Some(answer) = answer.filter(|answer| !answer.0.is_empty()) else { return Ok(()) };
    let unreadable = |error: crate::PairError| Incompatible::Unreadable(error.to_string());
    for certificate in read_certificates(&answer.0).map_err(unreadable)? {
        let certificate = LeafCertificate::parse(certificate).map_err(unreadable)?;
        if !certificate.is_valid(now) {
            return Err(Incompatible::Expired { not_after: certificate.not_after });
        }
    }
    Ok(())
}

/// Subject and public key of a request. The server has checked its signature, so that who put his
/// key there has it.
fn parse(pem: &[u8]) -> Result<(String, Vec<u8>), Incompatible> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem)
        .map_err(|error| Incompatible::Unreadable(error.to_string()))?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err(Incompatible::Unreadable(format!("it is a {}", pem.label)));
    }
    let (_, request) = X509CertificationRequest::from_der(&pem.contents)
        .map_err(|error| Incompatible::Unreadable(error.to_string()))?;
    let info = &request.certification_request_info;
    Ok((info.subject.to_string(), info.subject_pki.raw.to_vec()))
}

/// How far a request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// Nobody has decided.
    Pending,
    /// It was approved, and waits for its signer.
    Approved,
    /// This is the certificate, in PEM.
    Issued(Vec<u8>),
    /// Somebody said no.
    Denied {
        /// A short word.
        reason: String,
        /// A sentence.
        message: String,
    },
    /// The signer gave up.
    Failed {
        /// A short word.
        reason: String,
        /// A sentence.
        message: String,
    },
}

/// How far `request` is.
pub fn request_state(request: &CertificateSigningRequest) -> RequestState {
    let Some(status) = &request.status else { return RequestState::Pending };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    for condition in conditions {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (reason, message) = (text(&condition.reason), text(&condition.message));
        match condition.type_.as_str() {
            "Denied" => return RequestState::Denied { reason, message },
            "Failed" => return RequestState::Failed { reason, message },
            _ => {}
        }
    }
    if !conditions.iter().any(|condition| condition.type_ == "Approved") {
        return RequestState::Pending;
    }
    match status.certificate.as_ref().filter(|certificate| !certificate.0.is_empty()) {
        Some(certificate) => RequestState::Issued(certificate.0.clone()),
        None => RequestState::Approved,
    }
}

#[cfg(test)]
mod tests;
