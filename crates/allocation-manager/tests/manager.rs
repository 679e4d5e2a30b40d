//! What is granted and what is in force, across the lives of a kubelet.

#![allow(clippy::unwrap_used)] // A failed helper is a failed test.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use rubelet_allocation_manager::{
    ACTUATED_FILE, ALLOCATED_FILE, AllocationManager, Deviation, GrantedPods,
};
use rubelet_node_resources::{PodResources, ResizeRules};
use rubelet_types::{PodUid, ResourceAmounts};
use serde_json::json;

#[derive(Default)]
struct Pods(Mutex<BTreeMap<PodUid, Arc<Pod>>>);

impl Pods {
    fn set(&self, pod: Pod) {
        let uid = PodUid::new(pod.metadata.uid.as_deref().unwrap());
        self.0.lock().unwrap().insert(uid, Arc::new(pod));
    }
}

impl GrantedPods for Pods {
    fn granted_pods(&self) -> Vec<Arc<Pod>> {
        self.0.lock().unwrap().values().cloned().collect()
    }

    fn granted_pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.0.lock().unwrap().get(uid).cloned()
    }
}

/// One life of a kubelet.
struct Life {
    pods: Arc<Pods>,
    manager: AllocationManager,
}

/// A pod of two containers with so much CPU.
fn pod(a: &str, b: &str) -> Pod {
    let container = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": cpu}}});
    serde_json::from_value(json!({
        "metadata": {"uid": "u", "name": "p", "namespace": "n"},
        "spec": {"containers": [container("a", a), container("b", b)]},
    }))
    .unwrap()
}

fn uid() -> PodUid {
    PodUid::new("u")
}

impl Life {
    async fn begin(root: &Path) -> Self {
        let pods = Arc::new(Pods::default());
        let manager = AllocationManager::new(root, ResizeRules::default(), pods.clone());
        manager.load().await.unwrap();
        Self { pods, manager }
    }

    /// A source lists the pod. Answers what it has, and what of it is in force.
    fn come(&self, pod: Pod) -> String {
        let granted = self.manager.claim(&pod).unwrap_or(pod);
        self.pods.set(granted);
        self.told()
    }

    async fn grant(&self, wanted: Pod) {
        let publish = || self.pods.set(wanted.clone());
        self.manager.grant(&wanted, publish).await.unwrap();
    }

    fn told(&self) -> String {
        let cpu = |resources: &PodResources| -> Vec<i64> {
            let of = |name| {
                ResourceAmounts::from_api(resources.containers[name].limits.as_ref()).cpu_milli()
                    / 1000
            };
            vec![of("a"), of("b")]
        };
        let granted = self.pods.granted_pod(&uid()).unwrap();
        let granted = cpu(&PodResources::of(&granted, ResizeRules::default()));
        match self.manager.deviation(&uid()) {
            None => format!("has {granted:?}"),
            Some(Deviation { in_force, cgroup_due, .. }) => format!(
                "has {granted:?}, in force {:?}{}",
                cpu(&in_force),
                if cgroup_due { ", cgroup due" } else { "" }
            ),
        }
    }
}

