//! Cgroups, reservations, resource managers, images, pods, registration.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path};

use rubelet_types::{CpuSet, Quantity};

use super::{Errors, names};
use crate::{FeatureGates, Gate, GoDuration, KubeletConfiguration, UserNamespaces};

pub(super) fn check(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    limits(config, errors);
    cgroups(config, errors);
    node_allocatable(config, errors);
    reservations(config, errors);
    managers(config, gates, errors);
    images(config, gates, errors);
    container_logs(config, errors);
    sysctls(config, errors);
    taints(config, errors);
    user_namespaces(config, errors);
    crash_loop_back_off(config, gates, errors);
    errors.check(!config.run_once, "runOnce", || {
        "true: this mode was removed and must not be set".to_owned()
    });
    errors.one_of(
        "hairpinMode",
        &config.hairpin_mode,
        &["none", "hairpin-veth", "promiscuous-bridge"],
    );
    errors.one_of(
        "memorySwap.swapBehavior",
        &config.memory_swap.swap_behavior,
        &["", "LimitedSwap", "NoSwap"],
    );
    errors.one_of(
        "configMapAndSecretChangeDetectionStrategy",
        &config.config_map_and_secret_change_detection_strategy,
        &["Get", "Cache", "Watch"],
    );
}

fn limits(config: &KubeletConfiguration, errors: &mut Errors) {
    errors.in_range("oomScoreAdj", config.oom_score_adj, -1000, 1000);
    errors.in_range("iptablesMasqueradeBit", config.iptables_masquerade_bit, 0, 31);
    errors.in_range("iptablesDropBit", config.iptables_drop_bit, 0, 31);
    errors.not_negative("maxPods", config.max_pods);
    errors.not_negative("podsPerCore", config.pods_per_core);
    errors.not_negative("maxOpenFiles", config.max_open_files);
    let images = config.node_status_max_images;
    errors.check(images >= -1, "nodeStatusMaxImages", || format!("{images} must be -1 or greater"));
    let (period, low, high) =
        (config.cpu_cfs_quota_period, GoDuration::from_millis(1), GoDuration::from_secs(1));
    errors.check(period >= low && period <= high, "cpuCFSQuotaPeriod", || {
        format!("{period} must be between 1ms and 1sec, inclusive")
    });
}

fn cgroups(config: &KubeletConfiguration, errors: &mut Errors) {
    errors.one_of("cgroupDriver", &config.cgroup_driver, &["cgroupfs", "systemd"]);
    errors.check(
        config.system_cgroups.is_empty() || !config.cgroup_root.is_empty(),
        "systemCgroups",
        || "was specified and cgroupRoot (--cgroup-root) was not".to_owned(),
    );
}

fn node_allocatable(config: &KubeletConfiguration, errors: &mut Errors) {
    const FIELD: &str = "enforceNodeAllocatable";
    const OPTIONS: [&str; 6] = [
        "pods",
        "system-reserved",
        "system-reserved-compressible",
        "kube-reserved",
        "kube-reserved-compressible",
        "none",
    ];
    let enforced = &config.enforce_node_allocatable;
    let has = |name: &str| enforced.iter().any(|other| other == name);
    for plain in ["system-reserved", "kube-reserved"] {
        let compressible = format!("{plain}-compressible");
        errors.check(!(has(plain) && has(&compressible)), FIELD, || {
            format!("must not contain both {plain:?} and {compressible:?}")
        });
    }
    let mut seen = BTreeSet::new();
    for name in enforced {
        if !seen.insert(name) {
            errors.add(FIELD, format!("contains {name:?} twice"));
            continue;
        }
        if !OPTIONS.contains(&name.as_str()) {
            errors.one_of(FIELD, name, &OPTIONS);
            continue;
        }
        if name == "none" {
            errors.check(enforced.len() == 1, FIELD, || {
                "must not contain anything else when it contains \"none\"".to_owned()
            });
            continue;
        }
        for (prefix, field, cgroup) in [
            ("system-reserved", "systemReservedCgroup", &config.system_reserved_cgroup),
            ("kube-reserved", "kubeReservedCgroup", &config.kube_reserved_cgroup),
        ] {
            errors.check(!name.starts_with(prefix) || !cgroup.is_empty(), field, || {
                format!("must be specified when {FIELD} contains {name:?}")
            });
        }
        errors.check(config.cgroups_per_qos, "cgroupsPerQOS", || {
            format!("must be true when {FIELD} contains {name:?}")
        });
    }
}

