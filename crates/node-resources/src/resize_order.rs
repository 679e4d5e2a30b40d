//! Which of several resizes that wait is decided first.

use std::cmp::Ordering;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use rubelet_types::{QosClass, pod_qos_class, pod_requests};

/// A resize that was asked for and not granted yet.
#[derive(Clone, Copy, Debug)]
pub struct WaitingResize<'a> {
    /// The pod as it is wanted.
    pub wanted: &'a Pod,
    /// The pod as it was granted.
    pub granted: &'a Pod,
    /// Since when it is known to have to wait; none if it was not decided yet.
    pub deferred_since: Option<Timestamp>,
}

impl WaitingResize<'_> {
    /// It asks for more CPU or memory than the pod has. All others are expected to succeed.
    fn raises_requests(&self) -> bool {
        let (wanted, granted) = (pod_requests(self.wanted), pod_requests(self.granted));
        wanted.memory_bytes() > granted.memory_bytes() || wanted.cpu_milli() > granted.cpu_milli()
    }
}

/// The order: what asks for no more comes first, then the higher priority, then guaranteed pods, then
/// whoever has waited longest.
pub fn compare_waiting_resizes(a: &WaitingResize<'_>, b: &WaitingResize<'_>) -> Ordering {
    let priority = |resize: &WaitingResize<'_>| {
        resize.wanted.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0)
    };
    let guaranteed =
        |resize: &WaitingResize<'_>| pod_qos_class(resize.wanted) == QosClass::Guaranteed;
    let since = |resize: &WaitingResize<'_>| resize.deferred_since.unwrap_or(Timestamp::MAX);
    a.raises_requests()
        .cmp(&b.raises_requests())
        .then_with(|| priority(b).cmp(&priority(a)))
        .then_with(|| guaranteed(b).cmp(&guaranteed(a)))
        .then_with(|| since(a).cmp(&since(b)))
        .then_with(|| a.wanted.metadata.uid.cmp(&b.wanted.metadata.uid))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, priority: i32, cpu: &str, limit: Option<&str>) -> Pod {
        let limits = limit.map(|cpu| json!({"cpu": cpu, "memory": "1Gi"}));
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": {
                "requests": {"cpu": cpu, "memory": "1Gi"}, "limits": limits,
            }}]},
        }))
        .unwrap()
    }

    #[test]
    fn order() {
        let at = |second| Some(Timestamp::from_second(second).unwrap());
        // In the order in which they are to be decided.
        let pods = [
            (pod("less", -1, "1", None), pod("less", -1, "2", None), at(9)),
            (pod("urgent", 7, "2", None), pod("urgent", 7, "1", None), None),
            (pod("guaranteed", 0, "2", Some("2")), pod("guaranteed", 0, "1", Some("1")), at(9)),
            (pod("old", 0, "2", None), pod("old", 0, "1", None), at(5)),
            (pod("young", 0, "2", None), pod("young", 0, "1", None), at(6)),
            (pod("new", 0, "2", None), pod("new", 0, "1", None), None),
            (pod("newer", 0, "2", None), pod("newer", 0, "1", None), None),
        ];
        let mut waiting: Vec<WaitingResize<'_>> = pods
            .iter()
            .rev()
            .map(|(wanted, granted, since)| WaitingResize {
                wanted,
                granted,
                deferred_since: *since,
            })
            .collect();
        waiting.sort_by(compare_waiting_resizes);
        let names: Vec<_> =
            waiting.iter().map(|it| it.wanted.metadata.name.as_deref().unwrap()).collect();
        assert_eq!(names, ["less", "urgent", "guaranteed", "old", "young", "new", "newer"]);
    }
}
