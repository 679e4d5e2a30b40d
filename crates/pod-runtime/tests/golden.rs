//! The runtime's configuration of whole pods, as text: what a change of this crate changes for
//! them can be read in review.
//!
//! `UPDATE_CASES=1 cargo test -p rubelet-pod-runtime` writes the texts anew. What is absent from a
//! text has the protocol's default value.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;
use rubelet_cri::v1;
use rubelet_node_resources::{HugepageLimit, LinuxResources};
use rubelet_pod_runtime::{
    ApiObjects, ContainerAllocation, ContainerInputs, Device, DnsSettings, EnvironmentFacts,
    EnvironmentFiles, IdMapping, ImageMount, ImageUser, PodRuntimeSettings, PreparedMount,
    ResolvConf, SandboxInputs, UserNamespace, compute_container_config, compute_dns,
    compute_environment, compute_sandbox_config, prepare_mount,
};
use rubelet_types::{ContainerId, Fetched, NodePaths, Quantity, ResourceAmounts, containers};

/// What stands in a case's file before the text: the pod, and what the node adds.
#[derive(Debug)]
struct Case {
    pod: Pod,
    image_user: ImageUser,
    target: Option<ContainerId>,
    volume_mounts_ready: bool,
    allocation: ContainerAllocation,
    extra_groups: Vec<i64>,
    user_namespace: Option<UserNamespace>,
    seccomp_default: bool,
    objects: Option<ApiObjects>,
    image_volumes: BTreeMap<String, String>,
}

fn case(name: &str, pod: serde_json::Value) -> Case {
    let mut whole = serde_json::json!({
        "metadata": {"name": name, "namespace": "shop", "uid": "7f0c-1"}
    });
    for (key, value) in pod.as_object().unwrap() {
        match (key.as_str(), value.as_object()) {
            ("metadata", Some(more)) => {
                for (key, value) in more {
                    whole["metadata"][key] = value.clone();
                }
            }
            _ => whole[key] = value.clone(),
        }
    }
    Case {
        pod: serde_json::from_value(whole).unwrap(),
        image_user: ImageUser::Unset,
        target: None,
        volume_mounts_ready: true,
        allocation: ContainerAllocation::default(),
        extra_groups: Vec::new(),
        user_namespace: None,
        seccomp_default: false,
        objects: None,
        image_volumes: BTreeMap::new(),
    }
}

impl Case {
    fn render(&self) -> String {
        let paths = NodePaths::new("/var/lib/kubelet", "/var/log/pods", "/var/log/containers");
        let settings = PodRuntimeSettings {
            cluster_domain: "cluster.local".to_owned(),
            dns: DnsSettings {
                cluster_dns: vec!["10.96.0.10".parse().unwrap()],
                cluster_domain: "cluster.local".to_owned(),
                ..DnsSettings::default()
            },
            seccomp_default: self.seccomp_default,
            concurrent_starts: 1,
        };
        let host = ResolvConf::parse("nameserver 192.0.2.53\nsearch example.com\noptions edns0\n");
        let (dns, warnings) = compute_dns(&self.pod, &settings.dns, &host);
        let mut text = String::new();
        for warning in warnings {
            writeln!(text, "{}: {}", warning.reason, warning.message).unwrap();
        }
        let resources =
            LinuxResources { cpu_shares: 256, cpu_period: 100_000, ..LinuxResources::default() };
        let sandbox = compute_sandbox_config(
            SandboxInputs {
                pod: &self.pod,
                attempt: 2,
                cgroup_parent: "/kubepods/pod7f0c-1",
                dns,
                resources: Some(resources),
                overhead: None,
                extra_groups: &self.extra_groups,
                user_namespace: self.user_namespace.as_ref(),
            },
            &settings,
            &paths,
        );
        match sandbox {
            Ok(config) => text.push_str(&without_defaults(&format!("{config:#?}"))),
            Err(error) => writeln!(text, "no sandbox: {error}").unwrap(),
        }
        for spec in containers(&self.pod) {
            let container = &spec.container;
            match self.container_config(container, &paths) {
                Ok(config) => {
                    text.push('\n');
                    for variable in &config.envs {
                        // Their own text hides the values.
                        let value = String::from_utf8_lossy(&variable.value).into_owned();
                        writeln!(text, "env {}={value:?}", variable.key).unwrap();
                    }
                    let mut config = v1::ContainerConfig { envs: Vec::new(), ..config };
                    if self.pod.metadata.name.as_deref() != Some("plain") {
                        abbreviate_paths(&mut config);
                    }
                    text.push_str(&without_defaults(&format!("{config:#?}")));
                }
                Err(error) => writeln!(text, "\nno container {}: {error}", container.name).unwrap(),
            }
        }
        text
    }