fn reservations(config: &KubeletConfiguration, errors: &mut Errors) {
    for (field, amounts) in
        [("systemReserved", &config.system_reserved), ("kubeReserved", &config.kube_reserved)]
    {
        reserved_amounts(field, amounts, errors);
    }
    for (resource, percentage) in &config.qos_reserved {
        errors.check(resource == "memory", "qosReserved", || {
            format!("{resource:?} cannot be reserved, only \"memory\" can")
        });
        let number = percentage.trim().strip_suffix('%').and_then(|n| n.parse::<i64>().ok());
        errors.check(
            number.is_some_and(|number| (0..=100).contains(&number)),
            "qosReserved",
            || format!("{percentage:?} must be a percentage between 0% and 100%"),
        );
    }
    let cpus = &config.reserved_system_cpus;
    if !cpus.is_empty() {
        errors.check(cpus.parse::<CpuSet>().is_ok(), "reservedSystemCPUs", || {
            format!("{cpus:?} must be a list of CPUs such as \"0-1,4\"")
        });
        errors.check(
            config.system_reserved_cgroup.is_empty() && config.kube_reserved_cgroup.is_empty(),
            "reservedSystemCPUs",
            || {
                "cannot be used with systemReservedCgroup (--system-reserved-cgroup) or \
                 kubeReservedCgroup (--kube-reserved-cgroup)"
                    .to_owned()
            },
        );
    }
    reserved_memory(config, errors);
}

fn reserved_amounts(field: &str, amounts: &BTreeMap<String, String>, errors: &mut Errors) {
    for (resource, amount) in amounts {
        errors.check(
            matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage" | "pid"),
            field,
            || format!("cannot reserve {resource:?} resource"),
        );
        match amount.parse::<Quantity>() {
            Ok(quantity) => errors.check(quantity >= Quantity::ZERO, field, || {
                format!("quantity for {resource:?} cannot be negative: {amount}")
            }),
            Err(error) => errors.add(field, format!("quantity for {resource:?}: {error}")),
        }
    }
}

fn reserved_memory(config: &KubeletConfiguration, errors: &mut Errors) {
    const FIELD: &str = "reservedMemory";
    let mut seen = BTreeSet::new();
    for reservation in &config.reserved_memory {
        let node = reservation.numa_node;
        errors.check(node >= 0, FIELD, || format!("NUMA node {node} must not be negative"));
        for (resource, limit) in &reservation.limits {
            errors.check(resource == "memory" || resource.starts_with("hugepages-"), FIELD, || {
                format!(
                    "{resource:?} for NUMA node {node} is not supported, only memory and \
                         hugepages-<HugePageSize> are"
                )
            });
            match Quantity::try_from(limit) {
                Ok(quantity) => errors.check(quantity > Quantity::ZERO, FIELD, || {
                    format!("of {resource:?} for NUMA node {node} must be greater than zero")
                }),
                Err(error) => errors.add(FIELD, format!("of {resource:?}: {error}")),
            }
            errors.check(seen.insert((node, resource)), FIELD, || {
                format!("has {resource:?} for NUMA node {node} twice")
            });
        }
    }
}

