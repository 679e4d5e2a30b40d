use serde_json::{Value, json};

use super::*;
use crate::decode;

/// Mistakes of the default configuration changed by `patch` and by flags.
fn mistakes(patch: Value, options: KubeletOptions) -> Vec<String> {
    let mut object = decode::into_object(&KubeletConfiguration::default());
    let Value::Object(patch) = patch else { panic!("a patch is an object") };
    decode::merge_patch(&mut object, patch);
    let mut config = decode::into_configuration(object).unwrap();
    let (gates, _) = FeatureGates::resolve(&config.feature_gates).unwrap();
    config.clear_defaults_of_disabled_gates(&gates);
    validate(&config, &options, &gates).iter().map(ToString::to_string).collect()
}

#[track_caller]
fn refused(patch: Value, expected: &str) {
    let found = mistakes(patch.clone(), KubeletOptions::default());
    assert!(
        found.iter().any(|text| text == &format!("invalid configuration: {expected}")),
        "{patch}: {found:#?}"
    );
}

#[track_caller]
fn accepted(patch: Value) {
    assert_eq!(mistakes(patch.clone(), KubeletOptions::default()), [""; 0], "{patch}");
}

#[test]
fn defaults_are_valid() {
    accepted(json!({}));
    let (config, options) = (KubeletConfiguration::legacy_default(), KubeletOptions::default());
    assert_eq!(validate(&config, &options, &FeatureGates::default()), []);
}

#[test]
fn numbers_have_ranges() {
    for (patch, expected) in [
        (json!({"port": 70000}), "port (--port) 70000 must be between 1 and 65535, inclusive"),
        (
            json!({"readOnlyPort": -1}),
            "readOnlyPort (--read-only-port) -1 must be between 0 and 65535, inclusive",
        ),
        (
            json!({"healthzPort": 65536}),
            "healthzPort (--healthz-port) 65536 must be between 0 and 65535, inclusive",
        ),
        (
            json!({"oomScoreAdj": -1001}),
            "oomScoreAdj (--oom-score-adj) -1001 must be between -1000 and 1000, inclusive",
        ),
        (json!({"maxPods": -1}), "maxPods (--max-pods) -1 must not be a negative number"),
        (
            json!({"nodeStatusMaxImages": -2}),
            "nodeStatusMaxImages (--node-status-max-images) -2 must be -1 or greater",
        ),
        (
            json!({"nodeLeaseDurationSeconds": -1}),
            "nodeLeaseDurationSeconds -1 must be greater than 0",
        ),
        (
            json!({"containerLogMaxFiles": 1}),
            "containerLogMaxFiles (--container-log-max-files) 1 must be greater than 1",
        ),
        (
            json!({"containerLogMaxWorkers": 0}),
            "containerLogMaxWorkers 0 must be greater than or equal to 1",
        ),
        (
            json!({"containerLogMonitorInterval": "2s"}),
            "containerLogMonitorInterval 2s must be greater than or equal to 3s",
        ),
        (
            json!({"cpuCFSQuotaPeriod": "2s"}),
            "cpuCFSQuotaPeriod (--cpu-cfs-quota-period) 2s must be between 1ms and 1sec, inclusive",
        ),
        (
            json!({"syncFrequency": "-1s"}),
            "syncFrequency (--sync-frequency) -1s must be greater than 0",
        ),
        (
            json!({"iptablesMasqueradeBit": -1}),
            "iptablesMasqueradeBit -1 must be between 0 and 31, inclusive",
        ),
        (json!({"iptablesDropBit": 32}), "iptablesDropBit 32 must be between 0 and 31, inclusive"),
        (
            json!({"memoryThrottlingFactor": 1.5}),
            "memoryThrottlingFactor 1.5 must be greater than 0 and less than or equal to 1.0",
        ),
        (
            json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "500ms"}}),
            "crashLoopBackOff.maxContainerRestartPeriod 500ms must be between 1s and 300s, inclusive",
        ),
        (
            json!({"userNamespaces": {"idsPerPod": 65537}}),
            "userNamespaces.idsPerPod 65537 must be a multiple of 65536, greater than 0 and less than 2^32",
        ),
    ] {
        refused(patch, expected);
    }
    accepted(json!({"healthzPort": 0, "userNamespaces": {"idsPerPod": 131072}}));
}

