//! What this kubelet tells of itself to Prometheus: what its managers count, and what is seen by
//! looking at them.

mod node;
mod pods;
mod process;
mod startup;

use std::sync::Arc;

use rubelet_certificate_manager::{ClientCertificateMetrics, ServingCertificateMetrics};
use rubelet_metrics::{Collector, Registry};
use rubelet_server::{AccessMetrics, HealthMetrics, MetricsEndpoints, ServerMetrics};

use crate::wiring::KubeletView;

pub(crate) use node::NodeMetrics;
pub(crate) use pods::{PodGauges, PodMetrics};
pub(crate) use process::ProcessMetrics;

/// What is counted beside the managers.
#[derive(Debug, Default)]
pub struct OtherMetrics {
    /// Requests to the servers.
    pub requests: Arc<ServerMetrics>,
    /// Questions about who may ask.
    pub access: Arc<AccessMetrics>,
    /// What health checks came to.
    pub health: Arc<HealthMetrics>,
    /// The client certificate, if it is kept up to date.
    pub client_certificate: Option<ClientCertificateMetrics>,
    /// The serving certificate, if the cluster signs it.
    pub serving_certificate: Option<ServingCertificateMetrics>,
}

/// The endpoints where all of it is read.
pub(crate) fn endpoints(view: &KubeletView, others: OtherMetrics) -> MetricsEndpoints {
    MetricsEndpoints::new(others.requests.clone())
        .with("/metrics/probes", view.probe_metrics())
        .with("/metrics/slis", Registry::new().with(others.health.clone()))
        .with("/metrics", view.metrics(others))
}

impl KubeletView {
    /// Everything that `/metrics` shows.
    pub fn metrics(&self, others: OtherMetrics) -> Registry {
        let OtherMetrics { requests, access, client_certificate, serving_certificate, .. } = others;
        let certificates = [
            client_certificate.map(|it| Arc::new(it) as Arc<dyn Collector>),
            serving_certificate.map(|it| Arc::new(it) as Arc<dyn Collector>),
        ];
        let registry =
            self.managers_metrics().with(requests).with(access).with(Arc::new(ProcessMetrics));
        certificates.into_iter().flatten().fold(registry, Registry::with)
    }
}