    fn container_config(
        &self,
        container: &k8s_openapi::api::core::v1::Container,
        paths: &NodePaths,
    ) -> Result<v1::ContainerConfig, String> {
        let mut allocatable = ResourceAmounts::default();
        allocatable.set("cpu", Quantity::from_units(8));
        let facts = EnvironmentFacts {
            pod_ips: &["10.0.0.7".to_owned(), "fd00::7".to_owned()],
            host_ips: &["192.0.2.1".to_owned()],
            node_name: "node-1",
            allocatable: &allocatable,
            objects: self.objects.as_ref(),
            files: &EnvironmentFiles::default(),
        };
        let environment =
            compute_environment(&self.pod, container, &facts).map_err(|error| error.to_string())?;
        let mut mounts = Vec::new();
        for mount in container.volume_mounts.iter().flatten().filter(|_| self.volume_mounts_ready) {
            let volume = PathBuf::from("/volumes").join(&mount.name);
            let mut prepared = prepare_mount(mount, container, &volume, false, true)
                .map_err(|error| error.to_string())?;
            if let Some(image) = self.image_volumes.get(&mount.name) {
                prepared.host_path = String::new();
                prepared.image = Some(ImageMount {
                    user_specified_image: image.clone(),
                    image_ref: format!("sha256:{image}"),
                    sub_path: mount.sub_path.clone().unwrap_or_default(),
                });
            }
            mounts.push(PreparedMount { selinux_relabel: true, ..prepared });
        }
        compute_container_config(
            ContainerInputs {
                pod: &self.pod,
                container,
                restart_count: 3,
                image_ref: "sha256:1234",
                image_user: &self.image_user,
                target: self.target.as_ref(),
                environment: &environment,
                mounts: &mounts,
                allocation: &self.allocation,
                extra_groups: &self.extra_groups,
                user_namespace: self.user_namespace.as_ref(),
                resources: LinuxResources {
                    cpu_shares: 256,
                    cpu_quota: 50_000,
                    cpu_period: 100_000,
                    memory_limit: 64 << 20,
                    oom_score_adj: 999,
                    hugepage_limits: vec![HugepageLimit { page_size: "2MB".to_owned(), limit: 0 }],
                    ..LinuxResources::default()
                },
                seccomp_default: self.seccomp_default,
                node_masked_paths: &["/sys/devices/system/cpu/cpu0/thermal_throttle".to_owned()],
                selinux_enabled: true,
            },
            paths,
        )
        .map_err(|error| error.to_string())
    }
}

/// One case shows the usual masked and read-only paths whole; elsewhere they only take room.
fn abbreviate_paths(config: &mut v1::ContainerConfig) {
    let security = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    for paths in security.into_iter().flat_map(|it| [&mut it.masked_paths, &mut it.readonly_paths])
    {
        if !paths.is_empty() {
            *paths = vec![format!("{} paths", paths.len())];
        }
    }
}

/// Leaves out lines of fields with default values.
fn without_defaults(debug: &str) -> String {
    let is_default = |line: &str| {
        line.split_once(": ").is_some_and(|(field, value)| {
            !field.contains('"')
                && matches!(value, "None," | "[]," | "{}," | "\"\"," | "false," | "0,")
        })
    };
    debug.lines().filter(|line| !is_default(line)).map(|line| format!("{line}\n")).collect()
}

