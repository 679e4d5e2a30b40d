//! How nodes join, what they may, and what becomes of those that fall silent.

use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rubelet_control_plane::{Client, ControlPlane, Credentials, Pair};
use rubelet_test_bed::trials::Trial;
use serde_json::{Value, json};
use x509_parser::pem::parse_x509_pem;

use crate::ground::{Ground, block_on, eventually};

pub(crate) const TRIALS: &[Trial<Ground>] = &[
    Trial {
        name: "a_node_may_create_its_own_node_and_no_other",
        run: a_node_may_create_its_own_node_and_no_other,
    },
    Trial {
        name: "both_kubeconfigs_of_a_node_are_that_node",
        run: both_kubeconfigs_of_a_node_are_that_node,
    },
    Trial {
        name: "a_node_joins_with_a_token_and_renews_its_certificate",
        run: a_node_joins_with_a_token_and_renews_its_certificate,
    },
    Trial {
        name: "a_serving_certificate_is_signed_once_somebody_approves_it",
        run: a_serving_certificate_is_signed_once_somebody_approves_it,
    },
    Trial { name: "a_node_that_falls_silent_is_tainted", run: a_node_that_falls_silent_is_tainted },
];

const NODES: &str = "/api/v1/nodes";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn node_object(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })
}

fn a_node_may_create_its_own_node_and_no_other(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    block_on(async {
        let node = control_plane.node("own")?;
        let client = control_plane.client(&Credentials::Inline(node.pair))?;
        client.create(NODES, &node_object("own")).await?;
        let json = ("application/json", &node_object("foreign"));
        let (status, answer) = client.request(Method::POST, NODES, Some(json)).await?;
        ensure!(status == 403, "{status} {answer}");
        let why = answer["message"].as_str().unwrap_or_default();
        ensure!(why.contains("node \"own\" is not allowed to modify node \"foreign\""), "{why}");
        // The kubelet's lease, in the same way.
        let lease = |name: &str| {
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": name, "namespace": "kube-node-lease" },
                "spec": { "holderIdentity": name, "leaseDurationSeconds": 40 }
            })
        };
        let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
        client.create(leases, &lease("own")).await?;
        ensure!(client.create(leases, &lease("foreign")).await.is_err(), "a lease of another");
        control_plane.admin().delete(&format!("{NODES}/own")).await?;
        Ok(())
    })
}

fn both_kubeconfigs_of_a_node_are_that_node(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    let node = control_plane.node("twice")?;
    block_on(async {
        for file in [&node.kubeconfig, &node.kubeconfig_inline] {
            let file = file.to_str().context("a path in UTF-8")?;
            let who = ["--kubeconfig", file, "auth", "whoami", "-o", "json"];
            let who: Value = serde_json::from_str(&control_plane.kubectl(&who).await?)?;
            let user = &who["status"]["userInfo"];
            ensure!(user["username"] == "system:node:twice", "{file}: {who}");
            let groups = user["groups"].as_array().context("groups")?;
            ensure!(groups.contains(&json!("system:nodes")), "{file}: {who}");
        }
        Ok(())
    })
}

/// Asks for a certificate of a node and waits until it is signed.
async fn request_certificate(
    client: &Client,
    name: &str,
    node: &str,
    key: &KeyPair,
) -> anyhow::Result<Pair> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "name": name },
        "spec": {
            "request": STANDARD.encode(params.serialize_request(key)?.pem()?),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"]
        }
    });
    client.create(REQUESTS, &request).await?;
    signed_certificate(client, name, key).await
}

async fn signed_certificate(client: &Client, name: &str, key: &KeyPair) -> anyhow::Result<Pair> {
    let signed = eventually("the certificate", async || {
        let request = client.get(&format!("{REQUESTS}/{name}")).await?;
        let certificate = request["status"]["certificate"].as_str();
        Ok(certificate.map(str::to_owned).ok_or_else(|| request["status"].to_string()))
    });
    let certificate = String::from_utf8(STANDARD.decode(signed.await?)?)?;
    Ok(Pair { certificate, key: key.serialize_pem() })
}