fn managers(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    errors.one_of("cpuManagerPolicy", &config.cpu_manager_policy, &["none", "static"]);
    errors.one_of("memoryManagerPolicy", &config.memory_manager_policy, &["None", "Static"]);
    errors.one_of(
        "topologyManagerPolicy",
        &config.topology_manager_policy,
        &["none", "best-effort", "restricted", "single-numa-node"],
    );
    errors.one_of("topologyManagerScope", &config.topology_manager_scope, &["container", "pod"]);
    errors.one_of(
        "memoryReservationPolicy",
        &config.memory_reservation_policy,
        &["None", "TieredReservation"],
    );
    let memory_qos = gates.enabled(Gate::MemoryQoS);
    errors.check(
        memory_qos || config.memory_reservation_policy != "TieredReservation",
        "memoryReservationPolicy",
        || "\"TieredReservation\" requires feature gate MemoryQoS".to_owned(),
    );
    match config.memory_throttling_factor {
        Some(factor) => {
            errors.check(factor > 0.0 && factor <= 1.0, "memoryThrottlingFactor", || {
                format!("{factor} must be greater than 0 and less than or equal to 1.0")
            })
        }
        None => errors.check(!memory_qos, "memoryThrottlingFactor", || {
            "is required when feature gate MemoryQoS is on".to_owned()
        }),
    }
}

fn images(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    const ALLOWLIST: &str = "preloadedImagesVerificationAllowlist";
    const POLICY: &str = "imagePullCredentialsVerificationPolicy";
    if let Some(pulls) = config.max_parallel_image_pulls {
        errors.check(pulls >= 1, "maxParallelImagePulls", || {
            format!("{pulls} must be a positive number")
        });
        errors.check(pulls <= 1 || !config.serialize_image_pulls, "maxParallelImagePulls", || {
            format!(
                "{pulls} cannot be larger than 1 unless serializeImagePulls \
                 (--serialize-image-pulls) is false"
            )
        });
    }
    let policy = config.image_pull_credentials_verification_policy.as_str();
    let allowlist = &config.preloaded_images_verification_allowlist;
    if !gates.enabled(Gate::KubeletEnsureSecretPulledImages) {
        for (field, is_empty) in [(POLICY, policy.is_empty()), (ALLOWLIST, allowlist.is_empty())] {
            errors.check(is_empty, field, || {
                "requires feature gate KubeletEnsureSecretPulledImages".to_owned()
            });
        }
        return;
    }
    let with_allowlist = "NeverVerifyAllowlistedImages";
    errors.one_of(
        POLICY,
        policy,
        &["NeverVerify", "NeverVerifyPreloadedImages", with_allowlist, "AlwaysVerify"],
    );
    errors.check(allowlist.is_empty() || policy == with_allowlist, ALLOWLIST, || {
        format!("can only be set if {POLICY} is {with_allowlist:?}")
    });
    for pattern in allowlist {
        errors.check(is_image_pattern(pattern), ALLOWLIST, || {
            format!("{pattern:?} must be an image name without tag or digest, or end with \"/*\"")
        });
    }
}

/// An image name without tag and digest; `/*` at the end stands for anything below.
fn is_image_pattern(pattern: &str) -> bool {
    let name = pattern.strip_suffix("/*").unwrap_or(pattern);
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_/:[]".contains(c);
    let last = name.rsplit('/').next().unwrap_or(name);
    let has_tag = last.contains(':') && (name.contains('/') || !pattern.ends_with("/*"));
    !name.is_empty()
        && name.chars().all(allowed)
        && !name.starts_with('/')
        && !name.contains("//")
        && !name.ends_with('/')
        && !has_tag
}

fn container_logs(config: &KubeletConfiguration, errors: &mut Errors) {
    match config.container_log_max_size.parse::<Quantity>() {
        Ok(size) => errors.check(size > Quantity::ZERO, "containerLogMaxSize", || {
            format!("{size} must be greater than 0")
        }),
        Err(error) => errors.add("containerLogMaxSize", error.to_string()),
    }
    errors.check(config.container_log_max_files > 1, "containerLogMaxFiles", || {
        format!("{} must be greater than 1", config.container_log_max_files)
    });
    errors.check(config.container_log_max_workers >= 1, "containerLogMaxWorkers", || {
        format!("{} must be greater than or equal to 1", config.container_log_max_workers)
    });
    let interval = config.container_log_monitor_interval;
    errors.check(interval >= GoDuration::from_secs(3), "containerLogMonitorInterval", || {
        format!("{interval} must be greater than or equal to 3s")
    });
    let directory = &config.pod_logs_dir;
    let field = "podLogsDir";
    errors.check(directory.starts_with('/'), field, || {
        format!("{directory:?} must be an absolute path")
    });
    errors.check(is_clean_path(directory), field, || format!("{directory:?} must be normalized"));
    errors.check(directory.is_ascii(), field, || {
        format!("{directory:?} must contain ASCII characters only")
    });
}

