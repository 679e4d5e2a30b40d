//! What an administrator puts into a new cluster so that nodes can join it, under kubeadm's names.

use rand::Rng;
use serde_json::{Value, json};

use crate::layout::KUBELET_CLIENT;

/// The group of those that join with a token.
const BOOTSTRAPPERS: &str = "system:bootstrappers:kubeadm:default-node-token";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const TOKEN_LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// A token by which a node joins.
#[derive(Debug, Clone)]
pub(crate) struct BootstrapToken {
    id: String,
    secret: String,
}

impl BootstrapToken {
    pub(crate) fn random() -> Self {
        let mut random = rand::rng();
        let mut letters = |count: usize| -> String {
            let letter = |_| char::from(TOKEN_LETTERS[random.random_range(0..TOKEN_LETTERS.len())]);
            (0..count).map(letter).collect()
        };
        Self { id: letters(6), secret: letters(16) }
    }

    /// As it is sent.
    pub(crate) fn text(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }
}

/// The objects, each with the path of its collection.
pub(crate) fn objects(token: &BootstrapToken) -> Vec<(String, Value)> {
    let bootstrappers = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": BOOTSTRAPPERS
    });
    let nodes = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"
    });
    let kubelet_client = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": KUBELET_CLIENT
    });
    let requests = "system:certificates.k8s.io:certificatesigningrequests";
    let mut objects: Vec<(String, Value)> = [
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", &bootstrappers),
        ("kubeadm:get-nodes", "kubeadm:get-nodes", &bootstrappers),
        ("kubeadm:node-autoapprove-bootstrap", &format!("{requests}:nodeclient"), &bootstrappers),
        (
            "kubeadm:node-autoapprove-certificate-rotation",
            &format!("{requests}:selfnodeclient"),
            &nodes,
        ),
        ("kubeadm:apiserver-kubelet-client", "system:kubelet-api-admin", &kubelet_client),
    ]
    .map(|(name, role, subject)| {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": name },
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role
            },
            "subjects": [subject]
        });
        (format!("{RBAC}/clusterrolebindings"), binding)
    })
    .into();
    objects.push((
        format!("{RBAC}/clusterroles"),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": { "name": "kubeadm:get-nodes" },
            "rules": [{ "verbs": ["get"], "apiGroups": [""], "resources": ["nodes"] }]
        }),
    ));
    objects.push((
        "/api/v1/namespaces/kube-system/secrets".to_owned(),
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": format!("bootstrap-token-{}", token.id) },
            "type": "bootstrap.kubernetes.io/token",
            "stringData": {
                "token-id": token.id,
                "token-secret": token.secret,
                "usage-bootstrap-authentication": "true",
                "usage-bootstrap-signing": "true",
                "auth-extra-groups": BOOTSTRAPPERS
            }
        }),
    ));
    objects
}

/// The path and the question by which the holder of the token learns whether it may ask for a
/// certificate.
pub(crate) fn may_it_join() -> (&'static str, Value) {
    let question = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "group": "certificates.k8s.io",
            "resource": "certificatesigningrequests",
            "verb": "create"
        } }
    });
    ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", question)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_the_form_that_the_api_server_takes() {
        let token = BootstrapToken::random().text();
        let (id, secret) = token.split_once('.').expect("two parts");
        assert_eq!((id.len(), secret.len()), (6, 16));
        assert!(token.bytes().all(|b| b == b'.' || TOKEN_LETTERS.contains(&b)), "{token}");
    }
}
