use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::GoDuration;

/// What is said by flags alone, beside `KubeletConfiguration`. An empty text means "not given".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletOptions {
    /// `--config`.
    pub config_file: Option<PathBuf>,
    /// `--config-dir`.
    pub config_dir: Option<PathBuf>,
    /// `--kubeconfig`; none means standalone mode.
    pub kubeconfig: Option<PathBuf>,
    /// `--bootstrap-kubeconfig`.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// `--hostname-override`; none means the machine's host name.
    pub hostname_override: Option<String>,
    /// `--node-ip`, as given; see [`KubeletOptions::node_ips`].
    pub node_ip: String,
    /// `--cert-dir`.
    pub cert_dir: PathBuf,
    /// `--cloud-provider` is `external`: another process initialises the node.
    pub external_cloud_provider: bool,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `--node-labels`: labels of the node object when it is created.
    pub node_labels: BTreeMap<String, String>,
    /// `--runtime-cgroups`.
    pub runtime_cgroups: String,
    /// `--image-credential-provider-config`: a file or a directory of files.
    pub image_credential_provider_config: Option<PathBuf>,
    /// `--image-credential-provider-bin-dir`.
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// `--lock-file`.
    pub lock_file: Option<PathBuf>,
    /// `--exit-on-lock-contention`.
    pub exit_on_lock_contention: bool,
    /// `--minimum-container-ttl-duration`: a dead container is kept at least this long.
    pub minimum_container_ttl_duration: GoDuration,
    /// `--maximum-dead-containers-per-container`.
    pub maximum_dead_containers_per_container: i32,
    /// `--maximum-dead-containers`; negative is no limit.
    pub maximum_dead_containers: i32,
    /// `--experimental-mounter-path`.
    pub experimental_mounter_path: String,
    /// `--experimental-allocatable-ignore-eviction`: eviction thresholds do not reduce allocatable.
    pub experimental_allocatable_ignore_eviction: bool,
    /// `--version=vX.Y.Z...`: the version to report instead of the built-in one.
    pub reported_version: Option<String>,
    /// `--seccomp-default`; the loader merges it into the configuration.
    pub(crate) seccomp_default: bool,
    /// `--cloud-provider` as given, for validation.
    pub(crate) cloud_provider: String,
}

impl Default for KubeletOptions {
    fn default() -> Self {
        Self {
            config_file: None,
            config_dir: None,
            kubeconfig: None,
            bootstrap_kubeconfig: None,
            hostname_override: None,
            node_ip: String::new(),
            cert_dir: PathBuf::from("/var/lib/kubelet/pki"),
            external_cloud_provider: false,
            root_dir: PathBuf::from("/var/lib/kubelet"),
            node_labels: BTreeMap::new(),
            runtime_cgroups: String::new(),
            image_credential_provider_config: None,
            image_credential_provider_bin_dir: None,
            lock_file: None,
            exit_on_lock_contention: false,
            minimum_container_ttl_duration: GoDuration::ZERO,
            maximum_dead_containers_per_container: 1,
            maximum_dead_containers: -1,
            experimental_mounter_path: String::new(),
            experimental_allocatable_ignore_eviction: false,
            reported_version: None,
            seccomp_default: false,
            cloud_provider: String::new(),
        }
    }
}

impl KubeletOptions {
    /// No API server: only static pods.
    pub fn is_standalone(&self) -> bool {
        self.kubeconfig.is_none()
    }

    /// The addresses of `--node-ip`, one or a pair of different families; an unspecified address
    /// (`0.0.0.0`, `::`) alone only chooses the family. Entries that are no address are left out
    /// here, and were a warning of the loader.
    pub fn node_ips(&self) -> Vec<IpAddr> {
        self.node_ip.split(',').filter_map(|part| part.trim().parse().ok()).collect()
    }
}
