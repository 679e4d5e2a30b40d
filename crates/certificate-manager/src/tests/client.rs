use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::SignedDuration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cluster::{BACKDATE, Cluster, Policy, Server, assert_in_store, pairs, read_pair};
use crate::testing::{at, certificate};
use crate::{
    CertificatePair, CertificateStatus, CertificateStore, ClientCertificateLost,
    ClientCertificateManager, ClientCertificateSettings, InitialCertificate, LeafCertificate,
    Origin, Purpose, ServerAnswer, decide_origin,
};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

struct Ground {
    directory: tempfile::TempDir,
    cluster: Cluster,
}

struct Running {
    status: CertificateStatus,
    current: PathBuf,
    stop: CancellationToken,
    run: AbortOnDropHandle<Result<(), ClientCertificateLost>>,
}

impl Ground {
    fn new(policy: Policy, lifetime: i64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self { directory, cluster: Cluster::new(policy, lifetime) }
    }

    fn start(&self) -> Running {
        self.start_with(InitialCertificate::None)
    }

    fn start_with(&self, initial: InitialCertificate) -> Running {
        let settings = ClientCertificateSettings {
            directory: self.pki(),
            node_name: "n1".to_owned(),
            initial,
        };
        let manager = ClientCertificateManager::open(settings, self.cluster.clock()).unwrap();
        let (status, current) = (manager.status(), manager.current_path());
        let stop = CancellationToken::new();
        let run: JoinHandle<_> = tokio::spawn(manager.run(self.cluster.clone(), stop.clone()));
        Running { status, current, stop, run: AbortOnDropHandle::new(run) }
    }

    fn pki(&self) -> PathBuf {
        self.directory.path().join("pki")
    }

    fn seconds(&self, tries: &[Duration]) -> Vec<u64> {
        tries.iter().map(Duration::as_secs).collect()
    }

    /// Puts a pair into the store as somebody else would.
    fn put(&self, common_name: &str, from: i64, until: i64) {
        let pem = certificate(common_name, at(from), at(until), &[]).pem();
        let pair = CertificatePair::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap();
        let store = CertificateStore::open(&self.pki(), Purpose::Client, None).unwrap();
        store.update(&pair, at(from)).unwrap();
    }
}

fn pair(common_name: &str, from: i64, until: i64) -> CertificatePair {
    let pem = certificate(common_name, at(from), at(until), &[]).pem();
    CertificatePair::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap()
}

fn expiry(path: &Path) -> jiff::Timestamp {
    read_pair(path).leaf().not_after
}

