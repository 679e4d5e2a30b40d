use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};

use crate::GoDuration;
use crate::parts::{
    CrashLoopBackOff, HttpHeaders, KubeletAuthentication, KubeletAuthorization,
    LoggingConfiguration, MemoryReservation, MemorySwap, ShutdownGracePeriodByPodPriority,
    TracingConfiguration, UserNamespaces, is_zero,
};

/// `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`, with all defaults in place.
///
/// A field that upstream declares as a pointer and gives a default is plain here: after loading it
/// always has a value. It is an [`Option`] only where "not set" remains a value of its own. Values
/// that are one of a few words stay text, because validation reports all mistakes at once and with
/// the field's path. An empty text means "none".
///
/// Serializing gives the form of `/configz`: durations and upstream's pointer fields always, plain
/// fields only when they are not zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletConfiguration {
    /// Serve the kubelet API on `address:port`.
    pub enable_server: bool,
    /// Directory of static pod manifests, or a single manifest file.
    #[serde(skip_serializing_if = "is_zero")]
    pub static_pod_path: String,
    /// Directory of the pods' log files: absolute, clean, ASCII.
    #[serde(skip_serializing_if = "is_zero")]
    pub pod_logs_dir: String,
    /// At most this long between two synchronisations of a running pod.
    pub sync_frequency: GoDuration,
    /// How often manifest files are re-read.
    pub file_check_frequency: GoDuration,
    /// How often the manifest URL is fetched.
    pub http_check_frequency: GoDuration,
    /// URL of static pod manifests.
    #[serde(rename = "staticPodURL", skip_serializing_if = "is_zero")]
    pub static_pod_url: String,
    /// Headers sent to `static_pod_url`. They may hold credentials: `Debug` hides the values.
    #[serde(rename = "staticPodURLHeader", skip_serializing_if = "is_zero")]
    pub static_pod_url_header: HttpHeaders,
    /// IP address the kubelet API listens on.
    #[serde(skip_serializing_if = "is_zero")]
    pub address: String,
    /// Port of the kubelet API.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: i32,
    /// Port of the unauthenticated read-only API; 0 is off.
    #[serde(skip_serializing_if = "is_zero")]
    pub read_only_port: i32,
    /// Serving certificate (chain), PEM; none means a self-signed one in `--cert-dir`.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_cert_file: String,
    /// Key of `tls_cert_file`, PEM.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_private_key_file: String,
    /// Cipher suites up to TLS 1.2, by their Go names; none means the library's choice.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_cipher_suites: Vec<String>,
    /// Allowed key exchange groups as numbers of the IANA registry, in no order.
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_curve_preferences: Vec<i32>,
    /// Oldest accepted TLS version (`VersionTLS12`, ...).
    #[serde(skip_serializing_if = "is_zero")]
    pub tls_min_version: String,
    /// Renew the client certificate before it expires.
    #[serde(skip_serializing_if = "is_zero")]
    pub rotate_certificates: bool,
    /// Get the serving certificate from the API server instead of signing one itself.
    #[serde(rename = "serverTLSBootstrap", skip_serializing_if = "is_zero")]
    pub server_tls_bootstrap: bool,
    /// How the kubelet API finds out who asks.
    pub authentication: KubeletAuthentication,
    /// How the kubelet API decides who may do what.
    pub authorization: KubeletAuthorization,
    /// Image pulls per second; 0 is unlimited.
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: i32,
    /// Image pulls that may start at once beyond `registry_pull_qps`.
    #[serde(skip_serializing_if = "is_zero")]
    pub registry_burst: i32,
    /// Whether a pod must prove that it may use an image that is already on the node
    /// (`NeverVerify`, `NeverVerifyPreloadedImages`, `NeverVerifyAllowlistedImages`,
    /// `AlwaysVerify`).
    #[serde(skip_serializing_if = "is_zero")]
    pub image_pull_credentials_verification_policy: String,
    /// Images free of that proof under `NeverVerifyAllowlistedImages`; no tag or digest, `/*` at
    /// the end covers a path.
    #[serde(skip_serializing_if = "is_zero")]
    pub preloaded_images_verification_allowlist: Vec<String>,
    /// Events per second; 0 is unlimited.
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: i32,
    /// Events that may be sent at once beyond `event_record_qps`.
    #[serde(skip_serializing_if = "is_zero")]
    pub event_burst: i32,
    /// Serve logs, exec, attach, port-forward and the like.
    pub enable_debugging_handlers: bool,
    /// Serve lock contention profiles.
    #[serde(skip_serializing_if = "is_zero")]
    pub enable_contention_profiling: bool,
    /// Port of `/healthz` on `healthz_bind_address`; 0 is off.
    pub healthz_port: i32,
    /// IP address of `/healthz`.
    #[serde(skip_serializing_if = "is_zero")]
    pub healthz_bind_address: String,
    /// `oom_score_adj` of the kubelet itself.
    pub oom_score_adj: i32,
    /// DNS domain of the cluster.
    #[serde(skip_serializing_if = "is_zero")]
    pub cluster_domain: String,
    /// IP addresses of the cluster's DNS servers; what is no IP address is ignored.
    #[serde(rename = "clusterDNS", skip_serializing_if = "is_zero")]
    pub cluster_dns: Vec<String>,
    /// Has no effect since 1.36; kept for old files.
    pub streaming_connection_idle_timeout: GoDuration,
    /// How often node status is computed.
    pub node_status_update_frequency: GoDuration,
    /// How often node status is sent although it did not change.
    pub node_status_report_frequency: GoDuration,
    /// `leaseDurationSeconds` of the node's lease.
    #[serde(skip_serializing_if = "is_zero")]
    pub node_lease_duration_seconds: i32,
    /// An unused image is kept at least this long.
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    /// An unused image is removed after this long; 0 is never.
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    /// Disk usage in percent at which images are collected.
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: i32,
    /// Disk usage in percent down to which images are collected.
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: i32,
    /// How often volume usage is measured; negative is never.
    pub volume_stats_agg_period: GoDuration,
    /// Cgroup to move the kubelet into.
    #[serde(skip_serializing_if = "is_zero")]
    pub kubelet_cgroups: String,
    /// Cgroup for all processes that have none.
    #[serde(skip_serializing_if = "is_zero")]
    pub system_cgroups: String,
    /// Root of the pods' cgroups; see [`KubeletConfiguration::effective_cgroup_root`].
    #[serde(skip_serializing_if = "is_zero")]
    pub cgroup_root: String,
    /// One cgroup per quality of service class and per pod.
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: bool,
    /// `cgroupfs` or `systemd`; the runtime's own answer wins.
    #[serde(skip_serializing_if = "is_zero")]
    pub cgroup_driver: String,
    /// `none` or `static`.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_manager_policy: String,
    /// Kill one process instead of the whole container on lack of memory; not set means by cgroup
    /// version, see [`KubeletConfiguration::effective_single_process_oom_kill`].
    #[serde(rename = "singleProcessOOMKill", skip_serializing_if = "is_zero")]
    pub single_process_oom_kill: Option<bool>,
    /// Fine tuning of the CPU manager.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_manager_policy_options: BTreeMap<String, String>,
    /// How often the CPU manager corrects cpusets.
    pub cpu_manager_reconcile_period: GoDuration,
    /// `None` or `Static`.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_manager_policy: String,
    /// `none`, `best-effort`, `restricted` or `single-numa-node`.
    #[serde(skip_serializing_if = "is_zero")]
    pub topology_manager_policy: String,
    /// `container` or `pod`.
    #[serde(skip_serializing_if = "is_zero")]
    pub topology_manager_scope: String,
    /// Fine tuning of the topology manager.
    #[serde(skip_serializing_if = "is_zero")]
    pub topology_manager_policy_options: BTreeMap<String, String>,
    /// Percentage of requests that is reserved for better classes, by resource.
    #[serde(skip_serializing_if = "is_zero")]
    pub qos_reserved: BTreeMap<String, String>,
    /// Deadline of runtime requests other than pull, logs, exec and attach.
    pub runtime_request_timeout: GoDuration,
    /// `promiscuous-bridge`, `hairpin-veth` or `none`; network plugins do not use it.
    #[serde(skip_serializing_if = "is_zero")]
    pub hairpin_mode: String,
    /// Pods the node may run.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_pods: i32,
    /// Pod IP range in standalone mode.
    #[serde(rename = "podCIDR", skip_serializing_if = "is_zero")]
    pub pod_cidr: String,
    /// Processes one pod may have; −1 leaves only the node's limit.
    pub pod_pids_limit: i64,
    /// The `resolv.conf` pods inherit; empty means none.
    pub resolv_conf: String,
    /// No longer supported: must be false.
    #[serde(skip_serializing_if = "is_zero")]
    pub run_once: bool,
    /// Enforce CPU limits by CFS quota.
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: bool,
    /// The quota's period.
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: GoDuration,
    /// Images listed in node status; −1 is all.
    pub node_status_max_images: i32,
    /// Files the kubelet may open.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_open_files: i64,
    /// Content type of requests to the API server.
    #[serde(skip_serializing_if = "is_zero")]
    pub content_type: String,
    /// Requests per second to the API server.
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: i32,
    /// Requests that may be sent at once beyond `kube_api_qps`.
    #[serde(rename = "kubeAPIBurst", skip_serializing_if = "is_zero")]
    pub kube_api_burst: i32,
    /// Pull one image at a time.
    pub serialize_image_pulls: bool,
    /// Pulls at the same time, if they are not serialized; not set is unlimited.
    #[serde(skip_serializing_if = "is_zero")]
    pub max_parallel_image_pulls: Option<i32>,
    /// Hard eviction thresholds by signal.
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_hard: BTreeMap<String, String>,
    /// Soft eviction thresholds by signal.
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_soft: BTreeMap<String, String>,
    /// How long a soft threshold must hold, by signal.
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_soft_grace_period: BTreeMap<String, String>,
    /// A pressure condition stays this long after the pressure.
    pub eviction_pressure_transition_period: GoDuration,
    /// Longest grace period of a soft eviction, seconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_max_pod_grace_period: i32,
    /// What an eviction must free beyond the threshold, by signal.
    #[serde(skip_serializing_if = "is_zero")]
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    /// Signals missing in `eviction_hard` get their default threshold.
    pub merge_default_eviction_settings: bool,
    /// Pods per core, within `max_pods`; 0 is no such limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub pods_per_core: i32,
    /// The controller in the control plane attaches volumes, not the kubelet.
    pub enable_controller_attach_detach: bool,
    /// Refuse to start on unexpected kernel tunables instead of setting them.
    #[serde(skip_serializing_if = "is_zero")]
    pub protect_kernel_defaults: bool,
    /// Keep the iptables hint chain that other components look for.
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: bool,
    /// Has no effect.
    pub iptables_masquerade_bit: i32,
    /// Has no effect.
    pub iptables_drop_bit: i32,
    /// Feature gates as written, by name.
    #[serde(skip_serializing_if = "is_zero")]
    pub feature_gates: BTreeMap<String, bool>,
    /// Refuse to start when swap is on.
    pub fail_swap_on: bool,
    /// How pods may use swap.
    pub memory_swap: MemorySwap,
    /// Size at which a container's log file is rotated, a quantity.
    #[serde(skip_serializing_if = "is_zero")]
    pub container_log_max_size: String,
    /// Log files per container.
    pub container_log_max_files: i32,
    /// Log rotations at the same time.
    pub container_log_max_workers: i32,
    /// How often log files are looked at.
    pub container_log_monitor_interval: GoDuration,
    /// `Get`, `Cache` or `Watch`.
    #[serde(skip_serializing_if = "is_zero")]
    pub config_map_and_secret_change_detection_strategy: String,
    /// Resources kept for the operating system.
    #[serde(skip_serializing_if = "is_zero")]
    pub system_reserved: BTreeMap<String, String>,
    /// Resources kept for Kubernetes' own processes.
    #[serde(skip_serializing_if = "is_zero")]
    pub kube_reserved: BTreeMap<String, String>,
    /// CPUs kept for both, as a list (`0-1,4`); replaces their `cpu`.
    #[serde(rename = "reservedSystemCPUs", skip_serializing_if = "is_zero")]
    pub reserved_system_cpus: String,
    /// Show metrics that were hidden in this release.
    #[serde(skip_serializing_if = "is_zero")]
    pub show_hidden_metrics_for_version: String,
    /// Cgroup on which `system_reserved` is enforced.
    #[serde(skip_serializing_if = "is_zero")]
    pub system_reserved_cgroup: String,
    /// Cgroup on which `kube_reserved` is enforced.
    #[serde(skip_serializing_if = "is_zero")]
    pub kube_reserved_cgroup: String,
    /// Which parts of node allocatable are enforced.
    #[serde(skip_serializing_if = "is_zero")]
    pub enforce_node_allocatable: Vec<String>,
    /// Sysctls, or prefixes with `*`, that pods may set although they are not known to be safe.
    #[serde(skip_serializing_if = "is_zero")]
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Sysctls of every pod that does not set them itself.
    #[serde(skip_serializing_if = "is_zero")]
    pub default_pod_sysctls: BTreeMap<String, String>,
    /// Directory of FlexVolume drivers.
    #[serde(skip_serializing_if = "is_zero")]
    pub volume_plugin_dir: String,
    /// The cloud's name of the node.
    #[serde(rename = "providerID", skip_serializing_if = "is_zero")]
    pub provider_id: String,
    /// Let the kernel say when a memory threshold is crossed.
    #[serde(skip_serializing_if = "is_zero")]
    pub kernel_memcg_notification: bool,
    /// The log.
    pub logging: LoggingConfiguration,
    /// Serve the node's log files.
    pub enable_system_log_handler: bool,
    /// Serve queries of the node's services' logs.
    pub enable_system_log_query: bool,
    /// Time for all pods to end when the node shuts down; 0 is off.
    pub shutdown_grace_period: GoDuration,
    /// The part of it that is kept for critical pods.
    pub shutdown_grace_period_critical_pods: GoDuration,
    /// The same by priority instead.
    #[serde(skip_serializing_if = "is_zero")]
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
    /// Back-off of containers that crash.
    pub crash_loop_back_off: CrashLoopBackOff,
    /// Memory kept from pods, by NUMA node.
    #[serde(skip_serializing_if = "is_zero")]
    pub reserved_memory: Vec<MemoryReservation>,
    /// Serve profiles.
    pub enable_profiling_handler: bool,
    /// Serve `PUT /debug/flags/v`.
    pub enable_debug_flags_handler: bool,
    /// `RuntimeDefault` is the seccomp profile of containers that name none.
    pub seccomp_default: bool,
    /// Part of the memory limit at which `memory.high` throttles.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_throttling_factor: Option<f64>,
    /// `None` or `TieredReservation`.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_reservation_policy: String,
    /// Taints of the node object when it is created.
    #[serde(skip_serializing_if = "is_zero")]
    pub register_with_taints: Vec<Taint>,
    /// Create the node object.
    pub register_node: bool,
    /// Where traces go; not set is nowhere.
    #[serde(skip_serializing_if = "is_zero")]
    pub tracing: Option<TracingConfiguration>,
    /// Account and limit local ephemeral storage.
    pub local_storage_capacity_isolation: bool,
    /// The container runtime (`unix:///...`).
    pub container_runtime_endpoint: String,
    /// The image service, if it is another one; see
    /// [`KubeletConfiguration::effective_image_service_endpoint`].
    #[serde(skip_serializing_if = "is_zero")]
    pub image_service_endpoint: String,
    /// Refuse to start on cgroup v1.
    pub fail_cgroup_v1: bool,
    /// User namespaces of pods.
    #[serde(skip_serializing_if = "is_zero")]
    pub user_namespaces: Option<UserNamespaces>,
}
