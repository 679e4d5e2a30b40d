use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cluster::{Cluster, Policy, Server, assert_in_store, pairs};
use crate::testing::at;
use crate::{CertificateStatus, Purpose, ServingCertificateManager, ServingCertificateSettings};

const DAY: i64 = 86_400;

struct Ground {
    _directory: tempfile::TempDir,
    pki: PathBuf,
    cluster: Cluster,
    addresses: watch::Sender<Vec<NodeAddress>>,
}

struct Running {
    status: CertificateStatus,
    current: PathBuf,
    run: AbortOnDropHandle<()>,
}

fn addresses(list: &[(&str, &str)]) -> Vec<NodeAddress> {
    let address = |(type_, address): &(&str, &str)| NodeAddress {
        type_: (*type_).to_owned(),
        address: (*address).to_owned(),
    };
    list.iter().map(address).collect()
}

impl Ground {
    fn new(policy: Policy) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            pki: directory.path().join("pki"),
            _directory: directory,
            cluster: Cluster::new(policy, DAY),
            addresses: watch::Sender::new(Vec::new()),
        }
    }

    fn start(&self) -> Running {
        let settings = ServingCertificateSettings {
            directory: self.pki.clone(),
            node_name: "n1".to_owned(),
            given: None,
            dns_only: false,
        };
        let manager = ServingCertificateManager::open(settings, self.cluster.clock()).unwrap();
        let status = manager.status();
        let current = manager.places()[0].certificate.clone();
        let run =
            manager.run(self.cluster.clone(), self.addresses.subscribe(), CancellationToken::new());
        Running { status, current, run: AbortOnDropHandle::new(tokio::spawn(run)) }
    }

    fn set(&self, list: &[(&str, &str)]) {
        self.addresses.send_replace(addresses(list));
    }

    async fn until_changed(&self, count: usize) {
        self.cluster.until(|| self.cluster.changed() == count).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_without_an_address() {
    let ground = Ground::new(Policy::Sign);
    let kubelet = ground.start();
    sleep(Duration::from_secs(3_600)).await;
    ground.set(&[("Hostname", "n1")]);
    sleep(Duration::from_secs(3_600)).await;
    assert!(ground.cluster.tries().is_empty());
    assert!(!ground.pki.exists());

    ground.set(&[("Hostname", "n1"), ("InternalIP", "10.0.0.1")]);
    ground.until_changed(1).await;
    let came = ground.cluster.came();
    assert_eq!(came[0].names, ["n1", "10.0.0.1"]);
    assert_eq!(came[0].after.as_secs(), 7_200);
    assert_in_store(&kubelet.status, &kubelet.current);
    assert_eq!(kubelet.current.file_name().unwrap(), "kubelet-server-current.pem");
    assert_eq!(kubelet.status.renew_errors(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_new_address_asks_for_a_new_certificate_and_one_less_does_not() {
    let ground = Ground::new(Policy::Sign);
    ground.set(&[("InternalIP", "10.0.0.1")]);
    let kubelet = ground.start();
    ground.until_changed(1).await;
    sleep(Duration::from_secs(600)).await;
    ground.set(&[("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")]);
    ground.until_changed(2).await;
    assert_eq!(ground.cluster.came()[1].names, ["10.0.0.1", "fd00::1"]);
    assert!(ground.cluster.came()[1].after.as_secs() <= 602);
    ground.set(&[("InternalIP", "fd00::1")]);
    sleep(Duration::from_secs(600)).await;
    ground.set(&[]);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(ground.cluster.came().len(), 2);
    assert_eq!(pairs(&ground.pki, Purpose::Serving).len(), 2);
    assert!(!kubelet.run.is_finished());
}

#[tokio::test(start_paused = true)]
async fn an_address_that_changes_while_the_request_waits_makes_a_new_request() {
    let ground = Ground::new(Policy::Ignore);
    ground.set(&[("InternalIP", "10.0.0.1")]);
    let kubelet = ground.start();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(ground.cluster.came().len(), 1);
    ground.set(&[("InternalIP", "10.0.0.2")]);
    sleep(Duration::from_secs(10)).await;
    let came = ground.cluster.came();
    assert_eq!(came.len(), 2);
    assert_eq!(came[1].names, ["10.0.0.2"]);
    // That was nobody's failure.
    assert_eq!(kubelet.status.renew_errors(), 0);
    ground.cluster.set_policy(Policy::Sign);
    ground.until_changed(1).await;
    let leaf = kubelet.status.current(at(70)).unwrap();
    assert_eq!(leaf.ip_addresses, ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn a_signer_that_forgets_names_is_not_asked_again_and_again() {
    let ground = Ground::new(Policy::SignWithoutNames);
    ground.set(&[("InternalIP", "10.0.0.1")]);
    let kubelet = ground.start();
    ground.until_changed(1).await;
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(ground.cluster.came().len(), 1);
    ground.cluster.set_policy(Policy::Sign);
    ground.set(&[("InternalIP", "10.0.0.2")]);
    ground.until_changed(2).await;
    assert_eq!(ground.cluster.came().len(), 2);
    assert!(!kubelet.run.is_finished());
}

#[tokio::test(start_paused = true)]
async fn the_certificate_is_kept_over_a_restart_and_over_the_end_of_its_addresses() {
    let ground = Ground::new(Policy::Sign);
    ground.set(&[("InternalIP", "10.0.0.1")]);
    drop({
        let kubelet = ground.start();
        ground.until_changed(1).await;
        kubelet
    });
    ground.set(&[]);
    let kubelet = ground.start();
    assert!(kubelet.status.current(at(1)).is_some());
    // It expires, and there is nothing to ask for.
    sleep(Duration::from_secs(2 * 86_400)).await;
    assert_eq!(ground.cluster.came().len(), 1);
    assert!(kubelet.status.ttl_seconds(ground.cluster.clock().now()).is_infinite());
    ground.set(&[("InternalIP", "10.0.0.1")]);
    ground.until_changed(2).await;
    drop(ground.addresses);
    sleep(Duration::from_secs(600)).await;
    assert!(!kubelet.run.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_away_does_not_end_the_kubelet() {
    let ground = Ground::new(Policy::Sign);
    ground.cluster.set_server(Server::Unauthorized);
    ground.set(&[("InternalIP", "10.0.0.1")]);
    let kubelet = ground.start();
    sleep(Duration::from_secs(3_600)).await;
    assert!(!kubelet.run.is_finished());
    assert!(kubelet.status.renew_errors() > 100);
}
