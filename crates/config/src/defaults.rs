use std::collections::BTreeMap;

use crate::feature_gates::{FeatureGates, Gate};
use crate::{GoDuration, KubeletConfiguration};

/// Hard eviction thresholds of a node that configures none.
const DEFAULT_EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

pub(crate) const DEFAULT_IMAGE_PULL_CREDENTIALS_POLICY: &str = "NeverVerifyPreloadedImages";

pub(crate) fn default_eviction_hard() -> BTreeMap<String, String> {
    DEFAULT_EVICTION_HARD
        .iter()
        .map(|(signal, threshold)| ((*signal).to_owned(), (*threshold).to_owned()))
        .collect()
}

/// The configuration of an empty `--config` file.
impl Default for KubeletConfiguration {
    fn default() -> Self {
        Self {
            enable_server: true,
            static_pod_path: String::new(),
            pod_logs_dir: "/var/log/pods".to_owned(),
            sync_frequency: GoDuration::from_secs(60),
            file_check_frequency: GoDuration::from_secs(20),
            http_check_frequency: GoDuration::from_secs(20),
            static_pod_url: String::new(),
            static_pod_url_header: Default::default(),
            address: "0.0.0.0".to_owned(),
            port: 10250,
            read_only_port: 0,
            tls_cert_file: String::new(),
            tls_private_key_file: String::new(),
            tls_cipher_suites: Vec::new(),
            tls_curve_preferences: Vec::new(),
            tls_min_version: String::new(),
            rotate_certificates: false,
            server_tls_bootstrap: false,
            authentication: Default::default(),
            authorization: Default::default(),
            registry_pull_qps: 5,
            registry_burst: 10,
            image_pull_credentials_verification_policy: DEFAULT_IMAGE_PULL_CREDENTIALS_POLICY
                .to_owned(),
            preloaded_images_verification_allowlist: Vec::new(),
            event_record_qps: 50,
            event_burst: 100,
            enable_debugging_handlers: true,
            enable_contention_profiling: false,
            healthz_port: 10248,
            healthz_bind_address: "127.0.0.1".to_owned(),
            oom_score_adj: -999,
            cluster_domain: String::new(),
            cluster_dns: Vec::new(),
            streaming_connection_idle_timeout: GoDuration::from_secs(4 * 3600),
            node_status_update_frequency: GoDuration::from_secs(10),
            node_status_report_frequency: GoDuration::from_secs(300),
            node_lease_duration_seconds: 40,
            image_minimum_gc_age: GoDuration::from_secs(120),
            image_maximum_gc_age: GoDuration::ZERO,
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            volume_stats_agg_period: GoDuration::from_secs(60),
            kubelet_cgroups: String::new(),
            system_cgroups: String::new(),
            cgroup_root: String::new(),
            cgroups_per_qos: true,
            cgroup_driver: "cgroupfs".to_owned(),
            cpu_manager_policy: "none".to_owned(),
            single_process_oom_kill: None,
            cpu_manager_policy_options: BTreeMap::new(),
            cpu_manager_reconcile_period: GoDuration::from_secs(10),
            memory_manager_policy: "None".to_owned(),
            topology_manager_policy: "none".to_owned(),
            topology_manager_scope: "container".to_owned(),
            topology_manager_policy_options: BTreeMap::new(),
            qos_reserved: BTreeMap::new(),
            runtime_request_timeout: GoDuration::from_secs(120),
            hairpin_mode: "promiscuous-bridge".to_owned(),
            max_pods: 110,
            pod_cidr: String::new(),
            pod_pids_limit: -1,
            resolv_conf: "/etc/resolv.conf".to_owned(),
            run_once: false,
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: GoDuration::from_millis(100),
            node_status_max_images: 50,
            max_open_files: 1_000_000,
            content_type: "application/vnd.kubernetes.protobuf".to_owned(),
            kube_api_qps: 50,
            kube_api_burst: 100,
            serialize_image_pulls: true,
            max_parallel_image_pulls: None,
            eviction_hard: default_eviction_hard(),
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_pressure_transition_period: GoDuration::from_secs(300),
            eviction_max_pod_grace_period: 0,
            eviction_minimum_reclaim: BTreeMap::new(),
            merge_default_eviction_settings: false,
            pods_per_core: 0,
            enable_controller_attach_detach: true,
            protect_kernel_defaults: false,
            make_iptables_util_chains: true,
            iptables_masquerade_bit: 14,
            iptables_drop_bit: 15,
            feature_gates: BTreeMap::new(),
            fail_swap_on: true,
            memory_swap: Default::default(),
            container_log_max_size: "10Mi".to_owned(),
            container_log_max_files: 5,
            container_log_max_workers: 1,
            container_log_monitor_interval: GoDuration::from_secs(10),
            config_map_and_secret_change_detection_strategy: "Watch".to_owned(),
            system_reserved: BTreeMap::new(),
            kube_reserved: BTreeMap::new(),
            reserved_system_cpus: String::new(),
            show_hidden_metrics_for_version: String::new(),
            system_reserved_cgroup: String::new(),
            kube_reserved_cgroup: String::new(),
            enforce_node_allocatable: vec!["pods".to_owned()],
            allowed_unsafe_sysctls: Vec::new(),
            default_pod_sysctls: BTreeMap::new(),
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".to_owned(),
            provider_id: String::new(),
            kernel_memcg_notification: false,
            logging: Default::default(),
            enable_system_log_handler: true,
            enable_system_log_query: false,
            shutdown_grace_period: GoDuration::ZERO,
            shutdown_grace_period_critical_pods: GoDuration::ZERO,
            shutdown_grace_period_by_pod_priority: Vec::new(),
            crash_loop_back_off: Default::default(),
            reserved_memory: Vec::new(),
            enable_profiling_handler: true,
            enable_debug_flags_handler: true,
            seccomp_default: false,
            memory_throttling_factor: Some(0.9),
            memory_reservation_policy: "None".to_owned(),
            register_with_taints: Vec::new(),
            register_node: true,
            tracing: None,
            local_storage_capacity_isolation: true,
            container_runtime_endpoint: "unix:///run/containerd/containerd.sock".to_owned(),
            image_service_endpoint: String::new(),
            fail_cgroup_v1: true,
            user_namespaces: None,
        }
    }
}

