use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use x509_parser::prelude::{GeneralName, ParsedExtension};

use super::*;
use crate::testing::{GO_EC_KEY, RSA_PAIR, at, certificate};
use crate::{CertificatePair, PairError};

fn go_key() -> SigningKey {
    SigningKey::from_pem(GO_EC_KEY.as_bytes()).unwrap()
}

fn leaf(names: &[&str]) -> Result<LeafCertificate, PairError> {
    let made = certificate("system:node:n1", at(0), at(100), names);
    let pair = CertificatePair::from_pem(made.certificate.as_bytes(), made.key.as_bytes())?;
    Ok(pair.leaf().clone())
}

#[test]
fn usages_depend_on_the_purpose_and_the_key() {
    let usages = |purpose: Purpose, rsa| purpose.usages(rsa).join(",");
    assert_eq!(usages(Purpose::Client, false), "digital signature,client auth");
    assert_eq!(usages(Purpose::Client, true), "digital signature,key encipherment,client auth");
    assert_eq!(usages(Purpose::Serving, false), "digital signature,server auth");
    assert_eq!(usages(Purpose::Serving, true), "digital signature,key encipherment,server auth");
}

#[test]
fn the_name_is_the_one_that_go_computes() {
    // Computed with Go's crypto/sha512 and encoding/base64 for this key.
    let template = RequestTemplate::node("n1");
    let name = digested_name(&go_key(), &template, &Purpose::Client.usages(false));
    assert_eq!(name, "node-csr-bBALEL7PUpQpXg-cWxCwpkgfuU59pHvU-wZ-DgYSJWE");
}

#[test]
fn the_name_tells_apart_what_is_asked_for() {
    let (key, client) = (go_key(), Purpose::Client.usages(false));
    let base = digested_name(&key, &RequestTemplate::node("n1"), &client);
    let shifted = RequestTemplate {
        common_name: "system:node:n1system:nodes".to_owned(),
        organizations: Vec::new(),
        ..RequestTemplate::node("n1")
    };
    for other in [
        digested_name(&SigningKey::generate().unwrap(), &RequestTemplate::node("n1"), &client),
        digested_name(&key, &RequestTemplate::node("n2"), &client),
        digested_name(&key, &RequestTemplate::node("n1"), &Purpose::Serving.usages(false)),
        digested_name(&key, &shifted, &client),
    ] {
        assert_ne!(other, base);
    }
}

#[test]
fn a_request_asks_for_what_the_template_says() {
    let key = SigningKey::generate().unwrap();
    let template = RequestTemplate {
        dns_names: vec!["n1".to_owned(), "n1.example".to_owned()],
        ip_addresses: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        ..RequestTemplate::node("n1")
    };
    let request = signing_request(Purpose::Serving, &template, &key, RequestName::Generated);
    let request = request.unwrap();
    assert_eq!(request.spec.signer_name, "kubernetes.io/kubelet-serving");
    assert_eq!(request.spec.usages, Some(Purpose::Serving.usages(false)));
    assert_eq!(request.metadata.name, None);
    assert_eq!(request.metadata.generate_name.as_deref(), Some("csr-"));

    let (_, pem) = x509_parser::pem::parse_x509_pem(&request.spec.request.0).unwrap();
    let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).unwrap();
    let info = &parsed.certification_request_info;
    assert_eq!(info.subject.to_string(), "O=system:nodes, CN=system:node:n1");
    assert_eq!(info.subject_pki.raw, key.public_key_info());
    let mut names = Vec::new();
    for extension in parsed.requested_extensions().unwrap() {
        let ParsedExtension::SubjectAlternativeName(found) = extension else { continue };
        for name in &found.general_names {
            names.push(match name {
                GeneralName::DNSName(name) => (*name).to_owned(),
                GeneralName::IPAddress(octets) => format!("{octets:?}"),
                other => other.to_string(),
            });
        }
    }
    assert_eq!(names[..3], ["n1", "n1.example", "[10, 0, 0, 1]"]);
    assert_eq!(names.len(), 4);
}

#[test]
fn a_request_of_a_client_names_nothing_but_the_node() {
    // The approver refuses requests with names.
    let key = SigningKey::generate().unwrap();
    let template = RequestTemplate::node("n1");
    let request = signing_request(Purpose::Client, &template, &key, RequestName::Digested).unwrap();
    assert!(request.metadata.name.unwrap().starts_with("node-csr-"));
    let (_, pem) = x509_parser::pem::parse_x509_pem(&request.spec.request.0).unwrap();
    let (_, parsed) = X509CertificationRequest::from_der(&pem.contents).unwrap();
    assert_eq!(parsed.requested_extensions().into_iter().flatten().count(), 0);
}

#[test]
fn a_host_name_that_no_certificate_can_hold_is_an_error() {
    let template =
        RequestTemplate { dns_names: vec!["knöten".to_owned()], ..RequestTemplate::node("n1") };
    let key = SigningKey::generate().unwrap();
    assert!(signing_request(Purpose::Serving, &template, &key, RequestName::Generated).is_err());
}

