//! Whether the pod's sandbox can be kept.

use k8s_openapi::api::core::v1::{Pod, Volume, VolumeProjection};
use rubelet_types::{
    PodSnapshot, RestartPolicy, SandboxSnapshot, SandboxState, is_host_network, pod_restart_policy,
};

/// What to do about the sandbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SandboxDecision<'a> {
    /// It is good.
    Keep(&'a SandboxSnapshot),
    /// A new one is needed, after everything in the old ones is stopped.
    Create { attempt: u32, why: &'static str },
    /// A new one would be needed, and a pod that never restarts does not get a second one.
    GiveUp { why: &'static str },
}

/// Decides for a pod that is not done.
pub(crate) fn decide_sandbox<'a>(pod: &Pod, snapshot: &'a PodSnapshot) -> SandboxDecision<'a> {
    let Some(newest) = snapshot.sandboxes.first() else {
        return SandboxDecision::Create { attempt: 0, why: "there is no sandbox" };
    };
    let ready =
        snapshot.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ready).count();
    let host_network = is_host_network(pod);
    let why = if ready > 1 {
        "more than one sandbox is ready"
    } else if newest.state != SandboxState::Ready {
        "the newest sandbox is not ready"
    } else if newest.host_network != host_network {
        "the sandbox has another network namespace mode than the pod"
    } else if !host_network && newest.ips.is_empty() {
        "the sandbox has no IP address"
    } else {
        return SandboxDecision::Keep(newest);
    };
    // Without any container nothing has run yet, and trying again repeats nothing.
    if pod_restart_policy(pod) == RestartPolicy::Never && !snapshot.containers.is_empty() {
        return SandboxDecision::GiveUp { why };
    }
    SandboxDecision::Create { attempt: newest.attempt.saturating_add(1), why }
}

/// The ConfigMap that the control plane keeps in each namespace, for all pods in it.
const ROOT_AUTHORITY: &str = "kube-root-ca.crt";

/// The pod's volumes show nothing that might be missing, as those of most pods do: they are ready as
/// soon as the API server has answered, and no sandbox has to wait until it has. A pod that waits for
/// an object has no sandbox until the object is there, as its condition PodReadyToStartContainers
/// tells.
pub(crate) fn has_certain_volumes(pod: &Pod) -> bool {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).all(is_certain)
}

fn is_certain(volume: &Volume) -> bool {
    if let Some(empty_dir) = &volume.empty_dir {
        return matches!(empty_dir.medium.as_deref(), None | Some("" | "Memory"));
    }
    if let Some(projected) = &volume.projected {
        return projected.sources.iter().flatten().all(is_certain_source);
    }
    volume.downward_api.is_some()
}

fn is_certain_source(source: &VolumeProjection) -> bool {
    source.service_account_token.is_some()
        || source.downward_api.is_some()
        || source.config_map.as_ref().is_some_and(|map| map.name == ROOT_AUTHORITY)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn volumes_are_certain_if_nothing_they_show_might_be_missing() {
        let token = json!({"serviceAccountToken": {"path": "token"}});
        let root = json!({"configMap": {"name": "kube-root-ca.crt"}});
        let labels = json!({"downwardAPI": {"items": []}});
        let projected = |sources: &[&Value]| json!({"projected": {"sources": sources}});
        for (volumes, expected) in [
            (vec![], true),
            (vec![projected(&[&token, &root, &labels])], true),
            (vec![json!({"emptyDir": {}}), json!({"emptyDir": {"medium": "Memory"}})], true),
            (vec![labels.clone()], true),
            (vec![json!({"emptyDir": {"medium": "HugePages"}})], false),
            (vec![projected(&[&token, &json!({"configMap": {"name": "settings"}})])], false),
            (vec![projected(&[&json!({"secret": {"name": "key"}})])], false),
            (vec![json!({"configMap": {"name": "kube-root-ca.crt"}})], false),
            (vec![json!({"emptyDir": {}}), json!({"hostPath": {"path": "/srv"}})], false),
            (vec![json!({"persistentVolumeClaim": {"claimName": "c"}})], false),
        ] {
            let named = volumes.iter().enumerate().map(|(number, volume)| {
                let mut volume = volume.clone();
                volume["name"] = format!("v{number}").into();
                volume
            });
            let volumes = Value::Array(named.collect());
            let pod =
                serde_json::from_value(json!({"spec": {"containers": [], "volumes": volumes}}));
            assert_eq!(has_certain_volumes(&pod.unwrap()), expected, "{volumes}");
        }
    }
}