fn cases() -> Vec<Case> {
    let users = IdMapping { host_id: 131_072, container_id: 0, length: 65_536 };
    vec![
        case(
            "plain",
            serde_json::json!({
                "metadata": {"labels": {"app": "web"},
                    "annotations": {"kubernetes.io/config.source": "api"}},
                "spec": {"securityContext": {}, "dnsPolicy": "ClusterFirst",
                    "terminationGracePeriodSeconds": 30,
                    "containers": [{"name": "c", "image": "nginx:1",
                        "terminationMessagePath": "/dev/termination-log",
                        "terminationMessagePolicy": "File"}]}
            }),
        ),
        case(
            "bare-static",
            serde_json::json!({
                "metadata": {"annotations": {"kubernetes.io/config.source": "file"}},
                "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "etcd:3"}]}
            }),
        ),
        case(
            "of-the-node",
            serde_json::json!({
                "spec": {"hostNetwork": true, "hostPID": true, "hostIPC": true, "securityContext": {},
                    "dnsPolicy": "ClusterFirstWithHostNet",
                    "containers": [{"name": "agent", "image": "agent:1",
                        "securityContext": {"privileged": true, "procMount": "Unmasked"},
                        "volumeMounts": [
                            {"name": "host", "mountPath": "/host",
                             "mountPropagation": "Bidirectional"},
                            {"name": "logs", "mountPath": "/logs", "readOnly": true,
                             "mountPropagation": "HostToContainer"}]}]}
            }),
        ),
        case(
            "ports",
            serde_json::json!({
                "spec": {"securityContext": {}, "dnsPolicy": "ClusterFirst",
                    "initContainers": [
                        {"name": "setup", "image": "busybox:1", "ports": [{"containerPort": 1}]},
                        {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always",
                         "ports": [{"containerPort": 2, "hostPort": 2}]}],
                    "containers": [
                        {"name": "a", "image": "web:1", "ports": [
                            {"name": "http", "containerPort": 80, "hostPort": 8080},
                            {"name": "http", "containerPort": 81},
                            {"containerPort": 53, "protocol": "UDP"},
                            {"containerPort": 53, "protocol": "UDP"},
                            {"containerPort": 53, "protocol": "UDP", "hostIP": "::1"},
                            {"containerPort": 9, "protocol": "SCTP", "hostIP": "192.0.2.1",
                             "hostPort": 9}]},
                        {"name": "b", "image": "web:1",
                         "ports": [{"name": "http", "containerPort": 82}]}]}
            }),
        ),
        Case {
            image_user: ImageUser::Name("app".to_owned()),
            extra_groups: vec![4000],
            seccomp_default: true,
            ..case(
                "hardened",
                serde_json::json!({
                    "metadata": {"annotations":
                        {"container.apparmor.security.beta.kubernetes.io/b": "localhost/old"}},
                    "spec": {"dnsPolicy": "ClusterFirst",
                        "securityContext": {"runAsGroup": 3000, "fsGroup": 2000,
                            "supplementalGroups": [5000], "supplementalGroupsPolicy": "Strict",
                            "seLinuxOptions": {"level": "s0:c1,c2"},
                            "appArmorProfile": {"type": "RuntimeDefault"},
                            "sysctls": [{"name": "net/ipv4/tcp_syncookies", "value": "1"},
                                {"name": "kernel.shm_rmid_forced", "value": "0"}]},
                        "containers": [
                            {"name": "a", "image": "app:1", "securityContext": {
                                "runAsUser": 1000, "readOnlyRootFilesystem": true,
                                "allowPrivilegeEscalation": false,
                                "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]},
                                "seccompProfile": {"type": "Localhost",
                                    "localhostProfile": "profiles/app.json"}}},
                            {"name": "b", "image": "app:1"}]}
                }),
            )
        },
        Case {
            objects: Some(ApiObjects {
                config_maps: [(
                    "settings".to_owned(),
                    Fetched::Found(
                        serde_json::from_value(
                            serde_json::json!({"data": {"LEVEL": "debug", "MODE": "a"}}),
                        )
                        .unwrap(),
                    ),
                )]
                .into(),
                services: Some(
                    serde_json::from_value(serde_json::json!([
                        {"metadata": {"name": "kubernetes", "namespace": "default"},
                         "spec": {"clusterIP": "10.96.0.1",
                            "ports": [{"name": "https", "port": 443}]}}
                    ]))
                    .unwrap(),
                ),
                ..ApiObjects::default()
            }),
            ..case(
                "environment",
                serde_json::json!({
                    "spec": {"securityContext": {}, "dnsPolicy": "Default", "enableServiceLinks": true,
                        "serviceAccountName": "robot",
                        "containers": [{"name": "c", "image": "app:1",
                            "command": ["$(BIN)", "--host=$(KUBERNETES_SERVICE_HOST)"],
                            "args": ["$(MISSING)", "$$(BIN)", "$(CFG_LEVEL)"],
                            "workingDir": "/srv",
                            "envFrom": [{"prefix": "CFG_", "configMapRef": {"name": "settings"}}],
                            "env": [
                                {"name": "BIN", "value": "/bin/app"},
                                {"name": "CFG_MODE", "value": "b-$(CFG_LEVEL)"},
                                {"name": "IPS", "valueFrom":
                                    {"fieldRef": {"fieldPath": "status.podIPs"}}},
                                {"name": "CORES", "valueFrom":
                                    {"resourceFieldRef": {"resource": "limits.cpu"}}}],
                            "resources": {"limits": {"cpu": "1500m"}}}]}
                }),
            )
        },
        case(
            "named",
            serde_json::json!({
                "spec": {"securityContext": {}, "hostname": "db-0", "subdomain": "db",
                    "setHostnameAsFQDN": true, "dnsPolicy": "None",
                    "dnsConfig": {"nameservers": ["9.9.9.9", "1.1.1.1", "8.8.8.8", "8.8.4.4"],
                        "searches": ["a.example"], "options": [{"name": "ndots", "value": "1"}]},
                    "containers": [{"name": "c", "image": "db:1"}]}
            }),
        ),
        Case {
            user_namespace: Some(UserNamespace { uids: vec![users], gids: vec![users] }),
            image_volumes: [("model".to_owned(), "model:7".to_owned())].into(),
            ..case(
                "own-users",
                serde_json::json!({
                    "spec": {"securityContext": {}, "hostUsers": false, "dnsPolicy": "ClusterFirst",
                        "containers": [{"name": "c", "image": "app:1", "volumeMounts": [
                            {"name": "config", "mountPath": "/config", "readOnly": true,
                             "recursiveReadOnly": "Enabled"},
                            {"name": "model", "mountPath": "/model", "readOnly": true,
                             "subPath": "weights"}]}]}
                }),
            )
        },
        case(
            "own-users-without-ids",
            serde_json::json!({
                "spec": {"securityContext": {}, "hostUsers": false, "dnsPolicy": "ClusterFirst",
                    "containers": [{"name": "c", "image": "app:1"}]}
            }),
        ),
        Case {
            target: Some(ContainerId::new("4f53")),
            ..case(
                "debugged",
                serde_json::json!({
                    "spec": {"securityContext": {"runAsUser": 7}, "dnsPolicy": "ClusterFirst",
                        "containers": [{"name": "c", "image": "app:1", "stdin": true,
                            "stdinOnce": true, "tty": true}],
                        "ephemeralContainers": [{"name": "debug", "image": "busybox:1",
                            "targetContainerName": "c"}]}
                }),
            )
        },
        case(
            "deleted-with-hooks",
            serde_json::json!({
                "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z",
                    "deletionGracePeriodSeconds": 12},
                "spec": {"securityContext": {}, "shareProcessNamespace": true,
                    "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 60,
                    "containers": [{"name": "c", "image": "app:1",
                        "terminationMessagePath": "/tmp/end",
                        "terminationMessagePolicy": "FallbackToLogsOnError",
                        "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP"}],
                        "lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": "http",
                            "scheme": "HTTP"}}}}]}
            }),
        ),
        Case {
            allocation: ContainerAllocation {
                devices: vec![Device {
                    host_path: "/dev/gpu0".to_owned(),
                    container_path: "/dev/gpu".to_owned(),
                    permissions: "mrw".to_owned(),
                }],
                cdi_devices: vec!["vendor.example/gpu=0".to_owned()],
                annotations: [
                    ("vendor.example/gpu".to_owned(), "0".to_owned()),
                    ("io.kubernetes.container.hash".to_owned(), "forged".to_owned()),
                ]
                .into(),
                environment: vec![
                    ("GPU".to_owned(), "0".to_owned()),
                    ("MODE".to_owned(), "device".to_owned()),
                ],
                mounts: vec![PreparedMount {
                    host_path: "/opt/driver".to_owned(),
                    container_path: "/driver".to_owned(),
                    read_only: true,
                    ..PreparedMount::default()
                }],
                cpuset_cpus: "2-3".to_owned(),
                cpuset_mems: "0".to_owned(),
            },
            ..case(
                "with-devices",
                serde_json::json!({
                    "spec": {"securityContext": {}, "dnsPolicy": "ClusterFirst",
                        "hostnameOverride": "gpu.example",
                        "containers": [{"name": "c", "image": "train:1",
                            "args": ["--gpu=$(GPU)"],
                            "env": [{"name": "MODE", "value": "spec"}],
                            "volumeMounts": [{"name": "data", "mountPath": "data"}]}]}
                }),
            )
        },
    ]
}

#[test]
fn configurations_are_as_written() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let update = std::env::var_os("UPDATE_CASES").is_some();
    let mut wrong = String::new();
    for case in cases() {
        let name = case.pod.metadata.name.clone().unwrap();
        let file = dir.join(format!("{name}.txt"));
        let found = case.render();
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        if found == expected {
            continue;
        }
        if update {
            std::fs::write(&file, &found).unwrap();
        } else {
            let differing = found.lines().zip(expected.lines()).find(|(new, old)| new != old);
            writeln!(wrong, "{name}: first difference {differing:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn every_text_belongs_to_a_case() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let mut names: Vec<String> = cases()
        .iter()
        .map(|case| format!("{}.txt", case.pod.metadata.name.clone().unwrap()))
        .collect();
    names.sort();
    assert_eq!(files, names);
}
