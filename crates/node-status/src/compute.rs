//! From facts to the Node object.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_node_resources::{NodeReservations, compute_node_allocatable};
use rubelet_types::{Quantity, ResourceAmounts};

use crate::addresses::{check_node_ips, provided_node_ip};
use crate::conditions::{set_conditions, zero};
use crate::declared_features::supported_features;
use crate::{AddressError, NodeFacts, NodeSettings, choose_addresses};

/// Label: the node's hostname.
pub(crate) const HOSTNAME: &str = "kubernetes.io/hostname";
/// Label: the operating system.
pub(crate) const OS: &str = "kubernetes.io/os";
/// Label: the processor's architecture.
pub(crate) const ARCH: &str = "kubernetes.io/arch";
/// Label: the operating system, by its first name.
pub(crate) const BETA_OS: &str = "beta.kubernetes.io/os";
/// Label: the architecture, by its first name.
pub(crate) const BETA_ARCH: &str = "beta.kubernetes.io/arch";
/// Annotation: the control plane attaches and detaches volumes.
pub(crate) const CONTROLLER_ATTACH_DETACH: &str =
    "volumes.kubernetes.io/controller-managed-attach-detach";
/// Annotation: the addresses of `--node-ip`, for an external cloud provider.
const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";
/// Taint: the cloud provider has yet to initialise the node.
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The operating system, as Go names it.
pub(crate) const LINUX: &str = "linux";
/// How many names of an image are reported.
const NAMES_OF_AN_IMAGE: usize = 5;

/// A Node as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct ComputedNode {
    /// The Node.
    pub node: Node,
    /// Why its addresses were left as they were; the Node is good for the rest.
    pub address_error: Option<AddressError>,
}

/// The Node to create: with the labels, taints and annotations that only creation gives it.
pub fn build_initial_node(
    settings: &NodeSettings,
    facts: &NodeFacts,
    now: Timestamp,
) -> ComputedNode {
    compute_node(&node_without_status(settings), settings, facts, now)
}