#[test]
fn words_are_checked() {
    for field in [
        "cpuManagerPolicy",
        "memoryManagerPolicy",
        "topologyManagerPolicy",
        "topologyManagerScope",
        "cgroupDriver",
        "hairpinMode",
        "configMapAndSecretChangeDetectionStrategy",
        "tlsMinVersion",
        "memoryReservationPolicy",
        "imagePullCredentialsVerificationPolicy",
    ] {
        let found = mistakes(json!({ field: "nonsense" }), KubeletOptions::default());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(field) && found[0].contains("\"nonsense\" must be one of: "));
    }
    refused(
        json!({"authorization": {"mode": "RBAC"}}),
        "authorization.mode (--authorization-mode) \"RBAC\" must be one of: \"AlwaysAllow\", \
         \"Webhook\"",
    );
    refused(
        json!({"memorySwap": {"swapBehavior": "UnlimitedSwap"}}),
        "memorySwap.swapBehavior \"UnlimitedSwap\" must be one of: \"\", \"LimitedSwap\", \
         \"NoSwap\"",
    );
    refused(
        json!({"runOnce": true}),
        "runOnce (--runonce) true: this mode was removed and must not be set",
    );
}

#[test]
fn image_pull_rules() {
    refused(
        json!({"maxParallelImagePulls": 5, "serializeImagePulls": true}),
        "maxParallelImagePulls 5 cannot be larger than 1 unless serializeImagePulls \
         (--serialize-image-pulls) is false",
    );
    refused(
        json!({"maxParallelImagePulls": 0}),
        "maxParallelImagePulls 0 must be a positive number",
    );
    accepted(json!({"maxParallelImagePulls": 5, "serializeImagePulls": false}));
    let policy = "NeverVerifyAllowlistedImages";
    let with = |list: Value| {
        json!({
            "imagePullCredentialsVerificationPolicy": policy,
            "preloadedImagesVerificationAllowlist": list
        })
    };
    accepted(with(json!(["registry.k8s.io/pause", "registry:5000/team/*", "busybox"])));
    for bad in ["a:1", "a/b:tag", "a/b@sha256:00", "a*", "a/*/b", "*", "/a", "", " a", "a//b"] {
        assert_eq!(mistakes(with(json!([bad])), Default::default()).len(), 1, "{bad:?}");
    }
    let only_list = json!({"preloadedImagesVerificationAllowlist": ["a"]});
    assert_eq!(mistakes(only_list, Default::default()).len(), 1);
    let gate = json!({"KubeletEnsureSecretPulledImages": false});
    accepted(json!({"featureGates": gate.clone()}));
    refused(
        json!({"featureGates": gate, "imagePullCredentialsVerificationPolicy": "AlwaysVerify"}),
        "imagePullCredentialsVerificationPolicy requires feature gate \
         KubeletEnsureSecretPulledImages",
    );
}