#[test]
fn a_certificate_must_name_everything_and_may_name_more() {
    let wanted = |dns: &[&str], ips: &[&str]| RequestTemplate {
        dns_names: dns.iter().map(|name| (*name).to_owned()).collect(),
        ip_addresses: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        ..RequestTemplate::node("n1")
    };
    let leaf = leaf(&["n1", "10.0.0.1", "10.0.0.2"]).unwrap();
    let missing = |template: RequestTemplate| template.missing_in(&leaf);
    assert_eq!(missing(wanted(&[], &[])), None);
    assert_eq!(missing(wanted(&["n1"], &["10.0.0.2"])), None);
    assert_eq!(missing(wanted(&["n2"], &[])), Some(Missing::DnsNames(vec!["n2".to_owned()])));
    let gone = "10.0.0.3".parse().unwrap();
    let ips = ["10.0.0.1", "10.0.0.3"];
    assert_eq!(missing(wanted(&[], &ips)), Some(Missing::IpAddresses(vec![gone])));
    assert!(matches!(missing(RequestTemplate::node("n2")), Some(Missing::CommonName { .. })));
    let mut template = RequestTemplate::node("n1");
    template.organizations.push("system:more".to_owned());
    let more = Missing::Organizations(vec!["system:more".to_owned()]);
    assert_eq!(missing(template), Some(more));
}

fn with_status(
    conditions: &[(&str, &str, &str)],
    certificate: Option<&str>,
) -> CertificateSigningRequest {
    let conditions =
        conditions.iter().map(|(type_, reason, message)| CertificateSigningRequestCondition {
            type_: (*type_).to_owned(),
            status: "True".to_owned(),
            reason: Some((*reason).to_owned()),
            message: Some((*message).to_owned()),
            ..CertificateSigningRequestCondition::default()
        });
    let status = CertificateSigningRequestStatus {
        conditions: Some(conditions.collect()),
        certificate: certificate.map(|pem| ByteString(pem.as_bytes().to_vec())),
    };
    CertificateSigningRequest { status: Some(status), ..CertificateSigningRequest::default() }
}

#[test]
fn a_request_is_as_far_as_its_conditions_say() {
    let state =
        |conditions: &[_], certificate| request_state(&with_status(conditions, certificate));
    let approved = ("Approved", "AutoApproved", "");
    assert_eq!(request_state(&CertificateSigningRequest::default()), RequestState::Pending);
    assert_eq!(state(&[], None), RequestState::Pending);
    // What nobody approved is not used, even if somebody signed it.
    assert_eq!(state(&[], Some("pem")), RequestState::Pending);
    assert_eq!(state(&[approved], None), RequestState::Approved);
    assert_eq!(state(&[approved], Some("")), RequestState::Approved);
    assert_eq!(state(&[approved], Some("pem")), RequestState::Issued(b"pem".to_vec()));
    let (reason, message) = ("Unknown".to_owned(), "who are you".to_owned());
    let told = (reason.clone(), message.clone());
    assert_eq!(
        state(&[approved, ("Denied", &told.0, &told.1)], Some("pem")),
        RequestState::Denied { reason: reason.clone(), message: message.clone() }
    );
    assert_eq!(
        state(&[approved, ("Failed", &told.0, &told.1)], None),
        RequestState::Failed { reason, message }
    );
}

#[test]
fn an_earlier_request_is_used_only_if_it_is_ours_and_still_good() {
    let key = SigningKey::generate().unwrap();
    let make = |node: &str, purpose, key: &SigningKey| {
        let template = RequestTemplate::node(node);
        signing_request(purpose, &template, key, RequestName::Digested).unwrap()
    };
    let wanted = make("n1", Purpose::Client, &key);
    let check = |found: &CertificateSigningRequest| check_compatible(found, &wanted, &key, at(50));
    // ECDSA signatures are random: the texts differ, and that is all.
    assert_eq!(check(&make("n1", Purpose::Client, &key)), Ok(()));
    assert!(matches!(check(&make("n2", Purpose::Client, &key)), Err(Incompatible::Subject { .. })));
    assert!(matches!(check(&make("n1", Purpose::Serving, &key)), Err(Incompatible::Signer { .. })));
    let other = SigningKey::from_pem(RSA_PAIR.as_bytes()).unwrap();
    assert_eq!(check(&make("n1", Purpose::Client, &other)), Err(Incompatible::Key));
    let mut broken = wanted.clone();
    broken.spec.request = ByteString(b"rubbish".to_vec());
    assert!(matches!(check(&broken), Err(Incompatible::Unreadable(_))));

    let answered = |not_after| {
        let made = certificate("system:node:n1", at(0), not_after, &[]);
        let status = with_status(&[("Approved", "", "")], Some(&made.certificate)).status;
        CertificateSigningRequest { status, ..wanted.clone() }
    };
    assert_eq!(check(&answered(at(51))), Ok(()));
    assert_eq!(check(&answered(at(49))), Err(Incompatible::Expired { not_after: at(49) }));
}
