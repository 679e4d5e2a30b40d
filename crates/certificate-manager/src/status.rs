//! What is known of a certificate that is kept up to date, for metrics and for who depends on it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use tokio::sync::watch;

use crate::certificate::LeafCertificate;
use crate::schedule::ServerAnswer;

/// Upper bounds, in seconds, of the classes in which the ages of replaced certificates are counted.
pub const ROTATION_AGE_BOUNDS: [f64; 10] = [
    60.0,
    3_600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// A certificate that its manager keeps up to date. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateStatus(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    leaf: watch::Sender<Option<Arc<LeafCertificate>>>,
    renew_errors: AtomicU64,
    rotation_ages: Mutex<RotationAges>,
    server_answer: Mutex<ServerAnswer>,
}

/// How old certificates were, counted from the start of their validity, when they were replaced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RotationAges {
    /// How many were at most so old as [`ROTATION_AGE_BOUNDS`] says; each bound counts all below it.
    pub at_most: [u64; ROTATION_AGE_BOUNDS.len()],
    /// All of them.
    pub count: u64,
    /// The sum of their ages in seconds.
    pub sum_seconds: f64,
}

impl RotationAges {
    fn observe(&mut self, seconds: f64) {
        for (counted, bound) in self.at_most.iter_mut().zip(ROTATION_AGE_BOUNDS) {
            *counted += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum_seconds += seconds;
    }
}

impl Default for CertificateStatus {
    /// There is no certificate yet.
    fn default() -> Self {
        Self::new(None)
    }
}

impl CertificateStatus {
    pub(crate) fn new(leaf: Option<LeafCertificate>) -> Self {
        Self(Arc::new(Shared {
            leaf: watch::Sender::new(leaf.map(Arc::new)),
            renew_errors: AtomicU64::new(0),
            rotation_ages: Mutex::default(),
            server_answer: Mutex::default(),
        }))
    }

    /// The certificate in use, if it is valid at `now`.
    pub fn current(&self, now: Timestamp) -> Option<Arc<LeafCertificate>> {
        self.leaf().filter(|leaf| leaf.is_valid(now))
    }

    /// The certificate in use, valid or not, and what follows on it.
    pub fn changes(&self) -> watch::Receiver<Option<Arc<LeafCertificate>>> {
        self.0.leaf.subscribe()
    }

    /// For `kubelet_certificate_manager_client_ttl_seconds` and `..._server_ttl_seconds`: whole
    /// seconds until the certificate expires, infinity if there is no valid one.
    pub fn ttl_seconds(&self, now: Timestamp) -> f64 {
        self.current(now)
            .map_or(f64::INFINITY, |leaf| now.duration_until(leaf.not_after).as_secs_f64().trunc())
    }

    /// For `kubelet_certificate_manager_client_expiration_renew_errors` and
    /// `kubelet_server_expiration_renew_errors`: tries to renew that failed.
    pub fn renew_errors(&self) -> u64 {
        self.0.renew_errors.load(Ordering::Relaxed)
    }

    /// For `kubelet_certificate_manager_server_rotation_seconds`.
    pub fn rotation_ages(&self) -> RotationAges {
        self.0.rotation_ages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the API server said when it was last asked for a certificate.
    pub fn server_answer(&self) -> ServerAnswer {
        *self.0.server_answer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn leaf(&self) -> Option<Arc<LeafCertificate>> {
        self.0.leaf.borrow().clone()
    }

    pub(crate) fn publish(&self, leaf: LeafCertificate) {
        self.0.leaf.send_replace(Some(Arc::new(leaf)));
    }

    pub(crate) fn count_renew_error(&self) {
        self.0.renew_errors.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_rotation_age(&self, seconds: f64) {
        self.0.rotation_ages.lock().unwrap_or_else(PoisonError::into_inner).observe(seconds);
    }

    pub(crate) fn set_server_answer(&self, answer: ServerAnswer) {
        *self.0.server_answer.lock().unwrap_or_else(PoisonError::into_inner) = answer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CertificatePair;
    use crate::testing::{at, certificate};

    #[test]
    fn the_time_to_live_is_infinite_without_a_valid_certificate() {
        let status = CertificateStatus::new(None);
        assert!(status.ttl_seconds(at(0)).is_infinite());
        let pem = certificate("n", at(0), at(100), &[]).pem();
        let pair = CertificatePair::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap();
        status.publish(pair.leaf().clone());
        assert!((status.ttl_seconds(at(40)) - 60.0).abs() < f64::EPSILON);
        assert!(status.ttl_seconds(at(101)).is_infinite());
        assert!(status.current(at(101)).is_none() && status.changes().borrow().is_some());
    }

    #[test]
    fn ages_are_counted_in_upstreams_classes() {
        let status = CertificateStatus::new(None);
        for seconds in [30.0, 60.0, 3_000.0, 1e12] {
            status.count_rotation_age(seconds);
        }
        let ages = status.rotation_ages();
        assert_eq!(ages.at_most[..3], [2, 3, 3]);
        assert_eq!((ages.at_most[9], ages.count), (3, 4));
        assert!((ages.sum_seconds - (3_090.0 + 1e12)).abs() < 1.0);
    }
}
