//! The certificate that the kubelet shows on port 10250, signed by the cluster
//! (`serverTLSBootstrap`).

use std::path::PathBuf;

use k8s_openapi::api::core::v1::NodeAddress;
use rubelet_types::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::certificate::CertificatePair;
use crate::request::Purpose;
use crate::rotation::{Rotation, RotationPort, Template};
use crate::status::CertificateStatus;
use crate::store::{CertificateStore, PairFiles, StoreError};

/// What the serving certificate is kept for.
#[derive(Clone, Debug)]
pub struct ServingCertificateSettings {
    /// `--cert-dir`.
    pub directory: PathBuf,
    /// The node's name.
    pub node_name: String,
    /// `tlsCertFile` and `tlsPrivateKeyFile`: they serve until the first certificate is signed.
    pub given: Option<PairFiles>,
    /// The gate `AllowDNSOnlyNodeCSR`.
    pub dns_only: bool,
}

/// Keeps the serving certificate up to date.
#[derive(Debug)]
pub struct ServingCertificateManager {
    rotation: Rotation,
    node_name: String,
    dns_only: bool,
}

impl ServingCertificateManager {
    /// Opens the store. Blocks.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn open(settings: ServingCertificateSettings, clock: Clock) -> Result<Self, StoreError> {
        let ServingCertificateSettings { directory, node_name, given, dns_only } = settings;
        let store = CertificateStore::open(&directory, Purpose::Serving, given)?;
        let pair = store.current(clock.now())?;
        let status = CertificateStatus::new(pair.as_ref().map(CertificatePair::leaf).cloned());
        let rotation = Rotation { purpose: Purpose::Serving, store, clock, status, force: false };
        Ok(Self { rotation, node_name, dns_only })
    }

    /// Where the certificate and its key may be, the first place where there are any counts.
    pub fn places(&self) -> Vec<PairFiles> {
        self.rotation.store.places()
    }

    /// The certificate in use, and what happens to it.
    pub fn status(&self) -> CertificateStatus {
        self.rotation.status.clone()
    }

    /// Keeps the certificate up to date until `stop`. Nothing is asked for until `addresses` has an
    /// IP address; a new one asks for a new certificate at once.
    pub async fn run(
        self,
        port: impl RotationPort,
        addresses: watch::Receiver<Vec<NodeAddress>>,
        stop: CancellationToken,
    ) {
        let Self { rotation, node_name, dns_only } = self;
        let template = Template::Addresses { node_name, addresses, dns_only };
        stop.run_until_cancelled(rotation.run(&port, template)).await;
    }
}
