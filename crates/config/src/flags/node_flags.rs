//! Flags that are no fields of the configuration file, and those whose field upstream does not
//! call deprecated.

use super::Deprecation::{Ignored, None, Replaced};
use super::values::{assign, assign_unless_empty, labels, verbosity, vmodule};
use super::{FlagSpec, ValueKind};

const OLD_CONTAINERS: super::Deprecation =
    Replaced("use --eviction-hard or --eviction-soft instead");

pub(super) const FLAGS: &[FlagSpec] = &[
    FlagSpec::of_node(
        "bootstrap-kubeconfig",
        ValueKind::Text,
        None,
        "Kubeconfig file with which the kubelet asks for its client certificate if the file of \
         --kubeconfig does not exist or does not work. The certificate goes to --cert-dir.",
        |t, v| assign_unless_empty(&mut t.options.bootstrap_kubeconfig, v),
    ),
    FlagSpec::of_node(
        "cert-dir",
        ValueKind::Text,
        None,
        "Directory of the kubelet's own TLS certificates. Not used for serving if --tls-cert-file \
         and --tls-private-key-file are given (default \"/var/lib/kubelet/pki\").",
        |t, v| assign(&mut t.options.cert_dir, v),
    ),
    FlagSpec::of_node(
        "cloud-provider",
        ValueKind::Text,
        None,
        "Empty if the node is in no cloud, or 'external' if a cloud controller initialises it.",
        |t, v| assign(&mut t.options.cloud_provider, v),
    ),
    FlagSpec::of_node(
        "config",
        ValueKind::Text,
        None,
        "File of the kubelet's configuration. A relative path starts at the working directory. \
         Flags beat the file.",
        |t, v| assign_unless_empty(&mut t.options.config_file, v),
    ),
    FlagSpec::of_node(
        "config-dir",
        ValueKind::Text,
        None,
        "Directory of drop-ins ('*.conf') that change the configuration of --config one after \
         another, in lexical order.",
        |t, v| assign_unless_empty(&mut t.options.config_dir, v),
    ),
    FlagSpec::of_node(
        "exit-on-lock-contention",
        ValueKind::Bool,
        None,
        "Exit when another process opens --lock-file.",
        |t, v| assign(&mut t.options.exit_on_lock_contention, v),
    ),
    FlagSpec::of_node(
        "experimental-allocatable-ignore-eviction",
        ValueKind::Bool,
        Replaced("it will be removed"),
        "Hard eviction thresholds do not reduce what pods may use.",
        |t, v| assign(&mut t.options.experimental_allocatable_ignore_eviction, v),
    ),
    FlagSpec::of_node(
        "experimental-mounter-path",
        ValueKind::Text,
        Replaced("use a CSI driver instead"),
        "Program that mounts volumes. Empty means the usual mount.",
        |t, v| assign(&mut t.options.experimental_mounter_path, v),
    ),
    FlagSpec {
        field: Some("failCgroupV1"),
        ..FlagSpec::of_node(
            "fail-cgroupv1",
            ValueKind::Bool,
            None,
            "Refuse to start on cgroup v1.",
            |t, v| assign(&mut t.config.fail_cgroup_v1, v),
        )
    },
    FlagSpec {
        shorthand: Some('h'),
        ..FlagSpec::of_node(
            super::HELP,
            ValueKind::Bool,
            None,
            "Print this text.",
            // The reader has looked at it before anything is applied.
            |_, _| Ok(()),
        )
    },
    FlagSpec::of_node(
        "hostname-override",
        ValueKind::Text,
        None,
        "Name of the node instead of the machine's host name.",
        |t, v| assign_unless_empty(&mut t.options.hostname_override, v),
    ),
    FlagSpec::of_node(
        "image-credential-provider-bin-dir",
        ValueKind::Text,
        None,
        "Directory of the credential provider plugins.",
        |t, v| assign_unless_empty(&mut t.options.image_credential_provider_bin_dir, v),
    ),
    FlagSpec::of_node(
        "image-credential-provider-config",
        ValueKind::Text,
        None,
        "Configuration of the credential provider plugins: a JSON or YAML file, or a directory of \
         such files in lexical order.",
        |t, v| assign_unless_empty(&mut t.options.image_credential_provider_config, v),
    ),
    FlagSpec::of_node(
        "kubeconfig",
        ValueKind::Text,
        None,
        "Kubeconfig file that tells how to reach the API server. Without it the kubelet runs \
         alone and takes pods only from files and URLs.",
        |t, v| assign_unless_empty(&mut t.options.kubeconfig, v),
    ),
    FlagSpec::of_node(
        "lock-file",
        ValueKind::Text,
        None,
        "File that the kubelet locks so that only one runs (alpha).",
        |t, v| assign_unless_empty(&mut t.options.lock_file, v),
    ),
    FlagSpec {
        field: Some("logging.flushFrequency"),
        ..FlagSpec::of_node(
            "log-flush-frequency",
            ValueKind::Duration,
            None,
            "Longest time a log line may stay in memory. This kubelet writes each line at once.",
            |t, v| assign(&mut t.config.logging.flush_frequency, v),
        )
    },
    FlagSpec::of_node(
        "maximum-dead-containers",
        ValueKind::Int,
        OLD_CONTAINERS,
        "Dead containers that are kept on the node. Negative is no limit (default -1).",
        |t, v| assign(&mut t.options.maximum_dead_containers, v),
    ),
    FlagSpec::of_node(
        "maximum-dead-containers-per-container",
        ValueKind::Int,
        OLD_CONTAINERS,
        "Dead instances that are kept of each container (default 1).",
        |t, v| assign(&mut t.options.maximum_dead_containers_per_container, v),
    ),
    FlagSpec::of_node(
        "minimum-container-ttl-duration",
        ValueKind::Duration,
        OLD_CONTAINERS,
        "A dead container is kept at least this long.",
        |t, v| assign(&mut t.options.minimum_container_ttl_duration, v),
    ),
    FlagSpec::of_node(
        "node-ip",
        ValueKind::Text,
        None,
        "IP address of the node, or an IPv4 and an IPv6 address with a comma between. '0.0.0.0' \
         or '::' choose the family only.",
        |t, v| assign(&mut t.options.node_ip, v),
    ),
    FlagSpec::of_node(
        "node-labels",
        ValueKind::Map,
        None,
        "Labels of the node object when it is created. In the kubernetes.io and k8s.io domains \
         only labels of kubelet.kubernetes.io and node.kubernetes.io and the well-known node \
         labels are allowed.",
        |t, v| labels(&mut t.options.node_labels, v),
    ),
    FlagSpec::of_node(
        "pod-infra-container-image",
        ValueKind::Text,
        Ignored("the container runtime knows its own sandbox image"),
        "Removed upstream in 1.35; accepted because environment files of older kubeadm releases \
         still hold it.",
        |_, _| Ok(()),
    ),
    FlagSpec {
        field: Some("providerID"),
        ..FlagSpec::of_node(
            "provider-id",
            ValueKind::Text,
            None,
            "The cloud's name of the node.",
            |t, v| assign(&mut t.config.provider_id, v),
        )
    },
    FlagSpec::of_node(
        "root-dir",
        ValueKind::Text,
        None,
        "Directory of the kubelet's files and of pod volumes (default \"/var/lib/kubelet\").",
        |t, v| assign(&mut t.options.root_dir, v),
    ),
    FlagSpec::of_node(
        "runtime-cgroups",
        ValueKind::Text,
        None,
        "Cgroup in which the container runtime runs.",
        |t, v| assign(&mut t.options.runtime_cgroups, v),
    ),
    FlagSpec::of_node(
        "seccomp-default",
        ValueKind::Bool,
        None,
        "RuntimeDefault is the seccomp profile of containers that name none.",
        |t, v| assign(&mut t.options.seccomp_default, v),
    ),
    FlagSpec {
        shorthand: Some('v'),
        field: Some("logging.verbosity"),
        ..FlagSpec::of_node(
            "v",
            ValueKind::Int,
            None,
            "Log level: 4 shows decisions, 6 shows everything.",
            |t, v| {
                t.config.logging.verbosity = verbosity(v)?;
                Ok(())
            },
        )
    },
    FlagSpec::of_node(
        super::VERSION,
        ValueKind::Version,
        None,
        "Print the version and exit; 'raw' prints all there is to say about it; 'vX.Y.Z...' is \
         reported instead of the built-in version.",
        |t, v| {
            if v.starts_with('v') {
                t.options.reported_version = Some(v.to_owned());
                return Ok(());
            }
            // The reader has looked at the other values before anything is applied.
            Ok(())
        },
    ),
    FlagSpec {
        field: Some("logging.vmodule"),
        ..FlagSpec::of_node(
            "vmodule",
            ValueKind::Map,
            None,
            "Log levels of some files, as pattern=N (text format only).",
            |t, v| vmodule(&mut t.config.logging.vmodule, t.first, v),
        )
    },
];