impl KubeletConfiguration {
    /// The configuration of a kubelet that is given neither `--config` nor a drop-in: upstream
    /// keeps the open defaults of the time before configuration files.
    pub fn legacy_default() -> Self {
        let mut config = Self { read_only_port: 10255, ..Self::default() };
        config.authentication.anonymous.enabled = true;
        config.authentication.webhook.enabled = false;
        config.authorization.mode = "AlwaysAllow".to_owned();
        config
    }

    /// Plain (not pointer) fields of upstream take their default when they are set to zero, too.
    pub(crate) fn replace_zero_by_default(&mut self) {
        let default = Self::default();
        macro_rules! fields {
            ($($($field:ident).+),* $(,)?) => {
                $(if crate::parts::is_zero(&self.$($field).+) {
                    self.$($field).+ = default.$($field).+;
                })*
            };
        }
        fields!(
            pod_logs_dir,
            sync_frequency,
            file_check_frequency,
            http_check_frequency,
            address,
            port,
            authentication.webhook.cache_ttl,
            authorization.mode,
            authorization.webhook.cache_authorized_ttl,
            authorization.webhook.cache_unauthorized_ttl,
            registry_burst,
            event_burst,
            image_pull_credentials_verification_policy,
            healthz_bind_address,
            streaming_connection_idle_timeout,
            node_status_update_frequency,
            node_status_report_frequency,
            node_lease_duration_seconds,
            image_minimum_gc_age,
            volume_stats_agg_period,
            cgroup_driver,
            cpu_manager_policy,
            cpu_manager_reconcile_period,
            memory_manager_policy,
            topology_manager_policy,
            topology_manager_scope,
            runtime_request_timeout,
            hairpin_mode,
            max_pods,
            max_open_files,
            content_type,
            kube_api_burst,
            eviction_pressure_transition_period,
            container_log_max_size,
            config_map_and_secret_change_detection_strategy,
            volume_plugin_dir,
            logging.format,
            logging.flush_frequency,
            memory_reservation_policy,
            container_runtime_endpoint,
        );
        if self.pod_pids_limit < 0 {
            self.pod_pids_limit = -1;
        }
    }

    /// Signals without a hard threshold get the default one, if that is asked for.
    pub(crate) fn merge_default_eviction_hard(&mut self) {
        if self.merge_default_eviction_settings {
            for (signal, threshold) in default_eviction_hard() {
                self.eviction_hard.entry(signal).or_insert(threshold);
            }
        }
    }

    /// Two fields have a default only while the gate of their function is on.
    pub(crate) fn clear_defaults_of_disabled_gates(&mut self, gates: &FeatureGates) {
        if !gates.enabled(Gate::KubeletCrashLoopBackOffMax)
            && self.crash_loop_back_off == Default::default()
        {
            self.crash_loop_back_off.max_container_restart_period = None;
        }
        if !gates.enabled(Gate::KubeletEnsureSecretPulledImages)
            && self.image_pull_credentials_verification_policy
                == DEFAULT_IMAGE_PULL_CREDENTIALS_POLICY
        {
            self.image_pull_credentials_verification_policy.clear();
        }
    }

    /// Root of the pods' cgroups: `/` if cgroups per class are on and none is named.
    pub fn effective_cgroup_root(&self) -> &str {
        if self.cgroup_root.is_empty() && self.cgroups_per_qos { "/" } else { &self.cgroup_root }
    }

    /// The image service; the container runtime unless another one is named.
    pub fn effective_image_service_endpoint(&self) -> &str {
        if self.image_service_endpoint.is_empty() {
            &self.container_runtime_endpoint
        } else {
            &self.image_service_endpoint
        }
    }

    /// Whether lack of memory kills one process only: always on cgroup v1, by default not on v2.
    pub fn effective_single_process_oom_kill(&self, cgroup_v2: bool) -> bool {
        self.single_process_oom_kill.unwrap_or(!cgroup_v2)
    }

    /// Pods this node may run, given its number of cores.
    pub fn effective_max_pods(&self, cores: u32) -> i32 {
        if self.pods_per_core <= 0 {
            return self.max_pods;
        }
        let by_cores = i64::from(self.pods_per_core) * i64::from(cores);
        i32::try_from(by_cores).unwrap_or(i32::MAX).min(self.max_pods)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_per_core_stays_within_max_pods() {
        let mut config = KubeletConfiguration::default();
        assert_eq!(config.effective_max_pods(64), 110);
        config.pods_per_core = 10;
        assert_eq!((config.effective_max_pods(4), config.effective_max_pods(64)), (40, 110));
    }

    #[test]
    fn legacy_defaults_differ_only_in_what_is_open() {
        let legacy = KubeletConfiguration::legacy_default();
        assert!(legacy.authentication.anonymous.enabled);
        assert!(!legacy.authentication.webhook.enabled);
        assert_eq!(legacy.authorization.mode, "AlwaysAllow");
        assert_eq!(legacy.read_only_port, 10255);
        let mut closed = legacy;
        closed.authentication = Default::default();
        closed.authorization = Default::default();
        closed.read_only_port = 0;
        assert_eq!(closed, KubeletConfiguration::default());
    }
}