/// The Node to create, as far as configuration says what it is.
pub fn node_without_status(settings: &NodeSettings) -> Node {
    let mut labels: BTreeMap<String, String> = [
        (HOSTNAME, settings.name.as_str()),
        (OS, LINUX),
        (ARCH, &settings.architecture),
        (BETA_OS, LINUX),
        (BETA_ARCH, &settings.architecture),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    labels.extend(settings.labels.clone());
    let mut taints = settings.taints.clone();
    if settings.external_cloud_provider {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let annotations = settings
        .controller_attach_detach
        .then(|| [(CONTROLLER_ATTACH_DETACH.to_owned(), "true".to_owned())].into());
    Node {
        metadata: ObjectMeta {
            name: Some(settings.name.clone()),
            labels: Some(labels),
            annotations,
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            provider_id: settings.provider_id.clone(),
            taints: (!taints.is_empty()).then_some(taints),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// The Node as it should be now, from the Node as it is: its status, the labels for operating system
/// and architecture, and the annotation for the cloud provider. Everything else is not ours to change.
pub fn compute_node(
    previous: &Node,
    settings: &NodeSettings,
    facts: &NodeFacts,
    now: Timestamp,
) -> ComputedNode {
    let mut node = previous.clone();
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in [(OS, LINUX), (ARCH, settings.architecture.as_str())] {
        if labels.get(key).is_none_or(|label| label != value) {
            labels.insert(key.to_owned(), value.to_owned());
        }
    }
    if check_node_ips(settings, &facts.addresses).is_ok() {
        match (provided_node_ip(settings), &mut node.metadata.annotations) {
            (Some(addresses), annotations) => {
                annotations.get_or_insert_default().insert(PROVIDED_NODE_IP.to_owned(), addresses);
            }
            (None, Some(annotations)) => {
                annotations.remove(PROVIDED_NODE_IP);
            }
            (None, None) => {}
        }
    }
    let reported = previous.status.clone().unwrap_or_default();
    let (status, address_error) = compute_node_status(&reported, settings, facts, now);
    node.status = Some(status);
    ComputedNode { node, address_error }
}

/// The status as it should be now, from the status that is reported, field by field in upstream's
/// order. Times are cut to whole seconds, which is what the API keeps.
pub fn compute_node_status(
    previous: &NodeStatus,
    settings: &NodeSettings,
    facts: &NodeFacts,
    now: Timestamp,
) -> (NodeStatus, Option<AddressError>) {
    let mut status = previous.clone();
    let current = status.addresses.as_deref().unwrap_or_default();
    let address_error = match choose_addresses(settings, current, &facts.addresses) {
        Ok(Some(addresses)) => {
            status.addresses = Some(addresses);
            None
        }
        Ok(None) => None,
        Err(error) => Some(error),
    };
    set_resources(&mut status, settings, facts);
    set_node_info(&mut status, settings, facts);
    status.daemon_endpoints = Some(NodeDaemonEndpoints {
        kubelet_endpoint: Some(DaemonEndpoint { port: settings.port }),
    });
    status.images = some_list(reported_images(settings, facts));
    set_runtime(&mut status, facts);
    let whole_second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    set_conditions(&mut status, settings, &facts.conditions, whole_second);
    if let Some(volumes) = &facts.volumes_in_use {
        status.volumes_in_use = some_list(volumes.clone());
    }
    if let Some(declared) = &settings.declared_features {
        let supported = supported_features(declared, facts.runtime.user_namespaces_host_network);
        status.declared_features = some_list(supported);
    }
    (status, address_error)
}

fn some_list<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Capacity and allocatable. What others advertise on the node stays.
fn set_resources(status: &mut NodeStatus, settings: &NodeSettings, facts: &NodeFacts) {
    let capacity = status.capacity.get_or_insert_default();
    for (name, amount) in facts.capacity.iter() {
        if name != "ephemeral-storage" || settings.local_storage_capacity_isolation {
            capacity.insert(name.to_owned(), amount.to_api());
        }
    }
    let count = |count: i64| Quantity::from_units(count).to_api();
    let devices = &facts.devices;
    capacity.extend(devices.capacity.iter().map(|(name, amount)| (name.clone(), count(*amount))));
    capacity.extend(devices.removed.iter().map(|name| (name.clone(), zero())));

    let reservations =
        NodeReservations { system: facts.reservation.clone(), ..NodeReservations::default() };
    let left = compute_node_allocatable(&ResourceAmounts::from_api(Some(capacity)), &reservations);
    let allocatable = status.allocatable.get_or_insert_default();
    allocatable.retain(|name, _| capacity.contains_key(name) || !is_extended_resource(name));
    allocatable.extend(left.iter().map(|(name, amount)| (name.to_owned(), amount.to_api())));
    let healthy = devices.allocatable.iter();
    allocatable.extend(healthy.map(|(name, amount)| (name.clone(), count(*amount))));
}

/// A resource of somebody else's domain, such as `example.com/gpu`.
pub(crate) fn is_extended_resource(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

fn set_node_info(status: &mut NodeStatus, settings: &NodeSettings, facts: &NodeFacts) {
    let (machine, runtime) = (&facts.machine, &facts.runtime);
    let info = status.node_info.get_or_insert_default();
    info.machine_id.clone_from(&machine.machine_id);
    info.system_uuid.clone_from(&machine.system_uuid);
    info.boot_id.clone_from(&machine.boot_id);
    info.swap =
        (machine.swap_bytes != 0).then_some(NodeSwapStatus { capacity: Some(machine.swap_bytes) });
    info.kernel_version.clone_from(&machine.kernel_version);
    info.os_image.clone_from(&machine.os_image);
    let version = runtime.version.as_deref().map_or("Unknown".to_owned(), runtime_version);
    info.container_runtime_version = format!("{}://{version}", runtime.name);
    info.kubelet_version.clone_from(&settings.kubelet_version);
    info.kube_proxy_version = if settings.reports_kube_proxy_version {
        settings.kubelet_version.clone()
    } else {
        String::new()
    };
    LINUX.clone_into(&mut info.operating_system);
    info.architecture.clone_from(&settings.architecture);
}

/// A runtime's version as nodes show it: without a leading `v`, and without what follows the numbers
/// where that is not as semantic versioning has it.
fn runtime_version(told: &str) -> String {
    let text = told.trim();
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (numbers, extra) = text.split_at(end);
    let numbers = numbers.trim_end_matches('.');
    let parts: Vec<&str> = numbers.split('.').collect();
    let is_number = |part: &&str| {
        !part.is_empty() && (part.len() == 1 || !part.starts_with('0')) && part.len() < 20
    };
    if parts.len() < 2 || !parts.iter().all(is_number) {
        return "Unknown".to_owned();
    }
    let is_semantic = parts.len() == 3 && (extra.starts_with('-') || extra.starts_with('+'));
    if is_semantic { format!("{numbers}{extra}") } else { numbers.to_owned() }
}

fn reported_images(settings: &NodeSettings, facts: &NodeFacts) -> Vec<ContainerImage> {
    facts
        .images
        .iter()
        .take(settings.max_images.unwrap_or(usize::MAX))
        .map(|image| ContainerImage {
            names: some_list(image.names.iter().take(NAMES_OF_AN_IMAGE).cloned().collect()),
            size_bytes: Some(image.size),
        })
        .collect()
}

fn set_runtime(status: &mut NodeStatus, facts: &NodeFacts) {
    if let Some(handlers) = &facts.runtime.handlers {
        let mut handlers = handlers.clone();
        handlers.sort();
        status.runtime_handlers = some_list(
            handlers
                .into_iter()
                .map(|handler| NodeRuntimeHandler {
                    name: Some(handler.name),
                    features: Some(NodeRuntimeHandlerFeatures {
                        recursive_read_only_mounts: Some(handler.recursive_read_only_mounts),
                        user_namespaces: Some(handler.user_namespaces),
                    }),
                })
                .collect(),
        );
    }
    if let Some(keeps) = facts.runtime.supplemental_groups_policy {
        status.features = Some(NodeFeatures { supplemental_groups_policy: Some(keeps) });
    }
}

/// Amounts of an API list by name.
pub(crate) type ApiAmounts = BTreeMap<String, ApiQuantity>;
