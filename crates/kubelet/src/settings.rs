//! From the effective configuration to the settings of each manager.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use rubelet_certificate_manager::{PairFiles, ServingCertificateSettings};
use rubelet_config::{Effective, FeatureGates, Gate, KubeletConfiguration, UserNamespaces};
use rubelet_container_logs::RotationPolicy;
use rubelet_container_manager::{CgroupDriver, ContainerManagerSettings, Enforcement};
use rubelet_cri::CriOptions;
use rubelet_event_recorder::EventRecorderSettings;
use rubelet_image_manager::{
    CredentialVerification, ImageManagerConfig, NodeCredentialFiles, VerificationPolicy,
};
use rubelet_node_resources::{EvictionThreshold, ResizeRules, SwapBehavior};
use rubelet_node_status::NodeSettings;
use rubelet_pod_lifecycle::BackOffSettings;
use rubelet_pod_runtime::{DnsSettings, PodRuntimeSettings, UserNamespaceSettings};
use rubelet_pod_sources::PodSourceSettings;
use rubelet_pod_status::Gates;
use rubelet_server::{MinTlsVersion, TlsFiles, TlsOptions};
use rubelet_types::{CpuSet, NodePaths, Quantity, ResourceAmounts};

use crate::node::Node;
use crate::version::KUBERNETES_VERSION;

/// Where log collectors look for container logs; not configurable upstream either.
const CONTAINER_LOGS: &str = "/var/log/containers";

pub(crate) fn node_paths(effective: &Effective) -> NodePaths {
    NodePaths::new(&effective.options.root_dir, &effective.config.pod_logs_dir, CONTAINER_LOGS)
}

pub(crate) fn cri(effective: &Effective) -> CriOptions {
    CriOptions {
        request_timeout: effective.config.runtime_request_timeout.as_duration(),
        list_streaming: effective.gates.enabled(Gate::CRIListStreaming),
    }
}

pub(crate) fn pod_sources(effective: &Effective, node: &Node) -> PodSourceSettings {
    let config = &effective.config;
    let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    PodSourceSettings {
        static_pod_path: set(&config.static_pod_path).map(PathBuf::from),
        file_check_frequency: config.file_check_frequency.as_duration(),
        manifest_url: set(&config.static_pod_url),
        manifest_url_headers: config
            .static_pod_url_header
            .0
            .iter()
            .flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())))
            .collect(),
        http_check_frequency: config.http_check_frequency.as_duration(),
        node_name: node.name.clone(),
        prevent_api_references: effective.gates.enabled(Gate::PreventStaticPodAPIReferences),
    }
}

pub(crate) fn image_manager(effective: &Effective, paths: &NodePaths) -> ImageManagerConfig {
    let config = &effective.config;
    let unsigned = |value: i32| u32::try_from(value).unwrap_or(0);
    ImageManagerConfig {
        serialize_image_pulls: config.serialize_image_pulls,
        max_parallel_image_pulls: config
            .max_parallel_image_pulls
            .and_then(|value| NonZeroU32::new(unsigned(value))),
        registry_pull_qps: unsigned(config.registry_pull_qps),
        registry_burst: unsigned(config.registry_burst),
        credential_verification: effective
            .gates
            .enabled(Gate::KubeletEnsureSecretPulledImages)
            .then(|| CredentialVerification {
                policy: verification_policy(config),
                directory: paths.root().join("image_manager"),
            }),
        ..ImageManagerConfig::default()
    }
}

/// Validation leaves no other policies than these.
fn verification_policy(config: &KubeletConfiguration) -> VerificationPolicy {
    match config.image_pull_credentials_verification_policy.as_str() {
        "NeverVerify" => VerificationPolicy::NeverVerify,
        "NeverVerifyAllowlistedImages" => VerificationPolicy::NeverVerifyAllowlistedImages(
            config.preloaded_images_verification_allowlist.clone(),
        ),
        "AlwaysVerify" => VerificationPolicy::AlwaysVerify,
        _ => VerificationPolicy::NeverVerifyPreloadedImages,
    }
}

pub(crate) fn node_credential_files(paths: &NodePaths) -> NodeCredentialFiles {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    NodeCredentialFiles::new(paths.root(), home.as_deref())
}

/// Features that a scheduler looks for on a node before it binds pods that use them, as far as this
/// kubelet has them.
const BUILT_FEATURES: [&str; 4] = [
    "ExtendWebSocketsToKubelet",
    "InPlacePodLevelResourcesVerticalScaling",
    "InPlacePodVerticalScalingInitContainers",
    "RestartAllContainersOnContainerExits",
];

pub(crate) fn node_status(effective: &Effective, node_name: &str) -> NodeSettings {
    let mut settings = NodeSettings::new(effective, node_name, KUBERNETES_VERSION);
    if let Some(declared) = &mut settings.declared_features {
        declared.retain(|name| BUILT_FEATURES.contains(&name.as_str()));
    }
    settings
}

