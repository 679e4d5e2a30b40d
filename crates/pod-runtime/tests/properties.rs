//! Whatever a pod asks for, making its configuration does not panic, and what other programs find
//! containers by is right.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use rubelet_node_resources::LinuxResources;
use rubelet_pod_runtime::{
    ContainerAllocation, ContainerInputs, DnsSettings, EnvironmentFacts, EnvironmentFiles,
    ImageUser, PodRuntimeSettings, ResolvConf, SandboxInputs, compute_container_config,
    compute_dns, compute_environment, compute_sandbox_config, prepare_mount, render_hosts_file,
};
use rubelet_types::{NodePaths, ResourceAmounts, container_hash, containers, labels, pod_ref};
use serde_json::{Value, json};

/// Names as the API has them, and names as it does not.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z0-9]([a-z0-9-]{0,12}[a-z0-9])?",
        1 => "[a-z0-9-]{60,70}",
        1 => "\\PC{0,8}",
    ]
}

fn optional<T: std::fmt::Debug + Into<Value>>(
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Value> {
    proptest::option::of(strategy).prop_map(|value| value.map_or(Value::Null, Into::into))
}

fn one_of(words: &'static [&'static str]) -> impl Strategy<Value = Value> {
    optional(proptest::sample::select(words))
}

fn profile() -> impl Strategy<Value = Value> {
    (
        proptest::sample::select(&["RuntimeDefault", "Unconfined", "Localhost", "Other"][..]),
        optional("[a-z./]{0,8}"),
    )
        .prop_map(|(kind, name)| json!({"type": kind, "localhostProfile": name}))
}

fn variable() -> impl Strategy<Value = Value> {
    let literal = ("[A-C]", "[$()A-C\\PC]{0,12}")
        .prop_map(|(name, value)| json!({"name": name, "value": value}));
    let field = ("[A-C]", "(metadata|status|spec)\\.[a-zA-Z]{0,8}(\\['[a-z/]{0,4}'\\])?").prop_map(
        |(name, path)| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}),
    );
    let resource = ("[A-C]", "(limits|requests)?\\.?(cpu|memory|x)", optional("[0-9]{0,3}m?"))
        .prop_map(|(name, resource, divisor)| {
            json!({"name": name, "valueFrom": {"resourceFieldRef":
                {"resource": resource, "divisor": divisor.as_str().unwrap_or("1")}}})
        });
    prop_oneof![3 => literal, 1 => field, 1 => resource]
}

fn container() -> impl Strategy<Value = Value> {
    let security = (
        (optional(any::<bool>()), optional(any::<i64>()), optional(any::<bool>())),
        proptest::option::of(profile()),
        proptest::option::of(profile()),
    )
        .prop_map(|((privileged, user, escalation), seccomp, apparmor)| {
            json!({"privileged": privileged, "runAsUser": user,
                "allowPrivilegeEscalation": escalation, "seccompProfile": seccomp,
                "appArmorProfile": apparmor})
        });
    let port = ("[a-z]{0,3}", any::<i32>(), optional(any::<i32>()), one_of(&["TCP", "UDP", "X"]))
        .prop_map(|(name, port, host_port, protocol)| {
            json!({"name": name, "containerPort": port, "hostPort": host_port,
                "protocol": protocol})
        });
    let mount = (
        "[a-z/]{0,6}",
        optional(any::<bool>()),
        one_of(&["None", "HostToContainer", "Bidirectional", "X"]),
        one_of(&["Disabled", "IfPossible", "Enabled", "X"]),
    )
        .prop_map(|(path, read_only, propagation, recursive)| {
            json!({"name": "v", "mountPath": path, "readOnly": read_only,
                "mountPropagation": propagation, "recursiveReadOnly": recursive})
        });
    (
        (name(), optional("[a-z:/.0-9]{0,12}")),
        security,
        proptest::collection::vec(port, 0..3),
        proptest::collection::vec(mount, 0..3),
        proptest::collection::vec(variable(), 0..4),
        proptest::collection::vec("[$()A-C\\PC]{0,8}", 0..3),
        (optional("\\PC{0,8}"), one_of(&["File", "FallbackToLogsOnError"])),
    )
        .prop_map(|((name, image), security, ports, mounts, env, args, (path, policy))| {
            json!({"name": name, "image": image, "securityContext": security, "ports": ports,
                "volumeMounts": mounts, "env": env, "args": args,
                "terminationMessagePath": path, "terminationMessagePolicy": policy})
        })
}

fn pod() -> impl Strategy<Value = Pod> {
    let names = (name(), name(), name());
    let hosts = (
        optional(name()),
        optional(name()),
        optional(name()),
        optional(any::<bool>()),
        optional(any::<bool>()),
    );
    let dns = (
        one_of(&["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None", "X"]),
        proptest::collection::vec("[0-9.]{0,8}", 0..5),
        proptest::collection::vec("[a-z.]{0,300}", 0..40),
    );
    let security = (
        optional(any::<i64>()),
        one_of(&["Merge", "Strict", "X"]),
        proptest::option::of(profile()),
        "[a-z./]{0,12}",
    );
    let lists = (
        proptest::collection::vec(container(), 0..3),
        proptest::collection::vec(container(), 0..2),
    );
    (names, hosts, dns, proptest::option::of(security), lists).prop_map(
        |((name, namespace, uid), hosts, dns, security, (regular, init))| {
            let (hostname, subdomain, overridden, as_fqdn, host_network) = hosts;
            let (policy, servers, searches) = dns;
            let security = security.map(|(group, groups, seccomp, sysctl)| {
                json!({"fsGroup": group, "supplementalGroupsPolicy": groups,
                    "seccompProfile": seccomp, "sysctls": [{"name": sysctl, "value": "1"}]})
            });
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": namespace, "uid": uid,
                    "labels": {"io.kubernetes.pod.uid": "forged", "app": "x"}},
                "spec": {"hostname": hostname, "subdomain": subdomain,
                    "hostnameOverride": overridden, "setHostnameAsFQDN": as_fqdn,
                    "hostNetwork": host_network, "dnsPolicy": policy,
                    "dnsConfig": {"nameservers": servers, "searches": searches},
                    "securityContext": security, "containers": regular,
                    "initContainers": init}
            }))
            .unwrap()
        },
    )
}

