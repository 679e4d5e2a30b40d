//! The API's defaults of a pod, for pods that come from elsewhere than the API.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EmptyDirVolumeSource, EphemeralContainer, HTTPGetAction, Lifecycle,
    Pod, PodSpec, Probe, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use rubelet_types::{
    ContainerKind, Quantity, ResourceAmounts, container_limits, container_requests, containers,
    pod_requests,
};

type ResourceList = BTreeMap<String, ApiQuantity>;

const VOLUME_MODE: i32 = 0o644;
const TOKEN_EXPIRATION_SECONDS: i64 = 3600;

/// Sets every field that the API server would set before it validates a new pod. What is set stays
/// as it is, so doing it twice changes nothing.
pub fn apply_defaults(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    for volume in spec.volumes.iter_mut().flatten() {
        default_volume(volume);
    }
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        default_container(ContainerFields::of(container));
        default_requests_to_limits(container);
    }
    for container in spec.ephemeral_containers.iter_mut().flatten() {
        default_container(ContainerFields::of_ephemeral(container));
    }
    default_spec(spec);
    default_pod_level_resources(pod);
}

/// Go's zero value counts as absent.
fn default_text(field: &mut Option<String>, value: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(value.to_owned());
    }
}

fn default_number(field: &mut Option<i32>, value: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(value);
    }
}

fn default_spec(spec: &mut PodSpec) {
    default_text(&mut spec.dns_policy, "ClusterFirst");
    default_text(&mut spec.restart_policy, "Always");
    default_text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    spec.termination_grace_period_seconds.get_or_insert(30);
    spec.enable_service_links.get_or_insert(true);
    // The deprecated name of the same field.
    let account = [&spec.service_account_name, &spec.service_account]
        .into_iter()
        .flatten()
        .find(|name| !name.is_empty())
        .cloned();
    if account.is_some() {
        spec.service_account_name.clone_from(&account);
        spec.service_account = account;
    }
    if let Some(overhead) = spec.overhead.as_mut() {
        round_to_milli(overhead);
    }
    if spec.host_network == Some(true) {
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            for port in container.ports.iter_mut().flatten() {
                default_number(&mut port.host_port, port.container_port);
            }
        }
    }
}

/// The fields that regular, init and ephemeral containers have in common.
struct ContainerFields<'a> {
    image: &'a Option<String>,
    image_pull_policy: &'a mut Option<String>,
    termination_message_path: &'a mut Option<String>,
    termination_message_policy: &'a mut Option<String>,
    ports: &'a mut Option<Vec<ContainerPort>>,
    env: &'a mut Option<Vec<k8s_openapi::api::core::v1::EnvVar>>,
    probes: [&'a mut Option<Probe>; 3],
    lifecycle: &'a mut Option<Lifecycle>,
    resources: &'a mut Option<k8s_openapi::api::core::v1::ResourceRequirements>,
}

macro_rules! container_fields {
    ($container:expr) => {
        ContainerFields {
            image: &$container.image,
            image_pull_policy: &mut $container.image_pull_policy,
            termination_message_path: &mut $container.termination_message_path,
            termination_message_policy: &mut $container.termination_message_policy,
            ports: &mut $container.ports,
            env: &mut $container.env,
            probes: [
                &mut $container.liveness_probe,
                &mut $container.readiness_probe,
                &mut $container.startup_probe,
            ],
            lifecycle: &mut $container.lifecycle,
            resources: &mut $container.resources,
        }
    };
}

impl<'a> ContainerFields<'a> {
    fn of(container: &'a mut Container) -> Self {
        container_fields!(container)
    }

    fn of_ephemeral(container: &'a mut EphemeralContainer) -> Self {
        container_fields!(container)
    }
}

