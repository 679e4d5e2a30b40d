use k8s_openapi::api::core::v1::{
    Container, ContainerPort, Lifecycle, LifecycleHandler, Pod, PodSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rubelet_types::PodSnapshot;

/// What can be told of a pod's spec from the annotations of its containers, for pods that the
/// runtime holds and no source knows: enough to run preStop hooks and to stop them with grace.
pub fn orphan_pod(snapshot: &PodSnapshot) -> Pod {
    let mut containers: Vec<Container> = Vec::new();
    for found in &snapshot.containers {
        if containers.iter().any(|container| container.name == found.name) {
            continue;
        }
        let parse_hook = |json: &String| serde_json::from_str::<LifecycleHandler>(json).ok();
        let parse_ports = |json: &String| serde_json::from_str::<Vec<ContainerPort>>(json).ok();
        containers.push(Container {
            name: found.name.clone(),
            image: Some(found.image.clone()),
            ports: found.annotations.ports.as_ref().and_then(parse_ports),
            lifecycle: found
                .annotations
                .pre_stop_handler
                .as_ref()
                .and_then(parse_hook)
                .map(|hook| Lifecycle { pre_stop: Some(hook), ..Lifecycle::default() }),
            ..Container::default()
        });
    }
    let grace =
        snapshot.containers.iter().find_map(|found| found.annotations.termination_grace_seconds);
    Pod {
        metadata: ObjectMeta {
            name: Some(snapshot.pod.name.to_string()),
            namespace: Some(snapshot.pod.namespace.to_string()),
            uid: Some(snapshot.pod.uid.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers,
            termination_grace_period_seconds: grace,
            host_network: Some(snapshot.sandboxes.first().is_some_and(|s| s.host_network)),
            ..PodSpec::default()
        }),
        status: None,
    }
}
