use rubelet_metrics::{
    Counter, DEFAULT_BUCKETS, Desc, Family, Gauge, Histogram, Metric, collector,
};

use crate::manager::PullPolicy;

const PULL_DURATION: Desc = Desc::histogram(
    "kubelet_image_pull_duration_seconds",
    "How long pulls took in the runtime, by the size of the image.",
    &[
        1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0,
        1200.0, 1800.0, 2700.0, 3600.0,
    ],
)
.with(&["image_size_in_bytes"]);
const REQUESTS: Desc = Desc::counter(
    "kubelet_image_manager_ensure_image_requests_total",
    "How often an image was asked for, whether it was there, and whether it had to be pulled.",
)
.with(&["present_locally", "pull_policy", "pull_required"]);
const CHECKS: Desc = Desc::counter(
    "kubelet_imagemanager_image_mustpull_checks_total",
    "How often it was checked whether a pod may use an image that is there.",
)
.with(&["result"]);
const INTENTS: Desc = Desc::gauge(
    "kubelet_imagemanager_ondisk_pullintents",
    "Records of pulls that were begun and whose end is not known.",
);
const RECORDS: Desc = Desc::gauge(
    "kubelet_imagemanager_ondisk_pulledrecords",
    "Records of images that were pulled, and with which credentials.",
);

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// More than so many bytes, and what that is called. The first that holds counts.
const SIZES: [(u64, &str); 12] = [
    (100 * GIB, "GT100GB"),
    (60 * GIB, "60GB-100GB"),
    (40 * GIB, "40GB-60GB"),
    (30 * GIB, "30GB-40GB"),
    (20 * GIB, "20GB-30GB"),
    (10 * GIB, "10GB-20GB"),
    (5 * GIB, "5GB-10GB"),
    (GIB, "1GB-5GB"),
    (500 * MIB, "500MB-1GB"),
    (100 * MIB, "100MB-500MB"),
    (10 * MIB, "10MB-100MB"),
    (0, "0-10MB"),
];

/// What is counted of images.
#[derive(Debug)]
pub struct ImageMetrics {
    pull_duration: Family<1, Histogram>,
    requests: Family<3, Counter>,
    checks: Family<1, Counter>,
    pub(crate) intents: Metric<Gauge>,
    pub(crate) records: Metric<Gauge>,
}

collector!(ImageMetrics { pull_duration, requests, checks, intents, records });

impl Default for ImageMetrics {
    fn default() -> Self {
        Self {
            pull_duration: Family::new(&PULL_DURATION),
            requests: Family::new(&REQUESTS),
            checks: Family::new(&CHECKS),
            intents: Metric::new(&INTENTS),
            records: Metric::new(&RECORDS),
        }
    }
}

/// What came of the check whether a pod may use an image that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// The policy asks for no credentials.
    Allowed,
    /// The image is open to all, or the pod has the right credentials.
    Recorded,
    /// The pod has to show credentials to the registry.
    MustAuthenticate,
    /// It could not be told.
    Failed,
}

/// What is known of a request for an image once it has been dealt with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asked {
    /// The image was on the node.
    pub(crate) present: Option<bool>,
    /// It had to be pulled.
    pub(crate) pulled: Option<bool>,
}

impl ImageMetrics {
    pub(crate) fn pulled(&self, bytes: u64, took: std::time::Duration) {
        let size = SIZES.iter().find(|(above, _)| bytes > *above).map_or("N/A", |(_, name)| name);
        self.pull_duration.with([size], |it| it.observe_duration(took));
    }

    pub(crate) fn asked(&self, policy: PullPolicy, asked: Asked) {
        let policy = match policy {
            PullPolicy::Always => "always",
            PullPolicy::IfNotPresent => "ifnotpresent",
            PullPolicy::Never => "never",
        };
        let word = |known| match known {
            Some(true) => "true",
            Some(false) => "false",
            None => "unknown",
        };
        self.requests.with([word(asked.present), policy, word(asked.pulled)], Counter::inc);
    }

    pub(crate) fn checked(&self, check: Check) {
        let result = match check {
            Check::Allowed => "credentialPolicyAllowed",
            Check::Recorded => "credentialRecordFound",
            Check::MustAuthenticate => "mustAuthenticate",
            Check::Failed => "error",
        };
        self.checks.with([result], Counter::inc);
    }
}

const PLUGIN_DURATION: Desc = Desc::histogram(
    "kubelet_credential_provider_plugin_duration",
    "How many seconds credential providers took.",
    DEFAULT_BUCKETS,
)
.with(&["plugin_name"]);
const PLUGIN_ERRORS: Desc = Desc::counter(
    "kubelet_credential_provider_plugin_errors_total",
    "How often credential providers failed.",
)
.with(&["plugin_name"]);

/// What is counted of the programs that give credentials.
#[derive(Debug)]
pub struct CredentialProviderMetrics {
    duration: Family<1, Histogram>,
    errors: Family<1, Counter>,
}

collector!(CredentialProviderMetrics { duration, errors });

impl Default for CredentialProviderMetrics {
    fn default() -> Self {
        Self { duration: Family::new(&PLUGIN_DURATION), errors: Family::new(&PLUGIN_ERRORS) }
    }
}

impl CredentialProviderMetrics {
    pub(crate) fn ran(&self, name: &str, took: std::time::Duration, failed: bool) {
        self.duration.with([name], |it| it.observe_duration(took));
        if failed {
            self.errors.with([name], Counter::inc);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rubelet_metrics::{Format, Registry};

    use super::*;

    #[test]
    fn sizes_have_upstreams_names() {
        let metrics = Arc::new(ImageMetrics::default());
        for bytes in [0, 1, 10 * MIB, 10 * MIB + 1, 5 * GIB, 200 * GIB] {
            metrics.pulled(bytes, Duration::from_secs(2));
        }
        let text = Registry::new().with(metrics).expose(Format::Prometheus);
        for (size, count) in
            [("N/A", 1), ("0-10MB", 2), ("10MB-100MB", 1), ("1GB-5GB", 1), ("GT100GB", 1)]
        {
            let line = format!(
                "kubelet_image_pull_duration_seconds_count{{image_size_in_bytes=\"{size}\"}} \
                 {count}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        }
    }
}
