//! The certificate by which the API server knows the kubelet (`rotateCertificates`).

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use rubelet_types::Clock;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::certificate::{CertificatePair, LeafCertificate};
use crate::request::{Purpose, RequestTemplate};
use crate::rotation::{Rotation, RotationPort, Template};
use crate::schedule::{LOSS_LIMIT, Outlook, ServerAnswer, decide_outlook};
use crate::status::CertificateStatus;
use crate::store::{CertificateStore, PairFiles, StoreError};

/// How often it is looked whether there is a valid certificate.
const CHECK_PERIOD: Duration = Duration::from_secs(10);

/// The client certificate that a kubeconfig itself has.
#[derive(Debug)]
pub enum InitialCertificate {
    /// It has none.
    None,
    /// It names files.
    Files(PairFiles),
    /// It holds certificate and key. kubeadm gives the kubelet of a control-plane node a kubeconfig
    /// with far-reaching rights this way: it goes into the store, and a certificate of the kubelet's
    /// own takes its place as soon as one is signed.
    Inline(CertificatePair),
}

/// What the client certificate is kept for.
#[derive(Debug)]
pub struct ClientCertificateSettings {
    /// `--cert-dir`.
    pub directory: PathBuf,
    /// The node's name.
    pub node_name: String,
    /// What the kubeconfig has.
    pub initial: InitialCertificate,
}

/// Where the first certificate of a process comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The store's, or the administrator's files.
    Store,
    /// The kubeconfig's own, which goes into the store and is replaced at once.
    Import,
    /// There is none that is valid: the first one has to be asked for.
    Missing,
}

/// Which certificate to begin with: what is in the store as long as it is valid, otherwise what the
/// kubeconfig holds.
pub fn decide_origin(
    stored: Option<&LeafCertificate>,
    inline: Option<&LeafCertificate>,
    now: Timestamp,
) -> Origin {
    let is_valid = |leaf: Option<&LeafCertificate>| leaf.is_some_and(|leaf| leaf.is_valid(now));
    match (is_valid(stored), is_valid(inline)) {
        (true, _) => Origin::Store,
        (false, true) => Origin::Import,
        (false, false) => Origin::Missing,
    }
}

/// There has been no valid client certificate for five minutes although the API server answers: a
/// restart may bootstrap anew. The process has to end with code 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("No valid client certificate is found and the server is responsive, exiting.")]
pub struct ClientCertificateLost;

/// Keeps the client certificate up to date.
#[derive(Debug)]
pub struct ClientCertificateManager {
    rotation: Rotation,
    node_name: String,
}

impl ClientCertificateManager {
    /// Opens the store and decides what to begin with. Blocks.
    ///
    /// # Errors
    ///
    /// The store cannot be read or written.
    pub fn open(settings: ClientCertificateSettings, clock: Clock) -> Result<Self, StoreError> {
        let ClientCertificateSettings { directory, node_name, initial } = settings;
        let (given, inline) = match initial {
            InitialCertificate::None => (None, None),
            InitialCertificate::Files(files) => (Some(files), None),
            InitialCertificate::Inline(pair) => (None, Some(pair)),
        };
        let store = CertificateStore::open(&directory, Purpose::Client, given)?;
        let now = clock.now();
        let stored = store.current(now)?;
        let origin = decide_origin(
            stored.as_ref().map(CertificatePair::leaf),
            inline.as_ref().map(CertificatePair::leaf),
            now,
        );
        let (pair, force) = match (origin, inline) {
            (Origin::Import, Some(inline)) => {
                store.update(&inline, now)?;
                tracing::info!("Imported the client certificate of the kubeconfig into the store");
                (Some(inline), true)
            }
            _ => (stored, false),
        };
        let status = CertificateStatus::new(pair.map(|pair| pair.leaf().clone()));
        let rotation = Rotation { purpose: Purpose::Client, store, clock, status, force };
        Ok(Self { rotation, node_name })
    }

    /// The file with the certificate in use and its key, once there is one.
    pub fn current_path(&self) -> PathBuf {
        self.rotation.store.current_path()
    }

    /// The certificate in use, and what happens to it.
    pub fn status(&self) -> CertificateStatus {
        self.rotation.status.clone()
    }

    /// Keeps the certificate up to date until `stop`.
    ///
    /// # Errors
    ///
    /// [`ClientCertificateLost`].
    pub async fn run(
        self,
        port: impl RotationPort,
        stop: CancellationToken,
    ) -> Result<(), ClientCertificateLost> {
        let template = Template::Node(RequestTemplate::node(&self.node_name));
        let (status, clock) = (self.status(), self.rotation.clock.clone());
        tokio::select! {
            biased;
            () = stop.cancelled() => Ok(()),
            () = self.rotation.run(&port, template) => Ok(()),
            lost = watch_for_loss(status, clock) => Err(lost),
        }
    }
}

/// Returns when the kubelet should end.
async fn watch_for_loss(status: CertificateStatus, clock: Clock) -> ClientCertificateLost {
    let mut last_valid = Instant::now();
    let mut last_told: Option<Instant> = None;
    loop {
        if status.current(clock.now()).is_some() {
            (last_valid, last_told) = (Instant::now(), None);
        }
        let missing = last_valid.elapsed();
        let answer = status.server_answer();
        match decide_outlook(missing, answer) {
            Outlook::GoOn => {}
            Outlook::Exit => return ClientCertificateLost,
            Outlook::Stranded => {
                if last_told.is_none_or(|told| told.elapsed() >= LOSS_LIMIT) {
                    last_told = Some(Instant::now());
                    let because = match answer {
                        ServerAnswer::Accepted => "a request waits for its approval",
                        _ => "the server is not responsive",
                    };
                    tracing::error!(
                        missingFor = ?missing, because,
                        "No valid client certificate is found. A restart may be necessary to \
                         retrieve new initial credentials."
                    );
                }
            }
        }
        sleep(CHECK_PERIOD).await;
    }
}