/// Which resources of a pod can be changed while it runs.
pub(crate) fn resize_rules(effective: &Effective) -> ResizeRules {
    ResizeRules {
        init_containers: effective.gates.enabled(Gate::InPlacePodVerticalScalingInitContainers),
        pod_level: effective.gates.enabled(Gate::InPlacePodLevelResourcesVerticalScaling),
    }
}

pub(crate) fn event_recorder(effective: &Effective, node: &Node) -> EventRecorderSettings {
    let unsigned = |value: i32| u32::try_from(value).unwrap_or(0);
    EventRecorderSettings {
        node_name: node.name.clone(),
        events_per_second: unsigned(effective.config.event_record_qps),
        burst: unsigned(effective.config.event_burst),
    }
}

/// `tlsCertFile` and `tlsPrivateKeyFile`, if both are set.
fn given_certificate(config: &KubeletConfiguration) -> Option<(PathBuf, PathBuf)> {
    set_path(&config.tls_cert_file).zip(set_path(&config.tls_private_key_file))
}

/// The path in a field, unless the field is not set.
fn set_path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| PathBuf::from(text))
}

pub(crate) fn serving_certificate(
    effective: &Effective,
    node_name: &str,
) -> ServingCertificateSettings {
    ServingCertificateSettings {
        directory: effective.options.cert_dir.clone(),
        node_name: node_name.to_owned(),
        given: given_certificate(&effective.config)
            .map(|(certificate, key)| PairFiles { certificate, key }),
        dns_only: effective.gates.enabled(Gate::AllowDNSOnlyNodeCSR),
    }
}

/// `signed` is where a certificate may be that the cluster signs, if it is to sign one.
pub(crate) fn tls(
    effective: &Effective,
    node: &Node,
    signed: Option<Vec<(PathBuf, PathBuf)>>,
) -> TlsOptions {
    let config = &effective.config;
    TlsOptions {
        files: match (signed, given_certificate(config)) {
            (Some(places), _) => TlsFiles::Rotated { places },
            (None, Some((certificate, key))) => TlsFiles::Given { certificate, key },
            (None, None) => TlsFiles::SelfSigned {
                directory: effective.options.cert_dir.clone(),
                hostname: node.name.clone(),
            },
        },
        min_version: match config.tls_min_version.as_str() {
            "VersionTLS13" => MinTlsVersion::Tls13,
            _ => MinTlsVersion::Tls12,
        },
        cipher_suites: config.tls_cipher_suites.clone(),
        client_ca_file: set_path(&config.authentication.x509.client_ca_file),
    }
}

/// What is reported of pods only where a gate says so.
pub(crate) fn reports(gates: &FeatureGates) -> Gates {
    let enabled = |gate| gates.enabled(gate);
    Gates {
        change_container_status_on_kubelet_restart: enabled(
            Gate::ChangeContainerStatusOnKubeletRestart,
        ),
        container_stop_signals: enabled(Gate::ContainerStopSignals),
        in_place_pod_level_resources_vertical_scaling: enabled(
            Gate::InPlacePodLevelResourcesVerticalScaling,
        ),
        pod_ready_to_start_containers_condition: enabled(Gate::PodReadyToStartContainersCondition),
        resource_health_status: enabled(Gate::ResourceHealthStatus),
        restart_all_containers_on_container_exits: enabled(
            Gate::RestartAllContainersOnContainerExits,
        ),
    }
}

pub(crate) fn back_off(config: &KubeletConfiguration) -> BackOffSettings {
    config
        .crash_loop_back_off
        .max_container_restart_period
        .map_or_else(BackOffSettings::default, |max| BackOffSettings::with_max(max.as_duration()))
}

pub(crate) fn user_namespaces(config: &KubeletConfiguration) -> UserNamespaceSettings {
    let ids_per_pod = config.user_namespaces.as_ref().and_then(|users| users.ids_per_pod);
    let ids_per_pod = ids_per_pod.unwrap_or(UserNamespaces::DEFAULT_IDS_PER_POD);
    UserNamespaceSettings {
        // Validated: within these bounds.
        ids_per_pod: u32::try_from(ids_per_pod).unwrap_or(0),
        max_pods: u32::try_from(config.max_pods).unwrap_or(0),
    }
}

pub(crate) fn pod_runtime(
    effective: &Effective,
    node: &Node,
    concurrent_starts: usize,
) -> PodRuntimeSettings {
    let config = &effective.config;
    PodRuntimeSettings {
        cluster_domain: config.cluster_domain.clone(),
        dns: DnsSettings {
            cluster_dns: config
                .cluster_dns
                .iter()
                .filter_map(|server| match server.parse() {
                    Ok(ip) => Some(ip),
                    Err(_) => {
                        tracing::warn!(
                            server,
                            "Ignoring an entry of clusterDNS that is no address"
                        );
                        None
                    }
                })
                .collect(),
            cluster_domain: config.cluster_domain.clone(),
            ignore_host: config.resolv_conf.is_empty(),
            prefer_ipv6: node.prefers_ipv6(),
        },
        seccomp_default: config.seccomp_default,
        concurrent_starts,
    }
}

