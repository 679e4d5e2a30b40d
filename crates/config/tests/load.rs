//! From files and words to the configuration in force.

#![allow(clippy::unwrap_used)] // Also in the helpers of the tests a failed step is a failed test.

use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use rubelet_config::{
    Effective, Gate, GoDuration, Invocation, KubeletConfiguration, LoadError, MAX_FILE_BYTES, load,
};
use tempfile::TempDir;

const HEADER: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

struct Node {
    directory: TempDir,
}

impl Node {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file with `kind` and `apiVersion` before `body`.
    fn config(self, name: &str, body: &str) -> Self {
        self.file(name, &format!("{HEADER}{body}"))
    }

    fn file(self, name: &str, text: &str) -> Self {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Loads with `--config=<dir>/config` if there is one, `--config-dir=<dir>/conf.d` likewise.
    fn load(&self, flags: &[&str]) -> Result<Effective, LoadError> {
        let mut words = Vec::new();
        for (flag, name) in [("config", "config"), ("config-dir", "conf.d")] {
            let path = self.path(name);
            if Path::new(&path).exists() {
                words.push(OsString::from(format!("--{flag}={path}")));
            }
        }
        words.extend(flags.iter().map(OsString::from));
        match load(words)? {
            Invocation::Run(effective) => Ok(*effective),
            other => panic!("{other:?}"),
        }
    }

    fn config_of(&self, flags: &[&str]) -> KubeletConfiguration {
        self.load(flags).unwrap_or_else(|error| panic!("{}", chain(&error))).config
    }

    fn error(&self, flags: &[&str]) -> String {
        chain(&self.load(flags).unwrap_err())
    }
}

fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

#[test]
fn without_files_the_open_defaults_are_in_force() {
    let effective = Node::new().load(&[]).unwrap();
    assert_eq!(effective.config, KubeletConfiguration::legacy_default());
    assert!(effective.options.is_standalone());
    assert!(effective.warnings.is_empty());
}

#[test]
fn an_empty_configuration_has_the_closed_defaults() {
    let effective = Node::new().config("config", "").load(&[]).unwrap();
    assert_eq!(effective.config, KubeletConfiguration::default());
    assert_eq!(effective.config.authorization.mode, "Webhook");
    assert_eq!(effective.config.read_only_port, 0);
}

#[test]
fn drop_ins_alone_stand_on_the_open_defaults() {
    let node =
        Node::new().config("conf.d/10.conf", "authorization: {mode: Webhook}\nmaxPods: 42\n");
    let config = node.config_of(&[]);
    assert_eq!((config.authorization.mode.as_str(), config.max_pods), ("Webhook", 42));
    assert!(config.authentication.anonymous.enabled);
    assert_eq!(config.read_only_port, 10255);
}

#[test]
fn zero_and_null_mean_the_default_and_pointers_do_not() {
    let config = Node::new()
        .config(
            "config",
            "port: 0\nsyncFrequency: 0s\naddress: \"\"\nmaxPods: null\nlogging: null\n\
             eventRecordQPS: 0\nhealthzPort: 0\nresolvConf: \"\"\npodPidsLimit: -7\n\
             enforceNodeAllocatable: []\n",
        )
        .config_of(&[]);
    let default = KubeletConfiguration::default();
    assert_eq!((config.port, config.max_pods), (10250, 110));
    assert_eq!(
        (config.sync_frequency, &config.address),
        (default.sync_frequency, &default.address)
    );
    assert_eq!(config.logging, default.logging);
    assert_eq!((config.event_record_qps, config.healthz_port), (0, 0));
    assert_eq!((config.resolv_conf.as_str(), config.pod_pids_limit), ("", -1));
    assert!(config.enforce_node_allocatable.is_empty());
}

#[test]
fn json_is_accepted_too_even_with_tabs() {
    let text = "{\n\t\"apiVersion\": \"kubelet.config.k8s.io/v1beta1\",\n\t\"kind\": \
                \"KubeletConfiguration\",\n\t\"evictionHard\": {\n\t\t\"memory.available\": \
                \"1Gi\"\n\t},\n\t\"clusterDNS\": [\"10.0.0.10\"],\n\t\"memoryThrottlingFactor\": 1\n}\n";
    let config = Node::new().file("config", text).config_of(&[]);
    assert_eq!(config.cluster_dns, ["10.0.0.10"]);
    assert_eq!(config.eviction_hard.len(), 1);
    assert_eq!(config.memory_throttling_factor, Some(1.0));
}

#[test]
fn yaml_of_old_is_understood() {
    let text = format!("---\n{HEADER}port: 1\n---\n");
    assert_eq!(Node::new().file("config", &text).config_of(&[]).port, 1);
    let config =
        Node::new().config("config", "failSwapOn: no\nrotateCertificates: on\n").config_of(&[]);
    assert!(!config.fail_swap_on && config.rotate_certificates);
}

#[test]
fn unknown_fields_and_duplicate_keys_are_warnings() {
    let effective = Node::new()
        .config(
            "config",
            "maxPods: 1\nmaxPod: 2\nauthentication:\n  webhook:\n    enable: true\nmaxPods: 3\n\
             logging: {vmodule: [{filePattern: a, verbosity: 1, level: 2}]}\n",
        )
        .load(&[])
        .unwrap();
    assert_eq!(effective.config.max_pods, 3);
    let warnings = effective.warnings.join("\n");
    for part in [
        "unknown field \"maxPod\"",
        "unknown field \"authentication.webhook.enable\"",
        "unknown field \"logging.vmodule.0.level\"",
        "/config: key \"maxPods\" is set again in line 8; the last one counts",
    ] {
        assert!(warnings.contains(part), "{part} is missing in:\n{warnings}");
    }
    assert_eq!(effective.warnings.len(), 4, "{warnings}");
}

#[test]
fn wrong_types_name_the_field() {
    for (body, parts) in [
        ("port: high\n", &["/config\"", "\"port\"", "high"][..]),
        ("syncFrequency: 10\n", &["\"syncFrequency\"", "a duration such as"]),
        ("syncFrequency: 10x\n", &["\"syncFrequency\"", "time: unknown unit \"x\""]),
        ("authentication: {webhook: {enabled: 7}}\n", &["\"authentication.webhook.enabled\""]),
        ("evictionHard: {pid.available: 10}\n", &["\"evictionHard"]),
        ("clusterDNS: 10.0.0.10\n", &["\"clusterDNS\""]),
    ] {
        let error = Node::new().config("config", body).error(&[]);
        for part in parts {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
}

#[test]
fn files_that_are_no_configuration_are_refused() {
    for (text, part) in [
        ("", "it is empty"),
        ("# nothing\n", "it is empty"),
        ("- a\n", "the top level must be an object"),
        ("a: [\n", "not valid YAML or JSON"),
        ("a: b\n---\na: c\n", "it holds more than one YAML document"),
        ("kind: KubeletConfiguration\n", "apiVersion must be"),
        ("apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n", "v1alpha1"),
        ("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: Pod\n", "got \"Pod\""),
    ] {
        let error = Node::new().file("config", text).error(&[]);
        assert!(error.contains(part), "{text:?}: {error}");
    }
    let error = Node::new().error(&["--config=/does/not/exist"]);
    assert!(error.contains("failed to read kubelet configuration \"/does/not/exist\""), "{error}");
    let error = Node::new().error(&["--config-dir=/does/not/exist"]);
    assert!(error.contains("failed to read kubelet configuration \"/does/not/exist\""), "{error}");
}

#[test]
fn bombs_and_huge_files_end_in_an_error() {
    let mut bomb = format!("{HEADER}a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let deep = format!("{HEADER}a: {}{}\n", "[".repeat(5000), "]".repeat(5000));
    let huge = format!("{HEADER}#{}\n", "x".repeat(usize::try_from(MAX_FILE_BYTES).unwrap()));
    let many = format!("{HEADER}a: [{}]\n", "x,".repeat(200_000));
    for (text, part) in [
        (&bomb, "not valid YAML or JSON"),
        (&deep, "not valid YAML or JSON"),
        (&many, "not valid YAML or JSON"),
        (&huge, "is larger than"),
    ] {
        let error = Node::new().file("config", text).error(&[]);
        assert!(error.contains(part), "{error}");
        assert!(error.len() < 1000, "the error does not repeat the file: {}", error.len());
    }
}

#[test]
fn drop_ins_apply_in_lexical_order_and_only_conf_files_count() {
    let node = Node::new()
        .config("config", "maxPods: 1\nclusterDNS: [10.0.0.1]\nclusterDomain: base\n")
        .config("conf.d/20-b.conf", "maxPods: 20\nclusterDNS: [10.0.0.20, 10.0.0.21]\n")
        .config("conf.d/10-a.conf", "maxPods: 10\nport: 1010\n")
        .config("conf.d/15/z.conf", "port: 1515\nkubeAPIQPS: 15\n")
        .config("conf.d/30.yaml", "maxPods: 30\n")
        .config("conf.d/30.conf.bak", "maxPods: 31\n");
    std::os::unix::fs::symlink(node.path("config"), node.path("conf.d/05-link.conf")).unwrap();
    let effective = node.load(&[]).unwrap();
    let config = &effective.config;
    assert_eq!((config.max_pods, config.port, config.kube_api_qps), (20, 1515, 15));
    assert_eq!(config.cluster_dns, ["10.0.0.20", "10.0.0.21"], "lists replace");
    assert_eq!(config.cluster_domain, "base");
    let names = |paths: &[std::path::PathBuf]| -> Vec<String> {
        paths.iter().map(|p| p.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        names(&effective.sources),
        ["config", "05-link.conf", "10-a.conf", "z.conf", "20-b.conf"]
    );
    assert_eq!(names(&effective.skipped_files), ["30.conf.bak", "30.yaml"]);
}

#[test]
fn drop_ins_must_say_what_they_are() {
    let error = Node::new().config("config", "").file("conf.d/a.conf", "maxPods: 1\n").error(&[]);
    assert!(error.contains("a.conf") && error.contains("apiVersion must be"), "{error}");
}

#[test]
fn maps_merge_and_null_goes_back_to_the_default() {
    let node = Node::new()
        .config(
            "config",
            "evictionHard: {memory.available: 1Gi, nodefs.available: 5%}\nmaxPods: 5\n\
             systemReserved: {cpu: 1}\nauthentication: {webhook: {cacheTTL: 1m}}\n",
        )
        .config(
            "conf.d/a.conf",
            "evictionHard: {memory.available: 2Gi, nodefs.available: null}\nmaxPods: null\n\
             systemReserved: {memory: 1Gi}\nauthentication: {webhook: {enabled: false}}\n",
        );
    // `cpu: 1` is a number, which a map of texts refuses; quote it as upstream needs it.
    assert!(node.error(&[]).contains("systemReserved"));
    let node = node.config(
        "config",
        "evictionHard: {memory.available: 1Gi, nodefs.available: 5%}\nmaxPods: 5\n\
         systemReserved: {cpu: \"1\"}\nauthentication: {webhook: {cacheTTL: 1m}}\n",
    );
    let config = node.config_of(&[]);
    assert_eq!(config.eviction_hard.len(), 1);
    assert_eq!(config.eviction_hard["memory.available"], "2Gi");
    assert_eq!(config.max_pods, 110);
    assert_eq!(config.system_reserved.len(), 2);
    assert!(!config.authentication.webhook.enabled);
    assert_eq!(config.authentication.webhook.cache_ttl, GoDuration::from_secs(60));
}

#[test]
fn hard_eviction_thresholds() {
    let all = KubeletConfiguration::default().eviction_hard;
    let of = |body: &str| Node::new().config("config", body).config_of(&[]).eviction_hard;
    assert_eq!(of(""), all);
    assert!(of("evictionHard: {}\n").is_empty(), "explicitly none");
    assert_eq!(of("evictionHard: {memory.available: 1Gi}\n").len(), 1);
    let merged = of(
        "evictionHard: {memory.available: 1Gi, pid.available: 5%}\nmergeDefaultEvictionSettings: true\n",
    );
    assert_eq!(merged.len(), 6);
    assert_eq!(merged["memory.available"], "1Gi");

    // The file's defaults are there before a drop-in merges into them, unless there are none.
    let with_drop_in = |file: &str, drop_in: &str| {
        let node = Node::new().config("config", file).config("conf.d/a.conf", drop_in);
        node.config_of(&[]).eviction_hard
    };
    assert_eq!(with_drop_in("", "evictionHard: {memory.available: 1Gi}\n").len(), 5);
    assert_eq!(with_drop_in("evictionHard: {}\n", "maxPods: 1\n").len(), 0);
    assert_eq!(with_drop_in("evictionHard: {}\n", "evictionHard: null\n"), all);
    let flag = Node::new().config("config", "mergeDefaultEvictionSettings: true\n");
    assert_eq!(flag.config_of(&["--eviction-hard=memory.available<2Gi"]).eviction_hard.len(), 1);
}

#[test]
fn status_report_follows_status_update_if_only_that_is_set() {
    let of = |body: &str| {
        let config = Node::new().config("config", body).config_of(&[]);
        (config.node_status_update_frequency, config.node_status_report_frequency)
    };
    let seconds = GoDuration::from_secs;
    assert_eq!(of(""), (seconds(10), seconds(300)));
    assert_eq!(of("nodeStatusUpdateFrequency: 7s\n"), (seconds(7), seconds(7)));
    assert_eq!(
        of("nodeStatusUpdateFrequency: 7s\nnodeStatusReportFrequency: 9s\n"),
        (seconds(7), seconds(9))
    );
    assert_eq!(of("nodeStatusReportFrequency: 9s\n"), (seconds(10), seconds(9)));
}

#[test]
fn parallel_pulls_turn_serial_pulls_off() {
    let of = |body: &str| Node::new().config("config", body).config_of(&[]).serialize_image_pulls;
    assert!(of(""));
    assert!(of("maxParallelImagePulls: 1\n"));
    assert!(!of("maxParallelImagePulls: 5\n"));
    assert!(!of("serializeImagePulls: false\n"));
}

#[test]
fn file_names_are_relative_to_the_file_that_holds_them() {
    let node = Node::new()
        .config(
            "config",
            "staticPodPath: manifests\nresolvConf: /etc/resolv.conf\ntlsCertFile: a.crt\n\
             tlsPrivateKeyFile: ../a.key\n",
        )
        .config(
            "conf.d/sub/a.conf",
            "authentication: {x509: {clientCAFile: ca.crt}}\ntlsCertFile: b.crt\n",
        );
    let config = node.config_of(&[]);
    assert_eq!(config.static_pod_path, node.path("manifests"));
    assert_eq!(config.resolv_conf, "/etc/resolv.conf");
    assert_eq!(config.tls_cert_file, node.path("conf.d/sub/b.crt"));
    assert_eq!(config.tls_private_key_file, node.path("../a.key"));
    assert_eq!(config.authentication.x509.client_ca_file, node.path("conf.d/sub/ca.crt"));
    let config = node.config_of(&["--pod-manifest-path=here"]);
    assert_eq!(config.static_pod_path, "here", "flags start at the working directory");
}

#[test]
fn flags_beat_files_and_gates_merge_by_name() {
    let effective = Node::new()
        .config(
            "config",
            "maxPods: 1\nclusterDNS: [10.0.0.1]\nseccompDefault: true\n\
             featureGates: {EventedPLEG: true, MemoryQoS: true}\n",
        )
        .config("conf.d/a.conf", "maxPods: 2\nfeatureGates: {PodsAPI: true}\n")
        .load(&[
            "--max-pods=3",
            "--cluster-dns=10.0.0.2",
            "--cluster-dns=10.0.0.3",
            "--feature-gates=EventedPLEG=false",
            "--feature-gates=QOSReserved=true",
            "--seccomp-default=false",
            "--node-labels=a=b",
            "--hostname-override=n",
            "--manifest-url=http://x",
            "--manifest-url-header=Authorization:hunter2",
        ])
        .unwrap();
    assert_eq!(effective.config.max_pods, 3);
    assert_eq!(effective.config.cluster_dns, ["10.0.0.2", "10.0.0.3"]);
    assert!(effective.config.seccomp_default, "flag and file are joined by or");
    let on: Vec<_> = [Gate::EventedPLEG, Gate::MemoryQoS, Gate::PodsAPI, Gate::QOSReserved]
        .into_iter()
        .map(|gate| effective.gates.enabled(gate))
        .collect();
    assert_eq!(on, [false, true, true, true]);
    assert_eq!(effective.options.hostname_override.as_deref(), Some("n"));
    assert_eq!(effective.options.node_labels["a"], "b");
    let logged = format!("{:?} {:?}", effective.config, effective.given_flags);
    assert!(!logged.contains("hunter2"), "{logged}");
}

#[test]
fn all_mistakes_are_in_one_error() {
    let error = Node::new()
        .config("config", "port: -1\nfeatureGates: {Nonsense: true, NodeSwap: false}\n")
        .error(&["--max-pods=-1", "--cloud-provider=aws"]);
    for part in [
        "port (--port) -1",
        "maxPods (--max-pods) -1",
        "unrecognized feature gate: Nonsense",
        "feature is locked to true",
        "--cloud-provider \"aws\"",
    ] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
}

#[test]
fn configz_shows_what_is_in_force() {
    let effective = Node::new()
        .config("config", "failSwapOn: false\nreadOnlyPort: 10255\n")
        .load(&["--max-pods=7"])
        .unwrap();
    let configz = effective.config.configz();
    let config = &configz["kubeletconfig"];
    assert_eq!(config["kind"], "KubeletConfiguration");
    assert_eq!(config["apiVersion"], "kubelet.config.k8s.io/v1beta1");
    assert_eq!(config["maxPods"], 7);
    assert_eq!(config["failSwapOn"], false);
    assert_eq!(config["syncFrequency"], "1m0s");
    assert_eq!(config["imageMaximumGCAge"], "0s");
    assert_eq!(config["logging"]["options"]["text"]["infoBufferSize"], "0");
    assert_eq!(config["crashLoopBackOff"]["maxContainerRestartPeriod"], "5m0s");
    assert_eq!(config["authentication"]["webhook"]["cacheTTL"], "2m0s");
    assert_eq!(config.get("staticPodPath"), None, "plain fields without a value are left out");
    assert_eq!(config.get("runOnce"), None);

    // Tests of nodes read it and write it back as a configuration file.
    let again = Node::new().file("config", &config.to_string());
    assert_eq!(again.config_of(&[]), effective.config);
}

#[test]
fn requests_for_help_and_version_read_no_file() {
    let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
    assert!(matches!(
        load(words(&["--config=/does/not/exist", "--version=raw"])),
        Ok(Invocation::Version { raw: true })
    ));
    match load(words(&["--config=/does/not/exist", "-h"])).unwrap() {
        Invocation::Help(text) => assert!(text.contains("--kubeconfig")),
        other => panic!("{other:?}"),
    }
    let error = load(words(&["--nonsense"])).unwrap_err();
    assert_eq!(chain(&error), "failed to parse kubelet flag: unknown flag: --nonsense");
}

#[test]
fn ignored_values_are_said() {
    let effective = Node::new()
        .config(
            "config",
            "clusterDNS: [10.0.0.1, dns]\ntlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA]\n\
             qosReserved: {memory: 50%}\n",
        )
        .load(&["--node-ip=10.0.0.1,nonsense", "--cloud-provider=external"])
        .unwrap();
    assert_eq!(effective.options.node_ips().len(), 1);
    assert!(effective.options.external_cloud_provider);
    assert_eq!(
        effective.warnings,
        [
            "clusterDNS: \"dns\" is no IP address and is ignored",
            "tlsCipherSuites: TLS_RSA_WITH_RC4_128_SHA is insecure",
            "qosReserved has no effect without feature gate QOSReserved",
            "--node-ip: \"nonsense\" is no IP address and is ignored",
        ]
    );
}