#[test]
fn node_allocatable_rules() {
    let field = "enforceNodeAllocatable (--enforce-node-allocatable)";
    refused(
        json!({"enforceNodeAllocatable": ["pods", "pods"]}),
        &format!("{field} contains \"pods\" twice"),
    );
    refused(
        json!({"enforceNodeAllocatable": ["none", "pods"]}),
        &format!("{field} must not contain anything else when it contains \"none\""),
    );
    refused(
        json!({"enforceNodeAllocatable": ["kube-reserved", "kube-reserved-compressible"]}),
        &format!(
            "{field} must not contain both \"kube-reserved\" and \"kube-reserved-compressible\""
        ),
    );
    refused(
        json!({"enforceNodeAllocatable": ["system-reserved"]}),
        "systemReservedCgroup (--system-reserved-cgroup) must be specified when \
         enforceNodeAllocatable contains \"system-reserved\"",
    );
    refused(
        json!({"cgroupsPerQOS": false}),
        "cgroupsPerQOS (--cgroups-per-qos) must be true when enforceNodeAllocatable contains \
         \"pods\"",
    );
    accepted(json!({"cgroupsPerQOS": false, "enforceNodeAllocatable": ["none"]}));
    accepted(json!({"cgroupsPerQOS": false, "enforceNodeAllocatable": []}));
    accepted(json!({
        "enforceNodeAllocatable": ["pods", "kube-reserved", "system-reserved-compressible"],
        "kubeReservedCgroup": "/kube", "systemReservedCgroup": "/system"
    }));
}

