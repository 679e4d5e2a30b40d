//! The pods that the sources want, as one published view.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Pod;
use rubelet_allocation_manager::GrantedPods;
use rubelet_node_resources::{PodResources, ResizeRules};
use rubelet_types::{PodFullName, PodUid, is_static_pod, pod_ref};
use serde::Serialize;
use tokio::time::Instant;

/// Whether a desired pod was let in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) enum Standing {
    /// Not decided yet. It holds nothing.
    #[default]
    Undecided,
    /// Let in, and held back until others have made room. What it asks for is kept for it.
    Expected,
    /// Its worker has it.
    Admitted,
    /// The node does not take it. It holds nothing.
    Refused,
}

#[derive(Clone, Debug)]
struct Desired {
    pod: Arc<Pod>,
    /// The same with the resources that it was granted, if its source wants others.
    granted: Option<Arc<Pod>>,
    standing: Standing,
    /// By its worker's word nothing of it runs any more, and nothing will.
    is_over: bool,
    /// When a source first listed it.
    seen: Instant,
}

/// All desired pods by uid. Whoever admits pods writes, everybody may read.
///
/// A pod keeps the resources that it was granted when it was let in, whatever its source wants
/// since, until it is granted those.
#[derive(Debug, Default)]
pub(crate) struct DesiredPods {
    pods: Mutex<HashMap<PodUid, Desired>>,
    rules: ResizeRules,
}

impl Desired {
    fn granted(&self) -> &Arc<Pod> {
        self.granted.as_ref().unwrap_or(&self.pod)
    }

    fn is_let_in(&self) -> bool {
        matches!(self.standing, Standing::Expected | Standing::Admitted)
    }

    fn update(&mut self, pod: &Arc<Pod>, rules: ResizeRules) {
        // Who was not let in was granted nothing, unless by an earlier kubelet.
        let may_differ = self.granted.is_some() || self.is_let_in() && self.pod.spec != pod.spec;
        if may_differ {
            let granted = PodResources::of(self.granted(), rules);
            self.granted = granted.applied_to(pod, rules).map(Arc::new);
        }
        self.pod.clone_from(pod);
    }
}

impl DesiredPods {
    pub(crate) fn new(rules: ResizeRules) -> Self {
        Self { pods: Mutex::default(), rules }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PodUid, Desired>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A source lists the pod, as it is now. A pod that was known keeps its standing, and what it was
    /// granted.
    pub(crate) fn set(&self, pod: &Arc<Pod>) {
        self.lock()
            .entry(pod_ref(pod).uid)
            .and_modify(|desired| desired.update(pod, self.rules))
            .or_insert_with(|| Desired {
                pod: pod.clone(),
                granted: None,
                standing: Standing::default(),
                is_over: false,
                seen: Instant::now(),
            });
    }

    pub(crate) fn remove(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    /// The static pod of that name that the sources want.
    pub(crate) fn static_pod(&self, name: &PodFullName) -> Option<PodUid> {
        let desired = self.lock();
        let static_pods = desired.values().filter(|desired| is_static_pod(&desired.pod));
        let mut references = static_pods.map(|desired| pod_ref(&desired.pod));
        references.find(|pod| pod.full_name() == *name).map(|pod| pod.uid)
    }

    /// The pod of that name; of several (one of them is on its way out), the newest.
    pub(crate) fn by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let desired = self.lock();
        let named = desired.values().map(|desired| &desired.pod).filter(|pod| {
            let metadata = &pod.metadata;
            metadata.name.as_deref() == Some(name)
                && metadata.namespace.as_deref() == Some(namespace)
        });
        named.max_by_key(|pod| pod.metadata.creation_timestamp.as_ref().map(|at| at.0)).cloned()
    }

    /// When a source first listed the pod.
    pub(crate) fn seen(&self, uid: &PodUid) -> Option<Instant> {
        self.lock().get(uid).map(|desired| desired.seen)
    }

    pub(crate) fn contains(&self, uid: &PodUid) -> bool {
        self.lock().contains_key(uid)
    }

    /// The pod as its source last gave it, and its standing.
    pub(crate) fn get(&self, uid: &PodUid) -> Option<(Arc<Pod>, Standing)> {
        self.lock().get(uid).map(|desired| (desired.pod.clone(), desired.standing))
    }

    pub(crate) fn set_standing(&self, uid: &PodUid, standing: Standing) {
        if let Some(desired) = self.lock().get_mut(uid) {
            desired.standing = standing;
        }
    }

    /// The pod with the resources that it was granted.
    pub(crate) fn granted(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.lock().get(uid).map(|desired| desired.granted().clone())
    }

    /// An earlier kubelet granted the pod other resources than its source wants.
    pub(crate) fn set_granted(&self, uid: &PodUid, granted: Pod) {
        if let Some(desired) = self.lock().get_mut(uid) {
            desired.granted = Some(Arc::new(granted));
        }
    }

    /// The pod is granted what its source wants.
    pub(crate) fn grant(&self, uid: &PodUid) {
        if let Some(desired) = self.lock().get_mut(uid) {
            desired.granted = None;
        }
    }

    /// Pods that were let in and want other resources than they were granted: as they are wanted, and
    /// as they were granted.
    pub(crate) fn resizes(&self) -> Vec<(Arc<Pod>, Arc<Pod>)> {
        let pods = self.lock();
        let waiting = pods.values().filter(|desired| desired.is_let_in() && !desired.is_over);
        waiting
            .filter_map(|desired| Some((desired.pod.clone(), desired.granted.clone()?)))
            .collect()
    }

    /// Whether the worker of a pod is past the last container. Answers whether that is new.
    pub(crate) fn set_over(&self, uid: &PodUid, is_over: bool) -> bool {
        self.lock()
            .get_mut(uid)
            .is_some_and(|desired| std::mem::replace(&mut desired.is_over, is_over) != is_over)
    }

    /// All of them, in the order of their full names.
    pub(crate) fn all(&self) -> Vec<Arc<Pod>> {
        self.select(|_| true, |desired| &desired.pod).into_iter().map(|(pod, _)| pod).collect()
    }

    /// Those that hold resources, or have them kept: let in, and not over. In the order of their full
    /// names, with the resources that they were granted.
    pub(crate) fn active(&self) -> Vec<(Arc<Pod>, Standing)> {
        self.select(|desired| !desired.is_over && desired.is_let_in(), Desired::granted)
    }

    fn select(
        &self,
        which: impl Fn(&Desired) -> bool,
        pod: impl Fn(&Desired) -> &Arc<Pod>,
    ) -> Vec<(Arc<Pod>, Standing)> {
        let desired = self.lock();
        let chosen = desired.values().filter(|desired| which(desired));
        let mut pods: Vec<_> =
            chosen.map(|desired| (pod(desired).clone(), desired.standing)).collect();
        drop(desired);
        pods.sort_by_cached_key(|(pod, _)| pod_ref(pod).full_name());
        pods
    }
}

impl GrantedPods for DesiredPods {
    fn granted_pods(&self) -> Vec<Arc<Pod>> {
        let let_in = self.select(Desired::is_let_in, Desired::granted);
        let_in.into_iter().map(|(pod, _)| pod).collect()
    }

