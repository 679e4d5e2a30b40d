use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_cri::v1;
use rubelet_node_resources::LinuxResources;
use rubelet_types::{ContainerId, NodePaths, container_hash, expand, labels, pod_ref};

use crate::sandbox_config::pod_labels;
use crate::security::{SecurityError, SecurityInputs, compute_container_security};

/// The user an image runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    /// It says nothing: root.
    Unset,
    /// A number.
    Uid(i64),
    /// A name that the image's own files resolve.
    Name(String),
}

/// A mount of a container whose source is ready on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedMount {
    /// Where it is on the node.
    pub host_path: String,
    /// Where the container sees it.
    pub container_path: String,
    /// It cannot be written through.
    pub read_only: bool,
    /// Mounts beneath it cannot either.
    pub recursive_read_only: bool,
    /// `mountPropagation`.
    pub propagation: v1::MountPropagation,
    /// The runtime relabels it for SELinux.
    pub selinux_relabel: bool,
}

/// What a container depends on beside its spec.
#[derive(Debug)]
pub struct ContainerInputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// How often it was restarted before.
    pub restart_count: u32,
    /// The image's reference in the runtime.
    pub image_ref: &'a str,
    /// The user the image runs as.
    pub image_user: &'a ImageUser,
    /// The container whose process namespace an ephemeral container joins.
    pub target: Option<&'a ContainerId>,
    /// Its environment, in order.
    pub environment: &'a [(String, String)],
    /// Its mounts.
    pub mounts: &'a [PreparedMount],
    /// Its resources.
    pub resources: LinuxResources,
    /// `seccompDefault`.
    pub seccomp_default: bool,
    /// Paths of this node that containers must not see.
    pub node_masked_paths: &'a [String],
}

/// The runtime's configuration of a container.
///
/// # Errors
///
/// A security setting cannot be carried out.
pub fn compute_container_config(
    inputs: ContainerInputs<'_>,
    paths: &NodePaths,
) -> Result<v1::ContainerConfig, SecurityError> {
    let (pod, container) = (inputs.pod, inputs.container);
    let security = compute_container_security(&SecurityInputs {
        pod,
        container,
        image: inputs.image_user,
        target: inputs.target,
        seccomp_default: inputs.seccomp_default,
        paths,
        node_masked_paths: inputs.node_masked_paths,
    })?;
    let expanded = |values: &Option<Vec<String>>| {
        let lookup = |name: &str| {
            inputs.environment.iter().rev().find(|(key, _)| key == name).map(|(_, v)| v.clone())
        };
        values.iter().flatten().map(|value| expand(value, lookup)).collect::<Vec<_>>()
    };
    let mut all_labels = pod_labels(&pod_ref(pod));
    all_labels.insert(labels::CONTAINER_NAME.to_owned(), container.name.clone());
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: inputs.restart_count,
        }),
        image: Some(v1::ImageSpec {
            image: inputs.image_ref.to_owned(),
            user_specified_image: container.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expanded(&container.command),
        args: expanded(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: inputs
            .environment
            .iter()
            .map(|(key, value)| v1::KeyValue {
                key: key.clone(),
                value: value.clone().into_bytes(),
            })
            .collect(),
        mounts: inputs.mounts.iter().map(mount).collect(),
        devices: Vec::new(),
        labels: all_labels.into_iter().collect(),
        annotations: annotations(pod, container, inputs.restart_count).into_iter().collect(),
        log_path: format!("{}/{}.log", container.name, inputs.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(linux_resources(inputs.resources)),
            security_context: Some(security),
        }),
        windows: None,
        cdi_devices: Vec::new(),
        stop_signal: 0,
    })
}

fn mount(mount: &PreparedMount) -> v1::Mount {
    v1::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: mount.read_only,
        recursive_read_only: mount.recursive_read_only,
        selinux_relabel: mount.selinux_relabel,
        propagation: i32::from(mount.propagation),
        ..Default::default()
    }
}

/// What a kubelet has to know of the container when the pod's spec is gone.
fn annotations(pod: &Pod, container: &Container, restart_count: u32) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut put = |key: &str, value: String| {
        found.insert(key.to_owned(), value);
    };
    let image = container.image.as_deref().unwrap_or_default();
    put(labels::CONTAINER_HASH, container_hash(&container.name, image));
    put(labels::CONTAINER_RESTART_COUNT, restart_count.to_string());
    put(
        labels::CONTAINER_TERMINATION_MESSAGE_PATH,
        container.termination_message_path.clone().unwrap_or_default(),
    );
    put(
        labels::CONTAINER_TERMINATION_MESSAGE_POLICY,
        container.termination_message_policy.clone().unwrap_or_default(),
    );
    if let Some(hook) = container.lifecycle.as_ref().and_then(|hooks| hooks.pre_stop.as_ref())
        && let Ok(json) = serde_json::to_string(hook)
    {
        put(labels::CONTAINER_PRE_STOP_HANDLER, json);
    }
    if let Some(ports) = container.ports.as_ref().filter(|ports| !ports.is_empty())
        && let Ok(json) = serde_json::to_string(ports)
    {
        put(labels::CONTAINER_PORTS, json);
    }
    if let Some(seconds) = pod.metadata.deletion_grace_period_seconds {
        put(labels::POD_DELETION_GRACE_PERIOD, seconds.to_string());
    }
    if let Some(seconds) = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds)
    {
        put(labels::POD_TERMINATION_GRACE_PERIOD, seconds.to_string());
    }
    found
}

pub(crate) fn linux_resources(resources: LinuxResources) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: resources.cpu_period,
        cpu_quota: resources.cpu_quota,
        cpu_shares: resources.cpu_shares,
        memory_limit_in_bytes: resources.memory_limit,
        memory_swap_limit_in_bytes: resources.memory_swap_limit,
        oom_score_adj: resources.oom_score_adj,
        hugepage_limits: resources
            .hugepage_limits
            .into_iter()
            .map(|limit| v1::HugepageLimit { page_size: limit.page_size, limit: limit.limit })
            .collect(),
        unified: resources.unified.into_iter().collect(),
        cpuset_cpus: String::new(),
        cpuset_mems: String::new(),
    }
}