#[test]
fn reservations_are_amounts_of_known_resources() {
    accepted(json!({"systemReserved": {"cpu": "200m", "memory": "1Gi", "pid": "100"}}));
    refused(
        json!({"systemReserved": {"gpu": "1"}}),
        "systemReserved (--system-reserved) cannot reserve \"gpu\" resource",
    );
    refused(
        json!({"kubeReserved": {"cpu": "-1"}}),
        "kubeReserved (--kube-reserved) quantity for \"cpu\" cannot be negative: -1",
    );
    refused(
        json!({"qosReserved": {"memory": "150%"}}),
        "qosReserved (--qos-reserved) \"150%\" must be a percentage between 0% and 100%",
    );
    refused(
        json!({"reservedSystemCPUs": "0-1", "kubeReservedCgroup": "/kube"}),
        "reservedSystemCPUs (--reserved-cpus) cannot be used with systemReservedCgroup \
         (--system-reserved-cgroup) or kubeReservedCgroup (--kube-reserved-cgroup)",
    );
    refused(
        json!({"reservedMemory": [
            {"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 0, "limits": {"memory": "1Gi"}}
        ]}),
        "reservedMemory (--reserved-memory) has \"memory\" for NUMA node 0 twice",
    );
    refused(
        json!({"reservedMemory": [{"numaNode": 1, "limits": {"memory": "0"}}]}),
        "reservedMemory (--reserved-memory) of \"memory\" for NUMA node 1 must be greater than zero",
    );
}

#[test]
fn eviction_rules() {
    accepted(json!({
        "evictionHard": {"memory.available": "0%", "nodefs.available": "100%", "pid.available": "5%"},
        "evictionSoft": {"memory.available": "1.5Gi"},
        "evictionSoftGracePeriod": {"memory.available": "1m30s"},
        "evictionMinimumReclaim": {"imagefs.available": "0"}
    }));
    refused(
        json!({"evictionHard": {"cpu.available": "1"}}),
        "evictionHard (--eviction-hard) has an unknown eviction signal \"cpu.available\"",
    );
    for bad in ["0", "-1Gi", "101%", "-1%", "x", "%"] {
        let patch = json!({"evictionHard": {"memory.available": bad}});
        assert_eq!(mistakes(patch, Default::default()).len(), 1, "{bad}");
    }
    refused(
        json!({"evictionSoft": {"memory.available": "1Gi"}}),
        "evictionSoftGracePeriod (--eviction-soft-grace-period) must be specified for the soft \
         eviction threshold memory.available",
    );
    refused(
        json!({"imageGCHighThresholdPercent": 80, "imageGCLowThresholdPercent": 80}),
        "imageGCLowThresholdPercent (--image-gc-low-threshold) 80 must be less than \
         imageGCHighThresholdPercent (--image-gc-high-threshold) 80",
    );
    refused(
        json!({"imageMaximumGCAge": "1m"}),
        "imageMaximumGCAge 1m0s must be greater than imageMinimumGCAge 2m0s",
    );
}

#[test]
fn shutdown_rules() {
    accepted(json!({"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}));
    refused(
        json!({"shutdownGracePeriod": "5s", "shutdownGracePeriodCriticalPods": "10s"}),
        "shutdownGracePeriodCriticalPods 10s must be <= shutdownGracePeriod 5s",
    );
    refused(
        json!({"shutdownGracePeriod": "500ms"}),
        "shutdownGracePeriod 500ms must be either zero or otherwise >= 1 sec",
    );
    let by_priority = json!([{"priority": 0, "shutdownGracePeriodSeconds": 10}]);
    accepted(json!({"shutdownGracePeriodByPodPriority": by_priority.clone()}));
    refused(
        json!({"shutdownGracePeriodByPodPriority": by_priority, "shutdownGracePeriod": "30s"}),
        "shutdownGracePeriodByPodPriority cannot be specified together with shutdownGracePeriod",
    );
}

#[test]
fn servers_and_certificates() {
    refused(json!({"address": "here"}), "address (--address) \"here\" must be a valid IP address");
    refused(
        json!({"tlsCertFile": "/a.crt"}),
        "tlsPrivateKeyFile (--tls-private-key-file) must be set, because tlsCertFile and \
         tlsPrivateKeyFile go together",
    );
    refused(
        json!({"tlsCipherSuites": ["NULL"]}),
        "tlsCipherSuites (--tls-cipher-suites) \"NULL\" is not supported or does not exist",
    );
    refused(
        json!({"serverTLSBootstrap": true, "featureGates": {"RotateKubeletServerCertificate": false}}),
        "serverTLSBootstrap (--rotate-server-certificates) true requires feature gate \
         RotateKubeletServerCertificate",
    );
    refused(
        json!({"showHiddenMetricsForVersion": "1.30"}),
        "showHiddenMetricsForVersion \"1.30\" must be empty or \"1.35\", the previous minor version",
    );
    refused(
        json!({"enableSystemLogQuery": true, "enableSystemLogHandler": false}),
        "enableSystemLogQuery requires enableSystemLogHandler",
    );
    refused(
        json!({"tracing": {"endpoint": "http://collector:4317"}}),
        "tracing.endpoint scheme \"http\" must be none, dns, unix or unix-abstract",
    );
    accepted(json!({"tracing": {"endpoint": "collector:4317", "samplingRatePerMillion": 100}}));
}

#[test]
fn log_rules() {
    refused(
        json!({"logging": {"format": "xml"}}),
        "logging.format (--logging-format) \"xml\" must be one of: \"text\", \"json\"",
    );
    refused(
        json!({"logging": {"format": "json", "vmodule": [{"filePattern": "a", "verbosity": 1}]}}),
        "logging.vmodule (--vmodule) is only supported for text log format",
    );
    let split = json!({"logging": {"options": {"json": {"splitStream": true}}}});
    refused(
        split.clone(),
        "logging.options.json.splitStream (--log-json-split-stream) requires feature gate \
         LoggingAlphaOptions",
    );
    let mut allowed = split;
    allowed["featureGates"] = json!({"LoggingAlphaOptions": true});
    accepted(allowed);
}

#[test]
fn sysctls_and_taints() {
    accepted(json!({
        "allowedUnsafeSysctls": ["kernel.msg*", "net.ipv4.route.min_pmtu", "net/*", "fs.mqueue.*"],
        "defaultPodSysctls": {"user.max_user_namespaces": "5", "net.ipv4.ip_forward": "1"}
    }));
    for bad in ["vm.swappiness", "*", "net..a", "kernel.msg*x", "net.*.x"] {
        let patch = json!({"allowedUnsafeSysctls": [bad]});
        assert_eq!(mistakes(patch, Default::default()).len(), 1, "{bad}");
    }
    refused(
        json!({"registerWithTaints": [{"key": "a", "effect": "Sometimes"}]}),
        "registerWithTaints (--register-with-taints) contains an invalid taint: a=:Sometimes",
    );
    refused(
        json!({"registerWithTaints":
            [{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]}),
        "registerWithTaints (--register-with-taints) must not set timeAdded: a=:NoExecute",
    );
}

#[test]
fn pod_logs_directory_is_clean() {
    for (bad, expected) in [
        ("var/log", "\"var/log\" must be an absolute path"),
        ("/var//log", "\"/var//log\" must be normalized"),
        ("/var/log/", "\"/var/log/\" must be normalized"),
        ("/var/../log", "\"/var/../log\" must be normalized"),
        ("/var/lög", "\"/var/lög\" must contain ASCII characters only"),
    ] {
        refused(json!({"podLogsDir": bad}), &format!("podLogsDir {expected}"));
    }
}

#[test]
fn labels_of_reserved_domains_are_limited() {
    let with = |labels: &[&str]| KubeletOptions {
        node_labels: labels.iter().map(|l| ((*l).to_owned(), "x".to_owned())).collect(),
        ..Default::default()
    };
    assert_eq!(
        mistakes(
            json!({}),
            with(&[
                "example.com/a",
                "mykubernetes.io/a",
                "node.kubernetes.io/role",
                "x.kubelet.kubernetes.io/a",
                "kubernetes.io/hostname",
                "topology.kubernetes.io/zone",
            ])
        ),
        [""; 0]
    );
    let found = mistakes(json!({}), with(&["node-role.kubernetes.io/worker", "k8s.io/a", "a"]));
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with(
        "invalid configuration: --node-labels has unknown 'kubernetes.io' or 'k8s.io' labels: \
         k8s.io/a, node-role.kubernetes.io/worker."
    ));
}

#[test]
fn flags_go_together() {
    let mistake = |change: fn(&mut KubeletOptions)| {
        let mut options = KubeletOptions::default();
        change(&mut options);
        mistakes(json!({}), options)
    };
    for (change, field) in [
        (
            (|o| o.exit_on_lock_contention = true) as fn(&mut KubeletOptions),
            "--exit-on-lock-contention",
        ),
        (
            |o| o.image_credential_provider_config = Some("/a".into()),
            "--image-credential-provider-config",
        ),
        (|o| o.cloud_provider = "aws".into(), "--cloud-provider"),
        (|o| o.root_dir = "/var/lib/../kubelet".into(), "--root-dir"),
        (|o| o.node_ip = "10.0.0.1,10.0.0.2".into(), "--node-ip"),
        (|o| o.node_ip = "0.0.0.0,::".into(), "--node-ip"),
        (|o| o.node_ip = "1.1.1.1,::1,2.2.2.2".into(), "--node-ip"),
        (|o| o.reported_version = Some("vNext".into()), "--version"),
    ] {
        let found = mistake(change);
        assert_eq!(found.len(), 1, "{field}: {found:?}");
        assert!(found[0].starts_with(&format!("invalid configuration: {field} ")), "{found:?}");
    }
    assert_eq!(mistake(|o| o.node_ip = "10.0.0.1,fd00::1".into()), [""; 0]);
    assert_eq!(mistake(|o| o.node_ip = "::".into()), [""; 0]);
}

#[test]
fn all_mistakes_come_at_once() {
    let found = mistakes(json!({"port": -1, "maxPods": -1, "address": "x"}), Default::default());
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn cgroup_version_rules() {
    let config = KubeletConfiguration::default();
    assert!(check_cgroup_version(&config, true).is_ok());
    assert!(check_cgroup_version(&config, false).is_err(), "failCgroupV1 is the default");
    let mut old = KubeletConfiguration { fail_cgroup_v1: false, ..config };
    assert!(check_cgroup_version(&old, false).is_ok());
    old.single_process_oom_kill = Some(false);
    assert!(check_cgroup_version(&old, false).is_err());
    assert!(check_cgroup_version(&old, true).is_ok());
    old.single_process_oom_kill = None;
    assert!(old.effective_single_process_oom_kill(false));
    assert!(!old.effective_single_process_oom_kill(true));
}
