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
            termination_message_path: Some(found.annotations.termination_message_path.clone()),
            lifecycle: found
                .annotations
                .pre_stop_handler
                .as_ref()
                .and_then(parse_hook)
                .map(|hook| Lifecycle { pre_stop: Some(hook), ..Lifecycle::default() }),
            ..Container::default()
        });
    }
    let annotations = || snapshot.containers.iter().map(|found| &found.annotations);
    Pod {
        metadata: ObjectMeta {
            name: Some(snapshot.pod.name.to_string()),
            namespace: Some(snapshot.pod.namespace.to_string()),
            uid: Some(snapshot.pod.uid.to_string()),
            deletion_grace_period_seconds: annotations()
                .find_map(|found| found.deletion_grace_seconds),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers,
            termination_grace_period_seconds: annotations()
                .find_map(|found| found.termination_grace_seconds),
            host_network: Some(snapshot.sandboxes.first().is_some_and(|s| s.host_network)),
            ..PodSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rubelet_cri::{observe, v1};
    use rubelet_types::{NodePaths, PodRef};

    use super::*;
    use crate::container_config::{ContainerAllocation, ContainerInputs, ImageUser};

    /// A container as the runtime shows one that was made for `pod`.
    fn seen(pod: &Pod) -> PodSnapshot {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let config = crate::compute_container_config(
            ContainerInputs {
                pod,
                container,
                restart_count: 3,
                image_ref: "sha256:1",
                image_user: &ImageUser::Unset,
                target: None,
                environment: &[],
                mounts: &[],
                allocation: &ContainerAllocation::default(),
                extra_groups: &[],
                user_namespace: None,
                resources: rubelet_node_resources::LinuxResources::default(),
                seccomp_default: false,
                node_masked_paths: &[],
                selinux_enabled: false,
            },
            &NodePaths::new("/root", "/logs", "/links"),
        )
        .unwrap();
        let status = v1::ContainerStatus {
            id: "1".to_owned(),
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        let reference = PodRef::new("u", "ns", "web");
        PodSnapshot {
            containers: vec![observe::container_snapshot(&status, None)],
            ..PodSnapshot::empty(reference, Timestamp::UNIX_EPOCH)
        }
    }

    #[test]
    fn what_stopping_needs_survives_the_loss_of_the_spec() {
        let container = serde_json::json!({
            "name": "c", "image": "busybox:1",
            "ports": [{"name": "web", "containerPort": 8080}],
            "terminationMessagePath": "/dev/termination-log",
            "lifecycle": {"preStop": {"httpGet": {"path": "/bye", "port": "web"}}}
        });
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u",
                "deletionGracePeriodSeconds": 7},
            "spec": {"terminationGracePeriodSeconds": 40, "containers": [container]}
        }))
        .unwrap();
        let snapshot = seen(&pod);
        let found = orphan_pod(&snapshot);
        assert_eq!(found.metadata.deletion_grace_period_seconds, Some(7));
        let (spec, original) = (found.spec.unwrap(), pod.spec.unwrap());
        assert_eq!(spec.termination_grace_period_seconds, Some(40));
        let (container, original) = (&spec.containers[0], &original.containers[0]);
        assert_eq!(container.ports, original.ports);
        assert_eq!(container.lifecycle, original.lifecycle);
        assert_eq!(container.termination_message_path, original.termination_message_path);
        assert_eq!(snapshot.containers[0].restart_count, 3);
    }

    #[test]
    fn annotations_of_another_kubelet_that_are_no_json_are_left_out() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c"}]}
        }))
        .unwrap();
        let mut snapshot = seen(&pod);
        snapshot.containers[0].annotations.pre_stop_handler = Some("{".to_owned());
        snapshot.containers[0].annotations.ports = Some("7".to_owned());
        let found = orphan_pod(&snapshot).spec.unwrap();
        assert_eq!(found.containers[0].lifecycle, None);
        assert_eq!(found.containers[0].ports, None);
    }
}