#[test]
fn the_store_goes_before_the_kubeconfig_as_long_as_it_is_valid() {
    let (good, bad) = (pair("n", 0, 100), pair("n", 0, 10));
    let (good, bad): (&LeafCertificate, &LeafCertificate) = (good.leaf(), bad.leaf());
    for (stored, inline, origin) in [
        (None, None, Origin::Missing),
        (Some(good), None, Origin::Store),
        (Some(good), Some(good), Origin::Store),
        (Some(bad), Some(good), Origin::Import),
        (None, Some(good), Origin::Import),
        (None, Some(bad), Origin::Missing),
        (Some(bad), Some(bad), Origin::Missing),
    ] {
        assert_eq!(decide_origin(stored, inline, at(50)), origin);
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_certificate_comes_by_the_initial_credentials_and_the_next_by_its_own() {
    let ground = Ground::new(Policy::Sign, DAY);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    assert_in_store(&kubelet.status, &kubelet.current);
    let first = read_pair(&kubelet.current);
    assert_eq!(first.leaf().common_name, "system:node:n1");
    assert!((kubelet.status.ttl_seconds(at(0)) - 86_400.0).abs() <= 1.0);

    ground.cluster.until(|| ground.cluster.changed() == 3).await;
    assert_in_store(&kubelet.status, &kubelet.current);
    assert_eq!(pairs(&ground.pki(), Purpose::Client).len(), 3);
    let came = ground.cluster.came();
    let by: Vec<_> = came.iter().map(|came| came.by).collect();
    assert_eq!(by, ["initial", "own", "own"]);
    // 70 to 90 % of a life that began before the certificate was signed.
    let life = u64::try_from(DAY + BACKDATE).unwrap();
    let backdate = u64::try_from(BACKDATE).unwrap();
    for two in came.windows(2) {
        let waited = (two[1].after - two[0].after).as_secs() + backdate;
        assert!(waited * 10 >= life * 7 - 10 && waited * 10 <= life * 9 + 20, "{waited} of {life}");
    }
    let ages = kubelet.status.rotation_ages();
    assert_eq!((ages.count, ages.at_most[3]), (2, 2));
    assert_eq!(kubelet.status.renew_errors(), 0);
    kubelet.stop.cancel();
    assert_eq!(kubelet.run.await.unwrap(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn certificates_of_ten_minutes_are_renewed_for_a_day_without_a_gap() {
    for (lifetime, span) in [(600, DAY), (60, HOUR)] {
        let ground = Ground::new(Policy::Sign, lifetime);
        let kubelet = ground.start();
        ground.cluster.until(|| ground.cluster.changed() == 1).await;
        let clock = ground.cluster.clock();
        let start = Instant::now();
        while start.elapsed().as_secs() < u64::try_from(span).unwrap() {
            sleep(Duration::from_secs(5)).await;
            assert!(kubelet.status.current(clock.now()).is_some(), "a gap at {}", clock.now());
        }
        let count = ground.cluster.came().len();
        let lives = usize::try_from(span / lifetime).unwrap();
        // Each is in use for 60 to 90 % of what was left of it when it came.
        assert!(count > lives && count < lives * 2, "{count} requests in {lives} lives");
        assert_eq!(kubelet.status.rotation_ages().count + 1, u64::try_from(count).unwrap());
        assert_eq!(kubelet.status.renew_errors(), 0);
        assert!(!kubelet.run.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_is_asked_less_and_less_often() {
    let ground = Ground::new(Policy::Sign, DAY);
    ground.cluster.set_server(Server::Internal);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.tries().len() == 7).await;
    let tries = ground.seconds(&ground.cluster.tries());
    let latest = [0, 3, 7, 16, 34, 66, 98];
    for ((found, earliest), latest) in tries.iter().zip([0, 2, 6, 14, 30, 62, 94]).zip(latest) {
        assert!((earliest..=latest).contains(found), "{tries:?}");
    }
    sleep(Duration::from_millis(100)).await;
    assert_eq!(kubelet.status.renew_errors(), 7);
    assert_eq!(kubelet.status.server_answer(), ServerAnswer::None);

    ground.cluster.set_server(Server::Up);
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    assert_eq!(kubelet.status.server_answer(), ServerAnswer::Accepted);
    assert_eq!(kubelet.status.renew_errors(), 7);
}

#[tokio::test(start_paused = true)]
async fn who_is_not_approved_within_a_quarter_of_an_hour_asks_again() {
    let ground = Ground::new(Policy::Ignore, DAY);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.came().len() == 3).await;
    let came = ground.cluster.came();
    let after: Vec<u64> = came.iter().map(|came| came.after.as_secs()).collect();
    assert!(after[0] == 0 && (902..=903).contains(&after[1]), "{after:?}");
    assert!((1_806..=1_808).contains(&after[2]), "{after:?}");
    assert_ne!(came[0].name, came[1].name);
    assert_eq!(kubelet.status.renew_errors(), 2);
    // A late approval of the request in flight is good; nobody looks at the older ones.
    ground.cluster.set_policy(Policy::Sign);
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    assert_eq!(ground.cluster.came().len(), 3);
    assert!(!kubelet.run.is_finished());
}

#[tokio::test(start_paused = true)]
async fn waiting_for_an_approval_is_no_reason_to_end() {
    let ground = Ground::new(Policy::Ignore, DAY);
    let kubelet = ground.start();
    sleep(Duration::from_secs(3_600)).await;
    assert!(!kubelet.run.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_request_on_its_way_is_not_given_up_for_an_earlier_refusal() {
    let ground = Ground::new(Policy::Ignore, DAY);
    ground.cluster.set_server(Server::Forbidden);
    let kubelet = ground.start();
    sleep(Duration::from_secs(200)).await;
    ground.cluster.set_server(Server::Up);
    sleep(Duration::from_secs(1_000)).await;
    assert!(!kubelet.run.is_finished());
    ground.cluster.set_policy(Policy::Sign);
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_denied_request_is_followed_by_another() {
    let ground = Ground::new(Policy::Deny, DAY);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.came().len() == 2).await;
    ground.cluster.set_policy(Policy::Fail);
    ground.cluster.until(|| ground.cluster.came().len() == 4).await;
    ground.cluster.set_policy(Policy::Sign);
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    assert_eq!(kubelet.status.renew_errors(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_in_the_kubeconfig_is_imported_and_replaced_at_once() {
    let ground = Ground::new(Policy::Sign, DAY);
    let inline = pair("kubernetes-admin", 0, 365 * DAY);
    let leaf = inline.leaf().clone();
    let kubelet = ground.start_with(InitialCertificate::Inline(inline));
    assert_eq!(read_pair(&kubelet.current).leaf(), &leaf);
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    let came = ground.cluster.came();
    assert_eq!((came[0].by, came[0].after.as_secs()), ("own", 0));
    assert_eq!(read_pair(&kubelet.current).leaf().common_name, "system:node:n1");
    drop(kubelet);

    // The next start has a better one in the store, and does not fall back.
    let kubelet = ground.start_with(InitialCertificate::Inline(pair("kubernetes-admin", 0, 99)));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(read_pair(&kubelet.current).leaf().common_name, "system:node:n1");
    assert_eq!(ground.cluster.came().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_certificate_for_the_node_is_kept_over_a_restart() {
    let ground = Ground::new(Policy::Sign, DAY);
    ground.put("system:node:n1", -60, DAY);
    let kubelet = ground.start();
    sleep(Duration::from_secs(600)).await;
    assert!(ground.cluster.came().is_empty());
    assert!(kubelet.status.current(at(600)).is_some());
    drop(kubelet);
    // A node that changes its name needs another one.
    ground.put("system:node:before", -60, DAY);
    let _kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    assert_eq!(ground.cluster.came()[0].by, "own");
}

#[tokio::test(start_paused = true)]
async fn one_that_expired_while_the_node_was_down_is_replaced_by_the_initial_credentials() {
    let ground = Ground::new(Policy::Sign, DAY);
    ground.put("system:node:n1", -DAY, -60);
    let kubelet = ground.start();
    assert!(kubelet.status.current(at(0)).is_none());
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    assert_eq!(ground.cluster.came()[0].by, "initial");
    assert!(!kubelet.run.is_finished());
}

#[tokio::test(start_paused = true)]
async fn without_a_valid_certificate_for_five_minutes_the_kubelet_ends_if_the_server_answers() {
    let ground = Ground::new(Policy::Sign, HOUR);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    let expires = (expiry(&kubelet.current) - at(0)).get_seconds();
    ground.cluster.set_server(Server::Unreachable);
    sleep(Duration::from_secs(2 * 3_600)).await;
    // A restart would not help.
    assert!(!kubelet.run.is_finished());
    assert!(kubelet.status.ttl_seconds(ground.cluster.clock().now()).is_infinite());

    ground.cluster.set_server(Server::Unauthorized);
    let begin = Instant::now();
    assert_eq!(kubelet.run.await.unwrap(), Err(ClientCertificateLost));
    assert!(begin.elapsed() <= Duration::from_secs(45), "{:?}", begin.elapsed());
    assert!(expires <= 3_602, "{expires}");
}

#[tokio::test(start_paused = true)]
async fn the_five_minutes_count_from_the_end_of_the_last_certificate() {
    let ground = Ground::new(Policy::Sign, HOUR);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    ground.cluster.set_server(Server::Forbidden);
    let start = Instant::now();
    assert_eq!(kubelet.run.await.unwrap(), Err(ClientCertificateLost));
    let waited = start.elapsed().as_secs();
    assert!((3_900..3_925).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_somebody_else_puts_there_is_taken_into_use() {
    let ground = Ground::new(Policy::Sign, DAY);
    ground.put("system:node:n1", -DAY, -60);
    ground.cluster.set_server(Server::Unauthorized);
    let kubelet = ground.start();
    sleep(Duration::from_secs(120)).await;
    let tries = ground.cluster.tries().len();
    ground.put("system:node:n1", 0, 2 * DAY);
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    assert_eq!(ground.cluster.tries().len(), tries);
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(ground.cluster.tries().len(), tries);
    assert!(!kubelet.run.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_is_set_is_noticed() {
    let ground = Ground::new(Policy::Sign, 365 * DAY);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    ground.cluster.set_clock_ahead(SignedDuration::from_secs(335 * DAY));
    let start = Instant::now();
    ground.cluster.until(|| ground.cluster.changed() == 2).await;
    assert!(start.elapsed() <= Duration::from_secs(61), "{:?}", start.elapsed());
    assert_in_store(&kubelet.status, &kubelet.current);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_survived() {
    let ground = Ground::new(Policy::Sign, DAY);
    let kubelet = ground.start();
    ground.cluster.until(|| ground.cluster.changed() == 1).await;
    let before = expiry(&kubelet.current);
    // A directory in the place of the new link: no update gets through.
    let blocked = ground.pki().join("kubelet-client-updated.pem");
    std::fs::create_dir(&blocked).unwrap();
    ground.cluster.set_lifetime(2 * DAY);
    ground.cluster.until(|| kubelet.status.renew_errors() == 3).await;
    assert_eq!(expiry(&kubelet.current), before);
    assert_eq!(ground.cluster.changed(), 1);
    std::fs::remove_dir(&blocked).unwrap();
    ground.cluster.until(|| ground.cluster.changed() == 2).await;
    assert!(expiry(&kubelet.current) > before);
}