fn settings() -> PodRuntimeSettings {
    PodRuntimeSettings {
        cluster_domain: "cluster.local".to_owned(),
        dns: DnsSettings {
            cluster_dns: vec!["10.96.0.10".parse().unwrap()],
            cluster_domain: "cluster.local".to_owned(),
            ..DnsSettings::default()
        },
        seccomp_default: true,
        concurrent_starts: 1,
    }
}

proptest! {
    #[test]
    fn a_sandbox_is_found_by_its_labels_and_keeps_the_limits_of_resolvers(pod in pod()) {
        let (settings, paths) = (settings(), NodePaths::new("/root", "/logs", "/links"));
        let host = ResolvConf::parse("nameserver 192.0.2.1\nsearch example.com\n");
        let (dns, _) = compute_dns(&pod, &settings.dns, &host);
        prop_assert!(dns.servers.len() <= 3 && dns.searches.len() <= 32);
        prop_assert!(dns.searches.join(" ").len() <= 2048);
        let _ = render_hosts_file(&pod, &["10.0.0.2".to_owned()], "cluster.local", "");
        let inputs = SandboxInputs {
            pod: &pod,
            attempt: 7,
            cgroup_parent: "/kubepods",
            dns,
            resources: None,
            overhead: None,
            extra_groups: &[],
            user_namespace: None,
        };
        let Ok(config) = compute_sandbox_config(inputs, &settings, &paths) else { return Ok(()) };
        let reference = pod_ref(&pod);
        prop_assert!(config.hostname.len() <= 64);
        prop_assert_eq!(config.labels[labels::POD_UID].as_str(), reference.uid.as_str());
        prop_assert_eq!(config.labels[labels::POD_NAME].as_str(), &*reference.name);
        prop_assert_eq!(config.labels[labels::POD_NAMESPACE].as_str(), &*reference.namespace);
        prop_assert_eq!(config.labels["app"].as_str(), "x");
        let log_dir = paths.pod_log_dir(&reference);
        prop_assert_eq!(config.log_directory, log_dir.to_string_lossy().into_owned());
        prop_assert_eq!(config.metadata.unwrap().attempt, 7);
    }

    #[test]
    fn a_container_is_found_by_its_labels_and_logs_where_it_is_looked_for(pod in pod()) {
        let paths = NodePaths::new("/root", "/logs", "/links");
        let allocatable = ResourceAmounts::default();
        let facts = EnvironmentFacts {
            pod_ips: &[],
            host_ips: &[],
            node_name: "node",
            allocatable: &allocatable,
            objects: None,
            files: &EnvironmentFiles::default(),
        };
        for spec in containers(&pod) {
            let container = &*spec.container;
            let environment = compute_environment(&pod, container, &facts).unwrap_or_default();
            let mounts: Vec<_> = container
                .volume_mounts
                .iter()
                .flatten()
                .filter_map(|mount| {
                    prepare_mount(mount, container, "/v".as_ref(), false, true).ok()
                })
                .collect();
            let inputs = ContainerInputs {
                pod: &pod,
                container,
                restart_count: 4,
                image_ref: "sha256:1",
                image_user: &ImageUser::Unset,
                target: None,
                environment: &environment,
                mounts: &mounts,
                allocation: &ContainerAllocation::default(),
                extra_groups: &[],
                user_namespace: None,
                resources: LinuxResources::default(),
                seccomp_default: true,
                node_masked_paths: &[],
                selinux_enabled: false,
            };
            let Ok(config) = compute_container_config(inputs, &paths) else { continue };
            let reference = pod_ref(&pod);
            let from_pod = paths.pod_log_dir(&reference).join(&config.log_path);
            let expected = paths.container_log_dir(&reference, &container.name).join("4.log");
            prop_assert_eq!(from_pod, expected);
            prop_assert_eq!(config.labels.len(), 4);
            prop_assert_eq!(config.labels[labels::POD_UID].as_str(), reference.uid.as_str());
            prop_assert_eq!(&config.labels[labels::CONTAINER_NAME], &container.name);
            let hash = container_hash(
                &container.name,
                container.image.as_deref().unwrap_or_default(),
            );
            prop_assert_eq!(&config.annotations[labels::CONTAINER_HASH], &hash);
            prop_assert_eq!(&config.annotations[labels::CONTAINER_RESTART_COUNT], "4");
            prop_assert_eq!(config.metadata.unwrap().attempt, 4);
            for mount in &config.mounts {
                prop_assert!(mount.container_path.starts_with('/'));
                prop_assert!(!mount.recursive_read_only || mount.readonly);
            }
            let mut names: Vec<_> = config.envs.iter().map(|variable| &variable.key).collect();
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), config.envs.len());
        }
    }
}