fn default_container(container: ContainerFields<'_>) {
    let image = container.image.as_deref().unwrap_or_default();
    default_text(container.image_pull_policy, default_pull_policy(image));
    default_text(container.termination_message_path, "/dev/termination-log");
    default_text(container.termination_message_policy, "File");
    for port in container.ports.iter_mut().flatten() {
        default_text(&mut port.protocol, "TCP");
    }
    for env in container.env.iter_mut().flatten() {
        let Some(source) = env.value_from.as_mut() else { continue };
        if let Some(field) = source.field_ref.as_mut() {
            default_text(&mut field.api_version, "v1");
        }
        if let Some(file) = source.file_key_ref.as_mut() {
            file.optional.get_or_insert(false);
        }
    }
    for probe in container.probes.into_iter().flatten() {
        default_number(&mut probe.timeout_seconds, 1);
        default_number(&mut probe.period_seconds, 10);
        default_number(&mut probe.success_threshold, 1);
        default_number(&mut probe.failure_threshold, 3);
        probe.http_get.as_mut().map(default_http_get);
        if let Some(grpc) = probe.grpc.as_mut() {
            grpc.service.get_or_insert_default();
        }
    }
    if let Some(lifecycle) = container.lifecycle.as_mut() {
        for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
            handler.http_get.as_mut().map(default_http_get);
        }
    }
    if let Some(resources) = container.resources.as_mut() {
        resources.limits.as_mut().map(round_to_milli);
        resources.requests.as_mut().map(round_to_milli);
    }
}

fn default_http_get(action: &mut HTTPGetAction) {
    default_text(&mut action.path, "/");
    default_text(&mut action.scheme, "HTTP");
}

/// `Always` for `:latest` and for no tag at all; a digest is as good as a fixed tag.
fn default_pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, None), |(n, d)| (n, Some(d)));
    // A colon before the last slash belongs to the registry's port.
    let last = name.rsplit('/').next().unwrap_or(name);
    match (last.split_once(':'), digest) {
        (Some((_, "latest")), _) => "Always",
        (Some(_), _) | (None, Some(_)) => "IfNotPresent",
        // An image that is no reference at all is refused elsewhere; Go finds no tag in it.
        (None, None) if image.is_empty() => "IfNotPresent",
        (None, None) => "Always",
    }
}

