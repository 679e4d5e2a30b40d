use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::{Container, Pod};
use rubelet_cri::v1;
use rubelet_node_resources::LinuxResources;
use rubelet_types::{
    ContainerId, NodePaths, UnsafePathElement, container_hash, expand, labels, pod_ref,
};

use crate::mounts::{PreparedMount, cri_mount};
use crate::sandbox_config::pod_labels;
use crate::security::{SecurityError, SecurityInputs, compute_container_security, has_own_users};
use crate::user_namespace::UserNamespace;

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

/// A device of the node in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Where it is on the node.
    pub host_path: String,
    /// Where the container sees it.
    pub container_path: String,
    /// What the container may do with it: of `r`, `w` and `m`.
    pub permissions: String,
}

/// What others give to a container: device plugins, DRA drivers, raw block volumes, the managers of
/// CPUs and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerAllocation {
    /// Devices.
    pub devices: Vec<Device>,
    /// Fully qualified names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Annotations; the kubelet's own win.
    pub annotations: BTreeMap<String, String>,
    /// Variables; the spec's win.
    pub environment: Vec<(String, String)>,
    /// Mounts that come with devices.
    pub mounts: Vec<PreparedMount>,
    /// Exclusive CPUs, as a list of ranges; empty for any.
    pub cpuset_cpus: String,
    /// Memory nodes, as a list of ranges; empty for any.
    pub cpuset_mems: String,
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
    /// Its mounts beside those that come with its allocation.
    pub mounts: &'a [PreparedMount],
    /// What others give to it.
    pub allocation: &'a ContainerAllocation,
    /// Groups that come with the pod's volumes.
    pub extra_groups: &'a [i64],
    /// The ids of a pod with `hostUsers: false`.
    pub user_namespace: Option<&'a UserNamespace>,
    /// Its resources.
    pub resources: LinuxResources,
    /// `seccompDefault`.
    pub seccomp_default: bool,
    /// Paths of this node that containers must not see.
    pub node_masked_paths: &'a [String],
    /// SELinux is on, so that relabelling means something.
    pub selinux_enabled: bool,
}

/// A container that cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerConfigError {
    /// Its name would lead its logs elsewhere.
    #[error("invalid container name")]
    Name(#[from] UnsafePathElement),
    /// Its security.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// The runtime's configuration of a container.
///
/// # Errors
///
/// Its name cannot be that of a directory, or a security setting cannot be carried out.
pub fn compute_container_config(
    inputs: ContainerInputs<'_>,
    paths: &NodePaths,
) -> Result<v1::ContainerConfig, ContainerConfigError> {
    let (pod, container) = (inputs.pod, inputs.container);
    NodePaths::check_element(&container.name)?;
    let security = compute_container_security(&SecurityInputs {
        pod,
        container,
        image: inputs.image_user,
        target: inputs.target,
        extra_groups: inputs.extra_groups,
        user_namespace: inputs.user_namespace,
        seccomp_default: inputs.seccomp_default,
        paths,
        node_masked_paths: inputs.node_masked_paths,
    })?;
    let user_namespace = inputs.user_namespace.filter(|_| has_own_users(pod));
    let environment = environment(inputs.allocation, inputs.environment);
    let expanded = |values: &Option<Vec<String>>| {
        let lookup = |name: &str| {
            environment.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
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
        envs: environment
            .iter()
            .map(|(key, value)| v1::KeyValue {
                key: (*key).to_owned(),
                value: value.as_bytes().to_vec(),
            })
            .collect(),
        mounts: inputs
            .allocation
            .mounts
            .iter()
            .chain(inputs.mounts)
            .map(|mount| cri_mount(mount, inputs.selinux_enabled, user_namespace))
            .collect(),
        devices: inputs
            .allocation
            .devices
            .iter()
            .map(|device| v1::Device {
                container_path: device.container_path.clone(),
                host_path: device.host_path.clone(),
                permissions: device.permissions.clone(),
            })
            .collect(),
        labels: all_labels.into_iter().collect(),
        annotations: annotations(&inputs),
        log_path: format!("{}/{}.log", container.name, inputs.restart_count),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources {
                cpuset_cpus: inputs.allocation.cpuset_cpus.clone(),
                cpuset_mems: inputs.allocation.cpuset_mems.clone(),
                ..linux_resources(inputs.resources)
            }),
            security_context: Some(security),
        }),
        windows: None,
        cdi_devices: inputs
            .allocation
            .cdi_devices
            .iter()
            .map(|name| v1::CdiDevice { name: name.clone() })
            .collect(),
        stop_signal: 0,
    })
}

fn environment<'a>(
    allocation: &'a ContainerAllocation,
    own: &'a [(String, String)],
) -> Vec<(&'a str, &'a str)> {
    let names: HashSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let given = allocation.environment.iter().filter(|(name, _)| !names.contains(name.as_str()));
    given.chain(own).map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// What a kubelet has to know of the container when the pod's spec is gone.
fn annotations(inputs: &ContainerInputs<'_>) -> BTreeMap<String, String> {
    let ContainerInputs { pod, container, restart_count, .. } = *inputs;
    let mut found = inputs.allocation.annotations.clone();
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
