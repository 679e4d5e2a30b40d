//! Questions about a pod's spec that several subsystems ask.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use serde::Serialize;

use crate::{PodRef, labels};

/// Quality of service class of a pod (upstream documentation "Pod Quality of Service Classes").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum QosClass {
    /// Every container has equal requests and limits for CPU and memory.
    Guaranteed,
    /// Some container asks for something.
    Burstable,
    /// Nobody asks for anything.
    BestEffort,
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        })
    }
}

/// When an ended container is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum RestartPolicy {
    /// Always.
    Always,
    /// When it failed.
    OnFailure,
    /// Never.
    Never,
}

impl RestartPolicy {
    /// Reads the API's value; the API's default, and so anything else, is `Always`.
    pub fn parse(value: Option<&str>) -> Self {
        match value {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum ContainerKind {
    /// Runs to completion before the next one.
    Init,
    /// An init container with `restartPolicy: Always`: started in order, then runs beside the pod.
    Sidecar,
    /// One of `spec.containers`.
    Regular,
    /// Added to a running pod for debugging.
    Ephemeral,
}

/// One container of a pod with its role.
#[derive(Clone, Debug)]
pub struct ContainerSpec<'a> {
    /// Its role.
    pub kind: ContainerKind,
    /// Its spec; of an ephemeral container, the part it shares with all containers.
    pub container: Cow<'a, Container>,
    /// `targetContainerName` of an ephemeral container.
    pub target: Option<&'a str>,
}

impl ContainerSpec<'_> {
    /// `spec.containers{name}` and so on, as events name a container.
    pub fn field_path(&self) -> String {
        let list = match self.kind {
            ContainerKind::Init | ContainerKind::Sidecar => "initContainers",
            ContainerKind::Regular => "containers",
            ContainerKind::Ephemeral => "ephemeralContainers",
        };
        format!("spec.{list}{{{}}}", self.container.name)
    }
}

/// All containers of `pod` in the order init (sidecars among them), regular, ephemeral.
pub fn containers(pod: &Pod) -> impl Iterator<Item = ContainerSpec<'_>> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
    let regular = spec.map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let ephemeral = spec.and_then(|spec| spec.ephemeral_containers.as_deref()).unwrap_or_default();
    init.iter()
        .map(|container| ContainerSpec {
            kind: if container.restart_policy.as_deref() == Some("Always") {
                ContainerKind::Sidecar
            } else {
                ContainerKind::Init
            },
            container: Cow::Borrowed(container),
            target: None,
        })
        .chain(regular.iter().map(|container| ContainerSpec {
            kind: ContainerKind::Regular,
            container: Cow::Borrowed(container),
            target: None,
        }))
        .chain(ephemeral.iter().map(|container| ContainerSpec {
            kind: ContainerKind::Ephemeral,
            container: Cow::Owned(ephemeral_as_container(container)),
            target: container.target_container_name.as_deref(),
        }))
}

/// The container `name` of `pod`.
pub fn find_container<'a>(pod: &'a Pod, name: &str) -> Option<ContainerSpec<'a>> {
    containers(pod).find(|spec| spec.container.name == name)
}

fn ephemeral_as_container(ephemeral: &EphemeralContainer) -> Container {
    let EphemeralContainer {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        target_container_name: _,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    } = ephemeral.clone();
    Container {
        args,
        command,
        env,
        env_from,
        image,
        image_pull_policy,
        lifecycle,
        liveness_probe,
        name,
        ports,
        readiness_probe,
        resize_policy,
        resources,
        restart_policy,
        restart_policy_rules,
        security_context,
        startup_probe,
        stdin,
        stdin_once,
        termination_message_path,
        termination_message_policy,
        tty,
        volume_devices,
        volume_mounts,
        working_dir,
    }
}

/// Uid, namespace and name of `pod`; missing parts are empty.
pub fn pod_ref(pod: &Pod) -> PodRef {
    PodRef::new(
        pod.metadata.uid.as_deref().unwrap_or_default(),
        pod.metadata.namespace.as_deref().unwrap_or_default(),
        pod.metadata.name.as_deref().unwrap_or_default(),
    )
}

/// The annotation `key` of `pod`.
pub fn pod_annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The source annotation: `file`, `http` or `api`.
pub fn config_source(pod: &Pod) -> Option<&str> {
    pod_annotation(pod, labels::CONFIG_SOURCE)
}

/// The pod came from a file or a URL, not from the API server.
pub fn is_static_pod(pod: &Pod) -> bool {
    config_source(pod).is_some_and(|source| source != "api")
}

/// The pod is the API server's picture of a static pod.
pub fn is_mirror_pod(pod: &Pod) -> bool {
    pod_annotation(pod, labels::CONFIG_MIRROR).is_some()
}

/// The pod is never preempted or evicted by the kubelet and passes pressure admission: static and
/// mirror pods, and those of a system-critical priority (>= 2000000000).
pub fn is_critical_pod(pod: &Pod) -> bool {
    is_static_pod(pod)
        || is_mirror_pod(pod)
        || pod.spec.as_ref().and_then(|spec| spec.priority).is_some_and(|p| p >= 2_000_000_000)
}

/// `spec.hostNetwork`.
pub fn is_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false)
}

/// `spec.restartPolicy`.
pub fn pod_restart_policy(pod: &Pod) -> RestartPolicy {
    RestartPolicy::parse(pod.spec.as_ref().and_then(|spec| spec.restart_policy.as_deref()))
}

/// The phase in the pod's own status is Succeeded or Failed.
pub fn is_terminal_phase(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Grace for stopping the pod: `metadata.deletionGracePeriodSeconds` when it is being deleted, else
/// `spec.terminationGracePeriodSeconds`, else 30; never below 1, also for negative values.
pub fn termination_grace_seconds(pod: &Pod) -> i64 {
    let deletion =
        pod.metadata.deletion_timestamp.as_ref().and(pod.metadata.deletion_grace_period_seconds);
    deletion
        .or(pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds))
        .unwrap_or(30)
        .max(1)
}