fn a_node_joins_with_a_token_and_renews_its_certificate(ground: &Ground) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    block_on(async {
        let token = control_plane.client(&Credentials::Token(control_plane.bootstrap_token()))?;
        let key = KeyPair::generate()?;
        let pair = request_certificate(&token, "join", "joined", &key).await?;
        // It is good for what it is for, and was signed by the authority that kubelets trust.
        let joined = control_plane.client(&Credentials::Inline(pair))?;
        joined.create(NODES, &node_object("joined")).await?;
        // With the token alone nobody becomes a node.
        ensure!(token.create(NODES, &node_object("other")).await.is_err(), "a token made a node");

        let key = KeyPair::generate()?;
        let pair = request_certificate(&joined, "renew", "joined", &key).await?;
        let renewed = control_plane.client(&Credentials::Inline(pair))?;
        renewed.get(&format!("{NODES}/joined")).await?;
        control_plane.admin().delete(&format!("{NODES}/joined")).await?;
        Ok(())
    })
}

fn a_serving_certificate_is_signed_once_somebody_approves_it(
    ground: &Ground,
) -> anyhow::Result<()> {
    let control_plane = ground.shared()?;
    block_on(async {
        let node = control_plane.node("serves")?;
        let client = control_plane.client(&Credentials::Inline(node.pair))?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, "system:node:serves");
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": { "name": "serves" },
            "spec": {
                "request": STANDARD.encode(params.serialize_request(&key)?.pem()?),
                "signerName": "kubernetes.io/kubelet-serving",
                "usages": ["digital signature", "server auth"]
            }
        });
        client.create(REQUESTS, &request).await?;
        control_plane.kubectl(&["certificate", "approve", "serves"]).await?;
        let pair = signed_certificate(&client, "serves", &key).await?;
        let (_, pem) = parse_x509_pem(pair.certificate.as_bytes())?;
        let certificate = pem.parse_x509()?;
        let names = certificate.subject_alternative_name()?.context("no names")?;
        ensure!(format!("{names:?}").contains("127, 0, 0, 1"), "{names:?}");
        Ok(())
    })
}

fn a_node_that_falls_silent_is_tainted(ground: &Ground) -> anyhow::Result<()> {
    let mut options = ground.options();
    options.scheduler = false;
    options.node_monitor_grace = Some(Duration::from_secs(2));
    let control_plane = ground.start(options)?;
    block_on(async {
        create_ready_node(&control_plane, "silent").await?;
        let taint = eventually("the taint", async || {
            let node = control_plane.admin().get(&format!("{NODES}/silent")).await?;
            let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
            let found = |taint: &Value| taint["key"] == "node.kubernetes.io/unreachable";
            Ok(taints.into_iter().find(found).ok_or_else(|| node["spec"].to_string()))
        });
        ensure!(taint.await?["effect"] == "NoSchedule");
        let node = control_plane.admin().get(&format!("{NODES}/silent")).await?;
        let conditions = node["status"]["conditions"].as_array().context("conditions")?;
        let ready = conditions.iter().find(|one| one["type"] == "Ready").context("Ready")?;
        ensure!(ready["status"] == "Unknown", "{ready}");
        ensure!(ready["reason"] == "NodeStatusUnknown", "{ready}");
        Ok(())
    })
}

/// A node as a kubelet would leave it that was ready once.
pub(crate) async fn create_ready_node(
    control_plane: &ControlPlane,
    name: &str,
) -> anyhow::Result<()> {
    let admin = control_plane.admin();
    admin.create(NODES, &node_object(name)).await?;
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let status = json!({
        "status": {
            "capacity": { "cpu": "2", "memory": "4Gi", "pods": "110" },
            "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "110" },
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "KubeletReady",
                "message": "as if", "lastHeartbeatTime": now, "lastTransitionTime": now
            }]
        }
    });
    admin.merge(&format!("{NODES}/{name}/status"), &status).await?;
    Ok(())
}