fn read(root: &Path, file: &str) -> serde_json::Value {
    let envelope: serde_json::Value =
        serde_json::from_slice(&std::fs::read(root.join(file)).unwrap()).unwrap();
    serde_json::from_str(envelope["data"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn a_resize_is_finished_by_whoever_comes_next() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let life = Life::begin(root).await;
    assert_eq!(life.come(pod("1", "2")), "has [1, 2]");
    life.grant(pod("3", "2")).await;
    assert_eq!(life.told(), "has [3, 2], in force [1, 2], cgroup due");

    // Killed. Meanwhile somebody wants something else.
    let life = Life::begin(root).await;
    assert_eq!(life.come(pod("9", "9")), "has [3, 2], in force [1, 2], cgroup due");
    let begun = life.manager.begin(&uid()).unwrap();
    let granted = life.pods.granted_pod(&uid()).unwrap();
    life.manager.finish(&granted, &begun).await;
    assert_eq!(life.told(), "has [3, 2]");

    let life = Life::begin(root).await;
    assert_eq!(life.come(pod("3", "2")), "has [3, 2]");
}

#[tokio::test]
async fn what_was_not_granted_is_not_known_to_the_next() {
    let root = tempfile::tempdir().unwrap();
    let life = Life::begin(root.path()).await;
    life.come(pod("1", "2"));
    life.manager.flush().await.unwrap();
    let life = Life::begin(root.path()).await;
    assert_eq!(life.come(pod("5", "2")), "has [1, 2]");
}

#[tokio::test]
async fn what_a_pod_was_granted_is_kept_as_soon_as_it_wants_something_else() {
    let root = tempfile::tempdir().unwrap();
    let life = Life::begin(root.path()).await;
    life.come(pod("1", "2"));
    life.manager.keep().await.unwrap();
    let life = Life::begin(root.path()).await;
    assert_eq!(life.come(pod("5", "2")), "has [1, 2]");
}

#[tokio::test]
async fn a_resize_during_a_resize_starts_from_where_that_one_came() {
    let root = tempfile::tempdir().unwrap();
    let life = Life::begin(root.path()).await;
    life.come(pod("1", "1"));
    life.grant(pod("2", "2")).await;
    let begun = life.manager.begin(&uid()).unwrap();
    let second = life.pods.granted_pod(&uid()).unwrap();
    let resources = PodResources::of(&second, ResizeRules::default());
    life.manager.container_changed(&uid(), "a", &resources.containers["a"]);
    assert_eq!(life.told(), "has [2, 2], in force [2, 1], cgroup due");
    life.grant(pod("1", "1")).await;
    assert_eq!(life.told(), "has [1, 1], in force [2, 1], cgroup due");
    life.manager.finish(&second, &begun).await;
    assert_eq!(life.told(), "has [1, 1], in force [2, 2], cgroup due");
    let begun = life.manager.begin(&uid()).unwrap();
    let third = life.pods.granted_pod(&uid()).unwrap();
    life.manager.finish(&third, &begun).await;
    assert_eq!(life.told(), "has [1, 1]");
}

#[tokio::test]
async fn a_container_has_what_it_was_created_with() {
    let root = tempfile::tempdir().unwrap();
    let life = Life::begin(root.path()).await;
    life.come(pod("1", "1"));
    let first = life.pods.granted_pod(&uid()).unwrap();
    life.manager.creating(&first, "a").await;
    assert_eq!(life.told(), "has [1, 1]");
    assert!(!root.path().join(ACTUATED_FILE).exists(), "nobody waits for a file");

    // One whose start was under way when the pod was granted more.
    life.grant(pod("2", "2")).await;
    let begun = life.manager.begin(&uid()).unwrap();
    life.manager.creating(&first, "a").await;
    let second = life.pods.granted_pod(&uid()).unwrap();
    life.manager.finish(&second, &begun).await;
    assert_eq!(life.told(), "has [2, 2], in force [1, 2]");

    // And one that is created anew.
    life.manager.creating(&second, "a").await;
    assert_eq!(life.told(), "has [2, 2]");
    let life = Life::begin(root.path()).await;
    assert_eq!(life.come(pod("2", "2")), "has [2, 2]");
}

#[tokio::test]
async fn what_cannot_be_saved_is_not_granted() {
    let root = tempfile::tempdir().unwrap();
    let life = Life::begin(root.path()).await;
    life.come(pod("1", "1"));
    std::fs::create_dir(root.path().join(ALLOCATED_FILE)).unwrap();
    let published = Mutex::new(false);
    let granted = life.manager.grant(&pod("2", "2"), || *published.lock().unwrap() = true).await;
    assert!(granted.is_err() && !*published.lock().unwrap());
    assert_eq!(life.told(), "has [1, 1]");
}

#[tokio::test]
async fn files_tell_of_all_pods_what_the_go_kubelet_looks_for() {
    let root = tempfile::tempdir().unwrap();
    let life = Life::begin(root.path()).await;
    let mut whole = pod("1", "1");
    whole.metadata.uid = Some("w".to_owned());
    let spec = whole.spec.as_mut().unwrap();
    spec.containers[0].resources = None;
    spec.resources = serde_json::from_value(json!({"limits": {"cpu": "4"}})).unwrap();
    life.pods.set(whole);
    life.come(pod("1", "2"));
    life.grant(pod("3", "2")).await;
    life.manager.flush().await.unwrap();
    let cpu = |cpu: &str| json!({"limits": {"cpu": cpu}, "requests": {"cpu": cpu}});
    let of_u = |a: &str| json!({"ContainerResources": {"a": cpu(a), "b": cpu("2")}, "PodLevelResources": null});
    let of_w = |a: serde_json::Value| {
        json!({
            "ContainerResources": {"a": a, "b": cpu("1")},
            "PodLevelResources": {"limits": {"cpu": "4"}},
        })
    };
    let allocated = read(root.path(), ALLOCATED_FILE);
    assert_eq!(allocated, json!({"entries": {"u": of_u("3"), "w": of_w(json!({}))}}));
    let actuated = read(root.path(), ACTUATED_FILE);
    let with_limit = json!({"limits": {"cpu": "4"}});
    assert_eq!(actuated, json!({"entries": {"u": of_u("1"), "w": of_w(with_limit)}}));

    // Pods that have not come yet keep their entries, until it is known that they will not.
    let life = Life::begin(root.path()).await;
    life.come(pod("3", "2"));
    life.manager.flush().await.unwrap();
    assert_eq!(read(root.path(), ALLOCATED_FILE), allocated);
    life.manager.retain(&HashSet::from([uid()]));
    life.manager.flush().await.unwrap();
    assert_eq!(read(root.path(), ALLOCATED_FILE), json!({"entries": {"u": of_u("3")}}));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_let_in_is_known_before_its_first_container_is_created() {
    let root = tempfile::tempdir().unwrap();
    let life = Life::begin(root.path()).await;
    let manager = Arc::new(life.manager);
    let writer = tokio::spawn({
        let manager = manager.clone();
        async move { manager.run().await }
    });
    life.pods.set(pod("1", "1"));
    manager.let_in(&uid());
    let granted = life.pods.granted_pod(&uid()).unwrap();
    manager.creating(&granted, "a").await;
    for file in [ALLOCATED_FILE, ACTUATED_FILE] {
        let entries = read(root.path(), file);
        assert!(entries["entries"]["u"]["ContainerResources"]["a"].is_object(), "{entries}");
    }
    writer.abort();

    // One that cannot be saved starts all the same, after a while.
    let life = Life::begin(root.path()).await;
    life.pods.set(pod("1", "1"));
    life.manager.let_in(&uid());
    life.manager.creating(&granted, "a").await;
}