fn default_requests_to_limits(container: &mut Container) {
    let Some(resources) = container.resources.as_mut() else { return };
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// Amounts finer than a thousandth are rounded up, as the API does for compatibility.
fn round_to_milli(list: &mut ResourceList) {
    for value in list.values_mut() {
        let Ok(amount) = Quantity::try_from(&*value) else { continue };
        let milli = amount.milli_value();
        if milli != i64::MAX && Quantity::from_milli(milli) != amount {
            *value = Quantity::from_milli(milli).to_api();
        }
    }
}

/// KEP-2837: requests and limits of the whole pod follow from those of its containers where only a
/// part is given.
fn default_pod_level_resources(pod: &mut Pod) {
    let Some(resources) = pod.spec.as_ref().and_then(|spec| spec.resources.clone()) else { return };
    let mut limits = resources.limits.unwrap_or_default();
    let mut requests = resources.requests.unwrap_or_default();
    if limits.is_empty() && requests.is_empty() {
        return;
    }
    round_to_milli(&mut limits);
    round_to_milli(&mut requests);
    let container_limits = container_totals(pod, container_limits);
    for (name, amount) in container_limits.iter() {
        if is_huge_pages(name) && !requests.contains_key(name) {
            limits.entry(name.to_owned()).or_insert_with(|| amount.to_api());
        }
    }
    if !limits.is_empty() {
        let container_requests = container_totals(pod, container_requests);
        for (name, amount) in container_requests.iter() {
            if matches!(name, "cpu" | "memory") {
                requests.entry(name.to_owned()).or_insert_with(|| amount.to_api());
            }
        }
        for (name, limit) in &limits {
            if matches!(name.as_str(), "cpu" | "memory") || is_huge_pages(name) {
                requests.entry(name.clone()).or_insert_with(|| limit.clone());
            }
        }
    }
    if let Some(resources) = pod.spec.as_mut().and_then(|spec| spec.resources.as_mut()) {
        resources.limits = (!limits.is_empty()).then_some(limits);
        resources.requests = (!requests.is_empty()).then_some(requests);
    }
}

fn is_huge_pages(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// What the containers need at their hungriest moment, leaving out what the pod itself names.
pub(crate) fn container_totals(
    pod: &Pod,
    amounts: impl Fn(&Container) -> ResourceAmounts,
) -> ResourceAmounts {
    let to_list = |amounts: ResourceAmounts| -> ResourceList {
        amounts.iter().map(|(name, amount)| (name.to_owned(), amount.to_api())).collect()
    };
    // `pod_requests` knows how init containers and sidecars add up; it is asked about a pod whose
    // containers request what is to be added.
    let mut probe = Pod { spec: Some(PodSpec::default()), ..Pod::default() };
    let spec = probe.spec.get_or_insert_default();
    for of in containers(pod) {
        let bare = Container {
            name: of.container.name.clone(),
            restart_policy: of.container.restart_policy.clone(),
            resources: Some(k8s_openapi::api::core::v1::ResourceRequirements {
                requests: Some(to_list(amounts(&of.container))),
                ..Default::default()
            }),
            ..Container::default()
        };
        match of.kind {
            ContainerKind::Init | ContainerKind::Sidecar => {
                spec.init_containers.get_or_insert_default().push(bare);
            }
            ContainerKind::Regular => spec.containers.push(bare),
            ContainerKind::Ephemeral => {}
        }
    }
    pod_requests(&probe)
}

fn default_volume(volume: &mut Volume) {
    if has_no_source(volume) {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(it) = volume.host_path.as_mut() {
        it.type_.get_or_insert_default();
    }
    if let Some(it) = volume.secret.as_mut() {
        it.default_mode.get_or_insert(VOLUME_MODE);
    }
    if let Some(it) = volume.config_map.as_mut() {
        it.default_mode.get_or_insert(VOLUME_MODE);
    }
    if let Some(it) = volume.downward_api.as_mut() {
        it.default_mode.get_or_insert(VOLUME_MODE);
        for file in it.items.iter_mut().flatten() {
            if let Some(field) = file.field_ref.as_mut() {
                default_text(&mut field.api_version, "v1");
            }
        }
    }
    if let Some(it) = volume.projected.as_mut() {
        it.default_mode.get_or_insert(VOLUME_MODE);
        for source in it.sources.iter_mut().flatten() {
            if let Some(token) = source.service_account_token.as_mut() {
                token.expiration_seconds.get_or_insert(TOKEN_EXPIRATION_SECONDS);
            }
            let downward = source.downward_api.as_mut().and_then(|it| it.items.as_mut());
            for file in downward.into_iter().flatten() {
                if let Some(field) = file.field_ref.as_mut() {
                    default_text(&mut field.api_version, "v1");
                }
            }
        }
    }
    if let Some(it) = volume.image.as_mut() {
        let reference = it.reference.as_deref().unwrap_or_default();
        default_text(&mut it.pull_policy, default_pull_policy(reference));
    }
    if let Some(it) = volume.ephemeral.as_mut().and_then(|it| it.volume_claim_template.as_mut()) {
        it.spec.volume_mode.get_or_insert_with(|| "Filesystem".to_owned());
    }
    default_legacy_volume(volume);
}

/// Volume plugins of the time before CSI.
fn default_legacy_volume(volume: &mut Volume) {
    if let Some(it) = volume.iscsi.as_mut() {
        default_text(&mut it.iscsi_interface, "default");
    }
    if let Some(it) = volume.rbd.as_mut() {
        default_text(&mut it.pool, "rbd");
        default_text(&mut it.user, "admin");
        default_text(&mut it.keyring, "/etc/ceph/keyring");
    }
    if let Some(it) = volume.azure_disk.as_mut() {
        it.caching_mode.get_or_insert_with(|| "ReadWrite".to_owned());
        it.kind.get_or_insert_with(|| "Shared".to_owned());
        it.fs_type.get_or_insert_with(|| "ext4".to_owned());
        it.read_only.get_or_insert(false);
    }
    if let Some(it) = volume.scale_io.as_mut() {
        default_text(&mut it.storage_mode, "ThinProvisioned");
        default_text(&mut it.fs_type, "xfs");
    }
}

fn has_no_source(volume: &Volume) -> bool {
    *volume == Volume { name: volume.name.clone(), ..Volume::default() }
}

#[cfg(test)]
mod tests;