/// No empty, `.` or `..` elements and no slash at the end.
pub(super) fn is_clean_path(path: &str) -> bool {
    let rebuilt: std::path::PathBuf = Path::new(path)
        .components()
        .filter(|component| !matches!(component, Component::ParentDir | Component::CurDir))
        .collect();
    rebuilt.to_str() == Some(path)
}

fn sysctls(config: &KubeletConfiguration, errors: &mut Errors) {
    for pattern in &config.allowed_unsafe_sysctls {
        let name = pattern.strip_suffix('*').unwrap_or(pattern);
        errors.check(
            is_sysctl_name(name.trim_end_matches(['.', '/'])) && is_namespaced(pattern, &[]),
            "allowedUnsafeSysctls",
            || format!("{pattern:?} must be a namespaced sysctl or a prefix of some with \"*\""),
        );
    }
    for name in config.default_pod_sysctls.keys() {
        errors.check(
            is_sysctl_name(name) && is_namespaced(name, &["kernel.domainname", "user."]),
            "defaultPodSysctls",
            || format!("{name:?} must be a namespaced sysctl"),
        );
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=253).contains(&name.len())
        && name.split(['.', '/']).all(|part| !part.is_empty() && part.bytes().all(inner))
}

/// The sysctl exists once per pod, so that a pod that sets it changes nobody else's.
fn is_namespaced(name: &str, more: &[&str]) -> bool {
    let dotted = name.replace('/', ".");
    ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue.", "net."]
        .iter()
        .chain(more)
        .any(|prefix| dotted.starts_with(prefix))
}

fn taints(config: &KubeletConfiguration, errors: &mut Errors) {
    for taint in &config.register_with_taints {
        let text =
            format!("{}={}:{}", taint.key, taint.value.as_deref().unwrap_or(""), taint.effect);
        let good = names::is_qualified_name(&taint.key)
            && taint.value.as_deref().is_none_or(names::is_label_value)
            && matches!(taint.effect.as_str(), "NoSchedule" | "PreferNoSchedule" | "NoExecute");
        errors.check(good, "registerWithTaints", || format!("contains an invalid taint: {text}"));
        errors.check(taint.time_added.is_none(), "registerWithTaints", || {
            format!("must not set timeAdded: {text}")
        });
    }
}

fn user_namespaces(config: &KubeletConfiguration, errors: &mut Errors) {
    let Some(ids) = config.user_namespaces.as_ref().and_then(|it| it.ids_per_pod) else { return };
    let unit = UserNamespaces::DEFAULT_IDS_PER_POD;
    errors.check(
        ids >= unit && ids % unit == 0 && ids < 1 << 32,
        "userNamespaces.idsPerPod",
        || format!("{ids} must be a multiple of {unit}, greater than 0 and less than 2^32"),
    );
}

fn crash_loop_back_off(config: &KubeletConfiguration, gates: &FeatureGates, errors: &mut Errors) {
    const FIELD: &str = "crashLoopBackOff.maxContainerRestartPeriod";
    let gate_is_on = gates.enabled(Gate::KubeletCrashLoopBackOffMax);
    let (low, high) = (GoDuration::from_secs(1), GoDuration::from_secs(300));
    match config.crash_loop_back_off.max_container_restart_period {
        Some(_) if !gate_is_on => {
            errors.add(FIELD, "requires feature gate KubeletCrashLoopBackOffMax");
        }
        Some(period) => errors.check(period >= low && period <= high, FIELD, || {
            format!("{period} must be between 1s and 300s, inclusive")
        }),
        None => errors.check(!gate_is_on, FIELD, || "must be set".to_owned()),
    }
}