    fn granted_pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.granted(uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, version: &str) -> Arc<Pod> {
        let pod =
            serde_json::json!({"metadata": {"uid": uid, "name": uid, "labels": {"v": version}}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn active_are_those_that_were_let_in_and_are_not_over() {
        let desired = DesiredPods::default();
        for (uid, standing) in [
            ("undecided", Standing::Undecided),
            ("expected", Standing::Expected),
            ("admitted", Standing::Admitted),
            ("refused", Standing::Refused),
            ("over", Standing::Admitted),
        ] {
            desired.set(&pod(uid, "1"));
            desired.set_standing(&PodUid::new(uid), standing);
        }
        desired.set_over(&PodUid::new("over"), true);
        let active = || -> Vec<String> {
            let active = desired.active();
            active.iter().map(|(pod, _)| pod.metadata.uid.clone().unwrap()).collect()
        };
        assert_eq!(active(), ["admitted", "expected"]);
        // A static pod that left and came back goes on where its worker is.
        desired.set_over(&PodUid::new("over"), false);
        assert_eq!(active(), ["admitted", "expected", "over"]);
    }

    fn asking(cpu: &str, version: &str) -> Arc<Pod> {
        let pod = serde_json::json!({
            "metadata": {"uid": "a", "name": "a", "labels": {"v": version}},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pod_keeps_what_it_was_granted_until_it_is_granted_more() {
        let desired = DesiredPods::default();
        let uid = PodUid::new("a");
        desired.set(&asking("1", "1"));
        desired.set(&asking("2", "2"));
        assert_eq!(desired.granted(&uid), Some(asking("2", "2")), "it was not let in");
        desired.set_standing(&uid, Standing::Admitted);
        desired.set(&asking("3", "3"));
        assert_eq!(desired.granted(&uid), Some(asking("2", "3")));
        assert_eq!(desired.active()[0].0, asking("2", "3"));
        assert_eq!(desired.all(), [asking("3", "3")]);
        assert_eq!(desired.resizes(), [(asking("3", "3"), asking("2", "3"))]);
        desired.set(&asking("3", "4"));
        assert_eq!(desired.resizes(), [(asking("3", "4"), asking("2", "4"))]);
        desired.set(&asking("2000m", "5"));
        assert_eq!(desired.resizes(), [], "it wants what it has");
        desired.set(&asking("4", "6"));
        desired.grant(&uid);
        assert_eq!(desired.granted(&uid), Some(asking("4", "6")));
        assert_eq!(desired.resizes(), []);
    }

    #[test]
    fn what_an_earlier_kubelet_granted_holds_before_a_pod_is_let_in() {
        let desired = DesiredPods::default();
        let uid = PodUid::new("a");
        desired.set(&asking("2", "1"));
        desired.set_granted(&uid, Arc::unwrap_or_clone(asking("1", "1")));
        desired.set(&asking("3", "2"));
        assert_eq!(desired.granted(&uid), Some(asking("1", "2")));
        assert_eq!(desired.resizes(), [], "it waits for its admission first");
    }

    #[test]
    fn a_new_version_keeps_its_standing_and_one_that_comes_back_does_not() {
        let desired = DesiredPods::default();
        let uid = PodUid::new("a");
        desired.set(&pod("a", "1"));
        desired.set_standing(&uid, Standing::Expected);
        desired.set(&pod("a", "2"));
        assert_eq!(desired.get(&uid), Some((pod("a", "2"), Standing::Expected)));
        desired.remove(&uid);
        desired.set(&pod("a", "3"));
        assert_eq!(desired.get(&uid), Some((pod("a", "3"), Standing::Undecided)));
    }
}
