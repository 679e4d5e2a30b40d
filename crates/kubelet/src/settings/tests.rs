//! A configuration in which nothing has its default, and what each manager is told of it.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::Path;

use rubelet_config::Invocation;
use rubelet_server::{AccessSettings, Authorization, Endpoints};

use super::*;
use crate::access::access_settings;
use crate::servers::endpoints;

fn effective(config: &str, flags: &[&str]) -> Effective {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    fs::write(&file, format!("{head}{config}")).unwrap();
    let words = [format!("--config={}", file.display())];
    let words = words.iter().map(String::as_str).chain(flags.iter().copied());
    match rubelet_config::load(words.map(Into::into)).unwrap() {
        Invocation::Run(effective) => *effective,
        other => panic!("{other:?}"),
    }
}

fn node() -> Node {
    Node { name: "n1".to_owned(), ips: vec!["fd00::1".parse::<IpAddr>().unwrap()] }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn where_pods_come_from_and_files_go_is_as_configured() {
    let effective = effective(
        "
podLogsDir: /var/log/other-pods
staticPodPath: /etc/other
fileCheckFrequency: 7s
staticPodURL: http://127.0.0.1:1/pods
staticPodURLHeader: {X-Token: [first, second]}
httpCheckFrequency: 8s
featureGates: {PreventStaticPodAPIReferences: false}
",
        &["--root-dir=/srv/kubelet"],
    );
    let paths = node_paths(&effective);
    assert_eq!(paths.root(), Path::new("/srv/kubelet"));
    assert_eq!(paths.pod_logs(), Path::new("/var/log/other-pods"));
    let header = |value: &str| ("X-Token".to_owned(), value.to_owned());
    assert_eq!(
        pod_sources(&effective, &node()),
        PodSourceSettings {
            static_pod_path: Some("/etc/other".into()),
            file_check_frequency: seconds(7),
            manifest_url: Some("http://127.0.0.1:1/pods".to_owned()),
            manifest_url_headers: vec![header("first"), header("second")],
            http_check_frequency: seconds(8),
            node_name: "n1".to_owned(),
            prevent_api_references: false,
        }
    );
}

#[test]
fn the_runtime_is_asked_as_configured() {
    let asked = cri(&effective("runtimeRequestTimeout: 9s\n", &[]));
    assert_eq!((asked.request_timeout, asked.list_streaming), (seconds(9), false));
    assert!(cri(&effective("featureGates: {CRIListStreaming: true}\n", &[])).list_streaming);
}

#[test]
fn images_are_pulled_as_configured() {
    let effective = effective(
        "
serializeImagePulls: false
maxParallelImagePulls: 3
registryPullQPS: 2
registryBurst: 4
imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages
preloadedImagesVerificationAllowlist: [registry.test/team/*]
",
        &["--root-dir=/srv/kubelet"],
    );
    let told = image_manager(&effective, &node_paths(&effective));
    let allowed = vec!["registry.test/team/*".to_owned()];
    assert_eq!(
        told,
        ImageManagerConfig {
            serialize_image_pulls: false,
            max_parallel_image_pulls: NonZeroU32::new(3),
            registry_pull_qps: 2,
            registry_burst: 4,
            credential_verification: Some(CredentialVerification {
                policy: VerificationPolicy::NeverVerifyAllowlistedImages(allowed),
                directory: "/srv/kubelet/image_manager".into(),
            }),
            ..ImageManagerConfig::default()
        }
    );
    for (word, policy) in [
        ("NeverVerify", VerificationPolicy::NeverVerify),
        ("NeverVerifyPreloadedImages", VerificationPolicy::NeverVerifyPreloadedImages),
        ("AlwaysVerify", VerificationPolicy::AlwaysVerify),
    ] {
        let config = format!("imagePullCredentialsVerificationPolicy: {word}\n");
        assert_eq!(verification_policy(&self::effective(&config, &[]).config), policy);
    }
    let off = self::effective("featureGates: {KubeletEnsureSecretPulledImages: false}\n", &[]);
    assert_eq!(image_manager(&off, &node_paths(&off)).credential_verification, None);
}

#[test]
fn containers_are_made_and_restarted_as_configured() {
    let effective = effective(
        "
crashLoopBackOff: {maxContainerRestartPeriod: 7s}
userNamespaces: {idsPerPod: 131072}
maxPods: 50
clusterDNS: [10.96.0.10, fd00::10]
clusterDomain: example.test
resolvConf: ''
seccompDefault: true
containerLogMaxSize: 1Mi
containerLogMaxFiles: 7
containerLogMaxWorkers: 2
containerLogMonitorInterval: 4s
eventRecordQPS: 6
eventBurst: 9
",
        &[],
    );
    let config = &effective.config;
    assert_eq!(back_off(config), BackOffSettings { initial: seconds(7), max: seconds(7) });
    assert_eq!(
        user_namespaces(config),
        UserNamespaceSettings { ids_per_pod: 131_072, max_pods: 50 }
    );
    let told = pod_runtime(&effective, &node(), 5);
    assert_eq!(told.dns.cluster_dns.len(), 2);
    assert_eq!(told.dns.cluster_dns[1], "fd00::10".parse::<IpAddr>().unwrap());
    assert_eq!([told.cluster_domain, told.dns.cluster_domain], ["example.test"; 2]);
    assert!(told.dns.ignore_host && told.dns.prefer_ipv6 && told.seccomp_default);
    let by_flag = self::effective("", &["--seccomp-default=true"]);
    assert!(pod_runtime(&by_flag, &node(), 5).seccomp_default);
    assert!(!pod_runtime(&self::effective("", &[]), &node(), 5).seccomp_default);
    assert_eq!(
        log_rotation(config),
        RotationPolicy { max_size: 1 << 20, max_files: 7, workers: 2, interval: seconds(4) }
    );
    let events = event_recorder(&effective, &node());
    assert_eq!((events.events_per_second, events.burst), (6, 9));
}

const RESOURCES: &str = "
cgroupRoot: /own
systemReserved: {cpu: 300m, memory: 1Gi}
kubeReserved: {memory: 2Gi, pid: '100'}
systemReservedCgroup: /system
kubeReservedCgroup: /kube
enforceNodeAllocatable: [pods, system-reserved, kube-reserved-compressible]
evictionHard: {memory.available: 200Mi, nodefs.available: 25%}
podPidsLimit: 123
cpuCFSQuota: false
cpuCFSQuotaPeriod: 50ms
singleProcessOOMKill: true
memorySwap: {swapBehavior: LimitedSwap}
failSwapOn: false
failCgroupV1: false
protectKernelDefaults: true
maxPods: 50
podsPerCore: 5
qosReserved: {memory: 40%}
kubeletCgroups: /own/kubelet
localStorageCapacityIsolation: false
";

#[test]
fn resources_are_divided_as_configured() {
    let config = format!("{RESOURCES}featureGates: {{QOSReserved: true}}\n");
    let amounts = |list: &[(&str, &str)]| {
        let mut amounts = ResourceAmounts::default();
        for (name, amount) in list {
            amounts.set(name, amount.parse().unwrap());
        }
        amounts
    };
    let expected = ContainerManagerSettings {
        cgroup_root: "/own".to_owned(),
        cgroups_per_qos: true,
        driver: CgroupDriver::Systemd,
        system_reserved: amounts(&[("cpu", "300m"), ("memory", "1Gi")]),
        kube_reserved: amounts(&[("memory", "2Gi"), ("pid", "100")]),
        system_reserved_cgroup: Some("/system".to_owned()),
        kube_reserved_cgroup: Some("/kube".to_owned()),
        eviction_memory_available: Some(EvictionThreshold::Amount(Quantity::from_bytes(200 << 20))),
        eviction_nodefs_available: Some(EvictionThreshold::Fraction(0.25)),
        enforce: Enforcement {
            pods: true,
            system_reserved: true,
            kube_reserved_compressible: true,
            ..Enforcement::default()
        },
        pod_pids_limit: Some(123),
        cpu_cfs_quota: false,
        cpu_cfs_period_micros: 50_000,
        single_process_oom_kill: Some(true),
        swap_behavior: SwapBehavior::LimitedSwap,
        fail_swap_on: false,
        fail_cgroup_v1: false,
        protect_kernel_defaults: true,
        max_pods: 50,
        pods_per_core: 5,
        root_directory: None,
        qos_reserved_memory_percent: Some(40),
        memory_throttling_factor: None,
        kubelet_cgroup: Some("/own/kubelet".to_owned()),
    };
    let told = container_manager(&effective(&config, &[]), CgroupDriver::Systemd);
    assert_eq!(told, expected);
    // Memory is reserved for better classes only where somebody opened the gate.
    let told = container_manager(&effective(RESOURCES, &[]), CgroupDriver::Systemd);
    assert_eq!(told, ContainerManagerSettings { qos_reserved_memory_percent: None, ..expected });

    let flat = effective("cgroupsPerQOS: false\nenforceNodeAllocatable: [none]\n", &[]);
    let told = container_manager(&flat, CgroupDriver::Cgroupfs);
    assert!(!told.cgroups_per_qos && told.enforce == Enforcement::default());
    assert_eq!(told.root_directory, Some(flat.options.root_dir));
}

#[test]
fn cpus_that_are_reserved_by_name_count() {
    let config = "
reservedSystemCPUs: 0-2,5
systemReserved: {cpu: 300m, memory: 1Gi}
kubeReserved: {cpu: 300m}
";
    let told = container_manager(&effective(config, &[]), CgroupDriver::Cgroupfs);
    let cpus = |amounts: &ResourceAmounts| amounts.get("cpu").map(|cpus| cpus.milli_value());
    assert_eq!(cpus(&told.system_reserved), Some(4_000));
    assert_eq!(cpus(&told.kube_reserved), Some(0));
}

#[test]
fn who_may_ask_for_what_is_as_configured() {
    let configured = effective(
        "
authentication:
  anonymous: {enabled: true}
  webhook: {enabled: true, cacheTTL: 11s}
  x509: {clientCAFile: /etc/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 12s, cacheUnauthorizedTTL: 13s}
",
        &[],
    );
    let authorization =
        Authorization::Webhook { authorized_ttl: seconds(12), unauthorized_ttl: seconds(13) };
    assert_eq!(
        access_settings(&configured),
        AccessSettings {
            anonymous: true,
            client_certificates: true,
            tokens: Some(seconds(11)),
            authorization,
        }
    );
    let open = effective(
        "
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
",
        &[],
    );
    assert_eq!(
        access_settings(&open),
        AccessSettings {
            anonymous: false,
            client_certificates: false,
            tokens: None,
            authorization: Authorization::AlwaysAllow,
        }
    );
}

#[test]
fn tls_is_spoken_as_configured() {
    let suites = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256".to_owned()];
    let config = "
tlsCertFile: /etc/node.crt
tlsPrivateKeyFile: /etc/node.key
tlsMinVersion: VersionTLS13
tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]
authentication: {x509: {clientCAFile: /etc/ca.crt}}
";
    let expected = TlsOptions {
        files: TlsFiles::Given { certificate: "/etc/node.crt".into(), key: "/etc/node.key".into() },
        min_version: MinTlsVersion::Tls13,
        cipher_suites: suites.to_vec(),
        client_ca_file: Some("/etc/ca.crt".into()),
    };
    assert_eq!(tls(&effective(config, &[]), &node(), None), expected);
    // What the cluster signs goes before.
    let places = vec![("/pki/a.pem".into(), "/pki/a.pem".into())];
    let files = TlsFiles::Rotated { places: places.clone() };
    let signed = tls(&effective(config, &[]), &node(), Some(places));
    assert_eq!(signed, TlsOptions { files, ..expected });

    let names = serving_certificate(&effective(config, &["--cert-dir=/pki"]), "n1");
    let given = names.given.unwrap();
    assert_eq!((given.certificate, given.key), ("/etc/node.crt".into(), "/etc/node.key".into()));
    assert_eq!((names.directory, names.dns_only), ("/pki".into(), false));
    let by_name = effective("featureGates: {AllowDNSOnlyNodeCSR: true}\n", &[]);
    let names = serving_certificate(&by_name, "n1");
    assert!(names.dns_only && names.given.is_none());

    let usual = tls(&effective("", &["--cert-dir=/pki"]), &node(), None);
    let files = TlsFiles::SelfSigned { directory: "/pki".into(), hostname: "n1".to_owned() };
    assert_eq!((usual.files, usual.min_version), (files, MinTlsVersion::Tls12));
    assert!(usual.cipher_suites.is_empty() && usual.client_ca_file.is_none());
}

/// Each gate decides over its own part of a pod's status.
#[test]
fn what_is_reported_of_pods_follows_the_gates() {
    let of = |gates: &str| {
        let reports = reports(&effective(&format!("featureGates: {{{gates}}}\n"), &[]).gates);
        format!("{reports:?}").split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let usual = of("");
    for (gate, part) in [
        ("ChangeContainerStatusOnKubeletRestart: true", "change_container_status"),
        ("ContainerStopSignals: true", "container_stop_signals"),
        ("InPlacePodLevelResourcesVerticalScaling: false", "in_place_pod_level_resources"),
        ("PodReadyToStartContainersCondition: false", "pod_ready_to_start_containers_condition"),
        ("ResourceHealthStatus: false, ResourceHealthStatusMessage: false", "resource_health"),
        ("RestartAllContainersOnContainerExits: false", "restart_all_containers"),
    ] {
        let changed = of(gate);
        let differ = usual.iter().zip(&changed).filter(|(usual, changed)| usual != changed);
        let differ: Vec<&String> = differ.map(|(usual, _)| usual).collect();
        assert!(differ.len() == 1 && differ[0].contains(part), "{gate}: {differ:?}");
    }
}

/// Each switch of the API opens and closes its own part.
#[test]
fn parts_of_the_api_are_served_as_configured() {
    let of = |config: &str| {
        let Endpoints {
            debugging,
            profiling,
            debug_flags,
            system_logs,
            system_log_query,
            checkpoints,
        } = endpoints(&effective(config, &[]));
        [
            ("debugging", debugging),
            ("profiling", profiling),
            ("debug_flags", debug_flags),
            ("system_logs", system_logs),
            ("system_log_query", system_log_query),
            ("checkpoints", checkpoints),
        ]
        .into_iter()
        .filter_map(|(name, is_on)| is_on.then_some(name))
        .collect::<BTreeSet<_>>()
    };
    let usual = of("");
    for (config, part) in [
        ("enableDebuggingHandlers: false\n", "debugging"),
        ("enableProfilingHandler: false\n", "profiling"),
        ("enableDebugFlagsHandler: false\n", "debug_flags"),
        ("enableSystemLogHandler: false\n", "system_logs"),
        ("enableSystemLogQuery: true\n", "system_log_query"),
        ("featureGates: {ContainerCheckpoint: false}\n", "checkpoints"),
    ] {
        let changed = of(config);
        let differ: Vec<_> = usual.symmetric_difference(&changed).copied().collect();
        assert_eq!(differ, [part], "{config}");
    }
}
