use std::path::PathBuf;
use std::time::Duration;

use rubelet_types::error_chain;
use tokio::time::{Instant, sleep};

use super::cluster::{Cluster, Policy, Server, read_pair};
use crate::testing::at;
use crate::{CertificateStore, FirstCertificateError, Purpose, obtain_first_certificate};

struct Ground {
    _directory: tempfile::TempDir,
    pki: PathBuf,
    cluster: Cluster,
}

impl Ground {
    fn new(policy: Policy) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Cluster::new(policy, 86_400);
        Self { pki: directory.path().join("pki"), _directory: directory, cluster }
    }

    fn store(&self) -> CertificateStore {
        CertificateStore::open(&self.pki, Purpose::Client, None).unwrap()
    }

    async fn bootstrap(&self) -> Result<(), FirstCertificateError> {
        let requests = self.cluster.requests("initial");
        obtain_first_certificate(&requests, &self.store(), "n1", &self.cluster.clock()).await
    }

    async fn failure(&self) -> String {
        error_chain(&self.bootstrap().await.unwrap_err())
    }

    fn key_file(&self) -> PathBuf {
        self.pki.join("kubelet-client.key.tmp")
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_certificate_is_asked_for_and_kept() {
    let ground = Ground::new(Policy::Sign);
    ground.bootstrap().await.unwrap();
    let pair = read_pair(&ground.store().current_path());
    assert_eq!(pair.leaf().common_name, "system:node:n1");
    assert_eq!(pair.leaf().organizations, ["system:nodes"]);
    let came = ground.cluster.came();
    assert_eq!(came.len(), 1);
    assert!(came[0].name.starts_with("node-csr-"), "{}", came[0].name);
    // The key goes once the kubeconfig is written.
    assert!(ground.key_file().exists());
    ground.store().remove_key().unwrap();
    assert!(!ground.key_file().exists());
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_the_same_key_and_the_same_request() {
    let ground = Ground::new(Policy::Ignore);
    for _ in 0..3 {
        let killed = tokio::time::timeout(Duration::from_secs(60), ground.bootstrap()).await;
        assert!(killed.is_err());
    }
    assert_eq!(ground.cluster.came().len(), 1);
    let key = std::fs::read(ground.key_file()).unwrap();
    ground.cluster.set_policy(Policy::Sign);
    ground.bootstrap().await.unwrap();
    assert_eq!(ground.cluster.came().len(), 1);
    assert_eq!(std::fs::read(ground.key_file()).unwrap(), key);
    // And if the kubeconfig was not written any more, once more.
    ground.bootstrap().await.unwrap();
    assert_eq!(ground.cluster.came().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_has_expired_is_not_used_and_a_new_key_is_made() {
    let ground = Ground::new(Policy::Sign);
    ground.bootstrap().await.unwrap();
    let key = std::fs::read(ground.key_file()).unwrap();
    sleep(Duration::from_secs(2 * 86_400)).await;
    ground.bootstrap().await.unwrap();
    assert_eq!(ground.cluster.came().len(), 2);
    assert_ne!(std::fs::read(ground.key_file()).unwrap(), key);
    let pair = read_pair(&ground.store().current_path());
    assert!(pair.leaf().is_valid(ground.cluster.clock().now()));
}

#[tokio::test(start_paused = true)]
async fn refusals_say_what_is_wrong() {
    for (policy, server, text) in [
        (
            Policy::Deny,
            Server::Up,
            "certificate signing request is denied, reason: Because, message: I say so",
        ),
        (
            Policy::Fail,
            Server::Up,
            "certificate signing request failed, reason: Because, message: I say so",
        ),
        (
            Policy::Sign,
            Server::Unauthorized,
            "cannot create certificate signing request (the API server does not accept the \
             credentials: the bootstrap token or the certificate may have expired): Unauthorized",
        ),
        (
            Policy::Sign,
            Server::Forbidden,
            "cannot create certificate signing request (the credentials may not create \
             certificate signing requests): forbidden: User \"x\" cannot",
        ),
    ] {
        let ground = Ground::new(policy);
        ground.cluster.set_server(server);
        assert_eq!(ground.failure().await, text);
        assert!(ground.store().current(at(0)).unwrap().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_not_approved_within_an_hour_gives_up() {
    let ground = Ground::new(Policy::Ignore);
    let start = Instant::now();
    let text = ground.failure().await;
    assert!(text.starts_with("timed out after 1h0m0s waiting for csr \"node-csr-"), "{text}");
    assert!(text.ends_with("to be approved"), "{text}");
    let waited = start.elapsed().as_secs();
    assert!((3_600..=3_601).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_removed_or_replaced_is_an_error() {
    for replace in [false, true] {
        let ground = Ground::new(Policy::Ignore);
        let meddling = async {
            ground.cluster.until(|| !ground.cluster.came().is_empty()).await;
            sleep(Duration::from_secs(10)).await;
            let name = ground.cluster.came()[0].name.clone();
            if replace { ground.cluster.replace(&name) } else { ground.cluster.remove(&name) }
        };
        let (text, ()) = tokio::join!(ground.failure(), meddling);
        let end = if replace { "changed UIDs" } else { "was deleted" };
        assert!(text.starts_with("csr \"node-csr-") && text.ends_with(end), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_up_later_is_waited_for_and_one_that_does_not_is_an_error() {
    let ground = Ground::new(Policy::Sign);
    ground.cluster.set_server(Server::Unreachable);
    let coming = async {
        sleep(Duration::from_secs(40)).await;
        ground.cluster.set_server(Server::Up);
    };
    let (result, ()) = tokio::join!(ground.bootstrap(), coming);
    result.unwrap();
    let after = ground.cluster.came()[0].after.as_secs();
    assert!((40..=43).contains(&after), "{after}");

    let ground = Ground::new(Policy::Sign);
    ground.cluster.set_server(Server::Unreachable);
    let start = Instant::now();
    let text = ground.failure().await;
    assert_eq!(text, "cannot create certificate signing request: connection refused");
    let waited = start.elapsed().as_secs();
    assert!((60..=63).contains(&waited), "{waited}");
}
