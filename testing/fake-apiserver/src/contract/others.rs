//! Leases, events, tokens, reviews, certificates.

use base64::Engine;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rubelet_apiserver::{ApiErrorKind, Delete, Patch};
use serde_json::json;

use super::{Named, Outcome, Scope, ensure, expect_error, object, uid};

pub(super) const CHECKS: &[Named] = &[
    ("a lease is made, renewed and contended for", |s| Box::pin(lease(s))),
    ("events are made and counted", |s| Box::pin(events(s))),
    ("accounts have tokens", |s| Box::pin(tokens(s))),
    ("tokens and access are reviewed", |s| Box::pin(reviews(s))),
    ("certificates are asked for and approved", |s| Box::pin(certificates(s))),
    ("it responds", |s| Box::pin(responds(s))),
];

async fn lease(scope: &Scope) -> Outcome {
    let leases = scope.api.heartbeats().namespaced::<Lease>(&scope.namespace);
    expect_error(leases.get("node").await, ApiErrorKind::NotFound, "a lease that is not there")?;
    let at = |micros: u32| format!("2026-01-01T00:00:00.{micros:06}Z");
    let new: Lease = object(json!({
        "metadata": {"name": "node"},
        "spec": {"holderIdentity": scope.node, "leaseDurationSeconds": 40, "renewTime": at(1)},
    }));
    let first = leases.create(&new).await?;
    let mut renewed = first.clone();
    if let Some(spec) = &mut renewed.spec {
        spec.renew_time = object::<Lease>(json!({"metadata": {}, "spec": {"renewTime": at(2)}}))
            .spec
            .and_then(|spec| spec.renew_time);
    }
    let second = leases.update("node", &renewed).await?;
    ensure!(second.spec == renewed.spec, "it reads {:?}", second.spec);
    let outcome = leases.update("node", &first).await;
    expect_error(outcome, ApiErrorKind::Conflict, "renewing an old version")?;
    Ok(())
}

async fn events(scope: &Scope) -> Outcome {
    let events = scope.api.events().namespaced::<Event>(&scope.namespace);
    let event = |namespace: &str| -> Event {
        object(json!({
            "metadata": {"name": format!("pod.{}", scope.run)},
            "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "pod", "uid": "u"},
            "reason": "Started", "message": "m", "type": "Normal", "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "kubelet", "host": scope.node},
            "reportingComponent": "kubelet", "reportingInstance": scope.node,
        }))
    };
    let outcome = events.create(&event("kube-system")).await;
    expect_error(outcome, ApiErrorKind::Invalid, "an event about another namespace")?;
    let made = events.create(&event(&scope.namespace)).await?;
    let name = made.metadata.name.unwrap_or_default();
    let patch = Patch::Strategic(json!({"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z"}));
    let counted = events.patch(&name, &patch).await?;
    ensure!(counted.count == Some(2), "the count is {:?}", counted.count);
    let outcome = events.patch("pod.nobody", &patch).await;
    expect_error(outcome, ApiErrorKind::NotFound, "counting no event")?;
    Ok(())
}

async fn tokens(scope: &Scope) -> Outcome {
    let pod = scope.pods().create(&scope.pod("tokens")).await?;
    let request = |seconds: i64, uid: &str| -> TokenRequest {
        object_of(json!({"metadata": {}, "spec": {
            "audiences": ["https://example.com"],
            "expirationSeconds": seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "tokens", "uid": uid},
        }}))
    };
    let api = &scope.api;
    let namespace = &scope.namespace;
    let granted = api.create_token(namespace, "default", &request(3600, &uid(&pod))).await?;
    let status = granted.status.unwrap_or_default();
    let token = status.token.unwrap_or_default();
    ensure!(token.split('.').count() == 3, "the token is no JWT");
    ensure!(status.expiration_timestamp.is_some(), "it has no end");
    let outcome = api.create_token(namespace, "nobody", &request(3600, &uid(&pod))).await;
    let error = expect_error(outcome, ApiErrorKind::NotFound, "a token of nobody")?;
    ensure!(error.resource() == "serviceaccounts/token", "{error:?}");
    let outcome = api.create_token(namespace, "default", &request(10, &uid(&pod))).await;
    expect_error(outcome, ApiErrorKind::Invalid, "a token of ten seconds")?;
    let outcome = api.create_token(namespace, "default", &request(3600, "another")).await;
    expect_error(outcome, ApiErrorKind::Conflict, "a token for another pod")?;
    Ok(())
}

fn object_of<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> T {
    serde_json::from_value(value).expect("an object of this type")
}

async fn reviews(scope: &Scope) -> Outcome {
    let review: TokenReview = object(json!({"metadata": {}, "spec": {"token": "no.such.token"}}));
    let status = scope.api.cluster().create(&review).await?.status.unwrap_or_default();
    ensure!(status.authenticated != Some(true), "anybody is somebody");
    let review: SubjectAccessReview = object(json!({"metadata": {}, "spec": {
        "user": "jane",
        "resourceAttributes": {"verb": "get", "resource": "nodes", "subresource": "metrics", "name": "a"},
    }}));
    let reviewed = scope.api.cluster().create(&review).await?;
    ensure!(reviewed.status.is_some(), "no decision");
    Ok(())
}

/// A request for a node's client certificate.
fn certificate_request(node: &str) -> String {
    let key = KeyPair::generate().expect("the ring provider makes keys of the default kind");
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{node}"));
    let mut params = CertificateParams::default();
    params.distinguished_name = subject;
    let request = params.serialize_request(&key).expect("parameters of our own");
    let pem = request.pem().expect("a request can be written");
    base64::prelude::BASE64_STANDARD.encode(pem)
}

async fn certificates(scope: &Scope) -> Outcome {
    let requests = scope.api.cluster::<CertificateSigningRequest>();
    let name = format!("contract-{}", scope.run);
    let new: CertificateSigningRequest = object(json!({"metadata": {"name": name}, "spec": {
        "request": certificate_request(&scope.node),
        "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    }}));
    let made = requests.create(&new).await?;
    ensure!(made.spec.username.as_deref().is_some_and(|name| !name.is_empty()), "nobody asked");
    let patch = json!([{"type": "Approved", "status": "True", "reason": "Contract"}]);
    let mut approved = made;
    approved.status = object_of(json!({"conditions": patch}));
    let approved = requests.update_subresource(&name, "approval", &approved).await?;
    let conditions = approved.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.iter().any(|c| c.type_ == "Approved"), "conditions: {conditions:?}");
    let read = requests.get(&name).await?;
    let conditions = read.status.and_then(|status| status.conditions).unwrap_or_default();
    ensure!(conditions.iter().any(|c| c.type_ == "Approved"), "it was not kept");
    requests.delete(&name, &Delete::default()).await?;
    Ok(())
}

async fn responds(scope: &Scope) -> Outcome {
    ensure!(scope.api.is_responding().await, "it does not");
    Ok(())
}
