use rubelet_metrics::{Collector, Desc, Exposition};
use rubelet_types::Clock;

use crate::status::{CertificateStatus, ROTATION_AGE_BOUNDS};

const CLIENT_TTL: Desc = Desc::gauge(
    "kubelet_certificate_manager_client_ttl_seconds",
    "Seconds until the client certificate expires; infinity if there is no valid one.",
);
const CLIENT_ERRORS: Desc = Desc::counter(
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "How often the client certificate could not be renewed.",
);
const SERVER_TTL: Desc = Desc::gauge(
    "kubelet_certificate_manager_server_ttl_seconds",
    "Seconds until the serving certificate expires; infinity if there is no valid one.",
);
const SERVER_ERRORS: Desc = Desc::counter(
    "kubelet_server_expiration_renew_errors",
    "How often the serving certificate could not be renewed.",
);
const SERVER_ROTATION: Desc = Desc::histogram(
    "kubelet_certificate_manager_server_rotation_seconds",
    "How old serving certificates were when they were replaced.",
    &ROTATION_AGE_BOUNDS,
);

/// Tells of the client certificate of `rotateCertificates`.
#[derive(Clone, Debug)]
pub struct ClientCertificateMetrics {
    /// The certificate.
    pub status: CertificateStatus,
    /// The wall clock.
    pub clock: Clock,
}

impl Collector for ClientCertificateMetrics {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&CLIENT_TTL, &CLIENT_ERRORS]
    }

    fn collect(&self, to: &mut Exposition) {
        to.value(&CLIENT_TTL, self.status.ttl_seconds(self.clock.now()));
        to.family(&CLIENT_ERRORS).count(&[], self.status.renew_errors());
    }
}

/// Tells of the serving certificate of `serverTLSBootstrap`.
#[derive(Clone, Debug)]
pub struct ServingCertificateMetrics {
    /// The certificate.
    pub status: CertificateStatus,
    /// The wall clock.
    pub clock: Clock,
}

impl Collector for ServingCertificateMetrics {
    fn descs(&self) -> Vec<&'static Desc> {
        vec![&SERVER_TTL, &SERVER_ERRORS, &SERVER_ROTATION]
    }

    fn collect(&self, to: &mut Exposition) {
        to.value(&SERVER_TTL, self.status.ttl_seconds(self.clock.now()));
        to.family(&SERVER_ERRORS).count(&[], self.status.renew_errors());
        let ages = self.status.rotation_ages();
        let mut below = 0;
        let of_each = ages.at_most.into_iter().chain([ages.count]).map(|at_most| {
            let here = at_most.saturating_sub(below);
            below = at_most;
            here
        });
        to.family(&SERVER_ROTATION).histogram(&[], of_each, ages.sum_seconds);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rubelet_metrics::{Format, Registry};

    use super::*;

    #[test]
    fn certificates_are_told_of_in_upstreams_words() {
        let status = CertificateStatus::new(None);
        status.count_renew_error();
        for seconds in [30.0, 3_000.0, 3_000.0, 1e12] {
            status.count_rotation_age(seconds);
        }
        let clock = Clock::system();
        let registry = Registry::new()
            .with(Arc::new(ClientCertificateMetrics {
                status: status.clone(),
                clock: clock.clone(),
            }))
            .with(Arc::new(ServingCertificateMetrics { status, clock }));
        let text = registry.expose(Format::Prometheus);
        for line in [
            "kubelet_certificate_manager_client_ttl_seconds +Inf",
            "kubelet_certificate_manager_client_expiration_renew_errors 1",
            "kubelet_server_expiration_renew_errors 1",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"60\"} 1",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"3600\"} 3",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"1.24416e+08\"} 3",
            "kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"+Inf\"} 4",
            "kubelet_certificate_manager_server_rotation_seconds_count 4",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}\n{text}");
        }
    }
}
