//! Pods as a kubelet reports them, in the few words that tables and scenarios need.

use std::path::PathBuf;

use serde_json::Value;

use crate::cgroups;
use crate::namespaces::kill;

/// A pod of `GET /pods`.
#[derive(Debug, Clone)]
pub struct PodView {
    /// `metadata.name`: for a static pod the manifest's name and the node's.
    pub name: String,
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.uid`.
    pub uid: String,
    /// `status.phase`.
    pub phase: String,
    /// `status.reason`, or empty.
    pub reason: String,
    /// `status.message`, or empty.
    pub message: String,
    /// Whether the condition `Ready` is true.
    pub ready: bool,
    /// `status.podIP`, or empty.
    pub ip: String,
    /// `status.startTime` in RFC 3339, or empty.
    pub start_time: String,
    /// Init containers, then the others, in the order of the status.
    pub containers: Vec<ContainerView>,
    /// The pod itself.
    pub raw: Value,
}

/// One container's status.
#[derive(Debug, Clone)]
pub struct ContainerView {
    /// `name`.
    pub name: String,
    /// Whether it comes from `initContainerStatuses`.
    pub is_init: bool,
    /// `ready`.
    pub ready: bool,
    /// `restartCount`.
    pub restarts: u64,
    /// The id without the runtime's prefix, or empty.
    pub id: String,
    /// `waiting`, `running`, `terminated`, or empty.
    pub state: String,
    /// The state's reason, or empty.
    pub reason: String,
    /// The state's message, or empty.
    pub message: String,
    /// The exit code of a terminated container.
    pub exit_code: Option<i64>,
}

impl PodView {
    /// Reads the items of a pod list.
    pub fn from_list(list: &Value) -> Vec<Self> {
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut pods: Vec<Self> = items.iter().map(Self::from_pod).collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        pods
    }

    /// Reads one pod.
    pub fn from_pod(pod: &Value) -> Self {
        let status = &pod["status"];
        let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_ready =
            |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        let containers = |field: &str, is_init: bool| -> Vec<ContainerView> {
            let statuses = status[field].as_array().map(Vec::as_slice).unwrap_or_default();
            statuses.iter().map(|status| ContainerView::from_status(status, is_init)).collect()
        };
        let mut all = containers("initContainerStatuses", true);
        all.extend(containers("containerStatuses", false));
        Self {
            name: text(&pod["metadata"]["name"]),
            namespace: text(&pod["metadata"]["namespace"]),
            uid: text(&pod["metadata"]["uid"]),
            phase: text(&status["phase"]),
            reason: text(&status["reason"]),
            message: text(&status["message"]),
            ready: conditions.iter().any(is_ready),
            ip: text(&status["podIP"]),
            start_time: text(&status["startTime"]),
            containers: all,
            raw: pod.clone(),
        }
    }

    /// The container of that name.
    pub fn container(&self, name: &str) -> Option<&ContainerView> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// The restarts of all its containers.
    pub fn restarts(&self) -> u64 {
        self.containers.iter().map(|container| container.restarts).sum()
    }

    /// What a person wants to read instead of the phase: the reason why a container waits or
    /// failed, where there is one.
    pub fn state(&self) -> String {
        if !self.reason.is_empty() {
            return self.reason.clone();
        }
        let telling = self.containers.iter().find(|container| {
            let benign = ["", "ContainerCreating", "PodInitializing", "Completed"];
            !benign.contains(&container.reason.as_str())
        });
        match telling {
            Some(container) if self.phase != "Succeeded" => container.reason.clone(),
            _ => self.phase.clone(),
        }
    }
}

impl ContainerView {
    fn from_status(status: &Value, is_init: bool) -> Self {
        let (state, detail) = status["state"]
            .as_object()
            .and_then(|states| states.iter().find(|(_, detail)| detail.is_object()))
            .map_or((String::new(), &Value::Null), |(name, detail)| (name.clone(), detail));
        let id = text(&status["containerID"]);
        Self {
            name: text(&status["name"]),
            is_init,
            ready: status["ready"].as_bool().unwrap_or(false),
            restarts: status["restartCount"].as_u64().unwrap_or(0),
            id: id.split_once("://").map_or(id.clone(), |(_, id)| id.to_owned()),
            state,
            reason: text(&detail["reason"]),
            message: text(&detail["message"]),
            exit_code: detail["exitCode"].as_i64(),
        }
    }

    /// Whether it runs now.
    pub fn is_running(&self) -> bool {
        self.state == "running"
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The processes of a container, found by its cgroup below the group `cgroup`, as ids of our own
/// process namespace.
pub fn find_container_processes(cgroup: &str, container_id: &str) -> Vec<u32> {
    if container_id.is_empty() {
        return Vec::new();
    }
    let named = |group: &PathBuf| {
        group.file_name().is_some_and(|name| name.to_string_lossy().contains(container_id))
    };
    let mut found: Vec<u32> = cgroups::groups(cgroup)
        .iter()
        .filter(|group| named(group))
        .flat_map(|group| cgroups::processes(group))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Kills the processes of a container behind the kubelet's and the runtime's back, as the kernel
/// does when memory runs out. Returns how many there were.
pub fn kill_container(cgroup: &str, container_id: &str) -> usize {
    let processes = find_container_processes(cgroup, container_id);
    processes.iter().copied().for_each(kill);
    processes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: Value) -> PodView {
        let pod =
            json!({ "metadata": { "name": "web", "namespace": "default" }, "status": status });
        PodView::from_list(&json!({ "items": [pod] })).remove(0)
    }

    #[test]
    fn a_waiting_container_says_why_the_pod_is_not_running() {
        let view = pod(json!({
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "False" }],
            "containerStatuses": [{
                "name": "app", "ready": false, "restartCount": 3, "containerID": "containerd://abc",
                "state": { "waiting": { "reason": "CrashLoopBackOff" } }
            }]
        }));
        assert_eq!(view.state(), "CrashLoopBackOff");
        assert_eq!((view.ready, view.restarts()), (false, 3));
        assert_eq!(view.container("app").map(|app| app.id.as_str()), Some("abc"));
    }

    #[test]
    fn a_pod_that_only_starts_shows_its_phase() {
        let view = pod(json!({
            "phase": "Pending",
            "initContainerStatuses": [{ "name": "setup", "state": { "terminated": { "reason": "Completed", "exitCode": 0 } } }],
            "containerStatuses": [{ "name": "app", "state": { "waiting": { "reason": "PodInitializing" } } }]
        }));
        assert_eq!(view.state(), "Pending");
        assert!(
            view.container("setup")
                .is_some_and(|setup| setup.is_init && setup.exit_code == Some(0))
        );
    }
}