pub(crate) fn container_manager(
    effective: &Effective,
    driver: CgroupDriver,
) -> ContainerManagerSettings {
    let config = &effective.config;
    let enforces = |what: &str| config.enforce_node_allocatable.iter().any(|entry| entry == what);
    let set = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let (mut system_reserved, mut kube_reserved) =
        (amounts(&config.system_reserved), amounts(&config.kube_reserved));
    // Which CPUs are reserved says how many are. What is no list was refused before.
    if let Ok(cpus) = config.reserved_system_cpus.parse::<CpuSet>() {
        let count = i64::try_from(cpus.len()).unwrap_or(i64::MAX);
        system_reserved.set("cpu", Quantity::from_units(count));
        kube_reserved.set("cpu", Quantity::ZERO);
    }
    ContainerManagerSettings {
        cgroup_root: config.effective_cgroup_root().to_owned(),
        cgroups_per_qos: config.cgroups_per_qos,
        driver,
        system_reserved,
        kube_reserved,
        system_reserved_cgroup: set(&config.system_reserved_cgroup),
        kube_reserved_cgroup: set(&config.kube_reserved_cgroup),
        eviction_memory_available: threshold(&config.eviction_hard, "memory.available"),
        eviction_nodefs_available: threshold(&config.eviction_hard, "nodefs.available"),
        enforce: Enforcement {
            pods: enforces("pods"),
            system_reserved: enforces("system-reserved"),
            kube_reserved: enforces("kube-reserved"),
            system_reserved_compressible: enforces("system-reserved-compressible"),
            kube_reserved_compressible: enforces("kube-reserved-compressible"),
        },
        pod_pids_limit: (config.pod_pids_limit > 0).then_some(config.pod_pids_limit),
        cpu_cfs_quota: config.cpu_cfs_quota,
        cpu_cfs_period_micros: u64::try_from(config.cpu_cfs_quota_period.as_duration().as_micros())
            .unwrap_or(u64::MAX),
        single_process_oom_kill: config.single_process_oom_kill,
        swap_behavior: match config.memory_swap.swap_behavior.as_str() {
            "LimitedSwap" => SwapBehavior::LimitedSwap,
            _ => SwapBehavior::NoSwap,
        },
        fail_swap_on: config.fail_swap_on,
        fail_cgroup_v1: config.fail_cgroup_v1,
        protect_kernel_defaults: config.protect_kernel_defaults,
        max_pods: i64::from(config.max_pods),
        pods_per_core: i64::from(config.pods_per_core),
        root_directory: config
            .local_storage_capacity_isolation
            .then(|| effective.options.root_dir.clone()),
        qos_reserved_memory_percent: config
            .qos_reserved
            .get("memory")
            .filter(|_| effective.gates.enabled(Gate::QOSReserved))
            .and_then(|percent| percent.trim_end_matches('%').parse().ok()),
        memory_throttling_factor: None,
        kubelet_cgroup: set(&config.kubelet_cgroups),
    }
}

/// Values that are none were refused when the configuration was loaded.
pub(crate) fn log_rotation(config: &KubeletConfiguration) -> RotationPolicy {
    let count = |value: i32| usize::try_from(value).unwrap_or(0);
    let max_size = config.container_log_max_size.parse::<Quantity>();
    RotationPolicy {
        max_size: max_size
            .ok()
            .and_then(|size| u64::try_from(size.value()).ok())
            .unwrap_or(u64::MAX),
        max_files: count(config.container_log_max_files),
        workers: count(config.container_log_max_workers),
        interval: config.container_log_monitor_interval.as_duration(),
    }
}

/// Values that are no quantities were refused when the configuration was loaded.
fn amounts(list: &BTreeMap<String, String>) -> ResourceAmounts {
    let mut found = ResourceAmounts::default();
    for (name, value) in list {
        if let Ok(quantity) = value.parse::<Quantity>() {
            found.set(name, quantity);
        }
    }
    found
}

fn threshold(thresholds: &BTreeMap<String, String>, signal: &str) -> Option<EvictionThreshold> {
    let value = thresholds.get(signal)?;
    match value.strip_suffix('%') {
        Some(percent) => {
            // Upstream reads percentages in single precision, and what is allocatable shows it.
            let fraction = f64::from(percent.parse::<f32>().ok()? / 100.0);
            // 0% and 100% switch the signal off.
            (fraction > 0.0 && fraction < 1.0).then_some(EvictionThreshold::Fraction(fraction))
        }
        None => value.parse::<Quantity>().ok().map(EvictionThreshold::Amount),
    }
}

/// How many sandbox creations and container starts the runtime works on at once: enough to keep
/// it busy, not so many that each of them takes for ever.
pub(crate) fn concurrent_starts() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    (cores * 4).max(8)
}

pub(crate) const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);
