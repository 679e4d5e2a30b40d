use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use rubelet_config::{Effective, Gate};

use crate::declared_features;

/// What configuration says about the Node object.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeSettings {
    /// The node's name, which is its hostname as well.
    pub name: String,
    /// `--node-ip`: none, one, or a pair of different families. An unspecified address alone only
    /// chooses the family.
    pub node_ips: Vec<IpAddr>,
    /// Another process knows the cloud, and initialises the node.
    pub external_cloud_provider: bool,
    /// `--node-labels`, for a Node that is created.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`, for a Node that is created.
    pub taints: Vec<Taint>,
    /// `providerID`, for a Node that is created.
    pub provider_id: Option<String>,
    /// The control plane attaches and detaches volumes.
    pub controller_attach_detach: bool,
    /// Local ephemeral storage is counted, and is a capacity that a ready node must have.
    pub local_storage_capacity_isolation: bool,
    /// Port of the kubelet's API.
    pub port: i32,
    /// How many images the status shows; none is no limit.
    pub max_images: Option<usize>,
    /// Such as `v1.36.2`.
    pub kubelet_version: String,
    /// The deprecated `kubeProxyVersion` is still reported.
    pub reports_kube_proxy_version: bool,
    /// Go's name of the processor's architecture.
    pub architecture: String,
    /// `status.declaredFeatures` as far as the kubelet decides, sorted; none leaves the field alone.
    pub declared_features: Option<Vec<String>>,
    /// Create the Node object.
    pub register_node: bool,
    /// An existing Node is looked for only when the API server says that it exists, and not when it
    /// forbids creating one.
    pub registration_gets_existing_only: bool,
}

impl NodeSettings {
    /// Reads them from the configuration of a node called `name`.
    pub fn new(effective: &Effective, name: &str, kubelet_version: &str) -> Self {
        let (config, options) = (&effective.config, &effective.options);
        let enabled = |gate| effective.gates.enabled(gate);
        Self {
            name: name.to_owned(),
            node_ips: options.node_ips(),
            external_cloud_provider: options.external_cloud_provider,
            labels: options.node_labels.clone(),
            taints: config.register_with_taints.clone(),
            provider_id: (!config.provider_id.is_empty()).then(|| config.provider_id.clone()),
            controller_attach_detach: config.enable_controller_attach_detach,
            local_storage_capacity_isolation: config.local_storage_capacity_isolation,
            port: config.port,
            // -1 is no limit.
            max_images: usize::try_from(config.node_status_max_images).ok(),
            kubelet_version: kubelet_version.to_owned(),
            reports_kube_proxy_version: !enabled(Gate::DisableNodeKubeProxyVersion),
            architecture: go_architecture().to_owned(),
            declared_features: enabled(Gate::NodeDeclaredFeatures)
                .then(|| declared_features(&effective.gates)),
            register_node: config.register_node,
            registration_gets_existing_only: enabled(Gate::KubeletRegistrationGetOnExistsOnly),
        }
    }

    /// IPv6 is wanted where there is a choice.
    pub(crate) fn prefers_ipv6(&self) -> bool {
        self.node_ips.first().is_some_and(IpAddr::is_ipv6)
    }
}

/// How often the node reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatusTiming {
    /// How often the status is computed, and written if it has changed.
    pub update_frequency: Duration,
    /// How often it is written although it has not.
    pub report_frequency: Duration,
    /// Seconds for which a renewed lease counts. It is renewed each quarter of them.
    pub lease_duration_seconds: i32,
}

impl NodeStatusTiming {
    /// Reads it from the configuration.
    pub fn new(effective: &Effective) -> Self {
        let config = &effective.config;
        Self {
            update_frequency: config.node_status_update_frequency.as_duration(),
            report_frequency: config.node_status_report_frequency.as_duration(),
            lease_duration_seconds: config.node_lease_duration_seconds,
        }
    }

    /// How long a lease counts.
    pub(crate) fn lease_duration(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.lease_duration_seconds).unwrap_or(0))
    }

    /// The longest that one request of a heartbeat may take.
    pub(crate) fn request_deadline(&self) -> Duration {
        self.update_frequency.min(self.lease_duration()).max(Duration::from_secs(1))
    }
}

impl Default for NodeStatusTiming {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            update_frequency: Duration::from_secs(10),
            report_frequency: Duration::from_secs(5 * 60),
            lease_duration_seconds: 40,
        }
    }
}

/// This machine's architecture as Go, and so Kubernetes, names it.
pub fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        "loongarch64" => "loong64",
        // arm, riscv64, s390x: the same in both worlds.
        other => other,
    }
}
